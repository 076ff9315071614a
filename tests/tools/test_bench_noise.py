"""Ties: which medians the noise keeps from being told apart; and who ran whose kernel."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from gemmgen.bench import timing
from gemmgen.bench.identity import check_distinct, heaviest
from gemmgen.bench.noise import iqr, standings, tied
from gemmgen.bench.timing import Samples
from gemmgen.errors import GemmgenError


@dataclass(frozen=True)
class M:
    median: float
    iqr: float


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([5.0], 0),
        ([2, 9, 1], 8),
        ([4, 1, 3, 2], 1),
        ([1, 2, 3, 4, 100], 2),
        ([8, 7, 6, 5, 4, 3, 2, 1], 3),
    ],
)
def test_interquartile_range(values, want):
    assert iqr(values) == want


def test_samples_have_a_spread():
    s = Samples(seconds=(10.0, 11.0, 12.0, 13.0, 20.0), kernels=())
    assert (s.median, s.iqr) == (12.0, 2.0) and s.spread == pytest.approx(2 / 12)


def test_the_larger_range_decides():
    """Either's noise is enough, and a difference as large as it is still noise."""
    assert tied(M(10, 2), M(12, 0)) and tied(M(10, 0), M(12, 2)) and tied(M(12, 0), M(10, 2))
    assert not tied(M(10, 1.9), M(12, 1.9)) and not tied(M(12, 1.9), M(10, 0))
    assert tied(M(10, 0), M(10, 0))


def test_standings():
    alone = {"a": M(12, 1), "b": M(10, 1), "c": M(11.5, 0.5)}
    assert standings(alone) == {"a": "", "b": "fastest", "c": ""}
    two = {"a": M(10.5, 0.1), "b": M(10, 1), "c": M(13, 1)}
    assert standings(two) == {"a": "tie", "b": "tie", "c": ""}
    assert standings({"a": M(1, 0)}) == {"a": "fastest"}
    assert standings({}) == {}


def test_a_tie_is_with_the_fastest():
    """c is within its own noise of b, not of a."""
    chain = {"a": M(10, 1), "b": M(11, 1), "c": M(12, 1)}
    assert standings(chain) == {"a": "tie", "b": "tie", "c": ""}


def test_the_heaviest_kernel_is_no_helper():
    seconds = {"at::native::vectorized_elementwise_kernel<4>": 9.0, "nvjet_a": 2.0, "nvjet_b": 3.0}
    assert heaviest(seconds) == "nvjet_b"
    assert heaviest({"Memset (Device)": 1.0, "some_copy": 2.0}) == "some_copy"
    assert heaviest({"cublasLt::splitKreduce_kernel": 9.0, "gemm": 1.0}) == "gemm"


def test_the_same_kernel_twice_is_an_error():
    check_distinct({"gemmgen": "x", "torch.mm": "y"})
    check_distinct({})
    with pytest.raises(GemmgenError, match=r"torch\.mm and flag_gems .* y"):
        check_distinct({"torch.mm": "y", "gemmgen": "x", "flag_gems": "y"})


# ---- kernels in a profile -------------------------------------------------------------------


class Event:
    def __init__(self, name, start, us, device="cuda"):
        self.name, self.device_type = name, device
        self.time_range = self
        self.start, self.us = start, us

    def elapsed_us(self):
        return self.us


@pytest.fixture
def cuda(monkeypatch):
    types = SimpleNamespace(autograd=SimpleNamespace(DeviceType=SimpleNamespace(CUDA="cuda")))
    monkeypatch.setattr(timing, "torch", lambda: types)


def test_the_kernels_of_a_call_lie_between_two_flushes(cuda):
    flush = "bitwise_not_kernel"
    events = [
        Event("before", 0, 9),
        Event("reduce", 4, 1),
        Event(flush, 1, 50),
        Event("gemm", 3, 7),
        Event("host", 3, 99, "cpu"),
        Event(flush, 5, 50),
        Event("other", 6, 4),
        Event(flush, 7, 50),
        Event("gemm", 8, 9),
        Event(flush, 9, 50),
        Event("other", 10, 5),
    ]
    profile = SimpleNamespace(events=lambda: events)
    segments = timing._segments(profile)
    assert [[x.kernel for x in s] for s in segments] == [
        ["gemm", "reduce"],
        ["other"],
        ["gemm"],
        ["other"],
    ]
    assert [[round(x.start * 1e6, 3) for x in s] for s in segments] == [[0, 1], [0], [0], [0]]
    ours = timing.samples("a", segments[::2])
    assert ours.seconds == pytest.approx((8e-6, 9e-6))
    assert ours.kernels == ("gemm", "reduce") and ours.main == "gemm"
    assert timing.samples("b", segments[1::2]).main == "other"


def run(**microseconds):
    return tuple(timing.Timed(kernel=k, seconds=us * 1e-6) for k, us in microseconds.items())


def test_a_call_without_kernels_is_an_error():
    with pytest.raises(GemmgenError, match="b: a call left no kernel"):
        timing.samples("b", [run(gemm=1), ()])


def test_what_a_call_launches_in_order():
    runs = [run(cast=2, gemm=9), run(cast=4, gemm=7), run(cast=3, gemm=50)]
    found = timing.launches("a", runs)
    assert [x.kernel for x in found] == ["cast", "gemm"]
    assert [x.seconds for x in found] == pytest.approx([3e-6, 9e-6])
    late = [
        (a, timing.Timed(kernel="gemm", seconds=1, start=s))
        for (a, _), s in zip(runs, (5, 9, 7), strict=True)
    ]
    assert [x.start for x in timing.launches("a", late)] == [0, 7]
    with pytest.raises(GemmgenError, match="a: not every call launched the same"):
        timing.launches("a", [*runs, run(gemm=1, cast=1)])
