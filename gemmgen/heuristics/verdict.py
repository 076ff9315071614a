"""What became of a candidate: a choice, or why it is none."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..cost import Cost
from ..errors import IllegalConfig


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A legal config, its modelled cost and one line that says what it rests on."""

    config: Config
    cost: Cost
    why: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A candidate, its modelled cost, and its choice if it is legal. Else refused: the error that the passes
    raised, None if too few stages fit to hide latency, or if it is the build that refused it: unbuilt says why.
    by: the config that was lowered, or built, another than the candidate where that has the same tile or one no
    larger."""

    config: Config
    cost: Cost
    choice: Choice | None = None
    refused: IllegalConfig | None = None
    unbuilt: str = ""
    by: Config
