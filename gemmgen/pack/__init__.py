"""Ahead of time: kernels of one problem in a folder with the C code that loads and launches them.

Who uses the folder needs a C compiler and, to run, the CUDA driver: no Python, torch, NVRTC or CUDA toolkit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

from ..config import Config
from ..errors import ArgumentError, CompileError, UnsupportedProblem
from ..pipeline import compile_to_source
from ..problem import Problem, Shape
from ..runtime.cache import cached_cubin
from .fields import Interface, check_mapped, interface
from .groups import Sides, place
from .jax import check_target
from .manifest import manifest
from .model import FORMAT, Pack, PackedKernel, Range, distinct, ranges, switched
from .render import files

__all__ = [
    "FORMAT",
    "Pack",
    "PackedKernel",
    "Range",
    "Sides",
    "check_target",
    "compile_all",
    "files",
    "manifest",
    "pack",
    "switched",
]

Progress = Callable[[int, int], None]


def check_prefix(prefix: object) -> None:
    """Raises ArgumentError unless `prefix` can begin all C names."""
    if not isinstance(prefix, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", prefix):
        allowed = "must be a C identifier of at most 64 lower-case letters, digits and _"
        raise ArgumentError("prefix", prefix, allowed)


def pack(
    p: Problem,
    chosen: Mapping[Shape, Config] | Mapping[Sides, Config],
    *,
    prefix: str,
    device: str,
    threads: int = 1,
    progress: Progress = lambda done, total: None,
    compiled: Mapping[Config, PackedKernel] | None = None,
) -> Pack:
    """Compile the kernels of `p` that `chosen` names, each once, `threads` at a time.

    chosen: by (M, N, K), with groups by (groups, M, N, K): M of one group in the mean, or K where they split it.
    prefix: what all C names begin with, a C identifier in lower case. device: the name for which configs
    were chosen; it is only noted. progress: called with how many kernels are compiled and of how many. compiled: those that are
    (`compile_all`), by config.
    Raises ArgumentError for `prefix` or a shape; UnsupportedProblem for watched kernels, rows by page, squares, heads and compact windows;
    IllegalConfig; CompileError; RuntimeUnavailable without NVRTC.
    """
    check_prefix(prefix)
    if not chosen:
        raise ArgumentError("chosen", chosen, "must hold at least one shape")
    places = {shape: place(p, shape) for shape in chosen}
    configs = distinct(chosen.values())
    kernels = _all_compiled(p, configs, dict(compiled or {}), threads, progress)
    return Pack(
        prefix=prefix,
        problem=p,
        device=device,
        interface=_common(p, kernels),
        kernels=kernels,
        ranges=ranges({places[s]: configs.index(c) for s, c in chosen.items()}),
    )


def _common(p: Problem, kernels: tuple[PackedKernel, ...]) -> Interface:
    """What all of them take: one struct of arguments serves every kernel."""
    summing = any(x.kernel.workspace.words for x in kernels)
    found, *others = (interface(p, x.kernel, summing) for x in kernels)
    for other, x in zip(others, kernels[1:], strict=True):
        if other != found:
            names = f"{kernels[0].kernel.name} and {x.kernel.name}"
            raise UnsupportedProblem(f"one pack cannot hold {names}: their parameters differ")
    return found


def _all_compiled(
    p: Problem,
    configs: tuple[Config, ...],
    compiled: dict[Config, PackedKernel],
    threads: int,
    progress: Progress,
) -> tuple[PackedKernel, ...]:
    left = [c for c in configs if c not in compiled]
    for c, found in compile_all(p, left, threads, progress).items():
        if isinstance(found, CompileError):
            raise found
        compiled[c] = found
    return tuple(compiled[c] for c in configs)


def compile_all(
    p: Problem, configs: Iterable[Config], threads: int, progress: Progress
) -> dict[Config, PackedKernel | CompileError]:
    """The kernels of `p`, `threads` at a time, or why the build refuses one. Raises as `pack`."""
    check_mapped(p)
    with ThreadPoolExecutor(threads) as pool:  # NVRTC releases the GIL
        running = {c: pool.submit(_compiled, p, c) for c in configs}
        try:
            for done, _ in enumerate(as_completed(running.values()), 1):
                progress(done, len(running))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {c: future.result() for c, future in running.items()}


def _compiled(p: Problem, c: Config) -> PackedKernel | CompileError:
    artifact = compile_to_source(p, c)
    try:
        image = cached_cubin(artifact.source, artifact.name).image
    except CompileError as e:
        return e
    return PackedKernel(config=c, kernel=artifact.kernel, image=image)
