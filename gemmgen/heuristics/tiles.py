"""Which tiles are worth costing: of what sides, by how many warpgroups, in which clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..config import Config
from ..cost import selects
from ..cost_launch import Workload, ceil
from ..ir.expr import fold
from ..ir.row_sums import fold_rows
from ..ir.stores import OUTPUT_SCALE_BLOCK
from ..levers import LEVERS, MORE
from ..levers.lever import AS_IT_IS, Changes, Lever
from ..levers.split_k import ANY as ANY
from ..passes import check_tile
from ..problem import Problem, Shape
from ..target import Target
from .room import PROBE

ROWS = ((64, 1), (128, 2), (256, 2))  # block_m and the consumer warpgroups that share it
# Where they promote, a third hides what two do not (docs/findings.md).
PROMOTED_ROWS = ((64, 1), (128, 2), (192, 3), (256, 2))
THREE = 3  # a promotion by selects leaves them no issue slots: 192x120 takes 1.2 of 192x128
# The same with A and B exchanged, of block_n; worth costing for so many rows.
COLUMNS, FEW_ROWS = ((64, 1), (128, 2), (256, 2)), 64
# Rows of tiles whose weights are decoded. 256 x 128 took 1.2 of 128 x 256 (docs/findings.md).
CODED_ROWS = (8, 16, 24, 32, 48, 64, 96, 128, 192)
# Up to how many rows of them warpgroups of a CTA divide K, and how many: 8192 x 8192 and 28672 x 4096, where two and four were alike.
# With 64 tiles, 4096 x 7168, that takes 1.2 of two CTAs that divide K. Of more rows two are quicker than three by 3 to 10 % where they are 64
# or 128 (FP8 by MXFP4 at 8192 x 8192 and 7168 x 2048, one H200).
SLICED_ROWS, SLICES, FEWER_SLICES, SLICED_SMS = 32, 3, 2, 0.75
# Stages for each, of which it holds two: two for each of 128 rows of 16 bits took 1.15 to 1.4 of one warpgroup with five.
SLICED_STAGES = 3
SUMMED = 128  # rows of the product in a tile whose epilogue sums some
SWIZZLE_SPAN = 128  # bytes
MN_MAJOR_SPAN = 64  # bytes of N: a block_n of whole ones has a swizzle this wide, and few boxes


def bare(of: Workload, rows: int) -> Iterator[Config]:
    """Configs worth costing, with PROBE stages, before their raster is chosen, which is priced alike: see
    `heuristics.candidates`."""
    offering = [x for x in reversed(LEVERS) if x.offers]
    limiting = [x for x in LEVERS if x.beside is not None]
    if fold_rows(of.problem.epilogue) > 1:
        yield _row_sums(of)
        return
    swapped = () if of.problem.squares else _swapped_tiles(of)
    sides = _coded_tiles(of) if of.recipe.coded else (*_tiles(of, rows), *swapped)
    for tile in sides:
        probed: Changes = {"stages": PROBE, **tile}
        found = [Config(**probed)]
        for lever in offering:
            found = [
                _with(c, changes) for c in found for changes in _offers(of, c, lever, limiting)
            ]
        yield from found


def _offers(of: Workload, c: Config, lever: Lever, limiting: list[Lever]) -> Iterable[Changes]:
    for x in limiting:
        if lever.name not in (x.beside or ()) and not x.plain(c):
            return AS_IT_IS
    return lever.offers(of, c) if lever.offers else AS_IT_IS


def _with(c: Config, changes: Changes) -> Config:
    """As `having`, in a third of its time: a choice makes hundreds."""
    if not changes:
        return c
    if not MORE.keys().isdisjoint(changes):
        return c.having(**changes)
    return Config(**(vars(c) | changes))


def _tiles(of: Workload, least: int) -> Iterator[Changes]:
    problem, shape, target = of.problem, of.shape, of.target
    rows = PROMOTED_ROWS if of.promotes else ROWS
    for block_m, consumers in _up_to(rows, max(least, max(of.rows))):
        for block_n in _columns(problem, shape, target):
            if consumers == THREE and selects(problem, block_n):
                continue
            yield {"block_m": block_m, "block_n": block_n, "consumers": consumers}


def _swapped_tiles(of: Workload) -> Iterator[Changes]:
    """Of no more rows than cover M, or a larger group than the mean; of up to twice as many, such that two just cover."""
    problem, shape = of.problem, of.shape
    tiles = ceil(of.height, FEW_ROWS)
    if tiles > (2 if len(of.rows) == 1 else 1):
        return
    most = max(of.rows) if tiles == 1 else ceil(of.height, tiles)
    # An MN-major A is as wide as its widest swizzle; above 32 integers have N in steps of 16.
    step = SWIZZLE_SPAN // problem.a.bytes if problem.mn_major[0] else 8
    largest = min(FEW_ROWS, ceil(most, step) * step)
    for block_m in range(step if tiles == 1 else largest, largest + 1, step):
        if block_m > check_tile.FINE_N and block_m % problem.a.wgmma_n_step:
            continue
        for block_n, consumers in _swapped_columns(problem, shape):
            tile = {"block_m": block_m, "block_n": block_n, "consumers": consumers}
            yield {**tile, "swap_ab": True}


def _coded_tiles(of: Workload) -> Iterator[Changes]:
    """Of packed weights: swapped, of K blocks as they are packed, for any number of rows."""
    assert of.problem.form is not None
    packed: Changes = {"swap_ab": True, "block_k_bytes": of.problem.form.k_bytes}
    for block_m in CODED_ROWS:
        for block_n, consumers in _coded_columns(of):
            tile = {"block_m": block_m, "block_n": block_n, "consumers": consumers}
            yield {**tile, **packed}
        wide, consumers = COLUMNS[0]
        everywhere = of.grids * ceil(of.shape[1], wide) >= SLICED_SMS * of.target.sms
        if everywhere and not of.problem.quantised:
            slices = SLICES if block_m <= SLICED_ROWS else FEWER_SLICES
            tile = {"block_m": block_m, "block_n": wide, "consumers": slices * consumers}
            sliced = {"slice_k": True, "stages": SLICED_STAGES * slices}
            yield {**tile, **sliced, **packed}
        if block_m >= max(of.rows):
            return


def _coded_columns(of: Workload) -> tuple[tuple[int, int], ...]:
    """Whose codes two warpgroups decode, four may; where D has scales one has its block."""
    columns = tuple(_swapped_columns(of.problem, of.shape))
    wide, consumers = COLUMNS[-1]
    return (*columns, *((wide, 2 * consumers),) * ((wide, consumers) in columns))


def _swapped_columns(problem: Problem, shape: Shape) -> Iterable[tuple[int, int]]:
    """Where D has scales, those of one block of 128 by one warpgroup: rule swapped-scales."""
    if problem.quantised:
        return ((OUTPUT_SCALE_BLOCK * fold(problem.epilogue), 1),)
    return _up_to(COLUMNS, shape[1])


def _row_sums(of: Workload) -> Config:
    """The one config of an epilogue that sums rows, which the model does not price: wgmma's columns are 128 rows, one sum or all that a
    group has, D's columns as many as there are, up to 256. Clusters that share B are slower: 241 us, where alone a CTA takes 219 (2048 queries x 8192
    keys, 64 heads, one H200). Without a loop over K 0.91 to 0.93 of the time, but of several groups 1.03 to 1.08 (64 and 256 sequences in pages)."""
    rows, (m, n, k) = fold_rows(of.problem.epilogue), of.shape
    step = max(rows, 16)  # as the widest step of wgmma's columns is
    block_m = min(max(rows, SUMMED), ceil(m, step) * step)
    *_, (block_n, consumers) = _up_to(COLUMNS, n)
    k_bytes = k * of.problem.a.bytes
    block_k_bytes = min((x for x in (32, 64) if x >= k_bytes), default=Config.block_k_bytes)
    return Config(
        swap_ab=True,
        block_m=block_m,
        block_n=block_n,
        block_k_bytes=block_k_bytes,
        one_block=k_bytes <= block_k_bytes and of.problem.grouping == "none",
        consumers=consumers,
        stages=PROBE,
    )


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
