"""What every agent of a cluster does when, and what is under way meanwhile: simulated, or measured.

Times are whole SM cycles since the cluster began.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from ..check import ops
from ..check.ops import Agent, Op, Program
from ..ir import nodes as ir
from ..ir.promotion import PROMOTION
from .latency import Latency

Carried = Literal["load", "copy", "multiply", "store", "send", "landing", "product"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation of an agent, from the end of the one before it to its own."""

    op: Op
    start: int
    end: int

    @property
    def cycles(self) -> int:
        return self.end - self.start

    @property
    def waits(self) -> bool:
        waits = ops.Wait | ops.Retire | ops.Come | ops.StoreWait | ops.Sync | ops.Meet
        return isinstance(self.op, waits)

    @property
    def doing(self) -> str:
        """What the agent does, or what it waits for."""
        match self.op:
            case ops.Wait(bar=(name, _, _)):
                return name
            case ops.Sync(name=(kind, _, _)) | ops.Meet(name=(kind, _, _)):
                return {"named barrier": "warpgroup", "cta": "CTA"}.get(kind, kind)
            case ops.Retire():
                return "wgmma"
            case ops.Come():
                return "copies"
            case ops.StoreWait():
                return "stores"
            case ops.Touch(stmt=stmt) if isinstance(stmt, PROMOTION):
                return "promote"
            case ops.Touch(stmt=ir.Decode()):
                return "decode"
            case ops.Write():
                return "stage D"
            case ops.Rows():
                return "copy rows"
        return "issue"


@dataclass(frozen=True, kw_only=True)
class Flight:
    """What `agent`'s operation `op` left under way. cta: whose shared memory it fills, reads or empties.

    load, send: from the issue until the last byte counts on its barrier; `stage` is the ring's. copy: rows that
    threads copy, from the issue until they have come; of stamps, until their threads have waited for them. multiply: as
    long as it keeps the tensor core. store: while it reads shared memory. Of stamps, which show less: landing, a load from its
    issue until the first warpgroup has seen it; product, wgmma from commit until it is known to be done.
    """

    carried: Carried
    agent: int
    op: Op
    cta: int
    start: int
    end: int
    stage: int = 0

    @property
    def cycles(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Phase:
    """When phase `number` of a barrier completed."""

    bar: ops.Bar
    number: int
    at: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """steps: of each agent of the program, one per operation, each beginning where the one before it ended."""

    program: Program
    latency: Latency
    steps: tuple[tuple[Step, ...], ...]
    flights: tuple[Flight, ...]
    phases: tuple[Phase, ...]

    @property
    def end(self) -> int:
        """The last agent's."""
        return max(own[-1].end for own in self.steps)

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self.program.agents

    def share(self, cta: int) -> float:
        """Of the time, how much the tensor core would need at its own rate."""
        flights = sum(f.carried == "multiply" and f.cta == cta for f in self.flights)
        return flights * self.latency.tensor / max(1, self.end)

    def occupied(self, cta: int) -> float:
        """Of the time, how much the tensor core is kept."""
        kept = sum(f.cycles for f in self.flights if f.carried == "multiply" and f.cta == cta)
        return kept / max(1, self.end)

    def work(self, agent: int) -> Counter[str]:
        """Cycles by what the agent does."""
        return self._sums(agent, waits=False)

    def waiting(self, agent: int) -> Counter[str]:
        """Cycles by what the agent waits for."""
        return self._sums(agent, waits=True)

    def begins(self, agent: int) -> int:
        """Cycles before the agent's first operation."""
        return self.steps[agent][0].start

    def over(self, agent: int) -> int:
        """Cycles between the agent's end and the last one's."""
        return self.end - self.steps[agent][-1].end

    def _sums(self, agent: int, *, waits: bool) -> Counter[str]:
        found: Counter[str] = Counter()
        for s in self.steps[agent]:
            if s.waits == waits and s.cycles:
                found[s.doing] += s.cycles
        return found


def agent_name(a: Agent, first: dict[str, int]) -> str:
    """As in: CTA 1 consumer 0. first: the first warpgroup of each role."""
    where = f"CTA {a.cta} " if a.of_cluster else ""
    return f"{where}{a.role} {a.warpgroup - first[a.role]}"


def names(kernel: ir.Kernel, agents: tuple[Agent, ...]) -> tuple[str, ...]:
    """Of the agents, as a reader calls them."""
    first = {r.name: r.warpgroups[0] for r in kernel.roles}
    return tuple(agent_name(a, first) for a in agents)
