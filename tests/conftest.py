"""Goldens that never pass by rewriting themselves, and GPU tests that skip where there is no Hopper."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest

from docs.tools import chromium

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
# Tests whose cases take long: over 2 s of processor time together and 0.05 s each, or over the same kernels, lowered once.
COSTLY = {*(Path(__file__).parent / "data" / "costly.txt").read_text().split()}
LOADED = time.monotonic()
COMPUTE_CAPABILITY_MAJOR = 75  # CUdevice_attribute


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ and skip")
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="of each test's costly cases run one in N, at least one; of all others every one",
    )
    parser.addoption(
        "--minutes",
        type=float,
        metavar="M",
        help="after so many, skip the costly cases that are left",
    )
    parser.addoption(
        "--rotation",
        metavar="TEXT",
        help="which of them: others for another TEXT (default: the commit, so that all have their turn)",
    )


def pytest_configure(config):
    """Decided once: the processes of a run inherit it."""
    if config.option.rotation is None:
        config.option.rotation = commit()


def pytest_runtest_setup(item):
    """Each process counts from when it was loaded."""
    minutes = item.config.option.minutes
    if minutes is not None and costly(item) and time.monotonic() - LOADED > 60 * minutes:
        pytest.skip(f"{minutes:g} minutes are over (--minutes)")


def pytest_report_header(config):
    n, rotation = config.option.sample, config.option.rotation
    text = f"sample: one in {n} of each test's costly cases; the same again: --sample {n} --rotation {rotation}"
    return text if n > 1 else None


def commit() -> str:
    """The commit that is tested; "none" outside of a checkout."""
    try:
        asked = ["git", "-C", Path(__file__).parent, "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


@pytest.hookimpl(trylast=True)  # after -m and -k: look for a GPU only if a GPU test is left
def pytest_collection_modifyitems(config, items):
    changing = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if changing:
        raise pytest.UsageError(f"a test's id must be the same in every process: {changing[0]}")
    out = set(left_out(items, config.option.sample, config.option.rotation))
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = missing_for_gpu() if gpu else ""
    for item in gpu * bool(reason):
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """What was collected stays: Python need not look through it again for what can be freed."""
    gc.freeze()


def left_out(items, one_in: int, rotation: str) -> list:
    """Of each test's costly cases all but one in `one_in`, rounded up: which, `rotation` says."""
    tests: dict[str, list] = {}
    for item in filter(costly, items):
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    turn = {item: crc32(f"{rotation} {item.nodeid}".encode()) for c in tests.values() for item in c}
    ordered = (sorted(cases, key=turn.__getitem__) for cases in tests.values())
    return [item for cases in ordered for item in cases[-(-len(cases) // one_in) :]]


def costly(item) -> bool:
    """Whether it is one of a test's cases that take long: it compiles and emulates, or is known to."""
    test = item.nodeid.partition("[")[0]
    return hasattr(item, "callspec") and (bool(item.get_closest_marker("nvrtc")) or test in COSTLY)


def missing_for_gpu() -> str:
    """What this machine lacks for the GPU tests ('' if nothing), without importing torch or cuda."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver"
    device, major = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return "no CUDA device"
    driver.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
    if major.value != 9:
        return f"no Hopper GPU (compute capability {major.value}.x)"
    absent = [name for name in ("torch", "cuda") if not find_spec(name)]
    return f"not installed: {', '.join(absent)}" if absent else ""


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled kernels are kept in a folder of this run's, also by the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMGEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("GEMMGEN_CACHE_PATH", raising=False)
        patch.delenv("GEMMGEN_CACHE_BYTES", raising=False)
        patch.delenv("GEMMGEN_CALIBRATED", raising=False)
        yield


@pytest.fixture(scope="session")
def browser():
    """One of this process' own; skips the test where none is installed."""
    if not (program := chromium.installed()):
        names = ", ".join(chromium.NAMES)
        pytest.skip(f"no browser: none of {names} on PATH (apt-get install chromium)")
    with chromium.Browser(program) as b:
        yield b


@pytest.fixture
def tab(browser):
    """A page of its own."""
    opened = browser.tab()
    yield opened
    opened.close()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder to run in that holds copies of generated/ and of what was measured."""
    for folder in ("generated", "docs/data", "docs/charts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def golden(request):
    """Compare text with tests/golden/<module>/<test>.txt. A test that rewrites its file is skipped."""

    def check(actual: str) -> None:
        path = GOLDEN / request.path.stem / f"{request.node.name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual)
            pytest.skip(f"rewrote {path.relative_to(GOLDEN)}")
        assert path.exists(), f"no golden {path.relative_to(GOLDEN)}: run with --update-golden"
        assert actual == path.read_text(), "run with --update-golden and read the diff"

    return check
