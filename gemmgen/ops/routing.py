"""Where copies of tokens lie by expert: from the ids that a router chose to what grouped GEMMs read.

A CUDA tensor is routed by one launch of a generated kernel (`gemmgen.routing`), of one cluster, on torch's current stream; all others,
and what a compiler of torch traces, by the torch code below. Results are integers, and the same. The host never waits for the device,
and shapes do not depend on values, so a CUDA graph may hold it. Raises ArgumentError; on the GPU also CompileError, and RuntimeUnavailable
without NVRTC or on a GPU that is not Hopper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..routing import MOST_EXPERTS, Routing, source
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, require_tensor, torch
from .casting import in_rows
from .quantise import generated
from .tensors import check_matrix, check_number

loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Rows of copies, sorted by expert. Copy t * k + j is of token t, for its choice j.

    rows: of all, a number that no choice exceeds; the host does not wait to know how many have a copy. slots: int32 [T, k], the row of each
    copy, or -1. copies: int32 [rows], the copy of each row, or -1. ends: int32 [local], the row after each expert's last, as `group_ends` of
    `gemmgen.ops.fp8_block_grouped_gemm`. All contiguous.
    """

    rows: int
    slots: Any
    copies: Any
    ends: Any


def route(
    chosen: Any,
    experts: int,
    *,
    alignment: int = 128,
    first: int = 0,
    local: int | None = None,
) -> Routes:
    """The rows of copies of tokens, one for each of its choices.

    chosen: int32 or int64 [T, k], ids of experts, 0 to experts - 1. Read in place if a token's are contiguous; else from a contiguous copy.
    first, local: experts first to first + local - 1, at most 512 of them, have rows here (None: all from `first` on). What chose another one,
    or an id that is none, has no row: slot -1.

    Each expert's rows begin at the first multiple of `alignment` from the end of the one before; its copies keep their order. rows is n +
    min(local, n) * (alignment - 1) for n = T * k, rounded down to a multiple of `alignment`; less than 2**31. It is always enough: no more
    than min(local, n) experts have a copy, each of them adds less than `alignment` rows to its copies, and what all
    of them take is a multiple of `alignment`.
    """
    local = check(chosen, experts, alignment, first, local)
    rows = rows_of(chosen.shape[0] * chosen.shape[1], local, alignment)
    check_rows(chosen, rows)
    return _routed(chosen, rows, alignment, first, local)


def check(chosen: Any, experts: int, alignment: int, first: int, local: int | None) -> int:
    """Of the arguments of `route`, `local` as a number. Raises ArgumentError."""
    require_tensor("chosen", chosen)
    if chosen.dtype not in (torch().int32, torch().int64):
        allowed = f"must be {torch().int32} or {torch().int64}"
        raise ArgumentError("chosen dtype", chosen.dtype, allowed)
    check_matrix("chosen", chosen, "tokens, top")
    check_number("experts", experts, 1, INT_LIMIT - 1)
    check_number("alignment", alignment, 1, INT_LIMIT - 1)
    check_number("first", first, 0, experts - 1)
    if local is not None:
        check_number("local", local, 1, min(experts - first, MOST_EXPERTS))
        return local
    if experts - first > MOST_EXPERTS:
        allowed = f"must be at most {first + MOST_EXPERTS}, or local says how many have rows here"
        raise ArgumentError("experts", experts, allowed)
    return experts - first


def rows_of(copies: Any, local: int, alignment: int) -> Any:
    """`Routes.rows`, of a number or torch.SymInt."""
    of_them = min(local, copies) if type(copies) is int else torch().sym_min(local, copies)
    most = copies + of_them * (alignment - 1)
    return most // alignment * alignment


def check_rows(chosen: Any, rows: int) -> None:
    """Raise ArgumentError where rows are more than are counted in 32 bits."""
    if rows >= INT_LIMIT:
        allowed = f"must need less than {INT_LIMIT} rows"
        raise ArgumentError("chosen shape", tuple(chosen.shape), allowed)


def _routed(chosen: Any, rows: int, alignment: int, first: int, local: int) -> Routes:
    way = launched if generated(chosen) else by_torch
    return way(chosen, rows, alignment, first, local)


def launched(chosen: Any, rows: int, alignment: int, first: int, local: int) -> Routes:
    """By one launch on torch's current stream, of checked arguments."""
    (tokens, top), device = chosen.shape, chosen.device
    n = tokens * top
    empty = partial(torch().empty, dtype=torch().int32, device=device)
    routes = Routes(rows=rows, slots=empty(chosen.shape), copies=empty(rows), ends=empty(local))
    if not n:
        routes.ends.zero_()
        return routes
    chosen, pitch = in_rows(chosen)
    routing = Routing(bits=8 * chosen.element_size())
    sizes = {"n": n, "top": top, "pitch": pitch, "first": first, "local": local}
    sizes |= {"alignment": alignment, "rows": rows}
    at = {"chosen": chosen.data_ptr(), "slots": routes.slots.data_ptr()}
    at |= {"copies": routes.copies.data_ptr(), "ends": routes.ends.data_ptr()}
    values = {**at, **sizes}
    loaded(routing, device.index).launch(values, routing.ctas, current_stream(device))
    return routes


def by_torch(chosen: Any, rows: int, alignment: int, first: int, local: int) -> Routes:
    """What `launched` returns, by torch's operators, wherever `chosen` is: the reference."""
    flat = chosen.reshape(-1).long()
    n = chosen.shape[0] * chosen.shape[1]
    here = (flat >= first) & (flat < first + local)
    of = torch().where(here, flat - first, local)  # the last: of none
    counts = flat.new_zeros(local + 1).scatter_add_(0, of, torch().ones_like(of))
    rooms = (counts[:local] + alignment - 1) // alignment * alignment
    starts = torch().nn.functional.pad(rooms.cumsum(0), (1, 0))
    order = of.argsort(stable=True)
    sorted_ = of[order]
    nth = torch().arange(n, device=flat.device) - (counts.cumsum(0) - counts)[sorted_]
    row = torch().where(sorted_ < local, starts[sorted_] + nth, -1)
    slots = torch().empty_like(flat).scatter_(0, order, row)
    copies = flat.new_full((rows + 1,), -1)  # behind them a place for copies without a row
    copies.scatter_(0, torch().where(row < 0, rows, row), order)
    return Routes(
        rows=rows,
        slots=slots.int().view(chosen.shape),
        copies=copies[:rows].int(),
        ends=(starts[:local] + counts[:local]).int(),
    )
