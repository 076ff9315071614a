"""How often the loops of several ranks' launches run in what is proved of them: see prove.py."""

from __future__ import annotations

from typing import Any

from .instance import Instance


def together(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """Ranks that add their sums up: of two all that four launches can do to each other, so that each of two buffers is taken
    again, tiles that one CTA sends for another to finish, and CTAs that only send; of more, whom they wait for."""
    s = stages
    chosen = [
        *((1, 1, 2, 1, 4), (s + 1, 2, 2, 1, 3), (1, 3, 2, 2, 3), (2, 1, 3, 1, 3)),
        *((1, 1, 2, 2, 2), (1, 1, 4, 1, 2), (1, 1, 8, 1, 2)),
    ]
    if thorough:
        chosen += [(k, t, 2, c, 3) for k in range(1, s + 2) for t in (1, 2, 3) for c in (1, 2)]
        chosen += [(1, 1, 4, 2, 4), (1, 1, 8, 1, 3)]
    return tuple(_instance(*x) for x in dict.fromkeys(chosen))


def parcelled(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """The same where copy engines send their sums: of two ranks four launches, so that an outbox's buffers are taken again, several tiles in
    a parcel, several parcels, and tiles of one parcel that two CTAs pack; of more, whom they wait for."""
    s = stages
    chosen = [
        *((1, 1, 2, 1, 4, 1), (s + 1, 2, 2, 1, 3, 1), (1, 2, 2, 1, 4, 2), (1, 3, 2, 2, 3, 2)),
        *((2, 1, 3, 1, 3, 1), (1, 1, 2, 2, 2, 1), (1, 1, 4, 1, 2, 1), (1, 1, 8, 1, 2, 1)),
    ]
    if thorough:
        chosen += [
            (k, t, 2, c, 3, x)
            for k in (1, s + 1)
            for t in (1, 2, 3)
            for c in (1, 2)
            for x in (1, 2, 3)
        ]
        chosen += [(1, 2, 4, 2, 4, 2), (1, 1, 8, 1, 3, 1)]
    return tuple(_instance(*x, parcels=parcels) for *x, parcels in dict.fromkeys(chosen))


def gathered(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """Ranks that send each other their rows: of two all that four launches can do to each other; several tiles of a chunk, several
    chunks of a tile, and tiles that end within one, also of two CTAs that wait for different ones; of more, whom they wait for."""
    s = stages
    chosen = [
        *((1, 1, 2, 1, 4, 1), (s + 1, 2, 2, 1, 3, 1), (1, 1, 2, 1, 3, 2), (1, 2, 2, 2, 3, 2)),
        *((1, 3, 2, 2, 3, 2), (2, 1, 3, 1, 3, 1), (1, 1, 4, 1, 2, 1), (1, 1, 8, 1, 2, 1)),
    ]
    if thorough:
        chosen += [
            (k, t, 2, c, 3, x)
            for k in (1, 2, s, s + 1)
            for t in (1, 2, 3)
            for c in (1, 2)
            for x in (1, 2, 3)
        ]
        chosen += [(1, 2, 4, 2, 4, 2), (1, 1, 8, 1, 3, 2)]
    return tuple(_instance(*x, chunks=chunks) for *x, chunks in dict.fromkeys(chosen))


def alike(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """Ranks that all store the sum of all: of two all that four launches can do to each other, so that each of two buffers is taken again, tiles that one CTA sends before it waits for
    another, and CTAs that wait for different ones; of more, whom they wait for."""
    s = stages
    chosen = [
        *((1, 1, 2, 1, 4), (s + 1, 2, 2, 1, 3), (1, 3, 2, 2, 3), (2, 2, 3, 1, 3)),
        *((1, 2, 4, 1, 2), (1, 1, 8, 1, 2)),
    ]
    if thorough:
        chosen += [(k, t, 2, c, 3) for k in range(1, s + 2) for t in (1, 2, 3) for c in (1, 2)]
        chosen += [(1, 2, 4, 2, 4), (1, 1, 8, 1, 3)]
    return tuple(_instance(*x, every=True) for x in dict.fromkeys(chosen) if x[3] <= x[1])


def _instance(k: int, tiles: int, ranks: int, ctas: int, launches: int, **more: Any) -> Instance:
    """Of so many launches on each rank."""
    epochs = tuple(range(1, launches + 1))
    return Instance(k_blocks=k, tiles=tiles, ranks=ranks, ctas=ctas, epochs=epochs, **more)
