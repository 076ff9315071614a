"""Rows 36 to 58: numbers, layouts, tensor maps; and the fault that a GPU found (71)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from check_museum import without

from gemmgen.ir import nodes as ir

from .mutant import Change, edit
from .rows_protocol import BASE, DENSE, K_LOOP, PADDED, SHARED_B, row, visit

SELECT = "fp8_block/n104_f32"
SPLIT = "fp8_block/n144"
UNSWIZZLED = "dense/unswizzled_ab"
SWAPPED, SWAPPED_MASKED = "fp8_block/swap_ab", "fp8_block/masked_swap_ab"
SWAPPED_LINES, SWAPPED_PADDED = "fp8_1d1d/swap_ab", "dense/swap_ab"


def bits(change: Any, *fields: str) -> Change:
    """Change constant descriptor fields of every Mma."""
    return visit(ir.Mma, lambda s: replace(s, **{f: change(getattr(s, f)) for f in fields}))


def stride(eights: int) -> Any:
    """The stride byte offset, in bytes, of a descriptor."""
    return lambda x: x & ~(0x3FFF << 32) | eights >> 4 << 32


def moved(name: str, amount: int) -> Change:
    return lambda k: replace(
        k, smem=tuple(replace(s, offset=s.offset + amount) if s.name == name else s for s in k.smem)
    )


def mapped(name: str, **fields: Any) -> Change:
    return lambda k: replace(
        k, maps=tuple(replace(m, **fields) if m.name == name else m for m in k.maps)
    )


def fma_split(source: str) -> str:
    for i, scale in enumerate(("scale_0", "scale_0", "scale_1", "scale_1")):
        at = f"i + {i}" if i else "i"
        old = f"acc0[{at}] += {scale} * part[{at}];"
        new = f"acc0[{at}] = __fadd_rn(acc0[{at}], __fmul_rn({scale}, part[{at}]));"
        assert old in source
        source = source.replace(old, new)
    return source


def promote_half(source: str) -> str:
    """Promote after every second K block (and the last): 256 of K in the short accumulator."""
    first = "ptx::mma(part, a(0), b(0), 0);"
    assert first in source
    source = source.replace(first, first.replace(", 0);", ", k % 2 != 0);"))
    old = "for (int i = 0; i < 64; i += 4) {"
    assert old in source
    return source.replace(old, "if (k % 2 || k + 1 == tile.k_blocks) " + old, 1)


def rounded_up(d: Any) -> Any:
    """The inner extent up to the row pitch: what lies between the rows is read."""
    return replace(d, dims=(d.strides[0] // d.dtype.bytes, d.dims[1]))


ROWS = (
    row("36", BASE, "A's row scales r and r + 8 exchanged", "E",
        text=edit(("row_scales0[0] = ptx::load_shared_float(row);", "row_scales0[0] = ptx::load_shared_float(row + 4 * 8);"),
                  ("row_scales0[1] = ptx::load_shared_float(row + 4 * 8);", "row_scales0[1] = ptx::load_shared_float(row);"))),
    row("37", SELECT, "the second scale block begins 8 columns late (select)", "E",
        text=edit(("const int split = 128 - tile.b_row % 128;", "const int split = 136 - tile.b_row % 128;"))),
    row("37b", SHARED_B, "the second scale block begins 8 columns late (a constant)", "E",
        text=edit(("2 * i < split ? left_0", "2 * i < split + 8 ? left_0"))),
    row("37c", SPLIT, "the copy of the loop for the next column", "E",
        text=edit(("if (split == 128 - tile.b_row % 128)", "if (split == 144 - max(tile.b_row % 128, 16))"))),
    row("37d", SPLIT, "a copy of the loop for every other column only", "E",
        ir=visit(ir.PerSplit, lambda s: replace(s, step=2 * s.step))),
    row("38", BASE, "B's scales of the K block after", "E",
        text=edit(("kk = min(lane, tile.k_blocks - 1)", "kk = min(lane + 1, tile.k_blocks - 1)"))),
    row("38b", BASE, "A's scales of the K block after", "P",
        ir=visit(ir.TmaLoad, lambda s: replace(s, coords=(s.coords[0], replace(s.coords[1], offset=1))), tensor_map="map_scale_a")),
    row("39", BASE, "promoted every 256 of K", "EN", text=promote_half),
    row("40", BASE, "accumulator not overwritten at the start of a K block", "E",
        text=edit(("a(0), b(0), 0);", "a(0), b(0), 1);"))),
    row("41", BASE, "sum not reset between tiles", "P", ir=without(ir.Zero)),
    row("41b", DENSE, "accumulator not overwritten at the start of a tile", "E",
        text=edit(("b(0), k != 0);", "b(0), 1);"))),
    row("42", BASE, "multiply, then add, instead of FMA", "N", text=fma_split),
    row("43", BASE, "output rounded toward zero", "E", text=edit(("cvt.rn.bf16x2", "cvt.rz.bf16x2"))),
    row("43b", "fp8_block/m64_n32_f16", "FP16 output rounded toward zero", "E",
        text=edit(("cvt.rn.f16x2", "cvt.rz.f16x2"))),
    row("43c", BASE, "output truncated by hand", "E",
        text=edit(('asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));',
                   "packed = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000);"))),
    row("44", BASE, "last K block skipped", "E", text=edit(("(k + BLOCK_K - 1) / BLOCK_K", "max(1, k / BLOCK_K)"))),
    row("44b", BASE, "last K block skipped by both loops", "E",
        text=edit((K_LOOP, K_LOOP.replace("k < tile.k_blocks", "k + 1 < tile.k_blocks")),
                  ("k < chunk_end", "k + 1 < chunk_end"))),
    row("44c", DENSE, "K tail not zero-filled: A's extent reaches the row pitch", "E", describe=("a", rounded_up)),
    row("45", SWAPPED, "A and B exchanged twice: wgmma's 64 rows are A's again", "P",
        ir=visit(ir.Mma, lambda s: replace(s, a=s.b, b=s.a))),
    row("45b", SWAPPED, "D staged as it lies, not transposed", "P", ir=visit(ir.StageTile, lambda s: replace(s, by="matrix"))),
    row("45c", SWAPPED, "stmatrix without .trans", "E", text=edit((".x4.trans.", ".x4."))),
    row("45d", SWAPPED_LINES, "rows read A's scales, columns B's", "P",
        ir=visit(ir.LoadRowScales, lambda s: replace(s, smem="smem_scale_a"))),
    row("45e", SWAPPED_MASKED, "B's scale of the tile's first block for every wave", "E",
        text=edit(("(tile.b_row + (2 * i + warpgroup) * 64) / 128", "tile.b_row / 128"), count=0)),
    row("45f", SWAPPED_MASKED, "the first wave's scale of B for both", "E", text=edit(("* block_scales[1]", "* block_scales[0]"), count=0)),
    row("45g", SWAPPED, "two columns' scales of A exchanged", "E",
        text=edit(("scale_0 = column_scales[i / 2]", "scale_0 = column_scales[i / 2 + 1]"),
                  ("scale_1 = column_scales[i / 2 + 1]", "scale_1 = column_scales[i / 2]"))),
    row("45h", SWAPPED_PADDED, "the bias read by row", "E", text=edit(("at_bias + min(tile.d_col + warpgroup * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8",
                                                                       "at_bias + min(tile.d_col + lane % 4 * 2 + i / 4 * 8 + i % 2"))),
    row("45i", SWAPPED, "every warpgroup's piece stored at the tile's left edge", "E",
        text=edit(("tile.d_col + warpgroup * 64, tile.d_row", "tile.d_col, tile.d_row"))),
    row("45j", SWAPPED_PADDED, "rows of 64 elements without their padding", "E", text=edit(("row * 144, bytes", "row * 128, bytes"))),
    row("46a", BASE, "stride byte offset 512", "E", ir=bits(stride(512), "a_bits")),
    row("46b", BASE, "stride byte offset 2048", "E", ir=bits(stride(2048), "b_bits")),
    row("47a", BASE, "leading byte offset 2, swizzled", "", ir=bits(lambda x: x + (1 << 16), "a_bits", "b_bits")),
    row("47b", UNSWIZZLED, "leading byte offset 16 bytes too long", "E", ir=bits(lambda x: x + (1 << 16), "a_bits")),
    row("48a", BASE, "descriptor's swizzle 64", "E", ir=bits(lambda x: x & ~(3 << 62) | 2 << 62, "a_bits")),
    row("48b", BASE, "descriptor's swizzle none", "E", ir=bits(lambda x: x & ~(3 << 62), "b_bits")),
    row("48c", BASE, "TMA's swizzle 64", "E", describe=("b", lambda d: replace(d, swizzle=64, box=(64, d.box[1])))),
    row("48d", BASE, "TMA's swizzle none", "E", describe=("a", lambda d: replace(d, swizzle=0))),
    row("49", BASE, "K advance of 16 bytes", "P",
        ir=visit(ir.Mma, lambda s: replace(s, steps=tuple((a // 2, b // 2) for a, b in s.steps)))),
    row("49b", DENSE, "K advance in elements", "E", text=edit(("a(2), b(2)", "a(1), b(1)"))),
    row("50", BASE, "stage base not 1024-aligned", "P", ir=moved("smem_b", 256)),
    row("50b", BASE, "D and all before it 512 bytes on: every swizzled base misaligned", "P",
        ir=lambda k: replace(k, smem=tuple(replace(s, offset=s.offset + 512) for s in k.smem),
                             barriers=tuple(replace(b, offset=b.offset + 512) for b in k.barriers), smem_bytes=k.smem_bytes + 512)),
    row("51", BASE, "D's swizzle takes row % 4", "E", text=edit(("row * 128 >> 7 & 7)", "row * 128 >> 7 & 3)"))),
    row("52", BASE, "warp offset 8 rows in D's tile", "E", text=edit(("const int row = warp * 16 + lane % 16;", "const int row = warp * 8 + lane % 16;"))),
    row("53", BASE, "D's tile overlaps stage 0", "P", ir=moved("smem_d", 1024)),
    row("54", BASE, "8 bytes over the shared memory of a CTA", "E", ir=lambda k: replace(k, smem_bytes=232448 + 8)),
    row("54b", BASE, "more stages than shared memory holds", "S",
        family=lambda k: replace(k, smem=tuple(replace(s, stages=8) if s.use != "output" else s for s in k.smem),
                                 barriers=tuple(replace(b, stages=8) for b in k.barriers))),
    row("55a", DENSE, "box sides exchanged", "P", ir=mapped("map_a", box=(128, 64))),
    row("55b", DENSE, "box of 264 rows", "P", ir=mapped("map_b", box=(64, 264))),
    row("55c", BASE, "inner box side past the swizzle span", "P", ir=mapped("map_a", box=(256, 64))),
    row("55d", DENSE, "a tile that needs a box of more than 256 elements", "S",
        family=lambda k: replace(k, smem=tuple(replace(s, rows=264) if s.name == "smem_b" else s for s in k.smem))),
    row("56", BASE, "row stride in elements where the driver wants bytes (dense)", "H",
        host=("gemmgen.runtime.tensor_map", "row_bytes = max(matrix.stride, matrix.inner) * smem.dtype.bytes", "row_bytes = max(matrix.stride, matrix.inner)")),
    row("56b", DENSE, "B's row stride halved in its tensor map", "E", describe=("b", lambda d: replace(d, strides=(d.strides[0] // 2 // 16 * 16,)))),
    row("57", BASE, "D's extent along M padded to whole tiles", "E", describe=("d", lambda d: replace(d, dims=(d.dims[0], -(-d.dims[1] // 128) * 128)))),
    row("57b", PADDED, "row stores do not stop at M", "E", text=edit((" < shape_m && bytes > 0)", " < shape_m + 64 && bytes > 0)"))),
    row("58", BASE, "out-of-bounds elements filled with NaN", "H",
        host=("gemmgen.runtime.tensor_map", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA")),
    row("71a", BASE, "D's map is not cut at whole 16-byte pieces (launch)", "E",
        describe=("d", lambda d: replace(d, dims=(261 if d.dims[0] == 256 else d.dims[0] + 1, d.dims[1])))),
    row("71b", BASE, "D's map with clip 1", "P", ir=mapped("map_d", clip=1)),
    row("71c", BASE, "no StoreTail", "P", ir=without(ir.StoreTail)),
    row("71d", BASE, "clip 1 and no StoreTail: the kernel as it was before a GPU found it", "P",
        ir=lambda k: without(ir.StoreTail)(mapped("map_d", clip=1)(k))),
    row("71e", PADDED, "row stores round bytes up to 16", "E", text=edit(("* 2 / 16 * 16;", "* 2 + 15 >> 4 << 4;"))),
)  # fmt: skip
