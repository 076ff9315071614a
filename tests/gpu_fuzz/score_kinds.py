"""The kernels of an indexer's scores that are fuzzed: of keys in a row, in rows that begin with windows, and of keys in pages."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.config import Config

from .kind import E4M3, F16, F32, Kind

TILE = Config(swap_ab=True, block_m=64, block_n=64, consumers=1, stages=3)
WIDE = Config(swap_ab=True, block_m=128, block_n=256, stages=3)
TURNS = Config(swap_ab=True, block_m=128, block_n=64, stages=4, ping_pong=True, multicast="a")

CHOSEN = Kind(function="fp8_mqa_logits", config=None, a=E4M3, out=F32, scored=64)
COMPACT = replace(CHOSEN, compact=True)
IN_PAGES = replace(CHOSEN, function="fp8_paged_mqa_logits", grouping="batched", page=64)

IN_A_ROW = {
    "scores": CHOSEN,
    "scores, wide": replace(CHOSEN, scored=32, config=WIDE),
    "scores, K in one block": replace(CHOSEN, config=replace(WIDE, one_block=True)),
    "scores, K in one block, in turns": replace(
        CHOSEN, scored=32, out="bfloat16", config=replace(TURNS, one_block=True, in_flight=1)
    ),
    "scores of 8 heads": replace(
        CHOSEN, scored=8, out="bfloat16", config=replace(TILE, block_m=8, block_k_bytes=32)
    ),
    "scores of 16 heads": replace(
        CHOSEN, scored=16, out=F16, config=replace(TILE, block_m=128, block_k_bytes=64, raster="n")
    ),
    "scores of 128 heads": replace(
        CHOSEN, scored=128, out=F16, config=replace(WIDE, block_n=192, consumers=3, multicast="b")
    ),
    "scores in turns": replace(CHOSEN, config=TURNS),
    "scores in turns, keys shared": replace(
        CHOSEN, scored=32, out="bfloat16", config=replace(TURNS, multicast="b", in_flight=1)
    ),
    "scores early": replace(
        CHOSEN, scored=32, out="bfloat16", config=replace(TILE, block_m=32, pdl=True)
    ),
    "scores, peeking": replace(
        CHOSEN, config=replace(WIDE, block_n=128, multicast="a", peek=True, in_flight=1)
    ),
}
FROM_WINDOWS = {
    "scores from windows on": COMPACT,
    "scores from windows on, of 8 heads": replace(
        COMPACT, scored=8, out=F16, config=replace(TILE, block_m=16, block_k_bytes=64)
    ),
    "scores from windows on, in turns": replace(COMPACT, scored=32, out="bfloat16", config=TURNS),
}
PAGED = {
    "scores in pages": IN_PAGES,
    "scores in pages, wide": replace(
        IN_PAGES, out="bfloat16", config=replace(WIDE, block_m=64, block_k_bytes=64)
    ),
    "scores in pages of 8 heads": replace(
        IN_PAGES, scored=8, out=F16, config=replace(TILE, block_m=16, block_k_bytes=32)
    ),
    "scores in pages in turns": replace(
        IN_PAGES, scored=32, config=replace(TURNS, block_m=64, in_flight=1)
    ),
    "scores in pages early": replace(
        IN_PAGES, scored=128, out="bfloat16", config=replace(TILE, block_m=128, pdl=True)
    ),
    "scores in pages of 32": replace(IN_PAGES, page=32),
    "scores in pages of 32, wide": replace(
        IN_PAGES, scored=32, page=32, out="bfloat16", config=replace(WIDE, block_n=192, consumers=3)
    ),
}
SCORES = {**IN_A_ROW, **FROM_WINDOWS, **PAGED}
