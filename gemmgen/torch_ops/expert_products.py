"""The GEMMs of experts that train, over rows sorted by expert: of BF16, and of FP8 that is quantised anew from BF16.

An operand is (rows,) or (codes, scales), and so are weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .linear import gemmgen, torch_

ALIGNMENT = (
    128  # of the rows where an expert's begin: a gradient of weights sums whole K blocks of them
)
Operand = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Where copies of tokens are. slots, copies, ends: as `route` has them, of `ALIGNMENT`. gaps: `gaps_of` these. expected: `ops.mixture.expected_of` copies, for the choice of configs.

    Tensors of rows have `ALIGNMENT` more than `copies`, which are nobody's: what has no other place is written there.
    """

    slots: Any
    copies: Any
    ends: Any
    gaps: Any
    expected: tuple[Any, Any]

    @property
    def number(self) -> Any:
        return self.copies.shape[0] + ALIGNMENT

    def of_copies(self, x: Any) -> Any:
        """float32 [number] of x [T, top]: in each copy's row its own, else 0."""
        there = x.float().flatten()[self.copies.clamp(min=0).long()]
        found = torch_.where(self.copies < 0, 0.0, there)
        return torch_.nn.functional.pad(found, (0, ALIGNMENT))

    def to_copies(self, x: Any) -> Any:
        """float32 [T, top] of x [number]: of each copy its row's, 0 of none."""
        return torch_.where(self.slots < 0, 0.0, x[self.slots.clamp(min=0).long()])


def gaps_of(ends: Any, rows: Any) -> Any:
    """int64 [E * (ALIGNMENT - 1)]: the rows between experts, and of what is over rows that are nobody's, behind `rows`."""
    nth = torch_.arange(ALIGNMENT - 1, device=ends.device)
    row = ends.long().unsqueeze(-1) + nth
    inside = row < _rounded(ends).unsqueeze(-1)
    return torch_.where(inside, row, rows + nth).flatten()


def depths_of(ends: Any) -> Any:
    """int32 [E]: rows from where an expert's begin to where the next one's do, its K in a gradient of weights."""
    rounded = _rounded(ends)
    return torch_.diff(rounded, prepend=rounded.new_zeros(1)).int()


def _rounded(ends: Any) -> Any:
    return (ends.long() + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


# ---- operands -------------------------------------------------------------------------------


def copied(x: Any, rows: Rows) -> Any:
    """bfloat16 [number, C]: row t of x [T, C] in each of its copies' rows, 0 between experts; the rest holds anything."""
    found, _ = gemmgen.spread(x, None, rows.slots, rows.number)
    return blank(found, rows)


def blank(x: Any, rows: Rows) -> Any:
    """x, with 0 in the rows between experts, which nobody has written: a gradient of weights adds them up."""
    return x.index_fill_(0, rows.gaps, 0)


def spread(x: Any, rows: Rows, fp8: bool) -> Operand:
    """Row t of x, bfloat16 [T, C], in each of its copies' rows; others hold anything. In FP8 a token is quantised once."""
    if not fp8:
        return (gemmgen.spread(x, None, rows.slots, rows.number)[0],)
    q, scale = gemmgen.quantise_rows(x)
    codes, scales = gemmgen.spread(q, scale, rows.slots, rows.number)
    return codes, scales


def operand(x: Any, fp8: bool) -> Operand:
    """x, bfloat16 [R, C], as a GEMM reads it."""
    return (*gemmgen.quantise_rows(x),) if fp8 else (x,)


def weights_of(w: Any, fp8: bool) -> Operand:
    """w, bfloat16 [E, N, K], as a GEMM reads it."""
    w = w.contiguous()
    return (*gemmgen.quantise_blocks(w),) if fp8 else (w,)


# ---- products -------------------------------------------------------------------------------


def times(a: Operand, w: Operand, rows: Rows) -> Any:
    """bfloat16 [R, N]: a's rows [R, K] @ w[e]^T, w [E, N, K]."""
    return _product(a, w, rows, "nt")


def times_turned(a: Operand, w: Operand, rows: Rows) -> Any:
    """bfloat16 [R, K]: a's rows [R, N] @ w[e], w [E, N, K]. FP8 is turned first: its codes, whose 128 x 128 that share a scale stay those."""
    if len(w) == 1:
        return _product(a, w, rows, "nn")
    codes, scale = w
    return _product(a, (codes.mT.contiguous(), scale.mT), rows, "nt")


def _product(a: Operand, w: Operand, rows: Rows, layout: str) -> Any:
    said = {"group_ends": rows.ends, "alignment": ALIGNMENT}
    said |= dict(zip(("expected_rows", "expected_groups"), rows.expected, strict=True))
    if len(w) == 1:
        return gemmgen.grouped_gemm(*a, *w, layout=layout, **said)
    return gemmgen.fp8_block_grouped_gemm(*a, *w, scale_a_layout="mn", **said)


def weight_gradient(dy: Any, x: Any, depths: Any, fp8: bool) -> Any:
    """bfloat16 [E, N, K]: of each expert dy^T @ x over its `depths` rows. dy: bfloat16 [R, N], x: [R, K]; 0 between experts, at least in
    one of them, and finite in the other. In FP8 both are quantised anew, by column and 128 rows."""
    if not fp8:
        return gemmgen.k_grouped_gemm(dy, x, depths, layout="tn", out_dtype="bf16")
    operands = (*gemmgen.quantise_rows(dy.mT), *gemmgen.quantise_rows(x.mT))
    said = {"packing": "columns", "scale_layout": "mn", "out_dtype": "bf16"}
    return gemmgen.fp8_k_grouped_gemm(*operands, depths, **said)
