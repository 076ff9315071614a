"""Products with FP32 weights and sums of squares of torch tensors, emulated, by our names and DeepGEMM's."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import (  # noqa: E402
    Memory,
    checked,
    computing_on_cpu,
    emulated,
    real_torch,  # noqa: F401
)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import Config, Problem, ops  # noqa: E402
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.compat.deep_gemm import prenorm as deep_gemms  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ops import building  # noqa: E402
from gemmgen.ops import pairing as ops_pairing  # noqa: E402
from gemmgen.torch_ops import prenorm as operators  # noqa: E402

pytestmark = pytest.mark.nvrtc
OPERATORS = torch.ops.gemmgen
CONFIG = Config(block_m=64, consumers=1, stages=3, block_n=32, split_k=2)


def drawn(rows, columns, depth):
    return torch.randn(rows, depth).bfloat16(), torch.randn(columns, depth)


@pytest.fixture
def computed_on_cpu(real_torch):  # noqa: F811
    with computing_on_cpu():
        yield


def close(got, a, w, lost=2.0**-17):
    """a @ w.mT: each weight has lost so much of itself at most, each addition in FP32 two units in the last place."""
    a, w = a.double(), w.double()
    bound = (lost + a.shape[-1] * 2.0**-22) * (a.abs() @ w.abs().mT)
    assert ((got.double() - a @ w.mT).abs() <= bound).all()


def squared(got, a):
    """The sums of squares of a's rows: each addition has one rounding."""
    want = a.double().square().sum(-1)
    assert ((got.double() - want).abs() <= a.shape[-1] * 2.0**-24 * want).all()


def on(monkeypatch, *tensors):
    memory = Memory(*tensors)
    building.given.cache_clear()
    emulated(monkeypatch, memory)
    monkeypatch.setattr(deep_gemms, "check_tensor", checked)
    return memory


# ---- pairs --------------------------------------------------------------------------------


@pytest.mark.parametrize("tf32", (False, True))
@pytest.mark.parametrize("squares", (False, True))
@pytest.mark.parametrize("depth", (1, 64, 75, 136))
def test_the_kernel_writes_what_torch_does(depth, squares, tf32, monkeypatch):
    """Of any bits, from rows that are padded; rows of the result begin at multiples of 16 bytes."""
    wide = torch.randint(-(2**31), 2**31, (5, depth + 4), dtype=torch.int32).view(torch.float32)
    weights = wide[:, :depth]
    memory = on(monkeypatch, wide)
    with memory:
        found = ops.paired(weights, squares=squares, tf32=tf32)
    want = ops_pairing.by_torch(weights, squares, tf32)
    assert len(memory.launched) == 1 and found.stride(0) % 8 == 0
    assert found.shape == want.shape == (10 + 2 * squares, depth)
    assert torch.equal(found.isnan(), want.isnan())
    assert torch.equal(found.nan_to_num(7), want.nan_to_num(7))


def test_pairs_multiply_by_fp32_weights(monkeypatch):
    """A router: no epilogue of FP32 weights in BF16 comes so near."""
    a, w = drawn(7, 16, 256)
    memory = on(monkeypatch, a, w)
    with memory:
        got = ops.gemm(a, ops.paired(w), epilogue="pair_sum", out_dtype="f32")
    close(got, a, w)
    want = a.double() @ w.double().T
    assert (got.double() - want).abs().max() * 50 < (
        a.double() @ w.bfloat16().double().T - want
    ).abs().max()


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("weights dtype", {"weights": torch.zeros(4, 8).bfloat16()}),
        ("weights shape", {"weights": torch.zeros(8)}),
        ("weights", {"weights": [1.0]}),
        ("weights", {"weights": torch.zeros(4, 8, requires_grad=True)}),
        ("squares", {"weights": torch.zeros(4, 8), "squares": 1}),
        ("tf32", {"weights": torch.zeros(4, 8), "tf32": None}),
    ],
    ids=("dtype", "shape", "a list", "a gradient", "squares", "tf32"),
)
def test_what_is_no_weight_is_refused(argument, given):
    with pytest.raises(ArgumentError) as e:
        ops.paired(**given)
    assert e.value.argument == argument


# ---- products and squares -----------------------------------------------------------------


@pytest.mark.parametrize("config", (None, CONFIG), ids=("chosen", "given"))
@pytest.mark.parametrize("rows", (1, 70))
def test_prenorm(rows, config, monkeypatch):
    a, w = drawn(rows, 24, 200)
    memory = on(monkeypatch, a, w)
    with memory:
        pairs = ops.paired(w, squares=True)
        d, squares = ops.prenorm_gemm(a, pairs, config=config)
    close(d, a, w)
    assert d.shape == (rows, 24) and squares.shape == (rows,)
    squared(squares, a)


def test_outputs_of_ones_own(monkeypatch):
    """In wider tensors: of several products, whose rows' sums lie apart."""
    a, w = drawn(2 * 9, 8, 136)
    a, w = a.view(2, 9, 136), torch.randn(2, 8, 136)
    out, squares = torch.full((2, 10, 12), 7.0), torch.full((2, 9, 3), 7.0)
    memory = on(monkeypatch, a, w, out, squares)
    with memory:
        pairs = torch.stack([ops.paired(x, squares=True) for x in w])
        found = ops.prenorm_gemm(a, pairs, out[:, :9, :8], squares[:, :, 1])
    assert found[0].data_ptr() == out.data_ptr()
    close(out[:, :9, :8], a, w)
    squared(squares[:, :, 1], a)
    assert (out[:, 9] == 7).all() and (out[:, :, 8:] == 7).all()
    assert (squares[:, :, [0, 2]] == 7).all()


def test_both_in_one_tensor(monkeypatch):
    """Squares as a column behind D's; in one of D's they are refused."""
    a, w = drawn(9, 8, 136)
    both = torch.full((9, 12), 7.0)
    memory = on(monkeypatch, a, w, both)
    with memory:
        pairs = ops.paired(w, squares=True)
        ops.prenorm_gemm(a, pairs, both[:, :8], both[:, 8])
        for column in (both[:, 7], both[:, 0], both.view(-1)[8:17]):
            with pytest.raises(ArgumentError, match=r"^squares"):
                ops.prenorm_gemm(a, pairs, both[:, :8], column)
    close(both[:, :8], a, w)
    squared(both[:, 8], a)
    assert (both[:, 9:] == 7).all()


def test_a_bound_launch(monkeypatch):
    """Over other tensors, too, of its outputs both."""
    a, w = drawn(9, 8, 136)
    other, out, squares = torch.randn(9, 136).bfloat16(), torch.zeros(9, 8), torch.zeros(9)
    memory = on(monkeypatch, a, w, other, out, squares)
    with memory:
        pairs = ops.paired(w, squares=True)
        launch = ops.bind(ops.prenorm_gemm, a, pairs)
        monkeypatch.setattr(type(launch.kernel), "moved", moved, raising=False)
        d, sums = launch()
        close(d, a, w)
        squared(sums, a)
        again = launch.rebind(a=other, out=out, squares=squares)
        with pytest.raises(ArgumentError, match=r"^squares"):
            launch.rebind(squares=d.view(-1)[:9])
    assert again.result[0] is out and again.result[1] is squares
    assert again.plan == {"a": other.data_ptr(), "d": out.data_ptr(), "squares": squares.data_ptr()}


def moved(self, plan, addresses, stream):
    """What a launch is moved to, in its place."""
    return {name: at for name, at in addresses.items() if not name.startswith("arg_")}


def test_no_rows(monkeypatch):
    memory = on(monkeypatch)
    with memory:
        pairs = ops.paired(torch.zeros(4, 8), squares=True)
        d, squares = ops.prenorm_gemm(torch.zeros(0, 8).bfloat16(), pairs)
    assert d.shape == (0, 4) and squares.shape == (0,)


@pytest.mark.parametrize("rows", (0, 8, 12, 28, 52))
def test_pairs_without_a_pair_of_zeros_are_refused(rows):
    with pytest.raises(ArgumentError, match=f"^pairs rows={rows}: "):
        ops.prenorm_gemm(torch.zeros(3, 8).bfloat16(), torch.zeros(rows, 8).bfloat16())


def test_a_problem_of_ones_own(monkeypatch):
    """By `multiply`: rows of B as they are, a last one of zeros."""
    a, b = torch.randint(-3, 4, (9, 72)).bfloat16(), torch.randint(-3, 4, (5, 72)).bfloat16()
    b[4] = 0
    p = Problem(family="dense", a="bf16", b="bf16", d="f32", squares=True)
    memory = on(monkeypatch, a, b)
    with memory:
        d, squares = ops.multiply(p, a, b)
    assert torch.equal(d, a.float() @ b[:4].float().T)
    assert torch.equal(squares, a.float().square().sum(1))
    plain = Problem(family="dense", a="bf16", b="bf16", d="f32")
    with pytest.raises(ArgumentError, match=r"^squares="), memory:
        ops.multiply(plain, a, b, squares=squares)


# ---- as operators of torch ----------------------------------------------------------------


def test_operators_are_those_functions(monkeypatch):
    a, w = drawn(9, 8, 136)
    memory = on(monkeypatch, a, w)
    with memory:
        want = ops.prenorm_gemm(a, ops.paired(w, squares=True), config=CONFIG)
        # As the dispatcher calls them: what it allocates no memory of ours would have.
        pairs = ops.paired(w, squares=True)
        found = operators._implementation(a, pairs, config=json.dumps(CONFIG.to_json()))
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))


@pytest.mark.parametrize("lead", ((), (3,)))
def test_they_are_computed_on_the_cpu(lead, computed_on_cpu):
    a, w = torch.randn(*lead, 9, 72).bfloat16(), torch.randn(8, 72)
    pairs = OPERATORS.paired(w, squares=True).expand(*lead, 18, 72)
    d, squares = OPERATORS.prenorm_gemm(a, pairs)
    close(d, a, w)
    squared(squares, a)
    with FakeTensorMode() as mode:
        fakes = OPERATORS.prenorm_gemm(*(mode.from_tensor(x) for x in (a, pairs)))
    assert [(x.shape, x.stride(), x.dtype) for x in fakes] == [
        (x.shape, x.stride(), x.dtype) for x in (d, squares)
    ]
    assert flop_registry[OPERATORS.prenorm_gemm](a, pairs, out_val=d) == 2 * a.numel() * 17


def test_they_are_traced(computed_on_cpu):
    def layer(a, w):
        d, squares = OPERATORS.prenorm_gemm(a, OPERATORS.paired(w, squares=True))
        return d * torch.rsqrt(squares / a.shape[1] + 1e-6)[:, None]

    a, w = drawn(9, 8, 72)
    found = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")(a, w)
    assert torch.equal(found, layer(a, w))


@pytest.mark.parametrize("rows", (8, 12))
def test_fakes_refuse_as_they_do(rows):
    with FakeTensorMode(), pytest.raises(ArgumentError, match=r"^pairs rows="):
        OPERATORS.prenorm_gemm(torch.empty(3, 8).bfloat16(), torch.empty(rows, 8).bfloat16())


# ---- by DeepGEMM's name -------------------------------------------------------------------


@pytest.mark.parametrize("splits", (None, 1, 4, 5))
def test_as_deep_gemm(splits, monkeypatch):
    """Of weights rounded to TF32; 136 is no multiple of 5 times 8, nor of 4 times."""
    for depth in (128, 136):
        a, b = drawn(21, 8, depth)
        lead = () if splits is None else (splits,)
        d, sums = torch.full((*lead, 21, 8), 7.0), torch.full((*lead, 21), 7.0)
        memory = on(monkeypatch, a, b, d, sums)
        with memory:
            assert deep_gemm.tf32_hc_prenorm_gemm(a, b, d, sums, num_splits=splits) is None
        # TF32 as its pairs have it, exactly
        pairs = ops_pairing.by_torch(b, False, True).double()
        tf32 = pairs[0::2] + pairs[1::2]
        got, of_rows = (d, sums) if splits is None else (d.sum(0), sums.sum(0))
        close(got, a, tf32, lost=0)
        squared(of_rows, a)
        if splits not in (None, 1) and depth % (8 * splits) == 0:
            second = slice(depth // splits, 2 * (depth // splits))
            close(d[1], a[:, second], tf32[:, second], lost=0)
            squared(sums[1], a[:, second])


@pytest.mark.parametrize("splits", (0, -1, True, 1.5))
def test_splits_that_are_no_number_are_refused(splits, monkeypatch):
    monkeypatch.setattr(deep_gemms, "check_tensor", checked)
    a, b = drawn(3, 8, 64)
    with pytest.raises(ArgumentError, match=r"^num_splits="):
        deep_gemm.tf32_hc_prenorm_gemm(a, b, torch.zeros(3, 8), torch.zeros(3), splits)
