"""The emitted text: one statement at a time, what it must not contain, and the protocol it spells."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest
from device import SMEM_BASE, Kernel
from kernels import DENSE, DENSE_F32, FP8, VARIETY, emitted

from gemmgen.config import Config
from gemmgen.emit import digest, emit, signature
from gemmgen.epilogues import EPILOGUES, acc, clamp, gate, silu, up
from gemmgen.errors import IRError
from gemmgen.families import build
from gemmgen.ir import nodes
from gemmgen.ir.dtypes import F16
from gemmgen.ir.expr import Call, Const, Expr, PerColumn, PerElement, PerRow, Scalar
from gemmgen.ir.rewrite import BLOCKS, statements
from gemmgen.ir.row_sums import compact
from gemmgen.ir.syncs import Order
from gemmgen.pipeline import compile_to_source, lower

ROOT = Path(__file__).parents[2]


def source_of(name):
    return emitted(*VARIETY[name]).source


# ---- statement -> CUDA --------------------------------------------------------------------


def cuda(kernel: nodes.Kernel, *stmts: nodes.Stmt) -> str:
    """What `stmts` become, alone in the prologue."""
    text = emit(replace(kernel, prologue=stmts))
    _, rest = text.split("const int cta_rank = ptx::cluster_cta_rank();\n\n")
    return dedent(rest.split("\n\n    Scheduler scheduler")[0] + "\n")


PADDED = (DENSE, Config(block_m=64, consumers=1, block_n=64, swizzle_d=0))
WAVES = (DENSE, Config(block_m=256, block_n=48, stages=2))
SWAP_SCALED = (
    replace(DENSE, epilogue=EPILOGUES["scaled"]),
    Config(swap_ab=True, block_m=24, block_n=64, consumers=1),
)
SCALED = (replace(DENSE, epilogue=EPILOGUES["scaled"]), Config(block_n=64))
SCATTERED, OUTBOX = replace(DENSE, collective="reduce_scatter"), Config(block_n=64, outbox=True)

# statement: (kernel it comes from, which of its kind)
STATEMENTS = {
    "InitBarrier": ("dense", 1),
    "SetRegisters": ("dense", 1),
    "Wait": ("dense", 0),
    "Wait-producer": ("dense-in-flight-multicast", 1),
    "Arrive": ("dense", 0),
    "Arrive-lagged": ("dense-in-flight", 0),
    "Arrive-to_cluster": ("fp8-multicast-a", 0),
    "ExpectTx": ("fp8-multicast-a", 0),
    "Drain": ("fp8-multicast-a", 0),
    "TmaLoad": ("dense-wide-k", 1),
    "TmaLoad-to_cluster": ("fp8-multicast-b", 0),
    "Mma": ("dense-waves", 1),
    "Mma-fresh-block": ("fp8", 0),
    "LoadRowScales": ("fp8-waves", 1),
    "LoadBlockScales": ("fp8", 0),
    "LoadBlockScales-next": ("fp8-split", 1),
    "ShareScales": ("fp8-split", 0),
    "ShareScales-of_rows": ("fp8-lane-scales", 0),
    "ShareScales-of_columns": ("fp8-lane-scales-swap", 0),
    "LoadBlockScales-of_rows": ("fp8-lane-scales-waves", 3),
    "LoadBlockScales-of_all_rows": ("fp8-lane-scales-swap", 1),
    "LoadBlockScales-of_rows-group": ("fp8-lane-scales-split-k", 1),
    "Copy": ("fp8-split", 0),
    "Zero": ("fp8", 0),
    "LoadFragments-of_rows": ("dense-direct", 1),
    "LoadFragments-of_columns": ("fp8-direct", 1),
    "LoadFragments-of_rows-group": ("dense-direct-masked", 0),
    "LoadFragments-of_columns-share": ("fp8-block-direct-rows", 1),
    "LoadFragments-by_copy": ("dense-direct-slots", 6),
    "LoadFragments-by_copy-group": ("fp8-block-direct-slots", 1),
    "LoadFragments-by_read": ("fp8-block-direct-slots", 1),
    "MultiplyFragments-by_words": ("dense-direct-split-k", 0),
    "MultiplyFragments-by_halves": ("fp8-direct", 0),
    "Promote-by_block": ("fp8", 0),
    "Promote-by_split": ("fp8-split", 0),
    "Promote-by_select": ("fp8-select", 0),
    "Mma-part": ("fp8-parts-split", 1),
    "LoadColumnScales-part": ("fp8-1d1d-parts", 1),
    "Accumulate-part": ("fp8-parts-waves", 3),
    "Promote-by_block-part": ("fp8-parts", 1),
    "Promote-by_columns-part": ("fp8-1d1d-parts", 1),
    "Promote-by_split-part": ("fp8-parts-split", 1),
    "Promote-by_split-part-wide": ("fp8-parts-split-wide", 1),
    "StageTile-by_matrix": (WAVES, 1),
    "StageTile-by_matrix-padded": (PADDED, 0),
    "StageTile-by_matrix-scaled": (SCALED, 0),
    "StageTile-by_pairs": ("dense-f32", 0),
    "Evaluate": ("dense-paired", 0),
    "StageTile-by_elements": ("dense-paired", 0),
    "StageTile-by_elements-f32": ("dense-paired-f32-waves", 1),
    "Evaluate-of_sums": ("fp8-rows", 1),
    "Evaluate-of_argument": ("fp8-rows", 0),
    "Evaluate-of_argument-in_pages": ("logits-paged", 1),
    "StoreValues-of_sums": ("fp8-rows", 1),
    "StoreValues-of_sums-bf16": ("fp8-rows-bf16", 0),
    "StoreValues-of_outside": ("fp8-rows", 1),
    "StoreValues-of_outside-bf16": ("fp8-rows-bf16", 0),
    "LoadPages": ("logits-paged", 0),
    "TmaLoad-page": ("logits-paged", 2),
    "SumSquares": ("dense-squares", 1),
    "AddSquares": ("dense-squares", 1),
    "StoreTail-own": ("dense-squares", 1),
    "RowAmax": ("dense-quantised", 0),
    "RowAmax-paired": ("dense-quantised-paired", 0),
    "StoreScales": ("fp8-quantised-masked", 0),
    "StoreScales-waves": ("dense-quantised-waves", 1),
    "Normalise": ("dense-quantised", 0),
    "Normalise-paired": ("dense-quantised-paired", 0),
    "StageTile-by_byte_pairs": ("dense-quantised", 0),
    "StageTile-by_elements-e4m3": ("dense-quantised-paired", 0),
    "TmaStore-paired": ("dense-paired", 0),
    "StoreRows-paired": ("fp8-paired-masked", 0),
    "StoreRows": ("fp8-masked-multicast", 0),
    "StoreTail-paired": ("fp8-paired-masked", 0),
    "Sync-of_warpgroup": ("dense", 0),
    "TmaStore": (WAVES, 1),
    "StageTile-by_matrix-piece": ("dense-d-columns", 1),
    "StageTile-by_matrix-piece-of-wave": ("fp8-d-columns-swizzle", 4),
    "StageTile-by_pairs-piece": ("dense-d-columns-add", 1),
    "TmaStore-piece": ("fp8-d-columns-swizzle", 4),
    "TmaStore-piece-add": ("dense-d-columns-add", 3),
    "StoreTail-piece": ("fp8-d-columns-swizzle", 4),
    "StoreTail-piece-add": ("dense-d-columns-add", 0),
    "StoreWait-piece": ("dense-d-columns", 1),
    "BulkRowStore": (PADDED, 0),
    "StoreTail": (WAVES, 1),
    "LoadBlockScales-waves": ("fp8-swap-waves", 1),
    "Promote-by_wave": ("fp8-swap-waves", 1),
    "StageTile-by_matrix_transposed": ("fp8-swap-waves", 1),
    "StageTile-by_matrix_transposed-padded": ("dense-swap-padded", 0),
    "StageTile-by_matrix_transposed-scaled": (SWAP_SCALED, 0),
    "StageTile-by_elements_transposed": ("dense-swap-f32", 0),
    "Evaluate-of_pairs": ("dense-swap-paired", 0),
    "Evaluate-of_pairs-waves": ("fp8-swap-experts", 1),
    "RowAmax-of_columns": ("dense-swap-quantised", 0),
    "RowAmax-of_columns-paired": ("fp8-swap-experts", 1),
    "ShareAmax": ("fp8-swap-experts", 0),
    "TakeAmax": ("fp8-swap-experts", 0),
    "StoreScales-of_columns": ("fp8-swap-experts", 0),
    "Normalise-of_columns": ("dense-swap-quantised", 0),
    "Normalise-of_columns-paired": ("fp8-swap-experts", 1),
    "StageTile-by_elements_transposed-e4m3": ("dense-swap-quantised", 1),
    "StageTile-by_folded_transposed": ("dense-swap-paired", 0),
    "StageTile-by_folded_transposed-e4m3": ("fp8-swap-experts", 1),
    "TmaStore-swap": ("fp8-swap-waves", 1),
    "BulkRowStore-swap": ("dense-swap-padded", 0),
    "StoreRows-swap": ("fp8-swap-masked", 0),
    "StoreTail-swap": ("fp8-swap-waves", 1),
    "StoreWait": ("dense", 0),
    "StoreWait-all": ("dense", 1),
    "TmaLoad-derived": ("fp8-1d1d-k_flat", 0),
    "LoadBlockScales-group": ("fp8-k_columns", 0),
    "LoadBlockScales-group-next": ("fp8-k_columns", 1),
    "ReplaceAddress": ("fp8-1d1d-k_flat", 0),
    "ReplaceExtent": ("fp8-1d1d-k_flat", 0),
    "ReplaceExtent-mn-major": ("dense-tn-k_columns", 1),
    "ReplaceStride": ("dense-k_flat", 1),
    "CopyMap": ("dense-k_flat", 1),
    "PublishMap": ("dense-k_flat", 1),
    "AcquireMap": ("dense-k_flat", 1),
    "InitBarrier-tile": ("fp8-split-k", 2),
    "TmaLoad-share": ("fp8-split-k", 1),
    "TakeShare": ("fp8-split-k", 0),
    "LoadBlocks": ("w4a16", 0),
    "LoadBlocks-group": ("w4a16-exponents-masked", 0),
    "LoadBlocks-share": ("w4a16-ahead-split", 1),
    "ReadCodes": ("w4a16", 0),
    "ReadCodes-zeros": ("w4a16-zeros-waves", 1),
    "ReadCodes-exponents": ("w4a16-exponents-masked", 0),
    "Decode-by_scale": ("w4a16", 0),
    "Decode-by_scale-second": ("w4a16-ahead-split", 1),
    "Decode-by_zeros": ("w4a16-zeros-waves", 1),
    "Decode-by_exponent": ("w4a16-exponents-masked", 0),
    "ReadCodes-scales_of_16": ("w4a16-nvfp4", 0),
    "Decode-by_exponent-scales_of_16": ("w4a16-nvfp4", 1),
    "Decode-by_shift": ("w4a8", 0),
    "Decode-by_shift-second": ("w4a8", 1),
    "MmaDecoded-fp8": ("w4a8", 0),
    "MmaDecoded-fp8-block": ("w4a8_block", 0),
    "Promote-by_column": ("w4a8_block", 0),
    "Decode-by_whole": ("w4a8_block-int4", 0),
    "Decode-by_whole-second": ("w4a8_block-int4", 1),
    "ReadCodes-beside_scales": ("w4a8_block-int4", 0),
    "ReadCodes-beside_nothing": ("w8a16", 0),
    "ReadCodes-beside_nothing-waves": ("w8a16-waves-ends", 1),
    "Decode-by_sign": ("w8a16", 0),
    "Decode-by_sign-second": ("w8a16", 1),
    "Decode-by_offset": ("w8a16-waves-ends", 0),
    "Decode-by_power": ("w8a16-fp8-split", 0),
    "Decode-by_bits": ("w8a16-fp8-masked", 1),
    "MmaDecoded": ("w4a16", 0),
    "MmaDecoded-second": ("w4a16-zeros-waves", 1),
    "SendPartials": ("dense-split-s32", 0),
    "SendPartials-waves": ("fp8-1d1d-split-waves", 1),
    "AddPartials": ("dense-split-s32", 0),
    "AddPartials-waves": ("fp8-1d1d-split-waves", 1),
    "ExpectTx-per_tile": ("fp8-split-k", 0),
    "Arrive-to_others": ("fp8-split-k", 0),
    "Wait-per_tile": ("fp8-split-k", 1),
    "Wait-per_tile-sender": ("fp8-split-k", 0),
    "NextTurn": ("fp8-split-k", 0),
    "Zero-of_total": ("dense-shares", 0),
    "Zero-of_total-s32": ("s8-shares", 0),
    "TakeShare-of_first": ("fp8-shares", 0),
    "TakeShare-of_next": ("fp8-1d1d-shares-waves", 0),
    "Copy-by_adding": ("fp8-1d1d-shares-waves", 1),
    "ForK-of_slice": ("dense-slices", 0),
    "RejoinRing": ("dense-slices", 0),
    "SendPartials-slices": ("dense-slices", 0),
    "SendPartials-slices-waves": ("dense-slices-waves", 1),
    "AddPartials-slices": ("s8-slices", 0),
    "AddPartials-slices-waves": ("dense-slices-waves", 1),
    "Sync-of_consumers": ("dense-slices", 0),
    "Arrive-lag-slices": ("dense-slices", 0),
    "InitBarrier-turn": ("dense-ping-pong", 2),
    "Wait-per_turn": ("dense-ping-pong", 0),
    "Arrive-to_next": ("dense-ping-pong-three", 0),
    "Wait-per_turn-watched": ((DENSE, Config(ping_pong=True, block_n=64, watchdog=True)), 0),
    "Peek": ("fp8-peek", 0),
    "Wait-seen": ("fp8-peek", 0),
    "Wait-seen-watched": ((FP8, Config(peek=True, block_n=64, watchdog=True)), 0),
    "Sync-of_warpgroup-turns": ("dense-ping-pong", 0),
    "Wait-per_tile-watched": ((FP8, Config(split_k=2, block_n=64, watchdog=True)), 1),
    "Signal-by_counting": ((SCATTERED, OUTBOX), 0),
    "AwaitSignals-of_parcels": ((SCATTERED, OUTBOX), 0),
    "AwaitSignals-of_parcels-watched": ((SCATTERED, replace(OUTBOX, watchdog=True)), 0),
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_statement(case, golden):
    source, index = STATEMENTS[case]
    kernel = lower(*VARIETY.get(source, source) if isinstance(source, str) else source)
    name, *of = case.split("-")
    found = [s for s in statements(kernel) if type(s) is getattr(nodes, name)]
    if of and (spelled := re.match(r"(by|to|per|of)_(.*)", of[0])):
        found = [s for s in found if getattr(s, spelled[1]) == spelled[2]]
    golden(cuda(kernel, found[index]))


def test_blocks(golden):
    inner = nodes.If(when="after_first", body=(nodes.Arrive(barrier="empty", lag=1),))
    pieces = tuple(
        nodes.If(when=when, wave=1, body=(nodes.StoreCommit(),)) for when in ("whole", "cut")
    )
    copies = nodes.PerSplit(body=(inner,), step=64)
    chunks = nodes.ForChunks(blocks=32, body=(nodes.ForK(body=(inner,), of="chunk"),))
    loop = nodes.ForTiles(body=(nodes.ForK(body=(inner,)), chunks, copies, *pieces))
    leaders = (
        nodes.If(when="cta_leader", body=(nodes.Sync(of="cta"),)),
        nodes.If(when="leader", body=(nodes.Sync(of="cta"),)),
    )
    opening = nodes.If(when="new_group", body=(nodes.Sync(of="warp"),))
    empty = nodes.If(when="has_blocks", body=(nodes.Arrive(barrier="empty", lag=1),))
    divided = (
        nodes.If(when="sends", body=(nodes.Sync(of="cta"),)),
        nodes.If(when="finishes", body=(nodes.Sync(of="cta"),)),
    )
    turns = nodes.ForTiles(of="turn", body=(nodes.Sync(of="cta"),))
    deep = (nodes.If(when="first_warp", body=(nodes.ForTiles(body=(opening, empty, *divided)),)),)
    found = (
        inner,
        *pieces,
        loop,
        turns,
        loop.body[0],
        chunks,
        copies,
        *leaders,
        *deep,
        opening,
        empty,
        *divided,
    )
    assert {type(s) for s in found} == set(BLOCKS)
    text = cuda(lower(replace(DENSE, grouping="masked"), Config()), loop, *leaders, *deep)
    golden(text + "\n" + cuda(lower(*VARIETY["dense-ping-pong-three"]), turns))


def test_one_line_statements(golden):
    stmts = (
        nodes.PrefetchMap(tensor_map="map_a"),
        *(nodes.Fence(of=of) for of in get_args(Order)),
        *(nodes.Sync(of=of) for of in ("warp", "cta", "cluster")),
        nodes.WgmmaCommit(),
        nodes.WgmmaWait(pending=1),
        nodes.StoreCommit(),
        nodes.LaunchDependents(),
        nodes.WaitForGrids(),
    )
    golden(cuda(lower(DENSE, Config()), *stmts))


def test_signature(golden):
    problem = replace(
        FP8, epilogue=acc * Scalar("alpha") + PerColumn("bias") + PerElement("c", F16)
    )
    golden("".join(f"{line}\n" for line in signature(lower(problem, Config()))))


# ---- epilogue expressions -----------------------------------------------------------------


def value_of(expression: Expr) -> str:
    problem = replace(DENSE, epilogue=expression)
    text = emit(lower(problem, Config()))
    return re.search(r"const auto value = \[&\]\(int i\) \{ return (.*); \};", text)[1]


@pytest.mark.parametrize(
    ("expression", "c"),
    (
        (acc, "acc0[i]"),
        (acc * 2.0, "(acc0[i] * 2.0f)"),
        (acc * -0.5, "(acc0[i] * -0.5f)"),
        (acc + Scalar("beta"), "(acc0[i] + arg_beta)"),
        (acc - 1e-06, "(acc0[i] - 1e-06f)"),
        (Call("max", (acc, Const(0.0))), "fmaxf(acc0[i], 0.0f)"),
        (Call("min", (acc, Const(6.0))), "fminf(acc0[i], 6.0f)"),
        (Call("tanh", (acc,)), "ptx::paced<8>(tanhf(acc0[i]), i)"),
        (acc / 3.0, "(acc0[i] / 3.0f)"),
        (silu(acc), "ptx::paced<8>(__fdividef(acc0[i], (1.0f + __expf((acc0[i] * -1.0f)))), i)"),
        (Call("erf", (acc,)), "ptx::paced<8>(erff(acc0[i]), i)"),
        (gate(acc) * up(acc * 2.0), "(acc0[i] * (acc0[i + 1] * 2.0f))"),
        (clamp(acc, -1.0, Scalar("high")), "fminf(fmaxf(acc0[i], -1.0f), arg_high)"),
    ),
    ids=repr,
)
def test_epilogue_expression(expression, c):
    assert value_of(expression) == c


def test_a_pair_s_arguments_are_indexed_by_the_product_s_columns():
    c = value_of(gate(acc + PerColumn("bias")) * up(PerElement("c")))
    at = "min(tile.b_row + lane % 4 * 2 + i / 4 * 8"
    assert f"(acc0[i] + __ldg(at_bias + {at}, shape_n - 1)))" in c
    assert f"{at}, (shape_n - 1) / 2 * 2), 1)" in c


def test_epilogue_vectors_are_clamped_to_the_tensor():
    assert "shape_n - 1" in value_of(acc + PerColumn("bias"))
    assert "shape_m - 1" in value_of(acc * PerRow("row_scale"))


@pytest.mark.parametrize("name", ["residual", "residual_f16", "residual_f32"])
def test_a_residual_is_read_with_64_bit_offsets_and_clamped(name):
    c = value_of(EPILOGUES[name])
    assert f"ptx::element_{name[9:] or 'bf16'}(at_c + (long long)min(" in c
    assert "shape_m - 1) * row_stride_c + min(" in c and "(shape_n - 1) / 2 * 2), i % 2)" in c


def test_unknown_expression_has_no_spelling():
    with pytest.raises(IRError):
        emit(lower(replace(DENSE, epilogue=Expr()), Config()))


# ---- names --------------------------------------------------------------------------------


def test_kernel_names_are_identifiers():
    custom = silu(acc * 3.0) + PerColumn("shift")
    for problem in (DENSE, FP8, replace(DENSE, epilogue=custom), SCALED[0]):
        for config in (Config(), Config(registers=(24, 240)), Config(swizzle_d=0, raster="n")):
            name = lower(problem, config).name
            assert re.fullmatch(r"[a-z_][a-z0-9_]*", name)
            assert f"\n{name}(\n" in emit(lower(problem, config))


def test_kernel_names_tell_configs_apart():
    options = {
        "block_m": (64, 128),
        "block_n": (64, 128),
        "block_k_bytes": (64, 128),
        "stages": (2, 4),
        "consumers": (1, 2, 3),
        "multicast": ("none", "a", "b"),
        "raster": ("m", "n"),
        "panel": (8, 16),
        "in_flight": (0, 1),
        "unroll": (1, 4),
        "swizzle_ab": (None, 64),
        "swizzle_d": (None, 0),
        "registers": (None, (24, 240)),
        "swap_ab": (False, True),
        "parts": (1, 2),
        "split_k": (1, 4),
        "ping_pong": (False, True),
        "peek": (False, True),
    }
    every = itertools.product(*options.values())
    configs = [
        Config(**dict(zip(options, values, strict=True)))
        for values in itertools.islice(every, 0, None, 37)
    ]
    names = Counter(build(DENSE, config).name for config in configs)
    assert names.most_common(1)[0][1] == 1
    assert len(
        {build(replace(DENSE, epilogue=e), Config()).name for e in EPILOGUES.values()}
    ) == len(EPILOGUES)
    epilogues = [acc * float(i) for i in range(1, 50)]
    assert len({build(replace(DENSE, epilogue=e), Config()).name for e in epilogues}) == 49
    assert build(DENSE, Config()).name != build(DENSE_F32, Config()).name


# ---- text hygiene -------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIETY)
def test_same_kernel_same_bytes(name):
    kernel = lower(*VARIETY[name])
    assert emit(kernel) == source_of(name)
    assert digest(kernel) in source_of(name)


def test_the_hash_seed_does_not_matter():
    code = (
        "from test_emit import *; import hashlib; "
        "proved = compile_to_source(FP8, Config(multicast='a')); "
        "print(hashlib.sha256(repr(([source_of(x) for x in VARIETY], proved.source)).encode()).hexdigest())"
    )
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support", Path(__file__).parent)))
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    }
    assert len(runs) == 1


def under_nvrtc(source: str) -> str:
    """What NVRTC sees: the #else branches of `#ifdef __CUDACC_RTC__` removed."""
    return re.sub(r"#ifdef __CUDACC_RTC__\n(.*?)#else\n.*?#endif\n", r"\1", source, flags=re.S)


@pytest.mark.parametrize("name", VARIETY)
def test_source_is_self_contained_and_says_nothing_of_this_machine(name):
    source = source_of(name)
    assert "#include" not in under_nvrtc(source)
    assert "#if" not in under_nvrtc(source)
    assert not re.search(r"(?<![:\w/])/(?:home|tmp|usr|work|root)\b", source)
    assert str(ROOT) not in source and sys.prefix not in source
    assert not re.search(r"\b20\d\d-\d\d|\b\d\d:\d\d", source)
    assert "${" not in source and "//%" not in source and "None" not in source.split("\n//\n", 1)[1]
    assert not re.search(r"[ \t]\n", source) and "\t" not in source
    assert source.endswith("}  // namespace ptx\n") and source.isascii()


@pytest.mark.parametrize("name", VARIETY)
def test_the_ptx_layer_holds_what_is_called(name):
    """Declared before the kernel, defined after it."""
    before, after = source_of(name).split('extern "C"')
    defined = re.findall(r"__device__ __forceinline__ [\w ]+?\*? (\w+)\(", after)
    declared = re.findall(r"__device__ __forceinline__ [\w ]+?\*? (\w+)\(.*\);\n", before)
    assert sorted(defined) == sorted(set(re.findall(r"ptx::(\w+)", source_of(name))))
    assert declared == defined


def test_header_names_problem_and_config():
    artifact = compile_to_source(FP8, Config(block_n=112))
    comment = itertools.takewhile(lambda x: x.startswith("//"), artifact.source.splitlines())
    head = "\n".join(comment)
    for part in ('"family": "fp8_block"', '"block_n": 112', artifact.name):
        assert part in head


# ---- the protocol, re-derived from the text -------------------------------------------------

# In ragged groups the second tile has rows for the first warpgroup only: the others skip its wgmma.
# Where groups split K, a tile of a group without any stands between the others.
TILES = [{"k_blocks": 3}, {"k_blocks": 6, "d_end": 64}, {"k_blocks": 1}]
OF_DEPTHS = [
    {"k_blocks": 3, "opens_group": True},
    {"k_blocks": 0, "slot": 1},
    {"k_blocks": 7, "slot": 2, "opens_group": True},
]


class Protocol:
    """All threads' barrier operations over TILES, from running the emitted text."""

    def __init__(self, name):
        self.kernel = lower(*VARIETY[name])
        self.device = Kernel(source_of(name))
        self.stages = self.device.constants["STAGES"]
        at = r"const uint32_t (full|empty|turns) = smem_base \+ Shared::(\w+);"
        offsets = re.findall(at, source_of(name))
        self.base = {name: SMEM_BASE + self.device.constants[at] for name, at in offsets}
        self.consumers = self.kernel.consumer.count
        self.turns = self.consumers if "turns" in self.base else 1
        self.barriers = [(b, s) for b in ("full", "empty") for s in range(self.stages)]
        self.barriers += [("turns", w) for w in range(self.turns) if "turns" in self.base]
        self.ranks = range(self.kernel.cluster.size)
        # Where warpgroups take turns, three tiles for each of them.
        self.tiles = (OF_DEPTHS if self.kernel.groups.depths else TILES) * self.turns
        if self.kernel.block.one_block:  # and so many tiles that the ring goes round
            self.tiles = [{"k_blocks": k} for k in (1, 0, *[1] * (2 * self.stages + 1))]
        self.k_blocks = sum(t["k_blocks"] for t in self.tiles)
        # Those of the first tile that are announced, and partly loaded, before the launches before are over.
        early = VARIETY[name][1].weights_ahead
        self.ahead = min(self.stages, self.tiles[0]["k_blocks"]) if early else 0
        self.derived = [m.name for m in self.kernel.maps if m.derived]
        self.threads = 128 * (self.consumers + 1)
        self.calls = {
            (rank, thread): self.device.run(thread, rank=rank, tiles=self.tiles)
            for rank in self.ranks
            for thread in range(self.threads)
        }

    def named(self, address):
        """(barrier, stage) at a shared-memory address."""
        for barrier, base in self.base.items():
            stage, rest = divmod(address - base, 8)
            if (barrier, stage) in self.barriers and not rest:
                return barrier, stage
        raise AssertionError(f"no barrier at {address}")

    def map(self, argument):
        """The tensor map that a call is given: by name, or at an address of the workspace."""
        at = argument if isinstance(argument, str) else self.derived[argument % len(self.derived)]
        return self.kernel.map(at)

    def phases(self, barrier, stage):
        """How often the ring meets `stage` in all of the tiles; of a turn, how many the warpgroup before has had."""
        if barrier == "turns":
            return len(range((stage - 1) % self.turns, len(self.tiles), self.turns))
        return len(range(stage, self.k_blocks, self.stages))

    def own(self, thread):
        """Of each tile that the thread's warpgroup multiplies, its number and those of its K blocks."""
        first = 0
        for i, tile in enumerate(self.tiles):
            if self.turns == 1 or i % self.turns == thread // 128:
                yield i, range(first, first + tile["k_blocks"])
            first += tile["k_blocks"]

    def waits(self, thread):
        """(barrier, stage, parity) of everything that a consumer is to wait for."""
        w = thread // 128
        for i, blocks in self.own(thread):
            if self.turns > 1:  # the first of all turns was not passed by anyone
                yield "turns", w, (i // self.turns - (w == 0)) % 2
            for k in blocks:
                yield "full", k % self.stages, k // self.stages % 2


# CTAs, and warpgroups, that divide K have unequal shares of it, and an exchange: the emulator runs them (test_split_k.py,
# test_slices.py).
@pytest.fixture(
    scope="module",
    params=[n for n, (_, c) in VARIETY.items() if c.split_k == 1 and not (c.direct or c.slice_k)],
)
def protocol(request):
    return Protocol(request.param)


def test_barriers_are_initialised_once_by_one_thread(protocol):
    for rank in protocol.ranks:
        init = Counter()
        for thread in range(protocol.threads):
            calls = protocol.calls[rank, thread]
            mine = [protocol.named(c.args[0]) for c in calls if c.name == "mbarrier_init"]
            init.update(mine)
            assert not mine or thread == 0
        assert init == dict.fromkeys(protocol.barriers, 1)


def test_arrival_counts_equal_the_arrivals(protocol):
    """On every barrier of every CTA: arrivals = count x phases, over several tiles."""
    count = {
        protocol.named(c.args[0]): c.args[1]
        for c in protocol.calls[0, 0]
        if c.name == "mbarrier_init"
    }
    arrivals = Counter()
    for (rank, _), calls in protocol.calls.items():
        for c in calls:
            if c.name in ("mbarrier_arrive", "mbarrier_arrive_expect_tx"):
                arrivals[rank, protocol.named(c.args[0])] += 1
            if c.name == "mbarrier_arrive_remote":
                arrivals[c.args[1], protocol.named(c.args[0])] += 1
    assert arrivals == {
        (rank, bar): n * protocol.phases(*bar)
        for rank in protocol.ranks
        for bar, n in count.items()
        if protocol.phases(*bar)
    }


def test_expected_bytes_equal_the_bytes_that_land(protocol):
    kernel = protocol.kernel
    expected, landed = defaultdict(list), defaultdict(Counter)
    for (rank, _), calls in protocol.calls.items():
        announced, waited = 0, False
        for c in calls:
            waited |= c.name == "wait_for_grids"
            if c.name == "mbarrier_arrive_expect_tx":
                announced += 1
                expected[rank].append((protocol.named(c.args[0]), c.args[1]))
            # The rest of what was announced before the wait, before anything is announced after it.
            rest = waited and announced == protocol.ahead
            block = c.k if rest else announced - 1
            if c.name == "bulk_load":
                landed[rank][block, protocol.named(c.args[3])] += c.args[2]
            if c.name.startswith("tma_load"):
                barrier, (inner, outer) = protocol.named(c.args[2]), protocol.map(c.args[1]).box
                size = inner * outer * kernel.buffer(protocol.map(c.args[1]).smem).dtype.bytes
                mask = c.args[-1] if c.name.startswith("tma_load_multicast") else 1 << rank
                for destination in protocol.ranks:
                    landed[destination][block, barrier] += size * (mask >> destination & 1)
    for rank in protocol.ranks:
        assert len(expected[rank]) == protocol.k_blocks
        for block, (barrier, size) in enumerate(expected[rank]):
            assert barrier == ("full", block % protocol.stages)
            assert landed[rank][block, barrier] == size
        assert len(landed[rank]) == protocol.k_blocks
    per_stage = sum(s.stage_bytes for s in kernel.smem if s.ring)
    assert {size for _, size in expected[0]} == {per_stage}


def test_waits_meet_the_phase_they_mean(protocol):
    """Consumers: their turn's, then the phase of their K block; the producer: the one before, so that the first
    passes."""
    for (_rank, thread), calls in protocol.calls.items():
        found = [c.args for c in calls if c.name.startswith("mbarrier_wait")]
        waits = [(*protocol.named(address), parity) for address, parity in found]
        if thread // 128 < protocol.consumers:
            assert waits == [*protocol.waits(thread)]
            continue
        drains = protocol.stages if protocol.kernel.cluster.size > 1 else 0
        blocks = range(protocol.ahead, 0 if thread % 128 else protocol.k_blocks + drains)
        stages = protocol.stages
        assert waits == [("empty", k % stages, k // stages % 2 ^ 1) for k in blocks]


def test_a_peek_is_at_the_stage_of_the_next_k_block(protocol):
    """Of every K block one, after a stage was released, at what is waited for next."""
    found = [*statements(protocol.kernel)]
    peeks = any(isinstance(s, nodes.Peek) for s in found)
    lag = max(s.lag for s in found if isinstance(s, nodes.Arrive))
    for (_, thread), calls in protocol.calls.items():
        found, released = [], 0
        for c in calls:
            released += c.name.startswith("mbarrier_arrive")
            if c.name == "mbarrier_test_wait":
                found.append((*protocol.named(c.args[0]), c.args[1]))
                assert thread % 32 or released == len(found) - lag
        consumes = peeks and thread < 128 * protocol.consumers
        blocks = range(1, protocol.k_blocks + 1 if consumes else 1)
        assert found == [("full", k % protocol.stages, k // protocol.stages % 2) for k in blocks]


def test_a_turn_is_passed_after_the_tile_s_last_wait(protocol):
    """By every warp of the warpgroup whose turn it is, to the next one, once per tile, and before D is staged."""
    if protocol.turns == 1:
        return
    for (_, thread), calls in protocol.calls.items():
        seen = []
        for c in calls:
            if c.name in ("mbarrier_wait", "mbarrier_arrive"):
                seen.append((c.name[9:], *protocol.named(c.args[0])))
            leaves = "global_store" if protocol.kernel.unstaged else "fence_proxy_async"
            if c.name == leaves and seen[-1] != "staged":
                seen.append("staged")
        found = [e for e in seen if e[:2] not in {("arrive", "empty"), ("wait", "empty")}]
        following = ("arrive", "turns", (thread // 128 + 1) % protocol.turns)
        expected = []
        for _, blocks in protocol.own(thread) if thread < 128 * protocol.consumers else ():
            expected.append(("wait", "turns", thread // 128))
            expected += [("wait", "full", k % protocol.stages) for k in blocks]
            expected += [following] * (thread % 32 == 0) + ["staged"]
        assert found == expected


def test_a_stage_is_released_after_its_last_read(protocol):
    """A consumer releases K block after K block, each when its reads are done and none will follow."""
    maxima = [s for s in protocol.kernel.smem if s.use == "maxima"]  # of no stage

    def shared(address):
        return any(0 <= address - SMEM_BASE - s.offset < s.bytes for s in maxima)

    for (_, thread), calls in protocol.calls.items():
        if thread % 32 or thread >= 128 * protocol.consumers:
            continue
        own = [k for _, blocks in protocol.own(thread) for k in blocks]
        groups, current = [], []  # the K blocks that wgmmas in flight read
        waited, released = 0, 0
        for c in calls:
            if c.name.startswith("mbarrier") and protocol.named(c.args[0])[0] == "turns":
                continue
            if c.name.startswith("mbarrier_wait"):
                waited += 1
            if c.name == "mma" or (c.name == "load_shared_float" and not shared(c.args[0])):
                assert released < waited, "its stage is no longer ours"
            if c.name == "mma":
                current.append(waited - 1)
            if c.name == "wgmma_commit":
                groups.append(current)
                current = []
            if c.name == "wgmma_wait":
                groups = groups[len(groups) - c.args[0] :] if c.args[0] else []
            if c.name.startswith("mbarrier_arrive"):
                assert protocol.named(c.args[0]) == ("empty", own[released] % protocol.stages)
                assert released not in {k for group in [*groups, current] for k in group}
                released += 1
        assert released == waited == len(own)
        assert not groups and not current, "nothing is in flight at the end"


def test_the_epilogue_is_fenced_and_drained(protocol):
    """Write D, or a piece of it, fence, meet the warpgroup, store, commit; wait before the next write and at exit.
    Of two places that take turns the other's store may still read."""
    if protocol.kernel.unstaged:
        return
    pieces = sum(isinstance(s, nodes.StoreCommit) for s in statements(protocol.kernel))
    # Warps that share maxima meet once more before D is written.
    met = "B" * any(isinstance(s, nodes.TakeAmax) for s in statements(protocol.kernel))
    for (_, thread), calls in protocol.calls.items():
        if thread >= 128 * protocol.consumers:
            continue
        endings = "(_transposed)?_(x2|x4|floatx2|3d|bf16|f16|f32|s32|e4m3)$"
        names = [re.sub(endings, "", c.name) for c in calls]
        text = " ".join(
            {"store_matrix": "W", "store_shared": "W", "store_element": "W", "store_pair": "W"}.get(
                n
            )
            or {
                "fence_proxy_async": "F",
                "named_barrier_sync": "B",
                "tma_store": "S",
                "bulk_store": "S",
                "global_store": "T",
            }.get(n)
            or {"store_commit": "C", "store_wait_read": "R", "store_wait_all": "A"}.get(n, "")
            for n in names
        ).replace(" ", "")
        stores = any(n in ("store_commit",) for n in names)
        tile = f"RB{met}W+FBT*S*C" if stores else f"B{met}W+FBT*"
        times = pieces * len([*protocol.own(thread)])
        assert re.fullmatch(f"({tile}){{{times}}}" + ("A" if stores else ""), text), text
        waits = {c.args for c in calls if c.name == "store_wait_read"}
        assert waits == {(pieces > 1,)} or not stores
        ids = {c.args for c in calls if c.name == "named_barrier_sync"}
        assert ids == {(1 + thread // 128, 128)}, "its own warpgroup's barrier, never 0"


def test_sums_are_stored_from_registers_and_nothing_waits(protocol):
    """One of four by each lane of a quad, where the tile has K blocks; else a thread its share of the tile, or nothing where rows begin with their windows, which here
    reach nothing."""
    if not protocol.kernel.unstaged:
        return
    block = protocol.kernel.block
    waves = len({s.wave for s in statements(protocol.kernel) if isinstance(s, nodes.StoreValues)})
    kinds = ("fence_proxy_async", "named_barrier_sync", "tma_store", "store_commit", "store_wait")
    for (_, thread), calls in protocol.calls.items():
        if thread >= 128 * protocol.consumers:
            continue
        sums = len(range(thread % 4, 2 * block.d_m, 4))
        outside = len(range(thread % 128, 64 * block.d_m, 128))
        each = [sums if blocks else outside for _, blocks in protocol.own(thread)]
        stored = sum(c.name == "global_store" for c in calls)
        assert stored == (0 if compact(protocol.kernel.params) else waves * sum(each))
        assert not [c for c in calls if c.name.startswith(kinds)]


def test_maps_are_derived_where_a_group_opens(protocol):
    """By one warp: lane 0 edits the copies, all lanes publish and acquire them, lane 0 loads through
    them; between groups of K 0 nothing."""
    if not protocol.derived:
        return
    first = 128 * protocol.consumers
    maps = ("copy_map", "replace_map", "publish_map", "acquire_map")
    for (_, thread), calls in protocol.calls.items():
        mine = [c for c in calls if c.name.startswith(maps)]
        if thread not in range(first, first + 32):
            assert not mine
            continue
        edits = [c for c in mine if c.name.startswith("replace")]
        assert bool(edits) == (thread == first)
        published = [c.args[0] for c in mine if c.name == "publish_map"]
        slots = [2 * t["slot"] if "slot" in t else 0 for t in protocol.tiles if "opens_group" in t]
        wanted = [(1 << 20) + slot + i for slot in slots for i in range(2)]
        assert published == wanted == [c.args[0] for c in mine if c.name == "acquire_map"]
        used = {c.args[1] for c in calls if c.name.startswith("tma_load")} & {*wanted}
        assert used == ({*wanted} if thread == first else set())


def test_every_thread_meets_the_start_up_barrier(protocol):
    wanted = (
        ["cta_sync"] if protocol.kernel.cluster.size == 1 else ["cluster_arrive", "cluster_wait"]
    )
    for calls in protocol.calls.values():
        names = [c.name for c in calls]
        found = [n for n in names if n in ("cta_sync", "cluster_arrive", "cluster_wait")]
        assert found == wanted
        first = names.index(wanted[0])
        assert not any("wait" in n or "arrive" in n for n in names[:first])
        assert "mbarrier_init" not in names[first:]
        if "mbarrier_init" in names:
            assert names[first - 1] == "fence_mbarrier_init"


def test_registers_move_once_for_a_whole_role(protocol):
    kernel = protocol.kernel
    for (_, thread), calls in protocol.calls.items():
        moved = [(c.name, *c.args) for c in calls if c.name.startswith("setmaxnreg")]
        role = next(r for r in kernel.roles if thread // 128 in range(*r.warpgroups))
        name = {"producer": "setmaxnreg_dec", "consumer": "setmaxnreg_inc"}[role.name]
        assert moved in ([], [(name, role.registers)])
        assert bool(moved) == (protocol.consumers > 1)
