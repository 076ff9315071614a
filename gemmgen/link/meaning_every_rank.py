"""What the statements by which each GPU adds up the sums of all mean: see meaning_ranks.

Where every rank has slots in each one's memory, they follow each other from the owner's own on: of the rank behind it next, and so on.
"""

from __future__ import annotations

from ..ir import nodes as ir
from ..ir.exchange import PARTIALS
from .meaning_ranks import flag, slot, stored, summed

BEFORE = f"{PARTIALS}[(rank + ranks - back) % ranks]"  # of the rank that is `back` before this one


def send_to_all(k: ir.Kernel, s: ir.SendPartials) -> str:
    """That of the next rank first, its own last."""
    into = stored(k, s, slot(k, s.wave, s.src, "back", BEFORE))
    return f"\n#pragma unroll 1\nfor (int back = ranks - 1; back >= 0; --back) {{ {into} }}"


def tell_all(k: ir.Kernel, s: ir.Signal) -> str:
    """A lane for each of the others, to which this one is one of the others: how many ranks behind, less one."""
    raised = f'"st.release.sys.global.u64"([{flag(k, "(back - 1)", BEFORE)}], epoch);'
    each = f"for (int back = 1 + lane; back < ranks; back += 32) {raised}"
    return f'"bar.warp.sync"(0xFFFFFFFF); {each}'


def add_of_all(k: ir.Kernel, s: ir.AddPartials) -> str:
    """From rank 0 on."""
    of = summed(k, s, slot(k, s.wave, s.dst, "((from + ranks - rank) % ranks)"))
    return f"\n#pragma unroll {s.unroll}\nfor (int from = 0; from < ranks; ++from) {{ {of} }}"
