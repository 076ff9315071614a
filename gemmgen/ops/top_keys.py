"""Where the largest numbers of each row are: one launch on CUDA, or torch's operators, on any device."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import FLOATS, S32
from ..largest import MOST as MOST
from ..largest import VECTOR_BYTES, Largest, source
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, dtype_of, torch
from .casting import row_pitch
from .quantise import generated
from .tensors import check_matrix, check_number, check_shape, check_together

loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


def top_k(x: Any, count: int, *, first: Any = None, end: Any = None) -> Any:
    """int32 [S, count]: of each row i the columns j, first[i] <= j < end[i], of the `count` largest x[i, j], in rising order; -1 behind them where
    there are fewer.

    x: float32, bfloat16 or float16 [S, N]. count: 1 to 4096. first, end: int32 [S], None: 0 and N; an end may lie behind N or before its first, and below 0 both are as 0.
    What lies outside does not count. Of equal numbers the first are taken; NaN is larger than all others. So the result depends on a row's numbers alone, and has the same bits each time.

    The host never waits, and a CUDA graph may hold it, or a compiler of torch trace it. On CUDA one launch of a generated kernel on torch's current stream, after a copy of an x whose rows do not begin at multiples of
    16 bytes; all else, and what a compiler traces, takes torch's operators. `torch.ops.gemmgen.top_k` is one launch there too. Raises ArgumentError; on a GPU CompileError, and RuntimeUnavailable
    without NVRTC or if it is not Hopper.
    """
    check(x, count, first, end)
    return found(x, count, first, end)


def found(x: Any, count: int, first: Any, end: Any) -> Any:
    """`top_k` of arguments that are checked."""
    return (launched if generated(x) else by_torch)(x, count, first, end)


def launched(
    x: Any,
    count: int,
    first: Any,
    end: Any,
    out: Any = None,
    *,
    compact: bool = False,
    keys: int | None = None,
) -> Any:
    """By one launch, into `out` if that is given. compact: rows of x begin with their windows, which end before `keys`."""
    x, pitch = _in_rows(x)
    rows, columns = x.shape
    if out is None:
        out = torch().empty((rows, count), dtype=torch().int32, device=x.device)
    if not rows:
        return out
    kernel = Largest(x=dtype_of("x", x, FLOATS))
    tables = {
        name: None if t is None else t.contiguous() for name, t in (("first", first), ("end", end))
    }
    values = {name: 0 if t is None else t.data_ptr() for name, t in tables.items()}
    values |= {"x": x.data_ptr(), "found": out.data_ptr(), "pitch": pitch, "rows": rows}
    values |= {"columns": columns, "keys": columns if keys is None else keys, "count": count}
    values |= {"compact": int(compact)}
    stream = current_stream(x.device)
    loaded(kernel, x.device.index).launch(values, kernel.tiles(rows), stream)
    return out


def _in_rows(x: Any) -> tuple[Any, int]:
    """x, or a copy, with rows at multiples of 16 bytes, and the elements from one to the next."""
    (rows, columns), size = x.shape, x.element_size()
    step = VECTOR_BYTES // size
    whole_row = -(-columns // step) * step
    alone = rows == 1 and (columns <= 1 or x.stride(1) == 1)
    pitch = whole_row if alone else row_pitch(x)
    if pitch is not None and x.data_ptr() % VECTOR_BYTES == 0 == pitch * size % VECTOR_BYTES:
        return x, pitch
    whole = x.new_empty((rows, whole_row))
    return whole[:, :columns].copy_(x), whole_row


def by_torch(
    x: Any,
    count: int,
    first: Any,
    end: Any,
    *,
    compact: bool = False,
    keys: int | None = None,
) -> Any:
    """What `launched` returns, by torch's operators, wherever x is."""
    rows, columns = x.shape
    keys = columns if keys is None else keys
    start = x.new_zeros(rows, dtype=torch().int64) if first is None else first.long().clamp(min=0)
    stop = torch().full_like(start, keys) if end is None else end.long().clamp(0, keys)
    x = torch().where(x.isnan(), torch().nan, x)  # of whatever sign and bits
    place = torch().arange(columns, device=x.device)
    column = place + start[:, None] if compact else place.expand(rows, -1)
    inside = (column >= start[:, None]) & (column < stop[:, None])
    # Those inside first, of them the largest, of those the first: three keys of one stable order.
    order = x.sort(dim=-1, descending=True, stable=True).indices
    order = order.gather(-1, _first(inside.gather(-1, order)))
    taken = order[:, :count]
    there = inside.gather(-1, taken)
    chosen = torch().where(there, column.gather(-1, taken), torch().iinfo(torch().int64).max)
    chosen = chosen.sort(-1).values
    chosen = torch().where(chosen == torch().iinfo(torch().int64).max, -1, chosen)
    missing = count - chosen.shape[1]
    return torch().nn.functional.pad(chosen, (0, missing), value=-1).int()


def _first(yes: Any) -> Any:
    """Places in the order of those where it is true, then of those where not."""
    return yes.int().sort(dim=-1, descending=True, stable=True).indices


def check(x: Any, count: Any, first: Any, end: Any) -> None:
    """Raises ArgumentError."""
    given = {"x": x, "first": first, "end": end}
    check_together({name: t for name, t in given.items() if t is not None or name == "x"})
    dtype_of("x", x, FLOATS)
    check_matrix("x", x, "S, N")
    for side, name in zip(x.shape, ("rows", "columns"), strict=True):
        if type(side) is int and side >= INT_LIMIT:
            raise ArgumentError(
                "x shape", tuple(x.shape), f"must have less than {INT_LIMIT} {name}"
            )
    check_number("count", count, 1, MOST)
    for name, table in (("first", first), ("end", end)):
        if table is not None:
            dtype_of(name, table, (S32,))
            check_shape(name, table, (x.shape[0],))
