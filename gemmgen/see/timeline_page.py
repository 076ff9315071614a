"""A timeline as a page: what it assumes, who waits for what, and pictures of what happens when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..check import ops
from ..errors import ArgumentError
from .beside import merged
from .latency import Latency
from .page import Block, Facts, Lanes, Page, Table
from .timeline import Flight, Step, Timeline, names
from .timeline_lanes import PRODUCTS, lanes

FEW = 120  # multiplies that one picture shows with room for each
MANY = 8  # tiles at either end of the table
FIRST, LAST = 8, 4  # K blocks of the pictures of a tile's beginning and of the launch's end
NUMBERS = "Numbers are a tile's and its K block's, in text the last digit of the K block's."

SAYS = {
    "tensor": "one Mma at the tensor core's rate",
    "multiply": "as long as it keeps the tensor core; longer where shared memory feeds it slower",
    "drain": "from a wgmma group's end until its warpgroup goes on, within a K block",
    "promote": "one promotion",
    "stage": "one M sub-tile of D, or a piece of it, into shared memory, and what else an epilogue costs",
    "load": "a CTA's loads of a K block through the SM's port",
    "store": "a CTA's tile of D through the same port",
    "flight": "from a load's last byte there until its barrier counts it (an estimate)",
    "remote": "until an arrival reaches another CTA (an estimate)",
    "exchange": "the same for partial sums (an estimate)",
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Half-open ranges of a CTA's tiles and of their K blocks; None: all of them."""

    tiles: tuple[int, int] | None = None
    blocks: tuple[int, int] | None = None

    def holds(self, op: ops.Op) -> bool:
        return _within(op.tile, self.tiles) and _within(op.k, self.blocks)


@dataclass(frozen=True, kw_only=True)
class View:
    """What a picture shows: cycles from when to when, in which `of` is."""

    title: str
    of: Selection
    start: int
    end: int
    note: str = NUMBERS


@dataclass(frozen=True, kw_only=True)
class Other:
    """A timeline to show beside another. name, short: what it is called, and behind the names of its lines. lanes: from a
    title and two moments."""

    name: str
    short: str
    end: int
    lanes: Callable[[str, int, int], Lanes]


def page(
    t: Timeline,
    chosen: Selection,
    launch: tuple[tuple[str, str], ...],
    other: Other | None = None,
) -> Page:
    """launch: what the instance was taken from. other: what is shown below it, line by line. Raises ArgumentError if
    `chosen` holds nothing."""
    beside = (("beside", f"{other.name}: {_takes(other, t)}"),) if other else ()
    of = Facts(title="Launch", items=(*launch, *_instance(t), *beside))
    blocks: list[Block] = [of, *pictures(t, chosen, other)]
    blocks += [_busy(t), _waits(t), _tiles(t), assumed(t.latency)]
    title = f"Simulated timeline of {t.program.kernel.name}"
    return Page(title=title, blocks=tuple(blocks))


def _takes(other: Other, t: Timeline) -> str:
    return f"{other.end:,} SM cycles, {other.end / max(1, t.end):.1%} of the one above"


def _instance(t: Timeline) -> Iterator[tuple[str, str]]:
    yield "simulated", f"{t.program.instance}: the first cluster, {len(t.agents)} warpgroups"
    yield "takes", f"{t.end:,} SM cycles"
    for cta in sorted({a.cta for a in t.agents}):
        words = f"{t.share(cta):.1%} of the time at its own rate, kept for {t.occupied(cta):.1%}"
        name = f"tensor core of CTA {cta}" if t.program.kernel.cluster.size > 1 else "tensor core"
        yield name, words


def assumed(lat: Latency) -> Table:
    rows = tuple((n, f"{v:,}", SAYS[n]) for n, v in asdict(lat).items() if n in SAYS)
    return Table(
        title="Latency model, SM cycles",
        columns=("name", "cycles", "of"),
        rows=rows,
        note="From the cost model's terms; nothing is timed. Every other operation takes none.",
    )


def _busy(t: Timeline) -> Table:
    """Of each agent: all its cycles, shared out."""
    called = names(t.program.kernel, t.agents)
    work = [t.work(i) for i in range(len(called))]
    waiting = [t.waiting(i) for i in range(len(called))]
    kinds = sorted({k for w in work for k in w})
    rows = tuple(
        (
            name,
            *(f"{work[i][k] / t.end:.1%}" for k in kinds),
            f"{sum(waiting[i].values()) / t.end:.1%}",
            f"{t.over(i) / t.end:.1%}",
        )
        for i, name in enumerate(called)
    )
    columns = ("warpgroup", *kinds, "waits", "is over")
    return Table(title="Share of the time", columns=columns, rows=rows)


def _waits(t: Timeline) -> Table:
    called = names(t.program.kernel, t.agents)
    rows = tuple(
        (name, what, f"{cycles:,}", f"{cycles / t.end:.1%}")
        for i, name in enumerate(called)
        for what, cycles in _most_first(t.waiting(i))
    )
    columns = ("warpgroup", "for", "cycles", "share")
    note = "wgmma: products under way, a queue for the tensor core included; stores: D's way out of shared memory"
    if any("copies" in t.waiting(i) for i in range(len(called))):
        note += "; copies: rows of A on their way"
    in_turns = t.program.kernel.consumer.turns > 1
    note += "; turns: another warpgroup's K loop." if in_turns else "."
    return Table(title="Who waits for what", columns=columns, rows=rows, note=note)


def _tiles(t: Timeline) -> Table:
    """The first and the last that CTA 0 works on."""
    count = t.program.instance.tiles
    shown = [n for n in range(count) if n < MANY or n >= count - MANY]
    columns = (
        "tile",
        "K blocks",
        "loads from",
        "multiplies from",
        "to",
        "D left by",
        "tensor core",
    )
    left_out = f"{count - len(shown)} between them are left out. " * (len(shown) < count)
    note = f"{left_out}Tensor core: at its own rate, share of the time from the first product to the last."
    rows = tuple(_tile(t, n) for n in shown)
    return Table(title="Tiles of CTA 0, in cycles", columns=columns, rows=rows, note=note)


def _tile(t: Timeline, tile: int) -> tuple[str, ...]:
    kinds = ("load", "multiply", "store")
    mine = [f for f in t.flights if f.cta == 0 and f.op.tile == tile]
    loads, products, stores = ([f for f in mine if f.carried == kind] for kind in kinds)
    blocks = str(len({f.op.k for f in loads}))
    stored = f"{max(f.end for f in stores):,}" if stores else ""
    if not products:
        return str(tile), blocks, "", "", "", stored, ""
    start, end = min(f.start for f in products), max(f.end for f in products)
    share = len(products) * t.latency.tensor / (end - start)
    first = f"{min(f.start for f in loads):,}"
    return str(tile), blocks, first, f"{start:,}", f"{end:,}", stored, f"{share:.1%}"


def _most_first(sums: Counter[str]) -> list[tuple[str, int]]:
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def pictures(t: Timeline, chosen: Selection, other: Other | None = None) -> Iterator[Lanes]:
    """What was chosen; else all if it is little, or the beginning and the end. Raises ArgumentError."""
    for v in views(t, chosen):
        end = v.end
        if other and v.end == t.end:
            end = max(v.end, other.end)  # the other may take longer
        own = lanes(t, v.title, v.start, end, v.note)
        yield _with(own, other, v) if other else own


def _with(own: Lanes, other: Other, v: View) -> Lanes:
    below = other.lanes(v.title, own.start, own.end)
    note = f"Of each pair of lines the lower is {other.name}, on the same axis. {v.note}"
    return merged(own, below, ("this", other.short), note)


def views(t: Timeline, chosen: Selection) -> Iterator[View]:
    """Of each picture, from when to when. Raises ArgumentError."""
    if chosen != Selection():
        start, end = _window(t, chosen)
        yield View(title="What was chosen", of=chosen, start=start, end=end)
        return
    multiplied = [op for own in t.program.ops for op in own if isinstance(op, ops.Multiply)]
    if len(multiplied) <= FEW:
        yield View(title="All of it", of=chosen, start=0, end=max(1, t.end))
        return
    first = Selection(tiles=(0, 1), blocks=(0, FIRST))
    _, end = _span(t, first)
    yield View(title=f"The beginning: K blocks 0 to {FIRST - 1}", of=first, start=0, end=end)
    tile, k = max((op.tile, op.k) for op in multiplied)
    products = (f for f in t.flights if f.carried in PRODUCTS)
    of_last = (f.start for f in products if f.op.tile == tile and f.op.k > k - LAST)
    # A measured timeline may have lost the stamps of all products.
    start = min(
        of_last, default=min((x.start for own in t.steps for x in own if x.cycles), default=0)
    )
    note = f"{NUMBERS} Other parts: --tiles A:B and --blocks A:B."
    title = f"The end, from tile {tile} on"
    yield View(title=title, of=chosen, start=start, end=t.end, note=note)


def _window(t: Timeline, chosen: Selection) -> tuple[int, int]:
    """As `_span`, but not nothing. Raises ArgumentError."""
    start, end = _span(t, chosen)
    if start == end:
        i = t.program.instance
        allowed = f"must hold some of {i.tiles} tiles and {max(i.counts)} K blocks"
        raise ArgumentError("--tiles, --blocks", (chosen.tiles, chosen.blocks), allowed)
    return start, end


def _span(t: Timeline, chosen: Selection) -> tuple[int, int]:
    """From the first to the last moment of anything chosen."""
    items: list[Step | Flight] = [*(s for own in t.steps for s in own), *t.flights]
    times = [(i.start, i.end) for i in items if chosen.holds(i.op)]
    return min((s for s, _ in times), default=0), max((e for _, e in times), default=0)


def _within(number: int, span: tuple[int, int] | None) -> bool:
    return span is None or span[0] <= number < span[1]


def to_json(t: Timeline) -> dict[str, Any]:
    """The figures of the page; the events are `chrome_trace`'s."""
    called = names(t.program.kernel, t.agents)
    ctas = sorted({a.cta for a in t.agents})
    return {
        "kernel": t.program.kernel.name,
        "k_blocks_by_tile": list(t.program.instance.counts),
        "cycles": t.end,
        "latency": asdict(t.latency),
        "tensor_core": [{"cta": c, "share": t.share(c), "kept": t.occupied(c)} for c in ctas],
        "warpgroups": [
            {
                "name": n,
                "begins": t.begins(i),
                "work": dict(t.work(i)),
                "waits": dict(t.waiting(i)),
                "over": t.over(i),
            }
            for i, n in enumerate(called)
        ],
    }
