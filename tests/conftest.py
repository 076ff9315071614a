"""Goldens that never pass by rewriting themselves, and GPU tests that skip where there is no Hopper."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import draws
import pytest

from docs.tools import chromium

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
DATA = Path(__file__).parent / "data"
# Tests whose cases take long: over 2 s of processor time together and 0.05 s each, or over the same kernels, lowered once.
COSTLY = {*(DATA / "costly.txt").read_text().split()}
# Tests that take over a second with a single case, alone or the one in many that is run. Of those of a folder a sample has one in SHARE.
LONG, SHARE = {*(DATA / "long.txt").read_text().split()}, 4
LOADED = time.monotonic()
COMPUTE_CAPABILITY_MAJOR = 75  # CUdevice_attribute


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ and skip")
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="of each test's costly cases run one in N, at least one; of a folder's tests that take seconds with one case "
        f"one in {SHARE} (N, if that is less); of all others every one",
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


LEFT_OUT = pytest.StashKey[dict]()  # what a sample is without, for its last words


def pytest_configure(config):
    """Decided once: the processes of a run inherit it."""
    draws.sampled = config.option.sample > 1
    if config.option.rotation is None:
        config.option.rotation = commit()


def pytest_runtest_setup(item):
    """Each process counts from when it was loaded."""
    minutes = item.config.option.minutes
    if minutes is not None and costly(item) and time.monotonic() - LOADED > 60 * minutes:
        pytest.skip(f"{minutes:g} minutes are over (--minutes)")


def pytest_report_header(config):
    n, rotation = config.option.sample, config.option.rotation
    text = f"sample: one in {n} of each test's costly cases, one in {min(n, SHARE)} of the tests that take seconds with one"
    return f"{text}; the same again: --sample {n} --rotation {rotation}" if n > 1 else None


def pytest_sessionfinish(session):
    """A worker tells the process that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """All workers leave out the same."""
    if told := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = told


def pytest_terminal_summary(terminalreporter, config):
    """A sample says what it is without."""
    if not (out := config.stash.get(LEFT_OUT, None)):
        return
    terminalreporter.section("left out of this sample; every case: make test-all")
    terminalreporter.line(f"{out['cases']} cases of {out['of']} tests that ran with others")
    for file, names in out["tests"].items():
        terminalreporter.line(f"{file}: {', '.join(names)}")


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
        config.stash[LEFT_OUT] = without(out, items)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = missing_for_gpu() if gpu else ""
    for item in gpu * bool(reason):
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """What was collected stays: Python need not look through it again for what can be freed."""
    gc.freeze()


def left_out(items, one_in: int, rotation: str) -> list:
    """Of each folder's long tests all but one in SHARE; of each other test's costly cases all but one in `one_in`, rounded
    up: which, `rotation` says."""
    folders: dict[str, dict[str, None]] = {}
    for test in map(test_of, items):
        if test in LONG:
            folders.setdefault(test.rpartition("/")[0], {})[test] = None
    none = {x for tests in folders.values() for x in beyond(tests, min(one_in, SHARE), rotation)}
    cases: dict[str, dict[str, Any]] = {}
    for item in items:
        if costly(item) and test_of(item) not in none:
            cases.setdefault(test_of(item), {})[item.nodeid] = item
    some = [mine[x] for mine in cases.values() for x in beyond(mine, one_in, rotation)]
    return [item for item in items if test_of(item) in none] + some


def beyond(ids: Iterable[str], one_in: int, rotation: str) -> list[str]:
    """All but one in so many, rounded up, by turns."""
    ordered = sorted(ids, key=lambda x: crc32(f"{rotation} {x}".encode()))
    return ordered[-(-len(ordered) // one_in) :]


def without(out, items) -> dict:
    """What is left out and what is left, in words that a worker can send."""
    run, missing = {*map(test_of, items)}, [*map(test_of, out)]
    cases = [x for x in missing if x in run]
    files: dict[str, list[str]] = {}
    for test in sorted({*missing} - run):
        file, _, name = test.partition("::")
        files.setdefault(file, []).append(name)
    return {"cases": len(cases), "of": len({*cases}), "tests": files}


def test_of(item) -> str:
    """The test that it is a case of."""
    return item.nodeid.partition("[")[0]


def costly(item) -> bool:
    """Whether it is one of a test's cases that take long: it compiles and emulates or launches, or is known to."""
    known = any(map(item.get_closest_marker, ("nvrtc", "gpu"))) or test_of(item) in COSTLY
    return hasattr(item, "callspec") and known


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
