"""Rows 61, 65 and 66, and 76 on: groups that split K, and the tensor maps they derive."""

from __future__ import annotations

from dataclasses import replace

from check_museum import without

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.rewrite import map_stmts

from .mutant import edit
from .rows_protocol import row, visit

WGRAD = "fp8_1d1d/k_grouped"
COLUMNS = "dense/k_grouped_bf16"
SLOT = "blockIdx.x * groups + group"


def unstarted(s: ir.TmaLoad) -> ir.TmaLoad:
    return replace(s, coords=tuple(replace(c, start="") for c in s.coords))


ROWS = (
    row("61", COLUMNS, "the CTAs of a cluster take tiles by themselves, and K of different groups", "E",
        text=edit(("const int of = index / tiles,", "const int of = (index + rank) / tiles % groups,"))),
    row("65", COLUMNS, "a tensor map is rewritten for every group", "E",
        text=edit((SLOT, "blockIdx.x"))),
    row("65b", COLUMNS, "CTAs derive tensor maps in the same place", "E",
        text=edit((SLOT, "group"))),
    row("66", WGRAD, "tensor maps are not acquired", "P", ir=without(ir.AcquireMap)),
    row("66b", WGRAD, "tensor maps are not published", "P", ir=without(ir.PublishMap)),
    row("66c", WGRAD, "one lane edits the copy before the others are done with it", "P", ir=without(ir.Sync, of="warp")),
    row("66d", COLUMNS, "maps are acquired by B's place for A", "E",
        text=edit(("ptx::acquire_map(group_maps + tile.slot * 2)", "ptx::acquire_map(group_maps + tile.slot * 2 + 1)"))),
    row("78", COLUMNS, "K counts from the first group's", "P", ir=visit(ir.TmaLoad, unstarted)),
    row("78b", WGRAD, "every group begins at K 0", "E", text=edit(("k_first = k_end;", ""))),
    row("78c", COLUMNS, "a group's K is not cut off: its last K block reads the next group's", "P",
        ir=without(ir.ReplaceExtent)),
    row("78d", COLUMNS, "a group is cut off one K late", "E",
        text=edit(("(smem_map_a, tile.k_end)", "(smem_map_a, tile.k_end + 1)"), ("(smem_map_b, tile.k_end)", "(smem_map_b, tile.k_end + 1)"))),
    row("78e", WGRAD, "a group's matrix has the rows of all of K", "P", ir=without(ir.ReplaceStride)),
    row("79", COLUMNS, "an empty group's sum is not zeroed", "P", ir=without(ir.Zero)),
    row("80", COLUMNS, "an empty group releases a stage it did not fill", "P",
        ir=lambda k: map_stmts(k, lambda s: s.body if is_if(s, "has_blocks") else s)),
    row("81", COLUMNS, "only the first group derives its maps", "E",
        text=edit(("other && k_first", "group == 0 && k_first"))),
)  # fmt: skip
