"""One GEMM, FP8 or BF16: `d = a @ b^T`, plus `c`."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ir.dtypes import BF16, E4M3, F32
from ...runtime.torch_tensors import dtype_of, same_memory
from ..scales import aligned, scale_layout
from .operands import (
    IN_DENSE,
    IN_FP8,
    Pair,
    Part,
    Recipe,
    check_added,
    check_dims,
    layout_of,
    nothing_to_sum,
    only_blocks,
    output,
    pair,
    plus,
    rows_of_b,
    split_heads,
    stored,
    turned,
    turned_pair,
)


def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: Any,
    c: Any = None,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """`d[M, N] = c + (a[0] * a[1]) @ (b[0] * b[1])^T`, promoted to FP32 every 128 of K.

    a: float8_e4m3fn [M, K] and float32 scales [M, ceil(K/128)], of any strides: read in place if contiguous along M with
    columns at multiples of 16 bytes, else as `gemmgen.ops` reads layout "row". b: float8_e4m3fn [N, K] and float32 scales,
    [ceil(N/128), ceil(K/128)] of any strides by recipe (1, 128, 128), the default, or [N, ceil(K/128)] by (1, 1, 128),
    by which both operands' scales are copied unless they lie like that. Both contiguous along K, row strides multiples of 16 bytes.
    d: bfloat16 or float32 [M, N], contiguous along N, row stride a multiple of 16 bytes. c: None or of D's
    shape and dtype, `d` itself or apart from it. K = 0 leaves `c` or 0.
    compiled_dims: checked; every size is an argument of the kernel. disable_ue8m0_cast: of no effect on
    Hopper. Raises as `gemmgen.ops`.
    """
    check_dims(compiled_dims)
    by = rows_of_b(recipe, recipe_a, recipe_b)
    (x, sa), (y, sb) = pair("a", a), pair("b", b)
    dtype = output(d).name
    with IN_FP8:
        if nothing_to_sum(x, y, d, c, E4M3):
            return
        if by == 1:
            sa = aligned("a[1]", sa)
            check_added(c, d)
            sb = aligned("b[1]", sb)
            ops.fp8_wgrad_gemm(x, sa, y, sb, d, c=c, scale_layout="mn", out_dtype=dtype)
        else:
            layout = scale_layout("a[1]", sa)
            more = plus(c, d)
            ops.fp8_block_gemm(x, sa, y, sb, d, scale_a_layout=layout, out_dtype=dtype, **more)


def fp8_gemm_nn(
    a: Pair,
    b: Pair,
    d: Any,
    c: Any = None,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """`fp8_gemm_nt` of `b` transposed, [K, N]: still contiguous along K, as on every Hopper GPU."""
    there = turned_pair("b", b)
    fp8_gemm_nt(a, there, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast)


def fp8_gemm_tn(
    a: Pair,
    b: Pair,
    d: Any,
    c: Any = None,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """`fp8_gemm_nt` of both transposed, `a` [K, M] and `b` [K, N]: still contiguous along K."""
    here, there = turned_pair("a", a), turned_pair("b", b)
    fp8_gemm_nt(here, there, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast)


def fp8_gemm_tt(
    a: Pair,
    b: Pair,
    d: Any,
    c: Any = None,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """`fp8_gemm_nt` of `a` transposed, [K, M]: still contiguous along K."""
    here = turned_pair("a", a)
    fp8_gemm_nt(here, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast)


def fp8_gemm_nt_skip_head_mid(
    a: Pair,
    b: Pair,
    d: Any,
    head_splits: tuple[int, int, int],
    recipe: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """`fp8_gemm_nt` into heads of which the middle is left as it was: column n of the product goes to column
    n + (n + right) // (left + right) * mid of d.

    a, b: as in `fp8_gemm_nt`, scales by recipe (1, 128, 128). head_splits: (left, mid, right), left and right multiples of 32 bytes of D's
    elements, mid of 16; N a multiple of left + right, at least one. d: [M, N + N / (left + right) * mid], as in `fp8_gemm_nt`.
    """
    check_dims(compiled_dims)
    only_blocks(recipe)
    (x, sa), (y, sb) = pair("a", a), pair("b", b)
    dtype = output(d).name
    with IN_FP8:
        heads, layout = split_heads(head_splits, y), scale_layout("a[1]", sa)
        ops.fp8_block_gemm(x, sa, y, sb, d, scale_a_layout=layout, out_dtype=dtype, heads=heads)


def bf16_gemm_nt(a: Any, b: Any, d: Any, c: Any = None, compiled_dims: str = "nk") -> None:
    """`d[M, N] = c + a @ b^T`, summed in FP32 and rounded once.

    a: bfloat16 [M, K]; b: bfloat16 [N, K]; each contiguous along one of its dimensions, either, the other
    stride a multiple of 16 bytes. d, c, compiled_dims: as in `fp8_gemm_nt`.
    """
    check_dims(compiled_dims)
    (x, a_turned), (y, b_turned) = stored("a", a), stored("b", b)
    with IN_DENSE:
        if nothing_to_sum(a, b, d, c, BF16):
            return
        in_place = output(d) is F32 and same_memory(c, d)
        more = {"accumulate": True} if in_place else plus(c, d)
        layout = layout_of(a_turned, b_turned)
        ops.gemm(x, y, d, layout=layout, out_dtype=output(d).name, **more)


def bf16_gemm_nn(a: Any, b: Any, d: Any, c: Any = None, compiled_dims: str = "nk") -> None:
    """`bf16_gemm_nt` of `b` transposed, [K, N]."""
    bf16_gemm_nt(a, _turned("b", b), d, c, compiled_dims)


def bf16_gemm_tn(a: Any, b: Any, d: Any, c: Any = None, compiled_dims: str = "mn") -> None:
    """`bf16_gemm_nt` of both transposed, `a` [K, M] and `b` [K, N]."""
    bf16_gemm_nt(_turned("a", a), _turned("b", b), d, c, compiled_dims)


def bf16_gemm_tt(a: Any, b: Any, d: Any, c: Any = None, compiled_dims: str = "mn") -> None:
    """`bf16_gemm_nt` of `a` transposed, [K, M]."""
    bf16_gemm_nt(_turned("a", a), b, d, c, compiled_dims)


def cublaslt_gemm_nt(a: Any, b: Any, d: Any, c: Any = None) -> None:
    """`bf16_gemm_nt`, by gemmgen's kernel: no library is called, and operands of FP8 are refused."""
    bf16_gemm_nt(a, b, d, c)


def cublaslt_gemm_nn(a: Any, b: Any, d: Any, c: Any = None) -> None:
    """`bf16_gemm_nn`, as `cublaslt_gemm_nt` is."""
    bf16_gemm_nn(a, b, d, c)


def cublaslt_gemm_tn(a: Any, b: Any, d: Any, c: Any = None) -> None:
    """`bf16_gemm_tn`, as `cublaslt_gemm_nt` is."""
    bf16_gemm_tn(a, b, d, c)


def cublaslt_gemm_tt(a: Any, b: Any, d: Any, c: Any = None) -> None:
    """`bf16_gemm_tt`, as `cublaslt_gemm_nt` is."""
    bf16_gemm_tt(a, b, d, c)


def _turned(name: str, t: Any) -> Any:
    dtype_of(name, t, (BF16,))
    return turned(name, t)
