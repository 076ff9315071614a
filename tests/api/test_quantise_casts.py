"""What `ops.quantise_*` give the generated casts, and what comes back: torch tensors of the CPU through the emulator,
against the torch code, to the bit."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gemmgen import ops  # noqa: E402
from gemmgen.casts import source  # noqa: E402
from gemmgen.emulator import GlobalMemory, launch, load  # noqa: E402
from gemmgen.errors import ArgumentError, RuntimeUnavailable  # noqa: E402
from gemmgen.ops import casting, quantise  # noqa: E402
from gemmgen.runtime import torch_tensors  # noqa: E402
from gemmgen.runtime.launch import packed  # noqa: E402

DTYPES = ("bfloat16", "float16", "float32")
HOW = ("columns", "row", "block")
STREAM = 7


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)


class Recorded:
    """A loaded cast that is not launched."""

    made: list[Recorded]  # by the fixture

    def __init__(self, cast, device):
        self.cast = cast
        self.made.append(self)

    def launch(self, values, tiles, stream):
        for p in self.cast.params:
            packed(p.ctype, p.name, values)
        self.values, self.tiles, self.stream = values, tiles, stream


class Emulated(Recorded):
    """A loaded cast that the emulator runs over the host's memory."""

    def launch(self, values, tiles, stream):
        super().launch(values, tiles, stream)
        memory = GlobalMemory()
        ranges = {name: (values[name], size) for name, size in self._sizes(values).items()}
        for at, size in ranges.values():
            memory.map(at, ctypes.string_at(at, size))
        launch(
            load(_ptx(self.cast)).entries[self.cast.name],
            grid=min(tiles, 5),
            block=self.cast.threads,
            cluster=1,
            shared_bytes=0,
            params=[values[p.name] for p in self.cast.params],
            memory=memory,
        )
        for at, size in (ranges["q"], ranges["scale"]):
            ctypes.memmove(at, memory.read(at, size).tobytes(), size)

    def _sizes(self, v):
        """Bytes of x, q and the scales that the kernel may touch."""
        blocks, groups = -(-v["columns"] // 128), v["rows"] // v["group_rows"]
        scales = {
            "columns": ((groups * blocks - 1) * v["scale_stride"] + v["group_rows"]),
            "row": v["rows"],
            "block": groups * -(-v["group_rows"] // 128) * blocks,
        }
        elements = (v["rows"] - 1) * v["x_stride"] + v["columns"]
        q = v["rows"] * v["columns"]
        return {"x": elements * self.cast.x.bytes, "q": q, "scale": 4 * scales[self.cast.per]}


def _ptx(cast):
    from gemmgen.runtime.nvrtc import compile_ptx

    return compile_ptx(source(cast), cast.name)


def route(monkeypatch, loaded):
    """Tensors of the CPU go the way of CUDA tensors."""
    loaded.made = []
    monkeypatch.setattr(quantise, "generated", lambda x: True)
    monkeypatch.setattr(casting, "loaded", loaded)
    monkeypatch.setattr(casting, "current_stream", lambda device: STREAM)
    return loaded.made


@pytest.fixture
def launches(monkeypatch):
    return route(monkeypatch, Recorded)


@pytest.fixture
def emulated(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    return route(monkeypatch, Emulated)


def run(how, x, **options):
    if how == "block":
        return ops.quantise_blocks(x, **options)
    return ops.quantise_rows(x, 128 if how == "columns" else None, **options)


def reference(how, x, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantise, "generated", lambda x: False)
        return run(how, x, **options)


def same(got, want):
    """Bits, shapes, strides and dtypes."""
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        dense = [torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for t in (a, b)]
        assert torch.equal(*[t.view(torch.uint8) for t in dense])


def values(*shape, dtype="bfloat16"):
    """N(0, 1), rows of other magnitudes, and what is special."""
    x = torch.randn(shape) * torch.exp2(torch.randint(-20, 14, (*shape[:-1], 1)).float())
    x[..., ::7, :] = 0.0
    x[..., 1::7, ::2] = -0.0
    flat = x.view(-1)
    flat[11::97] = 2.0**-149
    for i, bad in enumerate((float("inf"), float("nan"), -float("inf"))):
        flat[5 + i * flat.numel() // 3 :][:1] = bad
    return x.to(getattr(torch, dtype))


@pytest.mark.nvrtc
@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("q", ("e4m3", "s8"))
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_the_bit(emulated, dtype, how, q, power_of_two):
    for shape in ((2, 21, 136), (133, 257), (1, 1)):
        x = values(*shape, dtype=dtype)
        options = {"dtype": q, "power_of_two": power_of_two}
        same(run(how, x, **options), reference(how, x, **options))
    assert [m.cast.aligned for m in emulated] == [True, False, False]


LAYOUTS = {
    "columns of a wider matrix": lambda: values(9, 400)[:, 8:144],
    "from an odd address": lambda: values(9, 401)[:, 1:137],
    "every other row": lambda: values(18, 136)[::2],
    "the same row": lambda: values(1, 136).expand(5, 136),
    "transposed": lambda: values(136, 9).mT,
    "every other column": lambda: values(9, 272)[:, ::2],
    "groups apart": lambda: values(3, 9, 136)[::2],
    "three dimensions of groups": lambda: values(2, 1, 3, 5, 136),
    "a parameter": lambda: torch.nn.Parameter(values(9, 136)),
}
COPIED = ("transposed", "every other column", "groups apart")


@pytest.mark.nvrtc
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(emulated, layout, how):
    """Read in place where rows are contiguous and one stride apart; else one copy is."""
    x = LAYOUTS[layout]()
    same(run(how, x), reference(how, x))
    (launched,) = emulated
    assert (launched.values["x"] != x.data_ptr()) == (layout in COPIED)
    assert launched.cast.aligned == (layout != "from an odd address")


@pytest.mark.parametrize(
    ("shape", "pitch"),
    (((5, 7), 7), ((1, 7), 7), ((2, 5, 7), 7), ((2, 1, 7), 7), ((3, 2, 1), 1)),
)
def test_row_pitch(shape, pitch):
    assert casting.row_pitch(torch.empty(shape)) == pitch


def test_row_pitch_passes_over_sides_of_one():
    assert casting.row_pitch(torch.empty(4, 3, 8)[:, 1:2]) == 24
    assert casting.row_pitch(torch.empty(6, 8)[::3]) == 24
    assert casting.row_pitch(torch.empty(6, 8)[:, :1]) == 8
    assert casting.row_pitch(torch.empty(4, 3, 8)[:, :2]) is None
    far = torch.empty(2, 1 << 31, device="meta")
    assert casting.row_pitch(far[:, :8]) is None and casting.row_pitch(far[:, 1:]) is None


def test_what_is_launched(launches):
    q, scale = ops.quantise_rows(torch.randn(3, 50, 264))
    (found,) = launches
    sizes = {"rows": 150, "columns": 264, "group_rows": 50, "x_stride": 264, "scale_stride": 52}
    assert {name: found.values[name] for name in sizes} == sizes
    assert (found.values["q"], found.values["scale"]) == (q.data_ptr(), scale.data_ptr())
    assert found.tiles == -(-19 * 3 // 8) and found.stream == STREAM
    assert scale.shape == (3, 50, 3) and scale.stride() == (156, 1, 52)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", ((0, 128), (2, 0, 5), (0, 3, 7)), ids=str)
def test_nothing_to_launch(launches, how, shape):
    x = torch.empty(shape)
    same(run(how, x), reference(how, x))
    assert not launches


def test_no_columns(launches):
    for how in ("columns", "block"):
        x = torch.empty(4, 0)
        same(run(how, x), reference(how, x))
    assert not launches


def test_arguments_are_checked_first(launches):
    for wrong in ({"dtype": "e5m2"}, {"x": torch.zeros(3)}, {"x": torch.zeros(3, 4).double()}):
        with pytest.raises(ArgumentError):
            ops.quantise_rows(**{"x": torch.zeros(3, 4), **wrong})
    assert not launches


def test_more_rows_than_a_launch_has(launches):
    with pytest.raises(ArgumentError) as e:
        Recorded(casting.cast_of(torch.empty(1, 8), 8, "row", "e4m3", False), 0).launch(
            {**dict.fromkeys(("x", "q", "scale", "x_stride", "columns"), 8), "rows": 1 << 31}, 1, 0
        )
    assert e.value.argument == "rows"


@pytest.mark.parametrize("per", ("columns", "block"))
def test_more_scales_than_are_counted(per):
    """Of a meta tensor: nothing is allocated."""
    x = torch.empty(1, device="meta", dtype=torch.bfloat16).expand(1 << 30, 1, 129)
    with pytest.raises(ArgumentError, match="at most 2147483647 scales") as e:
        casting.quantised(x, per, "e4m3", False)
    assert e.value.argument == "x shape"


class OnGpu:
    """What `generated` asks of a tensor."""

    device = torch.device("cuda", 0)


class OnGpuToo(OnGpu):
    pass


@pytest.fixture
def gpu(monkeypatch):
    """A torch whose tensors are OnGpu; whether it compiles."""
    compiling = []
    fake = SimpleNamespace(
        Tensor=OnGpu,
        nn=SimpleNamespace(Parameter=type("Parameter", (OnGpu,), {})),
        compiler=SimpleNamespace(is_compiling=lambda: bool(compiling)),
    )
    monkeypatch.setattr(quantise, "torch", lambda: fake)
    return SimpleNamespace(compiling=compiling, torch=fake)


def test_cuda_tensors_are_quantised_by_generated_casts(gpu):
    assert quantise.generated(OnGpu()) and quantise.generated(gpu.torch.nn.Parameter())
    assert not quantise.generated(OnGpuToo())  # a subclass may lie about its memory


def test_what_a_compiler_traces_is_torch_code(gpu):
    gpu.compiling.append(True)
    assert not quantise.generated(OnGpu())


@pytest.mark.parametrize("device", ("cpu", "meta"))
def test_other_tensors_are_quantised_by_torch_code(device):
    assert not quantise.generated(torch.zeros(1, device=device))


def test_nothing_slower_takes_the_place_of_a_cast(monkeypatch):
    route(monkeypatch, Recorded)

    def missing(*_):
        raise RuntimeUnavailable("no NVRTC")

    monkeypatch.setattr(casting, "loaded", missing)
    with pytest.raises(RuntimeUnavailable):
        ops.quantise_rows(torch.zeros(4, 128))


@pytest.mark.parametrize("how", HOW)
def test_results_have_no_gradient(how):
    for t in run(how, torch.randn(4, 128, requires_grad=True)):
        assert not t.requires_grad


@pytest.mark.parametrize("how", HOW)
def test_compiled_whole(how):
    """A compiler of torch traces the torch code, without a break."""
    x = torch.randn(130, 200)
    compiled = torch.compile(lambda t: run(how, t), backend="aot_eager", fullgraph=True)
    same(compiled(x), run(how, x))
