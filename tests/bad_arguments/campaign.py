"""All calls, and the table of what came of them."""

from __future__ import annotations

import os
import sys
import tempfile
from types import SimpleNamespace

import fake_torch
import pytest

from gemmgen import ops
from gemmgen.compat.deep_gemm import settings
from gemmgen.config import Config
from gemmgen.ir.row_sums import fold_rows
from gemmgen.problem import Problem
from gemmgen.target import H200

from . import (
    coded,
    coded_blocks,
    coded_fp8,
    coded_octets,
    compat,
    experts,
    gemms,
    heads,
    logits,
    others,
    paged,
    prenorm,
)
from .model import Outcome, tried

FUNCTIONS = (
    *others.FUNCTIONS,
    *experts.FUNCTIONS,
    *gemms.FUNCTIONS,
    *heads.FUNCTIONS,
    *coded.FUNCTIONS,
    *coded_fp8.FUNCTIONS,
    *coded_blocks.FUNCTIONS,
    *coded_octets.FUNCTIONS,
    *logits.FUNCTIONS,
    *prenorm.FUNCTIONS,
    *paged.FUNCTIONS,
    *compat.FUNCTIONS,
)


def campaign() -> list[Outcome]:
    """What came of every call, without a GPU and without torch."""
    with (
        pytest.MonkeyPatch.context() as patch,
        fake_torch.faked(patch),
        tempfile.TemporaryDirectory() as folder,
    ):
        patch.setitem(os.environ, "GEMMGEN_CACHE", folder)  # no case gets as far as writing there
        patch.setattr(ops.building, "chosen", _chosen)
        patch.setattr(ops.building, "priced_for", lambda device: (H200.device_name, H200))
        patch.setattr(sys.modules["torch"], "cuda", SimpleNamespace(current_device=int), False)
        patch.setattr(settings.driver, "sm_count", lambda device: 132)
        launches = fake_torch.recorded(patch)
        found = [outcome for f in FUNCTIONS for outcome in tried(f, launches)]
        found += [Outcome(function="ops.prepare", says="wrote", problem=x) for x in os.listdir(folder)]  # noqa: PTH208 # fmt: skip
    return found


def _chosen(p: Problem, *asked: object) -> Config:
    return gemms.CONFIG if fold_rows(p.epilogue) == 1 else logits.CONFIG


def table(outcomes: list[Outcome]) -> str:
    """Markdown: of each function the wrong calls, and those that the right error refused."""
    found: dict[str, list[bool]] = {}
    for o in outcomes:
        of = found.setdefault(o.function, [])
        of.extend([not o.problem] if o.says != "right" else [])
    total = [x for of in found.values() for x in of]
    rows = [f"| {name} | {len(of)} | {sum(of)} |" for name, of in sorted(found.items())]
    head = ["| function | wrong calls | refused with the right error |", "| --- | ---: | ---: |"]
    return "\n".join([*head, *rows, f"| all | {len(total)} | {sum(total)} |"])
