"""`ops.route`: torch code on the CPU, what is launched on a GPU, by the emulator, and `torch.ops.gemmgen.route`."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")

from route_reference import reference  # noqa: E402

from gemmgen import ops  # noqa: E402
from gemmgen.emulator import GlobalMemory, launch, load  # noqa: E402
from gemmgen.errors import ArgumentError, RuntimeUnavailable  # noqa: E402
from gemmgen.ops import routing  # noqa: E402
from gemmgen.routing import source  # noqa: E402
from gemmgen.runtime import torch_tensors  # noqa: E402
from gemmgen.torch_ops import LIBRARY  # noqa: E402, F401

STREAM = 7
REGISTERED = torch.ops.gemmgen
KINDS = (torch.int32, torch.int64)


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)


class Recorded:
    """A loaded routing that is not launched."""

    made: list[Recorded]  # by the fixture

    def __init__(self, routing, device):
        self.routing = routing
        self.made.append(self)

    def launch(self, values, tiles, stream):
        self.values, self.tiles, self.stream = values, tiles, stream


class Emulated(Recorded):
    """One that the emulator runs over the host's memory."""

    def launch(self, values, tiles, stream):
        from gemmgen.runtime.nvrtc import compile_ptx

        super().launch(values, tiles, stream)
        tokens = values["n"] // values["top"]
        ids = (tokens - 1) * values["pitch"] + values["top"]
        sizes = {"chosen": self.routing.bits // 8 * ids, "slots": 4 * values["n"]}
        sizes |= {"copies": 4 * values["rows"], "ends": 4 * values["local"]}
        memory = GlobalMemory()
        for name, size in sizes.items():
            memory.map(values[name], ctypes.string_at(values[name], size))
        name = self.routing.name
        launch(
            load(compile_ptx(source(self.routing), name)).entries[name],
            grid=tiles,
            block=self.routing.threads,
            shared_bytes=0,
            params=[values[p.name] for p in self.routing.params],
            memory=memory,
        )
        for result in ("slots", "copies", "ends"):
            at = values[result]
            ctypes.memmove(at, memory.read(at, sizes[result]).tobytes(), sizes[result])


def on_gpu(monkeypatch, loaded):
    """Tensors of the CPU go the way of CUDA tensors."""
    loaded.made = []
    monkeypatch.setattr(routing, "generated", lambda x: True)
    monkeypatch.setattr(routing, "loaded", loaded)
    monkeypatch.setattr(routing, "current_stream", lambda device: STREAM)
    return loaded.made


@pytest.fixture
def launches(monkeypatch):
    return on_gpu(monkeypatch, Recorded)


@pytest.fixture
def emulated(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    return on_gpu(monkeypatch, Emulated)


def drawn(tokens, top, experts, dtype=torch.int64):
    """Ids, a few of them of no expert."""
    return torch.randint(-1, experts + 1, (tokens, top)).to(dtype)


def same(routes, chosen, first, local, alignment):
    """Integers and shapes as NumPy has them, contiguous."""
    want = [torch.from_numpy(x) for x in reference(chosen.numpy(), first, local, alignment)]
    for got, x in zip((routes.slots, routes.copies, routes.ends), want, strict=True):
        assert got.dtype == torch.int32 and got.is_contiguous() and torch.equal(got, x)
    assert routes.rows == len(routes.copies) and type(routes.rows) is int


CASES = (
    (1, 1, 1, 0, None, 128),
    (5, 2, 3, 0, None, 1),
    (300, 8, 64, 0, None, 128),
    (300, 8, 64, 16, 8, 128),
    (40, 3, 512, 0, None, 8),
    (40, 3, 2000, 1500, None, 64),
    (100, 1, 8, 7, None, 100),
    (0, 4, 8, 0, None, 128),
    (4, 0, 8, 0, 3, 128),
)
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", KINDS, ids=str)


def run(case, chosen):
    _, _, experts, first, local, alignment = case
    routes = ops.route(chosen, experts, alignment=alignment, first=first, local=local)
    same(routes, chosen, first, experts - first if local is None else local, alignment)


@every_case
@every_dtype
def test_by_torch(case, dtype):
    run(case, drawn(*case[:3], dtype))


@pytest.mark.nvrtc
@every_case
@every_dtype
def test_by_the_kernel(emulated, case, dtype):
    chosen = drawn(*case[:3], dtype)
    run(case, chosen)
    assert len(emulated) == bool(chosen.numel())


@pytest.mark.nvrtc
def test_by_a_cluster(emulated):
    run((700, 8, 64, 0, None, 128), drawn(700, 8, 64))
    assert [(x.tiles, x.routing.ctas) for x in emulated] == [(8, 8)]


LAYOUTS = {
    "first choices of more": lambda: drawn(30, 9, 16)[:, :4],
    "every other token": lambda: drawn(30, 4, 16)[::2],
    "the same token": lambda: drawn(1, 4, 16).expand(9, -1),
    "one choice, apart": lambda: drawn(30, 4, 16)[:, 1:2],
    "transposed": lambda: drawn(4, 30, 16).mT,
    "every other choice": lambda: drawn(30, 8, 16)[:, ::2],
}
COPIED = ("transposed", "every other choice")


@pytest.mark.nvrtc
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(emulated, layout):
    """Read in place where the choices of a token are contiguous."""
    chosen = LAYOUTS[layout]()
    same(ops.route(chosen, 16), chosen, 0, 16, 128)
    (launched,) = emulated
    assert (launched.values["chosen"] != chosen.data_ptr()) == (layout in COPIED)


def test_what_is_launched(launches):
    chosen = drawn(600, 8, 64, torch.int32)
    for part in (chosen, chosen[:1]):
        found = ops.route(part, 64, first=8, local=16)
        values = launches[-1].values
        n = part.numel()
        assert launches[-1].stream == STREAM and launches[-1].routing.bits == 32
        assert launches[-1].tiles == launches[-1].routing.ctas == 8
        rows = (n + min(16, n) * 127) // 128 * 128
        said = (values[x] for x in ("n", "top", "pitch", "first", "local", "alignment", "rows"))
        assert (*said,) == (n, 8, 8, 8, 16, 128, rows)
        for name in ("slots", "copies", "ends"):
            assert values[name] == getattr(found, name).data_ptr()


def test_every_expert_with_one_row_more_than_aligned_takes_the_most_rows():
    """The bound is reached, less what is rounded down."""
    chosen = torch.arange(8).repeat(129).view(-1, 2)
    found = ops.route(chosen, 8)
    assert (
        found.ends[-1] == 7 * 256 + 129 and found.rows == (8 * 129 + 8 * 127) // 128 * 128 == 2048
    )
    few = ops.route(torch.arange(4).view(4, 1), 512)
    assert few.rows == 4 * 128 and few.ends[3] == 3 * 128 + 1


def test_nothing_slower_takes_the_place_of_the_kernel(monkeypatch):
    on_gpu(monkeypatch, Recorded)

    def missing(*_):
        raise RuntimeUnavailable("no NVRTC")

    monkeypatch.setattr(routing, "loaded", missing)
    with pytest.raises(RuntimeUnavailable):
        ops.route(drawn(4, 2, 8), 8)


# ---- torch.ops.gemmgen.route -----------------------------------------------------------------------


def as_routes(found):
    slots, copies, ends = found
    return routing.Routes(rows=len(copies), slots=slots, copies=copies, ends=ends)


@every_case
def test_the_operator(case):
    tokens, top, experts, first, local, alignment = case
    chosen = drawn(tokens, top, experts)
    said = {"alignment": alignment, "first": first, "local": local}
    found = as_routes(REGISTERED.route(chosen, experts, **said))
    same(found, chosen, first, experts - first if local is None else local, alignment)
    torch.library.opcheck(REGISTERED.route.default, (chosen, experts), said)


@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled_whole(dynamic):
    """The operator, and what a compiler traces of `ops.route`."""
    one, other = (
        torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for f in (lambda x: REGISTERED.route(x, 16), lambda x: ops.route(x, 16))
    )
    for tokens in (30, 50):
        chosen = drawn(tokens, 4, 16)
        same(as_routes(one(chosen)), chosen, 0, 16, 128)
        same(other(chosen), chosen, 0, 16, 128)


def test_exported_for_any_number_of_tokens():
    class Routed(torch.nn.Module):
        def forward(self, chosen):
            return REGISTERED.route(chosen, 16, alignment=8)

    shapes = ({0: torch.export.Dim("tokens")},)
    exported = torch.export.export(Routed(), (drawn(30, 4, 16),), dynamic_shapes=shapes).module()
    for tokens in (2, 77):
        chosen = drawn(tokens, 4, 16)
        same(as_routes(exported(chosen)), chosen, 0, 16, 8)


@pytest.mark.parametrize(
    ("chosen", "given", "argument"),
    (
        (torch.zeros(4, 2), {}, "chosen dtype"),
        (torch.zeros(4, dtype=torch.long), {}, "chosen shape"),
        (torch.zeros(4, 2, dtype=torch.long), {"first": 8}, "first"),
        (torch.zeros(4, 2, dtype=torch.long), {"local": 9}, "local"),
        (torch.zeros(4, 2, dtype=torch.long), {"alignment": 0}, "alignment"),
        (torch.zeros(4, 2, dtype=torch.long), {"alignment": 1 << 30}, "chosen shape"),
    ),
)
@pytest.mark.parametrize("device", ("cpu", "meta"))
def test_a_fake_refuses_what_a_launch_does(device, chosen, given, argument):
    with pytest.raises(ArgumentError) as e:
        REGISTERED.route(chosen.to(device), 8, **given)
    assert e.value.argument == argument
