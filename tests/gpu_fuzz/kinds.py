"""The kernels that are fuzzed: public functions, each with a config, so that few kernels serve every shape."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.config import Config

from .kind import (
    DIVIDED,
    DIVIDED_SWAPPED,
    E4M3,
    E5M2,
    EARLY,
    F16,
    F32,
    IN_TURNS,
    PEEKING,
    PLAIN,
    S8,
    S32,
    SHARED_A,
    SHARED_B,
    SMALL,
    SWAPPED,
    WAVES,
    Kind,
)
from .score_kinds import SCORES

DENSE = Kind(function="gemm", config=PLAIN)
INT8 = Kind(function="int8_gemm", config=PLAIN, a=S8, out=S32)
FP8 = Kind(function="fp8_gemm", config=PLAIN, a=E4M3, scales="vector")
FAST = replace(FP8, given=(("accurate", False),), scales="")
BLOCK = Kind(function="fp8_block_gemm", config=PLAIN, a=E4M3, scales="block")
WGRAD = Kind(function="fp8_wgrad_gemm", config=SHARED_A, a=E4M3, out=F32, scales="rows")
K_DENSE = Kind(
    function="k_grouped_gemm", config=WAVES, out=F32, layout="tn", grouping="k", packing="columns"
)
K_FP8 = Kind(
    function="fp8_k_grouped_gemm",
    config=Config(stages=3),
    a=E4M3,
    out=F32,
    scales="rows",
    grouping="k",
    packing="flat",
)

SINGLE = {
    "bf16": DENSE,
    "bf16 waves": replace(DENSE, config=WAVES),
    "bf16 swapped": replace(DENSE, config=SWAPPED),
    "bf16 cluster a": replace(DENSE, config=replace(SHARED_A, in_flight=1)),
    "bf16 cluster b": replace(DENSE, config=SHARED_B),
    "bf16 split 2": replace(DENSE, config=DIVIDED),
    "bf16 split 4 swapped": replace(DENSE, config=DIVIDED_SWAPPED),
    "bf16 early": replace(DENSE, config=EARLY),
    "bf16 in turns": replace(DENSE, config=IN_TURNS),
    "bf16 nn": replace(DENSE, layout="nn", config=Config(block_n=96, in_flight=1)),
    "bf16 nn swapped": replace(DENSE, layout="nn", config=SWAPPED),
    "bf16 tn": replace(DENSE, layout="tn", config=replace(WAVES, multicast="a")),
    "bf16 tn cluster b": replace(DENSE, layout="tn", config=Config(block_n=16, multicast="b")),
    "bf16 to f32": replace(DENSE, out=F32, config=Config(block_n=64)),
    "bf16 added": replace(DENSE, out=F32, accumulate=True),
    "f16": replace(DENSE, a=F16, out=F16, config=Config(raster="n", panel=16)),
    "f16 to f32": replace(DENSE, a=F16, out=F32, config=Config(in_flight=1)),
    "int8": INT8,
    "int8 split 4": replace(INT8, config=Config(split_k=4, block_n=32)),
    "int8 scaled": replace(INT8, out="bfloat16", scales="vector", config=SWAPPED),
    "fp8 vector": FP8,
    "fp8 e5m2": replace(FP8, b=E5M2, scales="number", out=F32),
    "fp8 tensor": replace(FP8, scales="tensor", config=SHARED_B),
    "fp8 fast": replace(FAST, config=Config(in_flight=1), out=F32),
    "fp8 fast swapped": replace(FAST, scales="vector", config=SWAPPED),
    "block": BLOCK,
    "block unrolled": replace(BLOCK, out=F32, config=Config(unroll=4)),
    "block peeking": replace(BLOCK, config=PEEKING),
    "block peeking, small": replace(BLOCK, config=replace(SMALL, stages=2, peek=True)),
    "block cluster b": replace(BLOCK, config=Config(multicast="b", block_n=112)),
    "block parts": replace(BLOCK, config=Config(block_n=256, parts=2, stages=3, unroll=2)),
    "block switch": replace(BLOCK, config=Config(block_n=192, stages=3)),
    "block swapped": replace(BLOCK, config=Config(swap_ab=True, block_m=8, unroll=2)),
    "block split 4": replace(BLOCK, config=Config(split_k=4, block_m=64, block_n=32, consumers=1)),
    "block by lane": replace(BLOCK, config=Config(stages=5, unroll=4, lane_scales=True)),
    "block by lane, swapped": replace(BLOCK, config=replace(SWAPPED, lane_scales=True)),
    "block early": replace(BLOCK, config=Config(pdl=True, multicast="a", stages=3)),
    "int8 block": replace(BLOCK, function="int8_block_gemm", a=S8, config=Config(unroll=2)),
    "wgrad": WGRAD,
    "wgrad added": replace(WGRAD, accumulate=True, config=Config(stages=3)),
    "wgrad peeking": replace(WGRAD, config=replace(WAVES, peek=True), accumulate=True),
    "wgrad swapped": replace(
        WGRAD, config=Config(swap_ab=True, block_m=64, multicast="a", stages=3)
    ),
    "wgrad bf16": replace(WGRAD, out="bfloat16", config=Config(block_n=64, multicast="b")),
}

# By grouping: the functions' prefix and the configs of dense, INT8, FP8 and block-scaled kernels.
BY_ROWS = {
    "batched": ("batched", (PLAIN, SWAPPED, SHARED_B, SHARED_A)),
    "masked": ("masked", (SHARED_A, PLAIN, SMALL, Config(swap_ab=True, block_m=16))),
    "rows": ("grouped", (SHARED_A, PLAIN, SWAPPED, PLAIN)),
    "ends": ("grouped", (DIVIDED, SHARED_A, SWAPPED, SHARED_B)),
}


def _grouped() -> dict[str, Kind]:
    found = {}
    for grouping, (name, configs) in BY_ROWS.items():
        kinds = (
            ("bf16", replace(DENSE, function=f"{name}_gemm", out=F32)),
            ("int8", replace(INT8, function=f"int8_{name}_gemm")),
            ("fp8", replace(FP8, function=f"fp8_{name}_gemm")),
            ("block", replace(BLOCK, function=f"fp8_block_{name}_gemm")),
        )
        for (prefix, kind), config in zip(kinds, configs, strict=True):
            found[f"{prefix} {grouping}"] = replace(kind, grouping=grouping, config=config)
    return found


GROUPED = {
    **_grouped(),
    "bf16 nn masked": replace(
        DENSE, function="masked_gemm", grouping="masked", layout="nn", config=PLAIN
    ),
    "bf16 nn ends": replace(
        DENSE, function="grouped_gemm", grouping="ends", layout="nn", config=SWAPPED
    ),
    "bf16 along k": K_DENSE,
    "bf16 along k, added": replace(K_DENSE, accumulate=True, config=SHARED_B),
    "bf16 along k, nt": replace(K_DENSE, layout="nt", out="bfloat16", config=PLAIN),
    "fp8 along k, flat": K_FP8,
    "fp8 along k, flat, cluster": replace(K_FP8, config=SHARED_A),
    "fp8 along k, columns": replace(K_FP8, packing="columns", accumulate=True, config=SHARED_B),
}

DECODED = Config(swap_ab=True, block_m=16, block_k_bytes=256, stages=4, in_flight=1)
INT4 = Kind(function="w4a16_gemm", config=DECODED, weights="int4_128_bf16")
MXFP4 = replace(INT4, weights="e2m1_32_e8m0", config=replace(DECODED, block_m=128, stages=3))
ZEROS = replace(INT4, a=F16, out=F16, weights="int4_32_f16_zeros")
CODED = {
    "int4": INT4,
    "int4 of fp16, zeros": replace(ZEROS, config=replace(DECODED, consumers=1, in_flight=0)),
    "int4 split 2": replace(INT4, weights="int4_64_bf16", config=replace(DECODED, split_k=2)),
    "int4 streamed": replace(INT4, out=F32, config=replace(DECODED, block_m=64, stream=True)),
    "int4 shares": replace(INT4, config=replace(DECODED, shares=2)),
    "int4 in turns": replace(
        INT4, weights="int4_64_bf16_zeros", config=replace(DECODED, ping_pong=True)
    ),
    "int4 early": replace(INT4, out=F32, config=replace(DECODED, block_m=8, stages=6, pdl=True)),
    "mxfp4": MXFP4,
    "mxfp4 cluster": replace(
        MXFP4, config=replace(DECODED, block_m=64, multicast="a", peek=True, in_flight=0)
    ),
    "mxfp4 wide": replace(MXFP4, config=replace(DECODED, block_m=192, stages=2)),
}
BYTES = replace(DECODED, block_k_bytes=128)
OF_FP8 = replace(
    INT4,
    function="w4a8_gemm",
    a=E4M3,
    weights="e2m1_32_e8m0",
    config=BYTES,
)
CODED |= {
    "mxfp4 by fp8": OF_FP8,
    "mxfp4 by fp8, split 2": replace(OF_FP8, out=F32, config=replace(BYTES, split_k=2)),
    "nvfp4": replace(INT4, weights="e2m1_16_e4m3", config=replace(DECODED, block_m=32)),
    "mxfp4 by fp16": replace(MXFP4, a=F16, out=F16, weights="e2m1_32_e8m0_f16"),
    "nvfp4 by fp16": replace(INT4, a=F16, out=F32, weights="e2m1_16_e4m3_f16"),
    "mxfp4 by fp8, wide": replace(OF_FP8, config=replace(BYTES, block_m=192, in_flight=0)),
}
PROMOTED = replace(
    OF_FP8, function="w4a8_block_gemm", scales="a", config=replace(BYTES, in_flight=0)
)
WHOLE = replace(PROMOTED, weights="int4_128_f32")
CODED |= {
    "mxfp4 by fp8 blocks": PROMOTED,
    "mxfp4 by fp8 blocks, overlapped": replace(
        PROMOTED, out=F32, config=replace(BYTES, consumers=1, block_m=64, multicast="a")
    ),
    "int4 by fp8 blocks": WHOLE,
    "int4 by fp8 blocks, sliced": replace(
        WHOLE, config=replace(BYTES, in_flight=0, slice_k=True, block_n=64, consumers=3, stages=6)
    ),
    "int4 by fp8 blocks, split 2": replace(
        WHOLE, out=F32, config=replace(BYTES, in_flight=0, split_k=2, block_m=64)
    ),
}
CODED_GROUPED = {
    "int4 by fp8 blocks, ends": replace(WHOLE, function="w4a8_block_grouped_gemm", grouping="ends"),
    "mxfp4 by fp8 blocks, masked": replace(
        PROMOTED, function="w4a8_block_masked_gemm", grouping="masked"
    ),
    "mxfp4 by fp8, ends": replace(OF_FP8, function="w4a8_grouped_gemm", grouping="ends"),
    "int4 batched": replace(INT4, function="w4a16_batched_gemm", grouping="batched"),
    "mxfp4 masked": replace(
        MXFP4,
        function="w4a16_masked_gemm",
        grouping="masked",
        config=replace(DECODED, block_m=64, multicast="a", peek=True),
    ),
    "int4 rows": replace(INT4, function="w4a16_grouped_gemm", grouping="rows", out=F32),
    "mxfp4 ends": replace(MXFP4, function="w4a16_grouped_gemm", grouping="ends"),
    "int4 ends, zeros": replace(
        ZEROS,
        function="w4a16_grouped_gemm",
        grouping="ends",
        config=replace(DECODED, shares=2, in_flight=0),
    ),
}
SPLIT = replace(BLOCK, given=(("heads", (128, 64, 128)),))
GAPS = {
    "block heads": SPLIT,
    "block heads, wide": replace(SPLIT, config=Config(block_n=192, stages=3, multicast="b")),
    "block heads, swapped": replace(SPLIT, out=F32, given=(("heads", (32, 4, 8)),), config=SWAPPED),
}
SUMMED = {
    "bf16 summed": replace(
        DENSE,
        function="summed_gemm",
        grouping="summed",
        out=F32,
        config=replace(DIVIDED, split_k=8),
    ),
    "bf16 summed, streamed": replace(
        DENSE, function="summed_gemm", grouping="summed", config=replace(SMALL, stream=True)
    ),
    "bf16 tn summed, added": replace(
        DENSE,
        function="summed_gemm",
        grouping="summed",
        layout="tn",
        out=F32,
        accumulate=True,
        config=replace(SMALL, stream=True, in_flight=1),
    ),
}
PRENORM = replace(DENSE, function="prenorm_gemm", out=F32, config=SMALL)
SQUARES = {
    "squares": PRENORM,
    "squares, two waves": replace(PRENORM, config=WAVES),
    "squares, divided": replace(
        PRENORM, config=replace(DIVIDED, block_n=16, split_k=8, in_flight=1)
    ),
    "squares, streamed": replace(PRENORM, config=replace(SMALL, stream=True)),
    "squares, shared": replace(PRENORM, config=replace(SMALL, multicast="a", in_flight=1)),
    "squares, by turns": replace(PRENORM, config=IN_TURNS),
    "squares, batched": replace(PRENORM, grouping="batched", config=EARLY),
}
BY_INDEX = replace(DENSE, function="grouped_gemm", grouping="ends", given=(("top", 3),))
BLOCK_BY_INDEX = replace(BY_INDEX, function="fp8_block_grouped_gemm", a=E4M3, scales="block")
INDEXED = {
    "bf16 by index": replace(BY_INDEX, out=F32),
    "bf16 by index, swapped": replace(BY_INDEX, config=SWAPPED),
    "block by index": replace(BLOCK_BY_INDEX, config=SHARED_B),
    "block by index, swapped": replace(
        BLOCK_BY_INDEX, out=F32, config=Config(swap_ab=True, block_m=8, unroll=2)
    ),
    "block by index, parts": replace(
        BLOCK_BY_INDEX, config=Config(block_n=256, parts=2, stages=3, unroll=2, pdl=True)
    ),
}
OCTETS = replace(
    INT4, function="w8a16_gemm", weights="int8_column_f32", config=replace(DECODED, stages=3)
)
FP8_OCTETS = replace(OCTETS, a=F16, out=F16, weights="e4m3_column_f32_f16")
OF_8_BITS = {
    "int8 weights": OCTETS,
    "int8 weights, split 2": replace(OCTETS, out=F32, config=replace(DECODED, split_k=2, stages=3)),
    "int8 weights by fp16": replace(OCTETS, a=F16, out=F16, weights="int8_column_f32_f16"),
    "fp8 weights": replace(
        OCTETS, weights="e4m3_column_f32", config=replace(DECODED, block_m=64, stages=3)
    ),
    "fp8 weights by fp16": FP8_OCTETS,
    "int8 weights, batched": replace(OCTETS, function="w8a16_batched_gemm", grouping="batched"),
    "fp8 weights by fp16, masked": replace(
        FP8_OCTETS, function="w8a16_masked_gemm", grouping="masked"
    ),
    "int8 weights, ends": replace(OCTETS, function="w8a16_grouped_gemm", grouping="ends"),
}
KINDS = {
    **SINGLE,
    **GROUPED,
    **CODED,
    **CODED_GROUPED,
    **GAPS,
    **SUMMED,
    **SQUARES,
    **INDEXED,
    **SCORES,
    **OF_8_BITS,
}

_TILES = tuple(
    Config(block_m=m, block_n=n, consumers=c, stages=s, multicast=shared)
    for m, n, c in ((64, 64, 1), (128, 64, 2), (128, 128, 2), (256, 64, 2), (64, 128, 1))
    for s in (2, 3)
    for shared in ("none", "a")
)
_MORE = (SWAPPED, Config(swap_ab=True, block_m=64, stages=2), Config(block_n=112), EARLY)
_DECODED = tuple(
    replace(DECODED, block_m=m, block_n=64 * consumers, consumers=consumers, in_flight=x, multicast=shared)
    for m in (16, 32, 64, 128)
    for consumers in (1, 2)
    for x, shared in ((0, "none"), (1, "none"), (1, "a"))
)  # fmt: skip
# One problem each, with configs that all add the same products in the same order.
SAME_BITS = {
    "bf16": (replace(DENSE, out=F32), (*_TILES, *_MORE, Config(in_flight=1), IN_TURNS)),
    "block": (
        replace(BLOCK, out=F32),
        (*_TILES, *_MORE, Config(unroll=4), replace(WAVES, peek=True)),
    ),
    "int4": (replace(INT4, out=F32), _DECODED),
}
