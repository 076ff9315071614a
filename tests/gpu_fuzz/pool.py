"""Worker processes, each watched: one that hangs is killed, and what it was at is found and reported."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from .tally import Chunk, State, Tally

STARTING = 300.0  # seconds that a worker may take to start
TOO_MANY = 5  # errors and hangs of one tier, after which it is given up
POLL = 0.5  # seconds


class Process:
    """A worker, and what it is at. case: the one that it last said it began."""

    def __init__(self, command: list[str], log: IO[str], inbox: queue.Queue[Any]) -> None:
        self.chunk: Chunk | None = None
        self.case, self.heard, self.error, self.ready = 0, time.monotonic(), "", False
        self._run = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue[Any]) -> None:
        assert self._run.stdout is not None
        for line in self._run.stdout:
            inbox.put((self, json.loads(line)))
        inbox.put((self, None))

    def give(self, chunk: Chunk) -> None:
        assert self._run.stdin is not None
        self.chunk, self.case, self.heard = chunk, chunk.first, time.monotonic()
        try:
            self._run.stdin.write(json.dumps(asdict(chunk)) + "\n")
            self._run.stdin.flush()
        except BrokenPipeError:
            pass  # its end is on its way

    def end(self) -> None:
        self._run.kill()
        self._run.wait()


@dataclass
class Pool:
    """count: workers. patience: seconds without a word after which a worker hangs. until: of
    `time.monotonic`, when no more chunks are handed out."""

    state: State
    machine: str
    seed: int
    count: int
    patience: float
    until: float
    log: Path

    def drain(self, chunks: list[Chunk], enough: Callable[[Chunk], bool], count: int = 0) -> None:
        """Do all `chunks`, except those that are enough; what is left when time is up stays undone."""
        self._waiting = deque(chunks)
        self._inbox: queue.Queue[Any] = queue.Queue()
        self._live: set[Process] = set()
        with self.log.open("a") as log:
            self._log = log
            try:
                for _ in range(min(count or self.count, len(chunks))):
                    self._start(enough)
                while any(p.chunk for p in self._live):
                    self._step(enough)
            finally:
                for process in self._live:
                    process.end()

    def _start(self, enough: Callable[[Chunk], bool]) -> None:
        if not self._waiting:
            return
        command = [sys.executable, "-m", f"{__package__}.worker", self.machine, str(self.seed)]
        process = Process(command, self._log, self._inbox)
        self._live.add(process)
        self._hand(process, enough)

    def _hand(self, process: Process, enough: Callable[[Chunk], bool]) -> None:
        process.chunk = None
        while self._waiting and time.monotonic() < self.until:
            chunk = self._waiting.popleft()
            if not (enough(chunk) or self._given_up(chunk.tier)):
                process.give(chunk)
                return

    def _given_up(self, tier: str) -> bool:
        tally = self.state.tallies.get(tier, Tally())
        return tally.errors + tally.hangs >= TOO_MANY

    def _step(self, enough: Callable[[Chunk], bool]) -> None:
        try:
            process, said = self._inbox.get(timeout=POLL)
        except queue.Empty:
            pass
        else:
            self._hear(process, said, enough)
        for process in [p for p in self._live if p.chunk]:
            patience = self.patience if process.ready else STARTING
            if time.monotonic() - process.heard > patience:
                self._lost(process, enough, hung=True)

    def _hear(self, process: Process, said: Any, enough: Callable[[Chunk], bool]) -> None:
        if process not in self._live:
            return
        process.heard = time.monotonic()
        if said is None:
            self._lost(process, enough, hung=False)
            return
        process.ready = True
        process.error = said.get("error", process.error)
        process.case = said.get("case", process.case)
        if "done" in said and process.chunk:
            chunk, tally = process.chunk, Tally(**said["done"])
            if chunk.careful:
                case = process.case
                self.state.add(Chunk(tier=chunk.tier, first=case, end=case + 1), tally)
                if case + 1 < chunk.end:
                    return
            else:
                self.state.add(chunk, tally)
            self._hand(process, enough)

    def _lost(self, process: Process, enough: Callable[[Chunk], bool], *, hung: bool) -> None:
        """A worker hung or died. Its chunk is done again, case by case; if it was, the case is what failed."""
        self._live.discard(process)
        process.end()
        chunk, case = process.chunk, process.case
        if chunk is None:
            return
        first = chunk.first
        if chunk.careful:
            why = "hung" if hung else process.error or "the process died"
            text = f"{chunk.tier} case {case}: {why}"
            tally = Tally(cases=1, errors=not hung, hangs=int(hung), failures=[text])
            self.state.add(Chunk(tier=chunk.tier, first=case, end=case + 1), tally)
            first = case + 1
        if first < chunk.end:
            self._waiting.appendleft(
                Chunk(tier=chunk.tier, first=first, end=chunk.end, careful=True)
            )
        self._start(enough)
