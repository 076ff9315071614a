"""Every named epilogue, compiled by NVRTC, run by the emulator and judged like any kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels import emitted, fitting

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, acc
from gemmgen.errors import VerificationError
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8
from gemmgen.ir.expr import PerElement, fold
from gemmgen.problem import Problem
from gemmgen.verification import NumpyEngine, check_bound, random_normal
from gemmgen.verification.epilogue import transcendental
from gemmgen.verification.guarded import Guarded
from gemmgen.verification.trial import judge, pitches

pytestmark = pytest.mark.nvrtc

DENSE = Problem(family="dense", a=BF16, b=BF16)
SMALL = Config(block_m=128, consumers=1, block_n=40, stages=2)  # two waves, no power of two
SMALL_PAIRED = replace(SMALL, block_n=48)
SHAPES = (
    (130, 57, 40),
    (1, 1, 16),
    (65, 88, 24),
)  # odd sides, one element, tiles of several columns


def emulated(problem, config=SMALL):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare

    a = emitted(problem, config)
    return EmulatedGpu(), prepare(a.kernel, a.source), a.kernel


def judged(problem, config=SMALL, shapes=SHAPES):
    machine, program, kernel = emulated(problem, config)
    for shape in shapes:
        verdict = judge(machine, program, kernel, problem, fitting(problem, shape))
        assert verdict.exact != transcendental(problem.epilogue)


@pytest.mark.parametrize("d", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_named_epilogues(name, d):
    problem = replace(DENSE, d=d, epilogue=EPILOGUES[name])
    judged(problem, SMALL_PAIRED if fold(problem.epilogue) > 1 else SMALL)


@pytest.mark.parametrize("grouping", ["none", "batched", "masked", "ends"])
@pytest.mark.parametrize("swizzle_d", [None, 0], ids=["boxes", "rows"])
def test_adding_to_d(grouping, swizzle_d):
    """By tensor map, by rows of a padded tile, and element by element after a row's last 16 bytes."""
    problem = replace(
        DENSE, d=F32, grouping=grouping, accumulate=True, epilogue=EPILOGUES["bias_relu"]
    )
    judged(problem, replace(SMALL, swizzle_d=swizzle_d))


@pytest.mark.parametrize("config", [SMALL, Config(stages=3, multicast="b", block_n=64)], ids=str)
def test_adding_scaled_products_to_d(config):
    config = replace(config, block_k_bytes=128)
    judged(Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, accumulate=True), config)


def test_a_store_in_place_of_an_addition_is_caught():
    problem = replace(DENSE, d=F32, accumulate=True)
    machine, program, kernel = emulated(replace(DENSE, d=F32))
    with pytest.raises(VerificationError):
        judge(machine, program, kernel, problem, (64, 40, 16))


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize(
    "problem",
    [Problem(family="fp8_block", a=E4M3, b=E4M3), Problem(family="dense", a=S8, b=S8)],
    ids=["fp8_block", "s8"],
)
def test_residuals_of_other_families(problem, dtype):
    epilogue = acc * 0.5 + PerElement("c", dtype) * PerElement("e", BF16)
    judged(replace(problem, epilogue=epilogue), Config(block_n=48, stages=2), SHAPES[:1])


def run(problem, operands):
    machine, program, kernel = emulated(problem)
    strides = pitches(kernel, operands.shape)
    m, n, _ = operands.shape
    output = Guarded(dtype=problem.d, rows=m, cols=n, pitch=strides.d)
    return output.extract(machine.execute(program, operands, strides, output, 0xFF))


def test_clamp_between_bounds_that_let_values_through():
    problem = replace(DENSE, d=F32, epilogue=EPILOGUES["clamp"])
    operands = random_normal(problem, 65, 57, 64, 1)
    operands = replace(operands, arguments={"low": -4.0, "high": 9.0})
    result = run(problem, operands)
    check_bound(problem, operands, result, NumpyEngine())
    values = result.view(np.float32)
    assert values.min() == -4 and values.max() == 9 and len(np.unique(values)) > 1000


def test_a_residual_at_the_wrong_place_is_found():
    problem = replace(DENSE, epilogue=EPILOGUES["residual"])
    operands = random_normal(problem, 65, 57, 64, 1)
    moved = replace(operands, arguments={"c": np.roll(operands.arguments["c"], 1, 1)})
    with pytest.raises(VerificationError, match="out of bounds"):
        check_bound(problem, operands, run(problem, moved), NumpyEngine())
