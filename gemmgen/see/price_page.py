"""What the cost model says of a config beside another: term by term, and what bounds each."""

from __future__ import annotations

from ..cost_terms import Terms
from .glance_page import RESOURCES
from .page import Facts, Page, Table, microseconds
from .verdict import TERMS

Named = tuple[str, Terms]
BLIND = (
    "Nothing is timed; what no term knows, as stages, unroll and the order of tiles, has no price."
)


def page(one: Named, other: Named | None, floors: tuple[float, float]) -> Page:
    """With the names that the columns have. floors: seconds at the peaks of the tensor cores and of HBM."""
    named = (one, other) if other else (one,)
    rows = [(TERMS[term], *_cells([t.added[term] for _, t in named])) for term in one[1].added]
    rows.append(("in all", *_cells([t.seconds for _, t in named])))
    difference = (f"{one[0]} - {other[0]}",) if other else ()
    bounds = "; ".join(f"{name}: bound by {RESOURCES[t.full.bound][1]}" for name, t in named)
    table = Table(
        title="Modelled time, us",
        columns=("term", *(name for name, _ in named), *difference),
        rows=tuple(rows),
        marked=len(rows) - 1,
        note=f"{bounds}. {BLIND}",
    )
    return Page(title="Price", blocks=(table, _floors(one[1].seconds, floors)))


def _floors(seconds: float, floors: tuple[float, float]) -> Facts:
    tensor, hbm = floors
    times = f"{seconds / max(floors):.2f} times the higher floor"
    items = (
        ("tensor cores", f"{microseconds(tensor)} us at their peak"),
        ("HBM", f"{microseconds(hbm)} us at its peak"),
        ("modelled", times),
    )
    return Facts(title="Floors", items=items)


def _cells(seconds: list[float]) -> tuple[str, ...]:
    cells = tuple(map(microseconds, seconds))
    if len(seconds) == 1:
        return cells
    return (*cells, f"{(seconds[0] - seconds[1]) * 1e6:+.2f}")


def beside(seconds: float, other: float) -> str:
    """Of how much more or less the first is, in words."""
    if f"{seconds:.4g}" == f"{other:.4g}":
        return "as the choice"
    return f"{seconds / other - 1:+.1%} beside the choice's {microseconds(other)} us"
