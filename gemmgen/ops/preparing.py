"""Compile beforehand: every kernel that launches of known shapes will ask for, into the cache on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from ..config import Config
from ..errors import ArgumentError, CacheError, RuntimeUnavailable
from ..heuristics.tuned import pick
from ..pipeline import compile_to_source
from ..problem import Problem, Shape, check_shape
from ..runtime.cache import NONE, VARIABLE, Places, cached, places, recipe_of
from ..runtime.cache_survey import survey
from ..runtime.cache_trust import opened
from ..runtime.driver import require_hopper
from ..runtime.nvrtc import compile_cubin
from ..target import H200

FEW, STEP = 64, 8  # up to so many rows tiles have multiples of STEP rows, above multiples of FEW

Kernel = tuple[Problem, Config]
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


def prepare(
    problems: Problem | Iterable[Problem],
    shapes: Iterable[Shape],
    *,
    groups: int = 1,
    device: int | str | None = None,
    threads: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Prepared:
    """Choose a config for every problem at every shape as `gemmgen.ops` does, and compile each kernel once.

    shapes: (M, N, K), M and K of one group (the mean if they vary) of `groups` in a launch.
    device: a CUDA device's number, or a device's name, for the databases of measured configs; None: device
    0 if it is a Hopper GPU, else an NVIDIA H200. The GPU itself is not used. threads: that compile at a
    time, as many as this process may use cores if None. progress: called with what is done ("choosing",
    "compiling"), how many are and of how many.

    Raises ArgumentError for a shape, or if `GEMMGEN_CACHE` is "none"; CacheError if the directory cannot be
    made or trusted; RuntimeUnavailable without NVRTC; UnsupportedProblem and IllegalConfig as
    `heuristics.choose`; CompileError once all other kernels are compiled.
    """
    started = time.perf_counter()
    where = _reachable(places())
    name = _device_name(device)
    asked = _asked(problems, shapes)
    kernels: dict[Kernel, None] = {}
    for done, (p, shape) in enumerate(asked):
        progress("choosing", done, len(asked))
        kernels[p, pick(p, shape, H200, groups, name).config] = None
    before = _held(where)
    built = _compiled([*kernels], where, threads or len(os.sched_getaffinity(0)), progress)
    after = _held(where)
    return Prepared(
        device=name,
        shapes=len(asked),
        kernels=tuple(kernels),
        compiled=sum(key not in before for key, _ in built),
        kept=sum(key in after for key, _ in built),
        bytes=sum(size for _, size in built),
        seconds=time.perf_counter() - started,
    )


def every_m(most: int) -> tuple[int, ...]:
    """The M from 1 to `most` to prepare so that every M between them finds its kernel: the least and the most
    rows of each number of tiles.

    Between two of them the model's tiles are the same and its costs change little. That they choose no
    other config is measured (docs/reliability.md), not proved, and for launches without groups only.
    """
    ends = (*range(STEP, FEW, STEP), *range(FEW, most + FEW, FEW))
    return tuple(sorted({min(m, most) for end in (0, *ends) for m in (end, end + 1) if m}))


def _asked(
    problems: Problem | Iterable[Problem], shapes: Iterable[Shape]
) -> list[tuple[Problem, Shape]]:
    listed = [problems] if isinstance(problems, Problem) else [*problems]
    sides = [*shapes]
    for shape in sides:
        if len(shape) != 3:
            raise ArgumentError("shapes", shape, "must be (M, N, K)")
        check_shape(shape)
    return [*dict.fromkeys((p, shape) for p in listed for shape in sides)]


def _reachable(where: Places) -> Places:
    """`where`, once something can be kept there: to compile for nothing would be no help."""
    if where.own is None:
        raise ArgumentError(VARIABLE, NONE, "must be a directory: prepare fills it")
    try:
        with opened(where.own, create=True):
            return where
    except OSError as e:
        raise CacheError(f"{where.own}: {e.strerror}") from e


def _device_name(device: int | str | None) -> str:
    if isinstance(device, str):
        return device
    try:
        return require_hopper(device or 0)
    except RuntimeUnavailable:
        if device is None:
            return H200.device_name
        raise


def _held(where: Places) -> set[str]:
    """The keys of all entries that are whole."""
    return {item.stored.key for path in where.all for item in survey(path) if item.entry}


def _compiled(
    kernels: list[Kernel], where: Places, threads: int, progress: Progress
) -> list[tuple[str, int]]:
    """The key of each kernel and the bytes of its cubin."""

    def compile(kernel: Kernel) -> tuple[str, int]:
        a = compile_to_source(*kernel)
        recipe = recipe_of(a.source, a.name)
        return recipe.key, len(cached(recipe, lambda: compile_cubin(a.source, a.name), where).image)

    with ThreadPoolExecutor(threads) as pool:  # NVRTC releases the GIL
        running = [pool.submit(compile, kernel) for kernel in kernels]
        try:
            for done, _ in enumerate(as_completed(running)):
                progress("compiling", done, len(running))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in running]
