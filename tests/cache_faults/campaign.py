"""Many faults, one after the other. After each, every kernel is asked for, twice.

What must hold: the right cubin each time, no exception, only the kernel that the fault hit is compiled again,
and after that none.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gemmgen.runtime import cache_files

from .damage import FAULTS, Scene
from .fakes import Compiler, compiled, recipe
from .stores import CUBINS, Store

KERNELS = 5
Faults = tuple[Callable[[Scene], None], ...]


@dataclass
class Tally:
    """Of one kind of fault. lost: entries compiled again though the fault had not touched them."""

    faults: int = 0
    recompiled: int = 0
    lost: int = 0
    wrong: int = 0
    crashes: int = 0
    unstable: int = 0  # compiled once more after it had been compiled again


def campaign(
    count: int, seed: int, folder: Path, store: Store = CUBINS, faults: Faults = FAULTS
) -> dict[str, Tally]:
    """`count` faults of the files of `store`, one after the other, each kind as often. `folder`: an empty one,
    for the cache."""
    rng = random.Random(seed)
    recipes = tuple(recipe(i) for i in range(KERNELS))
    tallies = {fault.__name__: Tally() for fault in faults}
    for number in range(count):
        for r in recipes:
            store.ask(r, lambda r=r: compiled(r), folder)
        fault, victim = faults[number % len(faults)], rng.choice(recipes)
        others = tuple(r for r in recipes if r != victim)
        scene = Scene(store, folder, victim, others, rng)
        _one(fault, scene, tallies[fault.__name__])
    return tallies


def _one(fault: Callable[[Scene], None], scene: Scene, tally: Tally) -> None:
    tally.faults += 1
    try:
        fault(scene)
        first, second = Compiler(), Compiler()
        for compiler in (first, second):
            for r in (scene.victim, *scene.others):
                tally.wrong += scene.store.ask(r, compiler(r), scene.folder) != compiled(r)
    except Exception:
        tally.crashes += 1
        logging.getLogger(__name__).exception("%s", fault.__name__)
        return
    tally.recompiled += first.calls[scene.victim.key]
    tally.lost += sum(first.calls[r.key] for r in scene.others)
    tally.unstable += second.calls.total()
    for path in scene.folder.iterdir():  # what is not ours stays; the next fault begins without it
        if not cache_files.ENTRY.fullmatch(path.name):
            path.unlink()


def table(tallies: dict[str, Tally]) -> str:
    total = Tally(
        *(sum(column) for column in zip(*(vars(t).values() for t in tallies.values()), strict=True))
    )
    head = (
        "| fault | faults | recompiled | others lost | compiled twice | wrong results | crashes |"
    )
    rows = [
        f"| {name} | {t.faults} | {t.recompiled} | {t.lost} | {t.unstable} | {t.wrong} | {t.crashes} |"
        for name, t in {**tallies, "all": total}.items()
    ]
    return "\n".join((head, "| --- |" + " ---: |" * 6, *(r.replace("_", " ") for r in rows)))
