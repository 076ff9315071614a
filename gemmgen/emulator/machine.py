"""The machine: CTAs, clusters, and the launch that runs them to completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .barriers import ClusterBarrier, NamedBarrier
from .bulk_groups import BulkGroups, Warp
from .errors import Deadlock, EmulatorError, IllegalAccess, ProtocolError
from .fiber import LANES, WARP
from .flags import Origin, Past
from .floats import APPROXIMATE
from .group import Group
from .memory import GlobalMemory
from .program import Program
from .schedule import Pending, Schedule, Turn
from .shared import SharedMemory
from .spaces import OFFSET_MASK, RANK_SHIFT, Spans
from .stats import Stats
from .thread_copies import ThreadCopies
from .tracker import ORDERED, Tracker

REGISTER_FILE = 65536  # 32-bit registers of an SM
MOST_REGISTERS = 256  # per thread, as allocated
SHARED_LIMIT = 232448  # bytes of dynamic and static shared memory per CTA

# Instructions without a store, an arrival, a completion or an exit: after so many, threads may be
# waiting in loops for a CTA that has not started; and after so many, for something that never comes.
IDLE = 10_000
STUCK = 300_000

Progress = Callable[[int, int], None]


@dataclass
class Pool:
    """Registers of the CTA that no warpgroup holds."""

    free: int = 0


class Cta:
    """One thread block: its groups of threads, shared memory and barriers."""

    def __init__(self, launch: GridRun, cluster: Cluster, rank: int) -> None:
        self.launch, self.cluster, self.rank = launch, cluster, rank
        self.index = cluster.index * cluster.size + rank
        self.grid, self.block = launch.grid, launch.block
        self.shared_bytes = launch.shared_bytes
        end = launch.program.scope.static_end + launch.shared_bytes
        self.shared = SharedMemory(end, cluster.tracker, self.index)
        self.named: dict[int, NamedBarrier] = {}
        self.bulk: dict[int, BulkGroups] = {}  # by thread
        self.bulk_warps: dict[int, Warp] = {}
        self.copies: dict[int, ThreadCopies] = {}  # by thread
        self.pool = Pool()
        self.exited = False
        self.incoming: dict[int, tuple[int, int, str]] = {}  # agent -> its last time here, lanes
        starts = range(0, self.block, LANES)
        self.groups = [Group(self, x, min(LANES, self.block - x), launch.program) for x in starts]
        for g in self.groups:
            g.registers = min(REGISTER_FILE // self.block // 8 * 8, MOST_REGISTERS)

    def live_threads(self) -> int:
        """Whole warps count until their last thread exits."""
        return WARP * self.live_warps()

    def live_warps(self) -> int:
        return sum(int(g.live.reshape(-1, WARP).any(1).sum()) for g in self.groups)

    def touched(self, agent: int, time: int, text: str, lanes: int = 0) -> None:
        """A load or another CTA's arrival comes in: this CTA may only exit after that."""
        self.incoming[agent] = (time, lanes, text)

    def threads_left(self, text: str) -> None:
        """Some threads have exited: barriers may be complete without them."""
        for barrier in self.named.values():
            barrier.check(self, text)
        self.cluster.barrier.check()

    def group_done(self, group: Group) -> None:
        self.launch.stats.finished(group)
        products = group.wgmma
        if products is not None and (products.current or products.waited < products.committed):
            raise ProtocolError(
                f"CTA {self.index}: warps {group.first_warp} and on exit without waiting for their wgmma"
            )
        if all(g.done for g in self.groups):
            self._exit()

    def _exit(self) -> None:
        self.exited = True
        for groups in self.bulk.values():
            groups.check_exit(self.index)
        for thread, copies in self.copies.items():
            copies.check_exit(thread, self.index)
        for barrier in self.shared.barriers.values():
            if barrier.tx:
                raise ProtocolError(f"CTA {self.index} exits with bytes outstanding: {barrier}")
        for named in self.named.values():
            if named.arrived:
                raise ProtocolError(
                    f"CTA {self.index} exits with {named.arrived} threads at barrier {named.number}"
                )
        self.launch.cta_done()

    def check_incoming(self) -> None:
        """What came in is ordered before the exit, whatever the schedule."""
        final = self._final()
        for agent, (time, lanes, text) in self.incoming.items():
            if not self.cluster.tracker.covers(final, agent, time, lanes):
                raise ProtocolError(
                    f"CTA {self.index} may exit before {text}: nothing in it waits for that"
                )

    def _final(self) -> Any:
        """What some thread of it is ordered after."""
        tracker, warps = self.cluster.tracker, range(-(-self.block // WARP))
        agents = [tracker.warp(self.rank, w) for w in warps]
        return np.max([tracker.latest(a)[ORDERED] for a in agents], 0)


class Cluster:
    """CTAs that can reach each other's shared memory."""

    def __init__(self, launch: GridRun, index: int, size: int) -> None:
        self.launch, self.index, self.size = launch, index, size
        past = launch.past
        self.origin = Origin(past.device, past.launch, index)
        self.tracker = Tracker(size, -(-launch.block // WARP), past)
        self.barrier = ClusterBarrier(cluster=self)
        self.pending: list[Pending] = []
        self.acquired_maps: dict[tuple[int, int], int] = {}  # (agent, address) -> write seen
        self.ctas: list[Cta] = []
        for rank in range(size):
            self.ctas.append(Cta(launch, self, rank))

    @property
    def groups(self) -> list[Group]:
        return [g for cta in self.ctas for g in cta.groups]

    @property
    def done(self) -> bool:
        return not self.pending and all(cta.exited for cta in self.ctas)

    def live_warps(self) -> int:
        return sum(cta.live_warps() for cta in self.ctas)

    def cta(self, rank: int, text: str) -> Cta:
        if not 0 <= rank < self.size:
            raise IllegalAccess(f"{text}: CTA rank {rank} in a cluster of {self.size}")
        return self.ctas[rank]

    @staticmethod
    def address(rank: int, address: int) -> int:
        """The shared::cluster address of the same place in the CTA of that rank."""
        return address & OFFSET_MASK | rank << RANK_SHIFT

    def start(self, complete: Callable[[], None], text: str, stream: object = None) -> None:
        """An asynchronous operation begins."""
        born = self.launch.stats.turns
        self.launch.moved()
        self.pending.append(Pending(complete=complete, text=text, stream=stream, born=born))

    def completable(self) -> list[Pending]:
        """The first of each stream, and all that belong to none."""
        found, streams = [], set()
        for p in self.pending:
            if p.stream is None or id(p.stream) not in streams:
                found.append(p)
                streams.add(id(p.stream))
        return found


@dataclass(kw_only=True, eq=False)
class GridRun:
    """One kernel launch. `resident` clusters run at once, and the next one starts when one of them is over, or if none can go
    on without it."""

    program: Program
    grid: int
    block: int
    cluster_size: int
    shared_bytes: int
    params: bytes
    memory: GlobalMemory
    schedule: Schedule
    on_progress: Progress | None = None
    most_turns: int | None = None
    overlaps: bool = False
    ready: Spans = ()
    resident: int = 1
    past: Past = field(default_factory=Past)
    stats: Stats = field(default_factory=Stats)
    ctas_done: int = 0
    idle: int = 0  # instructions since something happened that other threads can see

    def run(self) -> Stats:
        waiting = list(range(self.grid // self.cluster_size))
        active: list[Cluster] = []
        self.begin()
        with np.errstate(all="ignore"):
            while waiting or active:
                try:
                    active = self._turn(waiting, active)
                except EmulatorError as e:
                    raise explained(e, active) from e
        return self.stats

    def begin(self) -> None:
        roots = {i.parts[0] for i in self.program.body}
        self.stats.approximate = frozenset(roots & set(APPROXIMATE))

    def _turn(self, waiting: list[int], active: list[Cluster]) -> list[Cluster]:
        """The clusters that are not over after one turn, with one more if those can do nothing."""
        room = len(active) < (self.resident if waiting else 1)
        if room or self._spins(bool(waiting)) or not self._step(active):
            if not waiting:
                self._deadlock(active)
            active.append(Cluster(self, waiting.pop(0), self.cluster_size))
            self.moved()
        return self._retire(active)

    def _step(self, active: Sequence[Cluster]) -> bool:
        """One turn. False if nothing is possible."""
        turn = chosen(self.schedule, active, self.stats.turns, self.idle)
        self.stats.turns += 1
        take(turn, active)
        return turn is not None

    def moved(self) -> None:
        self.idle = 0

    def _spins(self, more: bool) -> bool:
        """Threads run and nothing comes of it; `more` CTAs could be started."""
        if self.most_turns is not None and self.stats.turns > self.most_turns:
            raise Deadlock(f"still running after {self.most_turns} turns")
        return self.idle > (IDLE if more else STUCK)

    def _retire(self, active: list[Cluster]) -> list[Cluster]:
        return retired(active)

    def _deadlock(self, active: Sequence[Cluster]) -> None:
        raise deadlock(active)

    def cta_done(self) -> None:
        self.ctas_done += 1
        if self.on_progress:
            self.on_progress(self.ctas_done, self.grid)


def chosen(schedule: Schedule, active: Sequence[Cluster], turn: int, idle: int) -> Turn | None:
    """What happens next; None if nothing is possible. idle: instructions since something came of one."""
    groups = [g for c in active for g in c.groups if g.fibers and g.can_run()]
    pending = [p for c in active for p in c.completable()]
    if not groups and not pending:
        return None
    if pending and idle > IDLE:  # who spins may wait for what they do
        groups = []
    return schedule.next(groups, pending, turn)


def take(turn: Turn | None, active: Sequence[Cluster]) -> None:
    """Let it happen."""
    if turn is None:
        return
    if turn.pending is not None:
        for cluster in active:
            if turn.pending in cluster.pending:
                cluster.pending.remove(turn.pending)
                cluster.launch.moved()
        turn.pending.complete()
    elif turn.group is not None:
        executed = turn.group.run(turn.budget, turn.warps)  # may set idle to 0
        turn.group.cta.launch.idle += executed


def retired(active: Sequence[Cluster]) -> list[Cluster]:
    """Those of them that are not over."""
    for cluster in active:
        if cluster.done:
            for cta in cluster.ctas:
                cta.check_incoming()
    return [c for c in active if not c.done]


def deadlock(active: Sequence[Cluster]) -> Deadlock:
    lines = [line for c in active for g in c.groups for line in g.waits()]
    return Deadlock("nothing can run any more:\n" + "\n".join(lines))


def explained(e: EmulatorError, active: Sequence[Cluster]) -> EmulatorError:
    """`e`, and what nobody has heeded that may be the reason."""
    unheeded = [x for c in active for g in c.groups for x in g.unheeded()]
    return type(e)("\n".join([str(e), *unheeded]))
