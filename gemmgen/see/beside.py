"""Two timelines in one picture, on one axis: each line of the one above that of the other."""

from __future__ import annotations

from .page import Lane, Lanes


def merged(upper: Lanes, lower: Lanes, kinds: tuple[str, str], note: str) -> Lanes:
    """kinds: what each is called, behind the names of its lines. The axis is as long as both need."""
    found = {
        kind: {x.name: x.bars for x in p.lanes}
        for kind, p in zip(kinds, (upper, lower), strict=True)
    }
    names = dict.fromkeys(x.name for p in (upper, lower) for x in p.lanes)
    return Lanes(
        title=upper.title,
        start=min(upper.start, lower.start),
        end=max(upper.end, lower.end),
        unit=upper.unit,
        lanes=tuple(
            Lane(name=f"{name}, {kind}", bars=lines[name])
            for name in names
            for kind, lines in found.items()
            if name in lines
        ),
        legend=tuple(sorted({*upper.legend, *lower.legend}, key=lambda e: (e[1], e))),
        note=note,
    )
