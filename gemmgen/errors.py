"""Every exception gemmgen raises on purpose, each with an id that stays (docs/errors.md)."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = SHOWN.maxlong = 200
SHOWN.maxlist = SHOWN.maxtuple = SHOWN.maxdict = 24
LONGEST_NAME = 200


def shown(value: object) -> str:
    """As repr, cut where it is long or nests deep: values may come from files that nobody has read."""
    try:
        return SHOWN.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"<{type(value).__name__}>"


def _name(argument: str) -> str:
    """As it is, unless someone else's text can hide in it what it really says."""
    plain = argument.isprintable() and len(argument) <= LONGEST_NAME
    return argument if plain else shown(argument)


class GemmgenError(Exception):
    """Base class of all gemmgen errors; catching it never hides a bug in Python itself. Raised as it is where a
    benchmark measured something else than it was asked to.

    `id` is stable: programs and tests compare it, never the sentence.
    """

    id: str = "GG-G001"


class IRError(GemmgenError):
    """The IR is malformed: a bug in a family or a pass, never the user's fault."""

    id = "GG-I001"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One legality rule. `id` is stable and documented; the texts may improve."""

    id: str
    says: str
    because: str


class IllegalConfig(GemmgenError):
    """The configuration cannot run on the target or in this kernel.

    `rule.id` is stable, `values` are the numbers that broke it, `fix` says what to change. `id` ends with the
    rule's: GG-S001-wgmma-n.
    """

    id = "GG-S001"

    def __init__(self, rule: Rule, values: Mapping[str, object], fix: str) -> None:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        super().__init__(f"[{rule.id}] {rule.says} (got {shown}). {fix}")
        self.id = f"{type(self).id}-{rule.id}"
        self.rule = rule
        self.values = dict(values)
        self.fix = fix


class UnsupportedProblem(GemmgenError):
    """No kernel computes this problem."""

    id = "GG-P001"


class ArgumentError(GemmgenError, ValueError):
    """A value handed to gemmgen is wrong: names the argument, its value and what is allowed."""

    id = "GG-A001"

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(f"{_name(argument)}={shown(value)}: {allowed}")
        self.argument = argument
        self.value = value
        self.allowed = allowed


class CompileError(GemmgenError):
    """NVRTC refused the source or produced a kernel that must not ship (spills, serialised wgmma).

    `lasting`: whether the same source would be refused again, rather than for want of memory.
    """

    id = "GG-C001"

    def __init__(self, text: str, *, lasting: bool = True) -> None:
        super().__init__(text)
        self.lasting = lasting


class CacheError(GemmgenError):
    """A directory of compiled kernels cannot be trusted, or an entry in it: names the path and the reason."""

    id = "GG-X001"


class RuntimeUnavailable(GemmgenError):
    """Something this machine lacks: NVRTC, a driver, a Hopper GPU. The text names the remedy."""

    id = "GG-D001"


class LaunchError(GemmgenError):
    """The driver refused a module, a launch or another call."""

    id = "GG-L001"


class TensorMapError(LaunchError):
    """The driver refused a tensor map: names its answer and all that it was given."""

    id = "GG-T001"


class DeadlockError(LaunchError):
    """A watched kernel waited too long and stopped itself; the text is a table of what each warp waits for."""

    id = "GG-H001"


class VerificationError(GemmgenError):
    """A kernel's result is wrong."""

    id = "GG-V001"
