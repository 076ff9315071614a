"""How often loops run in what is proved of ranks that all store the sum of all."""

from __future__ import annotations

from .instance import Instance


def alike(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """Of two ranks all that four launches can do to each other, so that each of two buffers is taken again, tiles that one CTA sends before it waits for
    another, and CTAs that wait for different ones; of more, whom they wait for."""
    s = stages
    chosen = [
        *((1, 1, 2, 1, 4), (s + 1, 2, 2, 1, 3), (1, 3, 2, 2, 3), (2, 2, 3, 1, 3)),
        *((1, 2, 4, 1, 2), (1, 1, 8, 1, 2)),
    ]
    if thorough:
        chosen += [(k, t, 2, c, 3) for k in range(1, s + 2) for t in (1, 2, 3) for c in (1, 2)]
        chosen += [(1, 2, 4, 2, 4), (1, 1, 8, 1, 3)]
    return tuple(
        Instance(
            k_blocks=k,
            tiles=t,
            ranks=ranks,
            ctas=ctas,
            epochs=tuple(range(1, launches + 1)),
            every=True,
        )
        for k, t, ranks, ctas, launches in dict.fromkeys(chosen)
        if ctas <= t
    )
