"""Where asked, keep the K blocks on their way to a `direct` kernel in shared memory, a place for each thread, not in registers."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import S32
from ..ir.fragments import WORDS
from ..ir.nodes import Copy, ForK, Kernel, LoadFragments, Role, Smem, Stmt
from ..ir.rewrite import map_body, map_role, walk
from ..target import Target

SLOTS_DIRECT = Rule(
    id="slots-direct",
    says="slots needs direct",
    because="It is another way for the operands of direct to come. A ring has its stages in shared memory as it is.",
)
RULES = (SLOTS_DIRECT,)
SMEM = "smem_slots"


def take_slots(kernel: Kernel, target: Target, slots: bool) -> Kernel:
    """With `slots`, every K block is copied by cp.async while those before it are multiplied, and read into registers when its turn
    comes. Sets LoadFragments.by, smem and pending; drops the registers of all K blocks but one, and adds a buffer."""
    if not slots:
        return kernel
    if not kernel.pointed:
        values = {"slots": True, "direct": False}
        raise IllegalConfig(SLOTS_DIRECT, values, "Use direct=true, or slots=false.")
    firsts = [
        s for s in walk(kernel.consumer.body) if isinstance(s, LoadFragments) and s.block == "first"
    ]
    now = [s for s in firsts if s.distance == 0]
    stages = len({s.distance for s in firsts})
    held = {r.name: r for r in kernel.consumer.locals}
    buffer = Smem(
        name=SMEM,
        dtype=S32,
        rows=sum(held[s.dst].count for s in now) // WORDS,
        cols=kernel.threads * WORDS,
        stages=stages,
        use="slots",
        swizzle=0,
    )
    kernel = replace(kernel, smem=(*kernel.smem, buffer))
    return map_role(kernel, "consumer", lambda r: _copying(r, stages, now))


def _copying(role: Role, stages: int, now: list[LoadFragments]) -> Role:
    """now: the loads into the registers that are multiplied."""
    kept = {s.dst for s in now}
    gone = {s.dst for s in walk(role.body) if isinstance(s, LoadFragments)} - kept
    gone |= {s.src for s in walk(role.body) if isinstance(s, Copy) and s.dst in kept | gone}
    # Each operand's K block is a group, and `stages` K blocks are on their way: this one's came before all others.
    pending = len(now) * (stages - 1)
    reads = tuple(replace(s, by="read", smem=SMEM, block="next", pending=pending) for s in now)

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case LoadFragments():
                return replace(s, by="copy", dst="", smem=SMEM)
            case Copy() if s.src in gone:
                return ()
            case ForK():
                return replace(s, body=(*reads, *s.body))
        return s

    locals = tuple(r for r in role.locals if r.name not in gone)
    return replace(role, locals=locals, body=map_body(role.body, visit))
