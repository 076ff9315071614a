"""Operands that are contiguous along M or N: results on the emulator, and faults that must show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernels import DENSE_NN, DENSE_TN, DENSE_TT, emitted

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.emulator import Race, UninitializedRead
from gemmgen.errors import VerificationError
from gemmgen.ir.dtypes import F16, F32
from gemmgen.ir.nodes import Kernel, Mma, TmaLoad
from gemmgen.ir.rewrite import map_stmts
from gemmgen.ir.stmts import multicasts
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

LAYOUTS = {p.layout: p for p in (DENSE_NN, DENSE_TN, DENSE_TT)}

# (config, shape, pad): tails in M, N and K, every swizzle, 64 to 256 rows, both multicasts.
CASES = (
    (Config(), (200, 136, 150), 0),
    (Config(block_n=64, stages=2), (128, 64, 128), 0),
    (Config(block_m=64, consumers=1, stages=2, block_n=256, in_flight=1), (1, 500, 300), 0),
    (Config(block_m=256, stages=2, multicast="a", block_n=96), (300, 200, 200), 1),
    (Config(block_m=256, stages=2, multicast="b", block_n=64, in_flight=1), (515, 70, 130), 2),
    (Config(block_m=128, consumers=1, block_n=96, multicast="b", swizzle_ab=64), (131, 97, 72), 3),
    (Config(stages=2, block_n=16, swizzle_ab=32, block_k_bytes=32, multicast="a"), (9, 50, 70), 0),
    (Config(stages=2, block_n=24, swizzle_ab=0), (130, 50, 70), 5),
    (Config(stages=2, block_n=48, swizzle_ab=0, multicast="b", block_k_bytes=32), (70, 90, 33), 0),
    (Config(stages=2, block_n=128, block_k_bytes=256, multicast="a"), (64, 300, 520), 0),
)


def judged(problem: Problem, kernel: Kernel, source: str, shape, pad: int = 0):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.trial import judge

    return judge(EmulatedGpu(), prepare(kernel, source), kernel, problem, shape, seed=3, pad=pad)


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results(layout, case):
    config, shape, pad = CASES[case]
    problem = LAYOUTS[layout]
    if case % 3 == 1:
        problem = replace(problem, a=F16, b=F16, d=F32)
    a = emitted(problem, config)
    assert judged(problem, a.kernel, a.source, shape, pad).exact


# ---- faults the emulator must find ---------------------------------------------------------

SHOWN = (VerificationError, Race, UninitializedRead)  # wrong values, or bytes nobody waited for


def with_bits(kernel: Kernel, name: str, leading: int = 0, stride: int = 0) -> Kernel:
    """`name` (a_bits or b_bits) with its offsets wrong by so many bytes."""
    change = (leading >> 4 << 16) + (stride >> 4 << 32)

    def visit(s):
        return replace(s, **{name: getattr(s, name) + change}) if isinstance(s, Mma) else s

    return map_stmts(kernel, visit)


def exchanged(kernel: Kernel, name: str) -> Kernel:
    """`name` with its leading and stride offsets in each other's place."""

    def visit(s):
        if not isinstance(s, Mma):
            return s
        bits = getattr(s, name)
        leading, stride = bits >> 16 & 0x3FFF, bits >> 32 & 0x3FFF
        return replace(s, **{name: bits >> 62 << 62 | stride << 16 | leading << 32})

    return map_stmts(kernel, visit)


B_WIDE, A_SPLIT = Config(block_n=128, stages=2), Config(block_n=64, stages=2, swizzle_ab=64)
FLAT = Config(block_n=64, stages=2, swizzle_ab=0)
WRONG_BITS = {
    "B, leading offset": (DENSE_NN, B_WIDE, lambda k: with_bits(k, "b_bits", leading=-1024)),
    "B, stride": (DENSE_NN, B_WIDE, lambda k: with_bits(k, "b_bits", stride=1024)),
    "B, exchanged": (DENSE_NN, B_WIDE, lambda k: exchanged(k, "b_bits")),
    "A, leading offset": (DENSE_TT, A_SPLIT, lambda k: with_bits(k, "a_bits", leading=-512)),
    "A, stride": (DENSE_TT, B_WIDE, lambda k: with_bits(k, "a_bits", stride=-512)),
    "A unswizzled, exchanged": (DENSE_TT, FLAT, lambda k: exchanged(k, "a_bits")),
    "B unswizzled, exchanged": (DENSE_NN, FLAT, lambda k: exchanged(k, "b_bits")),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", WRONG_BITS)
def test_a_wrong_descriptor_shows(fault):
    problem, config, change = WRONG_BITS[fault]
    kernel = lower(problem, config)
    wrong = change(kernel)
    assert wrong != kernel
    with pytest.raises(SHOWN):
        judged(problem, wrong, emit(wrong), (128, 128, 128))


@pytest.mark.nvrtc
@pytest.mark.parametrize("immediates", ("0, 0", "1, 0", "0, 1", "1, 1"))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_right_transposes_give_the_result(layout, immediates):
    a = emitted(LAYOUTS[layout], Config(block_n=64, stages=2))
    source, times = re.subn(r"p, 1, 1, \d, \d;", f"p, 1, 1, {immediates};", a.source)
    assert times == 1
    if source == a.source:
        judged(a.problem, a.kernel, source, (128, 64, 128))
        return
    with pytest.raises(SHOWN):
        judged(a.problem, a.kernel, source, (128, 64, 128))


# ---- faults the proof must find ------------------------------------------------------------


def mma(**changes):
    return lambda s: replace(s, **changes) if isinstance(s, Mma) else s


def load(change):
    return lambda s: change(s) if isinstance(s, TmaLoad) else s


def k_major(s):
    return replace(s, instr=replace(s.instr, b_major="k")) if isinstance(s, Mma) else s


def k_major_steps(s):
    return replace(s, steps=tuple((32 * i, b) for i, (_, b) in enumerate(s.steps)))


def next_slab(s):
    inner, outer = s.coords
    return replace(s, coords=(replace(inner, offset=inner.offset + 64), outer))


def along_mn(s):
    """The slices of a multicast taken along M or N, where the box is cut along K."""
    if not multicasts(s):
        return s
    inner, outer = s.coords
    return replace(s, coords=(replace(inner, rank_step=32), replace(outer, rank_step=0)))


FAULTS = {
    "read K-major": k_major,
    "steps along M": lambda s: k_major_steps(s) if isinstance(s, Mma) else s,
    "steps too short": lambda s: (
        replace(s, steps=tuple((a // 2, b) for a, b in s.steps)) if isinstance(s, Mma) else s
    ),
    "one warpgroup for all": mma(warpgroup_bytes=0),
    "K-major rows": mma(warpgroup_bytes=64 * 64),
    "coordinates exchanged": load(lambda s: replace(s, coords=s.coords[::-1])),
    "the next slab": load(next_slab),
    "slices along M": along_mn,
    "slices overlap": lambda s: replace(s, rank_bytes=0) if multicasts(s) else s,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses(fault):
    kernel = lower(DENSE_TN, Config(block_n=64, stages=2, multicast="a"))
    check(kernel)
    wrong = map_stmts(kernel, FAULTS[fault])
    assert wrong != kernel
    with pytest.raises(ProtocolViolation):
        check(wrong)


def test_the_proof_refuses_an_instruction_that_is_not_the_kernels():
    """The transposes are printed from Kernel.instr."""
    kernel = lower(DENSE_TN, Config(block_n=64, stages=2))
    wrong = replace(kernel, instr=replace(kernel.instr, a_major="k"))
    with pytest.raises(ProtocolViolation):
        check(wrong)
