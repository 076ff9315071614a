"""How often the loops of several ranks' launches run in what is proved of them: see prove.py."""

from __future__ import annotations

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
    return tuple(
        Instance(k_blocks=k, tiles=t, ranks=ranks, ctas=ctas, epochs=tuple(range(1, launches + 1)))
        for k, t, ranks, ctas, launches in dict.fromkeys(chosen)
    )


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
    return tuple(
        Instance(
            k_blocks=k,
            tiles=t,
            ranks=ranks,
            ctas=ctas,
            epochs=tuple(range(1, launches + 1)),
            parcels=parcels,
        )
        for k, t, ranks, ctas, launches, parcels in dict.fromkeys(chosen)
    )


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
    return tuple(
        Instance(
            k_blocks=k,
            tiles=t,
            ranks=ranks,
            ctas=ctas,
            epochs=tuple(range(1, launches + 1)),
            chunks=chunks,
        )
        for k, t, ranks, ctas, launches, chunks in dict.fromkeys(chosen)
    )
