"""What decoders share: opcode words, addresses of lanes, and who acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import IllegalAccess, Race, UnsupportedInstruction
from .fiber import WARP
from .group import Group
from .program import Scope
from .spaces import (
    OFFSET_MASK,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW,
    Spans,
)
from .syntax import Address, Imm, Instruction, Reg
from .tracker import ALL

if TYPE_CHECKING:
    from .machine import Cta

ADDRESSES_32 = (1 << 32) - 1
SHARED = ("shared", "shared::cta", "shared::cluster")


def space_of(i: Instruction) -> str:
    """The state space in the opcode, `generic` if it has none."""
    found = [p for p in i.parts if p in (*SHARED, "global", "param", "local", "const")]
    return found[0] if found else "generic"


def address_slot(operand: Any, s: Scope) -> Callable[[Group], Any]:
    """A function from the group to the address of each lane, int64. A register of 32 bits and an offset are added in 32."""
    if not isinstance(operand, Address):
        raise UnsupportedInstruction(f"{operand} is no address")
    base, offset = operand.base, operand.offset
    if isinstance(base, Reg):
        kind = "u64" if s.function.registers[base.name][1:] == "64" else "u32"
    else:
        kind = "u64"
    mask = np.int64(ADDRESSES_32 if kind == "u32" else -1)
    slot = s.src(base, kind)
    signed_zero = np.int64(offset)

    def addresses(g: Group) -> Any:
        values = g.R[slot].astype(np.int64)
        return values + signed_zero & mask if offset else values

    return addresses


def active_lanes(g: Group) -> Any:
    return np.flatnonzero(g.active)


def agent_of(g: Group, lane: int) -> int:
    """The race detector's agent: the lane's warp."""
    return g.cta.cluster.tracker.warp(g.cta.rank, g.first_warp + lane // WARP)


def bit(lane: int) -> int:
    """Of the lane within its warp."""
    return 1 << int(lane) % WARP


def check_dependency(g: Group, lanes: Any, read: Any = None, size: int = 0) -> None:
    """In a launch that may overlap the one before it, `lanes` touch global memory after their griddepcontrol.wait (PTX
    ISA, griddepcontrol): until then the one before writes all but what is ready. read: addresses of `size` bytes, if
    they do no more than read those."""
    if not g.early[lanes].any():
        return
    ready = g.cta.launch.ready
    if read is None or not all(_inside(int(at), size, ready) for at in read):
        text = "touches global memory before griddepcontrol.wait, which the launch before may still write"
        raise Race(f"{who(g)}: {text}")


def check_read_only(g: Group, addresses: Any, size: int) -> None:
    """What a load without coherence reads nobody writes while the kernel runs (PTX ISA, ld.global.nc, ldu): not so in a launch that may
    overlap the one before it, whether its threads have waited or not, but for what is ready."""
    launch = g.cta.launch
    if launch.overlaps and not all(_inside(int(at), size, launch.ready) for at in addresses):
        text = "reads without coherence what the launch before may have written while this one ran"
        raise Race(f"{who(g)}: {text}")


def _inside(address: int, size: int, spans: Spans) -> bool:
    return any(first <= address and address + size <= end for first, end in spans)


def per_warp(g: Group) -> Iterator[tuple[int, Any]]:
    """(agent, active lanes) of each warp with active lanes."""
    first = g.cta.cluster.tracker.warp(g.cta.rank, g.first_warp)
    for w in range(g.warps):
        lanes = np.flatnonzero(g.active[w * WARP : (w + 1) * WARP])
        if lanes.size:
            yield first + w, lanes + w * WARP


def lane_mask(lanes: Any) -> int:
    """Lanes of one warp as the bits of an integer."""
    if lanes.size == WARP:
        return ALL
    return int(np.bitwise_or.reduce(np.int64(1) << (lanes % WARP)))


def locate(g: Group, space: str, address: int) -> tuple[Cta, int]:
    """The CTA and the shared address that an address of `space` names."""
    if space == "generic":
        if not SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW:
            raise IllegalAccess(f"{who(g)}: {address:#x} is no shared address")
        address -= SHARED_WINDOW
    cta = g.cta.cluster.cta(address >> RANK_SHIFT, who(g))
    return cta, address & OFFSET_MASK


def space_at(address: int) -> str:
    """The state space of a generic address."""
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW:
        return "shared"
    return "param" if PARAM_WINDOW <= address < PARAM_WINDOW + WINDOW else "global"


def who(g: Group, lane: int | None = None) -> str:
    """The current instruction, CTA and, if one is meant, thread."""
    thread = "" if lane is None else f", thread {g.first + lane}"
    return f"{g.instruction} [CTA {g.cta.index}{thread}]"


def value_of(operand: Any, s: Scope, kind: str = "u32") -> Callable[[Group, int], int]:
    """A function from (group, lane) to an operand's integer value."""
    slot = s.src(operand, kind)
    return lambda g, lane: int(g.R[slot][lane])


def constant(operand: Any, i: Instruction) -> int:
    if not isinstance(operand, Imm):
        raise UnsupportedInstruction(f"{i}: a constant is expected")
    return operand.bits
