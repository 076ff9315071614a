"""Goldens that never pass by rewriting themselves, and GPU tests that skip where there is no Hopper."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest

GOLDEN = Path(__file__).parent / "golden"
COMPUTE_CAPABILITY_MAJOR = 75  # CUdevice_attribute


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ and skip")
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="of the cases that compile and emulate a kernel run one in N, always the same ones",
    )


@pytest.hookimpl(trylast=True)  # after -m and -k: look for a GPU only if a GPU test is left
def pytest_collection_modifyitems(config, items):
    changing = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if changing:
        raise pytest.UsageError(f"a test's id must be the same in every process: {changing[0]}")
    one_in = config.getoption("--sample")
    out = [item for item in items if crc32(item.nodeid.encode()) % one_in and emulates(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = missing_for_gpu() if gpu else ""
    for item in gpu * bool(reason):
        item.add_marker(pytest.mark.skip(reason=reason))


def emulates(item) -> bool:
    """Whether it is one of the many cases of a test that compiles and emulates."""
    return bool(item.get_closest_marker("nvrtc")) and hasattr(item, "callspec")


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
        yield


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
