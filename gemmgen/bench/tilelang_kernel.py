"""A BF16 or FP16 GEMM in TileLang, for comparison. Imports tilelang: import this only where it is wanted."""

# No `from __future__ import annotations`: TileLang evaluates the annotations of the inner function.
from functools import cache
from typing import Any

import tilelang
import tilelang.language as T

BLOCK_M, BLOCK_N, BLOCK_K, STAGES, PANEL, THREADS = 128, 256, 64, 3, 10, 256


@cache
def gemm(m: int, n: int, k: int, dtype: str) -> Any:
    """A function of a [M, K] and b [N, K] that writes d [M, N], all of `dtype` ("bfloat16", "float16")."""

    @T.prim_func
    def gemmgen_bench_tilelang(
        a: T.Tensor((m, k), dtype), b: T.Tensor((n, k), dtype), d: T.Tensor((m, n), dtype)
    ):
        with T.Kernel(T.ceildiv(n, BLOCK_N), T.ceildiv(m, BLOCK_M), threads=THREADS) as (x, y):
            left = T.alloc_shared((BLOCK_M, BLOCK_K), dtype)
            right = T.alloc_shared((BLOCK_N, BLOCK_K), dtype)
            total = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            T.use_swizzle(panel_size=PANEL)
            T.clear(total)
            for block in T.Pipelined(T.ceildiv(k, BLOCK_K), num_stages=STAGES):
                T.copy(a[y * BLOCK_M, block * BLOCK_K], left)
                T.copy(b[x * BLOCK_N, block * BLOCK_K], right)
                T.gemm(left, right, total, transpose_B=True)
            T.copy(total, d[y * BLOCK_M, x * BLOCK_N])

    return tilelang.compile(gemmgen_bench_tilelang, target="cuda")
