"""What one case is, and random ones. All that is random follows from the case's seed, on any machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from .kind import Kind
from .kinds import KINDS

Shape = tuple[int, int, int]

SIDES = (1, 7, 8, 15, 16, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257)
LONG = (
    132 * 64 - 1,
    132 * 64 + 1,
    132 * 128 - 1,
    132 * 128 + 1,
)  # around one tile for each of 132 SMs
DEPTHS = (1, 7, 8, 15, 16, 63, 64, 65, *(64 * i + d for i in range(2, 18) for d in (-1, 0, 1)))
KEY_DEPTHS = (32, 64, 128)  # of an indexer
QUERIES = 4  # of a sequence whose keys lie in pages
GROUPS = ((), (0,), (0, 0, 0), (1,), (0, 1, 0), (257,), (0, 300, 0), (129, 1, 65), (130,) * 3)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call. sizes: of each group, of A's rows or along K; for batched and summed only their number counts. Of scores m, n and k are
    queries, keys and what both have of each; in pages of each sequence, whose longest context is its size, up to n.
    seed: of its data, its strides and offsets. turn: which of several data over the same layout."""

    kind: str
    m: int
    n: int
    k: int
    sizes: tuple[int, ...] = ()
    seed: int = 0
    turn: int = 0

    @property
    def grouping(self) -> str:
        return KINDS[self.kind].grouping

    def __str__(self) -> str:
        sizes = f" groups={list(self.sizes)}" if self.grouping != "none" else ""
        return f"{self.kind}: {self.m}x{self.n}x{self.k}{sizes} seed={self.seed}"


def side(rng: Random, most: int = 600) -> int:
    return rng.choice(SIDES) if rng.random() < 0.6 else rng.randint(1, most)


def depth(rng: Random) -> int:
    return rng.choice(DEPTHS) if rng.random() < 0.6 else rng.randint(1, 1300)


def random_case(name: str, seed: int) -> Case:
    """A shape of the kind `name`, at tile sides more often than not; once in a while none, or a long one."""
    rng = Random(seed)
    m, n, k = side(rng), side(rng), depth(rng)
    kind = KINDS[name]
    if kind.scored:
        return random_scores(name, rng, seed)
    if kind.grouping == "none":
        draw = rng.random()
        if draw < 0.01:
            m = 0
        elif draw < 0.03:
            m, k = rng.choice(LONG), rng.choice((16, 64, 128))
        return Case(kind=name, m=m, n=n, k=k, seed=seed)
    return grouped(name, (m, n, k), random_sizes(rng, kind), seed)


def random_scores(name: str, rng: Random, seed: int) -> Case:
    """Queries and keys, once in a while few of so many that CTAs have runs of tiles, or none; in pages some queries of each sequence."""
    kind = KINDS[name]
    m, n = side(rng, 300), side(rng)
    k = rng.choice(KEY_DEPTHS) if rng.random() < 0.8 else rng.randint(1, 300)
    k = min(k, deepest(kind))
    draw = rng.random()
    if draw < 0.02:
        m = 0
    elif draw < 0.06:
        m, n = rng.randint(1, 8), rng.choice(LONG)
    sizes: tuple[int, ...] = ()
    if kind.page:
        m, sizes = rng.randint(1, QUERIES), random_sizes(rng, kind)
        sizes = tuple(rng.choice((s, s, n)) for s in sizes)
    return Case(kind=name, m=m, n=n, k=k, sizes=sizes, seed=seed)


def deepest(kind: Kind) -> int:
    """The greatest K that it takes."""
    return kind.config.block_k_bytes if kind.config and kind.config.one_block else LONG[-1]


def random_sizes(rng: Random, kind: Kind) -> tuple[int, ...]:
    if rng.random() < 0.2:
        return rng.choice(GROUPS)
    count = rng.randint(1, 9)
    return tuple(rng.choice((0, 1, side(rng), side(rng, 300))) for _ in range(count))


def grouped(name: str, shape: Shape, sizes: tuple[int, ...], seed: int) -> Case:
    """A case whose groups have `sizes`, as far as its kind allows them, with room for all of them."""
    kind, rng = KINDS[name], Random(seed + 1)
    m, n, k = shape
    if kind.scored:
        m, k = min(m, QUERIES) if kind.page else m, min(k, max(KEY_DEPTHS), deepest(kind))
    match kind.grouping:
        case "none":
            sizes = ()
        case "batched":
            pass
        case "summed":
            sizes = sizes or (1,)
        case "masked":
            m = max((m, *sizes))
        case "rows" | "ends":
            sizes = sizes or (1,)
            m = max(1, sum(up(s, 128) for s in sizes) + rng.choice((0, 0, 1, 128)))
        case _:
            step = depth_step(kind)
            sizes = tuple(up(s, step) for s in sizes) or (step,)
            k = max(step, sum(sizes) + rng.choice((0, 0, step)))
    return Case(kind=name, m=m, n=n, k=k, sizes=sizes, seed=seed)


def depth_step(kind: Kind) -> int:
    """K of a group is a multiple of this."""
    return 128 if kind.scales else 1 if kind.layout == "tn" else 8


def up(x: int, step: int) -> int:
    return -(-x // step) * step


def smaller(case: Case) -> list[Case]:
    """Cases with one side halved, or half of the groups."""
    found = []
    if case.grouping == "none":
        sides = [("m", case.m), ("n", case.n), ("k", case.k)]
    else:
        half = len(case.sizes) // 2
        lists = [case.sizes[:half], case.sizes[half:]] if half else []
        lists += [tuple(s // 2 for s in case.sizes)] if any(case.sizes) else []
        shape = (max(1, case.m // 2), case.n, case.k)
        found = [grouped(case.kind, shape, sizes, case.seed) for sizes in lists]
        sides = [("n", case.n)] + ([("m", case.m)] if case.grouping == "k" else [("k", case.k)])
    found += [replace(case, **{name: value // 2}) for name, value in sides if value > 1]
    return [c for c in found if c != case and (c.m, c.n, c.k) <= (case.m, case.n, case.k)]
