"""Which form of cp.async an opcode is."""

from __future__ import annotations

from collections.abc import Mapping

from . import bulk_groups, thread_copies
from .bulk_loads import load_plain, load_tensor
from .bulk_stores import store_plain, store_tensor
from .errors import UnsupportedInstruction
from .program import Handler, Op, Scope
from .syntax import Instruction

KINDS: Mapping[tuple[str, str], Handler] = {
    ("tensor", "load"): load_tensor,
    ("tensor", "store"): store_tensor,
    ("plain", "load"): load_plain,
    ("plain", "store"): store_plain,
}
MODES = {"im2col", "tile::gather4", "tile::scatter4", "im2col_no_offs"}


def _cp(i: Instruction, s: Scope) -> Op:
    parts = i.parts
    if parts[2] in thread_copies.FORMS:
        return thread_copies.FORMS[parts[2]](i, s)
    if "bulk" not in parts or MODES & set(parts):
        raise UnsupportedInstruction(str(i))
    if "commit_group" in parts:
        return bulk_groups.commit(i, s)
    if "wait_group" in parts:
        return bulk_groups.wait(i, s)
    if "prefetch" in parts:
        return lambda g: None
    what = "tensor" if "tensor" in parts else "plain"
    return KINDS[what, _direction(i)](i, s)


def _direction(i: Instruction) -> str:
    spaces = [p for p in i.parts if p in ("global", "shared::cta", "shared::cluster")]
    if len(spaces) == 2 and spaces[1] == "global" and "mbarrier::complete_tx::bytes" in i.parts:
        return "load"
    if spaces == ["global", "shared::cta"] and "bulk_group" in i.parts:
        return "store"
    raise UnsupportedInstruction(str(i))


HANDLERS: Mapping[str, Handler] = {"cp": _cp}
