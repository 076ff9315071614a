"""An explicit-state explorer of unrolled programs: every interleaving, every order of landings.

It shares nothing with the prover but the operations: parities are parities, an mbarrier is a phase,
a pending count and a tx-count, and a state is everything the machine would hold. It answers for
small programs only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.check import ops
from gemmgen.check.ops import Program

# Steps that neither look at nor change anything another agent can see: taken at once.
SILENT = (ops.Commit, ops.StoreCommit, ops.RegisterFence, ops.Touch)
MAX_TX = (1 << 20) - 1


class Bug(Exception):
    """Some interleaving goes wrong."""


@dataclass(frozen=True)
class Verdict:
    states: int
    bug: str | None = None
    complete: bool = True  # False: gave up at the limit of states


@dataclass(frozen=True)
class State:
    pcs: tuple[int, ...]
    bars: tuple[tuple[int, int, int] | None, ...]  # phase, pending, tx
    content: tuple[tuple[int, int] | None, ...]  # tile and K block, by cell
    flying: frozenset[tuple[int, int, int]]  # agent, operation, copy
    dirty: frozenset[tuple[int, int]]  # cell, writer: written generically, not fenced
    unfenced: frozenset[tuple[int, int]]  # barrier, initialiser


def explore(program: Program, limit: int = 200_000) -> Verdict:
    """Visit every reachable state, or stop at a bug or after `limit` states."""
    seen = 0
    try:
        machine = Machine(program)
        start = machine.settle(machine.start())
        known, stack = {start}, [start]
        while stack:
            seen = len(known)
            if seen > limit:
                return Verdict(seen, complete=False)
            for state in machine.successors(stack.pop()):
                state = machine.settle(state)
                if state not in known:
                    known.add(state)
                    stack.append(state)
    except Bug as bug:
        return Verdict(seen, bug=str(bug))
    return Verdict(seen)


class Machine:
    def __init__(self, program: Program) -> None:
        self.agents = program.agents
        self.ops = program.ops
        self.ends = tuple(len(mine) for mine in program.ops)
        self.bars: dict = {}
        self.counts: list[int] = []
        for mine in program.ops:
            for op in mine:
                if isinstance(op, ops.Init):
                    if op.bar in self.bars:
                        raise Bug("initialised twice")
                    if not 0 < op.count <= MAX_TX:
                        raise Bug("a count no mbarrier can hold")
                    self.bars[op.bar] = len(self.counts)
                    self.counts.append(op.count)
        self.cells = len(program.cells)
        self.reading = [self.async_reads(agent) for agent in range(len(self.agents))]
        self.readers: dict[int, list[int]] = {}
        for agent, per_pc in enumerate(self.reading):
            for cell in set().union(*per_pc):
                self.readers.setdefault(cell, []).append(agent)
        self.stored(program)

    def async_reads(self, agent: int) -> list[frozenset[int]]:
        """The cells that wgmmas and bulk stores in flight read, before each of the agent's steps.

        What an agent does alone goes wrong here, or never: its registers and its groups.
        """
        out, kinds = [], {"mma": ([], []), "store": ([], [])}
        busy: set[str] = set()
        dangling: set[str] = {"?"}  # registers touched since the last fence; "?": never fenced
        for op in self.ops[agent]:
            out.append(frozenset(c for kind in kinds.values() for c in _cells(kind)))
            match op:
                case ops.Multiply():
                    if "?" in dangling or op.dst in dangling:
                        raise Bug("wgmma on registers without a fence")
                    kinds["mma"][0].append(op)
                    busy.add(op.dst)
                case ops.Store():
                    kinds["store"][0].append(op)
                case ops.Commit():
                    _commit(kinds["mma"])
                case ops.StoreCommit():
                    _commit(kinds["store"])
                case ops.Retire():
                    _drop(kinds["mma"], op.pending)
                    busy = {x.dst for x in _members(kinds["mma"])}
                case ops.StoreWait():
                    _drop(kinds["store"], op.pending)
                case ops.RegisterFence():
                    dangling = set()
                case ops.Touch():
                    if busy & set(op.registers):
                        raise Bug("a wgmma in flight owns the registers")
                    dangling |= set(op.registers)
        if any(_members(kind) for kind in kinds.values()):
            raise Bug("exit with work in flight")
        return [*out, frozenset()]

    def stored(self, program: Program) -> None:
        """Each element of each tile by one store, counted element by element on a coarse grid."""
        block, grid = program.kernel.block, 8
        hits: dict = {}
        tails: dict = {}
        for agent, mine in zip(program.agents, program.ops, strict=True):
            for op in mine:
                if isinstance(op, ops.Store | ops.Tail):
                    counts, times = (
                        (hits, op.times) if isinstance(op, ops.Store) else (tails, op.threads)
                    )
                    for row in range(op.rect[0], op.rect[1], grid):
                        for col in range(op.rect[2], op.rect[3], grid):
                            at = agent.cta, op.tile, row, col
                            counts[at] = counts.get(at, 0) + times
        ctas = {agent.cta for agent in program.agents}
        want = {
            (c, t, row, col)
            for c in ctas
            for t in range(program.instance.tiles)
            for row in range(0, block.m, grid)
            for col in range(0, block.n, grid)
        }
        if set(hits) != want or set(hits.values()) != {1}:
            raise Bug("a tile is not stored exactly once")
        if set(tails) != want or set(tails.values()) != {128}:
            raise Bug("a tail is not stored exactly once")

    def start(self) -> State:
        return State(
            pcs=(0,) * len(self.agents),
            bars=(None,) * len(self.counts),
            content=(None,) * self.cells,
            flying=frozenset(),
            dirty=frozenset(),
            unfenced=frozenset(),
        )

    def settle(self, s: State) -> State:
        pcs = list(s.pcs)
        for agent, mine in enumerate(self.ops):
            while pcs[agent] < len(mine) and isinstance(mine[pcs[agent]], SILENT):
                pcs[agent] += 1
        return s if tuple(pcs) == s.pcs else _with(s, pcs=tuple(pcs))

    def successors(self, s: State) -> list[State]:
        out = [new for agent in range(len(self.agents)) for new in self.step(s, agent)]
        out += [self.land(s, copy) for copy in s.flying]
        if not out:
            if s.pcs != self.ends:
                raise Bug("deadlock")
            for bar in s.bars:
                if bar and bar[2]:
                    raise Bug("bytes unbalanced at exit")
        return out

    def gone(self, s: State, cta: int) -> bool:
        """All agents of a CTA have exited, and its shared memory with them."""
        return all(
            pc == end
            for pc, end, agent in zip(s.pcs, self.ends, self.agents, strict=True)
            if agent.cta == cta
        )

    def step(self, s: State, agent: int) -> list[State]:
        """The agent's next operation: no state while it blocks."""
        pc = s.pcs[agent]
        if pc == self.ends[agent]:
            return []
        op = self.ops[agent][pc]
        next_pcs = (*s.pcs[:agent], pc + 1, *s.pcs[agent + 1 :])
        match op:
            case ops.Wait():
                return self.wait(s, op, next_pcs)
            case ops.Sync():
                return self.sync(s, agent, op)
            case ops.Arrive():
                for bar in op.bars:
                    s = self.arrive(s, agent, bar, op)
                return [_with(s, pcs=next_pcs)]
            case ops.Load():
                return [_with(self.load(s, agent, op), pcs=next_pcs)]
            case ops.Init():
                bars = _replaced(s.bars, self.bars[op.bar], (0, op.count, 0))
                unfenced = s.unfenced | {(self.bars[op.bar], agent)}
                return [_with(s, pcs=next_pcs, bars=bars, unfenced=unfenced)]
            case ops.InitFence():
                unfenced = frozenset(x for x in s.unfenced if x[1] != agent)
                return [_with(s, pcs=next_pcs, unfenced=unfenced)]
            case ops.ProxyFence():
                dirty = frozenset(x for x in s.dirty if x[1] != agent)
                return [_with(s, pcs=next_pcs, dirty=dirty)]
            case ops.Write():
                return [_with(self.write(s, agent, op), pcs=next_pcs)]
            case ops.Read() | ops.Multiply() | ops.Store():
                self.read(s, op)
                return [_with(s, pcs=next_pcs)]
            case ops.Retire() | ops.StoreWait():
                return [_with(s, pcs=next_pcs)]
        raise Bug(f"unknown operation {type(op).__name__}")

    def wait(self, s: State, op: ops.Wait, next_pcs: tuple[int, ...]) -> list[State]:
        bar = s.bars[self.known(op.bar)]
        if bar is None:
            raise Bug("wait before init")
        if bar[0] & 1 == op.phase & 1:
            return []
        if bar[0] != op.phase + 1:
            raise Bug("the parity means another phase")
        return [_with(s, pcs=next_pcs)]

    def known(self, bar: tuple) -> int:
        if bar not in self.bars:
            raise Bug("a barrier nobody initialises")
        return self.bars[bar]

    def sync(self, s: State, agent: int, op: ops.Sync) -> list[State]:
        here = [
            a
            for a, pc in enumerate(s.pcs)
            if pc < self.ends[a]
            and isinstance(self.ops[a][pc], ops.Sync)
            and self.ops[a][pc].name == op.name
        ]
        scope = [a for a in self.agents if op.name[0] == "cluster" or a.cta == op.name[1]]
        every = sum(a.threads for a in scope)
        total = op.total or every
        if {self.ops[a][s.pcs[a]].total or every for a in here} != {total}:
            raise Bug("a rendezvous of different sizes")
        come = sum(self.ops[a][s.pcs[a]].threads for a in here)
        if come > total:
            raise Bug("too many at a rendezvous")
        if come < total or agent != here[0]:
            return []
        return [_with(s, pcs=tuple(pc + (a in here) for a, pc in enumerate(s.pcs)))]

    def arrive(self, s: State, agent: int, bar: tuple, op: ops.Arrive) -> State:
        index = self.usable(s, agent, bar, self.agents[agent].cta != bar[1])
        phase, pending, tx = s.bars[index]
        s = _with(s, bars=_replaced(s.bars, index, (phase, pending, tx + op.expect)))
        for _ in range(op.count):
            phase, pending, tx = s.bars[index]
            if pending == 0:
                raise Bug("more arrivals than the phase has")
            s = self.moved(s, index, (phase, pending - 1, tx))
        return s

    def usable(self, s: State, agent: int, bar: tuple, from_outside: bool) -> int:
        index = self.known(bar)
        if s.bars[index] is None:
            raise Bug("use before init")
        if from_outside and any(x[0] == index for x in s.unfenced):
            raise Bug("init unfenced")
        if self.gone(s, bar[1]):
            raise Bug("use of a barrier of a CTA that has exited")
        return index

    def moved(self, s: State, index: int, to: tuple[int, int, int]) -> State:
        phase, pending, tx = to
        if abs(tx) > MAX_TX:
            raise Bug("tx-count overflows")
        if pending == 0 and tx == 0:
            to = phase + 1, self.counts[index], 0
        return _with(s, bars=_replaced(s.bars, index, to))

    def load(self, s: State, agent: int, op: ops.Load) -> State:
        for i, copy in enumerate(op.copies):
            self.usable(s, agent, copy.bar, True)
            for cell in copy.cells:
                self.exclusive(s, cell)
                if any(x[0] == cell for x in s.dirty):
                    raise Bug("an async write over an unfenced generic one")
            s = _with(s, flying=s.flying | {(agent, s.pcs[agent], i)})
        return s

    def land(self, s: State, key: tuple[int, int, int]) -> State:
        agent, at, i = key
        op = self.ops[agent][at]
        copy = op.copies[i]
        if self.gone(s, copy.bar[1]):
            raise Bug("a copy lands in a CTA that has exited")
        content = list(s.content)
        for cell in copy.cells:
            content[cell] = op.tile, op.k
        index = self.bars[copy.bar]
        phase, pending, tx = s.bars[index]
        s = _with(s, flying=s.flying - {key}, content=tuple(content))
        return self.moved(s, index, (phase, pending, tx - copy.size))

    def exclusive(self, s: State, cell: int) -> None:
        """Nothing in flight reads or writes the cell."""
        for reader in self.readers.get(cell, ()):
            if cell in self.reading[reader][s.pcs[reader]]:
                raise Bug("a write under an asynchronous read")
        self.landed(s, cell)

    def landed(self, s: State, cell: int) -> None:
        for agent, at, i in s.flying:
            if cell in self.ops[agent][at].copies[i].cells:
                raise Bug("an access under a copy in flight")

    def write(self, s: State, agent: int, op: ops.Write) -> State:
        content = list(s.content)
        for cell in op.cells:
            self.exclusive(s, cell)
            content[cell] = op.tile, op.k
        dirty = frozenset(x for x in s.dirty if x[0] not in op.cells)
        dirty |= {(cell, agent) for cell in op.cells}
        return _with(s, content=tuple(content), dirty=dirty)

    def read(self, s: State, op: ops.Read | ops.Multiply | ops.Store) -> None:
        for cell in op.cells:
            self.landed(s, cell)
            if s.content[cell] != (op.tile, op.k):
                raise Bug("a read of other bytes than meant")
            if not isinstance(op, ops.Read) and any(x[0] == cell for x in s.dirty):
                raise Bug("an async read of unfenced generic writes")


def _cells(kind: tuple[list, list]) -> list[int]:
    return [c for op in _members(kind) for c in op.cells]


def _members(kind: tuple[list, list]) -> list:
    return [op for group in kind[1] for op in group] + kind[0]


def _commit(kind: tuple[list, list]) -> None:
    kind[1].append(list(kind[0]))
    kind[0].clear()


def _drop(kind: tuple[list, list], pending: int) -> None:
    while len(kind[1]) > pending:
        kind[1].pop(0)


def _replaced(items: tuple, index: int, value: object) -> tuple:
    return (*items[:index], value, *items[index + 1 :])


def _with(s: State, **changes: object) -> State:
    """dataclasses.replace, for the few fields there are, without its cost."""
    fields = {**s.__dict__, **changes}
    return State(**fields)
