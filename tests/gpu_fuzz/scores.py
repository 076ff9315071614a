"""An indexer's scores: queries, keys in a row or in pages, windows of keys that queries see, and what must come out.

What is seen nowhere is NaN: queries that see no key and their weights, keys that no query sees, their scales and pages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gemmgen.ops import paged_cache

from .cases import Case, up
from .drawn import Call, Drawn
from .images import NAN_BYTE, lose
from .kind import Kind

EDGE = 64  # keys: tiles have so many, or several times that
STEP = 16  # bytes of a cache's key
NO_PAGES = (-1, -64, -(2**31), 2**31 - 1)
SPARE = (0, 0, 1, 5)  # pages, or entries of a table, that nobody needs
FAR = 2**31 - 1
NAN = float("nan")


def scores(d: Drawn, kind: Kind, case: Case) -> Call:
    return (_in_pages if kind.page else _in_a_row)(d, kind, case)


def _in_a_row(d: Drawn, kind: Kind, case: Case) -> Call:
    q, weights = _queries(d, kind, (case.m,), case.k)
    keys = d.change("b", d.operand((case.n, case.k), kind.b_dtype, False))
    scale = d.change("scale_b", d.powers((case.n,)))
    first, end = windows(d, case.m, case.n)
    columns = torch.arange(case.n, device=d.device)
    seen = (columns >= first[:, None]) & (columns < end[:, None])
    exact = _exact(q, keys, scale, weights, seen)
    q, weights = _placed(d, kind, q, weights, seen.any(-1))
    kv = d.embed(keys, getattr(torch, kind.b_dtype))
    lose(kv, ~seen.any(0))
    scale = d.dense(scale.masked_fill(~seen.any(0), NAN), torch.float32)
    bounds = tuple(d.dense(x, torch.int32) for x in (first, end))
    call = Call(positional=(q, kv, scale, weights, *bounds), named={}, exact=exact)
    return _from_windows(d, call, first, seen) if kind.compact else call


def _from_windows(d: Drawn, call: Call, first: Any, seen: Any) -> Call:
    """Of D's columns as many as there are keys, less or more, each row from its window's first on."""
    keys = seen.shape[1]
    columns = d.rng.choice((keys, keys, keys // 2 + 1, keys + 13, 1))
    at = first[:, None] + torch.arange(columns, device=d.device)
    there, at = at < keys, at.clamp(max=keys - 1)
    return replace(
        call,
        named={"columns": columns},
        exact=call.exact.gather(1, at),
        written=there & seen.gather(1, at),
    )


def _in_pages(d: Drawn, kind: Kind, case: Case) -> Call:
    longest = torch.tensor(case.sizes, dtype=torch.int64, device=d.device).clamp(max=case.n)
    used = _whole(longest, kind.page)
    count = max(1, int(used.sum())) + d.rng.choice(SPARE)
    table = pages(d, used, count, int(_whole(case.n, kind.page)) + d.rng.choice(SPARE))
    q, weights = _queries(d, kind, (len(longest), case.m), up(case.k, STEP))
    keys = d.change("b", d.operand((count, kind.page, up(case.k, STEP)), kind.b_dtype, False))
    scale = d.change("scale_b", d.powers((count, kind.page)))
    lengths = contexts(d, longest, case.m)
    seen = torch.arange(case.n, device=d.device) < lengths[..., None]
    exact = torch.zeros(*seen.shape, dtype=torch.float64, device=d.device)
    for s, numbers in enumerate(table):
        key, of_key = (_of_pages(x, numbers, case.n) for x in (keys, scale))
        exact[s] = _exact(q[s], key, of_key, weights[s], seen[s])
    q, weights = _placed(d, kind, q, weights, seen.any(-1))
    kv, scale = _cached(d, kind, keys, scale, _seen_of_pages(table, longest, scale.shape))
    given = q, kv, scale, weights, d.dense(lengths, torch.int32), d.embed(table, torch.int32)
    return Call(positional=(*given, case.n), named={}, exact=exact)


def integers(d: Drawn, shape: tuple[int, ...], low: int, high: int) -> Any:
    """int64, from `low` to `high`."""
    return torch.randint(low, high + 1, shape, generator=d.source, device=d.device)


def windows(d: Drawn, queries: int, keys: int) -> tuple[Any, Any]:
    """int64 [queries]: where windows begin and end. Any, empty, that end before they begin, of one key, at edges of tiles and beside them,
    of all keys, up to each key in turn, past the last key, and behind it: each by a way of its own, or all by one."""

    def drawn(low: int, high: int) -> Any:
        return integers(d, (queries,), low, high)

    def edge() -> Any:
        return (EDGE * drawn(0, keys // EDGE + 1) + drawn(-1, 1)).clamp(min=0)

    one, other, none, past = drawn(0, keys), drawn(0, keys), drawn(0, 0), keys + drawn(0, 300)
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    turn = 1 + torch.arange(queries, device=d.device) * keys // max(1, queries)
    ways = (
        (low, high), (low, low), (high, low - 1), (low, low + 1), (edge(), edge()),
        (none, none + keys), (none, turn), (low, past), (low, none + FAR), (past, past + 1),
    )  # fmt: skip
    way = drawn(0, len(ways) - 1)
    if d.rng.random() < 0.4:
        way = way[:1].expand(queries)
    first, end = (torch.stack(x).gather(0, way[None])[0] for x in zip(*ways, strict=True))
    return first, end


def contexts(d: Drawn, longest: Any, queries: int) -> Any:
    """int64 [B, queries]: how many keys each query of a sequence sees; the last one as many as any may."""
    back = torch.arange(queries, device=d.device).flip(0)
    most = longest[:, None].expand(-1, queries)
    some = torch.rand(most.shape, generator=d.source, device=d.device) * (most + 1)
    ways = torch.stack([(most - back).clamp(min=0), most, some.long(), most * 0])
    way = integers(d, tuple(most.shape), 0, len(ways) - 1)
    way[:, -1] = 0
    return ways.gather(0, way[None])[0]


def pages(d: Drawn, used: Any, count: int, entries: int) -> Any:
    """int64 [B, entries]: numbers of pages, of `count`: in no order, some again, and some that are none, more of them behind the first
    `used`, where no query sees a key."""
    at, used = torch.arange(entries, device=d.device), used[:, None]
    order = torch.randperm(count, generator=d.source, device=d.device)
    table = order[(used.cumsum(0) - used + at) % count]
    shape = tuple(table.shape)
    again = integers(d, shape, 0, count - 1)
    table = torch.where(integers(d, shape, 0, 4) == 0, again, table)
    junk = torch.tensor([*NO_PAGES, count, count + 17], device=d.device)
    none = junk[integers(d, shape, 0, len(junk) - 1)]
    eighths = torch.where(at < used, 1, 4)
    return torch.where(integers(d, shape, 0, 7) < eighths, none, table)


def _whole(keys: Any, page: int) -> Any:
    """Pages of so many keys."""
    return (keys + page - 1) // page


def _seen_of_pages(table: Any, longest: Any, shape: tuple[int, int]) -> Any:
    """bool [pages, keys of one]: those that some sequence sees."""
    count, page = shape
    at = torch.arange(table.shape[1] * page, device=table.device).view(-1, page)
    seen = (at < longest[:, None, None]).long()
    there = (table >= 0) & (table < count)
    found = torch.zeros(count, page, dtype=torch.int64, device=table.device)
    return found.index_add_(0, table[there], seen[there]) > 0


def _of_pages(x: Any, numbers: Any, keys: int) -> Any:
    """What `x` [pages, keys of one, ..] has of the first `keys` in the pages of these numbers, one after the other; 0 of what is no page's."""
    there = (numbers >= 0) & (numbers < len(x))
    mine = x[torch.where(there, numbers, 0)]
    mine[~there] = 0
    return mine.flatten(0, 1)[:keys]


def _queries(d: Drawn, kind: Kind, lead: tuple[int, ...], depth: int) -> tuple[Any, Any]:
    """Queries [.., heads, depth], and their heads' weights."""
    q = d.change("a", d.operand((*lead, kind.scored, depth), kind.a, False))
    shape = (*lead, kind.scored)
    signs = 2 * d.integers(shape, 0, 1) - 1
    weights = d.operand(shape, "float32", False) if d.normal else signs * d.powers(shape)
    return q, weights


def _placed(d: Drawn, kind: Kind, q: Any, weights: Any, seeing: Any) -> tuple[Any, Any]:
    """Both as the function gets them."""
    rows = d.embed(q.flatten(-3, -2), getattr(torch, kind.a))
    lose(rows, ~seeing.repeat_interleave(kind.scored, -1))
    weights = d.dense(weights.masked_fill(~seeing[..., None], NAN), torch.float32)
    return rows.unflatten(-2, (q.shape[-3], kind.scored)), weights


def _cached(d: Drawn, kind: Kind, keys: Any, scale: Any, seen: Any) -> tuple[Any, Any]:
    """Keys and scales as the function gets them: views of one cache, or each by itself; pages are padded or not."""
    scale, dtype = scale.masked_fill(~seen, NAN), getattr(torch, kind.b_dtype)
    way = d.rng.choice(((kind.page, -1), (kind.page, 1, -1), ()))
    if not way:
        kv = d.embed(keys, dtype)
        lose(kv, ~seen)
        return kv, d.embed(scale, torch.float32)
    codes = keys.to(dtype).view(torch.uint8).masked_fill(~seen[..., None], NAN_BYTE)
    cache = d.embed(torch.cat([codes.flatten(1), scale.view(torch.uint8)], 1), torch.uint8)
    return paged_cache(cache.unflatten(1, way))


def _exact(q: Any, keys: Any, scale: Any, weights: Any, seen: Any) -> Any:
    """float64 [queries, keys]."""
    products = q.double().flatten(0, 1) @ keys.double().mT
    summed = weights.double()[:, None] @ products.relu_().view(*q.shape[:2], len(keys))
    return (summed[:, 0] * scale.double()).masked_fill(~seen, -torch.inf)
