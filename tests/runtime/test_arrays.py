"""Arrays of other libraries: read as they say they lie, used where and when they may be, without torch."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_arrays import MANAGED, Described, Exported, aligned, waits_fixture  # noqa: F401
from fake_calls import CONFIG, SCALED_BIAS
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401

import gemmgen
from gemmgen import as_tensor, ops
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ops import calls, front
from gemmgen.ops.arrays import handle_of
from gemmgen.runtime import arrays, dlpack

UINT, BFLOAT, FP8, FP8_WIDE = 1, 4, 10, 12  # type codes of DLPack


@pytest.fixture(autouse=True)
def no_torch(monkeypatch, launches):
    """What was faked is gone: nothing here may import it."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield
    assert "torch" not in sys.modules


def arguments(make=Exported, **changed):
    return {
        "a": make(24, 72),
        "b": make(40, 72),
        "out": make(24, 40),
        "config": CONFIG,
        "epilogue": SCALED_BIAS,
        "bias": make(40, dtype="float32"),
        "alpha": 2.0,
        **changed,
    }


# ---- capsules -------------------------------------------------------------------------------


@pytest.mark.parametrize("array", (
    np.zeros((3, 4), np.float32),
    np.zeros((3, 4), np.float32)[:, ::2],
    np.zeros((5, 3, 4), np.float16).transpose(1, 0, 2),
    np.zeros(7, np.int8)[3:],
    np.full((), 1, np.float32),
    np.zeros((0, 4), np.int32),
    np.zeros((2, 3), np.uint8),
), ids=lambda x: f"{x.shape} {x.strides} {x.dtype}")  # fmt: skip
def test_a_capsule_says_where_an_array_lies(array):
    found = dlpack.taken("x", array.__dlpack__(), 0)
    assert found.shape == array.shape and found.element_size() == array.itemsize
    if array.size:
        assert found.address == array.ctypes.data
        assert tuple(s * array.itemsize for s in found.strides) == array.strides
    assert found.is_contiguous() is array.flags.c_contiguous
    assert (found.device.type, found.numel(), found.dim()) == ("cpu", array.size, array.ndim)


def test_a_capsule_is_used_once():
    capsule = np.zeros(3, np.float32).__dlpack__()
    dlpack.taken("x", capsule, 0)
    assert "used_dltensor" in repr(capsule)
    with pytest.raises(ArgumentError, match="dltensor"):
        dlpack.taken("x", capsule, 0)
    with pytest.raises(ArgumentError, match="dltensor"):
        dlpack.taken("x", object(), 0)


def test_memory_is_held_as_long_as_the_view_and_no_longer():
    array = np.zeros(1000, np.float32)
    before = sys.getrefcount(array)
    found = dlpack.taken("x", array.__dlpack__(), 0)
    part = found.reshape((10, 100)).mT
    del found
    gc.collect()
    assert sys.getrefcount(array) == before + 1  # held once, by both
    assert part.stride() == (1, 100)
    del part
    gc.collect()
    assert sys.getrefcount(array) == before


def test_the_deleter_runs_once():
    """A producer of our own counts."""
    freed = []
    deleter = dlpack._DELETER(lambda managed: freed.append(managed.contents.context))
    shape = (ctypes.c_int64 * 2)(3, 4)
    managed = dlpack._Managed(context=77, deleter=deleter)
    managed.tensor = dlpack._Tensor(
        data=4096,
        device=dlpack._Device(2, 1),
        ndim=2,
        dtype=dlpack._DataType(4, 16, 1),
        shape=shape,
        strides=None,
        byte_offset=32,
    )
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsule = new(("PyCapsule_New", ctypes.pythonapi))(
        ctypes.addressof(managed), dlpack.FRESH, None
    )
    found = dlpack.taken("x", capsule, 5)
    assert (found.address, found.shape, found.strides) == (4128, (3, 4), (4, 1))
    assert found.dtype is BF16 and found.device == arrays.ArrayDevice("cuda", 1, 5)
    del capsule
    assert not freed
    del found
    gc.collect()
    assert freed == [77]


@pytest.mark.parametrize(
    ("dtype", "code", "found"),
    (
        ("float16", None, F16),
        ("float32", None, F32),
        ("int8", None, S8),
        ("int32", None, S32),
        ("uint16", BFLOAT, BF16),
        ("uint8", FP8, E4M3),
        ("uint8", FP8_WIDE, E5M2),
        ("uint8", None, "u8"),
        ("uint16", None, "u16"),
    ),
)
def test_dtypes(dtype, code, found):
    assert as_tensor(Exported(4, 16, dtype=dtype, code=code)).dtype == found


@pytest.mark.parametrize(("dtype", "code"), (("float64", None), ("complex64", None), ("uint8", 14)))
def test_dtypes_that_are_nothing_to_us(dtype, code):
    with pytest.raises(ArgumentError) as e:
        as_tensor(Exported(4, 16, dtype=dtype, code=code))
    assert e.value.argument == "x dtype"


# ---- the CUDA array interface -------------------------------------------------------------------


def test_an_interface_says_where_an_array_lies(waits):
    waits.device = 3
    x = Described(6, 8, dtype="float32", strides=(64, 4))
    found = as_tensor(x)
    assert (found.address, found.shape, found.strides) == (x.address, (6, 8), (16, 1))
    assert (found.dtype, found.device.index, found.owner) == (F32, 3, x)
    assert as_tensor(Described(6, 8)).strides == (8, 1)


@pytest.mark.parametrize(
    ("changed", "argument"),
    (
        ({"version": 1}, "x"),
        ({"mask": True}, "x"),
        ({"stream": 0}, "x stream"),
        ({"strides": (17, 2)}, "x strides"),
        ({"typestr": "<f8"}, "x dtype"),
        ({"typestr": ">f4"}, "x dtype"),
        ({"typestr": ">u2"}, "x dtype"),
    ),
    ids=str,
)
def test_what_no_interface_may_say(changed, argument, waits):
    with pytest.raises(ArgumentError) as e:
        as_tensor(Described(4, 8, **changed))
    assert e.value.argument == argument


# ---- as_tensor ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", (Exported, Described))
def test_storage_is_seen_as_what_it_holds(make, waits):
    for dtype, storage in (("e4m3", "uint8"), ("e5m2", "uint8"), ("bf16", "uint16")):
        assert str(as_tensor(make(4, 16, dtype=storage), dtype=dtype).dtype) == dtype
    assert as_tensor(make(4, 16), dtype="f16").dtype is F16


@pytest.mark.parametrize(
    ("storage", "dtype", "argument"),
    (
        ("float16", "bf16", "x dtype"),
        ("int8", "e4m3", "x dtype"),
        ("uint16", "e4m3", "x dtype"),
        ("uint8", "fp8", "dtype"),
    ),
)
def test_what_cannot_be_seen_as_another(storage, dtype, argument):
    with pytest.raises(ArgumentError) as e:
        as_tensor(Exported(4, 16, dtype=storage), dtype=dtype)
    assert e.value.argument == argument


@pytest.mark.parametrize("x", (3, "a", [1.0], None, object()))
def test_what_is_no_array(x):
    with pytest.raises(ArgumentError, match="__dlpack__"):
        as_tensor(x)
    with pytest.raises(ArgumentError, match="an array on the GPU") as e:
        ops.gemm(x, Exported(40, 72), Exported(24, 40))
    assert e.value.argument == "a"


def test_a_view_is_its_owner_and_knows_it(waits):
    x = Described(4, 16)
    view = as_tensor(x, stream=7)
    assert view.owner is x and view.device.stream == 7
    with pytest.raises(ArgumentError):
        view.mT.reshape((64,))
    with pytest.raises(ArgumentError):
        view.reshape((3,))


def test_it_is_a_public_name():
    assert gemmgen.as_tensor is ops.as_tensor


# ---- calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", (Exported, Described))
def test_a_call_launches_over_the_arrays(make, launches, waits):
    given = arguments(make)
    assert ops.gemm(**given) is given["out"]
    assert (
        ops.gemm(given.pop("a"), given.pop("b"), given["out"], **_without(given, "out"))
        is given["out"]
    )
    one, two = launches
    for plan in launches:
        for name, slot in (("out", "d"),):
            assert plan.matrices[slot].pointer == given[name].address
        assert plan.values["arg_bias"] == given["bias"].address and plan.stream == 0
    assert one.matrices == two.matrices and one.problem.a is F16


def _without(given, *names):
    return {n: x for n, x in given.items() if n not in names}


def test_a_repeated_call_is_kept(launches, monkeypatch):
    given = arguments()
    ops.gemm(**given)
    monkeypatch.setattr(calls, "check_tensor", None)
    assert ops.gemm(**given) is given["out"] and len(launches) == 2 and len(front.KEPT) == 1
    view = {n: as_tensor(x) if hasattr(x, "held") else x for n, x in given.items()}
    assert ops.gemm(**view) is view["out"] and len(front.KEPT) == 1


def test_two_outputs(launches, waits):
    blocks = Described(1, 24, dtype="float32")
    out = as_tensor(Described(24, 128, dtype="uint8"), dtype="e4m3")
    scales = Described(24, 1, dtype="float32", strides=(4, 4))
    given = {
        "a": Described(24, 72),
        "b": Described(128, 72),
        "out": out,
        "config": CONFIG.__class__(),
    }
    found = ops.gemm(**given, out_dtype="e4m3", scale_out=scales)
    assert found[0] is out and found[1] is scales and blocks.address
    assert launches[0].values["scale_d"] == scales.address


def test_fp8_with_block_scales(launches):
    given = {
        "a": Exported(24, 256, dtype="uint8", code=FP8),
        "scale_a": Exported(held=aligned((2, 24), "float32").T),
        "b": as_tensor(Exported(40, 256, dtype="uint8"), dtype="e4m3"),
        "scale_b": Exported(1, 2, dtype="float32"),
        "out": Exported(24, 40, dtype="uint16", code=BFLOAT),
        "config": CONFIG,
    }
    assert ops.fp8_block_gemm(**given, scale_a_layout="mn") is given["out"]
    assert launches[0].matrices["scale_a"].pointer == given["scale_a"].address
    with pytest.raises(ArgumentError, match="'mn'"):
        ops.fp8_block_gemm(**given, scale_a_layout="row")


def test_adding_in_place(launches):
    """`c` that is `out`: what is added to is not read as an argument."""
    given = {x: as_tensor(Exported(32, 256, dtype="uint8"), dtype="e4m3") for x in ("a", "b")}
    given |= {f"scale_{x}": Exported(held=aligned((2, 32), "float32").T) for x in ("a", "b")}
    out = as_tensor(Exported(32, 32, dtype="float32"))
    assert ops.fp8_wgrad_gemm(**given, out=out, c=out, scale_layout="mn", config=CONFIG) is out
    assert launches[0].problem.accumulate


def test_groups(launches):
    given = {
        "a": Exported(3, 24, 72),
        "b": Exported(3, 40, 72),
        "group_rows": Exported(3, dtype="int32"),
        "out": Exported(3, 24, 40),
        "config": CONFIG,
    }
    assert ops.masked_gemm(**given) is given["out"]
    assert launches[0].values["group_rows"] == given["group_rows"].address


@pytest.mark.parametrize(
    ("changed", "argument"),
    (
        ({"out": None}, "out"),
        ({"a": np.zeros((24, 72), np.float16)}, "a device"),
        ({"a": Exported(24, 72, dtype="uint16")}, "a dtype"),
        ({"a": Exported(24, 80)}, "b shape"),
        ({"b": Exported(40, 72, device=(2, 1))}, "b device"),
        ({"bias": Exported(41, dtype="float32")}, "bias shape"),
        ({"bias": 1.0}, "bias"),
    ),
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_what_is_refused(changed, argument):
    with pytest.raises(ArgumentError) as e:
        ops.gemm(**arguments(**changed))
    assert e.value.argument == argument


def test_scales_of_the_output_are_not_allocated(launches):
    out = Exported(24, 128, dtype="uint8", code=FP8)
    with pytest.raises(ArgumentError, match="must be given") as e:
        ops.gemm(Exported(24, 72), Exported(128, 72), out, out_dtype="e4m3")
    assert e.value.argument == "scale_out"


def test_an_output_that_is_read_only(waits):
    with pytest.raises(ArgumentError, match="writable"):
        ops.gemm(**arguments(Described, out=Described(24, 40, readonly=True)))


def test_a_workspace_is_not_allocated():
    given = {
        "a": Exported(72, 24),
        "b": Exported(72, 40),
        "group_depths": Exported(3, dtype="int32"),
        "out": Exported(3, 24, 40, dtype="float32"),
        "config": CONFIG,
    }
    with pytest.raises(ArgumentError, match="workspace"):
        ops.k_grouped_gemm(**given)


def test_managed_memory_is_the_gpus_too(launches):
    where = (MANAGED, 0)
    ops.gemm(**arguments(lambda *shape, **x: Exported(*shape, device=where, **x)))
    assert len(launches) == 1


def test_a_bound_launch_takes_views(launches):
    views = {n: as_tensor(x, stream=9) if hasattr(x, "held") else x for n, x in arguments().items()}
    bound = ops.bind(ops.gemm, **views)
    assert bound() is views["out"] and bound.stream == 9
    other = as_tensor(Exported(24, 40), stream=9)
    assert bound.rebind(out=other)() is other
    assert launches[1].moved["d"] == other.address


# ---- streams ------------------------------------------------------------------------------------


class Stream:
    def __init__(self, said):
        self.said = said

    def __cuda_stream__(self):
        return self.said

    def __repr__(self) -> str:
        return "Stream"


@pytest.mark.parametrize(
    ("stream", "handle"), ((0, 0), (1, 0), (2, 2), (77, 77), (Stream((0, 88)), 88)), ids=str
)
def test_a_stream_is_where_the_launch_goes(stream, handle, launches, waits):
    given = arguments()
    ops.gemm(**given, stream=stream)
    assert launches[0].stream == handle
    assert given["a"].streams == given["out"].streams == [handle or 1]  # 0 says nothing in DLPack
    views = {n: as_tensor(x) if hasattr(x, "held") else x for n, x in given.items()}
    assert ops.gemm(**views, stream=stream) is views["out"] and launches[1].stream == handle


@pytest.mark.parametrize(
    "stream", (-1, True, "0", None.__class__, Stream((1, 7)), 1.5), ids=lambda x: type(x).__name__
)
def test_what_is_no_stream(stream):
    with pytest.raises(ArgumentError) as e:
        ops.gemm(**arguments(), stream=stream)
    assert e.value.argument == "stream"


def test_a_stream_as_older_versions_say_it():
    assert handle_of(SimpleNamespace(__cuda_stream__=(0, 5))) == 5


@pytest.mark.parametrize(
    ("said", "asked", "stream", "waited"),
    (
        ((None, None), None, 0, set()),
        ((5, 5), None, 5, set()),
        ((5, None), None, 5, set()),
        ((1, 1), None, 0, set()),
        ((5, 6), None, 0, {(0, 5), (0, 6)}),
        ((5, 6), 6, 6, {(6, 5)}),
        ((5, 5), 7, 7, {(7, 5)}),
        ((2, None), 7, 7, {(7, 2)}),
        ((7, None), 7, 7, set()),
    ),
    ids=str,
)
def test_a_launch_waits_for_the_streams_that_interfaces_name(
    said, asked, stream, waited, launches, waits
):
    a, b = (Described(n, 72, stream=s) for n, s in zip((24, 40), said, strict=True))
    given = arguments(Described, a=a, b=b) | ({} if asked is None else {"stream": asked})
    for _ in range(2):  # kept or not
        waits.found.clear()
        ops.gemm(**given)
        assert {*waits.found} == waited and len(waits.found) == len(waited)
    assert [x.stream for x in launches] == [stream, stream]
    assert {*waits.events.values()} <= {"destroyed"}


def test_each_stream_has_its_plan(launches):
    given = arguments()
    for stream in (5, 6, 5):
        ops.gemm(**given, stream=stream)
    assert [x.stream for x in launches] == [5, 6, 5] and len(front.KEPT) == 2


# ---- beside torch -------------------------------------------------------------------------------


def test_torchs_tensors_are_left_to_torch(monkeypatch, launches):
    torch = SimpleNamespace(Tensor=Placed)

    class Sub(Placed):
        def __dlpack__(self):
            raise AssertionError

    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(ArgumentError, match="no torch tensor"):
        as_tensor(Sub(4, 4))
    monkeypatch.delitem(sys.modules, "torch")


NO_TORCH = """
import sys
sys.path.insert(0, "tests/support")
from fake_arrays import Exported
from gemmgen import ops
from gemmgen.errors import RuntimeUnavailable
try: ops.gemm(Exported(24, 72), Exported(40, 72), Exported(24, 40))
except RuntimeUnavailable as e: print(e)
print("torch" in sys.modules)
"""


def test_a_process_without_torch_gets_as_far_as_the_driver():
    if (ctypes.util.find_library("cuda") or "").startswith("libcuda"):
        pytest.skip("there is a driver")
    root = Path(__file__).parents[2]
    run = [sys.executable, "-c", NO_TORCH]
    out = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True).stdout
    assert "libcuda" in out and out.endswith("False\n")
