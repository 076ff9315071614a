"""NVRTC takes what gemmgen emits: no spills, no serialised wgmma, no ignored setmaxnreg."""

from __future__ import annotations

import pytest
from kernels import DENSE, VARIETY, emitted

from gemmgen.config import Config
from gemmgen.errors import CompileError

pytestmark = pytest.mark.nvrtc

CASES = ("dense-f32", "dense-in-flight-multicast", "dense-padded", "dense-waves")
CASES += ("fp8-split", "fp8-multicast-a", "fp8-registers")


@pytest.fixture(scope="module")
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    return pytest.importorskip("gemmgen.runtime.nvrtc")


@pytest.mark.parametrize("name", CASES)
def test_compiles(nvrtc, name):
    artifact = emitted(*VARIETY[name])
    cubin = nvrtc.compile_cubin(artifact.source, artifact.name)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.name == artifact.name
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
    assert artifact.kernel.threads * cubin.registers <= 65536


def test_a_wrong_source_is_refused(nvrtc):
    artifact = emitted(DENSE, Config(block_n=64))
    with pytest.raises(CompileError):
        nvrtc.compile_cubin(
            artifact.source.replace("ptx::wgmma_fence();", "wgmma_fence();"), artifact.name
        )
