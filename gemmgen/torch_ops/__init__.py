"""`gemmgen.ops` as operators of torch: `torch.ops.gemmgen.*`, registered by importing this package.

`torch.compile`, `torch.export` and CUDA graphs take them; eager code that needs none of these calls
`gemmgen.ops`, which does not pass torch's dispatcher. Names and arguments are those of `gemmgen.ops`, except:

- An epilogue is said by its name in `gemmgen.epilogues.EPILOGUES`, what it reads by keyword, as there.
- config: JSON text of a `Config`; "" lets the cost model choose. Scales are tensors, never Python floats.
- `out` belongs to the overload `out`, which returns nothing and takes D's dtype from it. FP8 outputs with their
  scales are what the overload `quantised` returns. So `torch.ops.gemmgen.gemm.out(a, b, out=d)`, and
  `d, scale_d = torch.ops.gemmgen.gemm.quantised(a, b)`.
- `route` returns (slots, copies, ends): rows are those of copies.

Rows that a launch leaves untouched hold in a new tensor whatever was in memory. The operators have no gradients, and
torch warns where one is asked of them; the functions `linear`, `fp8_linear` and, of a layer of experts, `moe_train` have.

Besides there are operators that the ranks of a process group compute together, `gemm_reduce_scatter` and others: see `collectives` and `all_reduces`. They are here as functions,
too, and `explain` says how they are computed.

Of `w4a16_gemm`, `w4a8_gemm`, `w4a8_block_gemm`, `w8a16_gemm` and their groups, `weights` is the name of what was packed (`gemmgen.quant.Packed.weights`), b its blocks. They take
no DTensors: a block has 64 rows, and `columns` is of all of them.

`combine`, which adds up what experts made of a token, has gradients, and its `add` may stand by position; `select` has gradients of logits. They, `route`, `spread`, `top_k`, `fp8_mqa_top_k`, `fp8_paged_mqa_top_k` and `moe`, a layer of experts, take no DTensors.

Tensors of the CPU are refused, until `compute_on_cpu` says otherwise.

All other overloads but `out` take DTensors, if torch has these (docs/adr/0052-sharding-rules.md). Scales in layout "mn" must be so on every rank,
which they are not where torch has moved them: say "row". `weights_ready` is then taken for False.
"""

from __future__ import annotations

from .all_reduces import COLLECTIVES, fp8_block_gemm_all_reduce, gemm_all_reduce
from .autocast import register_autocast
from .batching import register_batching
from .collectives import (
    all_gather_gemm,
    fp8_block_all_gather_gemm,
    fp8_block_gemm_reduce_scatter,
    gemm_reduce_scatter,
)
from .copies import register_copies
from .cpu import compute_on_cpu, computes_on_cpu
from .flops import register_flops
from .fusing import explain, wait
from .group_registration import register_collectives
from .linear import fp8_linear, linear
from .logits import register_logits
from .mixture import register_moe
from .moe_bytes import moe_bytes
from .moe_train import moe_train
from .operators import OPERATORS, Operator
from .paged_logits import register_paged_logits
from .prenorm import register_prenorm
from .registration import register
from .routing import register_route
from .selecting import register_select
from .top_keys import register_top_keys

LIBRARY = register()
register_collectives(LIBRARY)
register_route(LIBRARY)
register_select(LIBRARY)
register_logits(LIBRARY)
register_paged_logits(LIBRARY)
register_top_keys(LIBRARY)
register_prenorm(LIBRARY)
register_copies(LIBRARY)
register_moe(LIBRARY)
register_autocast(LIBRARY)
register_batching(LIBRARY)
register_flops(LIBRARY.ns)

__all__ = [
    "COLLECTIVES",
    "LIBRARY",
    "OPERATORS",
    "Operator",
    "all_gather_gemm",
    "compute_on_cpu",
    "computes_on_cpu",
    "explain",
    "fp8_block_all_gather_gemm",
    "fp8_block_gemm_all_reduce",
    "fp8_block_gemm_reduce_scatter",
    "fp8_linear",
    "gemm_all_reduce",
    "gemm_reduce_scatter",
    "linear",
    "moe_bytes",
    "moe_train",
    "register",
    "wait",
]
