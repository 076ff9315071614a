"""NVRTC takes what gemmgen emits: no spills, no serialised wgmma, no ignored setmaxnreg."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import DENSE, FP8, VARIETY, VECTOR, emitted

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import CompileError
from gemmgen.ir.dtypes import E4M3, F16, S8

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


@pytest.mark.parametrize("block_n, d_columns", [(96, 32), (112, 16)])
@pytest.mark.parametrize("grouping", ("none", "k_flat"))
def test_tall_tiles_of_weight_gradients_do_not_spill(nvrtc, grouping, block_n, d_columns):
    """What the cost model chooses (`levers/d_columns.py`); with the loop unrolled some of them spill."""
    problem = replace(VECTOR, grouping=grouping, accumulate=True)
    artifact = emitted(problem, Config(block_m=256, block_n=block_n, d_columns=d_columns))
    cubin = nvrtc.compile_cubin(artifact.source, artifact.name)
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)


# What the rules leave, where a little more spills or is refused.
LIMITS = {
    "rows in turns": (replace(DENSE, grouping="rows"), Config(ping_pong=True, in_flight=1, block_n=192, d_columns=64)),
    "three consumers": (DENSE, Config(block_m=192, block_n=200, consumers=3, stages=3)),
    "overlapped sums": (replace(FP8, family="fp8"), Config(parts=2, block_n=96, in_flight=1, unroll=3)),
    "own pairs": (
        replace(FP8, family="fp8", d=E4M3, grouping="rows", epilogue=EPILOGUES["bias_swiglu"]),
        Config(block_m=64, block_n=256, consumers=1, parts=2, stages=3),
    ),
    "integers' gates": (
        replace(DENSE, a=S8, b=S8, d=E4M3, epilogue=EPILOGUES["geglu"]),
        Config(block_m=64, block_n=256, consumers=1, in_flight=1),
    ),
    "erf after promotion": (
        replace(FP8, family="fp8", grouping="masked", epilogue=EPILOGUES["gelu"]),
        Config(block_n=200, stages=2, unroll=4),
    ),
    "own columns": (
        replace(DENSE, grouping="rows", epilogue=EPILOGUES["bias_silu"]),
        Config(block_n=144, stages=3, in_flight=1),
    ),
    "own columns in turns": (
        replace(DENSE, grouping="rows", epilogue=EPILOGUES["bias_silu"]),
        Config(ping_pong=True, block_n=96, d_columns=32, stages=3, in_flight=1),
    ),
    "columns of two waves": (
        replace(DENSE, a=E4M3, b=E4M3, d=F16, grouping="masked", epilogue=EPILOGUES["bias"]),
        Config(block_m=256, block_n=160, stages=2, in_flight=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_barely_legal_compiles(nvrtc, name):
    artifact = emitted(*LIMITS[name])
    cubin = nvrtc.compile_cubin(artifact.source, artifact.name)
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)


def test_a_wrong_source_is_refused(nvrtc):
    artifact = emitted(DENSE, Config(block_n=64))
    with pytest.raises(CompileError):
        nvrtc.compile_cubin(
            artifact.source.replace("ptx::wgmma_fence();", "wgmma_fence();"), artifact.name
        )
