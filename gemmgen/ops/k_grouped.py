"""Weight gradients of experts: several GEMMs in one launch that split K between them.

Everywhere: `group_depths` is an int32 CUDA tensor [G], K of each group, and is read on the device only, so
a launch can be captured in a CUDA graph and replayed with other depths. Groups follow each other along K; a
depth may be 0, and what the tensors have of K after the last group is never read. A group without K comes
out as `c`, or 0. Operands are 16-byte aligned; `out` and `c` are [G, M, N], contiguous along N, out's other
strides multiples of 16 bytes, c's even. `c` may be `out` itself, whole: then products are added in place
(float32: by the copy engine). Groups, rows and addresses are counted in 64 bits. The rest
(`scale_layout`, `config`, `invariant`, errors) is as in `gemmgen.ops`.
"""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..errors import ArgumentError
from ..ir.dtypes import BF16, E4M3, F16
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of
from .calls import added, output_dtype
from .compute import Scales, compute
from .depths import matrix
from .front import front

PACKINGS = ("columns", "flat")


@front
def k_grouped_gemm(
    a: Any,
    b: Any,
    group_depths: Any,
    out: Any = None,
    *,
    c: Any = None,
    layout: str = "tn",
    out_dtype: str = "f32",
    config: Config | None = None,
    invariant: bool | None = None,
) -> Any:
    """`out[g] = c[g] + A[:, ks] @ B[ks]` for every g, `ks` the K of group g, with FP32 accumulation.

    layout: as in `gemm`, over the K of all groups together: "tn" a [sum K, M], b [sum K, N]; "nt"
    a [M, sum K], b [N, sum K]; "nn" and "tt" mix them.
    a: bfloat16 or float16; b: the same dtype; both contiguous along their last dimension, row strides
    multiples of 16 bytes.
    Depths may be any for "tn"; for the other layouts, in which K is contiguous, they are multiples of 8:
    the copy engine begins at multiples of 16 bytes, and others stop the kernel with an illegal instruction.
    c: None (0), or [G, M, N] of `out_dtype`. out: [G, M, N] of `out_dtype` ("f32", "bf16", "f16"),
    allocated if None.
    """
    dtype = dtype_of("a", a, (BF16, F16))
    p = Problem(
        family=recipes.DENSE,
        a=dtype,
        b=dtype,
        d=output_dtype(out_dtype),
        layout=layout,
        grouping="k_columns",
    )
    p, given = added(p, c, out)
    return compute(p, config, a, b, out, given, table=group_depths, invariant=invariant)


@front
def fp8_k_grouped_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    group_depths: Any,
    out: Any = None,
    *,
    packing: str,
    scale_layout: str,
    c: Any = None,
    out_dtype: str = "f32",
    config: Config | None = None,
    invariant: bool | None = None,
) -> Any:
    """`out[g] = c[g] + (a[:, ks] * scale_a) @ (b[:, ks] * scale_b)^T` for every g, `ks` the K of group g,
    both operands scaled 1x128 along K (1D1D).

    group_depths: multiples of 128.
    packing: how the groups' K lies in a and b, float8_e4m3fn. "columns": a [M, sum K], b [N, sum K],
    contiguous along K, row strides multiples of 16 bytes. "flat": each group is a dense matrix [M, K] (and
    [N, K]) of its own, one after the other in a [M * sum K] and b [N * sum K].
    scale_a: float32 [M, sum K / 128]; scale_b: float32 [N, sum K / 128], either packing. `scale_layout`,
    for both: "mn", contiguous along M (N) with a column stride that is a multiple of 4 elements, or "row",
    any strides (copied to "mn" first).
    c: None (0), or [G, M, N] of `out_dtype`. out: [G, M, N] of `out_dtype` ("f32", "bf16", "f16"),
    allocated if None.
    """
    if packing not in PACKINGS:
        raise ArgumentError("packing", packing, "must be 'columns' or 'flat'")
    d = output_dtype(out_dtype)
    p = Problem(family=recipes.FP8_1D1D, a=E4M3, b=E4M3, d=d, grouping=f"k_{packing}")
    if packing == "flat":
        a, b = matrix("a", a, scale_a, None), matrix("b", b, scale_b, a)
    p, given = added(p, c, out)
    scales = Scales(a=scale_a, b=scale_b, layout=scale_layout)
    return compute(p, config, a, b, out, given, scales, table=group_depths, invariant=invariant)
