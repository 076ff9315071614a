"""Rows 59 to 70: the schedule, offsets, the host; and what no row names but a reader would try."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_stmts

from .mutant import edit
from .rows_protocol import (
    BASE,
    CONSUMER,
    DENSE,
    IN_FLIGHT,
    PADDED,
    PRODUCER,
    SHARED_A,
    SHARED_B,
    TILES,
    row,
    visit,
)

OUTSIDE = " if (tile.d_row >= shape_m || tile.d_col >= shape_n) continue;"

ROWS = (
    row("59", SHARED_B, "panels counted in CTAs, an odd number of tiles per column: clusters straddle", "A",
        text=edit(("index(blockIdx.x / (CLUSTER_M * CLUSTER_N))", "index(blockIdx.x)"),
                  ("stride(gridDim.x / (CLUSTER_M * CLUSTER_N))", "stride(gridDim.x)"),
                  ("(m + BLOCK_M * CLUSTER_M - 1) / (BLOCK_M * CLUSTER_M)", "(m + BLOCK_M - 1) / BLOCK_M"),
                  ("(m * CLUSTER_M + rank % CLUSTER_M) * BLOCK_M", "m * BLOCK_M"))),
    row("60", SHARED_A, "a CTA whose tile lies outside D skips it, its peer does not", "E",
        text=lambda s: edit((TILES, TILES + OUTSIDE), after=PRODUCER)(edit((TILES, TILES + OUTSIDE), after=CONSUMER)(s))),
    row("62", BASE, "grid stride of 132 SMs, whatever the grid", "A",
        text=edit(("stride(gridDim.x / (CLUSTER_M * CLUSTER_N))", "stride(132 / (CLUSTER_M * CLUSTER_N))"))),
    row("62b", SHARED_A, "grid stride in CTAs instead of clusters", "A",
        text=edit(("stride(gridDim.x / (CLUSTER_M * CLUSTER_N))", "stride(gridDim.x)"))),
    row("62c", "dense/n256", "the column of tiles that N reaches into by one element left out", "A",
        text=edit(("(n + BLOCK_N * CLUSTER_N - 1)", "(n + BLOCK_N * CLUSTER_N - 2)"))),
    row("62d", BASE, "a column of tiles too many where N is a whole number of them", "A",
        text=edit(("(n + BLOCK_N * CLUSTER_N - 1)", "(n + BLOCK_N * CLUSTER_N)"))),
    row("64", BASE, "32-bit row offset in the tail's stores", "E", text=edit(("d[(long long)to * d_stride", "d[to * d_stride"))),
    row("64b", PADDED, "32-bit row offset in the row stores", "E",
        text=edit(("d + (long long)(tile.d_row", "d + (tile.d_row"))),
    row("70a", DENSE, "stream argument ignored", "H", host=("gemmgen.runtime.launch", "CUstream(stream)", "CUstream(0)")),
    row("70b", DENSE, "alignment check of addresses removed", "H",
        host=("gemmgen.runtime.tensor_map", "if matrix.pointer % ALIGNMENT or not matrix.pointer:", "if not matrix.pointer:")),
    row("70c", DENSE, "alignment check of strides removed", "H",
        host=("gemmgen.runtime.tensor_map", "if matrix.outer > 1 and (matrix.stride * itemsize) % ALIGNMENT:", "if False:")),
    row("71f", "fp8/row_scaled", "the tail also stored by the tile before, where it begins a tile", "E",
        text=edit(("first < BLOCK_N) {", "first <= BLOCK_N) {"))),
    row("74", "dense/tn", "descriptors keep the CTA's rank above the address: as it was before a GPU found it", "E",
        text=edit(("(address & 0x3ffff) >> 4", "address >> 4"))),
    row("74b", "fp8_block/masked", "a group's rows past its end are stored", "E",
        text=edit(("< tile.d_end && bytes", "< shape_m && bytes"))),
    row("74c", "fp8_block/batched", "B of the first group for every group", "E",
        text=edit(("tile.b_row, tile.group)", "tile.b_row, 0)"))),
    row("74d", "fp8_block/grouped_by_end", "groups begin at multiples of 64 rows instead of 128", "E",
        text=edit(("+ 127) / 128 * 128", "+ 63) / 64 * 64"))),
    row("74e", "fp8_block/masked", "a warpgroup skips its rows one block of 64 early", "E",
        text=edit(("* 64 < tile.d_end", "* 64 + 64 < tile.d_end"))),
    row("82", BASE, "boxes of A begin between two pieces of 16 bytes: what a GPU stopped at", "E",
        text=edit(("k * 128, tile.a_row)", "k * 128 + 8, tile.a_row)"))),
    row("75", "fp8_1d1d/wgrad", "boxes replace D instead of being added", "E",
        text=edit(("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile", "cp.async.bulk.tensor.2d.global.shared::cta.tile"))),
    row("75b", "fp8_1d1d/wgrad", "the tail replaces D instead of being added", "E",
        text=edit(("+ col] += ptx::", "+ col] = ptx::"))),
    row("75c", "fp8_1d1d/wgrad", "a box is added twice", "P",
        ir=lambda k: map_stmts(k, lambda s: (s, s) if isinstance(s, ir.TmaStore) else s)),
    row("76", "dense/swiglu", "gate and up exchanged", "E",
        text=lambda s: s.replace("acc0[i + 1]", "acc0[?]").replace("acc0[i]", "acc0[i + 1]").replace("acc0[?]", "acc0[i]")),
    row("76b", "dense/swiglu", "D's column counted in the product's columns", "A",
        text=edit(("row, col / 2,", "row, col,"))),
    row("76c", "dense/swiglu", "a bias by D's column", "E",
        text=edit(("__ldg(at_bias + min(tile.b_row", "__ldg(at_bias + min(tile.d_col"), count=0)),
    row("77", "dense/swiglu_fp8", "the greatest of lanes in other rows", "E",
        text=edit(("x, __shfl_xor_sync(0xffffffff, x, 2)", "x, __shfl_xor_sync(0xffffffff, x, 4)"))),
    row("77b", "fp8_block/fp8_out", "the greatest of three of a row's four lanes' columns", "E",
        text=edit(("__shfl_xor_sync(0xffffffff, x, 1)", "__shfl_xor_sync(0xffffffff, x, 2)"))),
    row("77c", "fp8_block/fp8_out", "the greatest of both rows of a thread", "E",
        text=edit(("amax[i / 64 * 2 + i / 2 % 2] = fmaxf(amax[i / 64 * 2 + i / 2 % 2]", "amax[i / 64 * 2] = fmaxf(amax[i / 64 * 2]"))),
    row("77d", "fp8_block/fp8_out", "scales of columns past N are stored", "E",
        text=edit((" && block * 128 < shape_n)", ")"))),
    row("77e", "fp8_block/fp8_out", "scales are never stored", "P",
        ir=visit(ir.StoreScales, lambda s: ())),
    row("77f", "fp8_block/fp8_out", "a wave's scales from before it was evaluated", "P",
        ir=visit(ir.Evaluate, lambda s: replace(s, wave=1 - s.wave))),
    row("72", IN_FLIGHT, "the last, lagging release is left out", "P",
        ir=visit(ir.ForTiles, lambda s: replace(s, body=tuple(x for x in s.body if not isinstance(x, ir.ArriveCluster))), "consumer")),
    row("73", IN_FLIGHT, "the lagging release also runs in the first K block", "P",
        ir=visit(ir.AfterFirst, lambda s: s.body)),
)  # fmt: skip

NOT_APPLICABLE = {
    "63": "no masked groups yet",
    "67": "no programmatic dependent launch yet",
    "68": "no cache yet",
    "69": "no cache yet",
    "70 (alias)": "there is no alias check to remove: D over A or B is not refused",
}
