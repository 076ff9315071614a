"""Row 93: launches that begin while the one before them ends."""

from __future__ import annotations

from dataclasses import replace

from check_museum import without

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import row

OVERLAPPING = "fp8_block/overlapping"
WAIT = "ptx::wait_for_grids();"


def moved(role: str):
    """Only the threads of one role wait."""

    def change(k: ir.Kernel) -> ir.Kernel:
        k = without(ir.WaitForGrids)(k)
        return replace(
            k,
            roles=tuple(
                replace(r, body=(ir.WaitForGrids(), *r.body)) if r.name == role else r
                for r in k.roles
            ),
        )

    return change


ROWS = (
    row("93", OVERLAPPING, "nobody waits for the launch before", "P", ir=without(ir.WaitForGrids)),
    row("93b", OVERLAPPING, "nobody waits for the launch before, in the text", "E", text=edit((WAIT, ""))),
    row("93c", OVERLAPPING, "the producer alone waits: consumers read scales, and store, before", "P", ir=moved("producer")),
    row("93d", OVERLAPPING, "the producer alone waits, in the text", "E",
        text=edit((WAIT, "if (threadIdx.x >= 128) ptx::wait_for_grids();"))),
    row("93e", OVERLAPPING, "the consumers alone wait, in the text", "E",
        text=edit((WAIT, "if (threadIdx.x < 128) ptx::wait_for_grids();"))),
    row("93f", OVERLAPPING, "a leader alone waits", "P", ir=lambda k: replace(k, prologue=tuple(
        ir.If(when="cta_leader", body=(s,)) if isinstance(s, ir.WaitForGrids) else s for s in k.prologue))),
    row("93h", "fp8-pdl-masked", "a table of groups that the launch before may write is read as if nobody did", "E",
        text=edit(("ptx::load_global_int(", "__ldg("), count=0)),
    row("93i", OVERLAPPING, "so are B's scales", "E", text=edit(("ptx::load_global_float(", "__ldg("), count=0)),
    row("93g", "dense/n256", "a launch whose kernel never waits may overlap", "H",
        host=("gemmgen.runtime.launch", "if kernel.pdl:", "if True:")),
)  # fmt: skip
