"""The front door: which calls are launched without a check, and what makes one another call."""

from __future__ import annotations

import gc
import itertools
import math
import threading
import weakref
from types import SimpleNamespace

import pytest
from fake_calls import CONFIG, FP8, FUNCTIONS, WIDE, OneNumber, block, deep, dense, seen
from fake_torch import Device, Placed, Tensor, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import PerColumn, Scalar
from gemmgen.errors import ArgumentError
from gemmgen.ir.expr import ACC, Const
from gemmgen.ops import building, by_row, calls, compute, depths, front, kept, outputs
from gemmgen.runtime import torch_tensors


@pytest.fixture
def checks(monkeypatch):
    """The names of the arguments that were checked."""
    checked = []

    def counted(argument, *args, **kwargs):
        checked.append(argument)
        return torch_tensors.check_tensor(argument, *args, **kwargs)

    for module in (calls, compute, depths, outputs):
        monkeypatch.setattr(module, "check_tensor", counted)
    return checked


@pytest.fixture
def streams(monkeypatch):
    """By device, torch's current stream."""
    found = {0: 0, 1: 0}
    torch_tensors.torch()._C._cuda_getCurrentRawStream = found.__getitem__
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_repeated_call_is_not_checked(name, launches, checks):
    function, given = getattr(ops, name), FUNCTIONS[name]()
    assert function(**given) is given["out"] and checks
    checks.clear()
    for _ in range(3):
        assert function(**given) is given["out"]
    assert not checks and len(launches) == 4


def test_another_tensor_in_the_same_place_is_the_same_call(launches, checks):
    """A kernel sees addresses, sizes and strides: memory that was freed and given to another tensor of the
    same facts is as good as the first. What is returned is the tensor that was given now."""
    given = dense()
    ops.gemm(**given)
    checks.clear()
    twins = {n: seen(x) if isinstance(x, Placed) else x for n, x in given.items()}
    assert ops.gemm(**twins) is twins["out"] and not checks


CHANGES = {
    "address": lambda x: {"address": x.address + 4096},
    "shape": lambda x: {"shape": (*x.shape[:-1], x.shape[-1] - 8)},
    "strides": lambda x: {"strides": (*(s + 16 for s in x.strides[:-1]), x.strides[-1] + 1)},
    "dtype": lambda x: {"dtype": "float16" if x.dtype != "float16" else "bfloat16"},
    "device": lambda x: {"device": Device("cuda", 1)},
    "kind of device": lambda x: {"device": Device("cpu", 0)},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "argument"),
    [(n, x) for n, f in FUNCTIONS.items() for x, t in f().items() if isinstance(t, Tensor)],
)
def test_every_fact_of_every_tensor_matters(name, argument, change, launches, checks):
    """A call that differs in one is checked, and may be refused."""
    function, given = getattr(ops, name), FUNCTIONS[name]()
    function(**given)
    checks.clear()
    given[argument] = seen(given[argument], **CHANGES[change](given[argument]))
    try:
        function(**given)
    except ArgumentError:
        assert change != "address"
    assert checks


@pytest.mark.parametrize(
    ("name", "changes"),
    (
        ("gemm", {"alpha": 3.0}),
        ("gemm", {"alpha": 2}),
        ("gemm", {"alpha": -0.0}),
        ("gemm", {"config": Config(block_n=64, stages=3)}),
        ("gemm", {"config": Config(block_n=64, stages=2, panel=4)}),
        ("gemm", {"epilogue": ACC * Scalar("alpha") + PerColumn("bias")}),
        ("gemm", {"out_dtype": "bf16"}),
        ("gemm", {"layout": "nt"}),
        ("gemm", {"accumulate": False}),
        ("masked_gemm", {"expected_rows": 9}),
        ("masked_gemm", {"expected_rows": True}),
        ("masked_gemm", {"expected_groups": 2}),
    ),
)
def test_every_other_argument_matters(name, changes, launches, checks):
    function, given = getattr(ops, name), FUNCTIONS[name]()
    if changes.get("alpha") == 0.0:
        given["alpha"] = 0.0
    function(**given)
    checks.clear()
    function(**given | changes)
    assert checks
    checks.clear()
    function(**given | changes)
    assert not checks


def test_functions_and_ways_to_call_differ(launches, checks):
    given = dense(epilogue=ACC)
    a, b, out = (given[n] for n in ("a", "b", "out"))
    for call in (
        lambda: ops.gemm(a, b, out, config=CONFIG),
        lambda: ops.gemm(a, b, out=out, config=CONFIG),
        lambda: ops.gemm(b=b, a=a, out=out, config=CONFIG),
        lambda: ops.gemm(a, b, out, config=CONFIG, layout="nt"),
    ):
        checks.clear()
        assert call() is out and checks
        checks.clear()
        assert call() is out and not checks
    x = Placed(24, 64, dtype="int8")
    y, z = Placed(40, 64, dtype="int8"), Placed(24, 40, dtype="int32")
    ops.int8_gemm(x, y, z, config=CONFIG)
    with pytest.raises(ArgumentError, match="a dtype"):
        ops.gemm(x, y, z, config=CONFIG)


def test_names_and_values_are_told_apart(launches):
    """A key is one tuple of both."""
    given = dense(epilogue=ACC)
    a, b, out = (given[n] for n in ("a", "b", "out"))
    ops.gemm(a=a, b=b, config=CONFIG)
    with pytest.raises(TypeError):  # and no launch
        ops.gemm("a", "b", "config", a, b, CONFIG)
    ops.gemm(a, b, out, config=CONFIG, out_dtype="bf16")
    with pytest.raises(ArgumentError) as e:
        ops.gemm(a, b, out, config=CONFIG, layout="bf16")
    assert e.value.argument == "layout"


def test_a_config_is_the_same_by_value(launches, checks):
    ops.gemm(**(given := dense()))
    checks.clear()
    ops.gemm(**given | {"config": Config(block_n=64, stages=2)})
    assert not checks


def test_expressions_are_the_same_by_identity():
    """Those that are equal may mean different bits: -0.0 == 0.0."""
    plus, minus = ACC * Const(0.0), ACC * Const(-0.0)
    assert plus == minus
    one, other = kept.READ[type(plus)](plus), kept.READ[type(minus)](minus)
    assert one != other and one == kept.READ[type(plus)](plus)


def test_another_stream_is_not_another_call(launches, checks, streams):
    """Nothing is checked again, but the launch goes there; and the first stream's plan is kept."""
    given = dense()
    ops.gemm(**given)
    checks.clear()
    for stream in (7, 8, 0, 7):
        streams[0] = stream
        ops.gemm(**given)
    assert not checks and [x.stream for x in launches] == [0, 7, 8, 0, 7]
    assert launches[1] is launches[4] and launches[1].moved == {}


def test_the_stream_is_that_of_the_tensors_device(launches, streams):
    streams |= {0: 5, 1: 6}
    given = {n: seen(x, device=Device("cuda", 1)) if isinstance(x, Placed) else x
             for n, x in dense().items()}  # fmt: skip
    ops.gemm(**given)
    ops.gemm(**given)
    assert [x.stream for x in launches] == [6, 6]


def test_an_error_is_not_kept(launches, checks):
    given = dense(b=Placed(40, 80, dtype="bfloat16"))
    for _ in range(3):
        checks.clear()
        with pytest.raises(ArgumentError, match="b shape"):
            ops.gemm(**given)
        assert checks
    assert not launches and not len(front.KEPT)


def test_a_refused_launch_is_not_kept(launches, monkeypatch):
    monkeypatch.setattr(building.loaded, "launch", lambda self, plan: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ops.gemm(**dense())
    assert not len(front.KEPT)


def test_a_kept_launch_that_is_refused_is_tried_in_its_context(launches, monkeypatch):
    given, retried = dense(), []
    ops.gemm(**given)
    monkeypatch.setattr(launches[0], "start", lambda: (201,))
    retry = lambda self, plan: retried.append(plan)  # noqa: E731
    monkeypatch.setattr(building.loaded, "retry", retry, raising=False)
    assert ops.gemm(**given) is given["out"] and retried == launches


def test_what_is_not_launched_is_not_kept(launches, checks):
    given = dense(a=Placed(0, 72, dtype="bfloat16"), out=Placed(0, 40, dtype="bfloat16"))
    for _ in range(2):
        checks.clear()
        assert ops.gemm(**given) is given["out"] and checks
    assert not launches and not len(front.KEPT)


def test_an_output_that_is_not_given_is_new_every_time(launches, checks):
    given = dense(out=None)
    outs = [ops.gemm(**given) for _ in range(3)]
    assert len({x.address for x in outs}) == 3 and checks.count("a") == 1
    assert [x.moved for x in launches[1:]] == [{"d": x.address} for x in outs[1:]]
    assert all(x.shape == (24, 40) and x.dtype == "bfloat16" for x in outs)


def test_an_output_where_one_was_before_has_its_plan(launches, monkeypatch):
    """As the allocator has it, which hands out the same few addresses."""
    given, place = dense(out=None), Placed(24, 40, dtype="bfloat16")
    monkeypatch.setattr(torch_tensors.torch(), "empty", lambda *shape, **_: seen(place))
    first = ops.gemm(**given)
    monkeypatch.setattr(outputs, "maker", None)
    for _ in range(2):
        assert ops.gemm(**given).address == first.address
    assert launches[0] is launches[1] is launches[2]


def test_scales_of_the_output_are_new_with_it(launches, checks):
    given = dense(out=None, out_dtype="e4m3", config=WIDE)
    (first, scales), (second, others) = ops.gemm(**given), ops.gemm(**given)
    assert launches[1].moved == {"d": second.address, "scale_d": others.address}
    assert first.address != second.address and scales.address != others.address
    assert scales.shape == others.shape == (24, 1) and scales.strides == others.strides
    assert checks.count("a") == 1


def test_scales_given_are_returned(launches):
    out = Placed(24, 40, dtype=FP8, stride=(48, 1))
    given = dense(config=WIDE, out=out, out_dtype="e4m3", scale_out=Placed(1, 24).mT)
    for _ in range(2):
        assert ops.gemm(**given) == (out, given["scale_out"])
    assert launches[0] is launches[1]


def test_scales_in_rows_are_copied_every_time(launches, checks, monkeypatch):
    """From the tensor that is given now; and the plan reads the copy."""
    copied = []
    monkeypatch.setattr(by_row, "mn_major", lambda x: copied.append(x) or torch_tensors.mn_major(x))
    given = block(scale_a=Placed(24, 2), scale_a_layout="row")
    ops.fp8_block_gemm(**given)
    checks.clear()
    now = given | {"scale_a": seen(given["scale_a"])}
    ops.fp8_block_gemm(**now)
    assert not checks and [
        x is y for x, y in zip(copied, (given["scale_a"], now["scale_a"]), strict=True)
    ]
    assert launches[1].moved["scale_a"] not in (given["scale_a"].address, launches[0].matrices["scale_a"].pointer)  # fmt: skip


def test_workspaces_are_new_every_time(launches, checks):
    """Two launches that overlap on two streams must not derive maps in one place."""
    given = deep()
    for _ in range(3):
        assert ops.k_grouped_gemm(**given) is given["out"]
    places = [launches[0].values["group_maps"], *(x.moved["group_maps"] for x in launches[1:])]
    assert len({*places}) == 3 and checks.count("group_depths") == 1
    assert all({*x.moved} == {"group_maps"} for x in launches[1:])


def test_a_number_in_a_tensor_is_read_every_time(launches, checks, monkeypatch):
    monkeypatch.setattr(torch_tensors.torch().nn, "Parameter", (Placed, OneNumber))
    monkeypatch.setitem(kept.READ, OneNumber, kept.facts)
    given = dense(alpha=OneNumber(1))
    for _ in range(2):
        checks.clear()
        ops.gemm(**given)
        assert checks
    assert not len(front.KEPT)


@pytest.mark.parametrize("alpha", (type("Mine", (float,), {})(2.0), type("Int", (int,), {})(2)))
def test_what_no_key_can_hold_is_checked_every_time(alpha, launches, checks):
    given = dense(alpha=alpha)
    for _ in range(2):
        checks.clear()
        ops.gemm(**given)
        assert checks
    assert not len(front.KEPT)


def test_no_tensor_is_held(launches):
    given = dense(out=None)
    ops.gemm(**given)
    ops.gemm(**given)
    held = [weakref.ref(x) for x in given.values() if isinstance(x, Placed)]
    launches.clear()
    Placed.made.clear()
    given.clear()
    gc.collect()
    assert len(front.KEPT) == 1 and not [x for x in held if x()]


def test_the_table_is_bounded(launches, checks, monkeypatch):
    monkeypatch.setattr(front, "KEPT", kept.Kept(4))
    given = [dense() for _ in range(12)]
    for x in given:
        ops.gemm(**x)
        checks.clear()
        ops.gemm(**given[0])
        assert not checks  # in use, so it stays
    assert len(front.KEPT) == 4
    ops.gemm(**given[-1])
    assert not checks
    ops.gemm(**given[1])
    assert checks


def test_the_plans_of_a_call_are_bounded(launches, streams):
    given = dense()
    for stream in range(2 * front.PLANS):
        streams[0] = stream
        ops.gemm(**given)
    (repeat,) = (front.KEPT.get(k) for k in [*front.KEPT._values])
    assert len(repeat._plans) == front.PLANS
    assert [x.stream for x in launches] == [*range(2 * front.PLANS)]


@pytest.mark.parametrize("most", (4, 1024))
def test_threads(launches, streams, monkeypatch, most):
    """Eight at once, over shared and own tensors, with room for all calls and without: every call is
    launched once and returns its own output."""
    monkeypatch.setattr(front, "KEPT", kept.Kept(most))
    shared = [dense() for _ in range(6)]
    own = [[dense(out=None) if i % 2 else dense() for i in range(4)] for _ in range(8)]
    wrong = []

    def hammer(mine):
        for i, given in zip(range(100), itertools.cycle([*shared, *mine]), strict=False):
            out = ops.gemm(**given)
            if (given["out"] or out) is not out:
                wrong.append(i)

    threads = [threading.Thread(target=hammer, args=(x,)) for x in own]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(launches) == 8 * 100 and len(front.KEPT) <= most


def test_threads_put_and_drop():
    """The table itself, without anything slow between."""
    table = kept.Kept(8)

    class Used:
        used = True

    def work(seed):
        for i in range(3000):
            key = ((i * 7 + seed) % 32,)
            if table.get(key) is None:
                table.put(key, Used())

    threads = [threading.Thread(target=work, args=(x,)) for x in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(table) == 8


def test_the_functions_keep_their_names_and_signatures():
    import inspect

    assert ops.gemm.__name__ == "gemm" and "FP32 accumulation" in ops.gemm.__doc__
    assert [*inspect.signature(ops.gemm).parameters][:3] == ["a", "b", "out"]
    functions = [getattr(ops, n) for n in ops.__all__ if n.endswith("gemm")]
    assert functions and all(hasattr(f, "describe") for f in functions)


def test_keys_tell_numbers_apart():
    numbers = (0, False, 0.0, -0.0, 1, True, 1.0, math.nan, math.inf, None, "1", "nan")
    keys = {kept.READ[type(x)](x) for x in numbers}
    assert len(keys) == len(numbers) and kept.READ[float](math.nan) in keys


def test_the_door_reads_the_facts(launches):
    """Written out in `front`, they are those of `kept.facts`, from the first call on."""
    given = dense()
    for _ in range(2):
        ops.gemm(**given)
        key = next(iter(front.KEPT._values))
        tensors = [x for x in given.values() if isinstance(x, Placed)]
        assert [x for x in key if isinstance(x, tuple) and len(x) == 5] == [
            *map(kept.facts, tensors)
        ]
        kept.TENSORS.discard(Placed)
        assert kept.READ.pop(Placed)


def test_the_stream_where_torch_has_no_raw_one(monkeypatch):
    """The public function, for the device that is asked about."""
    torch = torch_tensors.torch()
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    streams = {0: SimpleNamespace(cuda_stream=7), 1: SimpleNamespace(cuda_stream=8)}
    torch.cuda = SimpleNamespace(current_stream=streams.__getitem__)
    assert [torch_tensors.current_stream(Device("cuda", i)) for i in (0, 1)] == [7, 8]


@pytest.fixture
def limit():
    yield ops.limit_sms
    ops.limit_sms(None)


def test_the_limit_of_sms_matters(launches, checks, limit):
    """Both the choice of a config and the grid follow it."""
    ops.gemm(**(given := dense()))
    for count in (64, None, 64):
        limit(count)
        checks.clear()
        ops.gemm(**given)
    assert not checks  # 64 again
    assert len(front.KEPT) == 2


def test_a_plan_under_another_limit_than_its_key_is_not_kept(launches, limit, monkeypatch):
    """Another thread may set it between the two."""
    matrix = calls.matrix
    monkeypatch.setattr(calls, "matrix", lambda t: limit(64) or matrix(t))
    ops.gemm(**dense())
    assert len(launches) == 1 and not len(front.KEPT)
