"""Which rows are whose, and the exact result of a case, computed by torch in float64."""

from __future__ import annotations

from typing import Any

import torch

from .cases import Case
from .kind import Kind

BLOCK = 128


def group_spans(case: Case) -> list[tuple[int, int]]:
    """Rows first..end-1 of each group, which begin at multiples of 128."""
    found, end = [], 0
    for size in case.sizes:
        first = -(-end // BLOCK) * BLOCK
        end = first + size
        found.append((first, end))
    return found


def row_groups(case: Case) -> list[int]:
    table = [-1] * case.m
    for group, (first, end) in enumerate(group_spans(case)):
        table[first:end] = [group] * (end - first)
    return table


def ends_of(sizes: tuple[int, ...]) -> list[int]:
    found = [0] * 0
    for size in sizes:
        found.append((found[-1] if found else 0) + size)
    return found or [0]


def owned_rows(kind: Kind, case: Case, device: Any) -> Any:
    """bool [G, M] or [M]: the rows of A that are some group's."""
    if kind.grouping == "masked":
        sizes = torch.tensor(case.sizes, dtype=torch.int64, device=device)
        return torch.arange(case.m, device=device) < sizes[:, None]
    return torch.tensor([g >= 0 for g in row_groups(case)], dtype=torch.bool, device=device)


def written_rows(kind: Kind, case: Case, device: Any) -> Any:
    """The rows of D that a launch writes, [.., 1]; None: all."""
    if kind.grouping not in ("masked", "ends"):
        return None
    return owned_rows(kind, case, device).unsqueeze(-1)


def expected(
    kind: Kind, case: Case, both: tuple[Any, Any], scales: tuple[Any, Any], named: dict[str, Any]
) -> Any:
    """D in float64, without what it held before."""
    a, b = (x.to(torch.float64) for x in both)
    sa, sb = scales
    if sa is not None and kind.grouping == "none":
        return _by_blocks(kind, (a, b), (sa, sb))
    if sa is not None:
        a = a * spread(sa, case.k)
    if sb is not None:
        b = b * (spread(sb, case.k) if kind.scales == "rows" else _blocks(sb, case.n, case.k))
    whole = [named.get(name) for name in ("scale_a", "scale_b")]
    match kind.grouping:
        case "none" | "batched" if kind.squares:
            d = a @ (b[..., 0::2, :] + b[..., 1::2, :]).mT
            d[..., -1] = a.square().sum(-1)
        case "none" | "batched" | "masked":
            d = a @ b.mT
        case "summed":
            d = (a @ b.mT).sum(0)
        case "rows" | "ends":
            d = a.new_zeros(case.m, case.n)
            for group, (first, end) in enumerate(group_spans(case)):
                d[first:end] = a[first:end] @ b[group].mT
        case _:
            ends = ends_of(case.sizes)
            spans = zip([0, *ends], ends, strict=False)
            d = torch.stack([a[:, i:j] @ b[:, i:j].mT for i, j in spans])
    return _times(kind, case, d, whole)


def _by_blocks(kind: Kind, both: tuple[Any, Any], scales: tuple[Any, Any]) -> Any:
    """Scaled once they are summed, as kernels do it: NaN and Inf in scales come out as there."""
    a, b = both
    sa, sb = (s if s is None else s.to(torch.float64) for s in scales)
    if sb is None:
        sb = torch.ones_like(sa[:1]).expand(b.shape[0], -1)
    if kind.scales == "block":
        sb = sb.repeat_interleave(BLOCK, -2)[: b.shape[0]]
    total = a.new_zeros(a.shape[0], b.shape[0])
    for i, k in enumerate(range(0, a.shape[1], BLOCK)):
        part = a[:, k : k + BLOCK] @ b[:, k : k + BLOCK].mT
        total += part * (sa[:, i, None] * sb[None, :, i])
    return total


def _times(kind: Kind, case: Case, d: Any, whole: list[Any]) -> Any:
    """d times the scales of its rows and columns."""
    sa, sb = (x.to(torch.float64) if isinstance(x, torch.Tensor) else x for x in whole)
    if sa is None:
        return d
    if kind.scales != "vector":
        return d * sa * sb
    d = d * sa.unsqueeze(-1)
    if kind.grouping in ("none", "batched", "masked"):
        return d * sb.unsqueeze(-2)
    for group, (first, end) in enumerate(group_spans(case)):
        d[first:end] *= sb[group]
    return d


def spread(scale: Any, k: int) -> Any:
    """float64 [..., rows, K] of [..., rows, ceil(K/128)]."""
    return scale.to(torch.float64).repeat_interleave(BLOCK, -1)[..., :k]


def _blocks(scale: Any, n: int, k: int) -> Any:
    return spread(scale, k).repeat_interleave(BLOCK, -2)[..., :n, :]
