"""P14: a tensor map that the device derives says the right thing, where and when loads use it.

The TMA unit reads a map while a load runs. So a slot is published and acquired before the first load
through it, and published again only once every load through it has landed. One warp of a CTA does
all of this, so its program order decides the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..ir import nodes as ir
from ..ir.rewrite import statements
from . import ops
from .after import After
from .finding import Finding, Place, when
from .history import Run
from .ops import Slot
from .properties import TENSOR_MAP


def derived(kernel: ir.Kernel) -> Iterator[Finding]:
    """Statement by statement: operands whose groups split K are read through maps of the group, and
    each replaced field is given what the group's matrix has."""
    for m in kernel.maps:
        operand = kernel.buffer(m.smem).use == "operand"
        if m.derived != (operand and bool(kernel.groups.depths)):
            yield _wrong(f"{m.name} {'is' if m.derived else 'is not'} derived for each group")
    for s in statements(kernel):
        for text in _statement(kernel, s):
            yield _wrong(f"{type(s).__name__}: {text}")


def _statement(kernel: ir.Kernel, s: ir.Stmt) -> Iterator[str]:
    name, smem = getattr(s, "tensor_map", ""), getattr(s, "smem", "")
    copied = ir.CopyMap | ir.ReplaceExtent | ir.ReplaceAddress | ir.ReplaceStride | ir.PublishMap
    if isinstance(s, copied) and smem != f"smem_{name}":
        yield f"{name} is not copied to {smem}"
    match s:
        case ir.PrefetchMap() if kernel.map(name).derived:
            yield f"nobody loads through {name} as the host encoded it"
        case ir.ReplaceExtent():
            m = kernel.map(name)
            end = "tile.k_end - tile.k_first" if kernel.groups.own(m) else "tile.k_end"
            if (s.dim, s.end) != ((m.inner, m.outer).index("k"), end):
                yield f"{name} does not end at {s.end} in dimension {s.dim}"
        case ir.ReplaceAddress():
            m = kernel.map(name)
            if (s.tensor, s.rows) != (m.tensor, f"shape_{m.outer}"):
                yield f"{name} does not begin {s.rows} rows of {s.tensor} on"
        case ir.ReplaceStride():
            if s.bytes != kernel.buffer(kernel.map(name).smem).dtype.bytes:
                yield f"an element of {name} has not {s.bytes} bytes"


def _fields(kernel: ir.Kernel, m: ir.TmaMap) -> set[str]:
    return {"address", "extent", "stride"} if kernel.groups.own(m) else {"extent"}


def _wrong(text: str, *places: Place) -> Finding:
    return Finding(property=TENSOR_MAP, message=text, places=places)


@dataclass(kw_only=True)
class _Slots:
    """What one agent has done to maps so far; operations by their position."""

    run: Run
    after: After
    agent: int
    landings: dict[int, list[tuple[int, int]]]  # of each load: counters and phases
    edits: dict[str, set[str]] = field(default_factory=dict)  # of each copy, since it was published
    unseen: dict[str, int] = field(default_factory=dict)  # copies used since the warp met
    published: dict[Slot, int] = field(default_factory=dict)
    acquired: dict[Slot, int] = field(default_factory=dict)
    loads: dict[Slot, list[int]] = field(default_factory=dict)

    def touch(self, op: ops.Op, name: str, kind: str, at: int) -> Iterator[Finding]:
        """Whole warps copy and publish, one lane edits: between them the lanes must meet."""
        before = self.unseen.get(name)
        if before is not None and type(self.run.program.ops[self.agent][before]) is not type(op):
            text = f"{kind} {name} is not ordered after what other lanes did to it in shared memory"
            yield _wrong(text, (self.agent, before), (self.agent, at))
        self.unseen[name] = at

    def publish(self, op: ops.MapPublish, at: int) -> Iterator[Finding]:
        kernel, name = self.run.program.kernel, op.slot[0]
        if name not in self.edits:
            yield self.wrong(op, "is published, but was never copied", at)
        missing = _fields(kernel, kernel.map(name)) - self.edits.get(name, set())
        if missing:
            yield self.wrong(op, f"is published with another group's {min(missing)}", at)
        for load in self.loads.get(op.slot, []):
            if any(not self.landed(copy, at) for copy in self.landings.get(load, [])):
                yield self.wrong(op, "is rewritten while a load may still use it", load, at)
                break
        self.edits[name] = set()
        self.published[op.slot] = at

    def load(self, op: ops.Load, slot: Slot, at: int) -> Iterator[Finding]:
        if slot not in self.published:
            yield self.wrong(op, "is used before it is published", at)
        elif self.acquired.get(slot, -1) < self.published[slot]:
            text = "is used without a fence that acquires it"
            yield self.wrong(op, text, self.published[slot], at)
        self.loads.setdefault(slot, []).append(at)

    def landed(self, copy: tuple[int, int], at: int) -> bool:
        """Whether a copy is over, in every schedule, when this agent's operation `at` starts."""
        counter, n = copy
        phases = self.run.counters[counter].phases
        return at >= self.after.of(phases[n] if n < len(phases) else None)[self.agent]

    def wrong(self, op: ops.Op, text: str, *at: int) -> Finding:
        slot = getattr(op, "slot", None) or _slots(op)[0]
        who = self.run.program.agents[self.agent]
        where = f"{slot[0]} of group {slot[2]} {text}: {who} ({when(op)})"
        return _wrong(where, *((self.agent, x) for x in at))


def maps(r: Run, after: After) -> Iterator[Finding]:
    """Every agent that touches derived maps; of each CTA it must be one."""
    if not any(m.derived for m in r.program.kernel.maps):
        return
    landings: dict[Place, list[tuple[int, int]]] = {}
    for x in r.accesses:
        if x.copy:
            landings.setdefault((x.agent, x.at), []).append(x.copy)
    owners: dict[int, int] = {}
    for agent, todo in enumerate(r.program.ops):
        mine = {at: copies for (a, at), copies in landings.items() if a == agent}
        slots = _Slots(run=r, after=after, agent=agent, landings=mine)
        yield from _agent(slots, todo)
        cta = r.program.agents[agent].cta
        if slots.edits and owners.setdefault(cta, agent) != agent:
            yield _wrong(f"two warps of CTA {cta} derive tensor maps", (owners[cta], 0), (agent, 0))


def _agent(s: _Slots, todo: tuple[ops.Op, ...]) -> Iterator[Finding]:
    for at, op in enumerate(todo):
        match op:
            case ops.WarpSync():
                s.unseen.clear()
            case ops.MapCopy():
                s.edits[op.tensor_map] = set()
                yield from s.touch(op, op.tensor_map, "a copy of", at)
            case ops.MapEdit():
                yield from s.touch(op, op.tensor_map, "an edit of", at)
                s.edits.get(op.tensor_map, set()).add(op.field)
            case ops.MapPublish():
                yield from s.touch(op, op.slot[0], "a publication of", at)
                yield from s.publish(op, at)
            case ops.MapAcquire():
                s.acquired[op.slot] = at
            case ops.Load():
                for slot in _slots(op):
                    yield from s.load(op, slot, at)


def _slots(op: ops.Op) -> list[Slot]:
    copies = op.copies if isinstance(op, ops.Load) else ()
    return list(dict.fromkeys(copy.slot for copy in copies if copy.slot))
