"""From a launch to the kernels of its choice, and from a kernel's source to what the build says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from random import Random

from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.errors import CompileError, GemmgenError, IllegalConfig, UnsupportedProblem
from gemmgen.heuristics import choose
from gemmgen.heuristics.tuned import find, pick
from gemmgen.ops.refused import as_given, first_built
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import nvrtc
from gemmgen.target import H200

from . import draw

TRIES, FEW = 8000, 500  # random configs for one that is legal; of one problem


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What is built. digest: of its source, without the header that names problem and config."""

    problem: Problem
    config: Config
    digest: str

    def __str__(self) -> str:
        changed = {k: v for k, v in self.config.to_json().items() if v != getattr(Config, k)}
        return f"{self.problem.to_json()} {changed}"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Of one launch: the kernels of its choices, without and with the shipped database. failed: why there is
    none; unsupported: whether that is said to be the problem's."""

    what: str
    seed: str = ""
    kernels: tuple[Kernel, ...] = ()
    failed: str = ""
    unsupported: bool = False


def chosen(seed: str) -> Chosen:
    """What is chosen for the random launch of that seed."""
    x = draw.launch(Random(seed))
    try:
        configs = [choose(x.problem, x.shape, H200, x.groups)]
        row = find(x.problem, x.shape, H200.device_name, x.groups, H200)
        configs += [row.best.config] if row else []
        kernels = tuple(kernel(x.problem, c) for c in configs)
        return Chosen(what=str(x), seed=seed, kernels=kernels)
    except UnsupportedProblem as e:
        return Chosen(what=str(x), failed=str(e), unsupported=True)
    except GemmgenError as e:
        return Chosen(what=str(x), failed=f"{type(e).__name__} {e}")


def rescued(seed: str) -> tuple[str, bool]:
    """Where the build refused what was chosen for that launch: why nothing takes its place, "" if something does; and
    whether that is said to be the problem's."""
    x = draw.launch(Random(seed))
    choose = partial(pick, x.problem, x.shape, H200, x.groups, "none")
    try:
        first_built(x.problem, choose, lambda c: nvrtc.compile_cubin(*source(x.problem, c)))
    except GemmgenError as e:
        said = f"{x}: {type(e).__name__} {reason(str(e))}"
        return said, isinstance(e, UnsupportedProblem)
    return "", False


def spared(seed: str) -> tuple[str, bool]:
    """Where the build refused the random config of that seed: as `rescued`, sparing of registers."""
    (k,) = legal(seed).kernels
    try:
        as_given(k.problem, k.config, lambda: nvrtc.compile_cubin(*source(k.problem, k.config)))
    except CompileError as e:
        return f"{k}: {reason(str(e))}", False
    return "", False


def legal(seed: str) -> Chosen:
    """A random config that the rules let pass, of a random problem."""
    rng = Random(seed)
    p = draw.problem(rng)
    for i in range(1, TRIES):
        if i % FEW == 0:  # of some problems few configs are legal, of some none
            p = draw.problem(rng)
        try:
            return Chosen(what=seed, seed=seed, kernels=(kernel(p, draw.config(rng)),))
        except IllegalConfig:
            continue
    return Chosen(what=seed, failed=f"none of {TRIES} configs is legal")


def kernel(p: Problem, c: Config) -> Kernel:
    """Raises IllegalConfig."""
    return Kernel(problem=p, config=c, digest=_digest(source(p, c)[0]))


def source(p: Problem, c: Config) -> tuple[str, str]:
    """CUDA and the kernel's name."""
    lowered = lower(p, c)
    return emit(lowered, ()), lowered.name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def built(k: Kernel) -> str:
    """Why the build refuses it, "" if it does not."""
    try:
        nvrtc.compile_cubin(*source(k.problem, k.config))
    except CompileError as e:
        return reason(str(e))
    return ""


def reason(text: str) -> str:
    """The line of a CompileError that says why."""
    first, *rest = text.splitlines()
    if "must not run" in first:
        return first.partition("must not run: ")[2].removesuffix(". NVRTC said:")
    return next((line for line in rest if "fatal" in line or "error" in line), first)[:200]
