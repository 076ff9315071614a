"""The table of planned mutants, one or several per row of the plan."""

from __future__ import annotations

import re

from . import (
    rows_ahead,
    rows_columns,
    rows_compact,
    rows_decoding,
    rows_depths,
    rows_direct,
    rows_gaps,
    rows_indexed,
    rows_lanes,
    rows_numerics,
    rows_outbox,
    rows_overlap,
    rows_paged,
    rows_parts,
    rows_peek,
    rows_pieces,
    rows_protocol,
    rows_rest,
    rows_shares,
    rows_slices,
    rows_split,
    rows_squares,
    rows_summed,
    rows_trust,
    rows_turns,
)
from .mutant import Mutant

PARTS = (
    *(rows_protocol, rows_numerics, rows_rest, rows_depths, rows_parts, rows_split),
    *(rows_overlap, rows_pieces, rows_columns, rows_turns, rows_peek),
    *(rows_trust, rows_ahead, rows_lanes, rows_direct, rows_shares, rows_outbox, rows_indexed),
    *(rows_decoding, rows_slices, rows_gaps, rows_summed, rows_paged, rows_squares, rows_compact),
)
ROWS: tuple[Mutant, ...] = tuple(
    Mutant(**{**vars(m), "id": f"row {m.id}"}) for part in PARTS for m in part.ROWS
)
NOT_APPLICABLE: dict[str, str] = {
    **rows_protocol.NOT_APPLICABLE,
    **rows_rest.NOT_APPLICABLE,
    "94": "withdrawn: A's rows are no longer held in registers (docs/adr/0014)",
}


def number(m: Mutant) -> int:
    """The row a mutant belongs to."""
    found = re.match(r"row (\d+)", m.id)
    assert found
    return int(found[1])
