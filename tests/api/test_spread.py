"""`ops.spread` and `torch.ops.gemmgen.spread`: what they give the generated kernel, emulated over torch tensors of the
CPU, against the torch code and a loop."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_plain import STREAM, Recorded, emulated, route  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError, RuntimeUnavailable  # noqa: E402
from gemmgen.ops import spreading  # noqa: E402
from gemmgen.runtime import torch_tensors  # noqa: E402
from gemmgen.spreading import source  # noqa: E402

DTYPES = (torch.float8_e4m3fn, torch.int8, torch.uint8, torch.bfloat16, torch.float32, torch.int64)
REGISTERED = torch.ops.gemmgen.spread


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)
    torch._dynamo.reset()


def sizes(c, v):
    """Bytes that the kernel may touch."""
    tokens, blocks = v["tokens"], v["blocks"]
    found = {"q": ((tokens - 1) * v["q_stride"] + v["parts"]) * c.unit if v["parts"] else 0}
    found["slots"] = 4 * ((tokens - 1) * v["slots_stride"] + v["top"])
    found["codes"] = v["rows"] * v["parts"] * c.unit
    if blocks:
        last = (tokens - 1) * v["scale_token"] + (blocks - 1) * v["scale_block"]
        found |= {"scale": 4 * (last + 1)}
        found |= {"scales": 4 * ((blocks - 1) * v["scales_stride"] + v["rows"])}
    return {name: size for name, size in found.items() if size}


@pytest.fixture
def launches(monkeypatch):
    return route(monkeypatch, spreading, Recorded)


@pytest.fixture
def on_emulator(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    return route(monkeypatch, spreading, emulated(source, sizes, ("codes", "scales")))


def drawn(tokens=9, top=3, columns=48, dtype=torch.float8_e4m3fn, blocks=2):
    """Copies in rows of their own, one of them missing."""
    rows = tokens * top + 6
    slots = torch.randperm(rows)[: tokens * top].view(tokens, top).int()
    if slots.numel():
        slots[tokens // 2, top // 2] = -1
    q = (torch.randn(tokens, columns) * 20).to(dtype)
    scale = None if blocks is None else torch.rand(tokens, blocks)
    return {"q": q, "scale": scale, "slots": slots, "rows": rows}


def check(found, given):
    """Each copy to the bit, and lying as documented."""
    codes, scales = found
    q, scale, slots, rows = given.values()
    blocks = 0 if scale is None else scale.shape[1]
    assert codes.dtype == q.dtype and codes.shape == (rows, q.shape[1]) and codes.is_contiguous()
    assert scales.dtype == torch.float32 and scales.shape == (rows, blocks)
    if rows and blocks:
        assert scales.stride(0) == 1 and scales.stride(1) % 4 == 0 and scales.stride(1) >= rows
    for t, of_token in enumerate(slots.tolist()):
        for slot in of_token:
            if 0 <= slot < rows:
                assert torch.equal(
                    codes[slot].view(torch.uint8), q[t].contiguous().view(torch.uint8)
                )
                assert scale is None or torch.equal(scales[slot], scale[t])


# ---- what it copies -----------------------------------------------------------------------


@pytest.mark.parametrize("blocks", (None, 0, 2))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies(dtype, blocks):
    given = drawn(dtype=dtype, blocks=blocks)
    check(ops.spread(**given), given)
    check(REGISTERED(**given), given)


@pytest.mark.nvrtc
@pytest.mark.parametrize("columns", (48, 20, 7))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_copies(on_emulator, dtype, columns):
    for tokens, top, blocks in ((9, 3, 2), (1, 1, None), (21, 9, 1), (3, 8, 5)):
        given = drawn(tokens, top, columns, dtype, blocks)
        check(ops.spread(**given), given)
        check(REGISTERED(**given), given)
    row = columns * dtype.itemsize
    assert len(on_emulator) == 8
    assert {x.kernel.unit for x in on_emulator} == {
        max(n for n in (1, 2, 4, 8, 16) if row % n == 0)
    }


LAYOUTS = {
    "part of wider matrices": lambda x: torch.cat((x, x, x), -1)[:, x.shape[1] : 2 * x.shape[1]],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "from an odd address": lambda x: torch.cat((x[:, :1], x), -1)[:, 1:],
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
}
COPIED = ("transposed", "every other column")


@pytest.mark.nvrtc
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(on_emulator, layout):
    """Read in place where rows are contiguous, scales always; else one copy is."""
    given = drawn(dtype=torch.bfloat16)
    for name in ("q", "scale", "slots"):
        given[name] = LAYOUTS[layout](given[name])
    check(ops.spread(**given), given)
    (launched,) = on_emulator
    for name in ("q", "slots"):
        assert (launched.values[name] != given[name].data_ptr()) == (layout in COPIED)
    assert launched.values["scale"] == given["scale"].data_ptr()
    assert launched.kernel.unit == (2 if layout == "from an odd address" else 16)


@pytest.mark.nvrtc
def test_what_was_quantised(on_emulator):
    """Scales as `quantise_rows` returns them, and of one expanded row."""
    q, scale = ops.quantise_rows(torch.randn(9, 300))
    given = drawn() | {"q": q, "scale": scale}
    check(ops.spread(**given), given)
    given |= {"scale": scale[:1].expand(9, 3), "q": q[:1].expand(9, 300)}
    check(ops.spread(**given), given)
    assert [x.values["scale_token"] for x in on_emulator] == [1, 0]


def test_what_is_launched(launches):
    given = drawn(16, 6, 128)
    codes, scales = ops.spread(**given)
    (found,) = launches
    wanted = {"rows": 102, "tokens": 16, "top": 6, "parts": 8, "blocks": 2, "q_stride": 8}
    wanted |= {"scale_token": 2, "scale_block": 1, "slots_stride": 6, "scales_stride": 104}
    wanted |= {"codes": codes.data_ptr(), "scales": scales.data_ptr()}
    assert {name: found.values[name] for name in wanted} == wanted
    assert (found.tiles, found.stream) == (2, STREAM)


@pytest.mark.parametrize(("tokens", "top", "columns"), ((4, 0, 48), (0, 3, 48), (4, 3, 0)))
def test_nothing_to_copy(launches, tokens, top, columns):
    given = drawn(tokens, top, columns, blocks=None)
    check(ops.spread(**given), given)
    check(spreading.by_torch(**given), given)
    check(ops.spread(**given | {"rows": 0}), given | {"rows": 0})
    check(spreading.by_torch(**given | {"rows": 0}), given | {"rows": 0})
    assert not launches


@pytest.mark.nvrtc
def test_slots_that_are_no_rows(on_emulator):
    given = drawn()
    given["slots"][::2] = torch.tensor([-(2**31), given["rows"], 2**31 - 1])
    check(ops.spread(**given), given)
    check(spreading.by_torch(**given), given)


def test_more_than_a_launch_counts(launches):
    """Of meta tensors: nothing is allocated."""
    q = torch.empty(1, device="meta").to(torch.int8).expand(1 << 20, 1 << 15)
    slots = torch.empty(1, device="meta").int().expand(1 << 20, 1)
    with pytest.raises(ArgumentError, match="at most 2147483647 times 16 bytes") as e:
        ops.spread(q, None, slots, 5)
    assert e.value.argument == "q shape" and not launches


def test_nothing_slower_takes_the_place_of_the_kernel(monkeypatch):
    def missing(*_):
        raise RuntimeUnavailable("no NVRTC")

    route(monkeypatch, spreading, Recorded)
    monkeypatch.setattr(spreading, "loaded", missing)
    with pytest.raises(RuntimeUnavailable):
        ops.spread(**drawn())


# ---- errors -------------------------------------------------------------------------------


REFUSED = (
    ({"q": [[1.0]]}, "q"),
    ({"scale": 1.0}, "scale"),
    ({"rows": -1}, "rows"),
    ({"rows": 2**31}, "rows"),
    ({"rows": 2.0}, "rows"),
    ({"rows": True}, "rows"),
    ({"q": torch.zeros(9, 48, dtype=torch.complex128)}, "q dtype"),
    ({"slots": torch.zeros(9, 3).long()}, "slots dtype"),
    ({"scale": torch.zeros(9, 2).bfloat16()}, "scale dtype"),
    ({"q": torch.zeros(9).int()}, "q shape"),
    ({"slots": torch.zeros(9).int()}, "slots shape"),
    ({"slots": torch.zeros(8, 3).int()}, "slots shape"),
    ({"scale": torch.zeros(9)}, "scale shape"),
    ({"scale": torch.zeros(8, 2)}, "scale shape"),
    ({"slots": torch.zeros(9, 3, device="meta").int()}, "slots device"),
    ({"scale": torch.zeros(9, 2, device="meta")}, "scale device"),
    ({"q": torch.zeros(9, 48, requires_grad=True)}, "q"),
    ({"scale": torch.zeros(9, 2, requires_grad=True)}, "scale"),
)
BY_SCHEMA = ("q", "scale", "rows")  # torch refuses what is no tensor or no integer


@pytest.mark.parametrize(("change", "argument"), REFUSED)
def test_what_is_refused(launches, change, argument):
    for way in (ops.spread,) if argument in BY_SCHEMA else (ops.spread, REGISTERED):
        with pytest.raises(ArgumentError) as e:
            way(**drawn() | change)
        assert e.value.argument == argument and not launches


@pytest.mark.parametrize(("change", "argument"), [*REFUSED[2:3], *REFUSED[6:-4]])
def test_fakes_refuse_the_same(change, argument):
    given = drawn() | change
    with FakeTensorMode() as mode, pytest.raises(ArgumentError) as e:
        REGISTERED(
            **{n: x if isinstance(x, int) else mode.from_tensor(x) for n, x in given.items()}
        )
    assert e.value.argument == argument


@pytest.mark.parametrize("name", ("q", "scale"))
def test_there_are_no_gradients(name):
    given = drawn(dtype=torch.float32)
    given[name].requires_grad_()
    for way in (ops.spread, REGISTERED):
        with pytest.raises(ArgumentError, match="copies have none"):
            way(**given)
        with torch.no_grad():
            assert not any(x.requires_grad for x in way(**given))


# ---- the operator -------------------------------------------------------------------------

OPCHECKS = ("test_schema", "test_faketensor", "test_autograd_registration")


@pytest.mark.parametrize("blocks", (None, 2))
def test_opcheck(blocks):
    """Rows of no copy are whatever they are, so results are compared below."""
    torch.library.opcheck(
        REGISTERED.default, (), drawn(dtype=torch.int8, blocks=blocks), test_utils=OPCHECKS
    )


@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled_whole(dynamic):
    def layer(q, scale, slots, rows):
        codes, scales = REGISTERED(q, scale / 2, slots, rows)
        return codes, scales

    given = drawn()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    check(compiled(**given | {"scale": given["scale"] * 2}), given)
    traced = torch.compile(ops.spread, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    check(traced(**given), given)
