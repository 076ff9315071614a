"""What the proof raises, and the counter-example it carries."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import GemmgenError
from .properties import Property


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One agent's part of a trace: its last steps, and where it stands."""

    agent: str
    skipped: int  # steps before those shown
    steps: tuple[str, ...]
    stands: str  # what it is doing or about to do; "" if nothing of interest
    marked: bool  # one of those that clash

    def __str__(self) -> str:
        lines = [f"  {self.agent}"]
        if self.skipped:
            lines.append(f"      ... {self.skipped} steps")
        lines += [f"      {step}" for step in self.steps]
        if self.stands:
            lines.append(f"   {'>>' if self.marked else '..'} {self.stands}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A counter-example, role by role: the least that each must have done for the clash to happen.

    `instance` is the smallest one found to fail; `total` counts the steps of all roles.
    """

    instance: str = ""
    total: int = 0
    lanes: tuple[Lane, ...] = ()

    def __str__(self) -> str:
        if not self.lanes:
            return self.instance
        head = f"{self.instance}; {self.total} steps in all, the last of each role:"
        return "\n".join([head, *map(str, self.lanes)])


class ProtocolViolation(GemmgenError):
    """A kernel's roles can deadlock, race or corrupt. `property.id` is stable; `trace` says how."""

    id = "GG-V002"

    def __init__(self, property: Property, message: str, trace: Trace) -> None:
        text = f"[{property.id} {property.name}] {message}"
        super().__init__(f"{text}\n{trace}" if str(trace) else text)
        self.property = property
        self.message = message
        self.trace = trace
