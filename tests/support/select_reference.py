"""Which experts a router's logits choose, in NumPy, and selections run by the emulator."""

from __future__ import annotations

import numpy as np

from gemmgen.codes import code_type, decode, encode
from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.ir.dtypes import F32
from gemmgen.runtime.nvrtc import compile_ptx
from gemmgen.selecting import LEAST_SUM, Selection, per_lane, source

POISON = 0xA5
GUARD = 64  # bytes behind each result that must stay as they were

# Relative errors, in roundings to nearest of float32. Of an exponential: ex2's, at most 2 ** -22, and a product's.
UNIT = 2.0**-24
EXPONENTIAL = 5
SIGMOID = EXPONENTIAL + 2  # a sum and a division
# Of a weight, at most that of softmax made to add up to 1. Two logits are at most 8 apart, so their difference is off by 4; an exponential, and
# a division by what all choices of a token have alike. The sum of choices is off by as much, and by 31 sums and one of LEAST_SUM; then a
# division and a product.
WEIGHT = 2 * (4 + EXPONENTIAL + 1) + 32 + 2
ROUNDING = WEIGHT * UNIT


def scores_of(logits, score):
    """float64 [tokens, experts]."""
    x = logits.astype(np.float64)
    if score == "sigmoid":
        return 1 / (1 + np.exp(-x))
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def reference(
    logits, top, score="softmax", bias=None, groups=1, kept=1, renormalise=True, scale=1.0, shared=0
):
    """(chosen, weights) in float64 of float logits; of equal ones the first."""
    scores = scores_of(logits, score)
    tokens, experts = scores.shape
    by = scores if bias is None else scores + bias
    best = 1 if bias is None else 2
    chosen = np.empty((tokens, top), np.int32)
    for t in range(tokens):
        sizes = -np.sort(-by[t].reshape(groups, -1), axis=1)[:, :best].sum(1)
        keep = np.argsort(-sizes, kind="stable")[:kept]
        may = [e for e in range(experts) if e // (experts // groups) in keep]
        chosen[t] = sorted(may, key=lambda e: (-by[t, e], e))[:top]
    weights = np.take_along_axis(scores, chosen.astype(np.int64), 1)
    if renormalise:
        weights = weights / (weights.sum(1, keepdims=True) + LEAST_SUM)
    behind = np.broadcast_to(np.arange(experts, experts + shared, dtype=np.int32), (tokens, shared))
    ones = np.ones((tokens, shared))
    return np.concatenate((chosen, behind), 1), np.concatenate((weights * scale, ones), 1)


def emulate(
    logits, top, score="softmax", bias=None, groups=1, kept=1, renormalise=True, scale=1.0, shared=0,
    dtype=F32, pitch=None, grid=2, edit=lambda text: text, **options,
):  # fmt: skip
    """(chosen, weights) by the PTX of the kernel, whose text `edit` may change, of logits that `dtype` has exactly, `pitch` apart from token
    to token. What is behind the results must stay as it was."""
    tokens, experts = logits.shape
    pitch = pitch or experts
    wide = np.full((tokens, pitch), np.inf)
    wide[:, :experts] = logits
    flat = (
        encode(wide, dtype).astype(code_type(dtype)).reshape(-1)[: (tokens - 1) * pitch + experts]
    )
    assert np.array_equal(decode(encode(logits, dtype), dtype), logits, equal_nan=True)
    kernel, memory = (
        Selection(logits=dtype, score=score, per_lane=per_lane(experts)),
        GlobalMemory(),
    )
    count = tokens * (top + shared)
    at = {
        x: memory.allocate(np.full(4 * count + GUARD, POISON, np.uint8))
        for x in ("chosen", "weights")
    }
    values = {
        **at,
        "logits": memory.allocate(flat),
        "pitch": pitch,
        "tokens": tokens,
        "experts": experts,
    }
    values |= {"bias": 0 if bias is None else memory.allocate(np.asarray(bias, np.float32))}
    values |= {
        "top": top,
        "shared": shared,
        "groups": groups,
        "kept": kept,
        "best": 1 if bias is None else 2,
    }
    values |= {"renormalise": int(renormalise), "scale": scale}
    launch(
        load(compile_ptx(edit(source(kernel)), kernel.name)).entries[kernel.name],
        grid=min(grid, kernel.tiles(tokens)),
        block=kernel.threads,
        shared_bytes=0,
        params=[values[p.name] for p in kernel.params],
        memory=memory,
        **options,
    )
    found = []
    for name, kind in (("chosen", np.int32), ("weights", np.float32)):
        raw = memory.read(at[name], 4 * count + GUARD)
        assert (raw[4 * count :] == POISON).all()
        found.append(raw[: 4 * count].view(kind).reshape(tokens, top + shared))
    return tuple(found)
