"""Every exception gemmgen raises on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class GemmgenError(Exception):
    """Base class of all gemmgen errors; catching it never hides a bug in Python itself."""


class IRError(GemmgenError):
    """The IR is malformed: a bug in a family or a pass, never the user's fault."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One legality rule. `id` is stable and documented; the texts may improve."""

    id: str
    says: str
    because: str


class IllegalConfig(GemmgenError):
    """The configuration cannot run on the target or in this kernel.

    `rule.id` is stable, `values` are the numbers that broke it, `fix` says what to change.
    """

    def __init__(self, rule: Rule, values: Mapping[str, object], fix: str) -> None:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        super().__init__(f"[{rule.id}] {rule.says} (got {shown}). {fix}")
        self.rule = rule
        self.values = dict(values)
        self.fix = fix


class UnsupportedProblem(GemmgenError):
    """No family computes this problem."""


class ArgumentError(GemmgenError, ValueError):
    """A value handed to gemmgen is wrong: names the argument, its value and what is allowed."""

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(f"{argument}={value!r}: {allowed}")
        self.argument = argument
        self.value = value
        self.allowed = allowed


class CompileError(GemmgenError):
    """NVRTC refused the source or produced a kernel that must not ship (spills, serialised wgmma)."""


class CacheError(GemmgenError):
    """A directory of compiled kernels cannot be trusted, or an entry in it: names the path and the reason."""


class RuntimeUnavailable(GemmgenError):
    """Something this machine lacks: NVRTC, a driver, a Hopper GPU. The text names the remedy."""


class LaunchError(GemmgenError):
    """The driver refused a tensor map, a module or a launch."""


class DeadlockError(LaunchError):
    """A watched kernel waited too long and stopped itself; the text is a table of who waits where."""


class VerificationError(GemmgenError):
    """A kernel's result is wrong."""
