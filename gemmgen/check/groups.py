"""What one agent owes itself: its groups of wgmmas and bulk stores, and the registers they use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from . import ops
from .finding import Finding, Place
from .ops import Program
from .properties import EXIT, RACE


@dataclass(kw_only=True)
class AsyncGroups:
    """Asynchronous operations of one kind, from issue to the wait that leaves few enough groups."""

    open: list[int] = field(default_factory=list)
    closed: list[list[int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)  # operation -> the wait that ends it

    def commit(self) -> None:
        self.closed.append(self.open)
        self.open = []

    def wait(self, pending: int, at: int) -> None:
        while len(self.closed) > pending:
            for op in self.closed.pop(0):
                self.ends[op] = at

    def running(self) -> list[int]:
        return [op for group in self.closed for op in group] + self.open


@dataclass(frozen=True, kw_only=True)
class Local:
    """`ends[a]`: which wait ends each asynchronous operation of agent a. `found`: what is wrong."""

    ends: tuple[dict[int, int], ...]
    found: tuple[Finding, ...]


def local(program: Program) -> Local:
    """Follow each agent by itself."""
    ends: list[dict[int, int]] = []
    found: list[Finding] = []
    for agent in range(len(program.agents)):
        mine: dict[int, int] = {}
        found += _agent(program, agent, mine)
        ends.append(mine)
    return Local(ends=tuple(ends), found=tuple(found))


def _agent(program: Program, agent: int, ends: dict[int, int]) -> Iterator[Finding]:
    multiplies, stores, copies = (AsyncGroups(ends=ends) for _ in range(3))
    registers = _Registers(agent=agent)
    for at, op in enumerate(program.ops[agent]):
        match op:
            case ops.Wait() | ops.Arrive() | ops.Load() | ops.Read() | ops.Write():
                pass
            case ops.Multiply():
                multiplies.open.append(at)
                yield from registers.multiply(op, at)
            case ops.Commit():
                multiplies.commit()
            case ops.Retire():
                multiplies.wait(op.pending, at)
                registers.retire(multiplies.running())
            case ops.RegisterFence():
                registers.unfenced.clear()
                registers.fenced_once = True
            case ops.Touch():
                yield from registers.touch(op, at)
            case ops.Store():
                stores.open.append(at)
            case ops.StoreCommit():
                stores.commit()
            case ops.StoreWait():
                stores.wait(op.pending, at)
            case ops.Begin():
                copies.open.append(at)
                copies.commit()
            case ops.Come():
                copies.wait(op.pending, at)
    yield from _left(program, agent, multiplies, "a wgmma")
    yield from _left(program, agent, stores, "a bulk store that reads shared memory")
    yield from _left(program, agent, copies, "a copy into shared memory")


def _left(program: Program, agent: int, groups: AsyncGroups, what: str) -> Iterator[Finding]:
    running = groups.running()
    if running:
        text = f"{program.agents[agent]} exits with {what} in flight"
        places = ((agent, running[0]), (agent, len(program.ops[agent])))
        yield Finding(property=EXIT, message=text, places=places)


@dataclass(kw_only=True)
class _Registers:
    """The registers that wgmma works on, of one agent: which are a running wgmma's, which were touched unfenced."""

    agent: int
    owner: dict[str, int] = field(default_factory=dict)  # the running Multiply that works on them
    unfenced: set[str] = field(default_factory=set)
    fenced_once: bool = False

    def multiply(self, op: ops.Multiply, at: int) -> Iterator[Finding]:
        for register in (op.dst, *op.sources):
            if register in self.unfenced or not self.fenced_once:
                text = f"no wgmma.fence orders the accesses to {register} before the wgmma that uses it"
                yield Finding(property=RACE, message=text, places=((self.agent, at),))
            self.owner[register] = at

    def touch(self, op: ops.Touch, at: int) -> Iterator[Finding]:
        for register in op.registers:
            if register in self.owner:
                places: tuple[Place, ...] = ((self.agent, self.owner[register]), (self.agent, at))
                text = (
                    f"{type(op.stmt).__name__} uses {register} while a wgmma that works on it runs"
                )
                yield Finding(property=RACE, message=text, places=places)
            self.unfenced.add(register)

    def retire(self, running: list[int]) -> None:
        still = set(running)
        self.owner = {r: at for r, at in self.owner.items() if at in still}
