"""A function, a right call of it, and wrong calls that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fake_torch import Placed

from gemmgen.errors import ArgumentError, GemmgenError, IllegalConfig

Given = dict[str, Any]
Change = Callable[[Given], Given]
NOTHING = object()  # where an argument is left out


class Output(Placed):
    """A tensor that counts how often something is written to all of it."""

    def __init__(self, *shape: int, dtype: str = "bfloat16", stride: tuple[int, ...] | None = None):
        super().__init__(*shape, dtype=dtype, stride=stride)
        self.written = 0

    def fill_(self, value: object = 0) -> Output:
        self.written += 1
        return self

    zero_ = copy_ = fill_


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """What is wrong, and the error that must say so. change: of a right call's arguments, those that differ.
    argument: what the error names; for one that is no ArgumentError, a part of its text."""

    says: str
    change: Change
    argument: str
    id: str = "GG-A001"
    kind: type[GemmgenError] = ArgumentError


@dataclass(frozen=True, kw_only=True)
class Function:
    """runs: whether the right call can be made here, which shows that each wrong one is wrong in one thing."""

    name: str
    call: Callable[..., Any]
    right: Callable[[], Given]
    wrong: tuple[Wrong, ...]
    runs: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """problem: "" if the call was refused as it must be."""

    function: str
    says: str
    problem: str


def wrong(says: str, argument: str, _kind: type[GemmgenError] = ArgumentError, **changes: Any) -> Wrong:  # fmt: skip
    """A call with other arguments. The id of an illegal config ends with its rule's."""
    return Wrong(
        says=says,
        change=lambda given: changes,
        argument=argument,
        id=f"{_kind.id}-{argument}" if _kind is IllegalConfig else _kind.id,
        kind=_kind,
    )


def tried(f: Function, launches: list[Any]) -> list[Outcome]:
    """The right call, if it runs here, then each wrong one."""
    found = [Outcome(function=f.name, says="right", problem=_accepted(f))] if f.runs else []
    for case in f.wrong:
        launches.clear()
        problem = _refused(f, case) or ("launched" if launches else "")
        found.append(Outcome(function=f.name, says=case.says, problem=problem))
    return found


def _accepted(f: Function) -> str:
    try:
        f.call(**f.right())
    except Exception as e:
        return f"a right call raised {type(e).__name__}: {e}"
    return ""


def _refused(f: Function, case: Wrong) -> str:
    given = f.right()
    given |= case.change(given)
    given = {name: x for name, x in given.items() if x is not NOTHING}
    try:
        f.call(**given)
    except Exception as e:
        return _judged(e, case) or _written(given)
    return "was not refused"


def _judged(e: Exception, case: Wrong) -> str:
    if type(e) is not case.kind:
        return f"{type(e).__name__} instead of {case.kind.__name__}: {e}"
    if getattr(e, "id", None) != case.id:
        return f"id {getattr(e, 'id', None)} instead of {case.id}"
    named = getattr(e, "argument", None)
    if named is None:
        return "" if case.argument in str(e) else f"does not say {case.argument!r}: {e}"
    return "" if named == case.argument else f"names {named!r} instead of {case.argument!r}: {e}"


def _written(given: Given) -> str:
    wrote = [name for name, x in given.items() if isinstance(x, Output) and x.written]
    return f"{', '.join(wrote)} was written" if wrote else ""
