"""D whose columns have gaps, which a launch must leave as they were."""

from __future__ import annotations

import numpy as np

from ..codes import Codes
from ..errors import VerificationError
from ..ir.heads import Heads


def between_gaps(codes: Codes, heads: Heads, fill: int) -> Codes:
    """The product's columns of D's, [rows, D's columns]. Raises VerificationError if what lies in a gap is no longer the byte `fill`."""
    if not heads.mid:
        return codes
    gap = np.ones(codes.shape[1], np.bool_)
    for columns in heads.stored(codes.shape[1] // (heads.side + heads.mid) * heads.side):
        gap[columns.start : columns.stop] = False
    written = (codes.view(np.uint8).reshape(*codes.shape, -1) != fill).any(2) & gap
    if written.any():
        row, column = np.argwhere(written)[0]
        text = f"{int(written.sum())} elements of gaps between heads were overwritten"
        raise VerificationError(f"{text}; first in row {row}, column {column} of D")
    return np.ascontiguousarray(codes[:, ~gap])
