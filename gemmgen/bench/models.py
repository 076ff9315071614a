"""Shapes of models' projections: (M, N, K) with M tokens, N outputs and K inputs, as (N, K) lists."""

from __future__ import annotations

PREFILL, DECODE = 4096, (1, 16, 64, 128)

# DeepSeek-V3, hidden size 7168. Attention: q_a and kv_a together, q_b, kv_b, o. Then the dense MLP's
# gate and up together, and down (18432), and the same of an expert (2048).
DEEPSEEK_V3 = (
    (2112, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (36864, 7168),
    (7168, 18432),
    (4096, 7168),
    (7168, 2048),
)
# Llama 3 8B (hidden size 4096) and 70B (8192): q, k and v together, o, gate and up together, down.
LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
LLAMA_70B = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))


def _tokens(layers: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple((m, n, k) for m in (PREFILL, *DECODE) for n, k in layers)


SINGLE: dict[str, tuple[tuple[int, ...], ...]] = {
    "deepseek-v3": _tokens(DEEPSEEK_V3),
    "llama": _tokens((*LLAMA_8B, *LLAMA_70B)),
    # A public sweep of L2 swizzling (T.use_swizzle): squares from 12288 to 20480.
    "panels": tuple((s, s, s) for s in range(12288, 20481, 1024)),
}
# Of the experts of one GPU: 32 with few tokens each, 8 with many.
GROUPED: dict[str, tuple[tuple[int, ...], ...]] = {
    "deepseek-v3": tuple(
        (g, m, n, k) for g, m in ((32, 64), (8, 4096)) for n, k in ((4096, 7168), (7168, 2048))
    ),
}
