"""What each pass changes, and one case per legality rule."""

from __future__ import annotations

import difflib
from dataclasses import replace

import pytest
from kernels import (
    DENSE,
    DENSE_F32,
    DENSE_NN,
    DENSE_TN,
    DENSE_TT,
    FP8,
    HEADS,
    INT8_BLOCK,
    LOGITS,
    PAIRED,
    QUANTISED,
    SQUARES,
    VECTOR,
    W4A16,
)

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, gelu
from gemmgen.errors import IllegalConfig
from gemmgen.families import build
from gemmgen.ir.dtypes import BF16, E4M3, F32, S8
from gemmgen.ir.expr import ACC, PerElement
from gemmgen.ir.text import dump
from gemmgen.passes import PIPELINE, RULES, check_ring
from gemmgen.pipeline import lower
from gemmgen.target import H200

MOE = replace(FP8, d=E4M3, epilogue=EPILOGUES["swiglu"])
SWAP = {"swap_ab": True, "block_m": 16, "block_n": 128}
SUMMED = {"swap_ab": True, "block_m": 64, "block_n": 256, "stages": 2}
BATCHED = replace(DENSE, grouping="batched")
MASKED = replace(DENSE, grouping="masked")
CODED = {"swap_ab": True, "block_m": 16, "block_k_bytes": 256, "in_flight": 1}
READY = replace(FP8, weights_ready=True)
AHEAD = {"pdl": True, "weights_ahead": True}
TURNED = replace(DENSE_TN, grouping="k_columns")
K_COLUMNS = replace(DENSE, grouping="k_columns")
DIRECT = {"direct": True, **SWAP, "block_n": 64, "consumers": 1, "unroll": 2}
SLICED = {"slice_k": True, **SWAP, "block_n": 64, "consumers": 3, "stages": 6}
RANKS = replace(DENSE, collective="reduce_scatter")
REDUCE = replace(DENSE, collective="all_reduce")
GATHER = replace(DENSE, collective="all_gather")
INDEXED = replace(FP8, grouping="ends", indexed=True)
PAGED = replace(DENSE, grouping="batched", paged=True)
BIAS_SILU = replace(DENSE, epilogue=EPILOGUES["bias_silu"])
GELU = replace(FP8, epilogue=EPILOGUES["gelu"])
INT8_GELU = replace(DENSE, a=S8, b=S8, epilogue=EPILOGUES["gelu"])
RESIDUAL = replace(DENSE, epilogue=EPILOGUES["residual"])
FP8_PLAIN = replace(FP8, family="fp8")
ONE_READ = replace(QUANTISED, epilogue=ACC * PerElement("x", F32))
TWO_READ = replace(QUANTISED, epilogue=ACC * PerElement("x", F32) + PerElement("y", BF16))
OWN_PAIRS = replace(DENSE, d=F32, grouping="rows", epilogue=EPILOGUES["bias_swiglu"])
OWN_CALLS = replace(DENSE, grouping="rows", epilogue=EPILOGUES["bias_silu"])
OWN_SCALED = replace(OWN_CALLS, epilogue=EPILOGUES["scaled"])
NESTED_ERF = replace(DENSE, epilogue=gelu(gelu(ACC)))


def change(pass_name: str, problem, **changes) -> str:
    """What the pass changes in the dump, as removed and added lines."""
    dumps, names = [], []

    def observer(name, kernel):
        dumps.append(dump(kernel).splitlines())
        names.append(name)

    stamps = changes.pop("stamps", 0)
    config = Config(**{"stages": 2, "block_n": 64} | changes)
    lower(problem, config, observer=observer, stamps=stamps)
    at = names.index(pass_name)
    diff = difflib.unified_diff(dumps[at - 1], dumps[at], n=0, lineterm="")
    return "".join(f"{line}\n" for line in diff if not line.startswith(("---", "+++", "@@")))


# One case per thing a pass decides; small enough to read in a diff.
CHANGES = {
    "swap_operands": (DENSE_TN, {**SWAP, "block_n": 128}),
    "swap_operands-block-scales": (FP8, {**SWAP, "block_n": 256}),
    "swap_operands-line-scales": (VECTOR, {**SWAP, "block_n": 256}),
    "swap_operands-pairs": (PAIRED, SWAP | {"block_n": 128}),
    "swap_operands-scales": (QUANTISED, SWAP | {"block_n": 128, "consumers": 1}),
    "swap_operands-pairs-scales": (MOE, SWAP | {"block_n": 256, "consumers": 1}),
    "split_scales": (FP8, {"block_n": 144}),
    "read_lane_scales": (FP8, {"lane_scales": True}),
    "read_lane_scales-waves": (FP8, {"lane_scales": True, "block_m": 256}),
    "read_lane_scales-swapped": (replace(FP8, grouping="batched"), {"lane_scales": True, **SWAP}),
    "take_turns": (DENSE, {"ping_pong": True, "in_flight": 1}),
    "take_turns-three": (FP8, {"ping_pong": True, "consumers": 3, "block_m": 64}),
    "size_barriers-turns": (FP8, {"ping_pong": True, "multicast": "a", "in_flight": 0}),
    "layout_smem-turns": (DENSE, {"ping_pong": True}),
    "split_registers-turns": (DENSE, {"ping_pong": True, "consumers": 3, "block_m": 64}),
    "peek_ahead": (FP8, {"peek": True}),
    "peek_ahead-released-late": (DENSE, {"peek": True, "in_flight": 1}),
    "split_k": (FP8, {"split_k": 4}),
    "split_k-two-waves": (VECTOR, {"split_k": 2, "block_m": 256, "block_n": 32}),
    "split_k-in-flight": (replace(DENSE, grouping="ends"), {"split_k": 4, "in_flight": 1}),
    "split_k-quantised": (QUANTISED, {"split_k": 2, "block_n": 128}),
    "stream_k": (FP8, {"stream": True}),
    "stream_k-two-waves": (VECTOR, {"stream": True, "block_m": 256, "block_n": 32}),
    "stream_k-swapped": (BATCHED, {"stream": True, **SWAP}),
    "guard_waits-streamed": (DENSE, {"stream": True, "watchdog": True}),
    "read_direct": (FP8, {**DIRECT, "lane_scales": True}),
    "read_direct-split": (BATCHED, {**DIRECT, "split_k": 2, "stages": 1}),
    "take_slots": (FP8, {**DIRECT, "lane_scales": True, "slots": True}),
    "add_shares": (FP8, {"shares": 2}),
    "add_shares-in-flight": (DENSE, {"shares": 4, "in_flight": 1, "block_m": 256, "block_n": 64}),
    "slice_k": (DENSE, SLICED),
    "slice_k-in-flight": (DENSE, {**SLICED, "consumers": 4, "stages": 8, "in_flight": 1}),
    "slice_k-two-waves": (DENSE, {"slice_k": True, "block_m": 128}),
    "one_block": (LOGITS, SUMMED | {"one_block": True}),
    "one_block-turns": (LOGITS, SUMMED | {"one_block": True, "ping_pong": True}),
    "split_registers-slices": (DENSE, {**SLICED, "consumers": 4, "stages": 4}),
    "split_registers-direct": (DENSE, DIRECT),
    "scatter_rows": (RANKS, {}),
    "scatter_rows-two-waves": (RANKS, {"block_m": 256, "block_n": 64, "d_columns": 64}),
    "scatter_rows-wire": (replace(RANKS, wire=BF16), {}),
    "scatter_rows-outbox": (RANKS, {"outbox": True}),
    "reduce_all": (REDUCE, {}),
    "reduce_all-wire": (
        replace(REDUCE, wire=BF16),
        {"block_m": 256, "block_n": 64, "d_columns": 64},
    ),
    "guard_waits-ranks": (RANKS, {"watchdog": True}),
    "gather_rows": (GATHER, {}),
    "gather_rows-scales": (replace(FP8, collective="all_gather"), {"multicast": "b"}),
    "index_rows": (INDEXED, {"stages": 4, "multicast": "b"}),
    "index_rows-split": (replace(DENSE, grouping="ends", indexed=True), {"split_k": 2}),
    "size_barriers-indexed": (INDEXED, {}),
    "load_pages": (PAGED, {"swizzle_ab": 64}),
    "split_boxes-pages": (PAGED, {"swizzle_ab": 64}),
    "guard_waits-gather": (GATHER, {"watchdog": True}),
    "allow_empty-split": (DENSE, {"split_k": 2, "in_flight": 1}),
    "size_barriers-split": (FP8, {"split_k": 2, "block_m": 256}),
    "layout_smem-split": (DENSE, {"split_k": 4}),
    "overlap_promotion": (VECTOR, {"block_m": 256, "block_n": 64, "stages": 3, "in_flight": 1}),
    "keep_address": (BATCHED, {}),
    "instrument": (FP8, {"stamps": 64}),
    "instrument-split": (DENSE, {"stamps": 64, "split_k": 2, "in_flight": 1}),
    "overlap_launches": (FP8, {"pdl": True, "multicast": "a"}),
    "load_ahead": (READY, {**AHEAD, "multicast": "a"}),
    "load_ahead-split": (READY, {**AHEAD, "split_k": 2}),
    "split_scales-parts": (FP8, {"block_n": 256, "parts": 2}),
    "plan_descriptors-parts": (FP8, {"block_n": 64, "parts": 2}),
    "plan_multicast": (FP8, {"multicast": "a"}),
    "plan_multicast-mn-major": (DENSE_TN, {"multicast": "a"}),
    "assign_swizzle": (DENSE, {"block_n": 48}),
    "assign_swizzle-mn-major": (DENSE_NN, {"block_n": 96}),
    "pad_epilogue": (DENSE, {"swizzle_d": 0}),
    "choose_stores": (DENSE, {"block_n": 96}),
    "split_output": (DENSE, {"block_n": 256, "stages": 3, "d_columns": 128}),
    "split_output-two-waves": (DENSE_F32, {"block_m": 256, "block_n": 32, "d_columns": 32}),
    "choose_stores-f32": (DENSE_F32, {"block_n": 32, "block_m": 256}),
    "choose_stores-quantised": (QUANTISED, {"block_n": 128}),
    "pad_epilogue-quantised": (QUANTISED, {"block_n": 128, "swizzle_d": 0}),
    "choose_stores-paired": (replace(DENSE, epilogue=EPILOGUES["swiglu"]), {}),
    "choose_stores-padded": (DENSE, {"swizzle_d": 0}),
    "store_sums": (LOGITS, SUMMED),
    "hold_arguments": (LOGITS, SUMMED),
    "take_turns-sums": (LOGITS, SUMMED | {"ping_pong": True}),
    "allow_empty-sums-of-blocks": (replace(LOGITS, family="fp8_block"), SUMMED),
    "split_boxes": (DENSE, {"block_k_bytes": 256}),
    "split_boxes-multicast": (FP8, {"multicast": "b"}),
    "split_boxes-mn-major": (DENSE_TN, {"multicast": "b", "block_n": 160}),
    "plan_descriptors": (DENSE, {"block_m": 256}),
    "plan_descriptors-unswizzled": (DENSE, {"swizzle_ab": 0}),
    "plan_descriptors-mn-major": (DENSE_TN, {"block_m": 256, "block_n": 96}),
    "plan_descriptors-mn-major-unswizzled": (DENSE_TN, {"swizzle_ab": 0}),
    "size_barriers": (FP8, {}),
    "size_barriers-multicast": (FP8, {"multicast": "a", "in_flight": 0}),
    "size_barriers-in-flight": (DENSE, {"multicast": "b", "in_flight": 1}),
    "plan_multicast-swap": (FP8, {**SWAP, "block_m": 64, "multicast": "a"}),
    "choose_stores-swap": (DENSE, SWAP | {"block_n": 256}),
    "choose_stores-swap-f32": (DENSE_F32, SWAP),
    "choose_stores-swap-ragged": (MASKED, SWAP),
    "plan_descriptors-swap": (DENSE, SWAP | {"block_n": 256}),
    "layout_smem": (FP8, {}),
    "layout_smem-padded": (DENSE, {"swizzle_d": 0, "stages": 3}),
    "choose_stores-ragged": (MASKED, {}),
    "choose_stores-ragged-padded": (MASKED, {"swizzle_d": 0}),
    "choose_stores-batched": (BATCHED, {}),
    "split_boxes-batched": (BATCHED, {"block_k_bytes": 256}),
    "plan_multicast-batched": (BATCHED, {"multicast": "a"}),
    "allow_empty": (K_COLUMNS, {"in_flight": 1, "multicast": "a"}),
    "derive_maps": (K_COLUMNS, {}),
    "derive_maps-flat": (replace(VECTOR, grouping="k_flat"), {"multicast": "b"}),
    "derive_maps-mn-major": (replace(DENSE_TN, grouping="k_flat"), {}),
    "derive_maps-block-scales": (replace(FP8, grouping="k_columns"), {}),
    "split_registers": (FP8, {}),
    "split_registers-many": (FP8, {"block_m": 256, "block_n": 128}),
    "split_registers-one-consumer": (FP8, {"block_m": 64, "consumers": 1}),
    "split_registers-asked": (FP8, {"registers": (32, 232)}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_change(case, golden):
    problem, changes = CHANGES[case]
    golden(change(case.split("-")[0], problem, **changes))


@pytest.mark.parametrize(
    ("name", "problem", "changes"),
    (
        ("check_tile", FP8, {}),
        ("store_sums", FP8, SWAP),
        ("hold_arguments", FP8, SWAP),
        ("check_output", PAIRED, {}),
        ("check_output", QUANTISED, {"block_n": 128}),
        ("check_complete", FP8, {}),
        ("split_scales", DENSE, {"block_n": 144}),
        ("split_scales", FP8, {"block_n": 64}),
        ("split_scales", FP8, SWAP | {"block_n": 256}),
        ("swap_operands", FP8, {}),
        ("plan_multicast", FP8, {}),
        ("plan_multicast", FP8, {"split_k": 2}),
        ("derive_maps", FP8, {"split_k": 2}),
        ("split_k", FP8, {}),
        ("split_k", K_COLUMNS, {}),
        ("split_k", FP8, {"ping_pong": True}),
        ("stream_k", FP8, {}),
        ("scatter_rows", FP8, {}),
        ("scatter_rows", REDUCE, {}),
        ("reduce_all", FP8, {}),
        ("reduce_all", RANKS, {}),
        ("read_direct", FP8, {}),
        ("take_slots", FP8, {**DIRECT, "lane_scales": True}),
        ("add_shares", FP8, {"split_k": 2}),
        ("slice_k", DENSE, {}),
        ("one_block", LOGITS, SUMMED),
        ("allow_empty", DENSE, {"shares": 2, "in_flight": 1}),
        ("assign_swizzle", FP8, {**DIRECT, "lane_scales": True, "swizzle_d": 128}),
        ("scatter_rows", GATHER, {}),
        ("gather_rows", FP8, {}),
        ("index_rows", replace(FP8, grouping="ends"), {}),
        ("gather_rows", RANKS, {}),
        ("split_k", FP8, {"stream": True}),
        ("allow_empty", DENSE, {"stream": True, "in_flight": 1}),
        ("take_turns", FP8, {}),
        ("take_turns", FP8, {"split_k": 2}),
        ("take_turns", K_COLUMNS, {"consumers": 1, "block_m": 64}),
        ("peek_ahead", FP8, {}),
        ("derive_maps", BATCHED, {}),
        ("keep_address", FP8, {}),
        ("keep_address", replace(BATCHED, epilogue=EPILOGUES["silu"]), {}),
        ("allow_empty", MASKED, {"in_flight": 1}),
        ("allow_empty", replace(FP8, grouping="k_flat"), {}),
    ),
)
def test_nothing_to_decide(name, problem, changes):
    assert change(name, problem, **changes) == ""


def test_every_pass_has_a_case():
    names = {p.name for p in PIPELINE}
    assert {case.split("-")[0] for case in CHANGES} == names - {
        "check_tile",
        "check_ring",
        "check_output",
        "check_complete",
        "join_parts",  # of which the text shows nothing: test_tile_parts.py
    }


# ---- legality -----------------------------------------------------------------------------

# rule id: (problem, config, what the target lacks, the values the error must hold). A rule no
# shipped target can break is triggered by a lesser one.
ILLEGAL = {
    "swapped-scales": (
        QUANTISED,
        {"swap_ab": True, "block_m": 16, "block_n": 128},
        {},
        {"warpgroups": 2, "columns": 128},
    ),
    "decoded-swapped": (W4A16, {"block_k_bytes": 256}, {}, {"swap_ab": False}),
    "decoded-span": (
        W4A16,
        {"swap_ab": True, "block_m": 16},
        {},
        {"k": 64, "multicast": "none"},
    ),
    "swapped-sums": (
        LOGITS,
        {"swap_ab": True, "block_m": 128, "block_n": 128, "swizzle_d": 128},
        {},
        {"swizzle_d": 128},
    ),
    "swapped-parts": (FP8, {"swap_ab": True, "block_m": 16, "parts": 2}, {}, {"parts": 2}),
    "parts-promoted": (DENSE, {"parts": 2}, {}, {"parts": 2}),
    "column-pieces": (
        DENSE,
        {"block_n": 192, "d_columns": 64},
        {},
        {"d_columns": 64, "columns": 192, "slab": 64, "waves": 1},
    ),
    "column-stores": (
        DENSE,
        {"swizzle_d": 0, "d_columns": 64},
        {},
        {"d_columns": 64, "swizzle": 0},
    ),
    "swapped-rows": (DENSE, {"swap_ab": True, "block_m": 72}, {}, {"block_m": 72, "most": 64}),
    "wgmma-n": (DENSE, {"block_n": 256}, {"wgmma_n": 128}, {"block_n": 256}),
    "ring-depth": (DENSE, {"stages": 1, "in_flight": 1}, {}, {"stages": 1, "in_flight": 1}),
    "tile-rows": (
        DENSE,
        {"block_m": 192},
        {},
        {"block_m": 192, "consumers": 2, "waves": 1},
    ),
    "output-pieces": (
        PAIRED,
        {"block_n": 40},
        {},
        {"block_n": 40, "columns": 20, "row_bytes": 40},
    ),
    "output-scales": (QUANTISED, {"block_n": 64}, {}, {"block_n": 64, "columns": 64}),
    "promoted-pairs": (
        replace(FP8, d=E4M3, epilogue=EPILOGUES["swiglu"]),
        {"block_n": 256},
        {},
        {"fold": 2, "columns": 128, "parts": 1},
    ),
    "scale-block-k": (FP8, {"block_k_bytes": 64}, {}, {"block_k": 64}),
    "split-unroll": (INT8_BLOCK, {"block_n": 192, "unroll": 4}, {}, {"unroll": 4, "copies": 2}),
    "scale-blocks": (FP8, {"block_n": 152}, {}, {"block_n": 152, "blocks": 3}),
    "row-sums": (
        LOGITS,
        {"swap_ab": True, "block_m": 48},
        {},
        {"swap_ab": True, "block_m": 48, "rows": 32},
    ),
    "promotion-overlaps": (FP8, {"in_flight": 1}, {}, {"in_flight": 1, "pieces": 1}),
    "overlap-unroll": (
        FP8_PLAIN,
        {"in_flight": 1, "parts": 2, "block_n": 96, "unroll": 4},
        {},
        {"in_flight": 1, "unroll": 4},
    ),
    "overlap-columns": (
        VECTOR,
        {"in_flight": 1, "parts": 2, "block_n": 64, "multicast": "b"},
        {},
        {"in_flight": 1, "cluster": 2, "pieces": 2},
    ),
    "cluster-size": (DENSE, {"multicast": "a"}, {"sms": 131}, {"cluster": 2, "sms": 131}),
    "ping-pong": (
        DENSE,
        {"ping_pong": True, "consumers": 1},
        {},
        {"ping_pong": True, "consumers": 1, "split_k": 1},
    ),
    "peek": (
        DENSE,
        {"peek": True, "ping_pong": True},
        {},
        {"peek": True, "ping_pong": True, "unroll": 1},
    ),
    "split-multicast": (
        DENSE,
        {"split_k": 2, "multicast": "a"},
        {},
        {"split_k": 2, "multicast": "a"},
    ),
    "split-depths": (K_COLUMNS, {"split_k": 4}, {}, {"split_k": 4, "scheduler": "depths"}),
    "stream-alone": (
        DENSE,
        {"stream": True, "multicast": "a"},
        {},
        {"multicast": "a", "split_k": 1, "ping_pong": False},
    ),
    "stream-groups": (MASKED, {"stream": True}, {}, {"stream": True, "scheduler": "masked"}),
    "direct-tile": (
        DENSE,
        {**DIRECT, "block_n": 128, "consumers": 2},
        {},
        {"block_n": 128, "consumers": 2, "waves": 1},
    ),
    "direct-operands": (
        INT8_BLOCK,
        {**DIRECT, "lane_scales": True},
        {},
        {"a": "s8", "b": "s8", "block_k_bytes": 128},
    ),
    "direct-alone": (DENSE, {**DIRECT, "multicast": "a"}, {}, {"multicast": "a"}),
    "direct-scales": (FP8, DIRECT, {}, {"in stages": ["smem_scale_a"]}),
    "direct-unroll": (DENSE, {**DIRECT, "unroll": 1}, {}, {"unroll": 1, "stages": 4}),
    "shares-alone": (
        DENSE,
        {"shares": 4, "split_k": 2},
        {},
        {"shares": 4, "split_k": 2, "stream": False, "direct": False, "scheduler": "panels"},
    ),
    "slice-consumers": (
        DENSE,
        {**SLICED, "consumers": 1},
        {},
        {"slice_k": True, "consumers": 1},
    ),
    "slice-alone": (
        DENSE,
        {**SLICED, "split_k": 2},
        {},
        {
            "ping_pong": False,
            "split_k": 2,
            "stream": False,
            "direct": False,
            "shares": 1,
            "scheduler": "panels",
        },
    ),
    "slice-sums": (FP8, SLICED, {}, {"slice_k": True, "promotes": True}),
    "one-block": (
        DENSE,
        {"one_block": True},
        {},
        {"one_block": True, "rows of a sum": 1, "K loops": "tile"},
    ),
    "slice-ring": (
        DENSE,
        {**SLICED, "stages": 4},
        {},
        {"stages": 4, "consumers": 3, "in_flight": 0},
    ),
    "slots-direct": (DENSE, {"slots": True}, {}, {"slots": True, "direct": False}),
    "ranks-alone": (RANKS, {"split_k": 2}, {}, {"split_k": 2}),
    "ranks-overlap": (RANKS, {"pdl": True}, {}, {"pdl": True}),
    "outbox-sums": (DENSE, {"outbox": True}, {}, {"outbox": True, "scheduler": "panels"}),
    "indexed-producer": (
        INDEXED,
        {**DIRECT, "lane_scales": True, "stages": 2},
        {},
        {"direct": True},
    ),
    "indexed-shared": (INDEXED, {"multicast": "a"}, {}, {"multicast": "a"}),
    "indexed-span": (INDEXED, {"swizzle_ab": 64}, {}, {"swizzle": 64, "row_bytes": 128}),
    "paged-producer": (PAGED, DIRECT, {}, {"direct": True}),
    "paged-shared": (PAGED, {"multicast": "b"}, {}, {"multicast": "b"}),
    "paged-tile": (PAGED, {"block_n": 96}, {}, {"block_n": 96}),
    "gather-alone": (GATHER, {"split_k": 2}, {}, {"split_k": 2}),
    "gather-producer": (
        replace(FP8, collective="all_gather"),
        {"lane_scales": True},
        {},
        {"lane_scales": True, "direct": False},
    ),
    "ahead-pdl": (READY, {**AHEAD, "pdl": False}, {}, {"weights_ahead": True, "pdl": False}),
    "ahead-promise": (FP8, AHEAD, {}, {"weights_ahead": True, "weights_ready": False}),
    "ahead-table": (
        replace(MASKED, weights_ready=True),
        AHEAD,
        {},
        {"weights_ahead": True, "table": "group_rows"},
    ),
    "multicast-slice": (
        DENSE,
        {"multicast": "b", "block_n": 24},
        {},
        {"shared": "smem_b", "rows": 24, "cluster": 2},
    ),
    "swizzle-width": (
        DENSE,
        {"block_n": 48, "swizzle_d": 128},
        {},
        {"buffer": "smem_d", "row_bytes": 96, "swizzle": 128},
    ),
    "heads-boxes": (
        replace(HEADS, heads=(32, 64, 128)),
        {"swizzle_d": 128},
        {},
        {"row_bytes": 256, "swizzle": 128, "heads": "(32, 64, 128)"},
    ),
    "squares-lines": (
        SQUARES,
        {"swizzle_ab": 64},
        {},
        {"k_bytes": 128, "swizzle_ab": 64},
    ),
    "squares-rows": (SQUARES, {"swap_ab": True, "block_m": 16}, {}, {"swap_ab": True}),
    "shares-squares": (SQUARES, {"shares": 2}, {}, {"shares": 2}),
    "tma-loads": (
        replace(DENSE, layout="tn"),
        {"block_m": 256, "block_n": 64, "swizzle_ab": 0, "stages": 2},
        {},
        {"loads": 40, "most": 32},
    ),
    "tma-box": (
        DENSE,
        {"block_m": 128, "block_n": 64},
        {"tma_box": 64},
        {"map": "map_a", "box": (64, 128), "inner_bytes": 128},
    ),
    "barrier-bytes": (
        DENSE,
        {},
        {"mbarrier_tx_limit": 32767},
        {"barrier": "full", "bytes": 2 * 128 * 128},
    ),
    "smem-capacity": (
        DENSE,
        {"stages": 7},
        {},
        {"bytes": 7 * (2 * 128 * 128 + 2 * 8) + 128 * 128 * 2, "capacity": 232448, "stages": 7},
    ),
    "setmaxnreg-value": (
        DENSE,
        {"registers": (20, 240)},
        {},
        {"role": "producer", "registers": 20},
    ),
    "setmaxnreg-direction": (
        DENSE,
        {"registers": (232, 136)},
        {},
        {"producer": 232, "launch": 168, "consumer": 136},
    ),
    "register-file": (
        DENSE,
        {"registers": (40, 240)},
        {},
        {"registers": 128 * 40 + 256 * 240, "pool": 168 * 384},
    ),
    "lane-scales": (VECTOR, {"lane_scales": True}, {}, {"lane_scales": True}),
    "launch-registers": (
        DENSE,
        {"block_m": 192, "block_n": 208, "consumers": 3, "stages": 2},
        {},
        {"accumulators": 104, "beside": 28, "launch": 128},
    ),
    "register-budget": (
        DENSE,
        {"block_m": 128, "block_n": 256, "consumers": 1, "stages": 2},
        {},
        {"role": "consumer", "arrays": 256},
    ),
}


@pytest.mark.parametrize("rule", ILLEGAL)
def test_rule(rule):
    problem, changes, lesser, values = ILLEGAL[rule]
    with pytest.raises(IllegalConfig) as e:
        lower(problem, Config(**changes), replace(H200, **lesser))
    assert e.value.rule.id == rule
    assert e.value.rule in RULES
    assert e.value.values.items() >= values.items()
    assert e.value.fix.strip()


def test_every_rule_has_a_case():
    assert set(ILLEGAL) == {rule.id for rule in RULES}


def test_rules_are_documented_and_unique():
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.says.strip() and rule.because.strip() for rule in RULES)


@pytest.mark.parametrize(
    ("rule", "problem", "changes"),
    (
        ("scale-blocks", FP8, {"block_n": 200}),
        ("output-pieces", PAIRED, {"block_n": 8}),
        ("output-scales", QUANTISED, {"block_n": 192}),
        ("output-scales", replace(PAIRED, d=E4M3), {"block_n": 128}),
        ("promoted-pairs", replace(VECTOR, d=E4M3, epilogue=EPILOGUES["swiglu"]), {}),
        ("output-scales", MOE, {"parts": 2}),
        ("parts-promoted", replace(DENSE, a=E4M3, b=E4M3), {"parts": 2, "in_flight": 1}),
        ("swapped-parts", DENSE, SWAP | {"parts": 2}),
        ("decoded-span", W4A16, CODED | {"multicast": "b"}),
        ("decoded-span", W4A16, CODED | {"block_k_bytes": 128}),
        ("direct-operands", W4A16, CODED | {"direct": True, "block_n": 64, "consumers": 1}),
        ("swapped-parts", W4A16, CODED | {"parts": 2}),
        ("ring-depth", W4A16, CODED | {"stages": 1}),
        ("swapped-scales", MOE, SWAP | {"parts": 2}),
        ("swapped-scales", MOE, SWAP | {"block_n": 256}),
        ("swapped-scales", MOE, SWAP | {"consumers": 1}),
        ("swapped-scales", QUANTISED, SWAP | {"consumers": 1, "block_n": 256}),
        ("swapped-scales", QUANTISED, SWAP | {"consumers": 2, "ping_pong": True}),
        ("wgmma-n", FP8, {"block_n": 8, "parts": 2}),
        ("wgmma-n", FP8, {"block_n": 136, "parts": 2}),
        ("wgmma-n", INT8_BLOCK, {"block_n": 80, "parts": 2}),
        ("scale-blocks", FP8, {"block_n": 208, "parts": 2}),
        ("promotion-overlaps", VECTOR, {"in_flight": 1, "block_m": 64, "consumers": 1}),
        ("register-budget", FP8, {"in_flight": 1, "block_m": 256, "stages": 3}),
        ("register-budget", FP8, {"consumers": 1, "block_n": 256, "stages": 1, "parts": 2}),
        ("register-budget", VECTOR, {"block_n": 256, "stages": 1, "parts": 2}),
        ("promoted-pairs", replace(PAIRED, family="fp8", a=E4M3, b=E4M3, d=E4M3), {}),
        ("setmaxnreg-value", DENSE, {"registers": (24, 264)}),
        ("setmaxnreg-value", DENSE, {"registers": (24, 236)}),
        ("swizzle-width", DENSE, {"block_k_bytes": 64, "swizzle_ab": 128}),
        ("tile-rows", DENSE, {"block_m": 64}),
        ("tile-rows", DENSE, {"block_m": 32}),
        ("swapped-scales", QUANTISED, SWAP),
        ("tile-rows", DENSE, SWAP | {"block_n": 64}),
        ("tile-rows", DENSE, SWAP | {"block_n": 96}),
        ("tile-rows", DENSE, SWAP | {"block_n": 200, "consumers": 1}),
        ("wgmma-n", replace(DENSE, a=S8, b=S8), SWAP | {"block_m": 40}),
        ("scale-block-k", FP8, SWAP | {"block_k_bytes": 64}),
        ("scale-block-k", VECTOR, SWAP | {"block_k_bytes": 256, "stages": 2}),
        ("promotion-overlaps", FP8, SWAP | {"in_flight": 1}),
        ("multicast-slice", DENSE, SWAP | {"block_m": 24, "multicast": "a"}),
        ("multicast-slice", FP8, SWAP | {"block_m": 32, "multicast": "a"}),
        ("swizzle-width", DENSE_NN, {"block_n": 96, "swizzle_ab": 128}),
        ("multicast-slice", FP8, {"multicast": "b", "block_n": 8}),
        ("smem-capacity", FP8, {"block_m": 256, "block_n": 128, "stages": 4}),
        ("smem-capacity", FP8, {"split_k": 8, "block_n": 64}),
        ("smem-capacity", DENSE, {"ping_pong": True, "stages": 6}),
        ("ping-pong", DENSE, {"ping_pong": True, "split_k": 2}),
        ("ping-pong", FP8, SWAP | {"ping_pong": True, "split_k": 8}),
        ("ping-pong", FP8, {"ping_pong": True, "consumers": 1, "split_k": 2}),
        ("peek", FP8, {"peek": True, "unroll": 2}),
        ("peek", FP8, {"ping_pong": True, "peek": True, "consumers": 3, "block_m": 64}),
        ("tile-rows", DENSE, {"ping_pong": True, "block_m": 96}),
        ("register-budget", DENSE, {"ping_pong": True, "block_m": 256, "stages": 2}),
        (
            "register-budget",
            QUANTISED,
            {"split_k": 2, "block_m": 64, "block_n": 256, "consumers": 1, "stages": 1},
        ),
        ("register-budget", FP8, {"block_m": 256, "block_n": 160, "stages": 1}),
        ("register-budget", BIAS_SILU, {"block_m": 256, "block_n": 176, "stages": 2}),
        ("register-budget", GELU, {"block_m": 256, "block_n": 128, "stages": 2}),
        ("register-budget", INT8_GELU, {"block_n": 192, "stages": 2}),
        ("register-budget", RESIDUAL, {"block_m": 256, "block_n": 176, "stages": 2}),
        ("register-budget", K_COLUMNS, {"registers": (24, 240)}),
        ("register-budget", TWO_READ, {"block_m": 64, "block_n": 256, "consumers": 1}),
        ("register-budget", TWO_READ, {"block_n": 256, "stages": 3}),
        ("register-budget", TWO_READ, {"block_m": 256, "stages": 2}),
        ("register-budget", OWN_PAIRS, {"block_m": 64, "block_n": 240, "consumers": 1}),
        ("register-budget", NESTED_ERF, {"block_n": 144, "stages": 3}),
        ("register-budget", OWN_CALLS, {"block_n": 160, "stages": 3}),
        ("register-budget", OWN_CALLS, {"block_m": 64, "block_n": 176, "consumers": 1}),
        ("register-budget", OWN_CALLS, {"ping_pong": True, "stages": 3}),
        ("register-budget", OWN_SCALED, {"block_n": 176, "stages": 3}),
        ("register-budget", OWN_SCALED, {"ping_pong": True, "stages": 3}),
        ("register-budget", OWN_CALLS, {"ping_pong": True, "d_columns": 64, "stages": 3}),
        (
            "register-budget",
            replace(FP8_PLAIN, epilogue=EPILOGUES["gelu"]),
            {"block_n": 208, "stages": 3},
        ),
        (
            "launch-registers",
            DENSE,
            {"ping_pong": True, "consumers": 3, "block_m": 64, "block_n": 208, "stages": 2},
        ),
        ("overlap-unroll", FP8_PLAIN, {"in_flight": 1, "block_m": 256, "block_n": 64, "unroll": 8}),
        ("tma-loads", TURNED, {"block_m": 256, "block_n": 64, "swizzle_ab": 32, "stages": 2}),
        ("setmaxnreg-direction", DENSE, {"registers": (24, 80)}),
        ("setmaxnreg-direction", DENSE, {"registers": (24, 240), "consumers": 1, "block_m": 64}),
    ),
)
def test_more_ways_to_break_a_rule(rule, problem, changes):
    with pytest.raises(IllegalConfig) as e:
        lower(problem, Config(**changes))
    assert e.value.rule.id == rule


# The last legal value on this side of each numeric rule.
@pytest.mark.parametrize(
    ("problem", "changes"),
    (
        (DENSE, {"stages": 6}),
        (FP8, {"peek": True, "split_k": 2, "block_n": 64}),
        (DENSE, {"ping_pong": True, "stages": 5}),
        (DENSE, {"ping_pong": True, "block_m": 64, "block_n": 256, "stages": 4}),
        (DENSE, {"ping_pong": True, "block_m": 192, "block_n": 64}),
        (DENSE, SWAP | {"ping_pong": True, "block_n": 64, "consumers": 3}),
        (DENSE, SWAP | {"block_m": 8}),
        (DENSE, SWAP | {"block_m": 64}),
        (DENSE, SWAP | {"block_n": 192, "consumers": 1, "stages": 3}),
        (DENSE, SWAP | {"multicast": "a"}),
        (FP8, SWAP | {"block_m": 64, "multicast": "a"}),
        (FP8, SWAP | {"block_m": 8, "multicast": "b"}),
        (replace(FP8, grouping="rows", alignment=64), SWAP | {"multicast": "b"}),
        (replace(FP8, grouping="rows"), {"block_m": 192, "consumers": 3}),
        (FP8, {"block_n": 144}),
        (FP8, {"block_n": 192}),
        (DENSE, {"multicast": "b", "block_n": 16}),
        (DENSE_NN, {"multicast": "b", "block_n": 8, "block_k_bytes": 32}),
        (DENSE_TT, {"multicast": "a", "block_k_bytes": 32}),
        (DENSE, {"registers": (24, 240)}),
        (DENSE, {"block_n": 8}),
        (PAIRED, {"block_n": 16}),
        (QUANTISED, {"block_n": 256}),
        (replace(PAIRED, d=E4M3), {"block_n": 256, "stages": 3}),
        (replace(PAIRED, d=F32), {"block_n": 8}),
        (MOE, {"block_n": 256, "parts": 2}),
        (MOE, {"block_n": 256, "parts": 2, "block_m": 64, "consumers": 1}),
        (FP8, {"block_n": 16, "parts": 2}),
        (FP8, {"block_m": 256, "block_n": 144, "parts": 2, "stages": 2}),
        (VECTOR, {"block_n": 240, "parts": 2, "stages": 2}),
        (DENSE, {"block_m": 256, "block_n": 128, "stages": 3}),
        (BIAS_SILU, {"block_m": 256, "block_n": 160, "stages": 2}),
        (BIAS_SILU, {"block_m": 128, "block_n": 256, "stages": 2}),
        (GELU, {"block_m": 256, "block_n": 96, "stages": 2}),
        (INT8_GELU, {"block_n": 128, "stages": 2}),
        (ONE_READ, {"block_m": 64, "block_n": 256, "consumers": 1}),
        (ONE_READ, {"block_n": 256, "stages": 3}),
        (TWO_READ, {"stages": 3}),
        (NESTED_ERF, {"stages": 3}),
        (OWN_CALLS, {"block_n": 144, "stages": 3}),
        (OWN_CALLS, {"ping_pong": True, "block_n": 96, "d_columns": 32, "stages": 3}),
        (OWN_SCALED, {"block_n": 160, "stages": 3}),
        (OWN_SCALED, {"ping_pong": True, "d_columns": 64, "stages": 3}),
        (replace(OWN_CALLS, epilogue=EPILOGUES["bias"]), {"block_n": 256, "stages": 3}),
        (OWN_PAIRS, {"block_m": 64, "block_n": 208, "consumers": 1}),
        (DENSE, {"block_m": 192, "block_n": 200, "consumers": 3, "stages": 3}),
        (FP8_PLAIN, {"in_flight": 1, "parts": 2, "block_n": 96, "unroll": 3}),
        (FP8, {"in_flight": 1, "parts": 2, "block_n": 96, "unroll": 8}),
        (RESIDUAL, {"block_m": 256, "block_n": 160, "stages": 2}),
        (
            replace(FP8, epilogue=EPILOGUES["residual"]),
            {"block_m": 256, "block_n": 128, "stages": 3},
        ),
    ),
)
def test_just_legal(problem, changes):
    assert lower(problem, Config(**changes)).smem_bytes <= H200.smem_bytes


@pytest.mark.parametrize("changes", ({}, {"multicast": "a"}, {"split_k": 2}))
def test_one_stage_deadlocks_where_sums_stay_in_the_tensor_core(changes):
    """What `ring-depth` refuses, built without it."""
    config = Config(stages=1, in_flight=1, **changes)
    kernel = build(DENSE, config)
    for step in PIPELINE:
        skipped = step.by is check_ring.check_ring
        kernel = kernel if skipped else step(kernel, H200, {**vars(config), "stamps": 0})
    with pytest.raises(ProtocolViolation, match="P1 deadlock"):
        check(kernel)


@pytest.mark.parametrize("problem", (FP8, VECTOR, INT8_BLOCK), ids=lambda p: f"{p.family}-{p.a}")
@pytest.mark.parametrize("changes", ({"block_m": 256}, {"parts": 2}, {"parts": 2, "split_k": 2}))
def test_one_stage_is_enough_where_promotion_drains(problem, changes):
    check(lower(problem, Config(stages=1, in_flight=1, block_n=64, **changes)))


def test_scale_blocks_by_brute_force():
    """152, 168, 176, 184 and 200 to 248 touch three of B's scale blocks."""
    three = {152, 168, 176, 184, *range(200, 249, 8)}
    for n in range(8, 257, 8):
        columns = range(0, 128 * n, n)
        touched = max(len({c // 128 for c in range(start, start + n, 8)}) for start in columns)
        assert (touched > 2) == (n in three)
        broken = ""
        try:
            lower(FP8, Config(block_n=n, block_m=64, consumers=1, stages=2))
        except IllegalConfig as e:
            broken = e.rule.id
        assert (broken == "scale-blocks") == (n in three)
        assert broken in ("", "scale-blocks") or n == 256  # two accumulators fill the registers


@pytest.mark.parametrize(
    ("n", "columns", "legal"),
    ((160, 8, True), (168, 8, False), (192, 8, False), (176, 16, True), (192, 16, False), (192, 32, True)),
)  # fmt: skip
def test_narrow_pieces_take_registers(n, columns, legal):
    """What ptxas compiles without a spill: D in pieces of 32-byte rows beside another wave's accumulators."""
    p = replace(DENSE, d=F32)
    config = Config(block_m=256, block_n=n, stages=2, in_flight=1, d_columns=columns, swizzle_d=32)
    if legal:
        lower(p, config)
    else:
        with pytest.raises(IllegalConfig, match="register-budget"):
            lower(p, config)


@pytest.mark.parametrize(
    ("columns", "multicast", "legal"), ((64, "b", True), (32, "b", False), (32, "none", True))
)
def test_pieces_beside_sums_of_other_gpus_take_registers(columns, multicast, legal):
    """What ptxas compiles without a spill."""
    p = replace(DENSE_F32, collective="reduce_scatter")
    config = Config(block_m=256, stages=3, d_columns=columns, multicast=multicast)
    if legal:
        lower(p, config)
    else:
        with pytest.raises(IllegalConfig, match="register-budget"):
            lower(p, config)
