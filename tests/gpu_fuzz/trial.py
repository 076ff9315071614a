"""A case as tensors: arguments for the function, and the exact result, computed by torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from gemmgen.config import Config
from gemmgen.ir.heads import Heads
from gemmgen.ir.squares import PIECE

from .cases import Case, up
from .coded import packed
from .drawn import Call, Drawn
from .expected import BLOCK, ends_of, expected, group_spans, owned_rows, row_groups, written_rows
from .images import Output, lose, output
from .kind import Kind, dtype_name
from .kinds import KINDS
from .scores import scores


@dataclass(frozen=True, kw_only=True)
class Trial:
    """positional, named: what the function gets besides `out`. held: parents of all it reads. launches:
    whether a call launches anything."""

    case: Case
    kind: Kind
    positional: tuple[Any, ...]
    named: dict[str, Any]
    out: Output
    held: tuple[Any, ...]
    launches: bool

    def call(self, function: Any, out: Any) -> Any:
        more = {"c": out} if self.kind.accumulate and "wgrad" in self.kind.function else {}
        more |= {"c": out} if self.kind.accumulate and self.kind.grouping in ("k", "summed") else {}
        if self.kind.squares:  # D's last column is theirs
            more["squares"], out = out[..., -1], out[..., :-1]
        return function(*self.positional, out, **self.named, **more)


def build(
    case: Case,
    device: str,
    *,
    normal: bool = False,
    config: Config | None = None,
    change: Callable[[str, Any], Any] = lambda name, x: x,
) -> Trial:
    """The tensors of `case`. normal: random values instead of ones whose sums are exact; `wants` then hold
    what a launch leaves untouched, and nothing else. change: of "a", "b", "scale_a", "scale_b" [rows,
    columns], before they are stored."""
    kind = KINDS[case.kind]
    source = torch.Generator(device).manual_seed(case.seed * 16 + case.turn)
    d = Drawn(
        case=case, device=device, rng=Random(case.seed), source=source, normal=normal, change=change
    )
    sizes = case.sizes if not case.turn % 2 else case.sizes[::-1]
    n = up(case.n, PIECE) + 1 if kind.squares else up(case.n, kind.heads.side)
    case = replace(case, sizes=sizes, n=n)
    call = (scores if kind.scored else _product)(d, kind, case)
    named = call.named | dict(kind.given) | {"config": config or kind.config}
    named |= _options(kind, named)
    out = _output(d, kind, call.exact, call.written)
    return Trial(
        case=case,
        kind=kind,
        positional=call.positional,
        named=named,
        out=out,
        held=tuple(d.held),
        launches=case.m > 0 and (kind.grouping == "none" or len(sizes) > 0),
    )


def _product(d: Drawn, kind: Kind, case: Case) -> Call:
    sizes, n = case.sizes, case.n
    rows = (len(sizes),) if kind.grouping in ("batched", "masked", "summed") else ()
    columns = (len(sizes),) if kind.grouping not in ("none", "k") else ()
    wide = kind.out == "int32"
    a = d.change("a", d.operand((*rows, case.m, case.k), kind.a, wide))
    placed, taken = (a, None) if not kind.top else _taken(kind, case, a, d.source)
    b = d.change("b", d.operand((*columns, n * (1 + kind.squares), case.k), kind.b_dtype, wide))
    if kind.squares:
        b[..., 2 * n - 2 :, :] = 0
    scales, named = _scales(d, kind, a, b)
    stored = b
    if kind.weights:
        b, stored = packed(kind, b, case.seed * 16 + case.turn, normal=d.normal)
        named |= {"weights": kind.weights, "columns": case.n}
    operands = _placed(d, kind, case, (placed, stored))
    positional = _positional(kind, operands, scales)
    positional, tables = _tables(d, kind, case, positional)
    if taken is not None:
        tables |= {"rows": d.dense(taken, torch.int32)}
    named |= tables
    return Call(
        positional=positional,
        named=named,
        exact=expected(kind, case, (a, b), scales, named),
        written=written_rows(kind, case, d.device),
    )


def _scales(d: Drawn, kind: Kind, a: Any, b: Any) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Scales of A and B as the function gets them (None, None if there are none, or if they are named)."""
    *rows, m, k = a.shape
    *columns, n, _ = b.shape
    blocks = -(-k // BLOCK)
    if kind.scales in ("block", "a", "rows"):
        sa = d.embed(d.change("scale_a", d.powers((*rows, blocks, m))), torch.float32).mT
        if kind.scales == "a":
            return (sa, None), {}
        many = (blocks, n) if kind.scales == "rows" else (-(-n // BLOCK), blocks)
        sb = d.embed(d.change("scale_b", d.powers((*columns, *many))), torch.float32)
        return (sa, sb.mT if kind.scales == "rows" else sb), {}
    match kind.scales:
        case "number":
            return (None, None), {"scale_a": 0.5, "scale_b": 4.0}
        case "tensor":
            one = [d.dense(d.powers((1,)), torch.float32) for _ in "ab"]
            return (None, None), {"scale_a": one[0], "scale_b": one[1]}
        case "vector":
            sides = ((*rows, m), (*columns, n))
            both = [d.dense(d.powers(s), torch.float32) for s in sides]
            return (None, None), {"scale_a": both[0], "scale_b": both[1]}
    return (None, None), {}


def _placed(d: Drawn, kind: Kind, case: Case, both: tuple[Any, Any]) -> tuple[Any, Any]:
    """A and B as the function gets them; rows and columns that belong to no group are NaN."""
    found = []
    for x, dtype, turned in zip(both, (kind.a, kind.b_dtype), kind.turned, strict=True):
        dtype = getattr(torch, dtype)
        if kind.packing == "flat":
            ends = ends_of(case.sizes)
            parts = [x[:, i:j].reshape(-1) for i, j in zip([0, *ends], ends, strict=False)]
            rest = x[:, ends[-1] :].reshape(-1) * float("nan")
            found.append(d.dense(torch.cat([*parts, rest]), dtype))
            continue
        if x.dtype == torch.uint8:
            found.append(d.dense(x, torch.uint8))
            continue
        view = d.embed(x, dtype, turned)
        found.append(view)
        if kind.grouping == "k":
            (view[sum(case.sizes) :] if turned else view[:, sum(case.sizes) :]).view(
                torch.uint8
            ).fill_(0xFF)
    if kind.grouping in ("masked", "rows", "ends") and not kind.top:
        lose(found[0], ~owned_rows(kind, case, both[0].device))
    return found[0], found[1]


def _taken(kind: Kind, case: Case, a: Any, source: Any) -> tuple[Any, Any]:
    """Rows from which A's come, in another order, and int32 [M], of which copy each is: rows of no group of none, or of one that is
    none. What no row is of is NaN."""
    owned = owned_rows(kind, case, a.device)
    order = torch.randperm(case.m, generator=source, device=a.device)
    spare = 1 + case.seed % 5
    placed = a.new_full((case.m + spare, a.shape[1]), float("nan"))
    placed[order[owned]] = a[owned]
    nth = torch.randint(kind.top, (case.m,), generator=source, device=a.device)
    nobody = torch.where(order % 2 == 0, -1, (case.m + spare) * kind.top + order)
    return placed, torch.where(owned, order * kind.top + nth, nobody).int()


def _positional(kind: Kind, operands: tuple[Any, Any], scales: tuple[Any, Any]) -> tuple[Any, ...]:
    (a, b), (sa, sb) = operands, scales
    if sa is None:
        return a, b
    return (a, sa, b) if sb is None else (a, sa, b, sb)


def _tables(
    d: Drawn, kind: Kind, case: Case, positional: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What says which rows are whose: the last positional argument, or a named one."""

    def table(values: list[int]) -> Any:
        made = torch.tensor(values, dtype=torch.int32, device=d.device)
        return d.dense(made, torch.int32)

    match kind.grouping:
        case "masked" | "k":
            return (*positional, table(list(case.sizes))), {}
        case "ends":
            spans = group_spans(case)
            return positional, {"group_ends": table([end for _, end in spans])}
        case "rows":
            return positional, {"row_groups": table(row_groups(case))}
    return positional, {}


def _options(kind: Kind, named: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {} if kind.squares else {"out_dtype": dtype_name(kind.out)}
    if kind.scales in ("block", "a"):
        options["scale_a_layout"] = "mn"
    if kind.scales == "rows":
        options["scale_layout"] = "mn"
    if kind.scales == "rows" and kind.grouping == "k":
        options["packing"] = kind.packing
    if kind.layout != "nt" or kind.function == "k_grouped_gemm":
        options["layout"] = kind.layout
    if kind.accumulate and kind.function == "gemm":
        options["accumulate"] = True
    return options


def _output(d: Drawn, kind: Kind, exact: Any, written: Any) -> Output:
    dtype = getattr(torch, kind.out)
    if kind.heads.mid:
        exact, written = _with_gaps(kind.heads, exact)
    start = d.integers(tuple(exact.shape), -8, 8) if kind.accumulate else None

    def fill(begin: Any, want: Any) -> None:
        value = exact
        if start is not None:
            begin.copy_(start.to(dtype))
            value = exact + start
        after = (value + 0.0).to(torch.int32 if dtype == torch.int32 else torch.float32).to(dtype)
        if written is not None:
            after = torch.where(written, after, want)
        if not d.normal:
            want.copy_(after)

    return output(d.rng, tuple(exact.shape), dtype, d.device, fill)


def _with_gaps(heads: Heads, exact: Any) -> tuple[Any, Any]:
    """D with its gaps, and which of its columns a launch writes."""
    n = exact.shape[-1]
    d = exact.new_zeros(*exact.shape[:-1], heads.columns(n))
    written = torch.zeros(heads.columns(n), dtype=torch.bool, device=exact.device)
    for columns in heads.stored(n):
        written[columns.start : columns.stop] = True
    d[..., written] = exact
    return d, written
