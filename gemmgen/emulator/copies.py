"""Copies by a GPU's copy engines beside its launches, from its memory to any GPU's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .flags import WIDEST, Origin, Release, acquired
from .machine import Cluster, GridRun
from .memory import Writer
from .schedule import Pending
from .tracker import ORDERED, Tracker
from .views import View

WHO, LANE = 1, 1  # the tracker's first agent, and one lane of it


@dataclass(frozen=True, kw_only=True)
class Copied:
    """`height` lines of `width` bytes, which lie so many bytes apart there and here."""

    to: int
    to_pitch: int
    of: int
    of_pitch: int
    width: int
    height: int

    def __str__(self) -> str:
        return f"a copy of {self.height} x {self.width} bytes to {self.to:#x}"


@dataclass(frozen=True, kw_only=True)
class Raised:
    """64 bits become `value`, and who sees that sees all that was copied before."""

    flag: int
    value: int

    def __str__(self) -> str:
        return f"a flag at {self.flag:#x}"


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """What comes after begins when 64 bits are `value` or more, and sees what who wrote them released."""

    flag: int
    value: int

    def __str__(self) -> str:
        return f"a wait for the flag at {self.flag:#x}"


Job = Awaited | Copied | Raised


class Engine(Cluster):
    """One that has no threads, but these jobs in flight, which complete in order. before: it belongs to what so many launches before this
    one is over."""

    def __init__(self, launch: GridRun, jobs: Sequence[Job], before: int = 0) -> None:
        past, born = launch.past, launch.stats.turns
        self.launch, self.index, self.size, self.ctas = launch, -1, 0, []
        self.origin = Origin(past.device, past.launch - before, self.index - before)
        self.tracker = Tracker(1, 1, past)
        texts = {job: f"{job} by GPU {past.device}" for job in jobs}
        self.pending = [
            Pending(complete=partial(self.do, job), text=texts[job], stream=self, born=born)
            for job in jobs
        ]
        self.waits = {
            p: job for p, job in zip(self.pending, jobs, strict=True) if isinstance(job, Awaited)
        }

    def completable(self) -> list[Pending]:
        """The next one, if it is not one that waits."""
        first = self.pending[:1]
        return [p for p in first if p not in self.waits or self._there(self.waits[p])]

    def _there(self, job: Awaited) -> bool:
        found = self.launch.memory.load(np.array([job.flag], np.int64), 8, str(job))
        return int(found.view(np.uint64)[0, 0]) >= job.value

    def do(self, job: Job) -> None:
        """It is done, and others see it."""
        if isinstance(job, Awaited):
            found = self.launch.memory.releases.get(job.flag)
            if found is not None and found.reaches(self.origin.device, WIDEST):
                number = acquired(self.tracker, found, f"a release at {job.flag:#x}")
                self.tracker.observe(WHO, number, 1, LANE)
            return
        if isinstance(job, Copied):
            lines = np.arange(job.height, dtype=np.int64)
            source, who = job.of + lines * job.of_pitch, f"{job} by GPU {self.origin.device}"
            memory, view = self.launch.memory, self._view()
            memory.check_read(source, job.width, self.origin, view, who)
            data = memory.load(source, job.width, who)
            self._write(job.to + lines * job.to_pitch, data, who)
            return
        value = np.array([job.value], np.uint64).view(np.uint8)[None]
        self._write(np.array([job.flag], np.int64), value, str(job))
        clock = self.tracker.release(WHO, LANE)
        self.launch.memory.releases[job.flag] = Release(
            cluster=self.origin,
            view=View(tracker=self.tracker, ordered=clock[ORDERED]),
            scope=WIDEST,
        )

    def _view(self) -> View:
        return View(tracker=self.tracker, ordered=self.tracker.seen(WHO, LANE)[ORDERED])

    def _write(self, addresses: np.ndarray, data: np.ndarray, who: str) -> None:
        clock = self.tracker.touch(WHO, LANE)
        by = Writer(cluster=self.origin, agent=WHO, clock=clock, what=who)
        self.launch.memory.store(addresses, data, by, self._view())
