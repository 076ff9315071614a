"""Equal stretches of all tiles' K blocks (docs/adr/0044-streams.md), run by the emulator: where stretches begin and end, whoever is late."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from draws import draws
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8, INT8_BLOCK, PAIRED, QUANTISED, VECTOR, emitted

from gemmgen.config import Config
from gemmgen.emulator import Eager, Late, ProtocolError, Race, Random
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import S8, S32
from gemmgen.ir.groupings import Layout
from gemmgen.problem import Problem
from gemmgen.verification import random_normal
from gemmgen.verification.trial import judge, pitches, run

pytestmark = pytest.mark.nvrtc

SWAPPED = Config(swap_ab=True, block_m=16, block_n=64, consumers=1, stages=4, unroll=4, stream=True)
WIDE = Config(swap_ab=True, block_m=24, block_n=256, consumers=2, stages=3, stream=True)
PLAIN = Config(block_m=64, block_n=32, consumers=1, stages=3, unroll=2, stream=True)
WAVES = Config(block_m=128, block_n=16, consumers=1, stages=3, stream=True)


@cache
def prepared(problem, config, edit=None):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import prepare

    a = emitted(problem, config)
    source = a.source
    for old, new in edit or ():
        assert source.count(old) == 1, f"{source.count(old)} of {old}"
        source = source.replace(old, new)
    return a.kernel, prepare(a.kernel, source)


def machine(sms, schedule=None, resident=1):
    from gemmgen.runtime.emulated import EmulatedGpu

    return EmulatedGpu(sms=sms, schedule=schedule, resident=resident)


def shape_of(config, problem, tiles, k_blocks, tail):
    """`tiles` along N (and a second row of them where they are even), of so many K blocks; a tail on every side."""
    k = config.block_k_bytes * 8 // problem.a.bits
    rows = 1 + (tiles % 2 == 0)
    m = rows * config.block_m - (3 if tail else 0)
    n = tiles // rows * config.block_n - (8 if tail else 0)
    step = 16 * 8 // problem.a.bits
    return m, n, k_blocks * k - (step if tail else 0)


CASES = [
    (sms, tiles, k_blocks)
    for sms in range(1, 8)
    for tiles in range(1, 6)
    for k_blocks in (1, 2, 3, 5, 9)
]


@pytest.mark.parametrize("sms, tiles, k_blocks", CASES)
@pytest.mark.parametrize("problem, config", ((FP8, SWAPPED), (DENSE, PLAIN)), ids=("fp8", "bf16"))
def test_wherever_runs_begin_and_end(problem, config, sms, tiles, k_blocks):
    kernel, program = prepared(problem, config)
    shape = shape_of(config, problem, tiles, k_blocks, tail=(sms + tiles + k_blocks) % 2)
    judge(machine(sms), program, kernel, problem, shape, pad=1)


KINDS = {
    "fp8_wide": (FP8, WIDE),
    "fp8_waves": (FP8, WAVES),
    "bf16_waves": (DENSE, WAVES),
    "f32": (DENSE_F32, PLAIN),
    "bf16_swapped": (DENSE, SWAPPED),
    "tn": (DENSE_TN, PLAIN),
    "pairs": (PAIRED, PLAIN),
    "quantised": (QUANTISED, replace(PLAIN, block_n=128)),
    "vector": (VECTOR, PLAIN),
    "accumulate": (replace(DENSE, d=DENSE_F32.d, accumulate=True), PLAIN),
    "int8_block": (INT8_BLOCK, SWAPPED),
    "int8": (Problem(family="dense", a=S8, b=S8, d=S32), PLAIN),
    "residual": (replace(FP8, epilogue=EPILOGUES["residual"]), SWAPPED),
    "overlapping": (FP8, replace(SWAPPED, pdl=True)),
    "peek": (FP8, replace(SWAPPED, peek=True, unroll=1)),
    "watched": (FP8, replace(SWAPPED, watchdog=True)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("sms, k_blocks", ((3, 7), (5, 2)))
def test_every_kind_of_sum(name, sms, k_blocks):
    problem, config = KINDS[name]
    kernel, program = prepared(problem, config)
    shape = shape_of(config, problem, 4, k_blocks, tail=True)
    judge(machine(sms), program, kernel, problem, shape, pad=1)


@pytest.mark.parametrize("sms, k_blocks", ((3, 7), (7, 3)))
@pytest.mark.parametrize("problem, config", ((FP8, SWAPPED), (DENSE, PLAIN)), ids=("fp8", "bf16"))
def test_batches_are_tiles_like_others(problem, config, sms, k_blocks):
    problem = replace(problem, grouping="batched")
    kernel, program = prepared(problem, config)
    shape = shape_of(config, problem, 2, k_blocks, tail=True)
    judge(machine(sms), program, kernel, problem, shape, pad=1, layout=Layout(groups=3))


SCHEDULES = {
    "in order": (None, 1),
    "together": (None, 5),
    "eager": (Eager(), 5),
    "late": (Late(), 5),
    **{f"random {seed}": (Random(seed=seed), 5) for seed in range(4)},
}


def test_bits_do_not_depend_on_who_is_late(request):
    """A sample has one in four of the schedules, others at every commit."""
    names = random.Random(request.config.option.rotation).sample(
        [*SCHEDULES], draws(len(SCHEDULES))
    )
    kernel, program = prepared(FP8, SWAPPED)
    operands = random_normal(FP8, 20, 200, 640, 3)
    strides = pitches(kernel, operands.shape, 1)
    found = {
        name: run(
            machine(5, *SCHEDULES[name]), program, FP8, operands, strides, 0x5A
        ).codes.tobytes()
        for name in names
    }
    assert len({*found.values()}) == 1


def test_bits_of_a_row_do_not_depend_on_how_many_there_are():
    """While a tile holds them all: the order of summation is one of N, K, the tile and the CTAs."""
    kernel, program = prepared(FP8, SWAPPED)
    operands = random_normal(FP8, 16, 200, 640, 3)
    whole = run(machine(3), program, FP8, operands, pitches(kernel, operands.shape), 0x5A).codes
    for m in (1, 5):
        few = replace(operands, a=operands.a[:m], scale_a=operands.scale_a[:m])
        assert few.shape == (m, 200, 640)
        got = run(machine(3), program, FP8, few, pitches(kernel, few.shape), 0x5A).codes
        assert (np.asarray(got) == np.asarray(whole)[:m]).all()


# What a kernel would be with a fault, and who finds it: a run of 3 CTAs that share each tile, all at once.
FAULTS = {
    "a flag that releases nothing": (
        ("st.release.gpu.global.u32", "st.relaxed.gpu.global.u32"),
        Race,
    ),
    "a flag of the CTA's scope": (("st.release.gpu.global.u32", "st.release.cta.global.u32"), Race),
    "a wait that acquires nothing": (
        ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
        Race,
    ),
    "a wait of the CTA's scope": (
        ("ld.acquire.gpu.global.u32", "ld.acquire.cta.global.u32"),
        Race,
    ),
    "lanes that do not meet before the flag": (
        (
            "ptx::warp_sync();\n                    if (lane == 0) ptx::raise",
            "if (lane == 0) ptx::raise",
        ),
        Race,
    ),
    "lanes that do not meet after it": (
        ("                ptx::warp_sync();\n                #pragma", "                #pragma"),
        Race,
    ),
    "a flag that stays up": (("ptx::lower_flag(flag);", ""), ProtocolError),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_exchange_is_found(name):
    edit, error = FAULTS[name]
    kernel, program = prepared(FP8, SWAPPED, (edit,))
    operands = random_normal(FP8, 16, 64, 640, 3)
    with pytest.raises(error):
        run(machine(3, resident=3), program, FP8, operands, pitches(kernel, operands.shape), 0x5A)


def test_sums_that_are_taken_before_they_are_sent_are_found():
    """No wait at all: the slot's stale contents are NaN, or the read races."""
    edit = (("while (ptx::seen_flag(flag) == 0) {}", ""),)
    kernel, program = prepared(FP8, SWAPPED, edit)
    operands = random_normal(FP8, 16, 64, 640, 3)
    with pytest.raises((Race, ProtocolError)):
        run(machine(3, resident=3), program, FP8, operands, pitches(kernel, operands.shape), 0x5A)
