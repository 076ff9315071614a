"""Put mutants on trial: each in a forked child, so that nothing it does outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gemmgen.errors import IllegalConfig, IRError
from gemmgen.runtime import nvrtc

from . import host, nets, survivors
from .mutant import (
    Built,
    Mutant,
    launch_facts,
    mutated_kernel,
    mutated_source,
    original,
)

SECONDS = 150  # in Python; NVRTC does not listen, and gets KILL_AFTER in all
KILL_AFTER = 200

Net = tuple[str, Callable[[Built], str | None]]
PROOFS: tuple[Net, ...] = (("S", nets.static), ("P", nets.proof))
RUNS: tuple[Net, ...] = (("C", nets.compiles), ("E", nets.emulates), ("N", nets.bit_model))
LAST: tuple[Net, ...] = (("X", nets.extractor), ("C", nets.cubin))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """killed: the nets that found it, the first one first; "hang" if it ran out of time.
    equivalent: why it is the same kernel, if nothing found it and a reason is known."""

    id: str
    killed: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # what each of them said
    equivalent: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        return "killed" if self.killed else "equivalent" if self.equivalent else "survived"


class _Time(Exception):
    pass


def score(m: Mutant, every: bool = False) -> Verdict:
    """The verdict on one mutant, in this process, which must not be used for anything afterwards:
    faults of the host stay in it."""
    started = time.perf_counter()
    found: list[tuple[str, str]] = []
    equivalent = ""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        for letter, text in _findings(m):
            found.append((letter, text.strip()))
            if not every:
                break
        if not found:
            equivalent = _equivalent(m)
    except _Time:
        found.append(("hang", f"still running after {SECONDS} s"))
    finally:
        signal.alarm(0)
    letters = dict.fromkeys(letter for letter, _ in found)
    return Verdict(
        id=m.id,
        killed=tuple(letters),
        texts=tuple(next(t for x, t in found if x == letter) for letter in letters),
        equivalent=equivalent,
        seconds=time.perf_counter() - started,
    )


def _alarm(*_: object) -> None:
    raise _Time


def _findings(m: Mutant) -> Iterator[tuple[str, str]]:
    """Every net that finds the fault, in order."""
    plan = host.plant(m)
    if plan:
        yield from (("H", text) for text in host.checks())
    meant = original(m.kernel)
    try:
        kernel = mutated_kernel(m)
        changed = kernel != meant.kernel
        if changed:  # these need no text
            yield from _ask(PROOFS, replace(meant, kernel=kernel))
        source = mutated_source(m, kernel)
    except (IRError, IllegalConfig) as e:
        yield "S", str(e)
        return
    except _Time:
        raise
    except Exception as e:
        yield "G", repr(e)
        return
    built = replace(meant, kernel=kernel, source=source)
    yield from _ask((("A", nets.audit),), built)
    if not (m.describe or m.host) and _unchanged(built, meant):
        return
    yield from _ask(RUNS, built)
    if not changed:
        yield from _ask(LAST[:1], built)
    yield from _ask(LAST[1:], built)


def control(name: str) -> list[tuple[str, str]]:
    """What the nets find in a right kernel: nothing, or they would count faults that are not there."""
    b = original(name)
    walked = ("A", lambda b: nets.walks(b, nets.walker(b.source)))
    return list(_ask((*PROOFS, ("A", nets.audit), walked, *RUNS, *LAST), b))


def _ask(some: Sequence[Net], built: Built) -> Iterator[tuple[str, str]]:
    for letter, net in some:
        try:
            text = net(built)
        except _Time:
            raise
        except Exception as e:  # a net that stops on nonsense has noticed it, if not by design
            text = f"stopped: {e!r}"
            letter = "G" if letter in "SP" else letter
        if text:
            yield letter, text


def _unchanged(built: Built, meant: Built) -> bool:
    """The same PTX, launched alike: nothing that runs can tell."""
    if launch_facts(built.kernel) != launch_facts(meant.kernel):
        return False
    try:
        ptx = nvrtc.compile_ptx(built.source, meant.kernel.name)
    except Exception:
        return False
    return nets.normal(ptx) == nets.normal(nvrtc.compile_ptx(meant.source, meant.kernel.name))


def _equivalent(m: Mutant) -> str:
    if reason := survivors.reason(m):
        return reason
    if m.describe or m.host:
        return ""
    meant = original(m.kernel)
    kernel = mutated_kernel(m)
    built = replace(meant, kernel=kernel, source=mutated_source(m, kernel))
    if launch_facts(kernel) != launch_facts(meant.kernel):
        return ""
    return nets.same_code(built, meant) or ""


# ---- many of them -----------------------------------------------------------------------------------


def score_all(
    mutants: Sequence[Mutant],
    jobs: int = 2,
    every: bool = False,
    told: Callable[[Verdict], None] = lambda v: None,
) -> list[Verdict]:
    """The verdicts, in the mutants' order; `told` hears of each as it comes."""
    context = multiprocessing.get_context("fork")
    waiting = list(mutants)[::-1]
    running: dict[Connection, tuple[Any, Mutant, float]] = {}
    done: dict[str, Verdict] = {}

    def finish(pipe: Connection, verdict: Verdict) -> None:
        process, _, _ = running.pop(pipe)
        if process.is_alive():
            process.join(1)
        if process.is_alive():
            process.kill()
        pipe.close()
        done[verdict.id] = verdict
        told(verdict)

    while waiting or running:
        while waiting and len(running) < jobs:
            m = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(theirs, m, every))
            process.start()
            theirs.close()
            running[ours] = (process, m, time.monotonic())
        for pipe in wait(list(running), timeout=1.0):
            assert isinstance(pipe, Connection)
            m = running[pipe][1]
            try:
                finish(pipe, pipe.recv())
            except EOFError:
                finish(pipe, Verdict(id=m.id, killed=("G",), texts=("the process died",)))
        for pipe, (_, m, since) in list(running.items()):
            if time.monotonic() - since > KILL_AFTER:
                finish(pipe, Verdict(id=m.id, killed=("hang",), texts=("the compiler hangs",)))
    return [done[m.id] for m in mutants]


def _child(pipe: Connection, m: Mutant, every: bool) -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    pipe.send(score(m, every))
    pipe.close()
