"""Experts: groups of A's rows, each with a B of its own, contiguous or masked."""

from __future__ import annotations

from operator import index
from typing import Any

from ... import ops
from ...errors import ArgumentError
from ...ir.dtypes import S32
from ...runtime.torch_tensors import dtype_of
from ..scales import scale_layout
from .operands import (
    IN_DENSE,
    IN_FP8,
    Pair,
    Part,
    Recipe,
    check_dims,
    layout_of,
    only_blocks,
    output,
    pair,
    stored,
    turned,
    turned_pair,
)
from .renamed import renamed
from .settings import alignment

# DeepGEMM's FP8 benchmark says so many times the rows of a group in the mean; of its shapes, who says the mean gets the same configs.
ABOVE_MEAN = 1.2


@renamed(m_indices="grouped_layout")
def m_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    grouped_layout: Any,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
) -> None:
    """`d[i] = (a[0][i] * a[1][i]) @ (b[0][g] * b[1][g])^T` for every row i, g the group that it is in.

    a: float8_e4m3fn [M, K] and float32 scales [M, ceil(K/128)]. b: float8_e4m3fn [G, N, K] and float32 scales
    [G, ceil(N/128), ceil(K/128)]. Strides, compiled_dims and disable_ue8m0_cast as in `fp8_gemm_nt`; the
    recipe is (1, 128, 128). d: bfloat16 or float32 [M, N].
    grouped_layout: int32 [M], the group of each row, -1 for none: such rows come out as 0. With
    use_psum_layout int32 [G], the row after each group's last; rows between two groups stay untouched.
    Groups begin at multiples of `get_mk_alignment_for_contiguous_layout()`. It is read on the device only.
    ensure_zero_padding: of no effect on Hopper. expected_m_for_psum_layout: as `expected_m` of
    `m_grouped_fp8_gemm_nt_masked`.
    M = 0 returns at once. Raises as `gemmgen.ops`.
    """
    check_dims(compiled_dims)
    only_blocks(recipe, recipe_a, recipe_b)
    rows = _rows(grouped_layout, use_psum_layout, expected_m_for_psum_layout, ABOVE_MEAN)
    (x, sa), (y, sb) = pair("a", a), pair("b", b)
    dtype = output(d).name
    with IN_FP8:
        layout = scale_layout("a[1]", sa)
        ops.fp8_block_grouped_gemm(x, sa, y, sb, d, scale_a_layout=layout, out_dtype=dtype, **rows)


@renamed(m_indices="grouped_layout")
def m_grouped_fp8_gemm_nn_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    grouped_layout: Any,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """`m_grouped_fp8_gemm_nt_contiguous` of `b` transposed, [G, K, N]: still contiguous along K."""
    m_grouped_fp8_gemm_nt_contiguous(
        a,
        turned_pair("b", b),
        d,
        grouped_layout,
        recipe,
        recipe_a,
        recipe_b,
        compiled_dims,
        disable_ue8m0_cast,
        use_psum_layout,
        ensure_zero_padding,
    )


def m_grouped_fp8_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: Any,
    masked_m: Any,
    expected_m: int,
    recipe: Recipe = None,
    recipe_a: Part = None,
    recipe_b: Part = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """`d[g, :r] = (a[0][g, :r] * a[1][g, :r]) @ (b[0][g] * b[1][g])^T`, r = masked_m[g]; other rows of D stay
    untouched.

    a: float8_e4m3fn [G, Mmax, K] and float32 scales [G, Mmax, ceil(K/128)]; b and the rest as in
    `m_grouped_fp8_gemm_nt_contiguous`. d: bfloat16 or float32 [G, Mmax, N]. masked_m: int32 [G], from 0 to
    Mmax, read on the device only. expected_m: the rows of a group, or up to 1.2 times the mean, for choosing the kernel.
    """
    check_dims(compiled_dims)
    only_blocks(recipe, recipe_a, recipe_b)
    (x, sa), (y, sb) = pair("a", a), pair("b", b)
    with IN_FP8:
        ops.fp8_block_masked_gemm(
            x,
            sa,
            y,
            sb,
            masked_m,
            d,
            scale_a_layout=scale_layout("a[1]", sa),
            expected_rows=_expected("expected_m", expected_m, ABOVE_MEAN),
            out_dtype=output(d).name,
        )


@renamed(m_indices="grouped_layout")
def m_grouped_bf16_gemm_nt_contiguous(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
) -> None:
    """`d[i] = a[i] @ b[g]^T` for every row i, g the group that it is in.

    a: bfloat16 [M, K], contiguous along K; b: bfloat16 [G, N, K], contiguous along N or K, other strides
    multiples of 16 bytes. The rest as in `m_grouped_fp8_gemm_nt_contiguous`.
    """
    check_dims(compiled_dims)
    rows = _rows(grouped_layout, use_psum_layout, expected_m_for_psum_layout)
    (x, a_turned), (y, b_turned) = stored("a", a), stored("b", b)
    _along_k("a", a, a_turned)
    with IN_DENSE:
        layout = layout_of(False, b_turned)
        ops.grouped_gemm(x, y, d, layout=layout, out_dtype=output(d).name, **rows)


@renamed(m_indices="grouped_layout")
def m_grouped_bf16_gemm_nn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """`m_grouped_bf16_gemm_nt_contiguous` of `b` transposed, [G, K, N]."""
    stored("b", b)
    there = turned("b", b)
    m_grouped_bf16_gemm_nt_contiguous(
        a, there, d, grouped_layout, compiled_dims, use_psum_layout, ensure_zero_padding
    )


def m_grouped_bf16_gemm_nt_masked(
    a: Any, b: Any, d: Any, masked_m: Any, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """`d[g, :r] = a[g, :r] @ b[g]^T`, r = masked_m[g]; other rows of D stay untouched.

    a: bfloat16 [G, Mmax, K], contiguous along K; b: as in `m_grouped_bf16_gemm_nt_contiguous`; the rest as
    in `m_grouped_fp8_gemm_nt_masked`.
    """
    check_dims(compiled_dims)
    (x, a_turned), (y, b_turned) = stored("a", a), stored("b", b)
    _along_k("a", a, a_turned)
    with IN_DENSE:
        ops.masked_gemm(
            x,
            y,
            masked_m,
            d,
            expected_rows=_expected("expected_m", expected_m),
            layout=layout_of(False, b_turned),
            out_dtype=output(d).name,
        )


def _rows(
    grouped_layout: Any, psum: bool, expected_m: int | None, above: float = 1
) -> dict[str, Any]:
    """gemmgen's arguments that say which rows are whose, and how many are expected. Raises ArgumentError."""
    dtype_of("grouped_layout", grouped_layout, (S32,))
    if expected_m is not None and not psum:
        allowed = "goes with use_psum_layout"
        raise ArgumentError("expected_m_for_psum_layout", expected_m, allowed)
    table = "group_ends" if psum else "row_groups"
    told = {table: grouped_layout, "alignment": alignment()}
    if expected_m is None:
        return told
    return told | {"expected_rows": _expected("expected_m_for_psum_layout", expected_m, above)}


def _expected(argument: str, rows: Any, above: float = 1) -> int:
    """`rows`, so many times a group's in the mean. Raises ArgumentError."""
    if not hasattr(rows, "__index__") or index(rows) < 1:
        raise ArgumentError(argument, rows, "must be a positive integer")
    return max(1, round(index(rows) / above))


def _along_k(name: str, t: Any, was_turned: bool) -> None:
    if was_turned:
        raise ArgumentError(f"{name} last stride", t.stride(-1), "must be 1")
