"""Arrays of other libraries in the place of torch's tensors: CuPy, JAX, Numba, cuda.core and what else can say where
it lies, through DLPack or the CUDA array interface. torch is not imported for them.

The work is queued on one stream: the one that `stream` names, a raw handle or an object with `__cuda_stream__`; else
the one that the arrays' interfaces name, if all that name one name the same; else the default stream. Before it starts
it waits for what the arrays' makers have queued: DLPack's producers see to that themselves, and for interfaces
that name another stream an event is recorded there. What reads `out` afterwards is the caller's to order.

gemmgen allocates nothing for them: `out` (and `scale_out`) must be given, scales must lie as layout "mn" says, but for
A's block scales, which are read in place in layout "row" too, and functions that need a workspace (groups that split K)
take torch tensors only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DTYPES
from ..runtime import array_interface, dlpack, driver
from ..runtime.arrays import Array, seen_as

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def as_tensor(x: Any, *, dtype: str | None = None, stream: Any = None) -> Array:
    """`x`, an array on the GPU, as an operand of the functions of `gemmgen.ops` and of `bind`, on `stream`.

    x: has `__dlpack__`, which is asked if both are there, or `__cuda_array_interface__`. dtype: what its elements
    are, for dtypes that neither can say ("e4m3", "e5m2", "bf16", ...): its own are then unsigned integers, or
    bytes, of that size. stream: as in this module; None: the default stream, or the interface's.
    The view holds `x`; nothing is copied. Raises ArgumentError.
    """
    if dtype is not None and not (isinstance(dtype, str) and dtype in DTYPES):
        raise ArgumentError("dtype", dtype, f"must be one of {', '.join(DTYPES)}")
    if not foreign(x):
        allowed = "must have __dlpack__ or __cuda_array_interface__, and be no torch tensor"
        raise ArgumentError("x", type(x).__name__, allowed)
    (view,) = _views({"x": x}, stream).values()
    return view if dtype is None else seen_as("x", view, DTYPES[dtype])


def foreign(x: Any) -> bool:
    """Whether `x` is an array of another library than torch."""
    kind = type(x)
    if not (hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")):
        return False
    torch = sys.modules.get("torch")
    return torch is None or not isinstance(x, torch.Tensor)


def over_arrays(call: Callable[..., Any], names: tuple[str, ...], arguments: Arguments) -> Any:
    """The result of `call(*args, **kwargs)`, arrays replaced by their views and, in the result, put back. names:
    of the positional arguments. Raises Untouched if there is nothing to replace."""
    args, kwargs = arguments
    kwargs = dict(kwargs)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    arrays = {name: x for name, x in given.items() if isinstance(x, Array) or foreign(x)}
    moved = arrays and "stream" in kwargs
    if not moved and not any(foreign(x) for x in arrays.values()):
        raise Untouched
    views = _views(arrays, kwargs.pop("stream", None))
    originals = {id(view): arrays[name] for name, view in views.items()}
    placed = [views.get(name, x) for name, x in zip(names, args, strict=False)]
    result = call(*placed, *args[len(placed) :], **{n: views.get(n, x) for n, x in kwargs.items()})
    if isinstance(result, tuple):
        return tuple(originals.get(id(x), x) for x in result)
    return originals.get(id(result), result)


class Untouched(Exception):
    """No argument is another library's array, or all are views already."""


def handle_of(stream: Any) -> int:
    """The raw handle of `stream`. Raises ArgumentError."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, *rest = protocol() if callable(protocol) else protocol
        stream = rest[0] if version == 0 and rest else stream
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        allowed = "must be a raw handle or have __cuda_stream__ (version 0)"
        raise ArgumentError("stream", stream, allowed)
    return {1: 0}.get(stream, int(stream))  # both are the default stream


def _views(arrays: dict[str, Any], stream: Any) -> dict[str, Array]:
    made_on = {n: array_interface.stream_of(n, x) for n, x in arrays.items() if _by_interface(x)}
    made_on |= {n: x.device.stream for n, x in arrays.items() if isinstance(x, Array)}
    streams = {s for s in made_on.values() if s is not None}
    if stream is not None:
        chosen = handle_of(stream)
    else:
        chosen = streams.pop() if len(streams) == 1 else 0
    views = {name: _view(name, x, chosen) for name, x in arrays.items()}
    for view in views.values():
        driver.wait_for(streams - {chosen}, chosen, view.device.index)
        break
    return views


def _by_interface(x: Any) -> bool:
    return not isinstance(x, Array) and not hasattr(type(x), "__dlpack__")


def _view(name: str, x: Any, stream: int) -> Array:
    if isinstance(x, Array):
        return x.on(stream)
    if _by_interface(x):
        return array_interface.described(name, x, stream)
    return dlpack.exported(name, x, stream)
