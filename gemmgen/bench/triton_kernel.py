"""A block-scaled FP8 GEMM in Triton, for comparison. Imports triton: import this only where it is wanted."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

SPAN = 128  # K, and rows of B, per scale

# BLOCK_M, BLOCK_N, stages, warps. BLOCK_N divides 128, so that a tile has one scale of B per 128 of K.
CONFIGS = (
    (128, 128, 3, 8),
    (128, 128, 4, 8),
    (128, 64, 4, 4),
    (64, 128, 4, 4),
    (64, 64, 5, 4),
    (16, 128, 5, 4),
    (16, 64, 6, 4),
)


def _place(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PANEL: tl.constexpr):
    """Row and column of this program's tile, tiles in panels of PANEL rows."""
    tile = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = tile // (PANEL * tiles_n) * PANEL
    height = tl.minimum(tiles_m - first, PANEL)
    inside = tile % (PANEL * tiles_n)
    return first + inside % height, inside // height


place = triton.jit(_place)


def gemmgen_bench_triton(
    a,
    b,
    d,
    scale_a,
    scale_b,
    M,
    N,
    K,
    a_row,
    b_row,
    d_row,
    scale_a_row,
    scale_a_block,
    scale_b_row,
    scale_b_block,
    VECTORS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PANEL: tl.constexpr,
) -> None:
    """One tile of D per program. VECTORS: B has a scale per row and block, else one per 128 rows."""
    tile_m, tile_n = place(M, N, BLOCK_M, BLOCK_N, PANEL)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    # Rows past the end read row 0 and are not stored.
    safe_rows, safe_columns = tl.where(rows < M, rows, 0), tl.where(columns < N, columns, 0)
    ks = tl.arange(0, BLOCK_K)
    at_a = a + safe_rows[:, None] * a_row + ks[None, :]
    at_b = b + safe_columns[None, :] * b_row + ks[:, None]
    at_scale_a = scale_a + safe_rows * scale_a_row
    if VECTORS:
        at_scale_b = scale_b + safe_columns * scale_b_row
    else:
        at_scale_b = scale_b + (tile_n * BLOCK_N // BLOCK_K) * scale_b_row
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            left, right = tl.load(at_a), tl.load(at_b)
        else:
            inner = ks < K - block * BLOCK_K
            left = tl.load(at_a, mask=inner[None, :], other=0.0)
            right = tl.load(at_b, mask=inner[:, None], other=0.0)
        of_rows = tl.load(at_scale_a + block * scale_a_block)
        of_columns = tl.load(at_scale_b + block * scale_b_block)
        part = tl.dot(left, right)
        if VECTORS:
            total += part * of_rows[:, None] * of_columns[None, :]
        else:
            total += part * (of_rows * of_columns)[:, None]
        at_a += BLOCK_K
        at_b += BLOCK_K
    at_d = d + rows[:, None] * d_row + columns[None, :]
    tl.store(at_d, total.to(d.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


KERNEL: Any = triton.jit(gemmgen_bench_triton)
TUNED: Any = triton.autotune(
    [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=stages, num_warps=warps)
        for m, n, stages, warps in CONFIGS
    ],
    key=["M", "N", "K"],
)(KERNEL)


def block_scaled(a: Any, scale_a: Any, b: Any, scale_b: Any, d: Any, kernel: Any = TUNED) -> Any:
    """`d[M, N] = (a * scale_a) @ (b * scale_b)^T`, promoted every 128 of K; returns `d`.

    a: float8_e4m3fn [M, K], b: [N, K], contiguous along K. scale_a: float32 [M, ceil(K/128)], any strides;
    scale_b: float32 [ceil(N/128), ceil(K/128)] or [N, ceil(K/128)]. d: [M, N], contiguous along N.
    """
    (m, k), n = a.shape, b.shape[0]

    def grid(config: Any) -> tuple[int]:
        return (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),)

    kernel[grid](
        a,
        b,
        d,
        scale_a,
        scale_b,
        m,
        n,
        k,
        a.stride(0),
        b.stride(0),
        d.stride(0),
        *scale_a.stride(),
        *scale_b.stride(),
        VECTORS=n != triton.cdiv(n, SPAN) and scale_b.shape[0] == n,
        EVEN_K=k % SPAN == 0,
        BLOCK_K=SPAN,
        PANEL=8,
    )
    return d
