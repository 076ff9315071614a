"""Choose a config for a problem and a shape: enumerate, cost, lower only as many as asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from ..config import FIELDS, Config
from ..cost import Cost, cost, count_tiles, priced, selects
from ..cost_launch import ROWS_OF_GROUPS, Launch, ceil, launch, promotes
from ..errors import IllegalConfig
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from ..passes import check_tile, layout_smem, plan_multicast, split_registers
from ..passes.layout_smem import most_stages
from ..passes.split_scales import copied
from ..pipeline import lower
from ..problem import Problem, Shape, check_shape
from ..target import Target
from . import room
from .pieces import in_pieces
from .rasters import PANELS as PANELS
from .rasters import wave_rows as wave_rows
from .rasters import with_raster
from .room import PROBE as PROBE
from .verdict import Choice as Choice
from .verdict import Verdict as Verdict

ROWS = ((64, 1), (128, 2), (256, 2))  # block_m and the consumer warpgroups that share it
# Where they promote, a third hides what two do not (docs/performance.md).
PROMOTED_ROWS = ((64, 1), (128, 2), (192, 3), (256, 2))
THREE = 3  # a promotion by selects leaves them no issue slots: 192x120 takes 1.2 of 192x128
# The same with A and B exchanged, of block_n; worth costing for so many rows.
COLUMNS, FEW_ROWS = ((64, 1), (128, 2), (256, 2)), 64
MOST_STAGES = max(s for s in range(1, 257) if FIELDS["stages"][1](s))
# K blocks, 1 elsewhere: worth 3 % to 10 % where they are promoted (docs/performance.md). With a scale for every
# column ptxas spills the largest tiles.
UNROLL = {"fp8_block": 4, "fp8": 4}
# Of the K loop: 128x192 (2 copies) gains up to 10 % from `unroll=4`, 128x144 (8) loses as much; 4 were not timed.
FEW_COPIES = 4
# What the same tile without multicast may be free of.
ONLY_SHARED = (*plan_multicast.RULES, check_tile.SEGMENT_TILE)
SWIZZLE_SPAN = 128  # bytes
MN_MAJOR_SPAN = 64  # bytes of N: a block_n of whole ones has a swizzle this wide, and few boxes
SPLITS, LEAST_SHARE = (2, 4, 8), 4  # CTAs that may divide K, and K blocks that each has at least

Tile = tuple[bool, int, int, int, int]  # swap_ab, block_m, block_n, consumers, split_k


def choose(problem: Problem, shape: Shape, target: Target, groups: int = 1) -> Config:
    """The cheapest legal config for `groups` GEMMs of shape (M, N, K) in one launch.

    Raises ArgumentError for a side below 1, UnsupportedProblem if no family computes the problem,
    IllegalConfig if no candidate is legal.
    """
    return rank(problem, shape, target, limit=1, groups=groups)[0].config


def rank(
    problem: Problem, shape: Shape, target: Target, limit: int | None = None, groups: int = 1
) -> list[Choice]:
    """Legal configs, cheapest first, at most `limit`. Raises like `choose`."""
    found = _verdicts(problem, shape, target, limit, groups, quick=True)
    choices = [v.choice for v in found if v.choice]
    if not choices:
        every = verdicts(problem, shape, target, limit, groups)
        refused = [v.refused for v in every if v.refused and v.refused.rule not in ONLY_SHARED]
        if refused:
            raise refused[0]
    return choices


def verdicts(
    problem: Problem, shape: Shape, target: Target, limit: int | None = None, groups: int = 1
) -> list[Verdict]:
    """Candidates, cheapest first, up to the `limit`-th that is legal. Raises ArgumentError and
    UnsupportedProblem like `choose`."""
    return _verdicts(problem, shape, target, limit, groups, quick=False)


def _verdicts(
    problem: Problem, shape: Shape, target: Target, limit: int | None, groups: int, *, quick: bool
) -> list[Verdict]:
    """quick: without those that have no room, whose error nobody asks for."""
    if limit == 0:
        return []
    of = launch(problem, shape, target, groups)
    for rows in (
        shape[0],
        ROWS[-1][0],
    ):  # larger tiles, where those that just cover M are all illegal
        found: list[Verdict] = []
        legal = 0
        for v in _judged(of, rows, quick=quick):
            found.append(v)
            legal += v.choice is not None
            if legal == limit:
                break
        if legal:
            break
    return found


def _judged(of: Launch, rows: int, *, quick: bool) -> Iterator[Verdict]:
    """Candidates whose tiles cover `rows`, cheapest first. Lowers no more than are asked for."""
    problem, shape, target = of.problem, of.shape, of.target
    costed = [(c, priced(of, c).seconds) for c in _bare(problem, shape, target, of.groups, rows)]
    refused: dict[Tile, Verdict] = {}  # tiles no multicast can save
    without_room: dict[Tile, bool] = {}
    for bare, _ in _in_order(costed):
        tile = (bare.swap_ab, bare.block_m, bare.block_n, bare.consumers, bare.split_k)
        if quick and tile not in without_room:
            without_room[tile] = room.has_none(problem, bare, shape, target)
        if without_room.get(tile):
            continue
        c = with_raster(bare, shape, target)
        price = cost(problem, c, shape, target, of.groups)
        known = refused.get(tile) or _overflowed(tile, refused)
        if known:
            yield replace(known, config=c, cost=price)
            continue
        verdict = judge(problem, c, price, shape, target)
        if not verdict.choice and not (verdict.refused and verdict.refused.rule in ONLY_SHARED):
            refused[tile] = verdict
        yield verdict


def judge(problem: Problem, c: Config, price: Cost, shape: Shape, target: Target) -> Verdict:
    """Whether `c` is legal with as many stages as fit and hide latency. Raises UnsupportedProblem."""
    try:
        staged = _staged(problem, c, shape, target)
    except IllegalConfig as error:
        return Verdict(config=c, cost=price, refused=error, by=c)
    choice = Choice(config=staged, cost=price, why=_why(staged, price)) if staged else None
    return Verdict(config=c, cost=price, choice=choice, by=c)


def _overflowed(tile: Tile, refused: dict[Tile, Verdict]) -> Verdict | None:
    """The verdict on a tile no larger than `tile` that had too much of something: so has `tile`."""
    for small, verdict in refused.items():
        rule = verdict.refused.rule if verdict.refused else None
        fits = all(side <= larger for side, larger in zip(small, tile, strict=True))
        # One consumer needs registers for INT8's conversions that two do not.
        registers = rule is split_registers.REGISTER_BUDGET and small[3] == tile[3]
        if fits and small[0] == tile[0] and (registers or rule in layout_smem.RULES):
            return verdict
    return None


def candidates(
    problem: Problem, shape: Shape, target: Target, groups: int = 1, rows: int = 1
) -> Iterator[Config]:
    """Configs worth costing, legal or not, with PROBE stages and their raster chosen.

    A and B are exchanged only for few rows, K is divided only among SMs that have nothing else to do. No
    tile is much larger than the smallest that covers a side of D, or `rows` if that is more, and none is
    multicast unless it takes more than one wave and a cluster finds two tiles to share. Raises
    ArgumentError for a side below 1.
    """
    check_shape(shape)
    for c in _bare(problem, shape, target, groups, rows):
        yield with_raster(c, shape, target)


def _bare(
    problem: Problem, shape: Shape, target: Target, groups: int, rows: int
) -> Iterator[Config]:
    """`candidates` before their raster is chosen, which is priced alike."""
    for plain in (*_tiles(problem, shape, target, rows), *_swapped_tiles(problem, shape)):
        for multicast in _multicasts(plain, shape, target, groups):
            yield _with(plain, multicast=multicast) if multicast != "none" else plain
        yield from _divided(plain, problem, shape, target, groups)


def _probe(problem: Problem, **tile: Any) -> Config:
    in_flight = 0 if promotes(problem) else 1
    c = Config(stages=PROBE, in_flight=in_flight, **tile)
    unroll = _unroll(problem, c)
    return c if unroll == c.unroll else _with(c, unroll=unroll)


def _with(c: Config, **changes: Any) -> Config:
    """As `replace`, in a third of its time: a choice makes hundreds."""
    return Config(**(vars(c) | changes))


def _unroll(problem: Problem, tile: Config) -> int:
    """Less of a loop that is copied often: its code adds up; or of INT8 (`split-unroll`)."""
    many = len(copied(tile.block_n)) * (problem.family == "fp8_block" and not tile.swap_ab)
    less = many > FEW_COPIES or (many > 1 and problem.a.integer)
    return min(2 if less else 4, UNROLL.get(problem.family, 1))


def _divided(
    c: Config, problem: Problem, shape: Shape, target: Target, groups: int
) -> Iterator[Config]:
    """`c` with each number of CTAs that all run at once and have K blocks enough to divide."""
    if GROUPINGS[problem.grouping].depths:
        return
    blocks = ceil(shape[2] * problem.a.bytes, c.block_k_bytes)
    tiles = count_tiles(c, shape, groups)  # each becomes a cluster
    for n in SPLITS:
        if tiles <= target.clusters(n) and blocks >= n * LEAST_SHARE:
            yield _with(c, split_k=n, d_columns=None)  # rule `column-stores`


def _tiles(problem: Problem, shape: Shape, target: Target, least: int) -> Iterator[Config]:
    rows = PROMOTED_ROWS if promotes(problem) else ROWS
    # 128 columns of D that share a scale are 256 of the product, more than one part promotes.
    paired = problem.quantised and fold(problem.epilogue) > 1
    parts = 2 if paired and promotes(problem) else 1
    for block_m, consumers in _up_to(rows, max(least, _most_rows(problem, shape))):
        for block_n in _columns(problem, shape, target):
            if consumers == THREE and selects(problem, block_n):
                continue
            tile = {"block_m": block_m, "block_n": block_n, "consumers": consumers}
            yield from in_pieces(problem, _probe(problem, parts=parts, **tile))


def _swapped_tiles(problem: Problem, shape: Shape) -> Iterator[Config]:
    """Of no more rows than cover M, or a larger group than the mean."""
    if shape[0] > FEW_ROWS or fold(problem.epilogue) > 1 or problem.d.bytes == 1:
        return
    most = _most_rows(problem, shape)
    # An MN-major A is as wide as its widest swizzle; above 32 integers have N in steps of 16.
    step = SWIZZLE_SPAN // problem.a.bytes if problem.mn_major[0] else 8
    for block_m in range(step, min(FEW_ROWS, ceil(most, step) * step) + 1, step):
        if block_m > check_tile.FINE_N and block_m % problem.a.wgmma_n_step:
            continue
        for block_n, consumers in _up_to(COLUMNS, shape[1]):
            tile = {"block_m": block_m, "block_n": block_n, "consumers": consumers}
            yield _probe(problem, swap_ab=True, **tile)


def _most_rows(problem: Problem, shape: Shape) -> int:
    """Of a group; M is their mean if they vary."""
    return round(shape[0] * (ROWS_OF_GROUPS[-1] if GROUPINGS[problem.grouping].ragged else 1))


def _up_to(rows: tuple[tuple[int, int], ...], m: int) -> Iterator[tuple[int, int]]:
    for block_m, consumers in rows:
        yield block_m, consumers
        if block_m >= m:
            return


def _columns(problem: Problem, shape: Shape, target: Target) -> range:
    step = MN_MAJOR_SPAN // problem.b.bytes if problem.mn_major[1] else problem.a.wgmma_n_step
    # D's rows are whole pieces of 16 bytes, or whole blocks that share a scale.
    step = max(step, (128 if problem.quantised else 8) * fold(problem.epilogue))
    most = ceil(shape[1], 2 * step) * 2 * step  # an even multiple: D's rows may need it to swizzle
    return range(step, min(target.tma_box, most) + 1, step)


def _multicasts(c: Config, shape: Shape, target: Target, groups: int) -> tuple[str, ...]:
    m, n, _ = shape
    if count_tiles(c, shape, groups) <= target.sms:
        return ("none",)
    sharing = {"a": n > c.block_n, "b": m > c.block_m}  # A is shared along N, B along M
    return ("none", *(operand for operand, pays in sharing.items() if pays))


def _in_order(costed: list[tuple[Config, float]]) -> Iterator[tuple[Config, float]]:
    # Python sorts stably: between equals the order of enumeration has the last word.
    for _, tied in groupby(sorted(costed, key=lambda x: x[1]), key=lambda x: x[1]):
        yield from _break_ties(list(tied))


def _break_ties(tied: list[tuple[Config, float]]) -> Iterable[tuple[Config, float]]:
    """Same block_m: smaller block_n. Then, of each block_m's best, the larger block_n, and of equal
    ones the smaller block_m. (Pair by pair DeepGEMM's rule is no order: it has cycles.)"""
    if len(tied) == 1:
        return tied
    tiles = sorted({(c.block_m, c.block_n) for c, _ in tied})
    place = {t: sum(t[0] == s[0] and s < t for s in tiles) for t in tiles}
    return sorted(
        tied, key=lambda x: (place[x[0].block_m, x[0].block_n], -x[0].block_n, x[0].block_m)
    )


def _staged(problem: Problem, config: Config, shape: Shape, target: Target) -> Config | None:
    """`config` with the most stages that fit and K can use; None if they are too few to hide
    latency. Raises IllegalConfig."""
    fit = most_stages(lower(problem, config, target), target)
    stages = min(fit, room.useful_stages(problem, config, shape), MOST_STAGES)
    enough = stages >= room.needed_stages(problem, config, shape)
    return replace(config, stages=stages) if enough else None


def _why(config: Config, price: Cost) -> str:
    (bound, seconds), *_ = price.parts.items()
    return (
        f"{price.tiles} tiles in {price.waves} wave(s), {price.last_wave_use:.0%} of the SMs in "
        f"the last; {config.stages} stages; {price.seconds * 1e6:.1f} us, of which {bound} alone "
        f"{seconds * 1e6:.1f} us"
    )
