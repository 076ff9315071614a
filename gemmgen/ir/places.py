"""Where in D a thread's registers, and a warpgroup's pieces of the tile, lie: expressions over the names
that every emitted kernel has (`tile`, `warpgroup`, `warp`, `lane`, and `i` of register i)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .exchange import PARTIALS
from .expr import PerColumn, PerRow, RowBound, arguments
from .nodes import (
    Accumulate,
    AddPartials,
    BulkRowStore,
    Evaluate,
    If,
    Kernel,
    Promote,
    SendPartials,
    StageTile,
    StoreRows,
    StoreTail,
    StoreValues,
    TmaStore,
)
from .stores import turns


def plus(number: object) -> str:
    """What adds `number`: nothing for 0."""
    return f" + {number}" if number else ""


def total(*terms: object) -> str:
    """Of what is not 0."""
    return " + ".join(str(x) for x in terms if x) or "0"


def numbered(first: object) -> str:
    """This warpgroup's number, counted from `first`, as a factor."""
    return f"({first} + warpgroup)" if first else "warpgroup"


def flag(kernel: Kernel, s: SendPartials | AddPartials, at: str) -> str:
    """This warp's, of wave `s.wave`, behind slot `at`."""
    w = kernel.workspace
    return f"{PARTIALS} + {at} * {w.words} + {w.slot + 4 * s.wave * kernel.consumers} + threadIdx.x / 32"


# Of 16 rows of the accumulator, which lane / 4 are of a lane and which are 8 more: the even one of the pair that it has after
# lanes 4 apart have exchanged rows.
OF_PAIR = "lane / 8 * 2 + lane / 4 % 2 * 8"
OF_FOLDED = "lane / 8 + lane / 4 % 2 * 4"  # and which column of D that is, of a warp's eight


def of_values(fold: int) -> dict[str, str]:
    """Where the accumulator's rows are D's columns: of the rows of D that a lane has the one, and of a sub-tile's columns the one, that value i of
    the epilogue is of; and a lane's only column of a warp's eight, where columns are folded."""
    if fold > 1:
        return {
            "row_of_value": "i",
            "column_of_value": f"warp * 8 + {OF_FOLDED}",
            "of_folded": OF_FOLDED,
        }
    return {
        "row_of_value": "i / 4 * 2 + i % 2",
        "column_of_value": "warp * 16 + i / 2 % 2 * 8 + lane / 4",
    }


# Of four sums, of two rows of D and two halves of 16 columns, the one that a lane of a quad has.
OWN_ROW, OWN_HALF = "i * 2 + lane / 2 % 2", "lane % 2"


def rows_of_d(kernel: Kernel) -> str:
    """How many D has, or each group of it."""
    fold = kernel.block.fold_rows
    return "shape_m" if fold == 1 else f"(shape_m / {fold})"


class Place(NamedTuple):
    """Of an accumulator's `register`: the even column of its pair, which of the two it is, and its
    column. inside: the row is one that there is, whatever the tile reaches past. held: of arguments that are in registers, by name, which
    register has what belongs there."""

    row: str
    pair: str
    which: str
    column: str
    register: str = "i"
    inside: bool = False
    held: Mapping[str, str] = MappingProxyType({})


def place(kernel: Kernel, s: StageTile | StoreValues | Evaluate) -> Place:
    """wgmma's fragment (PTX ISA), whose rows are rows of D, or columns where pieces lie side by side. Register i
    is counted from the first that `s` stages. Of sums of rows: of each four, which are those of two rows of D and of both halves of 16
    columns, a lane has its own."""
    if isinstance(s, Evaluate) and s.of == "argument":
        return _of_argument(kernel, s)
    if kernel.block.fold_rows > 1:
        return _of_sums(kernel, s)
    block = s.wave * kernel.consumers
    start = s.column if isinstance(s, StageTile) else 0
    long = f"{numbered(block)} * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8"
    short = total(start, "lane % 4 * 2 + i / 4 * 8")
    if kernel.buffer("smem_d").along == "m":
        pair = f"{'tile.d_col' if kernel.block.fold == 1 else 'tile.b_row'} + {short}"
        register = f"i{plus(start // 2)}"
        return Place(f"tile.d_row + {long}", pair, "i % 2", f"{pair} + i % 2", register)
    row = f"tile.d_row + {short} + i % 2"
    if isinstance(s, Evaluate) and s.of == "pairs":  # register i begins the lane's pair i / 2
        row = "tile.d_row + lane % 4 * 2 + i / 4 * 8 + i / 2 % 2"
        column = f"tile.b_row + {numbered(block)} * 64 + warp * 16 + {OF_PAIR}"
        return Place(row, column, "i % 2", column)
    column = f"tile.d_col + {long}"
    return Place(row, f"({column}) / 2 * 2", "lane / 4 % 2", column)


def _of_sums(kernel: Kernel, s: StageTile | StoreValues | Evaluate) -> Place:
    """Of a sum, or of what it is the sum of: rows of the product, which a tile has all or none of for each row of D."""
    fold, summed = kernel.block.fold_rows, isinstance(s, Evaluate)
    half = "i / 2 % 2" if summed else OWN_HALF
    of_d = _row_of_d(kernel, f"i / {fold // 2}" if summed else OWN_ROW)
    named = {} if isinstance(s, StageTile) else dict(s.held)
    where = {PerRow: "i / 4 * 2 + i % 2", RowBound: "i", PerColumn: half if summed else "0"}
    read = (x for x in arguments(s.value) if x.name in named)
    return Place(
        _summed(kernel, of_d, "i / 4 * 8") if summed else of_d,
        *_column_of_sums(kernel, s.wave, half),
        inside=True,
        held={x.name: f"{named[x.name]}[{where[type(x)]}]" for x in read},
    )


def _of_argument(kernel: Kernel, s: Evaluate) -> Place:
    """Of register i of an argument of the same: of a lane's own row of D, or two rows in every eight of the product's; of columns its own half, or both."""
    both = any(r.count == 2 for role in kernel.roles for r in role.locals if r.name == s.dst)
    half = "i % 2" if both else OWN_HALF
    if isinstance(s.value, RowBound):
        row = _row_of_d(kernel, OWN_ROW)
    else:
        of_d = _row_of_d(kernel, f"i / {kernel.block.fold_rows // 4}")
        row = _summed(kernel, of_d, "i / 2 * 8")
    return Place(row, *_column_of_sums(kernel, s.wave, half), inside=True)


def _row_of_d(kernel: Kernel, of_tile: str) -> str:
    return f"min(tile.d_row + {of_tile}, {rows_of_d(kernel)} - 1)"


def _summed(kernel: Kernel, row: str, eight: str) -> str:
    """A lane's row of the product, of those that make `row` of D; eight: where the eight begin, two of which are the lane's."""
    fold = kernel.block.fold_rows
    return f"{row} * {fold} + (lane % 4 * 2 + {eight} % {fold} + i % 2)"


def _column_of_sums(kernel: Kernel, wave: int, half: str) -> tuple[str, str, str]:
    """pair, which and column of a Place: of a warp's 16 columns the first or the second half."""
    block = numbered(wave * kernel.consumers)
    column = f"tile.d_col + {block} * 64 + warp * 16 + lane / 4 + {half} * 8"
    return f"({column}) / 2 * 2", "lane / 4 % 2", column


def held(kernel: Kernel, s: StageTile) -> int:
    """Registers of `s.src` that `s` stages: all, or a piece's, of two rows and a quarter of its columns."""
    if turns(s):
        return kernel.buffer(s.smem).cols // 2
    return next(r.count for role in kernel.roles for r in role.locals if r.name == s.src)


def of_pair(at: Place, which: int) -> Place:
    """The place of one of the two columns of the pair that register `i` begins."""
    return at._replace(
        which=str(which), column=f"{at.pair}{plus(which)}", register=("i", "i + 1")[which]
    )


def first(kernel: Kernel, s: Accumulate | Promote) -> int:
    """The register of `s.dst` that the first of `s.src` is promoted into: parts follow each other, as
    wgmma's fragments do along N."""
    return s.part * next(r.count for role in kernel.roles for r in role.locals if r.name == s.src)


class StoredPiece(NamedTuple):
    """Of the piece of D that is this warpgroup's: where it begins (its row in terms of `block`, the
    piece's number) and its sides."""

    row: str
    column: str
    rows: int
    columns: str


def piece(kernel: Kernel, s: BulkRowStore | StoreRows | StoreTail) -> StoredPiece:
    """The piece that `s` stores."""
    d = kernel.buffer(s.smem)
    if d.along == "m":
        if isinstance(s, StoreRows | StoreTail) and turns(s):
            row = f"tile.d_row + {numbered(s.wave * kernel.consumers)} * {d.step}"
            column = f"(tile.d_col + {s.column})" if s.column else "tile.d_col"
            return StoredPiece(row, column, d.rows, f"{d.cols}")
        columns = "BLOCK_N" if kernel.block.fold == 1 else f"BLOCK_N / {kernel.block.fold}"
        return StoredPiece(f"tile.d_row + block * {d.step}", "tile.d_col", d.rows, columns)
    block = f"{numbered(s.wave * kernel.consumers)} * {d.step}"
    return StoredPiece("tile.d_row", f"(tile.d_col + {block})", d.rows, f"{d.cols}")


def end(kernel: Kernel, s: If) -> str:
    """The row after the last of the piece that `s` asks about."""
    d = kernel.buffer("smem_d")
    if d.along == "m":
        return f"tile.d_row + {numbered(s.wave * kernel.consumers)} * {d.step} + {d.rows}"
    return f"tile.d_row + {d.rows}"


def shift(kernel: Kernel, s: TmaStore) -> tuple[str, str]:
    """What leads from the tile to the piece that `s` stores, along the inner and the outer coordinate."""
    d = kernel.buffer(s.smem)
    way = f"{plus(s.wave * kernel.consumers * d.step)} + warpgroup * {d.step}"
    return ("", way) if d.along == "m" else (way, "")
