"""What a gallery kernel is, and the problems that several of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import recipes
from ..config import Config
from ..ir.dtypes import BF16, E4M3, F32
from ..problem import Problem


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One gallery kernel: its file name under generated/<family>/, and what it is there to show."""

    name: str
    problem: Problem
    config: Config
    shows: str


FP8 = Problem(family=recipes.FP8_BLOCK, a=E4M3, b=E4M3)
FP8_F32 = replace(FP8, d=F32)
B16 = Problem(family=recipes.DENSE, a=BF16, b=BF16)
B16_TN = Problem(family=recipes.DENSE, a=BF16, b=BF16, layout="tn")
