"""Bound launches: what they hold, where they go, which tensors may take the place of others."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
from fake_calls import CONFIG, FP8, FUNCTIONS, WIDE, OneNumber, deep, dense, seen
from fake_torch import Device, Placed, fake_torch_fixture, launches_fixture  # noqa: F401

import gemmgen
from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.expr import ACC, PerElement
from gemmgen.ops import bind, front
from gemmgen.runtime import torch_tensors

CALLS = {getattr(ops, name): given for name, given in FUNCTIONS.items()}


def like(t: Placed) -> Placed:
    """Another tensor of the same facts."""
    return seen(t, address=Placed(1).address)


@pytest.mark.parametrize("function", CALLS)
def test_binding_launches_nothing_until_it_is_called(function, launches):
    given = CALLS[function]()
    launch = bind(function, **given)
    assert not launches and not len(front.KEPT)
    assert launch() is given["out"] and launch.launch() is given["out"]
    assert launches == [launch.plan, launch.plan]


def test_it_is_a_public_name():
    assert gemmgen.bind is bind and isinstance(bind, type(lambda: 0)) and gemmgen.Launch


def test_its_tensors_are_held(launches):
    given = dense(out=None)
    launch = bind(ops.gemm, **given)
    names = {n for n, x in given.items() if isinstance(x, Placed)}
    assert {*launch.tensors} == names | {"out"} and launch() is launch.tensors["out"]
    held = [weakref.ref(x) for x in given.values() if isinstance(x, Placed)]
    given.clear()
    Placed.made.clear()
    gc.collect()
    assert all(x() for x in held)


def test_a_workspace_is_held(launches):
    launch = bind(ops.k_grouped_gemm, **deep())
    assert launch.plan.moved["group_maps"] in held_by(launch)


def held_by(launch) -> set[int]:
    return {x.address for x in launch.held if isinstance(x, Placed)}


STREAMED = Config(block_m=64, block_n=48, consumers=1, stages=2, stream=True)


@pytest.mark.parametrize(
    ("function", "given", "name"),
    ((ops.k_grouped_gemm, deep, "group_maps"), (ops.gemm, lambda: dense(config=STREAMED), "partials")),
)  # fmt: skip
def test_a_workspace_is_of_one_stream(function, given, name, launches, monkeypatch):
    """Made while that is current, so that what zeroes it comes before the launch; rebound, it is the stream's."""
    torch, made = torch_tensors.torch(), {}
    for way in ("empty", "zeros"):
        make = getattr(torch, way)

        def noted(*shape, make=make, **options):
            tensor = make(*shape, **options)
            made[tensor.address] = torch._C._cuda_getCurrentRawStream(0)
            return tensor

        monkeypatch.setattr(torch, way, noted)
    launch = bind(function, **given())
    there = launch.with_stream(9)
    places = [x.plan.moved[name] for x in (launch, there, there.with_stream(0))]
    assert len({*places}) == 3 and [made[x] for x in places] == [0, 9, 0]
    assert {*places[:2]} <= held_by(there)
    assert name not in there.rebind(a=like(there.tensors["a"])).plan.moved
    function(**given())
    assert launches[-1].values[name] not in places


def test_scales_of_the_output(launches):
    launch = bind(ops.gemm, **dense(out=None, out_dtype="e4m3", config=WIDE))
    assert launch() == (launch.tensors["out"], launch.tensors["scale_out"])


def test_the_stream_is_the_current_one_or_another(launches):
    torch = torch_tensors.torch()
    torch._C._cuda_getCurrentRawStream = {0: 5}.__getitem__
    launch = bind(ops.gemm, **dense())
    torch._C._cuda_getCurrentRawStream = {0: 6}.__getitem__
    theirs = SimpleNamespace(cuda_stream=77, device_index=0)
    for stream in (launch, launch.with_stream(9), launch.with_stream(theirs)):
        stream()
    assert [x.stream for x in launches] == [5, 9, 77] and launch.stream == 5
    assert launches[1].moved == launches[2].moved == {}


@pytest.mark.parametrize(
    ("stream", "argument"),
    ((None, "stream"), ("0", "stream"), (True, "stream"), (-1, "stream"),
     (SimpleNamespace(cuda_stream=7, device_index=1), "stream device")),
)  # fmt: skip
def test_what_is_no_stream(stream, argument, launches):
    with pytest.raises(ArgumentError) as e:
        bind(ops.gemm, **dense()).with_stream(stream)
    assert e.value.argument == argument


@pytest.mark.parametrize("function", CALLS)
def test_only_addresses_of_other_tensors_change(function, launches):
    given = CALLS[function]()
    launch = bind(function, **given)
    before = dict(launch.plan.moved)
    for name in launch.tensors:
        other = like(launch.tensors[name])
        moved = launch.rebind(**{name: other})
        assert other.address in moved.plan.moved.values()
        (stale,) = {n for n, x in launch.tensors.items() if moved.tensors[n] is not x}
        assert stale == name and moved.result is moved.tensors["out"]
    assert launch.plan.moved == before and launch() is given["out"]


def test_a_tensors_place_in_the_kernel(launches):
    """By the names of maps and of parameters."""
    others = {n: like(x) for n, x in dense().items() if isinstance(x, Placed)}
    moved = bind(ops.gemm, **dense()).rebind(**others).plan.moved
    at = {n: x.address for n, x in others.items()}
    assert (
        moved.items()
        >= {"a": at["a"], "b": at["b"], "d": at["out"], "arg_bias": at["bias"]}.items()
    )
    assert {*moved} & {"bias", "out"} == set()
    x = bind(ops.k_grouped_gemm, **deep())
    depths = like(x.tensors["group_depths"])
    assert x.rebind(group_depths=depths).plan.moved["group_depths"] == depths.address


def test_an_epilogues_argument_may_have_any_name(launches):
    """`d` is what kernels call the output."""
    given = dense(epilogue=ACC + PerElement("d", BF16), d=Placed(24, 40, dtype="bfloat16"))
    launch = bind(ops.gemm, **{n: x for n, x in given.items() if n not in ("bias", "alpha")})
    other = like(given["d"])
    assert launch.rebind(d=other).plan.moved == {"arg_d": other.address}


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("a shape", {"shape": (24, 64)}),
        ("a strides", {"strides": (80, 1)}),
        ("a dtype", {"dtype": "float16"}),
        ("a device", {"device": Device("cuda", 1)}),
    ),
)
def test_other_facts_are_refused(argument, changes, launches):
    launch = bind(ops.gemm, **dense())
    with pytest.raises(ArgumentError, match="as bound") as e:
        launch.rebind(a=seen(like(launch.tensors["a"]), **changes))
    assert e.value.argument == argument


@pytest.mark.parametrize("name", ("a", "bias", "out"))
def test_another_alignment_is_refused(name, launches):
    launch = bind(ops.gemm, **dense())
    other = like(launch.tensors[name])
    other.address += 8
    with pytest.raises(ArgumentError, match="16 bytes") as e:
        launch.rebind(**{name: other})
    assert e.value.argument == name


@pytest.mark.parametrize(("name", "value"), (("alpha", 3.0), ("c", Placed), ("a", 3)))
def test_what_is_no_tensor_of_it(name, value, launches):
    with pytest.raises(ArgumentError) as e:
        bind(ops.gemm, **dense()).rebind(**{name: value})
    assert e.value.argument == name


def test_an_output_over_an_operand_is_refused(launches):
    launch = bind(ops.gemm, **dense())
    a = launch.tensors["a"]
    for shift in (0, 16):
        with pytest.raises(ArgumentError, match=r"share|overlap"):
            launch.rebind(out=seen(launch.tensors["out"], address=a.address + shift))


def test_adding_in_place_stays_in_place(launches):
    out = Placed(3, 24, 40)
    launch = bind(ops.k_grouped_gemm, **deep(out=out, c=out))
    other = like(out)
    assert launch.rebind(out=other, c=other)() is other
    for tensors in ({"out": other}, {"c": other}):
        with pytest.raises(ArgumentError, match="share memory"):
            launch.rebind(**tensors)
    apart = bind(ops.k_grouped_gemm, **deep(out=out, c=like(out)))
    with pytest.raises(ArgumentError, match="share memory"):
        apart.rebind(c=out)


def test_flat_operands(launches):
    given = {
        "a": Placed(24 * 256, dtype=FP8),
        "scale_a": Placed(24, 2, stride=(1, 24)),
        "b": Placed(40 * 256, dtype=FP8),
        "scale_b": Placed(40, 2, stride=(1, 40)),
        "group_depths": Placed(3, dtype="int32"),
        "out": Placed(3, 24, 40),
    }
    options = {"packing": "flat", "scale_layout": "mn", "config": CONFIG}
    launch = bind(ops.fp8_k_grouped_gemm, **given, **options)
    others = {name: like(x) for name, x in given.items()}
    assert launch.rebind(**others)() is others["out"]


@pytest.mark.parametrize(
    ("function", "given", "argument"),
    (
        (print, {}, "function"),
        (ops.gemm.__wrapped__, {}, "function"),
        (ops.gemm, {"a": (0, 72), "out": (0, 40)}, "function"),
        (ops.fp8_block_gemm, {"scale_a_layout": "row"}, "scale_a"),
        (ops.gemm, {"alpha": OneNumber}, "arguments"),
        (ops.gemm, {"b": (40, 80)}, "b shape"),
    ),
)
def test_what_cannot_be_bound(function, given, argument, launches):
    made = {
        n: Placed(*x, dtype="bfloat16") if isinstance(x, tuple) else x for n, x in given.items()
    }
    made = {n: x(1) if isinstance(x, type) else x for n, x in made.items()}
    with pytest.raises(ArgumentError) as e:
        bind(function, **CALLS.get(function, dict)() | made)
    assert e.value.argument == argument and not launches


def test_a_refused_launch_is_tried_in_its_context(launches, monkeypatch):
    launch = bind(ops.gemm, **dense())
    monkeypatch.setattr(launch.plan, "start", lambda: (201,))
    retried = []
    monkeypatch.setattr(
        type(launch.kernel), "retry", lambda self, plan: retried.append(plan), raising=False
    )
    assert launch() is launch.result and retried == [launch.plan]
