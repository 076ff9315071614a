"""Which tiles are worth costing: of what sides, by how many warpgroups, in which clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..config import Config
from ..cost import count_tiles, selects
from ..cost_launch import ROWS_OF_GROUPS, ceil, promotes
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from ..passes import check_tile
from ..passes.split_scales import copied
from ..problem import Problem, Shape
from ..recipes import recipe
from ..target import Target
from .pieces import in_pieces
from .ping_pong import in_turns
from .room import PROBE

ROWS = ((64, 1), (128, 2), (256, 2))  # block_m and the consumer warpgroups that share it
# Where they promote, a third hides what two do not (docs/findings.md).
PROMOTED_ROWS = ((64, 1), (128, 2), (192, 3), (256, 2))
THREE = 3  # a promotion by selects leaves them no issue slots: 192x120 takes 1.2 of 192x128
# The same with A and B exchanged, of block_n; worth costing for so many rows.
COLUMNS, FEW_ROWS = ((64, 1), (128, 2), (256, 2)), 64
# Of the K loop: 128x192 (2 copies) gains up to 10 % from `unroll=4`, 128x144 (8) loses as much; 4 were not timed.
FEW_COPIES = 4
SWIZZLE_SPAN = 128  # bytes
MN_MAJOR_SPAN = 64  # bytes of N: a block_n of whole ones has a swizzle this wide, and few boxes
SPLITS, LEAST_SHARE = (2, 4, 8), 4  # CTAs that may divide K, and K blocks that each has at least
ANY = 0  # CTAs that divide K: as many as pay


def bare(
    problem: Problem, shape: Shape, target: Target, groups: int, rows: int, split_k: int = ANY
) -> Iterator[Config]:
    """Configs worth costing, with PROBE stages, before their raster is chosen, which is priced alike: see
    `heuristics.candidates`. split_k: so many CTAs divide K, whether or not all run at once."""
    for plain in (*_tiles(problem, shape, target, rows), *_swapped_tiles(problem, shape)):
        if split_k > 1:
            yield from _shared(plain, problem, shape, (split_k,))
            continue
        for tile in (plain, *in_turns(problem, plain, shape, target, groups)):
            for multicast in _multicasts(tile, shape, target, groups):
                yield _with(tile, multicast=multicast) if multicast != "none" else tile
        if split_k == ANY:
            at_once = count_tiles(plain, shape, groups)  # each becomes a cluster
            few = (n for n in SPLITS if at_once <= target.clusters(n))
            yield from _shared(plain, problem, shape, few)


def _probe(problem: Problem, **tile: Any) -> Config:
    in_flight = 0 if promotes(problem) else 1
    c = Config(stages=PROBE, in_flight=in_flight, **tile)
    # Of two waves: up to 3 % faster than unrolled by 4, at worst 1 % slower, and the K loop is there once, not five times.
    if c.waves > 1 and recipe(problem.family).unroll > 1 and not (c.swap_ab or problem.a.integer):
        return _with(c, peek=True)
    unroll = _unroll(problem, c)
    return c if unroll == c.unroll else _with(c, unroll=unroll)


def _with(c: Config, **changes: Any) -> Config:
    """As `replace`, in a third of its time: a choice makes hundreds."""
    return Config(**(vars(c) | changes))


def _unroll(problem: Problem, tile: Config) -> int:
    """Less of a loop that is copied often: its code adds up; or of INT8 (`split-unroll`)."""
    many = len(copied(tile.block_n)) * (recipe(problem.family).scales_blocks and not tile.swap_ab)
    less = many > FEW_COPIES or (many > 1 and problem.a.integer)
    return min(2 if less else 4, recipe(problem.family).unroll)


def _shared(c: Config, problem: Problem, shape: Shape, splits: Iterable[int]) -> Iterator[Config]:
    """`c` with each number of CTAs that has K blocks enough to divide."""
    if GROUPINGS[problem.grouping].depths:
        return
    blocks = ceil(shape[2] * problem.a.bytes, c.block_k_bytes)
    for n in splits:
        if blocks >= n * LEAST_SHARE:
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
