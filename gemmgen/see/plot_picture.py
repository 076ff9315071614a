"""A plot as SVG: points of several series over logarithmic or linear axes, and lines."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

from .apart import apart
from .drawing import BASE, GAP, HUES, LETTER, LINE, box, hue, label, px, ticks, title
from .page import Plot, Series

WIDTH, HEIGHT = 720, 400  # of the space that points lie in
LEFT = 8 * LETTER  # for the numbers of the vertical axis
ROOM, MANY = 0.04, 3  # beside the outermost points, of what they span; decades that have no 2 and 5
BEST = "filled: the fastest at its shape; a thin line leads from a mark to where it belongs"
SIZE = 13  # of a mark, with its outline
# Around (0, 0); with the colours, every pair of the first 64 series differs.
MARKS = (
    "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z",  # circle
    "M-4.5-4.5H4.5V4.5H-4.5Z",  # square
    "M0-6L6 0L0 6L-6 0Z",  # diamond
    "M0-6L5.5 4.5H-5.5Z",  # triangle
    "M0 6L5.5-4.5H-5.5Z",  # the same upside down
    "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",  # plus
    "M-6-2L0-6L6-2L3.5 5H-3.5Z",  # pentagon
)


def size(p: Plot) -> tuple[float, float]:
    """Pixels."""
    names = max((len(s.name) for s in p.series), default=0)
    wide = max(LEFT + WIDTH + LETTER * 4, LEFT + 3 * GAP + (names + 2) * LETTER)
    return wide, HEIGHT + LINE * (4 + len(p.series) + _has_best(p))


def _has_best(p: Plot) -> bool:
    return any(s.best for s in p.series)


def draw(p: Plot) -> list[str]:
    """The vertical axis' name above, the axes, the series, and below what the marks stand for."""
    across, up = axis(p.xs, p.log_x, WIDTH), axis(p.ys, p.log_y, HEIGHT)
    drawn = [label(0, LINE - BASE, p.y), box(LEFT, LINE, WIDTH, HEIGHT, "plain")]
    for value in across.ticks():
        x = LEFT + across.place(value)
        drawn.append(f'<path class="tick" d="M{px(x)} {LINE}V{LINE + HEIGHT}"/>')
        drawn.append(label(x, HEIGHT + 2 * LINE - 2, spelled(value), "middle"))
    for value in up.ticks():
        y = LINE + HEIGHT - up.place(value)
        drawn.append(f'<path class="tick" d="M{px(LEFT)} {px(y)}H{px(LEFT + WIDTH)}"/>')
        drawn.append(label(LEFT - GAP / 2, y + 4, spelled(value), "end"))
    drawn.append(label(LEFT + WIDTH / 2, HEIGHT + 3 * LINE - BASE, p.x, "middle"))
    drawn += _lines(p, across, up) + _marks(p, across, up)
    for number, s in enumerate(p.series):
        drawn += _named(s, number, HEIGHT + LINE * (3.5 + number))
    if _has_best(p):
        y = HEIGHT + LINE * (3.5 + len(p.series))
        drawn.append(_mark(0, LEFT + GAP, y + LINE / 2, best=True))
        drawn.append(label(LEFT + 3 * GAP, y + LINE - BASE, BEST))
    return drawn


@dataclass(frozen=True, kw_only=True)
class Axis:
    """low, high: its ends, of a logarithmic one their log10."""

    low: float
    high: float
    log: bool
    pixels: float

    def place(self, value: float) -> float:
        """Pixels from its beginning."""
        at = log10(value) if self.log else value
        return (at - self.low) / (self.high - self.low) * self.pixels

    def ticks(self) -> list[float]:
        """1, 2 and 5 of each decade, or powers of ten where they are many; else round numbers."""
        if not self.log:
            return [float(t) for t in ticks(round(self.low), max(1, floor(self.high)))]
        decades = range(floor(self.low), floor(self.high) + 1)
        heads = (1, 2, 5) if self.high - self.low < MANY else (1,)
        values = [head * 10.0**e for e in decades for head in heads]
        return [v for v in values if self.low <= log10(v) <= self.high]


def axis(values: list[float], log: bool, pixels: float) -> Axis:
    """Over what `values` span, with a little room; a linear one begins at 0."""
    ends = [log10(v) for v in values] if log else [0.0, *values]
    room = (max(ends) - min(ends)) * ROOM or 0.5
    low = min(ends) - room * (log or min(ends) < 0)
    return Axis(low=low, high=max(ends) + room, log=log, pixels=pixels)


def _lines(p: Plot, across: Axis, up: Axis) -> list[str]:
    drawn = []
    for s in p.series:
        if s.line:
            corners = "L".join(f"{px(x)} {px(y)}" for x, y in _places(s, across, up))
            drawn.append(f'<path class="line" d="M{corners}">{title(s.name)}</path>')
    return drawn


def _places(s: Series, across: Axis, up: Axis) -> list[tuple[float, float]]:
    return [(LEFT + across.place(x), LINE + HEIGHT - up.place(y)) for x, y in s.points]


def _marks(p: Plot, across: Axis, up: Axis) -> list[str]:
    """None over another: a thin line leads from one that had to be moved to where it belongs."""
    points = [
        (i not in s.best, number, place, tip)
        for number, s in enumerate(p.series)
        if not s.line
        for i, (place, tip) in enumerate(zip(_places(s, across, up), s.said, strict=True))
    ]
    points.sort(key=lambda point: point[0])  # the best stay where they are if they can
    half = SIZE / 2
    low, high = (LEFT + half, LINE + half), (LEFT + WIDTH - half, LINE + HEIGHT - half)
    moved = apart([place for _, _, place, _ in points], SIZE, low, high)
    leads, marks = [], []
    for (other, number, (x, y), tip), (a, b) in zip(points, moved, strict=True):
        if (a, b) != (x, y):
            leads.append(f'<path class="lead" d="M{px(x)} {px(y)}L{px(a)} {px(b)}"/>')
        marks.append(_mark(number, a, b, tip, best=not other))
    return leads + marks


def _mark(number: int, x: float, y: float, tip: str = "", *, best: bool = False) -> str:
    place = f'd="{MARKS[number % len(MARKS)]}" transform="translate({px(x)} {px(y)})"'
    kind = "full" if best else hue(number % HUES)
    return f'<path class="mark {kind}" {place}>{title(tip)}</path>'


def _named(s: Series, number: int, y: float) -> list[str]:
    x, middle = LEFT + GAP, y + LINE / 2
    line = f'<path class="line" d="M{px(x - 8)} {px(middle)}H{px(x + 8)}"/>'
    mark = line if s.line else _mark(number, x, middle)
    return [mark, label(x + 2 * GAP, y + LINE - BASE, s.name)]


def spelled(value: float) -> str:
    """With as many digits as an axis needs."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
