"""Outputs that are more than rounded products: pairs of columns made one, and FP8 with scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from grouped import layout
from kernels import DENSE, FP8, GROUPED, INT8_BLOCK, PAIRED, QUANTISED, VECTOR, emitted, fitting

from gemmgen.check import ProtocolViolation, check
from gemmgen.codes import encode
from gemmgen.config import Config
from gemmgen.epilogues import (
    EPILOGUES,
    acc,
    check_arguments,
    from_json,
    gate,
    residual,
    swiglu,
    swiglu_clamped,
    to_json,
    up,
)
from gemmgen.errors import ArgumentError, GemmgenError, UnsupportedProblem, VerificationError
from gemmgen.ir import nodes
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8
from gemmgen.ir.expr import Call, PerColumn, PerElement, PerRow, Scalar, fold
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.verification import NumpyEngine, exact_integers, quantised
from gemmgen.verification.reference import product

# ---- expressions ----------------------------------------------------------------------------


def test_fold():
    assert [fold(e) for e in (acc, gate(acc), 1.0 + up(acc) * Scalar("x"))] == [1, 2, 2]
    assert EPILOGUES["swiglu"] == swiglu(acc)


@pytest.mark.parametrize(
    "e",
    (
        gate(acc) + acc,
        gate(acc) * PerColumn("x"),
        up(acc) + residual(),
        gate(up(acc)),
        Call("max", (gate(acc), PerElement("c", F32))),
    ),
    ids=repr,
)
def test_what_differs_between_columns_is_in_a_pair(e):
    with pytest.raises(ArgumentError) as error:
        check_arguments(e)
    assert error.value.argument == "epilogue" and error.value.allowed


def test_what_does_not_differ_between_columns_may_stand_anywhere():
    check_arguments(gate(acc * PerRow("r")) * Scalar("s") + PerRow("r"))


def test_json():
    e = swiglu_clamped(acc + PerColumn("bias"), limit=3.0) * PerRow("r")
    assert from_json(to_json(e)) == e
    assert from_json(["*", ["even", "acc"], ["odd", "acc"]]) == gate(acc) * up(acc)
    with pytest.raises(ArgumentError):
        from_json(["even", "acc", "acc"])


def test_swiglu_means_what_it_says():
    p = replace(DENSE, epilogue=swiglu(acc + PerColumn("bias")))
    x = exact_integers(p, 5, 12, 40, 3)
    plain = product(DENSE, replace(x, fold=1, arguments={}), NumpyEngine())
    biased = plain + np.asarray(x.arguments["bias"], np.float64)
    g, u = biased[:, 0::2], biased[:, 1::2]
    np.testing.assert_allclose(product(p, x, NumpyEngine()), g / (1 + np.exp(-g)) * u)


def test_an_odd_n_is_an_error():
    with pytest.raises(ArgumentError, match="even") as e:
        exact_integers(PAIRED, 4, 7, 16, 0)
    assert e.value.argument == "n"


def test_pairs_are_not_added_to_d():
    with pytest.raises(ArgumentError, match="pair") as e:
        replace(PAIRED, d=F32, accumulate=True)
    assert e.value.argument == "accumulate"


# ---- the proof ------------------------------------------------------------------------------


def test_values_of_another_wave_are_found():
    kernel = lower(PAIRED, Config(block_m=256, block_n=64, stages=3))
    first = next(s for s in statements(kernel) if isinstance(s, nodes.Evaluate))
    change = {
        "another accumulator": lambda s: replace(s, src="acc1"),
        "no evaluation": lambda s: (),
    }
    for what in change.values():
        wrong = map_stmts(kernel, lambda s, what=what: what(s) if s is first else s)
        with pytest.raises(ProtocolViolation):
            check(wrong)


def drop(kind):
    return lambda kernel: map_stmts(kernel, lambda s: () if isinstance(s, kind) else s)


def swapped(one, other):
    """The two statements, which follow each other in the tile, exchanged."""

    def change(kernel):
        found = {type(s): s for s in statements(kernel) if isinstance(s, one | other)}
        turn = {one: found[other], other: found[one]}
        return map_stmts(kernel, lambda s: turn.get(type(s), s))

    return change


@pytest.mark.parametrize(
    "change",
    (
        drop(nodes.StoreScales),
        drop(nodes.RowAmax),
        drop(nodes.Normalise),
        swapped(nodes.RowAmax, nodes.Evaluate),
        swapped(nodes.RowAmax, nodes.Normalise),
        lambda k: map_stmts(k, lambda s: (s, s) if isinstance(s, nodes.StoreScales) else s),
        lambda k: map_stmts(k, lambda s: (s, s) if isinstance(s, nodes.Normalise) else s),
        lambda k: map_stmts(
            k, lambda s: replace(s, wave=1) if isinstance(s, nodes.StoreScales) else s
        ),
        lambda k: map_stmts(
            k,
            lambda s: nodes.If(when="leader", body=(s,)) if isinstance(s, nodes.StoreScales) else s,
        ),
    ),
)
def test_scales_out_of_order_are_found(change):
    kernel = lower(QUANTISED, Config(stages=2))
    with pytest.raises(ProtocolViolation):
        check(change(kernel))


# ---- quantisation ---------------------------------------------------------------------------


def right(problem, shape, seed=1):
    """Exact operands and the result that a right kernel gives, worked out in NumPy's FP32."""
    x = exact_integers(problem, *shape, seed)
    values = product(problem, x, NumpyEngine()).astype(np.float32)
    codes, scales = np.zeros(values.shape, np.uint8), []
    for first in range(0, values.shape[1], 128):
        part = values[:, first : first + 128]
        amax = np.maximum(np.abs(part).max(1, keepdims=True), np.float32(1e-4))
        scales.append(amax / np.float32(448))
        codes[:, first : first + 128] = encode(part * (np.float32(448) / amax), E4M3)
    return x, quantised.Result(codes=codes, scales=np.concatenate(scales, 1).view(np.uint32))


@pytest.mark.parametrize("shape", ((5, 300, 64), (1, 1, 16), (33, 128, 200)))
def test_quantised_results(shape):
    x, result = right(QUANTISED, shape)
    quantised.check_exact(QUANTISED, x, result, NumpyEngine())
    assert quantised.check_bound(QUANTISED, x, result, NumpyEngine()).worst <= 1


@pytest.mark.parametrize("which", ("code", "scale"))
def test_wrong_quantised_results(which):
    x, result = right(QUANTISED, (5, 300, 64))
    for judge in (quantised.check_exact, quantised.check_bound):
        codes, scales = result.codes.copy(), result.scales.copy()
        if which == "code":
            codes[3, 140] ^= 0x10
        else:
            scales[3, 1] = np.float32(scales.view(np.float32)[3, 1] * 1.01).view(np.uint32)
        wrong = quantised.Result(codes=codes, scales=scales)
        with pytest.raises(VerificationError):
            judge(QUANTISED, x, wrong, NumpyEngine())


def test_a_row_of_zeros_has_the_least_scale():
    x, result = right(replace(DENSE, d=E4M3), (4, 130, 64))
    x.a[1] = 0
    result.codes[1] = 0
    result.scales[1] = (np.float32(1e-4) / np.float32(448)).view(np.uint32)
    quantised.check_exact(replace(DENSE, d=E4M3), x, result, NumpyEngine())


def test_an_approximate_epilogue_has_no_exact_codes():
    p = replace(QUANTISED, epilogue=EPILOGUES["silu"])
    x, result = right(p, (2, 128, 16))
    with pytest.raises(UnsupportedProblem):
        quantised.check_exact(p, x, result, NumpyEngine())


# ---- the emulator ---------------------------------------------------------------------------

SHAPES = ((130, 58, 200), (1, 2, 16), (65, 218, 72), (300, 16, 400))
REGLU = EPILOGUES["reglu"]


def judged(problem, config, shapes=SHAPES, groups=None, pad=0, broken=None):
    """Verified; the launches' Stats."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.trial import judge

    a = emitted(problem, config)
    source = broken(a.source) if broken else a.source
    assert not broken or source != a.source
    gpu, program = EmulatedGpu(), prepare(a.kernel, source)
    for shape in shapes:
        judge(gpu, program, a.kernel, problem, fitting(problem, shape), 1, pad, groups)
    return gpu.stats


def conflicts(stats):
    """Where a wave of D is staged; the tail reads its few columns as they come."""
    sites = ((site, x) for s in stats for site, x in s.sites.items())
    return [site for site, x in sites if site.startswith("st.") and x.conflicts]


@pytest.mark.nvrtc
@pytest.mark.parametrize("d", (BF16, F16, F32), ids=str)
@pytest.mark.parametrize("block_n", (16, 48, 112, 128, 256))
def test_paired_widths(block_n, d):
    """Bit for bit, and without a bank conflict, whatever swizzle the row takes."""
    config = Config(block_n=block_n, stages=2, multicast="b" if block_n % 32 == 0 else "none")
    stats = judged(replace(PAIRED, d=d), config, SHAPES[:2], pad=block_n // 16 % 2)
    assert not conflicts(stats)


FAMILIES = {
    "bf16": DENSE,
    "f16": replace(DENSE, a=F16, b=F16, d=F16),
    "fp8_fast": replace(DENSE, a=E4M3, b=E5M2),
    "s8": replace(DENSE, a=S8, b=S8),
    "fp8": Problem(family="fp8", a=E5M2, b=E4M3),
    "fp8_block": FP8,
    "s8_block": INT8_BLOCK,
    "fp8_1d1d": VECTOR,
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", ("none", *GROUPED))
@pytest.mark.parametrize("name", FAMILIES)
def test_paired_families(name, grouping):
    p = replace(FAMILIES[name], grouping=grouping, epilogue=REGLU)
    shape, sizes = (300, 74, 200), (70, 0, 130)
    config = Config(block_m=128, block_n=32, stages=2)
    stats = judged(p, config, (shape,), layout(p, shape, sizes), pad=len(name) % 2)
    assert not conflicts(stats)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ("bf16", "s8", "fp8_block"))
def test_paired_arguments(name):
    """Vectors and matrices inside a pair have the product's columns; of two waves, in groups."""
    inner = acc * PerRow("row") + PerColumn("bias") * PerElement("c", BF16)
    p = replace(FAMILIES[name], grouping="batched", d=F32, epilogue=gate(inner) * up(acc) + 2.0)
    config = Config(block_m=128, consumers=1, block_n=48, stages=2)
    judged(p, config, ((70, 90, 200),), layout(p, (70, 90, 200), (70, 70)))


@pytest.mark.nvrtc
@pytest.mark.parametrize("swizzle", (0, 32, 64))
def test_paired_swizzles(swizzle):
    config = Config(block_n=128, stages=2, swizzle_d=swizzle)
    judged(PAIRED, config, SHAPES[:2])


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("acc0[i + 1]", "acc0[i]"),
        ("col / 2, k_blocks", "col, k_blocks"),
        ("if (columns > 0 && first >= 0", "if (columns > 8 && first >= 0"),
        ("lane % 4 * 2 ^ (row", "lane % 4 * 2 ^ 16 ^ (row"),
        ("values[i / 2] = value(i)", "values[i / 2] = value(i ^ 2)"),
    ),
)
def test_planted_faults_are_found(old, new):
    with pytest.raises(GemmgenError):
        judged(PAIRED, Config(block_n=64, stages=2), broken=lambda s: s.replace(old, new))


QUANTISED_SHAPES = ((130, 300, 200), (1, 1, 16), (65, 129, 72), (260, 256, 136))


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {"block_n": 128},
        {"block_n": 256, "multicast": "b"},
        {"block_m": 256, "in_flight": 1},
        {"block_m": 128, "consumers": 1, "multicast": "a"},
        {"swizzle_d": 0},
        {"swizzle_d": 32, "block_m": 64, "consumers": 1},
    ),
    ids=repr,
)
def test_quantised_tiles(changes):
    """Bit for bit, D and scales; rows padded every other time."""
    config = Config(**{"stages": 2} | changes)
    stats = judged(QUANTISED, config, QUANTISED_SHAPES, pad=len(changes) % 2)
    assert not conflicts(stats) or "swizzle_d" in changes


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", ("none", *GROUPED))
@pytest.mark.parametrize("name", FAMILIES)
def test_quantised_families(name, grouping):
    p = replace(FAMILIES[name], grouping=grouping, d=E4M3, epilogue=EPILOGUES["bias"])
    shape, sizes = (300, 150, 200), (70, 0, 130)
    config = Config(block_m=128, block_n=128, stages=2)
    judged(p, config, (shape,), layout(p, shape, sizes), pad=len(name) % 2)


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", ("none", *GROUPED))
@pytest.mark.parametrize("name", ("bf16", "s8", "fp8_fast"))
def test_quantised_pairs(name, grouping):
    """SwiGLU's data movement bit for bit, then SwiGLU itself."""
    for epilogue in ("reglu", "swiglu"):
        p = replace(FAMILIES[name], grouping=grouping, d=E4M3, epilogue=EPILOGUES[epilogue])
        shape, sizes = (200, 298, 136), (70, 0, 63)
        config = Config(block_m=128, block_n=256, stages=2)
        stats = judged(p, config, (shape,), layout(p, shape, sizes), pad=len(name) % 2)
        assert not conflicts(stats)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "epilogue",
    ("none", "alpha", "silu", "bias_gelu", "residual", "scaled", "clamp"),
)
def test_quantised_epilogues(epilogue):
    p = replace(QUANTISED, epilogue=EPILOGUES[epilogue])
    judged(p, Config(stages=2), QUANTISED_SHAPES[:2])


def test_columns_past_n_do_not_count():
    """A bias is read again past N: its last element must not become the greatest of another row."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

    def wrong(s):
        return s.replace("< columns ? values[i] : 0.0f", "< columns + 128 ? values[i] : 0.0f")

    config = Config(stages=2)
    p = replace(DENSE, d=E4M3, epilogue=acc * 0.0 + PerColumn("bias") * (2.0 - PerRow("row")))
    judged(p, config, ((40, 131, 16),))
    inside = replace(p, epilogue=acc + 100.0)
    judged(inside, config, ((40, 131, 16),))
    with pytest.raises(GemmgenError):
        judged(inside, config, ((40, 131, 16),), broken=wrong)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("__shfl_xor_sync(0xffffffff, x, 1)", "__shfl_xor_sync(0xffffffff, x, 4)"),
        ("__shfl_xor_sync(0xffffffff, x, 2)", "__shfl_xor_sync(0xffffffff, x, 1)"),
        ("fabsf(x)", "x"),
        ("values[i] *= inverse[i / 64 * 2 + i / 2 % 2]", "values[i] *= inverse[i / 64 * 2]"),
        ("block * 128 < shape_n", "block * 128 + 128 < shape_n"),
        ("lane % 4 == 0 && row < shape_m", "lane % 4 == 0 && row <= shape_m"),
        ("values[i + 2], values[i + 3]", "values[i + 3], values[i + 2]"),
        ("cvt.rn.satfinite.e4m3x2.f32 e, %2, %1", "cvt.rn.satfinite.e4m3x2.f32 e, %1, %2"),
        ("* scale_d_stride + row", "* (scale_d_stride - 1) + row"),
        ("448.0f, amax[i]", "440.0f, amax[i]"),
    ),
)
def test_quantisation_faults_are_found(old, new):
    with pytest.raises(GemmgenError):
        judged(
            QUANTISED,
            Config(block_n=256, stages=2),
            ((130, 300, 72),),
            broken=lambda s: s.replace(old, new),
        )
