"""All cases, one after the other, and the table of what came of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from . import caches, checkpoints, commands, files, texts
from .model import Case, Outcome, tried

CASES = (*texts.CASES, *files.CASES, *checkpoints.CASES, *caches.CASES, *commands.CASES)
VARIABLES = ("GEMMGEN_CACHE", "GEMMGEN_CACHE_PATH", "GEMMGEN_CACHE_BYTES", "GEMMGEN_TUNED")


def campaign(cases: tuple[Case, ...] = CASES) -> list[Outcome]:
    """What came of each. They work in a folder of their own, which is where they must write nothing."""
    root = Path(tempfile.mkdtemp())
    work, before = root / "work", Path.cwd()
    clean = {name: x for name, x in os.environ.items() if name not in VARIABLES}
    mask = os.umask(0o022)
    try:
        work.mkdir(mode=0o700)
        os.chdir(work)
        with mock.patch.dict(
            os.environ, clean | {"GEMMGEN_CACHE": str(root / "cache")}, clear=True
        ):
            found = [_alone(case, root / str(n)) for n, case in enumerate(cases)]
        stray = [p.name for p in (*work.iterdir(), *root.glob("cache*"))]
        return [
            *found,
            *(Outcome(surface="all", says=f"left {x}", problem="a file") for x in stray),
        ]
    finally:
        os.umask(mask)
        os.chdir(before)
        shutil.rmtree(root, ignore_errors=True)


def _alone(case: Case, folder: Path) -> Outcome:
    folder.mkdir(mode=0o700)
    found = tried(case, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def table(outcomes: list[Outcome]) -> str:
    """Markdown: of each surface the inputs, and those that were refused as they must be."""
    found: dict[str, list[bool]] = {}
    for o in outcomes:
        found.setdefault(o.surface, []).append(not o.problem)
    total = [x for of in found.values() for x in of]
    rows = [f"| {name} | {len(of)} | {sum(of)} |" for name, of in found.items()]
    head = ["| surface | inputs | refused, nothing written |", "| --- | ---: | ---: |"]
    return "\n".join([*head, *rows, f"| all | {len(total)} | {sum(total)} |"])
