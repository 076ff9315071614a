"""Layers of experts for timing: named sizes, weights drawn at random, who chooses which, torch's way and one in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..ops import quantise
from ..recipes import SCALE_BLOCK
from ..runtime.torch_tensors import torch, torch_dtype
from . import moe_packed
from .moe_sizes import (
    BLOCKS,
    FORMS,
    FP8_ROWS,
    INT4_BLOCKS,
    INT8_ROWS,
    MXFP4_BLOCKS,
    MXFP4_FP8,
    WIDE,
    Sizes,
)

SPREAD = 0.02  # standard deviation of weights, as models are initialised with

CODES = {FP8_ROWS: "e4m3", INT8_ROWS: "s8"}  # of kinds whose rows have one scale each
ROWS = {**CODES, MXFP4_FP8: "e4m3"}  # what tokens become where rows of them have one

Matrices = Callable[[int], tuple[Any, Any, Any]]  # of an expert its gate, up and down, in float64


@dataclass(frozen=True, kw_only=True)
class Weights:
    """w1, scale_w1, w2, scale_w2: as `ops.moe` takes them, w1's rows alternating. wide: those of torch, BF16, gate's
    rows before up's, the same numbers before they were quantised, or those that are packed; None without it. halves: w1 and scale_w1 of blocks with gate's rows
    before up's, which are other codes; None without them. sides: of an expert's w1 and w2. kind: of `moe_sizes.KINDS`."""

    w1: Any
    scale_w1: Any
    w2: Any
    scale_w2: Any
    sides: tuple[tuple[int, int], tuple[int, int]]
    wide: tuple[Any, Any] | None
    halves: tuple[Any, Any] | None = None
    kind: str = BLOCKS

    def layer(self, t: Tokens) -> Any:
        """By gemmgen."""
        given = {"scale_w1": self.scale_w1, "scale_w2": self.scale_w2}
        given |= moe_packed.told(self.kind) if self.kind in FORMS else {}
        return ops.moe(t.x, self.w1, self.w2, t.chosen, t.weights, **given)

    def spans(self, experts: int) -> tuple[tuple[Any, int], ...]:
        """As many bytes as so many experts have, of each tensor: where they lie apart, no fewer are read."""
        each = (self.w1, self.scale_w1, self.w2, self.scale_w2)
        there = (x for x in each if x is not None)
        return tuple((x, experts * x[0].numel() * x.element_size()) for x in there)

    def quantised(self, expert: int) -> tuple[Any, Any, Any]:
        """What the codes of an expert stand for, float64."""
        first, second = self.sides
        both = self._numbers(self.w1[expert], _at(self.scale_w1, expert), first)
        down = self._numbers(self.w2[expert], _at(self.scale_w2, expert), second)
        return both[::2], both[1::2], down

    def _numbers(self, x: Any, scale: Any, sides: tuple[int, int]) -> Any:
        if self.kind in FORMS:
            return moe_packed.numbers(self.kind, x, scale, *sides)
        return x.double() if scale is None else _dequantised(x, scale)

    def quantised_halves(self, expert: int) -> tuple[Any, Any, Any]:
        """The same of those with gate's rows before up's."""
        assert self.halves is not None
        gate, up = _dequantised(*(x[expert] for x in self.halves)).chunk(2)
        return gate, up, _dequantised(self.w2[expert], self.scale_w2[expert])

    @property
    def requantised(self) -> bool:
        """Whether rows of numbers become codes before each GEMM."""
        return self.kind in ROWS or self.kind in QUANTISED

    def rounded(self, rows: Any) -> Any:
        """float64 rows, after they were quantised as gemmgen quantises them for these weights."""
        if self.kind in ROWS:
            return _by_row(rows, ROWS[self.kind])
        return QUANTISED.get(self.kind, as_it_is)(rows)

    def plain(self, expert: int) -> tuple[Any, Any, Any]:
        """Of the BF16 ones."""
        assert self.wide is not None
        both, down = (x[expert].double() for x in self.wide)
        gate, up = both.chunk(2)
        return gate, up, down


def drawn(
    s: Sizes,
    seed: int,
    wide: bool,
    device: str = "cuda",
    kind: str = BLOCKS,
    halves: bool = False,
) -> Weights:
    """Expert by expert, so that there is never more of them in memory than is kept: with `wide` and `halves` those of `Weights`."""
    g = torch().Generator(device=device).manual_seed(seed)
    bf16 = torch().bfloat16
    first, second = (2 * s.intermediate, s.hidden), (s.hidden, s.intermediate)
    (w1, scale_w1), (w2, scale_w2) = (
        _empty(s.experts, *sides, device, kind) for sides in (first, second)
    )
    kept = [
        torch().empty(s.experts, *x, dtype=bf16, device=device) for x in (first, second) if wide
    ]
    apart = _empty(s.experts, *first, device, BLOCKS) if halves else None
    found = Weights(
        w1=w1,
        scale_w1=scale_w1,
        w2=w2,
        scale_w2=scale_w2,
        sides=(first, second),
        wide=(kept[0], kept[1]) if wide else None,
        halves=apart,
        kind=kind,
    )
    if kind in FORMS:
        _put(moe_packed.pool(kind, SPREAD, g, device), found)
        return found
    for e in range(s.experts):
        both, down = (
            torch().randn(x, generator=g, dtype=bf16, device=device) * SPREAD
            for x in (first, second)
        )
        for to, x in zip(kept, (both, down), strict=False):
            to[e].copy_(x)
        alternating = both.view(2, s.intermediate, s.hidden).transpose(0, 1).reshape(first)
        for q, scale, x in ((w1, scale_w1, alternating), (w2, scale_w2, down)):
            _keep(e, q, scale, _quantised(x, kind))
        if apart is not None:
            _keep(e, *apart, _quantised(both, BLOCKS))
    return found


def _put(pool: moe_packed.Pool, w: Weights) -> None:
    """Packed weights of all experts, and what they stand for if that is kept."""
    for e in range(w.w1.shape[0]):
        for blocks, factors in ((w.w1, w.scale_w1), (w.w2, w.scale_w2)):
            pool.put(blocks[e], _at(factors, e))
        if w.wide is not None:
            gate, up, down = w.quantised(e)
            for to, x in zip(w.wide, (torch().cat((gate, up)), down), strict=True):
                to[e].copy_(x)


def _at(x: Any, expert: int) -> Any:
    return None if x is None else x[expert]


def _keep(expert: int, q: Any, scale: Any, found: tuple[Any, Any]) -> None:
    for to, x in zip((q, scale), found, strict=True):
        if to is not None:
            to[expert].copy_(x)


def _quantised(x: Any, kind: str) -> tuple[Any, Any]:
    """Codes and their scales; BF16 as it is."""
    if kind == WIDE:
        return x, None
    if kind == BLOCKS:
        return ops.quantise_blocks(x)
    return ops.quantise_rows(x, None, dtype=CODES[kind])


def _empty(experts: int, rows: int, columns: int, device: str, kind: str) -> tuple[Any, Any]:
    """For what `_quantised` gives of each expert, or a pool."""
    if kind in FORMS:
        return moe_packed.empty(kind, experts, rows, columns, device)
    if kind == WIDE:
        wide = torch().empty(experts, rows, columns, dtype=torch().bfloat16, device=device)
        return wide, None
    dtype = torch_dtype(quantise.KINDS[CODES.get(kind, "e4m3")])
    codes = torch().empty(experts, rows, columns, dtype=dtype, device=device)
    blocks = (-(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK)) if kind == BLOCKS else (rows,)
    return codes, torch().empty(experts, *blocks, dtype=torch().float32, device=device)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """x: bfloat16 [tokens, hidden]. chosen: int32 [tokens, top], no expert twice of a token. weights: float32, like it."""

    x: Any
    chosen: Any
    weights: Any

    @property
    def touched(self) -> int:
        """Experts that at least one token goes to."""
        return int(self.chosen.unique().numel())


def tokens(s: Sizes, count: int, router: str, seed: int, device: str = "cuda") -> Tokens:
    """router: each expert as likely as another ("even"), or expert n as likely as 1 / n ("zipf")."""
    g = torch().Generator(device=device).manual_seed(seed)
    likely = torch().ones(s.experts, device=device)
    if router == "zipf":
        likely /= torch().arange(1, s.experts + 1, device=device)
    chosen = torch().multinomial(likely.expand(count, -1).contiguous(), s.top, generator=g)
    return Tokens(
        x=torch().randn(count, s.hidden, generator=g, device=device).bfloat16(),
        chosen=chosen.int(),
        weights=torch().rand(count, s.top, generator=g, device=device),
    )


def by_torch(w: Weights, t: Tokens) -> Any:
    """`torch._grouped_mm` between a sort of the copies and an indexed sum, all in BF16."""
    assert w.wide is not None
    w1, w2 = w.wide
    top, flat = t.chosen.shape[1], t.chosen.flatten().long()
    order = flat.argsort(stable=True)
    counts = torch().zeros(w1.shape[0], dtype=torch().long, device=flat.device)
    ends = counts.scatter_add_(0, flat, torch().ones_like(flat)).cumsum(0).int()
    gate, up = torch()._grouped_mm(t.x[order // top], w1.mT, offs=ends).chunk(2, -1)
    y = torch()._grouped_mm(torch().nn.functional.silu(gate) * up, w2.mT, offs=ends)
    y = y * t.weights.flatten()[order].unsqueeze(-1).to(y.dtype)
    return torch().zeros_like(t.x).index_add_(0, order // top, y)


def swiglu(gate: Any, up: Any) -> Any:
    return torch().nn.functional.silu(gate) * up


def exact(
    t: Tokens,
    matrices: Matrices,
    rounded: Callable[[Any], Any],
    gated: Callable[[Any, Any], Any] = swiglu,
) -> Any:
    """float64 [tokens, hidden], one expert after the other. rounded: what x and each hidden row go through. gated: what hidden rows are
    of the first products."""
    rows = rounded(t.x.double())
    y = torch().zeros_like(rows)
    for e in t.chosen.unique().tolist():
        token, nth = (t.chosen == e).nonzero(as_tuple=True)
        gate, up, down = matrices(e)
        h = gated(rows[token] @ gate.mT, rows[token] @ up.mT)
        y.index_add_(0, token, rounded(h) @ down.mT * t.weights[token, nth, None].double())
    return y


def as_fp8(x: Any) -> Any:
    """float64, after it was quantised per row and 128 columns."""
    q, scale = quantise.by_torch(x, "columns", "e4m3", False)
    return q.double() * scale.double().repeat_interleave(SCALE_BLOCK, -1)[..., : x.shape[-1]]


def _as_fp8_of_bf16(x: Any) -> Any:
    """The same, after it was rounded to BF16."""
    return as_fp8(x.bfloat16())


# Of rows that have a scale for each 128 features.
QUANTISED: dict[str, Callable[[Any], Any]] = {
    BLOCKS: as_fp8,
    **dict.fromkeys((MXFP4_BLOCKS, INT4_BLOCKS), _as_fp8_of_bf16),
}


def _by_row(x: Any, dtype: str) -> Any:
    """float64, after it was rounded to BF16 and quantised per row."""
    q, scale = quantise.by_torch(x.bfloat16(), "row", dtype, False)
    return q.double() * scale.double().unsqueeze(-1)


def as_it_is(x: Any) -> Any:
    """Of BF16, whose rounding is within the bounds."""
    return x


def _dequantised(q: Any, scale: Any) -> Any:
    if scale.dim() == 1:
        return q.double() * scale.double().unsqueeze(-1)
    wide = scale.double().repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
    return q.double() * wide[: q.shape[0], : q.shape[1]]
