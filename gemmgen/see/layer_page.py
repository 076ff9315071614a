"""A layer of experts as a page: its launches, their times on one axis, and its memory; and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .layer import Held, Launched, Layer
from .page import Bar, Facts, Headline, Lane, Lanes, Page, Table, count, microseconds, scaled

# Letter and colour.
MARKS = {
    "route": ("R", 7),
    "cast": ("Q", 3),
    "spread": ("S", 6),
    "GEMM 1": ("1", 4),
    "GEMM 2": ("2", 5),
    "combine": ("C", 2),
}
MEMORY_HUE = 1
PER_US = 1000  # steps of the pictures' axis: nanoseconds


def page(layers: tuple[Layer, ...]) -> Page:
    """Of one layer at one or more numbers of tokens."""
    sizes = ", ".join(f"{name} {n}" for name, n in layers[0].sizes.items())
    named = layers[0].name or "a layer"
    title = f"{named} on {layers[0].target.name}: {sizes}; FP8 with block scales"
    return Page(title=title, blocks=tuple(b for x in layers for b in blocks(x)))


def blocks(x: Layer) -> tuple[Headline | Facts | Table | Lanes, ...]:
    return _headline(x), _launches(x), _gemms(x), _timeline(x), _memory(x), _held(x)


def _headline(x: Layer) -> Headline:
    gemms = sum(launch.seconds for launch in x.launches if launch.config)
    tokens = "1 token" if x.tokens == 1 else f"{x.tokens} tokens"
    return Headline(
        title=tokens,
        says=f"{tokens}: {microseconds(x.seconds)} us modelled in {len(x.launches)} launches, {x.seconds / gemms:.3f} of the two GEMMs.",
        more=(
            f"Memory above weights and result: {scaled(x.peak, 'B')} at most, with room for any choice: {count(x.rows)} rows. "
            f"That is {x.peak / max(1, x.least):.3f} of the least, of rows without gaps. Nothing was timed: each launch is priced by itself, with a cold L2.",
        ),
    )


def _launches(x: Layer) -> Table:
    rows = tuple(
        (
            launch.does,
            launch.kernel,
            f"{launch.ctas} x {launch.threads}",
            scaled(sum(launch.reads.values()), "B"),
            scaled(sum(launch.writes.values()), "B"),
            microseconds(launch.seconds),
        )
        for launch in x.launches
    )
    note = (
        f"grid: CTAs x threads. Bytes are those of {x.expected_rows} rows of each of {x.expected_groups} experts, which is also what configs are chosen "
        f"for. Times: {'; '.join(_sources(x))}."
    )
    return Table(
        title=f"Launches of {x.tokens}",
        columns=("launch", "kernel", "grid", "reads", "writes", "us"),
        rows=rows,
        note=note,
        lengths=tuple(launch.seconds for launch in x.launches),
    )


def _sources(x: Layer) -> list[str]:
    """By what launches are priced, and which."""
    sources = dict.fromkeys(launch.source for launch in x.launches)
    named = {s: [launch.does for launch in x.launches if launch.source == s] for s in sources}
    return [f"{', '.join(does)} {source}" for source, does in named.items()]


def _gemms(x: Layer) -> Facts:
    items = [
        (f"{launch.does} {name}" if name else launch.does, text)
        for launch in x.launches
        for name, text in launch.config.items()
    ]
    return Facts(title="GEMMs", items=tuple(items))


def _nanoseconds(x: Layer) -> list[int]:
    """When each launch begins, and the last ends."""
    found = [0]
    for launch in x.launches:
        found.append(found[-1] + max(1, round(launch.seconds * 1e6 * PER_US)))
    return found


def _timeline(x: Layer) -> Lanes:
    at = _nanoseconds(x)
    lanes = tuple(
        Lane(name=launch.does, bars=(_bar(launch, at[i], at[i + 1]),))
        for i, launch in enumerate(x.launches)
    )
    marks = ((*MARKS[launch.does], launch.does) for launch in x.launches)
    return Lanes(
        title=f"Launches of {x.tokens} one after the other, modelled",
        start=0,
        end=at[-1],
        unit="ns",
        lanes=lanes,
        legend=tuple(marks),
        note="What lies between launches is not modelled.",
    )


def _bar(launch: Launched, start: int, end: int) -> Bar:
    took = f"{microseconds(launch.seconds)} us"
    tip = f"{launch.does}: {launch.kernel}, {launch.ctas} CTAs, {scaled(launch.bytes, 'B')}, {took}"
    label = f"{launch.does} {took}"
    mark, hue = MARKS[launch.does]
    return Bar(start=start, end=end, mark=mark, hue=hue, label=label, tip=tip)


def _memory(x: Layer) -> Lanes:
    at = _nanoseconds(x)
    lanes = tuple(
        Lane(name=held.name, bars=(_held_bar(held, at[held.first], at[held.last + 1]),))
        for held in x.held
    )
    return Lanes(
        title=f"Memory of {x.tokens}: what is held when",
        start=0,
        end=at[-1],
        unit="ns",
        lanes=lanes,
        legend=(("M", MEMORY_HUE, "allocated by the layer"),),
        note="On the host memory is given back when the next launch is on the stream; torch's allocator rounds each tensor up to 512 bytes.",
    )


def _held_bar(held: Held, start: int, end: int) -> Bar:
    size = scaled(held.bytes, "B")
    return Bar(
        start=start, end=end, mark="M", hue=MEMORY_HUE, label=size, tip=f"{held.name}: {size}"
    )


def _held(x: Layer) -> Table:
    does = [launch.does for launch in x.launches]
    rows = tuple(
        (held.name, count(held.bytes), does[held.first], does[held.read], does[held.last])
        for held in x.held
    )
    most = max(range(len(does)), key=x.during)
    note = (
        f"Most at once: {count(x.peak)} bytes, during {does[most]}; {count(x.least)} of rows without gaps, if each were free once it was read. Besides: "
        f"{scaled(x.weights, 'B')} of weights, {scaled(x.output, 'B')} of the result."
    )
    return Table(
        title=f"Memory of {x.tokens}",
        columns=("tensor", "bytes", "written by", "last read by", "held until"),
        rows=rows,
        note=note,
    )


def to_json(x: Layer) -> dict[str, Any]:
    """Seconds and bytes, with all digits."""
    found = asdict(x) | {"target": x.target.name, "figures": x.target.figures}
    return found | {"seconds": x.seconds, "peak_bytes": x.peak, "least_bytes": x.least}
