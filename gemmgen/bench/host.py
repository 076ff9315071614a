"""Host time: what a call costs the CPU before its kernel is on the stream, and what importing costs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .. import ops, recipes
from ..ir.dtypes import BF16, E4M3, F32, S32
from ..problem import Problem, Shape
from ..runtime.cache import VARIABLE as CACHE
from ..runtime.torch_tensors import torch, torch_dtype
from .noise import iqr

CALLS = 200  # of a batch: fewer than a stream queues before it makes the host wait
SIDE, DEPTH, GROUPS = 128, 256, 4  # of the GEMMs: one tile, so that the GPU is done before the host
STEPS = ("choose", "find kernel", "both")
FIRST_CALL = """
import json, sys, time
from gemmgen.ops import building
from gemmgen.problem import Problem
problem, shape, groups = json.loads(sys.argv[1])
problem = Problem.from_json(problem)
began = time.perf_counter()
config = building.config_for(problem, tuple(shape), groups, "NVIDIA H200")
chosen = time.perf_counter()
building.built(problem, config)
print(chosen - began, time.perf_counter() - chosen)
"""
MODULES = ("gemmgen", "gemmgen.pipeline", "gemmgen.ops")
Call = Callable[[], Any]
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, kw_only=True)
class First:
    """The first call of a process: `groups` GEMMs of shape (M, N, K)."""

    problem: Problem
    shape: Shape
    groups: int = 1

    @property
    def name(self) -> str:
        p, sizes = self.problem, (self.groups, *self.shape)[self.groups == 1 :]
        kinds = (p.a.name, p.family, *(() if p.grouping == "none" else (p.grouping,)))
        return f"{' '.join(kinds)} {'x'.join(map(str, sizes))}"


DENSE = Problem(family=recipes.DENSE, a=BF16, b=BF16)
FP8 = Problem(family=recipes.FP8_BLOCK, a=E4M3, b=E4M3)
WGRAD = Problem(family=recipes.FP8_1D1D, a=E4M3, b=E4M3, d=F32)
# A measured config; then the cost model's choice, of few tiles and of the most that it ever prices and refuses.
FIRST = (
    First(problem=DENSE, shape=(4096, 4096, 7168)),
    First(problem=DENSE, shape=(333, 1000, 512)),
    First(problem=DENSE, shape=(8192, 28672, 8192)),
    First(problem=replace(FP8, grouping="masked"), shape=(500, 3072, 4096), groups=32),
    First(problem=replace(FP8, grouping="ends"), shape=(1000, 3072, 4096), groups=8),
    First(problem=replace(WGRAD, accumulate=True), shape=(2048, 3000, 4096)),
    First(problem=replace(WGRAD, grouping="k_flat"), shape=(2048, 3000, 4096), groups=8),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was timed, how, and the median of its batches (imports: of its processes) in microseconds; spread:
    the interquartile range over it."""

    what: str
    how: str
    microseconds: float
    spread: float


def calls(batches: int, progress: Progress = silent) -> list[Row]:
    """Microseconds per call of four functions through the front door, and of the same bound. Needs a GPU. progress: of
    batches."""
    return _timed(cases(_plain), batches, progress)


def operators(batches: int, progress: Progress = silent) -> list[Row]:
    """Microseconds per call of the same functions as operators of torch, beside the front door. Needs a GPU. progress:
    of batches."""
    importlib.import_module("gemmgen.torch_ops")  # registers them
    return _timed(cases(_registered), batches, progress)


def _timed(found: dict[tuple[str, str], Call], batches: int, progress: Progress) -> list[Row]:
    timed = batched(found, batches, torch().cuda.synchronize, progress)
    return [_row(what, how, seconds) for (what, how), seconds in timed.items()]


def _plain(function: Callable[..., Any], given: Any, options: Any, out: Any) -> dict[str, Call]:
    return {
        "out given": partial(function, *given, out, **options),
        "out allocated": partial(function, *given, **options),
    }


def _registered(
    function: Callable[..., Any], given: Any, options: Any, out: Any
) -> dict[str, Call]:
    operator = getattr(torch().ops.gemmgen, function.__name__).out
    return {
        "front door": partial(function, *given, out, **options),
        "torch.ops": partial(operator, *given, out=out, **options),
    }


def cases(ways: Callable[..., dict[str, Call]]) -> dict[tuple[str, str], Call]:
    """By function and way, a call: the `ways`, bound, and the driver's own call of that launch, which is the least
    it can cost. Each has been made once."""
    found: dict[tuple[str, str], Call] = {}
    for function, given, options, out in inputs():
        bound = ops.bind(function, *given, out, **options)
        # The bound call keeps what the driver's needs.
        own: dict[str, Call] = {"bound": bound.launch, "driver alone": bound.plan.start}
        every = ways(function, given, options, out) | own
        found |= {(function.__name__, way): call for way, call in every.items()}
    for call in found.values():
        call()
    return found


def inputs() -> list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]]:
    """Functions, the tensors they read, by name what else they want, and an output."""
    a, groups = _zeros(BF16, SIDE, DEPTH), _zeros(BF16, GROUPS, SIDE, DEPTH)
    counts, a8 = _zeros(S32, GROUPS), _zeros(E4M3, SIDE, DEPTH)
    scales, blocks = _zeros(F32, DEPTH // 128, SIDE).mT, _zeros(F32, 1, DEPTH // 128)
    out, outs = _zeros(BF16, SIDE, SIDE), _zeros(BF16, GROUPS, SIDE, SIDE)
    return [
        (ops.gemm, (a, a), {}, out),
        (ops.fp8_block_gemm, (a8, scales, a8, blocks), {"scale_a_layout": "mn"}, out),
        (ops.masked_gemm, (groups, groups, counts), {}, outs),
        (ops.k_grouped_gemm, (a, a, counts), {}, _zeros(F32, GROUPS, DEPTH, DEPTH)),
    ]


def _zeros(dtype: Any, *shape: int) -> Any:
    return torch().zeros(shape, dtype=torch_dtype(dtype), device="cuda")


def batched(
    calls: Mapping[Any, Call], batches: int, synchronise: Call, progress: Progress = silent
) -> dict[Any, tuple[float, ...]]:
    """Seconds per call of each batch of each of `calls`, by turns. Every batch begins on an idle GPU, which
    `synchronise` waits for."""
    found: dict[Any, list[float]] = {name: [] for name in calls}
    for batch in range(batches):
        progress(batch, batches)
        for name, call in calls.items():
            synchronise()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter() - began) / CALLS)
    synchronise()
    return {name: tuple(seconds) for name, seconds in found.items()}


def imports(repeats: int, progress: Progress = silent) -> list[Row]:
    """Microseconds of importing gemmgen and its parts, each time in a new process. Needs no GPU. progress: of processes."""
    seconds: dict[str, list[float]] = {module: [] for module in MODULES}
    runs = [module for module in MODULES for _ in range(repeats)]
    for done, module in enumerate(runs):
        progress(done, len(runs))
        seconds[module].append(_import_seconds(module))
    return [_row(module, "import", tuple(x)) for module, x in seconds.items()]


def first(repeats: int, progress: Progress = silent) -> list[Row]:
    """Microseconds from a call to the kernel that is loaded for it, in new processes that find the kernel on disk.
    Needs NVRTC, which makes it, and no GPU. progress: of processes."""
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for number, call in enumerate(FIRST):
            timed = []
            for run in range(repeats + 1):
                progress(number * (repeats + 1) + run, len(FIRST) * (repeats + 1))
                timed.append(_first_seconds(call, folder))
            del timed[0]  # which compiled
            columns = (*zip(*timed, strict=True), tuple(map(sum, timed)))
            rows += [_row(call.name, how, x) for how, x in zip(STEPS, columns, strict=True)]
    return rows


def _first_seconds(call: First, folder: str) -> tuple[float, ...]:
    """Seconds of the steps of a call in a new process."""
    env = {**os.environ, CACHE: folder}
    asked = json.dumps([call.problem.to_json(), call.shape, call.groups])
    run = [sys.executable, "-c", FIRST_CALL, asked]
    out = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout
    return tuple(map(float, out.split()))


def _import_seconds(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    run = [sys.executable, "-c", code]
    return float(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


def _row(what: str, how: str, seconds: tuple[float, ...]) -> Row:
    middle = median(seconds)
    return Row(what=what, how=how, microseconds=middle * 1e6, spread=iqr(seconds) / middle)
