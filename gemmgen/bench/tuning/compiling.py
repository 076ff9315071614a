"""Cubins for the tuner: compiled by NVRTC on every core before a GPU is touched, and kept in a folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from ...config import Config
from ...emit import emit
from ...errors import CompileError
from ...pipeline import compile_to_source, lower
from ...problem import Problem
from ...runtime import nvrtc
from .worker import Worker

SECONDS = 180.0  # for one kernel: proof, NVRTC, ptxas
HANDLER = "gemmgen.bench.tuning.compiling:Compiler"
REFUSED = ".refused"  # in place of .cubin: why there is none

Kernel = tuple[Problem, Config]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A kernel's cubin, or why it has none."""

    cubin: Path | None = None
    failed: str = ""


class Compiler:
    """Handler: (problem, config, folder) -> Built. What is in the folder is not compiled again."""

    fragile = False

    def __init__(self) -> None:
        self._version = nvrtc.version()

    def __call__(self, request: tuple[Problem, Config, Path]) -> Built:
        problem, config, folder = request
        place = folder / _digest(problem, config, self._version)
        cubin, refused = place.with_suffix(".cubin"), place.with_suffix(REFUSED)
        if cubin.exists():
            return Built(cubin=cubin)
        if refused.exists():
            return Built(failed=refused.read_text())
        try:
            a = compile_to_source(problem, config)
            _write(cubin, nvrtc.compile_cubin(a.source, a.name).image)
        except CompileError as e:
            first = str(e).partition("NVRTC said:")[0].strip()
            _write(refused, first.encode())
            return Built(failed=first)
        return Built(cubin=cubin)


def compile_all(
    kernels: Iterable[Kernel],
    folder: Path,
    processes: int,
    progress: Progress = lambda done, total: None,
    handler: str = HANDLER,
    seconds: float = SECONDS,
) -> dict[Kernel, Built]:
    """Every kernel once, in `processes` processes at a time. A kernel that takes longer than `seconds` or
    kills its process has failed.

    Raises RuntimeUnavailable if NVRTC is missing.
    """
    wanted = list(dict.fromkeys(kernels))
    folder.mkdir(parents=True, exist_ok=True)
    queue: SimpleQueue[Kernel] = SimpleQueue()
    for kernel in wanted:
        queue.put(kernel)
    built: dict[Kernel, Built] = {}
    workers = [Worker(handler) for _ in range(min(processes, len(wanted)))]

    def serve(worker: Worker) -> None:
        try:
            while True:
                kernel = queue.get_nowait()
                answer = worker.ask((*kernel, folder), seconds)
                built[kernel] = answer.value or Built(failed=answer.failed)
                progress(len(built), len(wanted))
        except Empty:
            return
        finally:
            worker.close()

    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        running = [pool.submit(serve, w) for w in workers]
        try:
            for done in as_completed(running):
                done.result()
        except BaseException:
            _drain(queue)
            for worker in workers:
                worker.stop()
            raise
    return built


def cores() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0))


def _digest(problem: Problem, config: Config, version: tuple[int, int]) -> str:
    """Of everything the cubin depends on: the text without its proof, which takes longer, and the compiler."""
    text = emit(lower(problem, config), ())
    return hashlib.sha256(f"{version}\n{text}".encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: another process may be at the same kernel."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.replace(temporary, path)  # noqa: PTH105 (atomic on one file system)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _drain(queue: SimpleQueue[Kernel]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
