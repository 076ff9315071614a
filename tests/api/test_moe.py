"""`ops.moe` and `torch.ops.gemmgen.moe`, with float64 in the place of the GEMMs: against a layer in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from mixtures import (  # noqa: E402
    BF16,
    BY_ROW,
    CASES,
    CODED,
    F32,
    FP8,
    KINDS,
    OF_8_BITS,
    biases_of,
    choices,
    distance,
    drawn,
    layer,
    packed,
    weights_of,
)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import formats, nn, ops  # noqa: E402
from gemmgen.activations import GATES  # noqa: E402
from gemmgen.epilogues import gated_name  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

EXPERTS, HIDDEN, INNER = 6, 256, 128
BY_BLOCK = ("mxfp4 fp8 blocks", "int4 fp8 blocks")
BOUND = {"fp8": 0.08, "bf16": 0.01, "fp8 rows": 0.08, "int8": 0.03}
BOUND |= dict.fromkeys(CODED, BOUND["bf16"]) | dict.fromkeys(("mxfp4 f16", "fp8 by f16"), 0.002)
BOUND |= dict.fromkeys(("mxfp4 fp8", *BY_BLOCK), BOUND["fp8"])


@pytest.fixture(autouse=True)
def called(on_cpu, monkeypatch):  # noqa: F811
    """The GEMMs on the CPU; what is launched, by name, with its arguments."""
    found = []

    def noted(name, run):
        def call(*args, **given):
            found.append((name, given))
            return run(*args, **given)

        return call

    names = (
        "route",
        "quantise_rows",
        "spread",
        "plain",
        "blocks",
        "quantised",
        "by_row",
        "integers",
        "coded",
        "coded_by_row",
        "coded_by_block",
        "octets",
    )
    calls = {name: noted(name, getattr(CALLS, name)) for name in names}
    monkeypatch.setattr(mixture, "CALLS", replace(CALLS, **calls))
    monkeypatch.setattr(mixture, "combine", noted("combine", ops.combine))
    return found


def given(tokens=40, top=3, kind="fp8", order="alternating", **more):
    """Arguments of a layer."""
    found = {"x": drawn(tokens, HIDDEN, kind=kind)}
    found |= weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, order)
    return {**found, **choices(tokens, top, EXPERTS), "order": order, **more}


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize(("tokens", "top"), ((0, 2), (1, 1), (1, 5), (40, 3), (9, 0)))
def test_tokens_get_their_experts(tokens, top, kind, order):
    of = given(tokens, top, kind, order)
    y = ops.moe(**of)
    assert (y.shape, y.dtype) == ((tokens, HIDDEN), of["x"].dtype)
    assert distance(y, layer(**of)) < BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added_comes_first(kind):
    of = given(kind=kind, add=drawn(40, HIDDEN, kind=kind))
    assert distance(ops.moe(**of), layer(**of)) < BOUND[kind]
    none = {**of, "chosen": torch.full((40, 3), EXPERTS)}
    assert torch.equal(ops.moe(**none), of["add"])


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_other_experts_add_nothing(kind):
    """And experts of parts, in whatever part, are those of the whole."""
    of = given(kind=kind)
    of["chosen"][0, 0] = -1
    of["chosen"][1, 1] = EXPERTS
    of |= biases_of(EXPERTS, HIDDEN, INNER)
    whole = ops.moe(**of)
    assert distance(whole, layer(**of)) < BOUND[kind]
    shift = of | {"chosen": of["chosen"] + 3, "first": 3, "experts": 64}
    assert torch.equal(ops.moe(**shift), whole)
    mine = {n: x[2:4] for n, x in of.items() if n.startswith(("w1", "w2", "scale", "bias"))}
    part = of | mine | {"first": 2, "experts": EXPERTS}
    assert distance(ops.moe(**part), layer(**part)) < BOUND[kind]


@pytest.mark.parametrize("kind", BY_ROW)
def test_each_row_has_its_own_scale(kind):
    """Tokens and channels of any size are as exact as others."""
    of = given(kind=kind)
    for name, size, side in (("x", 40, 1), ("scale_w2", HIDDEN, 0)):
        many = torch.logspace(-2, 2, size).to(of[name].dtype)
        loud = of | {name: of[name] * (many.unsqueeze(-1) if side else many)}
        y, exact = ops.moe(**loud).double(), layer(**loud)
        apart = (y - exact).norm(dim=side) / exact.norm(dim=side)
        assert apart.shape == (size,) and apart.max() < 1.5 * BOUND[kind], name


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_order_of_tokens(kind):
    of, order = given(kind=kind), torch.randperm(40)
    moved = of | {name: of[name][order] for name in ("x", "chosen", "weights")}
    y = ops.moe(**of)
    assert torch.equal(ops.moe(**of), y)
    assert torch.equal(ops.moe(**moved), y[order])


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
@pytest.mark.parametrize("weights", (F32, BF16, torch.float16))
def test_dtypes(dtype, weights):
    of = given()
    of |= {"chosen": of["chosen"].to(dtype), "weights": of["weights"].to(weights)}
    assert distance(ops.moe(**of), layer(**of)) < BOUND["fp8"]


def test_what_a_module_of_the_same_weights_gives():
    """To the bit, in as many launches."""
    of = given()
    mine = nn.GroupedExperts(EXPERTS, HIDDEN, INNER)
    names = {"w1": "gate_up", "w2": "down", "scale_w1": "gate_up_scale", "scale_w2": "down_scale"}
    mine.load_state_dict({name: of[x] for x, name in names.items()})
    assert torch.equal(mine(of["x"], of["chosen"], of["weights"]), ops.moe(**of))


@pytest.mark.parametrize("kind", CODED)
def test_what_a_module_of_packed_weights_gives(kind):
    """To the bit."""
    of = given(kind=kind, epilogue="swiglu_clamped") | biases_of(EXPERTS, HIDDEN, INNER)
    biased = {"activation": of["epilogue"], "bias": True, "activations": of.get("activations")}
    module = nn.Experts8bit if kind in OF_8_BITS else nn.Experts4bit
    mine = module(EXPERTS, HIDDEN, INNER, weights=of["packed"], **biased)
    names = {"w1": "gate_up", "w2": "down", "bias_w1": "gate_up_bias", "bias_w2": "down_bias"}
    names |= {"scale_w1": "gate_up_factors", "scale_w2": "down_factors"}
    mine.load_state_dict({name: of[x] for x, name in names.items() if x in of}, strict=False)
    assert torch.equal(mine(of["x"], of["chosen"], of["weights"]), ops.moe(**of))


LAUNCHES = {
    ("fp8", "alternating"): "route quantise_rows spread quantised blocks combine",
    ("fp8", "halves"): "route quantise_rows spread blocks quantised blocks combine",
    ("bf16", "alternating"): "route spread plain plain combine",
    ("bf16", "halves"): "route spread plain plain plain combine",
    ("fp8 rows", "alternating"): "route quantise_rows spread by_row quantise_rows by_row combine",
    ("fp8 rows", "halves"): "route quantise_rows spread by_row by_row quantise_rows by_row combine",
    ("int8", "alternating"): "route quantise_rows spread integers quantise_rows integers combine",
    (
        "int8",
        "halves",
    ): "route quantise_rows spread integers integers quantise_rows integers combine",
    **{(x, "alternating"): "route spread coded coded combine" for x in CODED},
    (
        "mxfp4 fp8",
        "alternating",
    ): "route quantise_rows spread coded_by_row quantise_rows coded_by_row combine",
    **dict.fromkeys(
        ((x, "alternating") for x in BY_BLOCK),
        "route quantise_rows spread coded_by_block quantise_rows coded_by_block combine",
    ),
    **dict.fromkeys(((x, "alternating") for x in OF_8_BITS), "route spread octets octets combine"),
}


@pytest.mark.parametrize(("kind", "order"), LAUNCHES, ids=str)
def test_launches(kind, order, called):
    """Each by a function that makes one; GEMMs are told what rows an expert has in the mean, and how many have any."""
    ops.moe(**given(40, 4, kind, order), experts=50)
    assert " ".join(name for name, _ in called) == LAUNCHES[kind, order]
    assert expected(called) == {(4, EXPERTS)}  # of 160 copies, 50 experts
    assert sum("expected_rows" in of for _, of in called) == 2 + (order == "halves")


@pytest.mark.parametrize(
    ("tokens", "top", "experts", "told"),
    (
        (1, 4, EXPERTS, (1, 4)),
        (2, 2, EXPERTS, (1, 4)),
        (3, 4, EXPERTS, (2, EXPERTS)),
        (1, 3, 60, (1, 1)),  # of three experts a tenth of one
        (30, 1, 60, (1, 3)),
        (0, 2, EXPERTS, (1, 1)),
    ),
)
def test_of_few_tokens_few_experts_have_rows(tokens, top, experts, told, called):
    ops.moe(**given(tokens, top), experts=experts)
    assert expected(called) == {told}


def expected(called):
    """Rows of an expert that has any and experts that have any, as GEMMs are told."""
    return {(x["expected_rows"], x["expected_groups"]) for _, x in called if "expected_rows" in x}


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("epilogue", GATES)
def test_other_gates(epilogue, order, kind, called):
    of = given(kind=kind, order=order, epilogue=epilogue)
    assert distance(ops.moe(**of), layer(**of)) < BOUND[kind]
    asked = epilogue if order == "alternating" else gated_name(epilogue)
    assert [of["epilogue"] for _, of in called if "epilogue" in of] == [asked]


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("epilogue", GATES)
def test_biases(epilogue, order, kind):
    """Of both products, in the order of w1's rows; a copy that is nowhere has none."""
    of = given(kind=kind, order=order, epilogue=epilogue)
    of |= biases_of(EXPERTS, HIDDEN, INNER)
    of["chosen"][0, 0] = -1
    exact = layer(**of)
    assert distance(ops.moe(**of), exact) < BOUND[kind]
    for name in ("bias_w1", "bias_w2"):
        assert distance(layer(**of | {name: of[name] * 0}), exact) > 2 * BOUND[kind]


def test_rows_of_parents():
    of = given(kind="bf16")
    exact, plain = layer(**of), ops.moe(**of)
    for name in ("x", "w1", "w2", "weights", "chosen"):
        parent = of[name].new_ones((*of[name].shape[:-1], of[name].shape[-1] + 8))
        of[name] = parent[..., : of[name].shape[-1]].copy_(of[name])
    assert torch.equal(ops.moe(**of), plain) and distance(plain, exact) < BOUND["bf16"]


OF_BIASES = (
    ("bias_w1 dtype", lambda of: {"bias_w1": of["bias_w1"].to(BF16)}),
    ("bias_w1 shape", lambda of: {"bias_w1": of["bias_w1"][:, 1:]}),
    ("bias_w2 shape", lambda of: {"bias_w2": of["bias_w2"][:, 1:]}),
    ("bias_w2 strides", lambda of: {"bias_w2": of["bias_w2"].mT.contiguous().mT}),
)


def _with_bias(change, of):
    biases = biases_of(EXPERTS, HIDDEN, INNER)
    return biases | change(biases)


REFUSED = (
    ("x", lambda of: {"x": [[1.0]]}),
    ("x dtype", lambda of: {"x": of["x"].float()}),
    ("x shape", lambda of: {"x": of["x"][0]}),
    ("x shape", lambda of: {"x": of["x"][:, :249]}),
    ("w1 dtype", lambda of: {"w1": of["w1"].view(torch.int8)}),
    ("scale_w1", lambda of: {"scale_w1": None}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, 1:]}),
    ("w1 shape", lambda of: {"w1": of["w1"][..., :128]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:0], "w2": of["w2"][:0]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :64], "order": "halves"}),
    ("w1 last stride", lambda of: {"w1": of["w1"].mT.contiguous().mT}),
    ("w1", lambda of: {"w1": shifted(of["w1"])}),
    ("w2 dtype", lambda of: {"w2": of["w2"].to(BF16)}),
    ("w2 shape", lambda of: {"w2": of["w2"][:5]}),
    ("scale_w1 dtype", lambda of: {"scale_w1": of["scale_w1"].double()}),
    ("scale_w1 shape", lambda of: {"scale_w1": of["scale_w1"][:, :1]}),
    ("scale_w2", lambda of: {"scale_w2": None}),
    ("scale_w2 shape", lambda of: {"scale_w2": of["scale_w2"][:, :1]}),
    ("scale_w1", lambda of: {"scale_w1": None, **weights_of(6, HIDDEN, INNER, kind="bf16")}),
    ("chosen dtype", lambda of: {"chosen": of["chosen"].float()}),
    ("chosen shape", lambda of: {"chosen": of["chosen"][0]}),
    ("chosen shape", lambda of: {"chosen": of["chosen"][1:], "weights": of["weights"][1:]}),
    ("weights dtype", lambda of: {"weights": of["weights"].double()}),
    ("weights shape", lambda of: {"weights": of["weights"][:, 1:]}),
    ("weights", lambda of: {"weights": of["weights"].clone().requires_grad_()}),
    (
        "bias_w1",
        partial(
            lambda of, biases: biases | {"bias_w1": biases["bias_w1"].requires_grad_()},
            biases=biases_of(EXPERTS, HIDDEN, INNER),
        ),
    ),
    ("scale_w1", lambda of: {"scale_w1": of["scale_w1"].clone().requires_grad_()}),
    ("x", lambda of: {"x": of["x"].clone().requires_grad_()}),
    ("add dtype", lambda of: {"add": of["x"].float()}),
    ("add shape", lambda of: {"add": of["x"][1:]}),
    ("order", lambda of: {"order": "gate first"}),
    ("epilogue", lambda of: {"epilogue": "silu"}),
    ("epilogue", lambda of: {"epilogue": "gated", "order": "halves"}),
    ("bias_w1", lambda of: {"bias_w2": torch.ones(EXPERTS, HIDDEN)}),
    ("bias_w2", lambda of: {"bias_w1": torch.ones(EXPERTS, 2 * INNER)}),
    *((named, partial(_with_bias, change)) for named, change in OF_BIASES),
    ("experts", lambda of: {"experts": EXPERTS - 1}),
    ("experts", lambda of: {"experts": EXPERTS, "first": 1}),
    ("first", lambda of: {"first": -1}),
    ("first", lambda of: {"first": "0"}),
)


OF_ROWS = (
    ("w1 dtype", lambda of: {"w1": of["w1"].to(BF16)}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, 1:]}),
    ("w2 dtype", lambda of: {"w2": of["w2"].to(BF16)}),
    ("scale_w1 dtype", lambda of: {"scale_w1": of["scale_w1"].double()}),
    ("scale_w1 shape", lambda of: {"scale_w1": of["scale_w1"][:, 1:]}),
    ("scale_w1 strides", lambda of: {"scale_w1": of["scale_w1"].mT.contiguous().mT}),
    ("scale_w2", lambda of: {"scale_w2": None}),
    ("scale_w2 shape", lambda of: {"scale_w2": torch.ones(EXPERTS, 2, 1)}),
    ("scale_w2 strides", lambda of: {"scale_w2": of["scale_w2"].mT.contiguous().mT}),
)


@pytest.mark.parametrize(("named", "change"), OF_ROWS, ids=[x for x, _ in OF_ROWS])
@pytest.mark.parametrize("kind", BY_ROW)
def test_errors_of_scales_of_rows(kind, named, change, called):
    of = given(kind=kind)
    with pytest.raises(ArgumentError) as e:
        ops.moe(**of | change(of))
    assert e.value.argument == named and not called


OF_PACKED = (
    ("packed", lambda of: {"packed": "int4"}),
    ("packed", lambda of: {"packed": 4}),
    ("packed", lambda of: {"packed": "int4_64_f16", "activations": "e4m3"}),
    ("activations", lambda of: {"activations": "bf16"}),
    ("activations", lambda of: {"packed": None, "activations": "e4m3"}),
    ("order", lambda of: {"order": "halves"}),
    ("x dtype", lambda of: {"x": of["x"].float()}),
    ("x dtype", lambda of: {"x": of["x"].half(), "add": None}),
    ("x shape", lambda of: {"x": of["x"][:, :250]}),
    ("w1 dtype", lambda of: {"w1": of["w1"].view(torch.int8)}),
    ("w1 shape", lambda of: {"w1": of["w1"].flatten(2)}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :, :1]}),
    ("w1 shape", lambda of: {"w1": of["w1"][..., 1:]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:0], "w2": of["w2"][:0]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :0]}),
    ("w1 strides", lambda of: {"w1": of["w1"].mT.contiguous().mT}),
    ("w1", lambda of: {"w1": shifted(of["w1"]).view(torch.uint8)}),
    ("w2 dtype", lambda of: {"w2": of["w2"].view(FP8)}),
    ("w2 shape", lambda of: {"w2": of["w2"][:5]}),
    ("w2 shape", lambda of: {"w2": of["w2"][:, 1:]}),
    ("w2 strides", lambda of: {"w2": of["w2"].transpose(0, 1).contiguous().transpose(0, 1)}),
    ("add dtype", lambda of: {"add": of["x"].half()}),
    ("bias_w1 shape", lambda of: {f"bias_w{i}": torch.ones(EXPERTS, HIDDEN - i) for i in (1, 2)}),
    ("bias_w2", lambda of: {"bias_w1": torch.ones(EXPERTS, 2 * INNER)}),
)


@pytest.mark.parametrize(("named", "change"), OF_PACKED, ids=[x for x, _ in OF_PACKED])
def test_errors_of_packed_weights(named, change, called):
    of = given(kind="mxfp4")
    with pytest.raises(ArgumentError) as e:
        ops.moe(**of | change(of))
    assert e.value.argument == named and not called


def test_errors_of_factors(called):
    """Of weights that have some, and none of others."""
    of, other = given(kind="nvfp4"), given(kind="mxfp4")
    factors = {n: of[n] for n in ("scale_w1", "scale_w2")}
    for base, changed, named in (
        (of, {"scale_w1": None, "scale_w2": None}, "scale_w1"),
        (of, {"scale_w2": None}, "scale_w2"),
        (of, {"scale_w2": of["scale_w2"].double()}, "scale_w2 dtype"),
        (of, {"scale_w2": of["scale_w2"][:, 1:]}, "scale_w2 shape"),
        (of, {"scale_w1": of["scale_w1"].mT.contiguous().mT}, "scale_w1 strides"),
        (other, factors, "scale_w1"),
    ):
        with pytest.raises(ArgumentError) as e:
            ops.moe(**base | changed)
        assert e.value.argument == named and not called


def test_groups_divide_what_is_between_the_gemms(called):
    form = formats.int4(32, "bf16")
    w = packed(drawn(2, 192, 128), drawn(2, 128, 96), form, BF16)
    of = {"x": drawn(3, 128), **w, **choices(3, 1, 2)}
    assert distance(ops.moe(**of), layer(**of)) < BOUND["int4"]
    called.clear()
    with pytest.raises(ArgumentError) as e:
        ops.moe(**of | {"packed": "int4_64_bf16", **{n: of[n][..., :4352] for n in ("w1", "w2")}})
    assert e.value.argument == "w1 shape" and "96" in str(e.value) and not called


def test_integers_have_scales_of_rows_and_sums_that_fit(called):
    of = given(kind="int8")
    blocks = {f"scale_{n}": given()[f"scale_{n}"] for n in ("w1", "w2")}
    mixed = {"w1": of["w1"], "w2": given(kind="fp8 rows")["w2"]}
    k = 131088
    long = {"x": drawn(2, k), "w1": torch.zeros(1, 2, k).char(), "w2": torch.zeros(1, k, 1).char()}
    long |= {"scale_w1": torch.ones(1, 2), "scale_w2": torch.ones(1, k), **choices(2, 1, 1)}
    for named, changes in (("w1 dtype", blocks), ("w2 dtype", mixed), ("w1 shape", long)):
        with pytest.raises(ArgumentError) as e:
            ops.moe(**of | changes)
        assert e.value.argument == named and not called


def shifted(w):
    """8 bytes beyond a multiple of 16."""
    flat = torch.zeros(w.numel() + 16, dtype=torch.uint8).view(FP8)
    start = (8 - flat.data_ptr()) % 16
    return flat[start:][: w.numel()].view(w.shape)


@pytest.mark.parametrize(("named", "change"), REFUSED, ids=[x for x, _ in REFUSED])
def test_errors(named, change, called):
    of = given()
    with pytest.raises(ArgumentError) as e:
        ops.moe(**of | change(of))
    assert e.value.argument == named and not called


# ---- the operator ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator(kind):
    of = given(kind=kind)
    run, y = torch.ops.gemmgen.moe, ops.moe(**of)
    assert torch.equal(run(**of), y)
    compiled = torch.compile(lambda **of: run(**of) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**of), y + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fake(kind):
    of = given(kind=kind)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        of = {n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for n, x in of.items()}
        y = torch.ops.gemmgen.moe(**of)
        assert (tuple(y.shape), y.dtype) == ((40, HIDDEN), of["x"].dtype)
        with pytest.raises(ArgumentError):
            torch.ops.gemmgen.moe(**of | {"experts": 2})
