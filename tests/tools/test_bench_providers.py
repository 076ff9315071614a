"""Who is offered for which problem, who `--providers` selects, and when a result is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8, INT8_BLOCK, VECTOR

from gemmgen.bench import grouped_torch, sources
from gemmgen.bench import select as selecting
from gemmgen.bench.agree import FAST, SUMMED, check_exact, check_near
from gemmgen.bench.cases import make, scaling
from gemmgen.bench.contest import reason
from gemmgen.bench.data import EXACT, KINDS, Data
from gemmgen.bench.grouped_torch import offsets, takes
from gemmgen.bench.providers import Provider, fast, quick, reference, scaling_of
from gemmgen.bench.select import Offer, select
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import (
    ArgumentError,
    RuntimeUnavailable,
    UnsupportedProblem,
    VerificationError,
)
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8, S32
from gemmgen.problem import Problem

FP8_TENSOR = Problem(family="fp8", a=E4M3, b=E4M3)
FP8_FAST = Problem(family="dense", a=E4M3, b=E4M3)
INT8 = Problem(family="dense", a=S8, b=S8, d=S32)
OFFERED = sources.offers(FP8, Config())
WGRAD = replace(VECTOR, accumulate=True)


@pytest.fixture
def installed(monkeypatch):
    """By name; gemmgen and its floor always are."""
    names = {"torch", "triton"}
    monkeypatch.setattr(
        selecting, "missing", lambda x: x.library not in {"gemmgen", "read", *names}
    )
    return names


def names(text, p):
    return [x.name for x in select(text, p, OFFERED, reference(p))]


@pytest.mark.parametrize(
    ("p", "name"),
    [
        (DENSE, "torch.mm"),
        (FP8, "torch._scaled_mm"),
        (VECTOR, "torch._scaled_mm"),
        (FP8_TENSOR, "torch._scaled_mm"),
        (INT8, "torch._int_mm"),
        (INT8_BLOCK, "torch._int_mm"),
    ],
)
def test_the_default_is_gemmgen_and_the_reference(installed, p, name):
    assert reference(p) == name
    assert names(selecting.DEFAULT, p) == ["gemmgen", name]


def test_libraries_stand_for_what_they_have(installed):
    scaled = ["torch._scaled_mm", "torch._scaled_mm rows", "torch._scaled_mm blocks"]
    assert names("torch", FP8) == scaled
    assert names("torch", FP8_TENSOR) == scaled[:2]
    assert names("torch", VECTOR) == scaled[:2]
    assert names("torch", DENSE) == ["torch.mm"]
    assert names("triton,gemmgen", FP8) == ["triton blocks", "gemmgen"]
    assert names("torch._scaled_mm blocks", FP8) == ["torch._scaled_mm blocks"]
    assert names("gemmgen,torch,reference,gemmgen", DENSE) == ["gemmgen", "torch.mm"]


def test_all_is_what_is_installed(installed):
    assert names("all", DENSE) == ["gemmgen", "torch.mm"]
    installed |= {"tilelang", "deep_gemm", "flag_gems", "quack"}
    dense = ["gemmgen", "torch.mm", "tilelang", "deep_gemm bf16", "flag_gems", "quack"]
    assert names("all", DENSE) == dense
    assert names("all", DENSE_TN) == ["gemmgen", "torch.mm", "flag_gems", "quack"]
    assert names("all", DENSE_F32) == ["gemmgen", "torch.mm"]
    blocks = ["triton blocks", "deep_gemm", "flag_gems blocks"]
    assert names("all", FP8)[4:] == blocks
    assert names("all", replace(FP8, d=F16))[3:] == [*blocks[:1], *blocks[2:]]
    assert names("all", WGRAD)[3:] == ["deep_gemm wgrad"]
    assert names("all", VECTOR)[3:] == ["triton blocks"]


def test_the_floor_is_asked_for_by_name(installed):
    """It computes nothing, so it is none of all."""
    assert names("gemmgen,read", FP8) == ["gemmgen", "read"]
    grouped = sources.offers(replace(FP8, grouping="masked"), Config())
    assert [x.name for x in select("read", FP8, grouped, "")] == ["read"]
    assert "read" not in names("all", DENSE)


def test_wrong_selections(installed):
    with pytest.raises(ArgumentError, match="'cublas' must be one of reference, all, gemmgen"):
        names("gemmgen,cublas", DENSE)
    with pytest.raises(ArgumentError, match=r"'torch\._int_mm' has nothing .* fp8_block of e4m3"):
        names("torch._int_mm", FP8)
    with pytest.raises(RuntimeUnavailable, match="deep_gemm is not installed"):
        names("deep_gemm", FP8)
    with pytest.raises(ArgumentError, match="''"):
        names("gemmgen,", DENSE)


def test_gemmgen_is_never_missing():
    assert not selecting.missing(OFFERED[0]) and not selecting.missing(OFFERED[-1])
    assert selecting.missing(Offer(name="x", library="no_such_module", takes=bool))


def test_names_are_unique():
    assert len({x.name for x in OFFERED}) == len(OFFERED)
    assert not [x.name for x in OFFERED if "," in x.name]


@pytest.mark.parametrize(
    ("p", "all_"),
    [
        (replace(DENSE, grouping="ends"), ["torch.mm, one", "torch._grouped_mm"]),
        (replace(FP8, grouping="masked"), ["torch._scaled_mm, one"]),
        (replace(INT8, grouping="rows"), ["torch._int_mm, one"]),
        (replace(DENSE, grouping="batched"), ["torch.bmm"]),
        (replace(DENSE_TN, grouping="k_columns"), ["torch.mm, one"]),
        (replace(WGRAD, grouping="k_flat"), ["torch._scaled_mm, one"]),
    ],
    ids=lambda x: getattr(x, "grouping", ""),
)
def test_grouped_offers(installed, p, all_, monkeypatch):
    monkeypatch.setattr(grouped_torch, "available", lambda: False)
    offered, theirs = sources.offers(p, Config()), sources.reference(p)
    assert [x.name for x in select("all", p, offered, theirs)] == ["gemmgen", *all_]
    assert [x.name for x in select(selecting.DEFAULT, p, offered, theirs)] == ["gemmgen", all_[0]]


def test_groups_stand_beside_who_computes_the_same(installed, monkeypatch):
    """DeepGEMM, else torch's own groups, else one GEMM, which computes something else."""
    monkeypatch.setattr(grouped_torch, "available", lambda: True)
    ends, masked = (replace(DENSE, grouping=g) for g in ("ends", "masked"))
    assert [sources.reference(p) for p in (ends, masked)] == ["torch._grouped_mm", "torch.mm, one"]
    installed |= {"deep_gemm"}
    for p in (ends, masked, *(replace(FP8, grouping=g) for g in ("masked", "rows", "ends"))):
        theirs = sources.reference(p)
        chosen = select(selecting.DEFAULT, p, sources.offers(p, Config()), theirs)
        assert [x.name for x in chosen] == ["gemmgen", "deep_gemm"]
        assert not sources.is_one_gemm(theirs) and sources.is_one_gemm(sources.torch_reference(p))
    batch = replace(DENSE, grouping="batched")
    assert sources.reference(batch) == "torch.bmm" and not sources.is_one_gemm("torch.bmm")
    assert sources.is_one_gemm(sources.reference(replace(FP8, grouping="batched")))


def test_deep_gemm_computes_groups_of_rows(installed):
    from gemmgen.bench import grouped_deep_gemm as deep

    installed |= {"deep_gemm"}
    for p in (DENSE, FP8):
        for grouping in ("masked", "rows", "ends"):
            q = replace(p, grouping=grouping)
            offered = sources.offers(q, Config())
            assert "deep_gemm" in [x.name for x in select("all", q, offered, sources.reference(q))]
            assert not deep.takes(replace(q, alignment=64)) and not deep.takes(replace(q, d=F32))
            assert not deep.takes(replace(q, epilogue=EPILOGUES["bias"]))
    assert not deep.takes(replace(DENSE, grouping="batched")) and not deep.takes(FP8)


def test_torch_groups_begin_where_ours_do():
    ends = replace(DENSE, grouping="ends")
    assert offsets(ends, 1024, (100, 128, 129)) == [128, 256, 512]
    assert offsets(replace(ends, grouping="rows"), 1024, (100, 128, 129)) == [128, 256, 512]
    assert offsets(replace(ends, alignment=64), 1024, (100, 64)) == [128, 192]
    assert takes(ends) and not takes(replace(ends, grouping="masked")) and not takes(FP8)


# ---- recipes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "want"),
    [
        (DENSE, "plain"),
        (FP8, "blocks"),
        (VECTOR, "blocks"),
        (FP8_TENSOR, "plain"),
        (INT8, "plain"),
        (replace(INT8, d=BF16), "plain"),
        (INT8_BLOCK, "blocks"),
    ],
)
def test_how_gemmgen_scales(p, want):
    assert scaling(p) == scaling_of(OFFERED[0], p) == want


def test_how_others_scale():
    by_name = {x.name: x for x in OFFERED}
    assert scaling_of(by_name["torch._scaled_mm"], FP8) == "plain"
    assert scaling_of(by_name["torch._scaled_mm rows"], FP8) == "rows"
    assert scaling_of(by_name["torch._scaled_mm blocks"], FP8) == "blocks"
    assert scaling_of(by_name["torch._int_mm"], replace(INT8, d=BF16)) == "plain"
    assert scaling_of(by_name["triton blocks"], VECTOR) == "blocks"


def test_who_sums_in_14_bits():
    assert fast(FP8_FAST) and not fast(FP8) and not fast(FP8_TENSOR) and not fast(DENSE)
    assert quick(FP8) and quick(FP8_FAST) and not quick(FP8_TENSOR)


def test_other_data_is_refused():
    for kind in (*KINDS, EXACT):
        Data(kind=kind)
    with pytest.raises(ArgumentError, match="normal, uniform"):
        Data(kind="zeros")


# ---- agreement ------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
WANT = RNG.integers(-20, 20, (64, 128)).astype(np.float64)


def rounded(x, bits):
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2**bits), exponent - bits)


def test_exact_products_may_be_rounded():
    odd = RNG.integers(-5000, 5000, WANT.shape).astype(np.float64)
    check_exact(rounded(odd, 8), odd, BF16)
    check_exact(WANT, WANT, S32)
    with pytest.raises(VerificationError):
        check_exact(rounded(odd, 5), odd, BF16)
    with pytest.raises(VerificationError):
        check_exact(rounded(odd, 8), odd, F32)


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_one_wrong_element_of_an_exact_product(value):
    got = WANT.copy()
    got[3, 5] = WANT[3, 5] + value
    with pytest.raises(VerificationError, match="1 of 8192 elements"):
        check_exact(got, WANT, BF16)


def product(k, lost=0):
    """Two results of N(0, 1) data: of all of K, and of all but the last `lost`."""
    a, b = RNG.standard_normal((96, k)), RNG.standard_normal((64, k))
    return a[:, : k - lost] @ b[:, : k - lost].T, a @ b.T


@pytest.mark.parametrize(("bound", "k"), [(SUMMED, 1 << 17), (FAST, 1 << 14)])
def test_a_lost_block_of_k_is_found(bound, k):
    got, want = product(k, lost=128)
    check_near(want, want, bound)
    with pytest.raises(VerificationError, match="root mean square"):
        check_near(got, want, bound)


def test_noise_is_allowed_and_more_is_not():
    _, want = product(256)
    size = np.sqrt((want * want).mean())
    noise = RNG.standard_normal(want.shape) * size
    for bound, good, bad in ((SUMMED, 0.01, 0.02), (FAST, 0.05, 0.08)):
        check_near(want + good * noise, want, bound)
        with pytest.raises(VerificationError):
            check_near(want + bad * noise, want, bound)


@pytest.mark.parametrize("value", [0.2, math.nan])
def test_one_wrong_element(value):
    _, want = product(256)
    got = want.copy()
    got[3, 5] += value * np.sqrt((want * want).mean())
    with pytest.raises(VerificationError):
        check_near(got, want, SUMMED)


def test_zeros_and_other_shapes_are_wrong():
    _, want = product(256)
    for got in (want * 0, want[:, :-1], want.T):
        with pytest.raises(VerificationError):
            check_near(got, want, FAST)
    with pytest.raises(VerificationError, match="shape"):
        check_exact(WANT[:1], WANT, BF16)


def test_reasons():
    assert reason(VerificationError("off")) == "wrong result: off"
    assert reason(UnsupportedProblem("no")) == "fails: no"
    assert reason(RuntimeError("first\nsecond")) == "fails: RuntimeError: first"
    assert reason(AssertionError()) == "fails: AssertionError: "


# ---- on the command line --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--providers", "gemmgen,cublas"], "'cublas' must be one of"),
        (["--mode", "kernels"], "--mode='kernels'"),
        (["--pace", "slow"], "--pace='slow'"),
        (["--l2", "flush", "--mode", "operator"], "--l2='flush'"),
        (["--data", "exact"], "--data='exact'"),
        (["--plot"], "needs -o"),
        (["--shapes", "@/no/such/file"], "cannot be read"),
        (["--seconds", "-1"], "--seconds=-1.0"),
    ],
)
def test_wrong_arguments_need_no_gpu(capsys, arguments, says):
    assert main(["bench", "fp8_block", *arguments]) == 2
    assert says in capsys.readouterr().err


# ---- with torch on the CPU ------------------------------------------------------------------


CASES = [DENSE, DENSE_TN, FP8, VECTOR, FP8_TENSOR, INT8, INT8_BLOCK, replace(INT8, d=BF16)]


@pytest.mark.parametrize("kind", [*KINDS, EXACT])
@pytest.mark.parametrize("p", CASES, ids=lambda p: f"{p.family}-{p.a}-{p.layout}-{p.d}")
def test_products_by_hand(p, kind):
    pytest.importorskip("torch")
    from gemmgen.bench.cases import product

    c = make(p, (40, 150, 300), Data(kind=kind, device="cpu"))
    a, b = c.left.double().numpy(), c.right.double().numpy()
    assert a.shape == (40, 300) and b.shape == (300, 150)
    if scaling(p) == "blocks":
        rows = 1 if p.family == "fp8_1d1d" else 128
        for i, j in ((0, 0), (39, 149), (7, 127), (7, 128)):
            scales = [
                float(c.scale_a[i, k // 128]) * float(c.scale_b[j // rows, k // 128])
                for k in range(300)
            ]
            want = float((a[i] * b[:, j] * scales).sum())
            assert float(product(c, "blocks")[i, j]) == pytest.approx(want, rel=1e-9, abs=1e-9)
    if c.given.keys() == {"scale_a", "scale_b"} and p.a.integer:
        scales = c.rows.double().numpy()[:, None] * c.columns.double().numpy()
        np.testing.assert_allclose(product(c, "rows").numpy(), a @ b * scales)
    np.testing.assert_allclose(product(c, "plain").numpy(), a @ b)


@pytest.mark.parametrize("name", ("bias_silu", "residual", "swiglu", "scaled", "alpha_beta"))
def test_epilogues_by_hand(name):
    """What gemmgen's result is compared with."""
    torch = pytest.importorskip("torch")
    from gemmgen.bench.cases import exactly, finished, product

    c = make(replace(DENSE, epilogue=EPILOGUES[name]), (40, 150, 300), Data(device="cpu"))
    x, given, silu = product(c, "plain"), c.given, torch.nn.functional.silu
    want = {
        "bias_silu": lambda: silu(x + given["bias"].double()),
        "residual": lambda: x + given["c"].double(),
        "swiglu": lambda: silu(x[:, ::2]) * x[:, 1::2],
        "scaled": lambda: x * given["row_scale"].double()[:, None] * given["column_scale"].double(),
        "alpha_beta": lambda: x * given["alpha"] + given["c"].double() * given["beta"],
    }[name]()
    np.testing.assert_allclose(finished(c, x).numpy(), want.numpy(), rtol=1e-12)  # float64 both
    assert exactly(c.problem.epilogue) == (name == "scaled")


@pytest.mark.parametrize("p", CASES, ids=lambda p: f"{p.family}-{p.a}-{p.layout}-{p.d}")
def test_exact_data_is_exact(p):
    torch = pytest.importorskip("torch")
    from gemmgen.bench.cases import product

    c = make(p, (40, 150, 4096), Data(kind=EXACT, device="cpu"))
    assert {*c.a.double().unique().tolist()} == {-1.0, 0.0, 1.0}
    want = product(c, scaling(p))
    assert bool((want * 16 == (want * 16).round()).all()) and float(want.abs().max()) < 2**12
    assert float((want != 0).double().mean()) > 0.8
    assert torch.equal(want, want.float().double())


@pytest.mark.parametrize(
    ("p", "shape", "d"),
    [
        (replace(DENSE, grouping="ends"), (3, 100, 32, 64), (512, 32)),
        (replace(DENSE, grouping="masked"), (3, 100, 32, 64), (3, 256, 32)),
        (replace(DENSE_TN, grouping="k_columns"), (3, 40, 32, 300), (3, 40, 32)),
    ],
    ids=lambda x: getattr(x, "grouping", ""),
)
def test_groups_are_compared_where_they_own_rows(p, shape, d):
    torch = pytest.importorskip("torch")
    from gemmgen.bench.contest import _same

    ours = torch.randn(*d)
    _same(p, shape, ours, ours.clone())
    with pytest.raises(VerificationError):
        _same(p, shape, ours, ours.roll(1, -1))
    theirs = ours.clone()
    theirs[..., -1, :] = 99.0  # of a group only where groups split K
    if p.grouping != "k_columns":
        return _same(p, shape, ours, theirs)
    with pytest.raises(VerificationError):
        _same(p, shape, ours, theirs)


def test_wrong_providers_are_left_out(monkeypatch):
    torch = pytest.importorskip("torch")
    from gemmgen.bench import contest
    from gemmgen.bench.cases import product
    from gemmgen.bench.modes import Method

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(contest, "Data", lambda kind: Data(kind=kind, device="cpu"))

    def provider(name, change):
        def make(case, fresh):
            return lambda: change(product(case, scaling(case.problem)).bfloat16())

        return Provider(name=name, library="torch", takes=bool, make=make)

    def fails(x):
        raise RuntimeError("cannot")

    def spoil(x):
        x[3, 5] += 40
        return x

    entered = [
        provider("right", lambda x: x),
        provider("turned", lambda x: x.T.contiguous()),
        provider("zero", lambda x: x * 0),
        provider("spoilt", spoil),
        provider("fails", fails),
    ]
    data = Data(device="cpu")
    told = []
    step = partial(told.append, "one")
    found = contest.single(FP8, (64, 64, 512), entered, Method(), data, verify=True, step=step)
    assert len(told) == len(entered)  # those that fail too
    assert [*found.turns] == ["right"] and len(found.turns["right"]) == 1
    assert {*found.left_out} == {"turned", "zero", "spoilt", "fails"}
    assert found.left_out["fails"] == "fails: RuntimeError: cannot"
    assert all(found.left_out[n].startswith("wrong result") for n in ("turned", "zero", "spoilt"))
    unverified = contest.single(FP8, (64, 64, 512), entered, Method(), data, verify=False)
    assert [*unverified.turns] == ["right", "turned", "zero", "spoilt"]
    ours = [replace(entered[2], library="gemmgen")]
    with pytest.raises(VerificationError):
        contest.single(FP8, (64, 64, 512), ours, Method(), data, verify=True)
