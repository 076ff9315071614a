"""What vLLM and SGLang pass to DeepGEMM, site by site: docs/deep-gemm-in-engines.md lists the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fake_torch import Placed, bf16, codes

G, M, T, N, K = 4, 512, 128, 256, 640  # groups, rows, rows of a group, columns
BLOCKS_N, BLOCKS_K = 2, 5
HEADS, RANK, DIM = 8, 512, 128
ROOM = 700  # keys of the longest window
VLLM, SGLANG = "vLLM", "SGLang"
SERVED, REFUSED = "served", "refused"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One site. name: of DeepGEMM's function. given: makes its arguments, by position and by keyword. answer: what it gets here.
    argument: of an ArgumentError; "" of an UnsupportedProblem."""

    engine: str
    site: str
    name: str
    given: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    answer: str = SERVED
    argument: str = ""


def int32(*shape: int) -> Placed:
    return Placed(*shape, dtype="int32")


def by_column(rows: int, blocks: int, *lead: int) -> Placed:
    """As both engines' casts write scales with `column_major_scales`: no padding of columns."""
    strides = (*(rows * blocks,) * len(lead), 1, rows)
    return Placed(*lead, rows, blocks, stride=strides)


def aligned(rows: int, blocks: int, *lead: int) -> Placed:
    """As `get_mn_major_tma_aligned_tensor` returns them."""
    pitch = -(-rows // 4) * 4
    strides = (*(pitch * blocks,) * len(lead), 1, pitch)
    return Placed(*lead, rows, blocks, stride=strides)


def weights(*lead: int) -> tuple[Placed, Placed]:
    return codes(*lead, N, K), Placed(*lead, BLOCKS_N, BLOCKS_K)


NO_CAST = {"disable_ue8m0_cast": True}


def _linear(scales: Placed, **more: Any):
    return ((codes(M, K), scales), weights(), bf16(M, N)), more


def _contiguous(scales: Placed, **more: Any):
    return ((codes(M, K), scales), weights(G), bf16(M, N), int32(M)), more


def _ends(scales: Placed):
    """By the row after each group's last."""
    given = (codes(M, K), scales), weights(G), bf16(M, N), int32(G)
    return given, NO_CAST | {"use_psum_layout": True}


def _masked(scales: Placed, **more: Any):
    return ((codes(G, T, K), scales), weights(G), bf16(G, T, N), int32(G), 64), more


def _heads(**more: Any):
    o = codes(M, HEADS, RANK), Placed(M, HEADS, RANK // 128)
    w = codes(HEADS, DIM, RANK), Placed(HEADS, DIM // 128, RANK // 128)
    return ("bhr,hdr->bhd", o, w, bf16(M, HEADS, DIM)), more


def _absorbed():
    """Scales contiguous along tokens; weights that are a part of each head's."""
    blocks = RANK // 128
    o = codes(M, HEADS, RANK), Placed(M, HEADS, blocks, stride=(1, M * blocks, M))
    w = codes(HEADS, DIM, RANK, stride=(2 * DIM * RANK, RANK, 1))
    return ("bhr,hdr->bhd", o, (w, Placed(HEADS, 1, blocks)), bf16(M, HEADS, DIM)), {}


def _logits(q: Any, *longest: int, **more: Any):
    k = codes(1024, 128), Placed(1024)
    return (q, k, Placed(M, 32), int32(M), int32(M), *longest), more


def _paged(q: Any, *clean: bool, rows: int = 64, **more: Any):
    cache, table = Placed(16, rows, 1, 132, dtype="uint8"), int32(G, 512 // rows)
    return (q, cache, Placed(G, 32), int32(G, 1), table, int32(133, 2), 512, *clean), more


def _prenorm(*splits: int, **more: Any):
    return (bf16(M, K), Placed(24, K), Placed(16, M, 24), Placed(16, M), *splits), more


def _whole_prenorm():
    return (bf16(M, K), Placed(24, K), Placed(M, 24), Placed(M)), {"num_splits": None}


Q = codes(M, 32, 128)
PAGED_Q = codes(G, 1, 32, 128)
BLOCKS = {"recipe": (1, 128, 128)}
TO_LAYOUT = {"mn": N, "k": K, **BLOCKS, "num_groups": None, "is_sfa": False}
FP4 = {"recipe_a": (1, 128), "recipe_b": (1, 32)}


def _vllm(site: str, name: str, given: Callable[[], Any], *rest: str) -> Call:
    return Call(engine=VLLM, site=site, name=name, given=given, **_answer(*rest))


def _sglang(site: str, name: str, given: Callable[[], Any], *rest: str) -> Call:
    return Call(engine=SGLANG, site=site, name=name, given=given, **_answer(*rest))


def _answer(answer: str = SERVED, argument: str = "") -> dict[str, str]:
    return {"answer": answer, "argument": argument}


CALLS = (
    _vllm("block FP8 linear", "fp8_gemm_nt", lambda: _linear(aligned(M, BLOCKS_K), **NO_CAST)),
    _vllm("block FP8 linear beside FlashInfer's", "fp8_gemm_nt", lambda: _linear(by_column(M, BLOCKS_K), **NO_CAST)),
    _vllm("warm-up of linear", "fp8_gemm_nt", lambda: _linear(Placed(M, BLOCKS_K), **NO_CAST)),
    _vllm("contiguous experts, gate and up", "m_grouped_fp8_gemm_nt_contiguous", lambda: _ends(Placed(M, BLOCKS_K))),
    _vllm("contiguous experts, down", "m_grouped_fp8_gemm_nt_contiguous", lambda: _ends(by_column(M, BLOCKS_K))),
    _vllm("experts of other activations, and warm-up", "m_grouped_fp8_gemm_nt_contiguous", lambda: _contiguous(Placed(M, BLOCKS_K), **NO_CAST)),
    _vllm("experts of other activations, down", "m_grouped_fp8_gemm_nt_contiguous", lambda: _contiguous(by_column(M, BLOCKS_K), **NO_CAST)),
    _vllm("masked experts", "m_grouped_fp8_gemm_nt_masked", lambda: _masked(by_column(T, BLOCKS_K, G), **NO_CAST)),
    _vllm("experts with FP4 weights", "m_grouped_fp8_fp4_gemm_nt_contiguous", lambda: _contiguous(Placed(M, BLOCKS_K), **FP4, **NO_CAST), REFUSED, "recipe_a, recipe_b"),
    _vllm("output projection by head", "fp8_einsum", lambda: _heads(**BLOCKS)),
    _vllm("scales of loaded weights", "transform_sf_into_required_layout", lambda: ((), {"sf": Placed(BLOCKS_N, BLOCKS_K), **TO_LAYOUT, **NO_CAST})),
    _vllm("alignment of experts", "get_mk_alignment_for_contiguous_layout", lambda: ((), {})),
    _vllm("alignment of experts, for some rows", "get_theoretical_mk_alignment_for_contiguous_layout", lambda: ((512, G), {})),
    _vllm("alignment in a scope", "set_mk_alignment_for_contiguous_layout", lambda: ((128,), {})),
    _vllm("overlapping launches", "set_pdl", lambda: ((True,), {})),
    _vllm("logits of the indexer", "fp8_fp4_mqa_logits", lambda: _logits((Q, None), ROOM)),
    _vllm("logits of the indexer, older", "fp8_fp4_mqa_logits", lambda: _logits((Q, None), clean_logits=False)),
    _vllm("logits of the indexer, before that", "fp8_mqa_logits", lambda: _logits(Q)),
    _vllm("paged logits", "fp8_fp4_paged_mqa_logits", lambda: _paged((PAGED_Q, None), clean_logits=False)),
    _vllm("paged logits, older", "fp8_paged_mqa_logits", lambda: _paged(PAGED_Q, clean_logits=True)),
    _vllm("paged logits, pages of 32", "fp8_fp4_paged_mqa_logits", lambda: _paged((PAGED_Q, None), rows=32, clean_logits=False)),
    _vllm("schedule of paged logits", "get_paged_mqa_logits_metadata", lambda: ((int32(G), 64, 132), {})),
    _vllm("schedule of paged logits, pages of 32", "get_paged_mqa_logits_metadata", lambda: ((int32(G), 32, 132), {})),
    _vllm("hyper-connections", "tf32_hc_prenorm_gemm", lambda: _prenorm(16)),
    _vllm("two batches at once", "set_num_sms", lambda: ((112,), {})),
    _sglang("block FP8 linear", "fp8_gemm_nt", lambda: _linear(aligned(M, BLOCKS_K))),
    _sglang("warm-up of linear", "fp8_gemm_nt", lambda: _linear(Placed(M, BLOCKS_K), **BLOCKS)),
    _sglang("linear of blocks of 32", "fp8_gemm_nt", lambda: (
        ((codes(M, K), aligned(M, K // 32)), (codes(N, K), Placed(N // 32, K // 32)), bf16(M, N)), {"recipe": (1, 32, 32)}), REFUSED, "recipe"),
    _sglang("BF16 linear in FP32", "bf16_gemm_nt", lambda: ((bf16(M, K), bf16(N, K), Placed(M, N)), {})),
    _sglang("batch-invariant linear", "bf16_gemm_nn", lambda: ((bf16(M, K), bf16(N, K).T, bf16(M, N)), {})),
    _sglang("around it", "use_deterministic_algorithms", lambda: ((True,), {})),
    _sglang("contiguous experts", "m_grouped_fp8_gemm_nt_contiguous", lambda: _contiguous(aligned(M, BLOCKS_K))),
    _sglang("contiguous experts in BF16", "m_grouped_bf16_gemm_nt_contiguous", lambda: ((bf16(M, K), bf16(G, N, K), bf16(M, N), int32(M)), {})),
    _sglang("masked experts", "fp8_m_grouped_gemm_nt_masked", lambda: _masked(aligned(T, BLOCKS_K, G))),
    _sglang("warm-up of masked experts", "fp8_m_grouped_gemm_nt_masked", lambda: (
        ((codes(G, T, K), Placed(G, T, BLOCKS_K)), weights(G), bf16(G, T, N)), {"masked_m": int32(G), "expected_m": 7})),
    _sglang("masked experts in BF16", "m_grouped_bf16_gemm_nt_masked", lambda: ((bf16(G, T, K), bf16(G, N, K), bf16(G, T, N), int32(G), 64), {})),
    _sglang("experts with FP4 weights", "m_grouped_fp8_gemm_nt_contiguous", lambda: _contiguous(aligned(M, BLOCKS_K), **FP4), REFUSED, "recipe_a, recipe_b"),
    _sglang("output projection by head", "fp8_einsum", lambda: _heads(**BLOCKS)),
    _sglang("absorbed projections of dots3", "fp8_einsum", _absorbed),
    _sglang("scales of activations", "get_mn_major_tma_aligned_tensor", lambda: ((aligned(T, BLOCKS_K, G),), {})),
    _sglang("alignment of experts", "get_mk_alignment_for_contiguous_layout", lambda: ((), {})),
    _sglang("alignment of experts, for some rows", "get_theoretical_mk_alignment_for_contiguous_layout", lambda: ((64,), {})),
    _sglang("alignment in a scope", "set_mk_alignment_for_contiguous_layout", lambda: ((128,), {})),
    _sglang("overlapping launches", "set_pdl", lambda: ((True,), {})),
    _sglang("logits of the indexer", "fp8_mqa_logits", lambda: _logits(Q, clean_logits=False)),
    _sglang("logits of a long prompt", "fp8_mqa_logits", lambda: _logits(Q, clean_logits=False, max_seqlen_k=ROOM)),
    _sglang("paged logits", "fp8_paged_mqa_logits", lambda: _paged(PAGED_Q, False)),
    _sglang("schedule of paged logits", "get_paged_mqa_logits_metadata", lambda: ((int32(G, 1), 64, 132), {})),
    _sglang("hyper-connections", "tf32_hc_prenorm_gemm", lambda: _prenorm(num_splits=16)),
    _sglang("hyper-connections of many rows", "tf32_hc_prenorm_gemm", _whole_prenorm),
)  # fmt: skip
