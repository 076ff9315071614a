"""The sum of a batch of GEMMs in one launch: gradients of what a batch shares, in the main.

A CTA goes on from one GEMM's K to the next one's, so that the sums stay in the tensor core and D is written once. Where tiles are fewer
than SMs, CTAs divide the K of all, and sums meet in a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..ir.dtypes import BF16, F16
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of
from .calls import added, output_dtype
from .compute import compute
from .front import front

OUTPUTS = ("bf16", "f16", "f32")


@front
def summed_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    layout: str = "nt",
    out_dtype: str | None = None,
    config: Config | None = None,
    invariant: bool | None = None,
) -> Any:
    """`out = c + a[0] @ b[0]^T + a[1] @ b[1]^T + ...`, over all of the batch, with FP32 accumulation.

    layout: as in `gemm`, of each GEMM: "nt" a [G, M, K], b [G, N, K]; "tn" a [G, K, M], b [G, K, N]; "nn" and "tt" mix them.
    a: bfloat16 or float16; b: the same dtype; both contiguous along their last dimension, their other strides multiples of 16 bytes
    (rows and batches may be padded, views permuted), 16-byte aligned. K in whole K blocks, times G, is below 2^31.
    c: None (0), or [M, N] of out's dtype, contiguous along N, its row stride even; `out` itself, whole, to add in place
    (float32: by the copy engine). out: [M, N] of `out_dtype` ("bf16", "f16", "f32"; None: a's), allocated if None.
    With G = 0 out is `c`, or 0; M = 0 returns at once. config, invariant, errors: as in `gemmgen.ops`; an invariant sum's order
    depends on N, K and G.
    """
    dtype = dtype_of("a", a, (BF16, F16))
    d = dtype if out_dtype is None else output_dtype(out_dtype, OUTPUTS)
    p = Problem(family=recipes.DENSE, a=dtype, b=dtype, d=d, layout=layout, grouping="summed")
    p, given = added(p, c, out)
    return compute(p, config, a, b, out, given, invariant=invariant)
