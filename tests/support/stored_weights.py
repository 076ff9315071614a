"""Weights of 4 bits as AWQ and GPTQ store them, word by word, and the numbers that their definitions say."""

from __future__ import annotations

import numpy as np
import torch

K, N = 128, 24
AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)  # of a word's codes, low bits first
NAME = "model.layers.0.mlp.down_proj"


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def word(codes) -> int:
    return signed(sum(int(c) << 4 * i for i, c in enumerate(codes)))


def drawn(group=32, k=K, n=N, seed=0, zeros=16):
    """Codes [K, N], zeros [K / g, N] and scales."""
    rng = np.random.default_rng(seed)
    codes, zero = rng.integers(0, 16, (k, n)), rng.integers(1, zeros, (k // group, n))
    return codes, zero, rng.uniform(0.01, 1, (k // group, n)).astype(np.float16)


def awq(codes, zeros, scales, name=NAME):
    def columns(x):
        rows = [[word(x[k, 8 * j + i] for i in AWQ_OUTPUTS) for j in range(x.shape[1] // 8)]
                for k in range(len(x))]  # fmt: skip
        return torch.tensor(rows, dtype=torch.int32)

    held = {"qweight": columns(codes), "qzeros": columns(zeros), "scales": torch.from_numpy(scales)}
    return {f"{name}.{x}": t for x, t in held.items()}


def gptq(codes, zeros, scales, name=NAME, less=1):
    k, n = codes.shape
    weight = [[word(codes[8 * j : 8 * j + 8, i]) for i in range(n)] for j in range(k // 8)]
    stored = [[word(z[8 * j : 8 * j + 8] - less) for j in range(n // 8)] for z in zeros]
    return {
        f"{name}.qweight": torch.tensor(weight, dtype=torch.int32),
        f"{name}.qzeros": torch.tensor(stored, dtype=torch.int32),
        f"{name}.scales": torch.from_numpy(scales),
        f"{name}.g_idx": torch.arange(k, dtype=torch.int32) // (k // len(zeros)),
    }


def exact(codes, zeros, scales):
    """[N, K]"""
    group = len(codes) // len(scales)
    steps = codes - np.repeat(zeros, group, 0)
    return (steps * np.repeat(scales.astype(np.float64), group, 0)).T
