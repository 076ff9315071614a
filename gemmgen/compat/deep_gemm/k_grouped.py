"""Weight gradients of experts: groups that split K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ops
from ...errors import ArgumentError, UnsupportedProblem
from ...ir.dtypes import BF16, S32
from ...runtime.torch_tensors import check_tensor, dtype_of
from ..scales import aligned
from .operands import IN_DENSE, IN_FP8, Pair, Recipe, check_added, check_dims, output, pair, sides
from .renamed import renamed

Depths = Sequence[int] | None
BLOCK = 128


@renamed(ks="ks_cpu")
def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    ks_cpu: Depths,
    grouped_layout: Any,
    c: Any = None,
    recipe: tuple[int, int, int] = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """`d[g] = c[g] + (a_g * its scales) @ (b_g * its scales)^T` for every g, promoted every 128 of K.

    a: float8_e4m3fn of M * sum K elements, in which each group is a dense [M, K] of its own, one after the
    other, and float32 scales [M, sum K / 128] of any strides, copied unless contiguous
    along M (N), with columns at multiples of 16 bytes. b: the same of N.
    ks_cpu: K of each group, multiples of 128, perhaps 0. grouped_layout: the same as int32 [G] on the
    device, which is what the kernel reads. d: float32 or bfloat16 [G, M, N]. c: None or of D's shape and
    dtype, `d` itself or apart from it. A group without K comes out as `c`, or 0.
    use_psum_layout: False. compiled_dims: as in `fp8_gemm_nt`. Raises as `gemmgen.ops`.
    """
    _check(compiled_dims, use_psum_layout)
    if sides("recipe", recipe) != (1, 1, BLOCK):
        raise ArgumentError("recipe", recipe, "must be (1, 1, 128)")
    (x, sa), (y, sb) = pair("a", a), pair("b", b)
    total = _total(ks_cpu, grouped_layout, d, BLOCK)
    check_added(c, d)
    with IN_FP8:
        ops.fp8_k_grouped_gemm(
            _flat("a[0]", x, total * d.shape[-2]),
            aligned("a[1]", sa) if total else sa,
            _flat("b[0]", y, total * d.shape[-1]),
            aligned("b[1]", sb) if total else sb,
            grouped_layout,
            d,
            packing="flat",
            scale_layout="mn",
            c=c,
            out_dtype=output(d).name,
        )


@renamed(ks="ks_cpu")
def k_grouped_bf16_gemm_tn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    ks_cpu: Depths,
    grouped_layout: Any,
    c: Any = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """`d[g] = c[g] + a[ks]^T @ b[ks]` for every g, `ks` the rows of group g.

    a: bfloat16 [sum K, M]; b: bfloat16 [sum K, N]; both contiguous along their last dimension, row strides
    multiples of 16 bytes. ks_cpu: K of each group, any, perhaps 0. The rest as in
    `k_grouped_fp8_gemm_nt_contiguous`.
    """
    _check(compiled_dims, use_psum_layout)
    total = _total(ks_cpu, grouped_layout, d, 1)
    for name, t in (("a", a), ("b", b)):
        dtype_of(name, t, (BF16,))
        if t.shape[0] != total:
            raise ArgumentError(f"{name} rows", t.shape[0], f"must be {total}, the sum of ks_cpu")
    check_added(c, d)
    with IN_DENSE:
        ops.k_grouped_gemm(a, b, grouped_layout, d, c=c, out_dtype=output(d).name)


@renamed(ks="ks_cpu")
def k_grouped_fp8_gemm_tn_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    ks_cpu: Depths,
    grouped_layout: Any,
    c: Any = None,
    recipe: Recipe = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """Not on Hopper, as in DeepGEMM: `wgmma` reads FP8 contiguous along K only. Raises UnsupportedProblem."""
    raise UnsupportedProblem(
        "k_grouped_fp8_gemm_tn_contiguous: wgmma on Hopper reads FP8 operands contiguous along K only; "
        "use k_grouped_fp8_gemm_nt_contiguous, whose groups are dense [M, K]"
    )


def _check(compiled_dims: str, psum: bool) -> None:
    check_dims(compiled_dims)
    if psum:
        allowed = "must be False: on Hopper groups follow each other without gaps"
        raise ArgumentError("use_psum_layout", psum, allowed)


def _total(ks_cpu: Depths, grouped_layout: Any, d: Any, step: int) -> int:
    """K of all groups of d [G, M, N]. Raises ArgumentError."""
    groups, _, _ = check_tensor("d", d, output(d), (None, None, None))
    check_tensor("grouped_layout", grouped_layout, S32, (groups,), d.device)
    if ks_cpu is None or not hasattr(ks_cpu, "__len__") or len(ks_cpu) != groups:
        raise ArgumentError("ks_cpu", ks_cpu, f"must be K of each of the {groups} groups of d")
    for k in ks_cpu:
        if not hasattr(k, "__index__") or k < 0 or k % step:
            raise ArgumentError("ks_cpu", [*ks_cpu], f"must be multiples of {step}")
    return sum(ks_cpu)


def _flat(name: str, t: Any, elements: int) -> Any:
    """`t` in one dimension: a view. Raises ArgumentError."""
    if not t.is_contiguous():
        raise ArgumentError(f"{name} strides", tuple(t.stride()), "must be contiguous")
    if t.numel() != elements:
        raise ArgumentError(f"{name} elements", t.numel(), f"must be {elements}, by d and ks_cpu")
    return t.view(-1)
