"""A layer of experts as a chain of DeepGEMM's kernels with torch between them, where DeepGEMM is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .. import ops
from ..errors import RuntimeUnavailable
from ..ops import routing
from ..recipes import SCALE_BLOCK
from ..runtime.torch_tensors import torch
from .grouped_deep_gemm import ALIGNED
from .moe_layer import Tokens, Weights

NAME = "deep_gemm"
CASTS = f"{NAME} casts"  # the same chain with gemmgen's casts
GEMM = "m_grouped_fp8_gemm_nt_contiguous"
LARGEST, LEAST = (
    448.0,
    1e-4,
)  # of FP8, and of what a scale is made from: as DeepGEMM's casts have them

Cast = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Of copies sorted by expert, each expert's rows from a multiple of ALIGNED on. slots: int64 [T * top], the row of each copy. tokens: int64
    [rows], the token of each row, 0 where there is no copy. experts: int32 [rows], whose a row is, -1 where there is no copy."""

    slots: Any
    tokens: Any
    experts: Any


def check() -> None:
    """Raise RuntimeUnavailable where there is no DeepGEMM with the function that the chain calls."""
    if find_spec(NAME) is None:
        raise RuntimeUnavailable(f"provider {NAME}: {NAME} is not installed")
    try:
        library = import_module(NAME)
    except Exception as e:  # whatever its import raises
        raise RuntimeUnavailable(f"provider {NAME}: import {NAME} fails: {e}") from e
    if not hasattr(library, GEMM):
        where = getattr(library, "__file__", None)
        raise RuntimeUnavailable(f"provider {NAME}: {NAME} from {where} has no {GEMM}")


def ways(w: Weights, t: Tokens) -> dict[str, Callable[[], Any]]:
    """By name, the chain with torch's casts and with gemmgen's; else they are the same."""
    return {name: partial(layer, w, t, cast) for name, cast in CAST.items()}


def layer(w: Weights, t: Tokens, cast: Cast) -> Any:
    """bfloat16 [T, H]. No shape depends on a choice and the host waits for nothing, so a CUDA graph may hold it."""
    assert w.halves is not None
    (w1, scale_w1), top = w.halves, t.chosen.shape[1]
    at = places(t.chosen, w1.shape[0])
    codes, scale = cast(t.x)
    rows = _of_bytes(codes).index_select(0, at.tokens).view(codes.dtype)
    scale = (
        scale.mT.contiguous().index_select(1, at.tokens).mT
    )  # contiguous along rows: DeepGEMM copies none
    both = _multiplied((rows, scale), (w1, scale_w1), at.experts)
    gate, up = both.chunk(2, -1)
    h = cast(torch().nn.functional.silu(gate) * up)
    y = _multiplied(h, (w.w2, w.scale_w2), at.experts)
    copies = y.index_select(0, at.slots).view(-1, top, y.shape[1])
    return torch().bmm(t.weights.to(y.dtype).unsqueeze(1), copies).squeeze(1)


def _multiplied(a: tuple[Any, Any], b: tuple[Any, Any], experts: Any) -> Any:
    d = torch().empty(a[0].shape[0], b[0].shape[1], dtype=torch().bfloat16, device=a[0].device)
    getattr(import_module(NAME), GEMM)(a, b, d, experts)
    return d


def places(chosen: Any, experts: int) -> Places:
    """By torch's operators, of experts' ids [T, top], none of them less than 0 or more than there are."""
    flat, top = chosen.flatten().long(), chosen.shape[1]
    n, zeros = flat.numel(), partial(torch().zeros, dtype=torch().long, device=flat.device)
    order = flat.argsort(stable=True)
    counts = zeros(experts).scatter_add_(0, flat, torch().ones_like(flat))
    rooms = (counts + ALIGNED - 1) // ALIGNED * ALIGNED
    owner = flat[order]
    nth = torch().arange(n, device=flat.device) - (counts.cumsum(0) - counts)[owner]
    row = (rooms.cumsum(0) - rooms)[owner] + nth
    rows = routing.rows_of(n, experts, ALIGNED)
    return Places(
        slots=zeros(n).scatter_(0, order, row),
        tokens=zeros(rows).scatter_(0, row, order // top),
        experts=zeros(rows).sub_(1).scatter_(0, row, owner).int(),
    )


def by_torch(x: Any) -> tuple[Any, Any]:
    """(codes, scales) of bfloat16 [M, K], a scale per row and 128 columns: float8_e4m3fn [M, K], float32 [M, ceil(K/128)]. As DeepGEMM's
    own cast: it has no kernel for it."""
    m, k = x.shape
    wide = torch().nn.functional.pad(x, (0, -k % SCALE_BLOCK)).view(m, -1, SCALE_BLOCK)
    amax = wide.abs().float().amax(2, keepdim=True).clamp(LEAST)
    codes = (wide * (LARGEST / amax)).to(torch().float8_e4m3fn).view(m, -1)
    return codes[:, :k].contiguous(), (amax / LARGEST).squeeze(2)


def rounded(name: str, w: Weights, rows: Any) -> Any:
    """float64 rows of BF16 numbers, after the chain of that name quantised them. torch's casts multiply by a scale's inverse and gemmgen's
    divide: they differ where a quotient lies halfway between two codes, which one of BF16 numbers may."""
    if name == CASTS:
        return w.rounded(rows)
    codes, scale = by_torch(rows.bfloat16())
    wide = scale.double().repeat_interleave(SCALE_BLOCK, -1)
    return codes.double() * wide[:, : rows.shape[1]]


def _of_bytes(codes: Any) -> Any:
    """As integers: torch selects no rows of FP8."""
    return codes.view(torch().uint8)


CAST: dict[str, Cast] = {NAME: by_torch, CASTS: ops.quantise_rows}


def gated(gate: Any, up: Any) -> Any:
    """SwiGLU of float64, rounded where the chain rounds: products to BF16, and what torch makes of them."""
    gate, up = gate.bfloat16(), up.bfloat16()
    return (torch().nn.functional.silu(gate) * up).double()
