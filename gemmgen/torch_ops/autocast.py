"""What operators do inside `torch.autocast`: those of 16 bits take operands in its dtype, as torch's own matrix products do.

Scales, vectors, and operands of FP8 and INT8 stay what they are: they are contracts about bits. `out` says its own dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runtime.torch_tensors import torch
from .operators import HALVES, OPERATORS, Operator, Overload

DEVICES = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


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

    return cast


def as_asked(x: Any, device: str) -> Any:
    """`x` in the dtype that autocast has on `device`, if x is there and of 16 or 32 bits; else as it is."""
    narrow = (torch().float32, torch().float16, torch().bfloat16)
    if x.device.type != device or x.dtype not in narrow:
        return x
    return x.to(torch().get_autocast_dtype(device))
