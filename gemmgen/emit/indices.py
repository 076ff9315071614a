"""How rows that come by index are spelled: see gemmgen.ir.indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..ir.indices import AT_ONCE
from ..ir.nodes import CopyRows, InitBarrier, Kernel, Role, Wait
from ..ir.places import plus
from ..ir.resources import PIECE
from ..ir.rewrite import statements, walk
from .numbers import Number


class Pieces(NamedTuple):
    """elements: of a piece. of_each: bytes. there: what asks whether the stage has the thread's row so many on, where not all threads have one."""

    elements: int
    of_each: int
    there: Callable[[Number], str]


def pieces(kernel: Kernel, s: CopyRows) -> Pieces:
    smem = kernel.buffer(s.smem)

    def there(on: Number) -> str:
        return f"if (row{plus(on)} < {smem.rows}) " * bool(smem.rows % AT_ONCE)

    element = smem.dtype.bytes
    return Pieces(elements=PIECE // element, of_each=element, there=there)


def minus(number: int) -> str:
    """What takes `number` off: nothing for 0."""
    return f" - {number}" * bool(number)


def together(role: Role) -> str:
    """What a role is called by what its threads do."""
    copies = any(isinstance(s, CopyRows) for s in walk(role.body))
    return f"{role.name} that copies" if copies else role.name


def filled(kernel: Kernel, s: InitBarrier | Wait) -> str:
    """What a barrier is called by who arrives at it."""
    copied = any(isinstance(x, CopyRows) for x in statements(kernel))
    return f"{s.barrier} with copies" if copied and s.barrier == "full" else s.barrier
