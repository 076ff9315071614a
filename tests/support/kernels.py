"""Problems and configurations the tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.epilogues import EPILOGUES, mqa_logits
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ir.expr import ACC, PerColumn, PerRow, RowBound, fold
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.nodes import Evaluate, Kernel
from gemmgen.ir.row_sums import fold_rows
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

DENSE = Problem(family="dense", a=BF16, b=BF16)
DENSE_F16 = Problem(family="dense", a=F16, b=F16, d=F16)
DENSE_F32 = Problem(family="dense", a=BF16, b=BF16, d=F32)
DENSE_NN, DENSE_TN, DENSE_TT = (
    Problem(family="dense", a=BF16, b=BF16, layout=layout) for layout in ("nn", "tn", "tt")
)
FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)

W4A16 = Problem(family="w4a16", a=BF16, b=BF16, weights="int4_128_bf16")
W8A16 = Problem(family="w8a16", a=BF16, b=BF16, weights="int8_column_f32")
W4A8 = Problem(family="w4a8", a=E4M3, b=E4M3, weights="e2m1_32_e8m0")
W4A8_BLOCK = replace(W4A8, family="w4a8_block")
DECODED = Config(swap_ab=True, block_m=16, block_k_bytes=256, in_flight=1)
DECODED_FP8 = replace(DECODED, block_k_bytes=128)

# Those of any family; groups that are summed have no scales (tests/families/test_summed.py).
GROUPED = tuple(name for name, g in GROUPINGS.items() if name != "none" and not g.summed)

DIRECT = Config(direct=True, swap_ab=True, block_m=8, block_n=64, consumers=1, stages=2, unroll=2)
VECTOR = Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32)
INT8_BLOCK = Problem(family="fp8_block", a=S8, b=S8)
PAIRED = replace(DENSE, epilogue=EPILOGUES["reglu"])

SQUARES = Problem(family="dense", a=BF16, b=BF16, d=F32, squares=True)
SQUARES_PAIRED = replace(SQUARES, epilogue=EPILOGUES["pair_sum"])
HEADS = replace(FP8, heads=(128, 64, 128))
LOGITS = Problem(family="dense", a=E4M3, b=E4M3, d=F32, epilogue=mqa_logits(32))
COMPACT = replace(LOGITS, compact=True)
PAGED = replace(LOGITS, grouping="batched", paged=True, epilogue=mqa_logits(32, from_first=True))

QUANTISED = replace(DENSE, d=E4M3, epilogue=EPILOGUES["bias"])


@dataclass(frozen=True, kw_only=True)
class Emitted:
    problem: Problem
    config: Config
    kernel: Kernel
    source: str

    @property
    def name(self):
        return self.kernel.name


def reads_rows(s):
    """Whether `s` reads what a run's rows are given."""
    return isinstance(s, Evaluate) and s.of == "argument" and isinstance(s.value, PerRow | RowBound)


@cache
def emitted(problem, config):
    """The kernel and its source, not proved: that takes ten times as long, and is test_check.py's."""
    kernel = lower(problem, config)
    return Emitted(problem=problem, config=config, kernel=kernel, source=emit(kernel))


def fitting(problem, shape, kernel=None):
    """`shape` with M and N rounded up to what the epilogue takes, and to whole heads; of a kernel without a loop over K no more of K than it takes."""
    m, n, k = shape
    rows, columns = fold_rows(problem.epilogue), fold(problem.epilogue)
    columns *= problem.gaps.side
    if kernel and kernel.block.one_block:
        k = min(k, kernel.block.k)
    return -(-m // rows) * rows, -(-n // columns) * columns, k


SLICED = Config(slice_k=True, swap_ab=True, block_m=16, block_n=64, consumers=3, stages=6)

# One of each kind of code the families and passes can produce.
VARIETY = {
    "dense": (DENSE, Config()),
    **{f"dense-{g}": (replace(DENSE, grouping=g), Config()) for g in GROUPED},
    "fp8-batched-multicast": (replace(FP8, grouping="batched"), Config(multicast="a")),
    "fp8-ends-waves": (replace(FP8, grouping="ends"), Config(block_m=256, stages=3)),
    "fp8-masked-multicast": (
        replace(FP8, grouping="masked", d=F32),
        Config(multicast="b", stages=3),
    ),
    "fp8-k_columns": (replace(FP8, grouping="k_columns"), Config(stages=3, unroll=2)),
    "fp8-1d1d-k_flat": (
        replace(VECTOR, grouping="k_flat", accumulate=True),
        Config(stages=3, multicast="a"),
    ),
    "dense-tn-k_columns": (
        replace(DENSE_TN, grouping="k_columns", d=F32),
        Config(block_m=256, block_n=64, stages=3, multicast="b", in_flight=1),
    ),
    "dense-summed": (replace(DENSE, grouping="summed"), Config(block_n=64)),
    "dense-summed-split": (
        replace(DENSE_TN, grouping="summed", d=F32, accumulate=True),
        Config(split_k=2, block_n=64, stages=3),
    ),
    "fp8-summed-multicast": (
        replace(FP8, family="fp8", grouping="summed"),
        Config(multicast="b", block_n=64),
    ),
    "dense-f16-n-raster": (DENSE_F16, Config(raster="n", panel=16)),
    "dense-f32": (DENSE_F32, Config(block_n=64)),
    "dense-in-flight": (DENSE, Config(in_flight=1)),
    "dense-in-flight-multicast": (DENSE, Config(in_flight=1, multicast="b")),
    "dense-waves": (DENSE, Config(block_m=256, block_n=64, stages=3)),
    "dense-one-consumer": (DENSE, Config(block_m=64, consumers=1)),
    "dense-wide-k": (DENSE, Config(block_n=64, block_k_bytes=256)),
    "dense-padded": (DENSE, Config(swizzle_d=0)),
    "dense-d-columns": (DENSE, Config(block_n=256, in_flight=1, d_columns=64)),
    "dense-d-columns-add": (
        replace(DENSE_F32, grouping="batched", accumulate=True),
        Config(block_m=256, block_n=64, stages=3, multicast="a", d_columns=32),
    ),
    "fp8-d-columns-swizzle": (FP8, Config(block_m=256, block_n=96, stages=3, d_columns=32)),
    "dense-unswizzled": (DENSE, Config(swizzle_ab=0, swizzle_d=0, multicast="a")),
    "dense-nn": (DENSE_NN, Config(block_n=96, in_flight=1)),
    "dense-tn-multicast-a": (DENSE_TN, Config(block_m=256, block_n=64, stages=3, multicast="a")),
    "dense-tn-multicast-b": (DENSE_TN, Config(block_n=16, multicast="b")),
    "dense-tt-unswizzled": (DENSE_TT, Config(swizzle_ab=0, multicast="a")),
    "fp8": (FP8, Config()),
    "fp8-1d1d": (VECTOR, Config(stages=3)),
    "fp8-1d1d-multicast-b": (VECTOR, Config(block_n=64, multicast="b")),
    "fp8-1d1d-waves": (VECTOR, Config(block_m=256, block_n=64, stages=3, multicast="a")),
    "s8-block": (INT8_BLOCK, Config(unroll=2)),
    "fp8-split": (FP8, Config(block_n=144)),
    "fp8-split-wide": (FP8, Config(block_n=192, stages=3)),
    "fp8-select": (FP8, Config(block_n=136)),
    "fp8-multicast-a": (FP8, Config(multicast="a")),
    "fp8-multicast-b": (FP8, Config(multicast="b", block_n=112)),
    "fp8-waves": (FP8, Config(block_m=128, consumers=1, block_n=64)),
    "fp8-unrolled": (FP8, Config(unroll=4)),
    "fp8-parts": (FP8, Config(block_n=256, parts=2, stages=3, multicast="b")),
    "fp8-parts-overlapped": (FP8, Config(block_n=128, parts=2, multicast="b", in_flight=1)),
    "fp8-1d1d-overlapped": (
        VECTOR,
        Config(block_m=256, block_n=80, stages=3, multicast="a", in_flight=1),
    ),
    "fp8-parts-split": (FP8, Config(block_n=144, parts=2, swizzle_ab=64)),
    "fp8-parts-split-wide": (FP8, Config(block_n=192, parts=2, stages=3)),
    "fp8-parts-waves": (
        replace(FP8, family="fp8", grouping="masked"),
        Config(block_m=256, block_n=128, parts=2, stages=3),
    ),
    "fp8-parts-paired": (
        replace(FP8, d=E4M3, epilogue=EPILOGUES["reglu"]),
        Config(block_n=256, parts=2, stages=3, unroll=2),
    ),
    "fp8-1d1d-parts": (VECTOR, Config(block_n=160, parts=2, stages=3)),
    "dense-paired": (PAIRED, Config(block_n=48)),
    "dense-paired-f32-waves": (replace(PAIRED, d=F32), Config(block_m=256, block_n=64, stages=3)),
    "fp8-paired-masked": (replace(FP8, grouping="masked", epilogue=EPILOGUES["reglu"]), Config()),
    "dense-quantised": (QUANTISED, Config(in_flight=1)),
    "dense-quantised-waves": (QUANTISED, Config(block_m=256, stages=3, multicast="a")),
    "dense-quantised-padded": (QUANTISED, Config(block_n=256, stages=3, swizzle_d=0)),
    "dense-quantised-paired": (replace(PAIRED, d=E4M3), Config(block_n=256, stages=3)),
    "fp8-quantised-masked": (replace(FP8, grouping="masked", d=E4M3), Config()),
    "fp8-heads": (HEADS, Config(block_n=192, stages=3)),
    "fp8-heads-swap": (replace(HEADS, heads=(32, 8, 96)), Config(swap_ab=True, block_m=16)),
    "dense-squares": (SQUARES_PAIRED, Config(block_m=256, consumers=2, block_n=64, stages=3)),
    "dense-squares-shared": (
        SQUARES,
        Config(block_m=64, consumers=1, block_n=32, stages=3, multicast="a"),
    ),
    "fp8-registers": (FP8, Config(registers=(32, 232))),
    "dense-swap": (DENSE, Config(swap_ab=True, block_m=16)),
    "dense-swap-f32": (DENSE_F32, Config(swap_ab=True, block_m=24, block_n=64, consumers=1)),
    "dense-swap-in-flight": (DENSE, Config(swap_ab=True, block_m=32, in_flight=1, multicast="a")),
    "dense-swap-padded": (DENSE, Config(swap_ab=True, block_m=8, swizzle_d=0, multicast="b")),
    "dense-swap-tn": (DENSE_TN, Config(swap_ab=True, block_m=64, block_n=64, consumers=1)),
    "fp8-swap": (FP8, Config(swap_ab=True, block_m=8, unroll=2)),
    "fp8-swap-waves": (FP8, Config(swap_ab=True, block_m=40, block_n=256, stages=3)),
    "fp8-swap-masked": (
        replace(FP8, grouping="masked"),
        Config(swap_ab=True, block_m=16, block_n=64, consumers=1),
    ),
    "dense-swap-paired": (PAIRED, Config(swap_ab=True, block_m=24, block_n=128)),
    "dense-swap-quantised": (
        QUANTISED,
        Config(swap_ab=True, block_m=8, consumers=1, in_flight=1),
    ),
    "fp8-swap-experts": (
        replace(FP8, grouping="ends", d=E4M3, epilogue=EPILOGUES["swiglu"]),
        Config(swap_ab=True, block_m=16, block_n=256, consumers=1, stages=3),
    ),
    "fp8-1d1d-swap": (VECTOR, Config(swap_ab=True, block_m=64, multicast="a", stages=3)),
    "fp8-rows": (
        LOGITS,
        Config(swap_ab=True, block_m=64, block_n=256, stages=2, in_flight=1),
    ),
    "fp8-rows-bf16": (
        replace(LOGITS, d=BF16),
        Config(swap_ab=True, block_m=32, block_n=64, consumers=1, stages=3, pdl=True),
    ),
    "fp8-rows-ping-pong": (
        replace(LOGITS, epilogue=mqa_logits(64)),
        Config(swap_ab=True, block_m=128, block_n=64, stages=4, ping_pong=True, multicast="a"),
    ),
    "logits-one-block": (
        replace(LOGITS, epilogue=mqa_logits(64)),
        Config(swap_ab=True, block_m=128, block_n=256, stages=3, one_block=True),
    ),
    "logits-batched": (
        replace(LOGITS, grouping="batched"),
        Config(swap_ab=True, block_m=32, block_n=128, stages=2, multicast="a"),
    ),
    "logits-compact": (
        replace(COMPACT, d=BF16),
        Config(swap_ab=True, block_m=64, block_n=64, consumers=1, stages=3),
    ),
    "logits-paged": (
        PAGED,
        Config(swap_ab=True, block_m=64, block_n=128, stages=3),
    ),
    "logits-paged-32": (
        replace(PAGED, paged=32, d=BF16),
        Config(swap_ab=True, block_m=32, block_n=64, stages=3, consumers=1),
    ),
    "dense-split-in-flight": (DENSE, Config(split_k=2, in_flight=1)),
    "dense-split-ends": (replace(DENSE, grouping="ends"), Config(split_k=2, block_n=64)),
    "dense-split-s32": (
        replace(DENSE, a=S8, b=S8, d=S32),
        Config(split_k=4, block_n=32),
    ),
    "fp8-pdl-masked": (
        replace(FP8, grouping="masked"),
        Config(pdl=True, multicast="a", stages=3),
    ),
    "w4a16": (W4A16, DECODED),
    "w4a16-zeros-waves": (
        replace(W4A16, a=F16, b=F16, weights="int4_32_f16_zeros"),
        replace(DECODED, consumers=1, in_flight=0, stages=3),
    ),
    "w4a16-exponents-masked": (
        replace(W4A16, weights="e2m1_32_e8m0", grouping="masked"),
        replace(DECODED, block_m=64, multicast="a", peek=True),
    ),
    "w4a16-ahead-split": (
        replace(W4A16, weights_ready=True, weights="int4_64_bf16"),
        replace(DECODED, pdl=True, weights_ahead=True, split_k=2, stages=3),
    ),
    "w4a16-nvfp4": (
        replace(W4A16, weights="e2m1_16_e4m3"),
        replace(DECODED, block_m=32, stages=3),
    ),
    "w4a16-exponents-of-fp16": (
        replace(W4A16, a=F16, b=F16, weights="e2m1_32_e8m0_f16"),
        replace(DECODED, block_m=32, stages=3, in_flight=0),
    ),
    "w4a16-shares-ends": (replace(W4A16, grouping="ends"), replace(DECODED, shares=2)),
    "w4a16-ping-pong": (W4A16, replace(DECODED, ping_pong=True)),
    "w4a8": (W4A8, DECODED_FP8),
    "w4a8-waves-masked": (
        replace(W4A8, grouping="masked", d=F32),
        replace(DECODED_FP8, consumers=1, in_flight=0, stages=3, block_m=64),
    ),
    "w4a8_block": (W4A8_BLOCK, replace(DECODED_FP8, in_flight=0)),
    "w4a8_block-overlap-masked": (
        replace(W4A8_BLOCK, grouping="masked", d=F32),
        replace(DECODED_FP8, consumers=1, stages=3, block_m=64, multicast="a"),
    ),
    "w8a16": (replace(W8A16, epilogue=ACC * PerColumn("scale_b")), replace(DECODED, stages=3)),
    "w8a16-waves-ends": (
        replace(W8A16, a=F16, b=F16, weights="int8_column_f32_f16", grouping="ends"),
        replace(DECODED, consumers=1, in_flight=0, stages=3),
    ),
    "w8a16-fp8-split": (
        replace(W8A16, weights="e4m3_column_f32", weights_ready=True),
        replace(DECODED, block_m=32, stages=2, pdl=True, weights_ahead=True, split_k=2),
    ),
    "w8a16-fp8-masked": (
        replace(W8A16, a=F16, b=F16, d=F32, weights="e4m3_column_f32_f16", grouping="masked"),
        replace(DECODED, block_m=64, stages=3, multicast="a", peek=True),
    ),
    "fp8-ahead": (
        replace(FP8, weights_ready=True),
        Config(pdl=True, weights_ahead=True, multicast="b", stages=3),
    ),
    "fp8-ahead-few": (
        replace(FP8, weights_ready=True),
        Config(
            pdl=True, weights_ahead=True, swap_ab=True, block_m=8, block_n=64, consumers=1, unroll=4
        ),
    ),
    "dense-ahead-adding": (
        replace(DENSE_F32, accumulate=True, weights_ready=True),
        Config(pdl=True, weights_ahead=True, block_m=64, block_n=32, consumers=1),
    ),
    "fp8-1d1d-ahead-split": (
        replace(VECTOR, weights_ready=True),
        Config(pdl=True, weights_ahead=True, split_k=2, block_n=64, stages=3),
    ),
    "dense-ahead-batched": (
        replace(DENSE, grouping="batched", weights_ready=True),
        Config(
            pdl=True,
            weights_ahead=True,
            swap_ab=True,
            block_m=16,
            block_n=64,
            consumers=1,
            stages=6,
        ),
    ),
    "dense-ping-pong": (DENSE, Config(ping_pong=True, in_flight=1, block_n=64)),
    "dense-ping-pong-three": (DENSE, Config(ping_pong=True, consumers=3, block_m=64, block_n=64)),
    "dense-ping-pong-columns": (
        DENSE,
        Config(ping_pong=True, in_flight=1, multicast="b", block_n=64, d_columns=32, swizzle_d=64),
    ),
    "dense-ping-pong-swap": (
        DENSE_F32,
        Config(ping_pong=True, swap_ab=True, block_m=16, block_n=64),
    ),
    "dense-ping-pong-padded": (
        replace(DENSE, grouping="masked"),
        Config(ping_pong=True, block_n=64, swizzle_d=0),
    ),
    "fp8-ping-pong-masked": (
        replace(FP8, grouping="masked"),
        Config(ping_pong=True, block_m=64, block_n=144, stages=3),
    ),
    "fp8-1d1d-ping-pong-k_flat": (
        replace(VECTOR, grouping="k_flat", accumulate=True),
        Config(ping_pong=True, block_m=64, block_n=64, stages=3, multicast="a"),
    ),
    "fp8-peek": (FP8, Config(peek=True, multicast="a", block_n=64, stages=3)),
    "fp8-peek-split-columns": (FP8, Config(peek=True, block_m=64, block_n=144, consumers=1)),
    "dense-peek": (DENSE, Config(peek=True, in_flight=1, block_n=64)),
    "fp8-1d1d-peek-k_flat": (
        replace(VECTOR, grouping="k_flat", accumulate=True),
        Config(peek=True, block_m=256, block_n=64, stages=3),
    ),
    "fp8-split-k": (FP8, Config(split_k=4, block_m=64, block_n=32, consumers=1)),
    "fp8-split-k-swap": (FP8, Config(split_k=8, swap_ab=True, block_m=8, block_n=128, unroll=2)),
    "fp8-1d1d-split-waves": (VECTOR, Config(split_k=2, block_m=256, block_n=32, stages=3)),
    "fp8-lane-scales": (FP8, Config(lane_scales=True, unroll=4)),
    "fp8-lane-scales-waves": (
        replace(FP8, grouping="batched"),
        Config(lane_scales=True, block_m=256, block_n=64, stages=3, multicast="b"),
    ),
    "fp8-lane-scales-swap": (
        replace(FP8, grouping="masked"),
        Config(lane_scales=True, swap_ab=True, block_m=24, block_n=128, pdl=True),
    ),
    "fp8-lane-scales-split-k": (
        FP8,
        Config(lane_scales=True, split_k=4, block_m=64, block_n=32, consumers=1),
    ),
    "dense-direct": (DENSE, DIRECT),
    "dense-direct-split-k": (
        DENSE_F16,
        replace(DIRECT, block_m=16, stages=3, unroll=3, split_k=4),
    ),
    "dense-direct-masked": (
        replace(DENSE_F32, grouping="masked", epilogue=EPILOGUES["bias"]),
        replace(DIRECT, stages=1, unroll=2, pdl=True),
    ),
    "fp8-direct": (
        replace(FP8, family="fp8", b=E5M2),
        replace(DIRECT, block_m=24, block_k_bytes=64, unroll=4),
    ),
    "fp8-block-direct": (FP8, replace(DIRECT, lane_scales=True, stages=4, unroll=4)),
    "fp8-block-direct-rows": (
        replace(FP8, grouping="rows"),
        replace(DIRECT, lane_scales=True, split_k=2),
    ),
    "dense-direct-slots": (DENSE, replace(DIRECT, slots=True, stages=3, unroll=3, split_k=2)),
    "fp8-block-direct-slots": (
        replace(FP8, grouping="rows"),
        replace(DIRECT, lane_scales=True, slots=True, stages=4, unroll=4, block_m=16),
    ),
    "dense-shares": (DENSE, Config(shares=4, in_flight=1, stages=3)),
    "fp8-shares": (FP8, Config(shares=2, unroll=4)),
    "fp8-1d1d-shares-waves": (VECTOR, Config(shares=8, block_m=256, block_n=32, stages=3)),
    "s8-shares": (replace(DENSE, a=S8, b=S8), Config(shares=2, block_n=64)),
    "s8-block-swap": (INT8_BLOCK, Config(swap_ab=True, block_m=48)),
    "dense-slices": (DENSE, replace(SLICED, in_flight=1)),
    "dense-slices-waves": (
        replace(DENSE_F32, grouping="batched"),
        Config(slice_k=True, block_n=32, stages=4, multicast="a"),
    ),
    "s8-slices": (replace(DENSE, a=S8, b=S8), replace(SLICED, consumers=4, stages=4, block_m=24)),
    "w4a16-slices-ends": (
        replace(W4A16, grouping="ends"),
        replace(SLICED, consumers=4, stages=4, block_k_bytes=256),
    ),
    "w4a8-slices-ends": (
        replace(W4A8, grouping="ends"),
        replace(SLICED, consumers=4, stages=4, in_flight=0),
    ),
    "w4a8_block-int4": (
        replace(W4A8_BLOCK, weights="int4_128_f32"),
        replace(DECODED_FP8, in_flight=0),
    ),
    "w4a8_block-int4-waves-masked": (
        replace(W4A8_BLOCK, weights="int4_128_f32", grouping="masked"),
        replace(DECODED_FP8, consumers=1, stages=3, block_m=32),
    ),
    "w4a8_block-slices-ends": (
        replace(W4A8_BLOCK, weights="int4_128_f32", grouping="ends"),
        replace(SLICED, consumers=3, stages=6, in_flight=0),
    ),
}
