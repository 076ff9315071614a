"""Put mutants on trial: each in a forked child, so that nothing it does outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
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
from .reasons import STOPPED, reason

SECONDS = 150  # of this process, in Python, however busy the machine; NVRTC does not listen
KILL_AFTER = 900  # by the clock

Net = tuple[str, Callable[[Built], str | None]]
PROOFS: tuple[Net, ...] = (("S", nets.static), ("P", nets.proof))
RUNS: tuple[Net, ...] = (("C", nets.compiles), ("E", nets.emulates), ("N", nets.bit_model))
LAST: tuple[Net, ...] = (("X", nets.extractor), ("C", nets.cubin))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """killed: the nets that found it, the first one first; "hang" if it ran out of time, as it should.
    equivalent: why it is the same kernel, if nothing found it and a reason is known. undecided: why
    nobody knows: it ran out of time, or its process died. ignored: nets that found something, but find it
    in the right kernel too. error: what is wrong with the campaign itself."""

    id: str
    killed: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # what each of them said
    equivalent: str = ""
    undecided: str = ""
    ignored: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        named = ("killed", "error", "undecided", "equivalent")
        return next((x for x in named if getattr(self, x)), "survived")


class _Time(BaseException):  # nothing in between may catch it
    pass


class CampaignError(Exception):
    """A net that must not stop has stopped: that says nothing about the mutant."""


def planned(m: Mutant, v: Verdict) -> bool:
    """Whether the first net that found it is one that should, and for the reason that it should have."""
    return bool(v.killed) and v.killed[0] in m.expected and bool(reason(m).search(v.texts[0]))


def score(m: Mutant, every: bool = False, noisy: Collection[str] = ()) -> Verdict:
    """The verdict on one mutant, in this process, which must not be used for anything afterwards:
    faults of the host stay in it. noisy: nets that are not silent on the right kernel: they kill nothing."""
    started = time.perf_counter()
    found: dict[str, str] = {}
    ignored: set[str] = set()
    equivalent = undecided = error = ""
    signal.signal(signal.SIGPROF, _alarm)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        for letter, text in _findings(m):
            if letter in noisy:
                ignored.add(letter)
                continue
            found.setdefault(letter, text.strip())
            if not every:
                break
        if not found:
            equivalent = _equivalent(m)
    except _Time:
        undecided = "" if found else f"still running after {SECONDS} s"
    except CampaignError as e:
        error = str(e)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.perf_counter() - started
    if undecided:
        return replace(out_of_time(m, undecided), seconds=seconds, ignored=tuple(sorted(ignored)))
    return Verdict(
        id=m.id,
        killed=tuple(found),
        texts=tuple(found.values()),
        equivalent=equivalent,
        ignored=tuple(sorted(ignored)),
        error=error,
        seconds=seconds,
    )


def out_of_time(m: Mutant, why: str) -> Verdict:
    """A slow machine, or a net that is slow on nonsense, is no net: only what should hang is found so."""
    if m.hangs:
        return Verdict(id=m.id, killed=("hang",), texts=(why,))
    return Verdict(id=m.id, undecided=why)


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

    def walked(b: Built) -> str | None:
        tables = b.meant.scheduler.params  # tests/ir/test_groupings.py walks those
        return None if tables else nets.walks(b, nets.walker(b.source))

    every = (*PROOFS, ("A", nets.audit), ("A", walked), *RUNS, *LAST)
    try:
        return [*_ask(every, b), *(("H", text) for text in host.checks())]
    except CampaignError as e:
        return [("N", str(e))]


def controls(
    names: Collection[str],
    jobs: int = 2,
    told: Callable[[str, list[tuple[str, str]]], None] = print,
) -> dict[str, frozenset[str]]:
    """Of each kernel the nets that find something in it although it is right: their kills do not count."""
    context = multiprocessing.get_context("fork")
    noisy: dict[str, frozenset[str]] = {}
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        for name, found in zip(names, pool.imap(control, names, chunksize=1), strict=True):
            noisy[name] = frozenset(letter for letter, _ in found)
            told(name, found)
    return noisy


def _ask(some: Sequence[Net], built: Built) -> Iterator[tuple[str, str]]:
    for letter, net in some:
        try:
            text = net(built)
        except _Time:
            raise
        except Exception as e:  # a net that stops on nonsense has noticed it, if not by design
            if letter == "N":
                raise CampaignError(f"the bit model stopped: {e!r}") from e
            text = f"{STOPPED}{e!r}"
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
    noisy: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Verdict]:
    """The verdicts, in the mutants' order; `told` hears of each as it comes. noisy: of `controls`."""
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
            process = context.Process(
                target=_child, args=(theirs, m, every, noisy.get(m.kernel, ()))
            )
            process.start()
            theirs.close()
            running[ours] = (process, m, time.monotonic())
        for pipe in wait(list(running), timeout=1.0):
            assert isinstance(pipe, Connection)
            m = running[pipe][1]
            try:
                finish(pipe, pipe.recv())
            except EOFError:
                finish(pipe, Verdict(id=m.id, undecided="the process died"))
        for pipe, (_, m, since) in list(running.items()):
            if time.monotonic() - since > KILL_AFTER:
                finish(pipe, out_of_time(m, f"the compiler was still running after {KILL_AFTER} s"))
    return [done[m.id] for m in mutants]


def _child(pipe: Connection, m: Mutant, every: bool, noisy: Collection[str]) -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    pipe.send(score(m, every, noisy))
    pipe.close()
