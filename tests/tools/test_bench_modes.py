"""How a bench measures: its choices, what rotates, how calls become samples."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest

from gemmgen.bench import modes, timing
from gemmgen.bench.cases import MOST_COPIES, copies
from gemmgen.bench.clocks import Log, Reading
from gemmgen.bench.modes import AHEAD, FEWEST_CALLS, MOST_CALLS, ROUNDS, Method, in_turn, rotating
from gemmgen.bench.timing import FLUSH_BYTES, MARK_BYTES, WARMUP, Samples
from gemmgen.errors import ArgumentError


def test_the_default_is_what_it_was():
    m = Method()
    assert (m.mode, m.pace, m.cold, m.repeats, m.single, m.fresh) == (
        "kernel",
        "burst",
        "flush",
        15,
        True,
        False,
    )
    assert m.title == "cold L2, device time, medians" and m.seconds >= 3


@pytest.mark.parametrize(
    ("given", "cold", "title"),
    [
        ({"mode": "operator"}, "rotate", "rotating inputs, wall time of whole calls, medians"),
        ({"mode": "chain"}, "flush", "cold L2, a chain replayed from a CUDA graph"),
        ({"mode": "cudagraph", "l2": "warm"}, "warm", "warm L2, calls replayed"),
        ({"pace": "sustained"}, "rotate", "back to back, sustained for 3 s, medians"),
        ({"l2": "rotate"}, "rotate", "rotating inputs, device time, medians"),
    ],
)
def test_how_inputs_leave_the_l2(given, cold, title):
    assert Method(**given).cold == cold and title in Method(**given).title


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("--mode", {"mode": "kernels"}),
        ("--pace", {"pace": "slow"}),
        ("--l2", {"l2": "cold"}),
        ("--l2", {"l2": "flush", "mode": "operator"}),
        ("--l2", {"l2": "flush", "mode": "cudagraph"}),
        ("--l2", {"l2": "flush", "pace": "sustained"}),
        ("--l2", {"l2": "rotate", "mode": "chain"}),
        ("--pace", {"pace": "sustained", "mode": "chain"}),
        ("--repeats", {"repeats": 0}),
        ("--seconds", {"seconds": 0.0}),
        ("--seconds", {"seconds": float("nan")}),
    ],
)
def test_other_methods_are_refused(argument, given):
    with pytest.raises(ArgumentError) as e:
        Method(**given)
    assert e.value.argument == argument


# ---- rotation -------------------------------------------------------------------------------


@pytest.mark.parametrize("providers", [1, 2, 3, 7])
@pytest.mark.parametrize("bytes_", [1 << 20, 3_000_000, 60 << 20, 1 << 30])
def test_copies_exceed_twice_the_l2(bytes_, providers):
    l2 = 60 << 20
    count = copies(bytes_, l2, providers)
    assert count * bytes_ > 2 * l2 and count % providers == 0
    fewer = count - providers
    assert fewer <= 0 or fewer * bytes_ <= 2 * l2


def test_too_many_copies_are_refused():
    with pytest.raises(ArgumentError, match=f"at most {MOST_COPIES}") as e:
        copies(1000, 60 << 20, 2)
    assert (e.value.argument, e.value.value) == ("--l2", "rotate")


def test_calls_take_turns():
    call = in_turn([lambda i=i: i for i in range(4)], 3)
    assert [call() for _ in range(6)] == [3, 0, 1, 2, 3, 0]


@pytest.mark.parametrize(("providers", "count"), [(2, 2), (2, 6), (3, 6), (3, 3)])
def test_between_two_uses_of_a_copy_all_copies_are_used(providers, count):
    """Whoever uses it: else one provider would find in the L2 what another has just read."""
    turns = {str(p): [lambda c=c: c for c in range(count)] for p in range(providers)}
    calls = rotating(turns)
    used = [call() for _ in range(2 * count) for call in calls.values()]
    last: dict[int, int] = {}
    for at, copy in enumerate(used):
        assert at - last.get(copy, at - count) >= count - providers + 1
        last[copy] = at
    assert {*used} == {*range(count)}


def test_everything_is_warmed_up(torch):
    ran: list[str] = []
    modes.warm_up({"x": [lambda: ran.append("x0"), lambda: ran.append("x1")]})
    assert ran == ["x0", "x1", *["x0"] * WARMUP]


# ---- timing, over a fake device -------------------------------------------------------------


@dataclass
class Device:
    """A stream whose calls take `seconds` each; the host takes none but as the clock says."""

    seconds: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    ran: list[str] = field(default_factory=list)
    capturing: list[str] | None = None

    def call(self, name):
        if self.capturing is not None:
            self.capturing.append(name)
            return
        self.ran.append(name)
        self.now += self.seconds[name]


@pytest.fixture
def torch(monkeypatch):
    device = Device()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = device.now

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    class Graph:
        def replay(self):
            for name in self.calls:
                device.call(name)

        def __enter__(self):
            device.capturing = []

        def __exit__(self, *_):
            self.calls, device.capturing = device.capturing, None

    cuda = SimpleNamespace(
        Event=Event, CUDAGraph=Graph, graph=lambda g: g, synchronize=lambda: None
    )
    monkeypatch.setattr(modes, "torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(modes, "time", SimpleNamespace(monotonic=lambda: device.now))
    return device


def run(device, method, seconds, count=2, log=None, step=modes.nothing):
    device.seconds = seconds
    turns = {n: [lambda n=n: device.call(n)] * count for n in seconds}
    launched = {n: Samples(seconds=(1.0,), kernels=(f"k{n}",), main=f"k{n}") for n in seconds}
    return modes.measure(method, turns, launched, log or Log(source="none"), step)


@pytest.mark.parametrize("mode", ["operator", "cudagraph"])
def test_bursts_take_turns(torch, mode):
    found = run(torch, Method(mode=mode, repeats=4), {"a": 1e-3, "b": 4e-4})
    assert found["a"].seconds == pytest.approx((1e-3,) * 4)
    assert found["b"].seconds == pytest.approx((4e-4,) * 4)
    assert found["a"].kernels == ("ka",) and found["b"].main == "kb"
    changes = [x for x, before in zip(torch.ran, ["", *torch.ran], strict=False) if x != before]
    assert changes[-8:] == ["a", "b"] * 4


def test_a_sample_is_many_short_calls(torch):
    run(torch, Method(mode="operator", repeats=1), {"a": 1e-6, "b": 1.0})
    assert torch.ran.count("a") == FEWEST_CALLS + MOST_CALLS
    assert torch.ran.count("b") == 2 * FEWEST_CALLS


@pytest.mark.parametrize(("pace", "rounds"), [("burst", 1), ("sustained", 2)])
def test_rounds_are_told_between_them(torch, pace, rounds):
    method = Method(mode="operator", pace=pace, seconds=0.1)
    told = []
    run(torch, method, {"a": 1e-3}, step=lambda: told.append(len(torch.ran)))
    assert len(told) == rounds == method.rounds and told[-1] == len(torch.ran)


def test_a_graph_holds_every_copy(torch):
    run(torch, Method(mode="cudagraph", repeats=1), {"a": 1.0}, count=20)
    assert torch.ran.count("a") == FEWEST_CALLS + 2 * 20  # a replay to try it, a replay timed


def test_sustained_runs_last_and_settle(torch):
    """Half as fast from the middle of each run on: only that half counts."""
    log = Log(source="NVML")
    method = Method(mode="operator", pace="sustained", seconds=4.0)
    device, steps = torch, []

    class Slower(dict):
        def __getitem__(self, name):
            steps.append(device.now)
            return 0.02 if (device.now - self.began) % 4.0 >= 1.9 else 0.01

    device_seconds = Slower(a=0.0)
    device_seconds.began = FEWEST_CALLS * 0.01
    log.readings.append(Reading(at=1.0, sm_mhz=1980, watts=1, celsius=1))
    log.readings.append(Reading(at=3.0, sm_mhz=1500, watts=2, celsius=2))
    found = run(device, method, device_seconds, log=log)["a"]
    assert device.now >= ROUNDS * method.seconds
    assert found.median == pytest.approx(0.02)
    assert (found.clocks.sm_mhz, found.clocks.readings) == (1500, 1)


def test_sustained_runs_take_turns(torch):
    run(torch, Method(pace="sustained", seconds=1.0), {"a": 0.1, "b": 0.1})
    ran = torch.ran[2 * FEWEST_CALLS :]
    changes = [x for x, before in zip(ran, ["", *ran], strict=False) if x != before]
    assert changes == ["a", "b"] * ROUNDS and ran.count("a") >= ROUNDS * 10


def test_the_host_waits_for_samples_it_is_ahead_of(torch, monkeypatch):
    """Not for the last one, or the device would rest."""
    waited: list[int] = []
    made: list[object] = []

    class Event:
        def __init__(self, enable_timing):
            made.append(self)

        def record(self):
            self.at = torch.now

        def synchronize(self):
            waited.append(len(made) - made.index(self))

        def elapsed_time(self, other):
            return 1.0

    monkeypatch.setattr(modes.torch().cuda, "Event", Event)
    torch.seconds = {"a": 0.1}
    modes._without_rest(lambda: torch.call("a"), 1, 2.0)
    assert {*waited[:-1]} == {AHEAD} and waited[-1] == 1


@pytest.mark.parametrize(
    ("given", "flushed"), [({}, FLUSH_BYTES), ({"l2": "rotate"}, MARK_BYTES), ({"l2": "warm"}, 4)]
)
def test_bursts_of_kernels_flush_if_told_to(torch, monkeypatch, given, flushed):
    seen = {}

    def interleave(calls, repeats, flush_bytes):
        seen["flush"], seen["repeats"] = flush_bytes, repeats
        return {n: Samples(seconds=(1.0,), kernels=(n,), main=n) for n in calls}

    monkeypatch.setattr(modes, "interleave", interleave)
    assert {*run(torch, Method(repeats=9, **given), {"a": 1.0, "b": 1.0})} == {"a", "b"}
    assert seen == {"flush": flushed, "repeats": 9}


def test_the_clock_of_a_burst(torch, monkeypatch):
    monkeypatch.setattr(
        modes, "interleave", lambda calls, *_: {"a": Samples(seconds=(1.0,), kernels=())}
    )
    log = Log(source="NVML", readings=[Reading(at=0.05, sm_mhz=1700, watts=1, celsius=1)])
    assert run(torch, Method(), {"a": 1.0}, log=log)["a"].clocks.sm_mhz == 1700
    assert time.monotonic() > 0


# ---- kernels, over a fake profiler ----------------------------------------------------------


class Profiled:
    """A torch whose calls leave (kernel, microseconds) where a profiler looks."""

    profiler = SimpleNamespace(ProfilerActivity=SimpleNamespace(CUDA="cuda"))
    autograd = SimpleNamespace(DeviceType=SimpleNamespace(CUDA="cuda"))
    cuda = SimpleNamespace(synchronize=lambda: None)
    int32 = "int32"

    def __init__(self):
        self.launched: list[tuple[str, float]] = []
        self.profiler = SimpleNamespace(**vars(self.profiler), profile=self.profile)

    def empty(self, size, **_):
        return SimpleNamespace(bitwise_not_=lambda: self.launch("bitwise_not_kernel", 50.0))

    def launch(self, name, us):
        self.launched.append((name, us))

    @contextmanager
    def profile(self, **_):
        first = len(self.launched)

        def event(at, name, us):
            span = SimpleNamespace(start=at, elapsed_us=lambda: us)
            return SimpleNamespace(device_type="cuda", name=name, time_range=span)

        yield SimpleNamespace(
            events=lambda: [event(i, *x) for i, x in enumerate(self.launched[first:])]
        )


def test_calls_that_share_a_kernel_are_told_apart(monkeypatch):
    """Tuning's candidates may have kernels of one name; that they are one provider's is no error there."""
    fake = Profiled()
    monkeypatch.setattr(timing, "torch", lambda: fake)
    calls = {f"candidate {i}": partial(fake.launch, "gemm", 10.0 * (i + 1)) for i in range(3)}
    found = timing.interleave(calls, 4)
    assert [s.median for s in found.values()] == pytest.approx([1e-5, 2e-5, 3e-5])
    assert {s.main for s in found.values()} == {"gemm"}
    assert all(len(s.seconds) == 4 for s in found.values())
