"""What users call: GEMMs over torch CUDA tensors. Kernels are compiled on first use and kept."""

from __future__ import annotations

from .arrays import as_tensor
from .bound import Launch, bind
from .building import chosen, compiled, loaded
from .calls import SCALE_BLOCK
from .combining import combine
from .compute import multiply
from .dependent import is_pdl, set_pdl
from .grouped import (
    batched_gemm,
    fp8_block_batched_gemm,
    fp8_block_grouped_gemm,
    fp8_block_masked_gemm,
    grouped_gemm,
    masked_gemm,
)
from .grouped_scaled import (
    fp8_batched_gemm,
    fp8_grouped_gemm,
    fp8_masked_gemm,
    int8_batched_gemm,
    int8_grouped_gemm,
    int8_masked_gemm,
)
from .invariance import is_invariant, set_invariant
from .k_grouped import fp8_k_grouped_gemm, k_grouped_gemm
from .limits import limit_sms, sm_limit
from .logits import fp8_mqa_logits
from .mixture import moe
from .paged_logits import fp8_paged_mqa_logits, paged_cache
from .pairing import paired
from .prenorm import prenorm_gemm
from .preparing import Prepared, every_m, prepare
from .quantise import quantise_blocks, quantise_rows
from .routing import Routes, route
from .selecting import select
from .single import fp8_block_gemm, fp8_gemm, fp8_wgrad_gemm, gemm, int8_block_gemm, int8_gemm
from .spreading import spread
from .summed import summed_gemm
from .top_keys import top_k
from .top_scores import fp8_mqa_top_k, fp8_paged_mqa_top_k
from .w4a8 import w4a8_batched_gemm, w4a8_gemm, w4a8_grouped_gemm, w4a8_masked_gemm
from .w4a8_block import (
    w4a8_block_batched_gemm,
    w4a8_block_gemm,
    w4a8_block_grouped_gemm,
    w4a8_block_masked_gemm,
)
from .w4a16 import w4a16_batched_gemm, w4a16_gemm, w4a16_grouped_gemm, w4a16_masked_gemm
from .w8a16 import w8a16_batched_gemm, w8a16_gemm, w8a16_grouped_gemm, w8a16_masked_gemm

__all__ = [
    "SCALE_BLOCK",
    "Launch",
    "Prepared",
    "Routes",
    "as_tensor",
    "batched_gemm",
    "bind",
    "chosen",
    "combine",
    "compiled",
    "every_m",
    "fp8_batched_gemm",
    "fp8_block_batched_gemm",
    "fp8_block_gemm",
    "fp8_block_grouped_gemm",
    "fp8_block_masked_gemm",
    "fp8_gemm",
    "fp8_grouped_gemm",
    "fp8_k_grouped_gemm",
    "fp8_masked_gemm",
    "fp8_mqa_logits",
    "fp8_mqa_top_k",
    "fp8_paged_mqa_logits",
    "fp8_paged_mqa_top_k",
    "fp8_wgrad_gemm",
    "gemm",
    "grouped_gemm",
    "int8_batched_gemm",
    "int8_block_gemm",
    "int8_gemm",
    "int8_grouped_gemm",
    "int8_masked_gemm",
    "is_invariant",
    "is_pdl",
    "k_grouped_gemm",
    "limit_sms",
    "loaded",
    "masked_gemm",
    "moe",
    "multiply",
    "paged_cache",
    "paired",
    "prenorm_gemm",
    "prepare",
    "quantise_blocks",
    "quantise_rows",
    "route",
    "select",
    "set_invariant",
    "set_pdl",
    "sm_limit",
    "spread",
    "summed_gemm",
    "top_k",
    "w4a8_batched_gemm",
    "w4a8_block_batched_gemm",
    "w4a8_block_gemm",
    "w4a8_block_grouped_gemm",
    "w4a8_block_masked_gemm",
    "w4a8_gemm",
    "w4a8_grouped_gemm",
    "w4a8_masked_gemm",
    "w4a16_batched_gemm",
    "w4a16_gemm",
    "w4a16_grouped_gemm",
    "w4a16_masked_gemm",
    "w8a16_batched_gemm",
    "w8a16_gemm",
    "w8a16_grouped_gemm",
    "w8a16_masked_gemm",
]
