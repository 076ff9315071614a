"""P2 and P7: conflicting accesses are ordered, and generic writes are fenced for the async proxy.

Accesses to a cell are taken in the canonical order. If each write is ordered after the write and
the reads before it, and each read after the write before it, then all conflicting pairs are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import ops
from .after import After
from .clocks import Clocks
from .finding import Finding, Place, when
from .groups import Local
from .history import Access, Run
from .lanes import Lanes, lanes
from .properties import PROXY, RACE, Property


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that tells whether one access is over when another starts."""

    run: Run
    after: After
    clocks: Clocks
    local: Local
    fences: tuple[tuple[int, ...], ...]  # ProxyFences, by agent
    arrivals: tuple[tuple[int, ...], ...]  # ArrivalFences, by agent
    lanes: tuple[Lanes, ...]  # by agent
    loaded: tuple[dict[int, int], ...]  # where each generic read is over for another CTA, by agent

    def ended(self, x: Access, y: Access) -> bool:
        """x is over, in every schedule, when y starts."""
        if x.copy:
            counter, n = x.copy
            phases = self.run.counters[counter].phases
            landed = self.after.of(phases[n] if n < len(phases) else None)
            return self.lanes[y.agent].known(y.at) >= landed[y.agent]
        end = self._end(x)
        if x.generic and not x.writes and self._apart(x, y):
            end = self.loaded[x.agent].get(x.at)
        return end is not None and self._ordered((x.agent, end), y)

    def _end(self, x: Access) -> int | None:
        """The operation by which its agent knows that x is over; None if it never does."""
        return x.at if x.generic and not x.begun else self.local.ends[x.agent].get(x.at)

    def _apart(self, x: Access, y: Access) -> bool:
        """In two CTAs of one cluster: what tells y of x is an arrival there, which may overtake a load (docs/adr/0003-release-scope.md)."""
        one, other = (self.run.program.agents[a.agent] for a in (x, y))
        return one.cta != other.cta and (one.rank, one.launch) == (other.rank, other.launch)

    def fenced(self, x: Access, y: Access) -> bool:
        """The writer of x fences it before y, in every schedule."""
        fences, end = self.fences[x.agent], self._end(x)
        i = len(fences) if end is None else bisect_left(fences, end)
        return i < len(fences) and self._ordered((x.agent, fences[i]), y)

    def arrived(self, x: Access, y: Access) -> bool:
        """y's agent fences between what tells it of x and y, in every schedule."""
        fences = self.arrivals[y.agent]
        i = bisect_left(fences, y.at)
        return i > 0 and self._before((x.agent, x.at), (y.agent, fences[i - 1]))

    def _ordered(self, x: Place, y: Access) -> bool:
        return self._before(x, (y.agent, y.at))

    def _before(self, x: Place, y: Place) -> bool:
        """What all lanes of an agent did, before what all lanes of y's do."""
        (agent, at), mine = x, self.lanes[y[0]]
        if agent == y[0]:
            return mine.in_order(at, y[1])
        return self.clocks.ordered((agent, self.lanes[agent].over(at)), (y[0], mine.known(y[1])))

    def but_for_lanes(self, x: Access, y: Access) -> bool:
        """x would be over if warps were all there is."""
        return self.clocks.ordered((x.agent, x.at), (y.agent, y.at)) and x.generic and not x.copy


def order(r: Run, after: After, clocks: Clocks, local: Local) -> Order:
    apart = tuple(map(lanes, r.program.ops))
    return Order(
        run=r,
        after=after,
        clocks=clocks,
        local=local,
        fences=_fences(r, ops.ProxyFence),
        arrivals=_fences(r, ops.ArrivalFence),
        lanes=apart,
        loaded=tuple(_loaded(*of) for of in zip(r.program.ops, local.ends, strict=True)),
    )


def _loaded(mine: tuple[ops.Op, ...], ends: dict[int, int]) -> dict[int, int]:
    """Of each generic read, the first wait for products that were issued since, or store: what comes later does not overtake it."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    ending: dict[int, list[int]] = {}
    for at, op in enumerate(mine):
        for read in ending.pop(at, ()):
            found.setdefault(read, at)
        if isinstance(op, ops.Read):
            waiting.append(at)
        elif isinstance(op, ops.Multiply) and at in ends:
            ending.setdefault(ends[at], []).extend(waiting)
        elif isinstance(op, ops.Write | ops.Store):
            for read in waiting:
                found.setdefault(read, at)
            waiting.clear()
    return found


def _fences(r: Run, kind: type[ops.Op]) -> tuple[tuple[int, ...], ...]:
    """Where each agent's are."""
    return tuple(
        tuple(at for at, op in enumerate(mine) if isinstance(op, kind)) for mine in r.program.ops
    )


@dataclass(kw_only=True)
class _Cell:
    """The last write to a cell, and the reads since."""

    write: Access | None = None
    reads: list[Access] = field(default_factory=list)


def races(o: Order) -> Iterator[Finding]:
    """Every unordered or unfenced pair of neighbours."""
    cells = [_Cell() for _ in o.run.program.cells]
    for y in o.run.accesses:
        for index in y.cells:
            cell = cells[index]
            if cell.write:
                yield from _pair(o, index, cell.write, y)
            if y.writes:
                for x in cell.reads:
                    yield from _pair(o, index, x, y)
                cell.write, cell.reads = y, []
            else:
                cell.reads.append(y)


def _pair(o: Order, cell: int, x: Access, y: Access) -> Iterator[Finding]:
    if not o.ended(x, y):
        yield _finding(o, cell, x, y, RACE, "while it may still be", _lanes(o, x, y))
    elif x.writes and x.generic and not y.generic and not (o.fenced(x, y) or o.arrived(x, y)):
        yield _finding(o, cell, x, y, PROXY, "through the async proxy, not fenced from")


def _lanes(o: Order, x: Access, y: Access) -> str:
    if not o.but_for_lanes(x, y):
        return ""
    return ", by other lanes than the one that says it is over: they have not met since"


def _finding(
    o: Order, cell: int, x: Access, y: Access, property: Property, link: str, why: str = ""
) -> Finding:
    text = f"{o.run.program.cells[cell]}: {_who(o, y)} {link} {_done(o, x)}{why}"
    return Finding(property=property, message=text, places=((x.agent, x.at), (y.agent, y.at)))


def _who(o: Order, y: Access) -> str:
    verb = {(True, True): "writes it", (True, False): "loads into it"}.get(
        (y.writes, y.generic), "reads it"
    )
    return f"{o.run.program.agents[y.agent]} {verb}{_when(o, y)}"


def _done(o: Order, x: Access) -> str:
    verb = {(True, True): "written", (True, False): "loaded into"}.get(
        (x.writes, x.generic), "read"
    )
    return f"{verb} by {o.run.program.agents[x.agent]}{_when(o, x)}"


def _when(o: Order, x: Access) -> str:
    text = when(o.run.program.ops[x.agent][x.at])
    return f" ({text})" if text else ""
