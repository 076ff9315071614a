"""What every statement of the IR means, in C in which a PTX instruction is called by its opcode.

`BODY` is what a block holds. Buffers, barriers and registers go by their names in the IR's tables, and
`warpgroup`, `worker`, `warp`, `lane`, `cta_rank`, `tile`, `ring` are what `frame` says. A statement without a row is
an error, never skipped.
"""

from __future__ import annotations

from ..errors import IRError
from ..ir import nodes as ir
from .meaning_decoding import DECODING
from .meaning_epilogue import EPILOGUE
from .meaning_exchange import EXCHANGE
from .meaning_fragments import FRAGMENTS
from .meaning_indices import INDEXED
from .meaning_loads import LOADS
from .meaning_pages import PAGED
from .meaning_promotion import PROMOTIONS
from .meaning_squares import SQUARES
from .meaning_waits import WAITS, Meaning

MEANING: dict[type[ir.Stmt], Meaning] = (
    WAITS
    | LOADS
    | INDEXED
    | PAGED
    | DECODING
    | EXCHANGE
    | PROMOTIONS
    | SQUARES
    | EPILOGUE
    | FRAGMENTS
)


def meaning(kernel: ir.Kernel, s: ir.Stmt) -> str:
    row = MEANING.get(type(s))
    if row is None:
        raise IRError(f"the link does not know what {type(s).__name__} means")
    return row(kernel, s)
