"""Choose a config for a problem and a shape: enumerate, cost, lower only as many as asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from ..config import FIELDS, Config
from ..cost import Cost, cost, priced
from ..cost_launch import Workload, launch
from ..errors import ArgumentError, IllegalConfig, UnsupportedProblem
from ..levers import LEVERS
from ..passes import index_rows, layout_smem, plan_multicast, split_registers
from ..passes.layout_smem import most_stages
from ..pipeline import lower
from ..problem import Problem, Shape
from ..target import Target
from . import room, tiles
from .rasters import PANELS as PANELS
from .rasters import wave_rows as wave_rows
from .rasters import with_raster
from .room import PROBE as PROBE
from .tiles import ANY as ANY
from .verdict import Choice as Choice
from .verdict import Verdict as Verdict

MOST_STAGES = max(s for s in range(1, 257) if FIELDS["stages"].holds(s))
# What the same tile without multicast may be free of.
# What a tile may lack.
ROOM = (
    split_registers.REGISTER_BUDGET,
    split_registers.LAUNCH_REGISTERS,
    *layout_smem.RULES,
)
ONLY_SHARED = (*plan_multicast.RULES, index_rows.INDEXED_SHARED)
ALL_BUILT: Mapping[Config, str] = {}
Tile = tuple[int, ...]  # values of the levers that make a tile; whether D is whole


def choose(
    problem: Problem,
    shape: Shape,
    target: Target,
    groups: int = 1,
    unbuilt: Mapping[Config, str] = ALL_BUILT,
    *,
    split_k: int = ANY,
    pointers: bool = True,
) -> Config:
    """The cheapest legal config for `groups` GEMMs of shape (M, N, K) in one launch; split_k: of those whose K so many
    CTAs divide, whether or not that pays. pointers: whether its kernel may read operands without tensor maps. groups: of a collective its
    ranks, each with M rows.

    unbuilt: configs that the build refused, and why; their tiles are passed over. Raises ArgumentError for a
    side below 1, UnsupportedProblem if no tile of the problem fits an SM, IllegalConfig
    if no candidate is legal for another reason.
    """
    ranked = rank(problem, shape, target, 1, groups, unbuilt, split_k=split_k, pointers=pointers)
    if not ranked:
        raise UnsupportedProblem(
            f"no tile of {problem.to_json()} is left: the build refused those that fit"
        )
    return ranked[0].config


def rank(
    problem: Problem,
    shape: Shape,
    target: Target,
    limit: int | None = None,
    groups: int = 1,
    unbuilt: Mapping[Config, str] = ALL_BUILT,
    *,
    split_k: int = ANY,
    pointers: bool = True,
) -> list[Choice]:
    """Legal configs, cheapest first, at most `limit`. Raises like `choose`."""
    if not isinstance(pointers, bool):
        raise ArgumentError("pointers", pointers, "must be true or false")
    of = replace(launch(problem, shape, target, groups), split_k=split_k, pointers=pointers)
    found = _verdicts(of, limit, unbuilt, quick=True)
    choices = [v.choice for v in found if v.choice]
    if not choices:
        _raise(
            problem,
            verdicts(problem, shape, target, limit, groups, unbuilt, split_k=split_k),
        )
    return choices


def _raise(problem: Problem, every: list[Verdict]) -> None:
    """What stands against candidates that none of are legal, if something does."""
    found = [(v.by, v.refused) for v in every if v.refused and v.refused.rule not in ONLY_SHARED]
    full = [(by, error) for by, error in found if error.rule in ROOM]
    if full:  # the others break a rule of the problem's: a tile that keeps it has no room
        _, least = min(full, key=lambda x: x[0].block_m * x[0].block_n)
        raise UnsupportedProblem(f"no tile of {problem.to_json()} fits an SM: {least}")
    if found:
        raise found[0][1]


def verdicts(
    problem: Problem,
    shape: Shape,
    target: Target,
    limit: int | None = None,
    groups: int = 1,
    unbuilt: Mapping[Config, str] = ALL_BUILT,
    *,
    split_k: int = ANY,
) -> list[Verdict]:
    """Candidates, cheapest first, up to the `limit`-th that is legal. Raises ArgumentError and
    UnsupportedProblem like `choose`."""
    of = replace(launch(problem, shape, target, groups), split_k=split_k)
    return _verdicts(of, limit, unbuilt, quick=False)


def _verdicts(
    of: Workload, limit: int | None, unbuilt: Mapping[Config, str], *, quick: bool
) -> list[Verdict]:
    """quick: without those that have no room, whose error nobody asks for."""
    if limit == 0:
        return []
    found: list[Verdict] = []
    # Larger tiles, where those that just cover M are all illegal; those that share nothing, where the build refused all.
    for rows, shared in ((of.shape[0], True), (tiles.ROWS[-1][0], True), (of.shape[0], False)):
        if not shared and not any(v.unbuilt for v in found):
            break
        found, legal = [], 0
        for v in _judged(of, rows, unbuilt, quick=quick, shared=shared):
            found.append(v)
            legal += v.choice is not None
            if legal == limit:
                break
        if legal:
            break
    return found


def _judged(
    of: Workload, rows: int, unbuilt: Mapping[Config, str], *, quick: bool, shared: bool
) -> Iterator[Verdict]:
    """Candidates whose tiles cover `rows`, cheapest first, without those of clusters that share an operand if not `shared`. Lowers
    no more than are asked for."""
    problem, shape, target = of.problem, of.shape, of.target
    every = (c for c in tiles.bare(of, rows) if shared or c.multicast == Config.multicast)
    costed = [(c, priced(of, c).seconds) for c in every]
    # Tiles no multicast can save; or whose kernel the build refused, as it would one that only shares more.
    refused: dict[Tile, Verdict] = {}
    without_room: dict[Tile, bool] = {}
    for bare, _ in _in_order(costed):
        tile = _tile(bare)
        if quick and tile not in without_room:
            without_room[tile] = room.has_none(problem, bare, of.deep, target)
        if without_room.get(tile):
            continue
        c = with_raster(problem, bare, shape, target)
        price = cost(problem, c, shape, target, of.groups)
        known = refused.get(tile) or _overflowed(bare, refused)
        if known:
            yield replace(known, config=c, cost=price)
            continue
        verdict = _built(judge(problem, c, price, of.deep, target), unbuilt)
        if verdict.unbuilt and c != (plain := _sparing(c)):
            yield verdict  # then its K loop as written, which needs the fewest registers
            verdict = _built(judge(problem, plain, price, of.deep, target), unbuilt)
        if not verdict.choice and not (verdict.refused and verdict.refused.rule in ONLY_SHARED):
            refused[tile] = verdict
        yield verdict


def _built(v: Verdict, unbuilt: Mapping[Config, str]) -> Verdict:
    why = unbuilt.get(v.choice.config) if v.choice else None
    if not v.choice or why is None:
        return v
    return Verdict(config=v.config, cost=v.cost, unbuilt=why, by=v.choice.config)


def _sparing(c: Config) -> Config:
    return c.having(**{x.name: x.default for x in LEVERS if x.spares})


def _tile(c: Config) -> Tile:
    return *(getattr(c, x.name) for x in LEVERS if x.tile), c.d_columns is None


def _sums(c: Config) -> int:
    """That a thread holds."""
    return c.wgmma_m * c.wgmma_n // (128 * c.sharing)


def judge(problem: Problem, c: Config, price: Cost, shape: Shape, target: Target) -> Verdict:
    """Whether `c` is legal with as many stages as fit and hide latency. shape: with the K that a tile sums. Raises UnsupportedProblem."""
    try:
        staged = _staged(problem, c, shape, target)
    except IllegalConfig as error:
        return Verdict(config=c, cost=price, refused=error, by=c)
    choice = Choice(config=staged, cost=price, why=_why(staged, price)) if staged else None
    return Verdict(config=c, cost=price, choice=choice, by=c)


def _overflowed(c: Config, refused: dict[Tile, Verdict]) -> Verdict | None:
    """The verdict on a tile no larger than that of `c` that had too much of something: so has that. The build's holds
    for little fewer sums in a thread, too: to ask of each tile would take as many builds."""
    tile = _tile(c)
    for small, verdict in refused.items():
        by = verdict.by
        if (by.swap_ab, by.direct) != (c.swap_ab, c.direct):
            continue
        if verdict.unbuilt and 5 * _sums(c) > 4 * _sums(by):
            return verdict
        rule = verdict.refused.rule if verdict.refused else None
        fits = all(side <= larger for side, larger in zip(small, tile, strict=True))
        # One consumer needs registers for INT8's conversions that two do not.
        registers = rule is split_registers.REGISTER_BUDGET and by.consumers == c.consumers
        if fits and (registers or rule in layout_smem.RULES):
            return verdict
    return None


def candidates(
    problem: Problem,
    shape: Shape,
    target: Target,
    groups: int = 1,
    rows: int = 1,
    split_k: int = ANY,
) -> Iterator[Config]:
    """Configs worth costing, legal or not, with PROBE stages and their raster chosen.

    A and B are exchanged only for few rows, K is divided only among SMs that have nothing else to do. No
    tile is much larger than the smallest that covers a side of D, or `rows` if that is more, and none is
    multicast unless a cluster finds two tiles to share. split_k: as of `choose`. Raises ArgumentError for a side below 1.
    """
    of = replace(launch(problem, shape, target, groups), split_k=split_k)
    for c in tiles.bare(of, rows):
        yield with_raster(problem, c, shape, target)


def _in_order(costed: list[tuple[Config, float]]) -> Iterator[tuple[Config, float]]:
    # Python sorts stably: between equals the order of enumeration has the last word.
    for _, tied in groupby(sorted(costed, key=lambda x: x[1]), key=lambda x: x[1]):
        yield from _break_ties(list(tied))


def _break_ties(tied: list[tuple[Config, float]]) -> Iterable[tuple[Config, float]]:
    """Same block_m: smaller block_n. Then, of each block_m's best, the larger block_n, and of equal
    ones the smaller block_m. (Pair by pair DeepGEMM's rule is no order: it has cycles.)"""
    if len(tied) == 1:
        return tied
    sides = sorted({(c.block_m, c.block_n) for c, _ in tied})
    place = {t: sum(t[0] == s[0] and s < t for s in sides) for t in sides}
    return sorted(
        tied, key=lambda x: (place[x[0].block_m, x[0].block_n], -x[0].block_n, x[0].block_m)
    )


def _staged(problem: Problem, config: Config, shape: Shape, target: Target) -> Config | None:
    """`config` with the most stages that fit and K can use; None if they are too few to hide
    latency. Raises IllegalConfig."""
    kernel = lower(problem, config, target)
    if not kernel.ring:
        return config
    fit = most_stages(kernel, target)
    stages = min(fit, room.useful_stages(problem, config, shape, target), MOST_STAGES)
    if config.slice_k:  # of whole rounds of its warpgroups
        stages = max(config.stages, stages // config.slices * config.slices)
    enough = stages >= room.needed_stages(problem, config, shape, target)
    return replace(config, stages=stages) if enough else None


def _why(config: Config, price: Cost) -> str:
    (bound, seconds), *_ = price.parts.items()
    return (
        f"{price.tiles} tiles in {price.waves} wave(s), {price.last_wave_use:.0%} of the SMs in "
        f"the last; {config.stages} stages; {price.seconds * 1e6:.1f} us, of which {bound} alone "
        f"{seconds * 1e6:.1f} us"
    )
