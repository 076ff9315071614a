"""Say where a wrong result is wrong: its shape usually names the bug."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

TILE = 128  # rows and columns of the squares that a diagnosis counts in
SHOWN = 4  # of each kind of thing listed


def first_of(wrong: Mask) -> tuple[int, int]:
    """(row, column) of the first wrong element in row-major order."""
    row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return int(row), int(column)


def describe(wrong: Mask) -> str:
    """Where the wrong elements lie. `wrong`: bool [M, N], at least one True."""
    tiles = _tile_sums(wrong)
    whole = np.asarray(tiles == _tile_sums(np.ones_like(wrong)))
    rows, columns = np.asarray(wrong.any(1)), np.asarray(wrong.any(0))
    whole_rows, whole_columns = np.asarray(wrong.all(1)), np.asarray(wrong.all(0))
    tile, row = first_of(np.equal(tiles, tiles.max())), int(wrong.sum(1).argmax())
    lines = (
        f"worst tile ({TILE}x{TILE}) {tile}: {int(tiles.max())} wrong; "
        f"worst row {row}: {int(wrong[row].sum())} wrong",
        f"they lie in {_of(rows)} rows, {_of(columns)} columns, {_of(tiles > 0)} tiles",
        f"wholly wrong: rows {_list(whole_rows)}; columns {_list(whole_columns)}; "
        f"tiles {_list(whole)}",
    )
    return "\n".join(lines)


def _tile_sums(mask: Mask) -> npt.NDArray[np.int64]:
    """Trues per tile: int64 [ceil(M/128), ceil(N/128)]."""
    rows = np.add.reduceat(mask.astype(np.int64), np.arange(0, mask.shape[0], TILE), 0)
    return np.asarray(np.add.reduceat(rows, np.arange(0, mask.shape[1], TILE), 1))


def _of(mask: Mask) -> str:
    return f"{int(mask.sum())} of {mask.size}"


def _list(mask: Mask) -> str:
    found: list[Any] = [tuple(x) if len(x) > 1 else x[0] for x in np.argwhere(mask).tolist()]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (", ".join(map(str, found[:SHOWN])) or "none") + more
