"""A GPU that is gone between two launches: watched kernels of the others stop, and say which one never came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collective_kinds import PLAIN
from emulated import prepared
from kernels import DENSE

from gemmgen.emulator import Deadlock, Trap, launch_ranks
from gemmgen.runtime.watchdog import WORDS, Stuck, deadlock
from gemmgen.verification import exact_integers, gathered, ranked

pytestmark = pytest.mark.nvrtc
WATCHED = replace(PLAIN, watchdog=True)
# Turns of the emulator are microseconds: 400 of them instead of two seconds, for it gives up what spins for long.
SOONER = (("2000000000ull", "400000ull"), ("200000000ull", "40000ull"))
SHAPES = {"reduce_scatter": (2 * 64, 64, 512), "all_gather": (2 * 128, 64, 256)}


class Killed:
    """`launch_ranks` where a GPU has launched but once."""

    def __init__(self, rank):
        self.rank, self.memory, self.launches = rank, None, None

    def __call__(self, launches, *, memory, schedule=None):
        self.memory = memory
        self.launches = [x[:1] if r == self.rank else x for r, x in enumerate(launches)]
        return launch_ranks(self.launches, memory=memory, schedule=schedule)

    def entries(self, kernel, rank, call):
        """Of the report of that launch."""
        names = [p.name for p in kernel.params]
        at = self.launches[rank][call].params[len(kernel.maps) + names.index("watchdog")]
        words = self.memory.read(at, 1 << 14).view(np.int32).reshape(-1, WORDS).tolist()
        return [Stuck(*x) for x in words[1 : 1 + words[0][0]]]


def run(collective, monkeypatch, config, killed, ranks=2, chunks=2):
    """Two launches of every rank but one; the kernel."""
    from gemmgen.runtime import emulated_calls, emulated_gather, emulated_ranks

    problem = replace(DENSE, collective=collective)
    kernel, program = prepared(problem, config, SOONER if config.watchdog else ())
    m, n, k = SHAPES[collective]
    shape = (m * ranks // 2, n, k)
    if collective == "reduce_scatter":
        machines = emulated_ranks.EmulatedRanks(ranks=ranks, sms=2)
        calls = [exact_integers(problem.alone, *shape, seed) for seed in range(2)]
        judge = ranked
    else:
        machines = emulated_gather.EmulatedGather(ranks=ranks, sms=2, chunks=chunks)
        calls = [gathered.drawn(exact_integers, problem, shape, ranks, seed) for seed in range(2)]
        judge = gathered
    if killed:
        monkeypatch.setattr(emulated_calls, "launch_ranks", killed)
    return kernel, lambda: (judge.run(machines, program, kernel, problem, calls), calls, judge)


@pytest.mark.parametrize(("ranks", "rank"), ((2, 1), (2, 0), (4, 2)))
@pytest.mark.parametrize("collective", SHAPES)
def test_the_others_stop_and_name_it(collective, ranks, rank, monkeypatch):
    killed = Killed(rank)
    kernel, go = run(collective, monkeypatch, WATCHED, killed, ranks)
    with pytest.raises(Trap):
        go()
    others = [r for r in range(ranks) if r != rank]
    found = [x for r in others for x in killed.entries(kernel, r, 1)]
    assert found and {x.stage for x in found} == {rank}
    said = str(deadlock(kernel, found))
    assert f"nothing came from rank(s) {rank}" in said
    what = "sums of rank" if collective == "reduce_scatter" else "rows of rank"
    assert f"{what}[{rank}]" in said
    assert ("chunk" in said) == (collective == "all_gather")
    assert not [x for r in others for x in killed.entries(kernel, r, 0)]


@pytest.mark.parametrize("collective", SHAPES)
def test_nobody_stops_where_all_come(collective, monkeypatch):
    problem = replace(DENSE, collective=collective)
    _, go = run(collective, monkeypatch, WATCHED, None)
    got, calls, judge = go()
    for whole, results in zip(calls, got, strict=True):
        from gemmgen.runtime.emulated_ranks import EmulatedRanks

        judge.check_exact(EmulatedRanks(ranks=2), problem, whole, results)


@pytest.mark.parametrize("collective", SHAPES)
def test_without_a_watchdog_they_wait_for_ever(collective, monkeypatch):
    _, go = run(collective, monkeypatch, PLAIN, Killed(1))
    with pytest.raises(Deadlock):
        go()
