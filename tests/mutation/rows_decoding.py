"""Rows 112, 114, 115, 124 and 125: packed weights that are decoded into the registers of wgmma's A."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import drop, not_first, row, visit

DECODED, ZEROS, EXPONENTS = "w4a16", "w4a16-zeros-waves", "w4a16-exponents-masked"
SPLIT, SHIFTED, SCALED = "w4a16-ahead-split", "w4a8", "w4a16-nvfp4"
OCTETS, OFFSET, POWER, BITS = "w8a16", "w8a16-waves-ends", "w8a16-fp8-split", "w8a16-fp8-masked"
PROMOTED, OVERLAPPED, SLICED = "w4a8_block", "w4a8_block-overlap-masked", "w4a8_block-slices-ends"
WHOLE, WAVES = "w4a8_block-int4", "w4a8_block-int4-waves-masked"
LAST = "min(tile.b_row / 64 + i, last)"


def other_half(s: ir.Decode) -> ir.Decode:
    return replace(s, half=1 - s.half)


def exchanged(s: ir.MmaDecoded) -> ir.MmaDecoded:
    other = {"first_half": "second_half", "second_half": "first_half"}
    return replace(s, decoded=other[s.decoded])


def other_part(s: ir.MmaDecoded) -> ir.MmaDecoded:
    other = {"part0": "part1", "part1": "part0"}
    return replace(s, dst=other[s.dst])


ROWS = (
    row("112", DECODED, "a half is decoded while it is multiplied", "P", ir=visit(ir.WgmmaWait, drop, pending=1)),
    row("112b", DECODED, "the same, in the text", "E", text=edit(("wgmma_wait<1>", "wgmma_wait<2>"), count=0)),
    row("112c", DECODED, "the other half of the codes", "P", ir=visit(ir.Decode, other_half)),
    row("112d", DECODED, "the other half's numbers", "P", ir=visit(ir.MmaDecoded, exchanged)),
    row("112e", DECODED, "no fence orders what was decoded before wgmma", "P", ir=visit(ir.Fence, drop, of="wgmma")),
    row("112f", DECODED, "the stage is released while it is read", "P",
        ir=visit(ir.Arrive, lambda s: replace(s, lag=0), barrier="empty")),
    row("112g", DECODED, "codes of the K block before", "P", ir=visit(ir.ReadCodes, drop)),
    row("112h", DECODED, "half of a K block is not multiplied", "P", ir=visit(ir.MmaDecoded, drop, half=1)),
    row("112i", DECODED, "the first half is multiplied twice", "P", ir=visit(ir.MmaDecoded, lambda s: (s, s), half=0)),
    row("112j", DECODED, "all warpgroups have the first one's weights", "P",
        ir=visit(ir.ReadCodes, lambda s: replace(s, warpgroup_bytes=0))),
    row("112k", ZEROS, "both waves have the first one's weights", "P",
        ir=visit(ir.ReadCodes, lambda s: replace(s, wave_bytes=0))),
    row("112l", DECODED, "the next K block's weights", "P",
        ir=visit(ir.LoadBlocks, lambda s: replace(s, k=replace(s.k, offset=1)))),
    row("112m", SPLIT, "every CTA has the first one's weights", "P",
        ir=visit(ir.LoadBlocks, lambda s: replace(s, k=replace(s.k, start="")))),
    row("112n", DECODED, "zeros where there are none", "P", ir=visit(ir.Decode, lambda s: replace(s, by="zeros"))),
    row("112o", ZEROS, "scales are read as if there were no zeros", "P", ir=visit(ir.Decode, lambda s: replace(s, by="scale"))),
    row("112p", DECODED, "blocks past B's last rows are read", "E", text=edit((LAST, "(tile.b_row / 64 + i)"), count=0)),
    row("112q", EXPONENTS, "every expert has the first one's weights", "E",
        text=edit(("(b + tile.group * b_stride_g)", "b"), count=0)),
    row("112r", ZEROS, "the next group's scale and zero", "E", text=edit(("(i + 4) / 2", "(i + 5) / 2"), count=0)),
    row("112s", DECODED, "two rows' scales exchanged", "E", text=edit(("0x43084308), scale_8)", "0x43084308), scale)"), count=0)),
    row("112t", ZEROS, "two rows' zeros exchanged", "E", text=edit(("zero_8), scale_8)", "zero), scale_8)"), count=0)),
    row("112u", DECODED, "a code one bit further", "E", text=edit(("word >> 8,", "word >> 9,"), count=0)),
    row("112v", DECODED, "7 for 8", "E", text=edit(("0x43084308", "0x43074307"), count=0)),
    row("112w", EXPONENTS, "half of the scale", "E", text=edit((" * 0x00000080 + 0x3F003F00", " * 0x00000080 + 0x3E803E80"), count=0)),
    row("112x", EXPONENTS, "numbers without their signs", "E", text=edit(("0x81C081C0", "0x01C001C0"), count=0)),
    row("112y", DECODED, "records of the pair before", "E", text=edit(("(warp * 8 + lane / 4)", "(warp * 8 + (lane / 4 ^ 1))"), count=0)),
    row("112z", DECODED, "a step's registers in another order", "E",
        text=edit(("first_half[4 * i + 1] =", "first_half[4 * i + 2] ="), ("first_half[4 * i + 2] = ptx::times_bf16(ptx::minus_bf16(ptx::masked_or(word >> 8", "first_half[4 * i + 1] = ptx::times_bf16(ptx::minus_bf16(ptx::masked_or(word >> 8"))),
    row("112za", EXPONENTS, "signs of a turned word are lost", "E", text=edit(("(word >> 4 | word << 28)", "(word >> 4)"), count=0)),
    row("114", SHIFTED, "exponents are decoded where E4M3 has sizes", "P", ir=visit(ir.Decode, lambda s: replace(s, by="exponent"))),
    row("114b", SHIFTED, "the other half's numbers", "P", ir=visit(ir.MmaDecoded, exchanged)),
    row("114c", SHIFTED, "two rows' exponents exchanged", "E", text=edit(("four0 = records[0]", "four0 = records[1]"), ("four1 = records[1]", "four1 = records[0]"), count=0)),
    row("114d", SHIFTED, "the exponents of the step beside", "E", text=edit((" >> 8 * i & 0xFF", " >> 8 * (i ^ 1) & 0xFF"), count=0)),
    row("114e", SHIFTED, "0 grows with the others", "E", text=edit(("0x08080800", "0x08080808"), count=0)),
    row("114f", SHIFTED, "twice the sizes", "E", text=edit(("0x14100800", "0x1C181000"), ("0x24201C18", "0x2C282420"), count=0)),
    row("114g", SHIFTED, "numbers without their signs", "E", text=edit(("0x80808080", "0x00000000"), count=0)),
    row("114h", SHIFTED, "the upper columns have the lower ones' signs", "E", text=edit(("masked_or(word0 << 4", "masked_or(word0"), ("masked_or(word1 << 4", "masked_or(word1"), count=0)),
    row("114i", SHIFTED, "the upper columns have the lower ones' codes", "E", text=edit((" & 0x77777777) >> 16)", " & 0x77777777))"), count=0)),
    row("114j", SHIFTED, "two rows' words exchanged", "E", text=edit(("word0 = codes[2 * i]", "word0 = codes[2 * i + 1]"), ("word1 = codes[2 * i + 1]", "word1 = codes[2 * i]"), count=0)),
    row("115", SCALED, "half of a scale of E4M3", "E", text=edit((" * 0x00000010 + 0x76007600", " * 0x00000010 + 0x75807580"), count=0)),
    row("115b", SCALED, "a scale's fraction twice", "E", text=edit((" * 0x00000010 + 0x76007600", " * 0x00000020 + 0x76007600"), count=0)),
    row("115c", SCALED, "the next 16 columns' scale", "E", text=edit(("0x4040 + group % 4", "0x4040 + (group + 1) % 4"), count=0)),
    row("115d", SCALED, "scales of 32 columns", "E", text=edit(("group = i,", "group = i / 2,"), count=0)),
    row("124", OCTETS, "another way of INT8", "P", ir=visit(ir.Decode, lambda s: replace(s, by="offset"))),
    row("124b", POWER, "bits as they lie", "P", ir=visit(ir.Decode, lambda s: replace(s, by="bits"))),
    row("124c", OCTETS, "the other half's numbers", "P", ir=visit(ir.MmaDecoded, exchanged)),
    row("124d", OCTETS, "codes of the K block before", "P", ir=visit(ir.ReadCodes, drop)),
    row("124e", OFFSET, "both waves have the first one's weights", "P", ir=visit(ir.ReadCodes, lambda s: replace(s, wave_bytes=0))),
    row("124f", OCTETS, "records where there are none", "P", ir=visit(ir.ReadCodes, lambda s: replace(s, beside="records"))),
    row("124g", OCTETS, "numbers without their signs", "E", text=edit(("0x00800080, 0x43004300", "0x00000000, 0x43004300"), count=0)),
    row("124h", OCTETS, "the second row has the first one's codes", "E", text=edit(("word >> 8,", "word,"), count=0)),
    row("124i", OCTETS, "two rows exchanged", "E", text=edit(("first_half[2 * i] =", "first_half[2 * i + 1] ="), ("first_half[2 * i + 1] = ptx::minus_bf16(ptx::masked_or(word >> 8", "first_half[2 * i] = ptx::minus_bf16(ptx::masked_or(word >> 8"))),
    row("124j", OFFSET, "127 for 128", "E", text=edit(("0x64806480", "0x647F647F"), count=0)),
    row("124k", OFFSET, "codes without their last bits", "E", text=edit(("0x00FF00FF, 0x64006400", "0x00FE00FE, 0x64006400"), count=0)),
    row("124l", POWER, "half of the power", "E", text=edit(("0x7B807B80", "0x7B007B00"), count=0)),
    row("124m", POWER, "the second row without its signs", "E", text=edit(("0x80F080F0", "0x00F000F0"), count=0)),
    row("124n", BITS, "the second row's signs a bit further", "E", text=edit(("word << 1, 0x80008000", "word << 2, 0x80008000"), count=0)),
    row("124o", BITS, "numbers without their exponents' first bits", "E", text=edit(("0xBF80BF80", "0x9F809F80"), count=0)),
    row("124p", OCTETS, "the codes of the warp beside", "E", text=edit(("threadIdx.x % 128 * 16", "(threadIdx.x ^ 32) % 128 * 16"), count=0)),
    row("124q", BITS, "every expert has the first one's weights", "E", text=edit(("(b + tile.group * b_stride_g)", "b"), count=0)),
    row("125", PROMOTED, "the sum of the K block before goes on", "P", ir=visit(ir.MmaDecoded, lambda s: replace(s, fresh="never"))),
    row("125b", PROMOTED, "the second half begins the sum anew", "P", ir=visit(ir.MmaDecoded, lambda s: replace(s, fresh="block"))),
    row("125c", PROMOTED, "a sum is promoted while it is multiplied", "P", ir=visit(ir.WgmmaWait, drop)),
    row("125d", PROMOTED, "scales of the K block before", "P", ir=visit(ir.LoadColumnScales, not_first)),
    row("125e", PROMOTED, "the first half of the second's codes", "P", ir=visit(ir.Decode, other_half)),
    row("125f", OVERLAPPED, "the halves in two sums", "P", ir=visit(ir.MmaDecoded, other_part, half=1)),
    row("125g", OVERLAPPED, "the sum that is multiplied is promoted", "P", ir=visit(ir.WgmmaWait, lambda s: replace(s, pending=2), pending=1)),
    row("125h", SLICED, "sums of the tile before go on", "P", ir=visit(ir.Zero, drop)),
    row("125i", PROMOTED, "the scale of the column beside", "E", text=edit(("column_scales[i / 2 + 1]", "column_scales[i / 2]"), count=0)),
    row("125j", PROMOTED, "a K block in the place of the sum", "E", text=edit(("acc0[i] += column_scales", "acc0[i] = column_scales"))),
    row("125k", SLICED, "scales of the first stage", "E", text=edit(("smem_scale_a + ring.stage * Shared::SCALE_A_STAGE_BYTES + 8", "smem_scale_a + 8"), count=0)),
    row("125l", WHOLE, "another way to decode", "P", ir=visit(ir.Decode, lambda s: replace(s, by="shift"))),
    row("125m", WHOLE, "scales that are taken for records of codes", "P", ir=visit(ir.ReadCodes, lambda s: replace(s, beside="records"))),
    row("125n", WAVES, "both waves' sums by the first one's scales", "P", ir=visit(ir.Promote, lambda s: replace(s, row_scales="row_scales0"))),
    row("125t", WHOLE, "sums without their rows' scales", "P", ir=visit(ir.Promote, lambda s: replace(s, by="column", row_scales=""))),
    row("125o", WHOLE, "numbers below 0 are one more", "E", text=edit(("0x00000081", "0x00000080"), count=0)),
    row("125p", WHOLE, "numbers without their signs", "E", text=edit((" & 0x01010101", " & 0x00000000"), count=0)),
    row("125q", WHOLE, "the second code's bits a place lower", "E", text=edit((" >> 3) & 0x07070707", " >> 2) & 0x07070707"), count=0)),
    row("125r", WHOLE, "two rows' scales exchanged", "E", text=edit(("row_scales0[0], row_scales0[1])", "row_scales0[1], row_scales0[0])"))),
    row("125s", WHOLE, "scales of the warp beside", "E", text=edit(("(warp * 8 + lane / 4) * 8", "((warp ^ 1) * 8 + lane / 4) * 8"))),
)  # fmt: skip
