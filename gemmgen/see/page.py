"""A page: what the text and the HTML form of a report have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What a page comes to. says: in one line. more: sentences that go with it."""

    title: str
    says: str
    more: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """rows: cells as text, one per column. marked: the row that the page is about. lengths: of a bar in each row, on
    one scale from 0; none: no bars. links: where in HTML the first cell of each row leads; none: no links."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None
    note: str = ""
    lengths: tuple[float, ...] = ()
    links: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.title
        assert len(self.lengths) in (0, len(self.rows)), self.title
        assert len(self.links) in (0, len(self.rows)), self.title

    @property
    def bars(self) -> tuple[float, ...]:
        """The lengths as shares of the longest; what is below 0 has none."""
        longest = max(self.lengths, default=0.0)
        return tuple(max(0.0, x) / longest if longest > 0 else 0.0 for x in self.lengths)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and what they are."""

    title: str
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """hue: a colour's number, None for none; it repeats what the label or the note says. tip: more words."""

    label: str = ""
    hue: int | None = None
    tip: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A picture: labelled cells in rows and columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        assert len(self.cells) == len(self.rows), self.title
        assert all(len(row) == len(self.columns) for row in self.cells), self.title


@dataclass(frozen=True, kw_only=True)
class Run:
    """Cells of a strip that are alike. mark: a letter of them in text; full: whether they are filled."""

    cells: int
    mark: str
    full: bool
    tip: str


@dataclass(frozen=True, kw_only=True)
class Strips:
    """A picture: rows of small cells, `across` in each. legend: letters, whether filled, what they stand for."""

    title: str
    across: int
    rows: tuple[tuple[str, tuple[Run, ...]], ...]
    legend: tuple[tuple[str, bool, str], ...]
    note: str = ""

    def __post_init__(self) -> None:
        sums = (sum(run.cells for run in runs) for _, runs in self.rows)
        assert all(cells == self.across for cells in sums), self.title


@dataclass(frozen=True, kw_only=True)
class Bar:
    """start, end: within the picture's. label: drawn where it fits, else mark, a letter; tip: all of it."""

    start: int
    end: int
    mark: str
    hue: int
    label: str
    tip: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """bars: in order, none over another."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A picture of what happens when. legend: letters, the colour's number, and what they stand for."""

    title: str
    start: int
    end: int
    unit: str
    lanes: tuple[Lane, ...]
    legend: tuple[tuple[str, int, str], ...]
    note: str = ""

    def __post_init__(self) -> None:
        assert self.start < self.end, self.title
        inside = (
            self.start <= b.start <= b.end <= self.end for lane in self.lanes for b in lane.bars
        )
        assert all(inside), self.title


@dataclass(frozen=True, kw_only=True)
class Series:
    """points: (x, y). line: joined, else a mark each; tips: more words of each point, or none. best: points that are
    better than the others' there, by their place; they are drawn filled."""

    name: str
    points: tuple[tuple[float, float], ...]
    line: bool = False
    tips: tuple[str, ...] = ()
    best: tuple[int, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        """Each point in words."""
        return self.tips or tuple(f"{self.name}: {x:.4g}, {y:.4g}" for x, y in self.points)

    def __post_init__(self) -> None:
        assert self.points and len(self.tips) in (0, len(self.points)), self.name


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture of numbers. x, y: what the axes are, with their units; logarithmic ones have no zero."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        assert self.series, self.title
        assert not self.log_x or min(self.xs) > 0, self.title
        assert not self.log_y or min(self.ys) > 0, self.title

    @property
    def xs(self) -> list[float]:
        return [x for s in self.series for x, _ in s.points]

    @property
    def ys(self) -> list[float]:
        return [y for s in self.series for _, y in s.points]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Lines of code. diff: each begins with what became of it, +, - or a space, or is a place, @. folded: shown
    when asked for."""

    title: str
    lines: tuple[str, ...]
    diff: bool = False
    folded: bool = False
    note: str = ""


Block = Headline | Table | Facts | Grid | Strips | Lanes | Plot | Listing


@dataclass(frozen=True, kw_only=True)
class Page:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A chapter of a book. name: of it in the table of contents."""

    name: str
    pages: tuple[Page, ...]


@dataclass(frozen=True, kw_only=True)
class Book:
    """Several pages in one document, with a table of contents."""

    title: str
    parts: tuple[Part, ...]


def count(number: float) -> str:
    """With a separator every three digits."""
    return f"{number:,.0f}"


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"


def scaled(number: float, unit: str) -> str:
    """With a decimal prefix and three digits or more: 28311552 -> 28.3 MB."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000 or prefix == "P":
            break
        number /= 1000
    return f"{number:.3g} {prefix}{unit}" if abs(number) < 100 else f"{number:.0f} {prefix}{unit}"
