"""What operators do inside `torch.autocast`: those of 16 bits take operands in its dtype, as torch's own matrix products do.

Scales, vectors, and operands of FP8 and INT8 stay what they are: they are contracts about bits. `out` says its own dtype.
Of packed weights only a is cast, and to the dtype that their format is packed for, whichever autocast's is: their
numbers were rounded to it. Where `weights` names no such format a stays as it is, and the operator raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.packed import named_for
from ..runtime.torch_tensors import torch, torch_dtype
from .operators import HALVES, OPERATORS, Operator, Overload

DEVICES = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}
EVERY = named_for(None)


def register_autocast(library: Any) -> None:
    """In `library`, which defines the operators."""
    for op in OPERATORS:
        for overload in op.overloads if op.operands == HALVES else ():
            if overload != "out":
                for device, key in DEVICES.items():
                    library.impl(op.qualified(overload), _cast(library, op, overload, device), key)


def _cast(library: Any, op: Operator, overload: Overload, device: str) -> Callable[..., Any]:
    packet = getattr(getattr(torch().ops, library.ns), op.name)
    run = getattr(packet, overload or "default")
    keys = torch()._C.DispatchKeySet(getattr(torch()._C.DispatchKey, DEVICES[device]))

    def cast(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        with torch()._C._ExcludeDispatchKeyGuard(keys):
            return run(as_asked(a, device), as_asked(b, device), *args, **kwargs)

    def cast_a(a: Any, b: Any, *args: Any, weights: str, **kwargs: Any) -> Any:
        with torch()._C._ExcludeDispatchKeyGuard(keys):
            return run(as_packed(a, weights, device), b, *args, weights=weights, **kwargs)

    return cast_a if op.coded else cast


def as_asked(x: Any, device: str) -> Any:
    """`x` in the dtype that autocast has on `device`, if x is there and of 16 or 32 bits; else as it is."""
    return x.to(torch().get_autocast_dtype(device)) if _is_cast(x, device) else x


def as_packed(a: Any, weights: str, device: str) -> Any:
    """`a` in the dtype that the format `weights` is packed for, if there is one and a is such as `as_asked` casts; else as it is."""
    form = EVERY.get(weights)
    return a if form is None or not _is_cast(a, device) else a.to(torch_dtype(form.to))


def _is_cast(x: Any, device: str) -> bool:
    narrow = (torch().float32, torch().float16, torch().bfloat16)
    return x.device.type == device and x.dtype in narrow
