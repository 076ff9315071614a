"""`ops.combine` and `torch.ops.gemmgen.combine`: what they give the generated kernel, emulated over torch tensors of
the CPU, against the torch code and a sum in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_plain import STREAM, Recorded, emulated, route  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import ops  # noqa: E402
from gemmgen.combining import source  # noqa: E402
from gemmgen.errors import ArgumentError, RuntimeUnavailable  # noqa: E402
from gemmgen.ops import combining  # noqa: E402
from gemmgen.runtime import torch_tensors  # noqa: E402

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
REGISTERED = torch.ops.gemmgen.combine
BITS = {2: torch.int16, 4: torch.int32}


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)
    torch._dynamo.reset()


def sizes(c, v):
    """Bytes that the kernel may touch."""
    of = {"y": (v["rows"], v["columns"], c.y.bytes), "slots": (v["tokens"], v["top"], 4)}
    of |= {"weights": (v["tokens"], v["top"], c.weights.bytes)}
    of |= {"add": (v["tokens"], v["columns"], c.y.bytes)} if v["add"] else {}
    found = {n: ((h - 1) * v[f"{n}_stride"] + w) * size for n, (h, w, size) in of.items() if h * w}
    return found | {"out": v["tokens"] * v["columns"] * c.y.bytes}


@pytest.fixture
def launches(monkeypatch):
    return route(monkeypatch, combining, Recorded)


@pytest.fixture
def on_emulator(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    return route(monkeypatch, combining, emulated(source, sizes, ("out",)))


def drawn(tokens=9, top=3, hidden=40, dtype=torch.bfloat16, weights=torch.float32, add=False):
    """Copies in rows of their own, one of them missing; all other rows are NaN."""
    rows = tokens * top + 6
    slots = torch.randperm(rows)[: tokens * top].view(tokens, top).int()
    if slots.numel():
        slots[tokens // 2, top // 2] = -1
    y = torch.full((rows, hidden), float("nan")).to(dtype)
    used = slots[slots >= 0].long()
    y[used] = torch.randn(len(used), hidden).to(dtype)
    given = {"y": y, "slots": slots, "weights": torch.randn(tokens, top).to(weights)}
    return given | ({"add": torch.randn(tokens, hidden).to(dtype)} if add else {})


def exact(y, slots, weights, add=None):
    """In float64."""
    copies = torch.where((slots >= 0).unsqueeze(-1), y[slots.clamp(min=0).long()].double(), 0.0)
    sums = (copies * weights.double().unsqueeze(-1)).sum(1)
    return sums if add is None else sums + add.double()


def same(one, other):
    assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    assert torch.equal(one.view(BITS[one.itemsize]), other.view(BITS[one.itemsize]))


# ---- what it computes ---------------------------------------------------------------------


@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums(dtype, add):
    given = drawn(dtype=dtype, add=add)
    found, wanted = ops.combine(**given), exact(**given)
    allowed = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}[dtype]
    assert found.dtype == dtype and found.shape == wanted.shape
    assert ((found - wanted).abs() <= allowed * (wanted.abs() + 1)).all()


@pytest.mark.nvrtc
@pytest.mark.parametrize("hidden", (40, 7))
@pytest.mark.parametrize("weights", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_gives_the_same_bits(on_emulator, dtype, weights, hidden):
    for tokens, top, add in ((9, 3, True), (1, 1, False), (21, 9, True), (3, 8, False)):
        given = drawn(tokens, top, hidden, dtype, weights, add)
        found = ops.combine(**given)
        same(found, combining.by_torch(**{"add": None} | given))
        same(found, REGISTERED(**given))
    assert len(on_emulator) == 8
    assert {x.kernel.aligned for x in on_emulator} == {hidden == 40}
    assert [x.kernel.at_once for x in on_emulator] == [3, 3, 1, 1, 5, 5, 8, 8]


LAYOUTS = {
    "part of wider matrices": lambda x: torch.cat((x, x, x), -1)[:, x.shape[1] : 2 * x.shape[1]],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "from an odd address": lambda x: torch.cat((x[:, :1], x), -1)[:, 1:],
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}
COPIED = ("transposed", "every other column")


@pytest.mark.nvrtc
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(on_emulator, layout):
    """Read in place where rows are contiguous; else one copy is."""
    plain = drawn(add=True)
    given = {name: LAYOUTS[layout](x) for name, x in plain.items()}
    found = ops.combine(**given)
    same(found, combining.by_torch(**plain))
    same(found, combining.by_torch(**given))
    (launched,) = on_emulator
    for name, x in given.items():
        assert (launched.values[name] != x.data_ptr()) == (layout in COPIED)
    assert launched.kernel.aligned == (layout != "from an odd address")


def test_one_row_added_to_all_tokens():
    given = drawn()
    row = torch.randn(1, 40).bfloat16()
    same(ops.combine(**given, add=row.expand(9, 40)), ops.combine(**given, add=row.repeat(9, 1)))


@pytest.mark.nvrtc
def test_one_row_added_to_all_tokens_by_the_kernel(on_emulator):
    given, row = drawn(), torch.randn(1, 40).bfloat16()
    found = ops.combine(**given, add=row.expand(9, 40))
    same(found, combining.by_torch(**given, add=row.repeat(9, 1)))
    assert on_emulator[0].values["add_stride"] == 0


def test_what_is_launched(launches):
    given = drawn(16, 6, 64, add=True)
    out = ops.combine(**given)
    (found,) = launches
    sizes = {"rows": 102, "tokens": 16, "top": 6, "columns": 64, "y_stride": 64, "add_stride": 64}
    sizes |= {"slots_stride": 6, "weights_stride": 6}
    assert {name: found.values[name] for name in sizes} == sizes
    assert found.values["out"] == out.data_ptr() and out.is_contiguous()
    assert found.values["add"] == given["add"].data_ptr()
    assert (found.tiles, found.stream, found.kernel.at_once) == (1, STREAM, 6)


@pytest.mark.nvrtc
@pytest.mark.parametrize(("tokens", "top"), ((4, 0), (0, 3), (0, 0)))
@pytest.mark.parametrize("add", (False, True))
def test_nothing_to_add_up(on_emulator, tokens, top, add):
    given = drawn(tokens, top, add=add)
    found = ops.combine(**given)
    same(found, combining.by_torch(**{"add": None} | given))
    same(found, given["add"] if add else torch.zeros(tokens, 40).bfloat16())
    assert len(on_emulator) == bool(tokens)


@pytest.mark.parametrize("way", (combining.by_torch, combining.combined))
def test_no_rows_and_no_columns(launches, way):
    slots, weights = torch.zeros(3, 2).int(), torch.ones(3, 2)
    assert way(torch.empty(5, 0), slots, weights, None).shape == (3, 0) and not launches
    found = combining.by_torch(torch.empty(0, 4), slots, weights, None)
    assert torch.equal(found, torch.zeros(3, 4))


def test_more_than_a_launch_counts(launches):
    """Of meta tensors: nothing is allocated."""
    y = torch.empty(1, device="meta").expand(1, 1 << 20)
    slots = torch.empty(1, device="meta").int().expand(1 << 14, 1)
    with pytest.raises(ArgumentError, match="at most 2147483647 times 4 elements") as e:
        ops.combine(y, slots, slots.float())
    assert e.value.argument == "slots shape" and not launches


def test_nothing_slower_takes_the_place_of_the_kernel(monkeypatch):
    def missing(*_):
        raise RuntimeUnavailable("no NVRTC")

    route(monkeypatch, combining, Recorded)
    monkeypatch.setattr(combining, "loaded", missing)
    with pytest.raises(RuntimeUnavailable):
        ops.combine(**drawn())


# ---- errors -------------------------------------------------------------------------------


REFUSED = (
    ({"y": [[1.0]]}, "y"),
    ({"add": 1.0}, "add"),
    ({"y": torch.zeros(33, 40).double()}, "y dtype"),
    ({"slots": torch.zeros(9, 3).long()}, "slots dtype"),
    ({"weights": torch.zeros(9, 3).int()}, "weights dtype"),
    ({"add": torch.zeros(9, 40)}, "add dtype"),
    ({"y": torch.zeros(40).bfloat16()}, "y shape"),
    ({"slots": torch.zeros(27).int()}, "slots shape"),
    ({"weights": torch.zeros(9, 2)}, "weights shape"),
    ({"weights": torch.zeros(27)}, "weights shape"),
    ({"add": torch.zeros(8, 40).bfloat16()}, "add shape"),
    ({"add": torch.zeros(9, 48).bfloat16()}, "add shape"),
    ({"slots": torch.zeros(9, 3, device="meta").int()}, "slots device"),
    ({"add": torch.zeros(9, 40, device="meta").bfloat16()}, "add device"),
)


@pytest.mark.parametrize(("change", "argument"), REFUSED)
def test_what_is_refused(launches, change, argument):
    ways = (ops.combine,) if argument in ("y", "add") else (ops.combine, REGISTERED)
    for way in ways:
        with pytest.raises(ArgumentError) as e:
            way(**drawn(add=True) | change)
        assert e.value.argument == argument and not launches


@pytest.mark.parametrize(("change", "argument"), REFUSED[2:-2])
def test_fakes_refuse_the_same(change, argument):
    given = drawn(add=True) | change
    with FakeTensorMode() as mode, pytest.raises(ArgumentError) as e:
        REGISTERED(**{name: mode.from_tensor(x) for name, x in given.items()})
    assert e.value.argument == argument


@pytest.mark.parametrize("name", ("y", "weights", "add"))
def test_gradients_are_the_operators(name):
    given = drawn(add=True)
    given[name].requires_grad_()
    with pytest.raises(ArgumentError, match="combine has gradients") as e:
        ops.combine(**given)
    assert e.value.argument == name
    with torch.no_grad():
        found = ops.combine(**given)
    assert torch.equal(found, REGISTERED(**given).detach())


# ---- the operator -------------------------------------------------------------------------


@pytest.mark.parametrize("add", (False, True))
def test_opcheck(add):
    given = drawn(dtype=torch.float32, add=add)
    given["y"] = given["y"].nan_to_num()
    for name in given.keys() - {"slots"}:
        given[name].requires_grad_()
    torch.library.opcheck(REGISTERED.default, (), given)


def test_gradients():
    """Those of torch's own operators over copies that are there; a row without a copy has 0, whatever it holds."""
    given = drawn(dtype=torch.float32, add=True)
    names = ("y", "weights", "add")
    wide = {n: x.double().requires_grad_() if n in names else x for n, x in given.items()}
    for name in names:
        given[name].requires_grad_()
    dout = torch.randn(9, 40)
    found = torch.autograd.grad(REGISTERED(**given), [given[n] for n in names], dout)
    named = given["slots"] >= 0
    copies = wide["y"][given["slots"][named].long()] * wide["weights"][named].unsqueeze(1)
    sums = wide["add"].index_add(0, named.nonzero()[:, 0], copies)
    exact = torch.autograd.grad(sums, [wide[n] for n in names], dout.double())
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32 and torch.allclose(one.double(), other, atol=1e-5)


def test_a_row_of_several_copies_has_their_sum():
    y = torch.ones(2, 8, requires_grad=True)
    slots = torch.tensor([[0, 0], [0, 1]]).int()
    REGISTERED(y, slots, torch.tensor([[1.0, 2.0], [4.0, 8.0]])).sum().backward()
    assert torch.equal(y.grad, torch.tensor([[7.0], [8.0]]).expand(2, 8))


@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled_whole(dynamic):
    def layer(y, slots, weights, add):
        return REGISTERED(y * 2, slots, weights, add=add) + 1

    given = drawn(add=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    same(compiled(**given), layer(**given))
    traced = torch.compile(ops.combine, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    same(traced(**given), ops.combine(**given))


def test_compiled_gradients():
    def loss(y, slots, weights):
        return REGISTERED(y, slots, weights).square().sum()

    given = drawn(dtype=torch.float32)
    given["weights"].requires_grad_()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, wanted = (torch.autograd.grad(f(**given), given["weights"])[0] for f in (compiled, loss))
    assert torch.equal(found, wanted)
