"""The ten steps of docs/ten-steps.md: each changes a few fields of the kernel before it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gemmgen.config import Config
from gemmgen.ir.dtypes import E4M3
from gemmgen.problem import Problem, Shape

LARGE, FEW_ROWS = (4096, 7168, 2048), (16, 7168, 2048)
FAST = Problem(family="dense", a=E4M3, b=E4M3)  # the sum stays in the tensor core
SCALED = Problem(family="fp8_block", a=E4M3, b=E4M3)
LEAST = Config(
    block_m=64,
    block_n=128,
    stages=1,
    consumers=1,
    panel=1,
    swizzle_ab=0,
    swizzle_d=0,
)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel at one shape."""

    problem: Problem
    config: Config
    shape: Shape

    @property
    def words(self) -> str:
        """What names it on the command line."""
        p = self.problem
        changed = {k: v for k, v in self.config.to_json().items() if v != Config().to_json().get(k)}
        operands = "" if p.family == SCALED.family else " --ab e4m3"
        return f"{p.family}{operands} --config '{json.dumps(changed)}'"

    @property
    def sides(self) -> str:
        m, n, k = self.shape
        return f"-m {m} -n {n} -k {k}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """slug: names its block and its picture. changes: of the config before; problem, shape: from here on.
    picture: the command that draws it, after the kernel's words."""

    slug: str
    changes: dict[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    shape: Shape | None = None
    picture: str


STEPS = (
    Step(slug="least", picture="timeline {sides} --tiles 0:1 --blocks 0:3"),
    Step(slug="swizzle", changes={"swizzle_ab": 128}, picture="layout A"),
    Step(
        slug="pipeline", changes={"stages": 4}, picture="timeline {sides} --tiles 0:1 --blocks 0:8"
    ),
    Step(
        slug="warpgroups",
        changes={"block_m": 128, "consumers": 2},
        picture="timeline {sides} --tiles 0:1 --blocks 0:8",
    ),
    Step(slug="promotion", problem=SCALED, picture="timeline {sides} --tiles 0:1 --blocks 0:8"),
    Step(slug="store", changes={"swizzle_d": 128}, picture="layout D"),
    Step(slug="order", changes={"panel": 8}, picture="order"),
    Step(
        slug="cluster",
        changes={"multicast": "a"},
        picture="timeline {sides} --tiles 0:1 --blocks 0:8",
    ),
    Step(
        slug="waves",
        changes={"block_m": 256, "stages": 3, "unroll": 4},
        picture="timeline {sides} --tiles 0:1 --blocks 0:6",
    ),
    Step(
        slug="few-rows",
        changes={"multicast": "none", "swap_ab": True, "block_m": 16, "stages": 8, "split_k": 2},
        shape=FEW_ROWS,
        picture="timeline {sides}",
    ),
)


@dataclass(frozen=True)
class Pair:
    """A step, the kernel before it (None: it is the first) and the one after it, at one shape."""

    step: Step
    before: Kernel | None
    after: Kernel

    @cached_property
    def diff(self) -> str:
        """The command that compares the two; of the first kernel, the one that shows it."""
        if self.before is None:
            return f"gemmgen show {self.after.words}"
        if self.step.problem:
            return f"gemmgen diff {self.before.words} {self.after.problem.family}"
        changes = ",".join(f"{k}={value(v)}" for k, v in self.step.changes.items())
        return f"gemmgen diff {self.before.words} {changes}"

    @property
    def picture(self) -> str | None:
        """The command that draws the picture; None: no command of gemmgen draws it."""
        view, _, rest = self.step.picture.format(sides=self.after.sides).partition(" ")
        if view == "order":
            return None
        return f"gemmgen {view} {self.after.words} {rest} --svg {self.file}"

    @property
    def file(self) -> str:
        return f"{self.step.slug}.svg"


def pairs() -> tuple[Pair, ...]:
    """All ten, each on top of the one before."""
    now, found = Kernel(problem=FAST, config=LEAST, shape=LARGE), []
    for step in STEPS:
        shape = step.shape or now.shape
        before = replace(now, shape=shape)
        now = Kernel(
            problem=step.problem or now.problem,
            config=replace(now.config, **step.changes),
            shape=shape,
        )
        found.append(Pair(step, None if step is STEPS[0] else before, now))
    return tuple(found)


def value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
