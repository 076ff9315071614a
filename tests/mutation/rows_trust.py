"""Row 99: instructions trusted for more than they promise: waits that give up, fences of another state space,
clusters that nobody asked for, lanes that have not met, registers written after their fence."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir
from gemmgen.ir.syncs import is_fence

from .mutant import Change, edit
from .rows_protocol import BASE, SHARED_A, row, visit
from .rows_split import SPLIT

LOOP = '"@!done bra WAIT;\\n}"'
FENCE, CLUSTER = "fence.proxy.async.shared::cta", "__cluster_dims__(2, 1, 1)"
WGMMA_FENCE = "                ptx::wgmma_fence();"
CLEARED = f"{WGMMA_FENCE}\n#pragma unroll\nfor (auto& r : part) r = 0;"
LEADER = "if (threadIdx.x % 128 == 0) "


def moved(role: str) -> Change:
    """Of the role's setmaxnreg only one thread's is left."""
    alone = lambda s: ir.If(when="leader", body=(s,))  # noqa: E731
    return visit(ir.SetRegisters, alone, role)


def cleared(s: ir.ForK) -> ir.ForK:
    """The sum is cleared between the fence and the products that it is for."""
    sums = [ir.Zero(dst=x.dst) for x in s.body if isinstance(x, ir.Mma)]
    at = next((i for i, x in enumerate(s.body) if is_fence(x, "wgmma")), -1) + 1
    return replace(s, body=(*s.body[:at], *sums[:1], *s.body[at:]))


def read_last(s: ir.ForK) -> ir.ForK:
    """Each lane reads its scales after the products, just before one lane releases them."""
    scales = tuple(x for x in s.body if isinstance(x, ir.LoadRowScales))
    rest = tuple(x for x in s.body if x not in scales)
    at = next((i for i, x in enumerate(rest) if isinstance(x, ir.Arrive)), len(rest))
    return replace(s, body=(*rest[:at], *scales, *rest[at:]))


ROWS = (
    row("99", BASE, "a wait that gives up is not repeated", "E", text=edit((LOOP, '"}"'))),
    row("99b", SPLIT, "nor one for the cluster", "E", text=edit((LOOP, '"}"'), after="mbarrier_wait_cluster(")),
    row("99c", BASE, "D is fenced in global memory, not in shared", "E",
        text=edit((FENCE, "fence.proxy.async.global"))),
    row("99d", SHARED_A, "nobody asks for clusters", "E", text=edit((CLUSTER, ""))),
    row("99g", BASE, "lanes read scales that another has released", "P", ir=visit(ir.ForK, read_last, "consumer")),
    row("99h", BASE, "a sum is cleared after its fence", "P", ir=visit(ir.ForK, cleared, "consumer")),
    row("99i", BASE, "a sum is cleared after its fence, in the text", "E", text=edit((WGMMA_FENCE, CLEARED))),
    row("99j", BASE, "one thread asks for registers", "P", ir=moved("consumer")),
    row("99k", BASE, "one thread asks for registers, in the text", "E",
        text=edit(("ptx::setmaxnreg_inc<", f"{LEADER}ptx::setmaxnreg_inc<"), after="// consumer")),
    row("99l", BASE, "one thread gives registers back, in the text", "E",
        text=edit(("ptx::setmaxnreg_dec<", f"{LEADER}ptx::setmaxnreg_dec<"), after="// producer")),
)  # fmt: skip
