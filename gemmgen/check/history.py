"""What the canonical schedule records: the history of every barrier, every wait and every access.

Barriers and rendezvous are numbered together and called counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.exchange import PARTIALS
from .finding import Finding, Place
from .ops import EPOCHS, LAUNCH, OWN, PACKED, PASSED, SENT, Bar, Program
from .parcels_meaning import PUSHES, packed

UNWRITTEN = (-2, -2)
FLAGS = (PARTIALS, EPOCHS, LAUNCH, OWN, PASSED, PACKED, SENT)


@dataclass(kw_only=True)
class Tally:
    """What one agent contributes to one counter: where, and how much so far (a leading 0)."""

    at: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=lambda: [0])

    def add(self, at: int, amount: int) -> None:
        self.at.append(at)
        self.sums.append(self.sums[-1] + amount)


@dataclass(kw_only=True)
class Counter:
    """An mbarrier or a rendezvous: its state, and the history of what reached it."""

    name: Bar
    total: int  # contributions per phase
    synchronises: bool = False  # a rendezvous: its arrivals are its waits
    made: Place | None = None  # its Init
    phase: int = 0
    pending: int = 0
    tx: int = 0
    announced: int = 0  # bytes, since the start
    arrivals: dict[int, Tally] = field(default_factory=dict)  # by agent
    landings: dict[int, Tally] = field(default_factory=dict)  # bytes, by agent
    bytes_by: list[int] = field(default_factory=list)  # announced up to the end of each phase
    phases: list[int] = field(default_factory=list)  # indices in Run.phases
    waits: list[tuple[int, int, int]] = field(default_factory=list)  # agent, op, phase
    placed: list[tuple[int, int, int]] = field(default_factory=list)  # arrivals: agent, op, phase
    landed: list[tuple[int, int, int]] = field(default_factory=list)  # copies: agent, op, phase
    inside: list[Place] = field(default_factory=list)  # a rendezvous' present arrivals
    numbered: list[Place] = field(default_factory=list)  # reads of how many phases are over

    @property
    def counts_bytes(self) -> bool:
        return bool(self.landings) or self.announced > 0


@dataclass(frozen=True, kw_only=True)
class Access:
    """Agent's operation touches cells; an asynchronous copy does until its phase completes, one that its thread waits for (`begun`) until
    that has."""

    agent: int
    at: int
    cells: tuple[int, ...]
    writes: bool
    generic: bool
    copy: tuple[int, int] | None = None  # counter and phase on which its bytes land
    begun: bool = False


@dataclass(kw_only=True)
class Run:
    """The schedule's history. `phases` are (counter, phase) in the order they completed."""

    program: Program
    counters: list[Counter] = field(default_factory=list)
    index: dict[Bar, int] = field(default_factory=dict)
    phases: list[tuple[int, int]] = field(default_factory=list)
    acquires: list[tuple[int, int, int]] = field(default_factory=list)  # agent, op, phase index
    accesses: list[Access] = field(default_factory=list)
    fences: dict[int, list[int]] = field(default_factory=dict)  # InitFences, by agent
    content: list[tuple[int, int]] = field(default_factory=list)  # tile, K block, by cell
    done: list[int] = field(default_factory=list)  # operations completed, by agent
    found: list[Finding] = field(default_factory=list)
    stale: list[Finding] = field(default_factory=list)  # the first read of other bytes than meant

    def there(self, bar: Bar) -> bool:
        """Whether it is initialised. Flags in global memory always are: down, before the launch. So are ends of launches, which
        come with the last agent's, and epochs, which the last CTA passes."""
        if bar[0] in FLAGS and bar not in self.index:
            totals = {LAUNCH: self._launched, PASSED: self._ctas, PACKED: self._packed}
            total = totals.get(bar[0], _one)(bar)
            self.index[bar] = len(self.counters)
            self.counters.append(Counter(name=bar, total=total, pending=total))
        return bar in self.index

    def _launched(self, bar: Bar) -> int:
        """What sends parcels may outlive it."""
        every = (a for a in self.program.agents if a.role != PUSHES)
        return sum((a.rank, a.launch) == bar[1:] for a in every)

    def _packed(self, bar: Bar) -> int:
        return packed(self.program.kernel, self.program.instance, bar)

    def _ctas(self, bar: Bar) -> int:
        return self.program.instance.ctas * self.program.kernel.cluster.size

    def fail(self, finding: Finding) -> bool:
        self.found.append(finding)
        return False

    def complete(self, index: int) -> None:
        """The phase of a counter is over, if nothing is missing."""
        c = self.counters[index]
        if c.pending == 0 and c.tx == 0:
            c.phases.append(len(self.phases))
            self.phases.append((index, c.phase))
            c.bytes_by.append(c.announced)
            c.phase += 1
            c.pending = c.total


def _one(bar: Bar) -> int:
    return 1
