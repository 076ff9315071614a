"""What the build refused of the configs that were chosen, and the choices that are taken instead.

The rules refuse what they know that the compiler will not take; the rest only the compiler knows. A config that
was chosen is passed over, with every other of its tile (`heuristics.choose`), and the next is built: once in a
process, and where kernels are kept, once. One that was given is built again, `nvrtc.sparing` of registers if it was
refused for lack of them, and else refused by the compiler's error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ..config import Config
from ..errors import CompileError, GemmgenError, IllegalConfig, UnsupportedProblem
from ..heuristics.tuned import Pick
from ..problem import Problem
from ..runtime import nvrtc
from ..runtime.nvrtc import MUST_NOT_RUN

MOST = 16  # configs of one choice: if the build refuses so many, the fault is not theirs

Kernel = tuple[Problem, Config]
Choose = Callable[[Mapping[Config, str]], Pick]
T = TypeVar("T")

log = logging.getLogger(__name__)
_known: dict[Problem, dict[Config, str]] = {}


def known(p: Problem) -> Mapping[Config, str]:
    """Configs for `p` that the build has refused in this process, and why."""
    return _known.get(p, {})


def beside(p: Problem, c: Config) -> Mapping[Config, str]:
    """As `known`: what `c` may have been chosen instead of. Nothing, if it is one of them."""
    return {} if c in known(p) else known(p)


def learn(p: Problem, c: Config, error: CompileError) -> None:
    """From now on `c` is not chosen for `p`."""
    _known[p] = {**known(p), c: why(error)}  # another thread may be reading the old one


def forget() -> None:
    _known.clear()


def first_built(p: Problem, choose: Choose, build: Callable[[Config], T]) -> tuple[Pick, T]:
    """What `choose` picks, given what the build refused, and what `build` makes of its config: of the first that it
    makes anything of.

    Raises what both raise; if MOST are refused, what `build` raised first; if no choice is left, that, or
    UnsupportedProblem if each was compiled, but must not run.
    """
    errors: list[CompileError] = []
    while True:
        try:
            picked = choose(known(p))
        except (IllegalConfig, UnsupportedProblem):
            if errors:
                raise none_left(p, errors) from errors[0]
            raise
        try:
            made = build(picked.config)
        except CompileError as e:
            errors.append(e)
            if not e.lasting or len(errors) == MOST:
                raise errors[0] from None
            learn(p, picked.config, e)
            continue
        if errors:
            say(p, errors, picked.config)
        return picked, made


def as_given(
    p: Problem, c: Config, build: Callable[[], T], again: Callable[[], T] | None = None
) -> T:
    """What `build` makes of `c`, which was given, or `again` (the same if None) makes of it then, sparing of
    registers. Raises what `build` raises first."""
    try:
        return build()
    except CompileError as e:
        if not nvrtc.starved(e):
            raise
        with nvrtc.sparing():
            made = _or_none(again or build)
        if made is None:
            raise
        log.warning(
            "%s %s: built with %s, for without it the build refuses it (%s); it may be slower than what would be chosen",
            p.to_json(), c.to_json(), nvrtc.SPARING, why(e),
        )  # fmt: skip
        return made


def _or_none(build: Callable[[], T]) -> T | None:
    try:
        return build()
    except CompileError:
        return None


def all_built(
    choose: Callable[[], Iterable[Kernel]],
    build: Callable[[list[Kernel]], Mapping[Kernel, T | CompileError]],
) -> dict[Kernel, T]:
    """Each kernel that `choose` gives, in its order, and what `build` makes of it, several at a time: as
    `first_built`, all are chosen again if the build refuses one. Raises as that does."""
    made: dict[Kernel, T] = {}
    errors: list[CompileError] = []
    failing: list[Problem] = []
    for _ in range(MOST):
        try:
            wanted = [*dict.fromkeys(choose())]
        except (IllegalConfig, UnsupportedProblem):
            if errors:
                raise none_left(failing[0], errors) from errors[0]
            raise
        found = build([kernel for kernel in wanted if kernel not in made])
        made |= {k: x for k, x in found.items() if not isinstance(x, CompileError)}
        failed = {k: x for k, x in found.items() if isinstance(x, CompileError)}
        if not failed:
            return {kernel: made[kernel] for kernel in wanted}
        errors += failed.values()
        for (p, c), error in failed.items():
            if not error.lasting:
                raise error
            learn(p, c, error)
            say(p, [error])
            failing.append(p)
    raise errors[0]


def none_left(p: Problem, errors: list[CompileError]) -> GemmgenError:
    """What to raise where the build refused every choice. If it compiled them, the problem is what has no room."""
    if not all(MUST_NOT_RUN in str(e) for e in errors):
        return errors[0]
    text = f"no tile of {p.to_json()} fits an SM as this compiler builds it: {why(errors[0])}"
    return UnsupportedProblem(text)


def say(p: Problem, errors: list[CompileError], taken: Config | None = None) -> None:
    """Log what happened, as a warning: `learn` is asked once of each."""
    said, instead = "; ".join(map(why, errors)), taken.to_json() if taken else "the next choice"
    text = "%s: the build refused the config that was chosen (%s); %s is taken instead"
    log.warning(text, p.to_json(), said, instead)


def why(error: CompileError) -> str:
    """The line of `error` that says it."""
    first, *rest = str(error).splitlines()
    said = next((line for line in rest if "fatal" in line or "error" in line), "")
    return (
        first.partition(" NVRTC said:")[0] if MUST_NOT_RUN in first else f"{first} {said}".strip()
    )
