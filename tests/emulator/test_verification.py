"""Verification passes correct kernels and fails every planted error, saying where."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gemmgen.codes import code_type, exponents
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, clamp, divide, gelu, gelu_tanh, silu
from gemmgen.errors import ArgumentError, UnsupportedProblem, VerificationError
from gemmgen.ir.dtypes import BF16, DTYPES, E4M3, E5M2, F16, F32, S8
from gemmgen.ir.expr import Acc, Call, PerColumn, PerElement, Scalar, arguments
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.verification import (
    POISONS,
    Guarded,
    NumpyEngine,
    Operands,
    bound,
    check_bound,
    check_exact,
    check_repeat,
    decode,
    enclosure,
    encode,
    exact_integers,
    ladder,
    product,
    random_normal,
    table,
)
from gemmgen.verification.epilogue import (
    Interval,
    enclose,
    evaluate,
    lift_arguments,
    transcendental,
)
from gemmgen.verification.power import faults, line, power
from gemmgen.verification.trial import judge

ENGINE = NumpyEngine()
FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
DENSE = Problem(family="dense", a=BF16, b=BF16)
HALF = Problem(family="dense", a=F16, b=F16, d=F16)
RECIPES = {
    "fp8": FP8,
    "fp8-f32": replace(FP8, d=F32),
    "bf16": DENSE,
    "bf16-f32": replace(DENSE, d=F32),
    "f16": HALF,
}
SHAPES = [(1, 8, 1), (3, 1, 130), (64, 136, 128), (129, 257, 300), (200, 96, 1024)]

recipe = pytest.mark.parametrize("problem", RECIPES.values(), ids=RECIPES)
scaled_or_not = pytest.mark.parametrize("problem", [FP8, DENSE], ids=["fp8", "bf16"])
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


# --- stand-ins for a kernel


def kernel(problem, operands):
    """float64 sums rounded once to FP32, epilogue in float64, FP32, output: codes [M, N]."""
    acc = product(replace(problem, epilogue=Acc()), without_arguments(operands), ENGINE)
    finished = finish(problem, operands, acc.astype(np.float32).astype(np.float64))
    return stored(finished, problem.d)


def stored(values, dtype):
    """FP32 values as codes, by NumPy's own conversions and the usual bit trick for bf16."""
    x = values.astype(np.float32)
    if dtype == BF16:
        bits = x.view(np.uint32)
        return ((bits + ((bits >> 16) & 1) + 0x7FFF) >> 16).astype(np.uint16)
    return x.astype({F16: np.float16, F32: np.float32}[dtype]).view(code_type(dtype))


def without_arguments(operands):
    return replace(operands, arguments={})


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.float32)


F = np.float32
NUMPY_GELU = {
    "erf": lambda x: F(0.5) * x * (F(1) + erf(x * F(np.sqrt(0.5)))),
    "tanh": lambda x: x / (F(1) + np.exp(F(-1.5957691) * (x + F(0.044715) * x**3))),
}


def sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


def clamped(g, u):
    g, u = np.minimum(g, F(7)), np.clip(u, F(-7), F(7))
    return g * sigmoid(F(1.702) * g) * (u + F(1))


NUMPY_PAIRS = {
    "swiglu": lambda g, u: g * sigmoid(g) * u,
    "swiglu_clamped": clamped,
    "geglu": lambda g, u: NUMPY_GELU["erf"](g) * u,
    "geglu_tanh": lambda g, u: NUMPY_GELU["tanh"](g) * u,
    "reglu": lambda g, u: np.maximum(g, F(0)) * u,
    "pair_sum": lambda g, u: g + u,
}
# By what is behind "gated" in a name: of another GEMM's result and this one's.
NUMPY_GATED = {"": NUMPY_PAIRS["swiglu"]} | {f"_{name}": of for name, of in NUMPY_PAIRS.items()}


def finish(problem, operands, acc):
    """The epilogue in FP32, one NumPy operation at a time."""
    x = acc.astype(np.float32)
    kinds = {a.name: a for a in arguments(problem.epilogue)}
    args = {
        k: decode(v, kinds[k].dtype).astype(np.float32)
        if isinstance(kinds[k], PerElement)
        else np.asarray(v, np.float32)
        for k, v in operands.arguments.items()
    }
    name = next(n for n, e in EPILOGUES.items() if e == problem.epilogue)
    with np.errstate(over="ignore"):
        if "bias" in name:
            x = x + args["bias"]
        if "relu" in name:
            x = np.maximum(x, np.float32(0))
        if "silu" in name:
            x = x / (np.float32(1) + np.exp(-x))
        if "gelu" in name:
            x = NUMPY_GELU["tanh" if "tanh" in name else "erf"](x)
        if "residual" in name:
            x = x + args["c"]
        if name == "clamp":
            x = np.minimum(np.maximum(x, args["low"]), args["high"])
        if name == "alpha_beta":
            x = args["alpha"] * x + args["beta"] * args["c"]
        before, gated, of = name.removeprefix("bias_").partition("gated")
        if gated and not before:
            x = NUMPY_GATED[of](args["c"], x)
        if name == "alpha":
            x = x * args["alpha"]
        if name == "tensor_scaled":
            x = x * (args["scale_a"] * args["scale_b"])
        if name in ("scaled", "scaled_swiglu"):
            x = x * args["row_scale"][:, None] * args["column_scale"]
        pair = NUMPY_PAIRS.get(name.removeprefix("bias_").removeprefix("scaled_"))
        x = pair(x[:, 0::2], x[:, 1::2]) if pair else x
    assert x.dtype == np.float32
    return x.astype(np.float64)


def wgmma(a, b, acc, dtype):
    """Bit-level model of one step: a [m, k], b [n, k] codes, acc [m, n]."""
    frac, kept = {E4M3: (13, 13), S8: (60, 60)}.get(dtype, (25, 23))
    products = table(dtype)[a][:, None, :] * table(dtype)[b][None, :, :]
    with np.errstate(divide="ignore"):  # an integer 0 has no exponent
        exponent = np.log2(exponents(dtype)[a][:, None, :] * exponents(dtype)[b][None, :, :])
    exponent[products == 0] = -1000
    of_acc = np.where(acc == 0, -1000, np.frexp(acc)[1] - 1)
    largest = np.maximum(np.maximum(exponent.max(-1), of_acc), -132)
    unit = np.exp2(frac - largest)
    total = (np.trunc(products * unit[..., None]).sum(-1) + np.trunc(acc * unit)) / unit
    unit = np.exp2(kept - np.where(total == 0, 0, np.maximum(np.frexp(total)[1] - 1, -126)))
    return np.trunc(total * unit) / unit


def modelled(problem, operands):
    """What the hardware computes, as far as it is known: codes [M, N]."""
    m, n, k = operands.shape
    width, span = 32 // problem.a.bytes, k if problem.family == "dense" else 128
    out = np.zeros((m, n), np.float32)
    for block, start in enumerate(range(0, k, span)):
        part = np.zeros((m, n))
        for at in range(start, min(start + span, k), width):
            ks = slice(at, min(at + width, start + span))
            part = wgmma(operands.a[:, ks], operands.b[:, ks], part, problem.a)
        sigma = np.ones((m, n), np.float32)
        if operands.scale_a is not None:
            columns = operands.scale_b[:, block].repeat(operands.rows_per_scale)[:n]
            sigma = operands.scale_a[:, block][:, None] * columns
        out = (sigma.astype(np.float64) * part + out).astype(np.float32)
    return stored(finish(problem, operands, out.astype(np.float64)), problem.d)


def fails(check, *args, match):
    with pytest.raises(VerificationError, match=match) as caught:
        check(*args, ENGINE)
    return str(caught.value)


class SignedEngine(NumpyEngine):
    """Holds codes signed and refuses unsigned ones, as torch does."""

    def lift(self, array):
        return array.view(f"i{array.itemsize}") if array.dtype.kind == "u" else array

    def lower(self, array):
        return array.view(f"u{array.itemsize}") if array.dtype.kind == "i" else array

    def lookup(self, table, codes):
        assert codes.dtype.kind == "i"
        return super().lookup(table, self.lower(codes))

    def decode(self, codes, dtype):
        assert codes.dtype.kind == "i"
        return super().decode(self.lower(codes), dtype)

    def round_to(self, values, dtype):
        return self.lift(super().round_to(values, dtype))


# --- codes


@pytest.mark.parametrize("dtype", [E4M3, E5M2, BF16, F16], ids=str)
def test_every_code_survives_a_round_trip(dtype):
    codes = np.arange(1 << dtype.bits).astype(code_type(dtype))
    values = table(dtype)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values, dtype)[numbers], codes[numbers])
    assert np.isnan(decode(encode(values[~numbers], dtype), dtype)).all()


def test_decoding_agrees_with_numpy_and_the_ocp_format():
    codes = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(table(F16), codes.view(np.float16).astype(np.float64))
    wide = (codes.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        np.testing.assert_array_equal(table(BF16), wide.astype(np.float64))
    e4m3 = table(E4M3)
    assert np.flatnonzero(np.isnan(e4m3)).tolist() == [0x7F, 0xFF]
    assert (e4m3[0x7E], e4m3[0xFE], e4m3[0x01], e4m3[0x08]) == (448, -448, 2.0**-9, 2.0**-6)


@pytest.mark.parametrize(("dtype", "numpy_type"), [(F16, np.float16), (F32, np.float32)])
def test_encoding_agrees_with_numpy(dtype, numpy_type):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(100_000) * np.exp2(rng.uniform(-160, 140, 100_000))
    x = np.concatenate([x, rng.standard_normal(100_000) * 1e-6, [0.0, -0.0, np.inf, -np.inf]])
    with np.errstate(over="ignore"):
        want = x.astype(numpy_type)
    np.testing.assert_array_equal(encode(x, dtype), want.view(code_type(dtype)))
    np.testing.assert_array_equal(decode(encode(x, dtype), dtype), want.astype(np.float64))


def test_encoding_rounds_ties_to_even_and_overflows_as_each_format_does():
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-40])
    assert encode(ties, BF16).tolist() == [0x3F80, 0x3F82, 0x3F81]
    assert encode(np.array([464.0, 1e9, -np.inf]), E4M3).tolist() == [0x7E, 0x7E, 0xFE]
    assert encode(np.array([65519.0, 65520.0]), F16).tolist() == [0x7BFF, 0x7C00]
    assert encode(np.array([2.0**-10, 2.0**-9 * 1.5]), E4M3).tolist() == [0, 2]
    assert encode(np.array([np.nan]), BF16).tolist() == [0x7FC0]


# --- inputs


@recipe
@pytest.mark.parametrize("generate", [exact_integers, random_normal])
def test_inputs_depend_on_the_seed_alone(problem, generate):
    problem = replace(problem, epilogue=EPILOGUES["scaled"])
    first, again, other = (generate(problem, 40, 72, 200, seed) for seed in (7, 7, 8))
    assert first.shape == (40, 72, 200)
    np.testing.assert_array_equal(first.a, again.a)
    np.testing.assert_array_equal(first.arguments["row_scale"], again.arguments["row_scale"])
    assert (first.b != other.b).any()
    assert first.arguments["column_scale"].shape == (72,)
    assert (first.scale_a is not None) == (problem.family == "fp8_block")


def test_the_distributions_are_what_they_claim():
    integers = table(E4M3)[exact_integers(FP8, 512, 8, 2400, 1).a]
    assert set(np.unique(integers)) == {-1, 0, 1}
    assert abs(abs(integers).mean() - 0.1) < 0.005
    normal = table(BF16)[random_normal(DENSE, 512, 8, 2048, 1).a]
    assert abs(normal.mean()) < 0.01 and abs(normal.std() - 1) < 0.01
    scales = random_normal(FP8, 512, 300, 2048, 1).scale_a
    assert 0.5 <= scales.min() < 0.51 and 1.96 < scales.max() <= 2


def test_inputs_refuse_what_they_cannot_make():
    with pytest.raises(ArgumentError, match="k=0"):
        exact_integers(DENSE, 8, 8, 0, 1)
    with pytest.raises(ArgumentError, match="scale_a"):
        Operands(a=np.zeros((4, 130), np.uint8), b=np.zeros((4, 130), np.uint8), scale_a=np.ones(4))
    with pytest.raises(ArgumentError, match="scale_b"):
        product(FP8, replace(random_normal(FP8, 8, 8, 8, 1), scale_b=None), ENGINE)


# --- correct kernels pass


@recipe
@shapes
def test_correct_kernels_pass(problem, shape):
    exact = exact_integers(problem, *shape, seed=1)
    check_exact(problem, exact, kernel(problem, exact), ENGINE)
    check_bound(problem, exact, kernel(problem, exact), ENGINE)
    normal = random_normal(problem, *shape, seed=2)
    report = check_bound(problem, normal, kernel(problem, normal), ENGINE)
    assert 0 <= report.worst <= 1
    assert report.rows.shape == (shape[0],)
    assert report.tiles.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    assert report.worst == report.tiles.max()


@recipe
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_correct_epilogues_pass(problem, epilogue):
    problem = replace(problem, epilogue=EPILOGUES[epilogue])
    for operands in (
        exact_integers(problem, 33, 140, 200, 1),
        random_normal(problem, 33, 140, 200, 1),
    ):
        assert check_bound(problem, operands, kernel(problem, operands), ENGINE).worst <= 1
        x = enclosure(problem, operands, ENGINE)
        assert ((x.low <= x.want) & (x.want <= x.high)).all()
        np.testing.assert_allclose(x.want, product(problem, operands, ENGINE), atol=1e-9)
    if not transcendental(problem.epilogue):
        operands = exact_integers(problem, 33, 140, 200, 1)
        check_exact(problem, operands, kernel(problem, operands), ENGINE)


@recipe
@pytest.mark.parametrize("scale", [1.0, 2.0**-7], ids=["normal", "subnormal"])
def test_the_bound_holds_for_the_hardware_model(problem, scale):
    problem = replace(problem, d=F32)  # the harder output: nothing hides in its rounding
    operands = random_normal(problem, 40, 36, 515, seed=3)
    small = encode(table(problem.a)[operands.a] * scale, problem.a)
    operands = replace(operands, a=small)
    report = check_bound(problem, operands, modelled(problem, operands), ENGINE)
    assert 0 < report.worst < 0.5
    exact = exact_integers(problem, 40, 36, 515, seed=3)
    check_exact(problem, exact, modelled(problem, exact), ENGINE)


@recipe
def test_an_engine_may_hold_codes_signed(problem):
    problem, engine = replace(problem, epilogue=EPILOGUES["bias_relu"]), SignedEngine()
    operands = exact_integers(problem, 33, 136, 200, 1)
    result = kernel(problem, operands)
    check_exact(problem, operands, engine.lift(result), engine)
    want = check_bound(problem, operands, result, ENGINE)
    got = check_bound(problem, operands, engine.lift(result), engine)
    np.testing.assert_array_equal(got.rows, want.rows)
    result[0, 0] = encode(np.array(-999.0), problem.d)
    for check in (check_exact, check_bound):
        with pytest.raises(VerificationError, match=r"1 of 4488 .*\n?first at \(0, 0\)"):
            check(problem, operands, engine.lift(result), engine)


def test_the_bound_stays_below_the_coarse_a_priori_one():
    for problem, relative in (
        (FP8, (4 * 33 + 4) * 2.0**-13),
        (DENSE, 64 * (17 * 2.0**-25 + 2.0**-23)),
    ):
        operands = replace(random_normal(problem, 64, 64, 1024, 1))
        if operands.scale_a is not None:
            ones = {
                "scale_a": np.ones_like(operands.scale_a),
                "scale_b": np.ones_like(operands.scale_b),
            }
            operands = replace(operands, **ones)
        size = abs(table(problem.a)[operands.a]) @ abs(table(problem.b)[operands.b]).T
        assert (bound(problem, operands, ENGINE) < relative * size).all()


def test_overflow_and_saturated_silu_are_bounded():
    operands = Operands(
        a=encode(np.full((2, 64), 240.0), F16), b=encode(np.full((8, 64), 240.0), F16)
    )
    result = np.full((2, 8), 0x7C00, np.uint16)
    check_exact(HALF, operands, result, ENGINE)
    check_bound(HALF, operands, result, ENGINE)
    fails(check_bound, HALF, operands, result - 1, match="16 of 16 elements are out of bounds")
    silu = replace(HALF, epilogue=EPILOGUES["silu"])
    operands = replace(operands, a=encode(np.full((2, 64), -240.0), F16))  # exp overflows
    check_bound(silu, operands, np.full((2, 8), 0x8000, np.uint16), ENGINE)
    fails(check_bound, silu, operands, np.full((2, 8), 0x1400, np.uint16), match="out of bounds")


def test_empty_outputs_pass():
    for shape in ((0, 8, 128), (8, 0, 128)):
        operands = random_normal(FP8, *shape, seed=1)
        result = np.zeros(shape[:2], np.uint16)
        check_exact(FP8, operands, result, ENGINE)
        assert check_bound(FP8, operands, result, ENGINE).worst == 0


# --- planted errors fail


def zeroed_column(problem, operands):
    result = kernel(problem, operands)
    result[:, 37] = 0
    return result


def dropped_k_block(problem, operands):
    keep = slice(0, operands.shape[2] - 128)
    scales = {}
    if operands.scale_a is not None:
        scales = {"scale_a": operands.scale_a[:, :-1], "scale_b": operands.scale_b[:, :-1]}
    return kernel(
        problem, replace(operands, a=operands.a[:, keep], b=operands.b[:, keep], **scales)
    )


def dropped_last_k(problem, operands):
    a = operands.a.copy()
    a[:, -1] = 0
    return kernel(problem, replace(operands, a=a))


def unwritten_tile(problem, operands):
    result = kernel(problem, operands)
    result[128:, :128] = 0xFFFF
    return result


def swapped_row_scales(problem, operands):
    scale_a = operands.scale_a.copy()
    scale_a[[0, 8]] = scale_a[[8, 0]]
    return kernel(problem, replace(operands, scale_a=scale_a))


def next_column_scale(problem, operands):
    return kernel(problem, replace(operands, scale_b=np.roll(operands.scale_b, 1, 0)))


def next_k_scale(problem, operands):
    return kernel(problem, replace(operands, scale_a=np.roll(operands.scale_a, 1, 1)))


ERRORS = {
    "zeroed_column": (zeroed_column, r"1 of 264 columns"),
    "dropped_k_block": (dropped_k_block, r"elements"),
    "unwritten_tile": (unwritten_tile, r"tiles \(1, 0\)"),
}
SCALE_ERRORS = {
    "swapped_row_scales": (swapped_row_scales, r"they lie in 2 of 256 rows"),
    "next_column_scale": (next_column_scale, r"elements"),
    "next_k_scale": (next_k_scale, r"elements"),
}
SHAPE = (256, 264, 512)


@scaled_or_not
@pytest.mark.parametrize("name", ERRORS)
def test_planted_errors_fail_both_checks(problem, name):
    plant, match = ERRORS[name]
    exact, normal = exact_integers(problem, *SHAPE, 1), random_normal(problem, *SHAPE, 1)
    fails(check_exact, problem, exact, plant(problem, exact), match=match)
    fails(check_bound, problem, normal, plant(problem, normal), match=match)


@pytest.mark.parametrize("name", SCALE_ERRORS)
def test_wrong_scales_fail_both_checks(name):
    plant, match = SCALE_ERRORS[name]
    exact, normal = exact_integers(FP8, *SHAPE, 1), random_normal(FP8, *SHAPE, 1)
    fails(check_exact, FP8, exact, plant(FP8, exact), match=match)
    fails(check_bound, FP8, normal, plant(FP8, normal), match=match)


@recipe
@pytest.mark.parametrize("k", [130, 4096])
def test_one_lost_product_is_visible_in_exact_integers(problem, k):
    operands = exact_integers(problem, 64, 64, k, 1)
    fails(check_exact, problem, operands, dropped_last_k(problem, operands), match="differ")


def test_one_unit_in_one_element_fails_the_exact_check():
    operands = exact_integers(FP8, 130, 70, 256, 1)
    result = kernel(FP8, operands)
    result[129, 5] ^= 1
    text = fails(check_exact, FP8, operands, result, match="1 of 9100 elements differ")
    assert "first at (129, 5): got" in text and "want" in text
    assert "worst tile (128x128) (1, 0)" in text and "worst row 129" in text


@recipe
def test_nan_never_passes_the_bound(problem):
    operands = random_normal(problem, 16, 24, 128, 1)
    result = kernel(problem, operands)
    result[3, 4] = encode(np.array(np.nan), problem.d)
    fails(check_bound, problem, operands, result, match=r"1 of 384 .*\n?first at \(3, 4\): got nan")
    spoiled = operands.a.copy()
    spoiled[0, 0] = encode(np.array(np.nan), problem.a)
    nan = replace(operands, a=spoiled)
    fails(check_bound, problem, nan, kernel(problem, nan), match="NaN")


def test_a_wrong_epilogue_argument_fails():
    problem = replace(DENSE, epilogue=EPILOGUES["bias"])
    operands = random_normal(problem, 64, 64, 128, 1)
    rolled = replace(operands, arguments={"bias": np.roll(operands.arguments["bias"], 1)})
    fails(check_bound, problem, operands, kernel(problem, rolled), match="out of bounds")
    with pytest.raises(ArgumentError, match="bias"):
        product(problem, replace(operands, arguments={}), ENGINE)
    with pytest.raises(ArgumentError, match="bias"):
        product(problem, replace(operands, arguments={"bias": np.ones(3, np.float32)}), ENGINE)


def test_what_cannot_be_judged_is_refused():
    operands = exact_integers(DENSE, 64, 64, 128, 1)
    with pytest.raises(UnsupportedProblem, match="may be zero"):
        bound(
            replace(DENSE, epilogue=Scalar("x") / Acc()),
            replace(operands, arguments={"x": 1.0}),
            ENGINE,
        )
    with pytest.raises(UnsupportedProblem, match="check_bound"):
        check_exact(replace(DENSE, epilogue=EPILOGUES["silu"]), operands, None, ENGINE)
    with pytest.raises(ArgumentError, match="result"):
        check_exact(DENSE, operands, np.zeros((64, 63), np.uint16), ENGINE)


def test_every_operation_of_the_expression_language_is_bounded():
    e = Call("min", (Call("tanh", (Acc() * 0.1 - PerColumn("c"),)), Acc() / PerColumn("c")))
    problem = replace(DENSE, d=F32, epilogue=e * 0.3)
    operands = random_normal(problem, 32, 48, 64, 1)
    x = enclosure(problem, operands, ENGINE)
    assert ((x.low < x.want) & (x.want < x.high)).all()
    assert (x.high - x.low).max() < 1e-4
    check_bound(problem, operands, ENGINE.round_to(x.want, F32), ENGINE)


def interval(expression, x):
    """What an FP32 kernel may hold of `expression` at the accumulators `x`, known exactly."""
    at = x.astype(np.float64).reshape(1, -1)
    with np.errstate(all="ignore"):
        return enclose(expression, Interval(low=at, high=at), {}, ENGINE)


def spread(count=20000):
    """FP32 numbers of every magnitude, both signs, and those that decide saturation."""
    rng = np.random.default_rng(5)
    x = np.exp2(rng.uniform(-126, 127, count)) * rng.choice([-1, 1], count)
    near = rng.normal(0, 4, count)
    ends = [0.0, 0.5, -0.5, 10.0, -10.0, 87.3, -87.3, 88.8, -88.8, 3e38, -3e38]
    return np.concatenate([x, near, ends]).astype(np.float32)


FUNCTIONS = {
    "erf": (Call("erf", (Acc(),)), erf),
    "gelu": (gelu(Acc()), lambda x: x * (F(0.5) + F(0.5) * erf(x * F(math.sqrt(0.5))))),
    "clamp": (clamp(Acc(), -3.5, 6.0), lambda x: np.clip(x, F(-3.5), F(6))),
    "silu": (silu(Acc()), lambda x: x / (F(1) + np.exp(-x))),
    "divide": (divide(Acc(), 1.0 + Acc() * Acc()), lambda x: x / (F(1) + x * x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_enclosure_contains_what_float32_computes(name):
    expression, function = FUNCTIONS[name]
    x = spread()
    held = interval(expression, x)
    with np.errstate(all="ignore"):
        got = function(x).astype(np.float64).reshape(1, -1)
    assert got.dtype == np.float64 and np.isfinite(got).all()
    assert ((held.low <= got) & (got <= held.high)).all()


@pytest.mark.parametrize(
    ("expression", "exact"),
    [
        (gelu(Acc()), lambda x: 0.5 * x * math.erfc(-x * math.sqrt(0.5))),
        (
            gelu_tanh(Acc()),
            lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
    ],
    ids=["erf", "tanh"],
)
def test_the_enclosure_of_gelu_is_tight_and_holds_the_textbook_value(expression, exact):
    x = np.random.default_rng(6).normal(0, 4, 5000).astype(np.float32)
    held = interval(expression, x)
    want = np.vectorize(exact, otypes=[np.float64])(x.astype(np.float64)).reshape(1, -1)
    constants = 1e-7 * np.maximum(abs(x), 1)  # the kernel's are rounded to FP32
    assert ((held.low - constants <= want) & (want <= held.high + constants)).all()
    assert ((held.high - held.low) < 2e-5 * np.maximum(abs(x), 1)).all()


def test_a_large_divisor_may_give_zero():
    held = interval(divide(Acc() * 0.0 + 8.0, Acc()), np.array([2.0**126, 2.0**127], np.float32))
    assert held.low[0, 0] > 0 and held.low[0, 1] == 0 < held.high[0, 1]
    with pytest.raises(UnsupportedProblem, match="2\\^-126"):
        interval(divide(Acc(), Acc()), np.array([2.0**-130], np.float32))


def test_a_wrong_residual_fails():
    problem = replace(DENSE, epilogue=EPILOGUES["residual"])
    operands = random_normal(problem, 64, 64, 128, 1)
    for axis in (0, 1):
        rolled = {"c": np.roll(operands.arguments["c"], 1, axis)}
        result = kernel(problem, replace(operands, arguments=rolled))
        fails(check_bound, problem, operands, result, match="out of bounds")
    for wrong in (np.ones((64, 63), np.uint16), np.ones((64, 64), np.float32)):
        with pytest.raises(ArgumentError, match=r"c=.*must have the shape \(64, 64\) and hold"):
            product(problem, replace(operands, arguments={"c": wrong}), ENGINE)


# --- how small a fault shows

FAMILIES = {
    "bf16": DENSE,
    "f16": HALF,
    "fp8-fast": Problem(family="dense", a=E4M3, b=E4M3),
    "int8": Problem(family="dense", a=S8, b=S8),
    "fp8": Problem(family="fp8", a=E4M3, b=E4M3),
    "fp8-block": FP8,
    "int8-block": Problem(family="fp8_block", a=S8, b=S8),
    "fp8-1d1d": Problem(family="fp8_1d1d", a=E4M3, b=E4M3),
}
VALUES = tuple((d, e) for e in ("none", "bias_silu") for d in (BF16, F16, F32))
SAMPLED = 8  # places in K of each kind of fault, all elements of D at each
every_family = pytest.mark.parametrize("problem", FAMILIES.values(), ids=FAMILIES)
depths = pytest.mark.parametrize("k", (256, 1040, 4096, 7168))


def shown(problem, held, wrong):
    """Where a kernel that holds `wrong` leaves what no right one may: bool [M, N]."""
    low, got, high = (
        decode(ENGINE.round_to(x, problem.d), problem.d) for x in (held.low, wrong, held.high)
    )
    return ~((low <= got) & (got <= high))


def finished(problem, operands, acc):
    """float64 values, from those of the accumulators."""
    args = lift_arguments(problem.epilogue, operands, ENGINE)
    return evaluate(problem.epilogue, acc, args, ENGINE)


@every_family
@depths
def test_a_ladder_shows_every_fault_in_every_element(problem, k):
    """Lost products, missing wgmma steps and 128s of K, stale scales of A, of B and of both."""
    rng, hidden, seen = np.random.default_rng(k), [], 0
    problems = [replace(problem, d=d, epilogue=EPILOGUES[e]) for d, e in VALUES]
    operands = [ladder(p, 16, 24, k, 3) for p in problems]
    held = [enclosure(p, x, ENGINE) for p, x in zip(problems, operands, strict=True)]
    for fault in faults(problem):
        places = fault.places(k)
        for place in rng.choice(places, min(SAMPLED, len(places)), replace=False):
            wrong = fault.make(without_arguments(operands[0]), int(place))
            acc = product(problem, wrong, ENGINE)
            for p, x, right in zip(problems, operands, held, strict=True):
                found = shown(p, right, finished(p, x, acc))
                seen += found.sum()
                hidden += [(fault.name, place, p.d.name)] * int((~found).sum())
    assert not hidden
    assert seen >= 16 * 24 * len(VALUES) * 3 * 2


@every_family
@depths
def test_a_ladder_shows_every_fault_in_an_fp8_output(problem, k):
    found = power(replace(problem, d=E4M3), (16, 16, k))
    assert len(found) == (6 if problem.family in ("fp8_block", "fp8_1d1d") else 3)
    assert all(p.found == p.of > 0 for p in found), line(found)


@every_family
@depths
def test_right_results_of_a_ladder_pass(problem, k):
    for d, epilogue in VALUES:
        p = replace(problem, d=d, epilogue=EPILOGUES[epilogue])
        operands = ladder(p, 9, 12, k, 5)
        result = modelled(p, operands)
        check_bound(p, operands, result, ENGINE)
        if not transcendental(p.epilogue):
            check_exact(p, operands, result, ENGINE)


@pytest.mark.parametrize("k", [1, 2, 3, 31, 128, 129, 257, 384, 1000])
def test_a_ladder_ends_small(k):
    for problem in FAMILIES.values():
        operands = ladder(problem, 5, 7, k, 1)
        assert set(np.unique(product(problem, operands, ENGINE))) <= {1.0, 2.0, 3.0}


def test_power_says_what_is_hidden():
    """Half of what is negative is lost to no one, but a constant hides all."""
    flat = replace(DENSE, epilogue=Call("min", (Acc(), Scalar("x"))) * 0.0)
    assert {p.found for p in power(flat, (8, 8, 512))} == {0}
    found = power(DENSE, (8, 8, 512))
    assert [p.fault for p in found] == ["lost product", "missing wgmma step", "missing 128 of K"]
    assert [p.of for p in found] == [64, 64, 32]
    assert line(found).endswith("missing wgmma step 64 of 64, missing 128 of K 32 of 32")


@every_family
def test_where_nothing_is_cut_the_bound_is_zero_and_the_result_exact(problem):
    """Every other row and column has elements of two sizes, too far apart to be added without a cut."""
    problem, rng = replace(problem, d=F32), np.random.default_rng(4)
    operands = exact_integers(problem, 48, 40, 700, 6)

    def mixed(codes):
        sizes = rng.choice([1.0, 2.0 ** (6 if problem.a.bytes == 1 else 13)], codes.shape)
        sizes[::2] = 1.0
        return encode(table(problem.a)[codes] * sizes, problem.a)

    operands = replace(operands, a=mixed(operands.a), b=mixed(operands.b))
    x = enclosure(problem, operands, ENGINE)
    exact = (x.high - x.low) <= 2.0**-140
    assert exact.any() and (problem.a == S8 or not exact.all())
    got = decode(modelled(problem, operands), F32)
    np.testing.assert_array_equal(got[exact], x.want[exact])
    check_bound(problem, operands, modelled(problem, operands), ENGINE)


class Reference:
    """A machine whose kernel is the reference, but for `spoil`, which changes what it reads."""

    engine = ENGINE
    repeats = False

    def __init__(self, problem, spoil=None):
        self.problem, self.spoil, self.launches = problem, spoil or (lambda x: x), 0

    def execute(self, program, operands, pitches, output, fill):
        self.launches += 1
        values = product(self.problem, operands, ENGINE)
        values[3, 5] = product(self.problem, self.spoil(operands), ENGINE)[3, 5]
        after, codes = output.poison(fill), ENGINE.round_to(values, self.problem.d)
        width = output.dtype.bytes
        for row in range(output.rows):
            start = output.offset + row * output.pitch * width
            after[start : start + output.cols * width] = codes[row].view(np.uint8)
        return after


class Unwritten(Reference):
    """Whose kernel leaves one element of D as it was, in one of its launches or in all."""

    def __init__(self, problem, launch, *, repeats):
        super().__init__(problem)
        self.launch, self.repeats = launch, repeats

    def execute(self, program, operands, pitches, output, fill):
        after = super().execute(program, operands, pitches, output, fill)
        if self.launch in (self.launches, None):
            width = output.dtype.bytes
            at = output.offset + (3 * output.pitch + 5) * width
            after[at : at + width] = fill
        return after


@pytest.mark.parametrize("repeats, launches", [(False, 5), (True, 3)])
@every_family
def test_a_trial_finds_an_unwritten_element(problem, repeats, launches):
    shape, kernel = (16, 16, 256), lower(problem, Config())
    for launch in (None, *range(1, launches + 1)):
        with pytest.raises(VerificationError):
            judge(Unwritten(problem, launch, repeats=repeats), None, kernel, problem, shape)


@every_family
def test_a_trial_finds_one_fault_in_one_element(problem):
    shape, kernel = (16, 16, 7168), lower(problem, Config())
    right = Reference(problem)
    assert judge(right, None, kernel, problem, shape).launches == right.launches == 5
    right.repeats, right.launches = True, 0
    assert judge(right, None, kernel, problem, shape).launches == right.launches == 3
    for fault in faults(problem):
        for place in (fault.places(shape[2])[1], fault.places(shape[2])[-1]):
            wrong = Reference(problem, partial(fault.make, place=place))
            with pytest.raises(VerificationError, match="1 of 256 elements"):
                judge(wrong, None, kernel, problem, shape)


# --- guard bands and repeats


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("size", [(1, 8, 8), (5, 24, 40), (130, 136, 136), (0, 8, 8)], ids=str)
def test_a_guarded_output_returns_what_was_written(dtype, size):
    rows, cols, pitch = size
    guarded = Guarded(dtype=dtype, rows=rows, cols=cols, pitch=pitch)
    assert guarded.offset % 1024 == 0 and guarded.offset >= 4096
    after, written = store(guarded, np.arange(rows * cols).reshape(rows, cols))
    guarded.check(after, POISONS[0])
    np.testing.assert_array_equal(guarded.extract(after), written)


def store(guarded, values, fill=POISONS[0]):
    """The buffer after a correct kernel wrote `values`, and the codes it wrote."""
    after = guarded.poison(fill)
    codes = values.astype(code_type(guarded.dtype))
    width = guarded.dtype.bytes
    for row in range(guarded.rows):
        start = guarded.offset + row * guarded.pitch * width
        after[start : start + guarded.cols * width] = codes[row].view(np.uint8)
    return after, codes


@pytest.mark.parametrize("fill", POISONS)
def test_one_changed_guard_byte_fails(fill):
    guarded = Guarded(dtype=BF16, rows=3, cols=8, pitch=12)
    clean, _ = store(guarded, np.ones((3, 8)), fill)
    guarded.check(clean, fill)
    end = guarded.size - guarded.offset
    places = {
        0: "guard before .* byte -",
        guarded.offset - 1: "guard before .* byte -1 ",
        guarded.offset + 16: "row 0, 0 bytes after",
        end - 1: "row 2, 7 bytes after",
        end: "guard after .* byte 72 ",
        guarded.size - 1: "guard after",
    }
    for at, match in places.items():
        touched = clean.copy()
        touched[at] ^= 1
        with pytest.raises(VerificationError, match=match):
            guarded.check(touched, fill)


def test_two_poisons_expose_what_no_run_wrote():
    guarded = Guarded(dtype=BF16, rows=140, cols=136, pitch=136)
    runs = []
    for fill in POISONS:
        after, _ = store(guarded, np.ones((140, 136)), fill)
        left = guarded.offset + (7 * guarded.pitch + 3) * 2
        after[left : left + 2] = fill
        guarded.check(after, fill)
        runs.append(guarded.extract(after))
    check_repeat(runs[0], runs[0].copy(), ENGINE)
    fails(
        check_repeat, *runs, match=r"(?s)1 of 19040 .*first at \(7, 3\): first 0xffff, then 0x5a5a"
    )


def test_every_dtype_has_codes():
    for dtype in DTYPES.values():
        assert decode(encode(np.array([1.0, -2.0]), dtype), dtype).tolist() == [1.0, -2.0]
