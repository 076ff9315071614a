"""Compile beforehand: every kernel that launches of known shapes will ask for, into the cache on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ..config import Config
from ..errors import ArgumentError, CacheError, CompileError, RuntimeUnavailable
from ..problem import Problem, Shape, check_shape
from ..recipes import recipe
from ..runtime.cache import NONE, VARIABLE, Places, places
from ..runtime.cache_survey import survey
from ..runtime.cache_trust import opened
from ..runtime.driver import require_hopper
from ..runtime.nvrtc import Cubin, compile_cubin
from ..target import H200
from . import by_row
from .building import built, config_for, target_named
from .calls import SCALE_LAYOUTS
from .refused import Kernel, all_built

# Rows up to which each number has a choice of its own: rows past a tile's last cost what others make up for. Above, tiles have multiples of STEP.
EACH, STEP = 512, 64

MOST_ROWS = 1 << 20  # of every_m: more than a launch has

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What `prepare` made. device: the name for which configs were chosen. shapes: how many were asked
    for, of all problems. kernels: each once, in the order in which shapes first ask for them. compiled: those
    that no directory held before. kept: those that one holds now. bytes: of all cubins. seconds: wall time."""

    device: str
    shapes: int
    kernels: tuple[Kernel, ...]
    compiled: int
    kept: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{len(self.kernels)} cubins of {self.bytes} bytes serve {self.shapes} shapes on {self.device}; "
            f"{self.compiled} were compiled now, {self.kept} are on disk ({self.seconds:.1f} s)"
        )


@dataclass(frozen=True, kw_only=True)
class _Built:
    """Of one kernel: its key, its cubin's bytes, and whether it was compiled now."""

    key: str
    size: int
    new: bool


def prepare(
    problems: Problem | Iterable[Problem],
    shapes: Iterable[Shape],
    *,
    groups: int = 1,
    device: int | str | None = None,
    threads: int | None = None,
    scale_a_layout: str = "mn",
    progress: Progress = lambda what, done, total: None,
) -> Prepared:
    """Choose a config for every problem at every shape as `gemmgen.ops` does, and compile each kernel once. Where the
    build refuses one, the next choice is compiled.

    shapes: (M, N, K), M and K of one group (the mean if they vary) of `groups` in a launch that have any rows.
    device: a CUDA device's number, or a device's name, for the databases of measured configs; None: device
    0 if it is a Hopper GPU, else an NVIDIA H200. The GPU itself is not used. threads: that compile at a
    time, as many as this process may use cores if None. scale_a_layout: that of the calls, as of
    `ops.fp8_block_gemm`: kernels for "row" read A's block scales in place where that pays. progress: called with what is done ("choosing",
    "compiling"), how many are and of how many.

    Raises ArgumentError for a shape, `threads` or a layout, or if `GEMMGEN_CACHE` is "none"; CacheError if the directory cannot be
    made or trusted; RuntimeUnavailable without NVRTC; UnsupportedProblem and IllegalConfig as
    `heuristics.choose`; CompileError once all other kernels are compiled.
    """
    started = time.perf_counter()
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    for argument, count in (("threads", threads), ("groups", groups)):
        if not _is_whole(count) or count < 1:
            raise ArgumentError(argument, count, "must be an integer of at least 1")
    if isinstance(device, bool) or not isinstance(device, int | str | None):
        raise ArgumentError("device", device, "must be a number, a name or None")
    where = _reachable(places())
    name = device_name(device)
    asked = _asked(problems, shapes)
    _check_layout(scale_a_layout, [p for p, _ in asked])
    target = target_named(name)

    def choose() -> Iterator[Kernel]:
        for done, (p, shape) in enumerate(asked, 1):
            c = config_for(p, shape, groups, name)
            in_rows = scale_a_layout == "row" and recipe(p.family).scales_blocks
            yield p, by_row.config_of(p, c, shape, groups, target) if in_rows else c
            progress("choosing", done, len(asked))

    kernels = all_built(choose, partial(_compiled, threads=threads, progress=progress))
    built, held = kernels.values(), _held(where)
    return Prepared(
        device=name,
        shapes=len(asked),
        kernels=tuple(kernels),
        compiled=sum(b.new for b in built),
        kept=sum(b.key in held for b in built),
        bytes=sum(b.size for b in built),
        seconds=time.perf_counter() - started,
    )


def every_m(most: int) -> tuple[int, ...]:
    """The M from 1 to `most` to prepare so that every M between them finds its kernel: each up to 512, beyond them the least and the
    most rows of each number of tiles.

    Between two of those the model's tiles are the same and its costs change little. That they choose no
    other config is measured (docs/reliability.md), not proved, and for launches without groups only.
    Raises ArgumentError unless `most` is from 1 to 2**20.
    """
    if not _is_whole(most) or not 1 <= most <= MOST_ROWS:
        raise ArgumentError("most", most, f"must be an integer from 1 to {MOST_ROWS}")
    ends = (m for end in range(EACH, most + STEP, STEP) for m in (end, end + 1))
    return tuple(sorted({*range(1, min(most, EACH) + 1), *(min(m, most) for m in ends)}))


def _is_whole(x: object) -> bool:
    """Whether it is an integer, of Python's or another library's; True is none."""
    return hasattr(x, "__index__") and not isinstance(x, bool)


def _asked(
    problems: Problem | Iterable[Problem], shapes: Iterable[Shape]
) -> list[tuple[Problem, Shape]]:
    if not isinstance(problems, Problem | Iterable):
        raise ArgumentError("problems", problems, "must be a gemmgen.Problem, or several")
    if not isinstance(shapes, Iterable):
        raise ArgumentError("shapes", shapes, "must be several (M, N, K)")
    listed = [problems] if isinstance(problems, Problem) else [*problems]
    for p in listed:
        if not isinstance(p, Problem):
            raise ArgumentError("problems", p, "must be a gemmgen.Problem")
    sides = [*shapes]
    for shape in sides:
        check_shape(shape)
    return [*dict.fromkeys((p, shape) for p in listed for shape in sides)]


def _check_layout(layout: str, problems: list[Problem]) -> None:
    """Raise ArgumentError unless it is a layout, and one that some of the problems have."""
    if layout not in SCALE_LAYOUTS:
        raise ArgumentError("scale_a_layout", layout, "must be 'row' or 'mn'")
    if layout == "row" and problems and not any(recipe(p.family).scales_blocks for p in problems):
        families = ", ".join(sorted({p.family for p in problems}))
        allowed = f"must be 'mn': {families} has no kernel that reads A's block scales in place"
        raise ArgumentError("scale_a_layout", layout, allowed)


def _reachable(where: Places) -> Places:
    """`where`, once something can be kept there: to compile for nothing would be no help."""
    if where.own is None:
        raise ArgumentError(VARIABLE, NONE, "must be a directory: prepare fills it")
    try:
        with opened(where.own, create=True):
            return where
    except OSError as e:
        raise CacheError(f"{where.own}: {e.strerror}") from e


def device_name(device: int | str | None) -> str:
    """For which configs are chosen. Raises RuntimeUnavailable for a number that is no Hopper GPU's."""
    if isinstance(device, str):
        return device
    try:
        return require_hopper(device or 0)
    except RuntimeUnavailable:
        if device is None:
            return H200.device_name
        raise


def _held(where: Places) -> set[str]:
    """The keys of all entries that are whole, where they can be used."""
    keys: set[str] = set()
    for path in where.all:
        with suppress(CacheError):
            keys |= {x.stored.key for x in survey(path) if x.entry}
    return keys


def _compiled(
    kernels: list[Kernel], threads: int, progress: Progress
) -> dict[Kernel, _Built | CompileError]:
    with ThreadPoolExecutor(threads) as pool:  # NVRTC releases the GIL
        running = {kernel: pool.submit(_build, *kernel) for kernel in kernels}
        try:
            for done, _ in enumerate(as_completed(running.values()), 1):
                progress("compiling", done, len(running))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {kernel: future.result() for kernel, future in running.items()}


def _build(problem: Problem, config: Config) -> _Built | CompileError:
    new: list[Cubin] = []

    def compiler(source: str, name: str) -> Cubin:
        new.append(compile_cubin(source, name))
        return new[0]

    try:
        found = built(problem, config, compiler)
    except CompileError as e:
        return e
    return _Built(key=found.key, size=len(found.cubin.image), new=bool(new))
