"""F6 and F7: launches that repeat, on many streams, from many threads, captured, bound and overlapping."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from gemmgen import ops
from gemmgen.config import Config

from .cases import Case
from .exact import Flags, filled
from .images import Output
from .kind import EARLY, SMALL
from .kinds import SAME_BITS
from .trial import Trial, build

STREAMS = 8
SMS = (8, 33, 77, 131)
SIDE = 512  # of a chain of launches, each of which reads what the one before wrote


def another(out: Output) -> Output:
    """Images of its own."""
    return replace(out, images=torch.empty_like(out.images))


def zero(machine: Any) -> Any:
    return torch.zeros((), dtype=torch.int64, device=machine.device)


def repeats(machine: Any, case: Case, flags: Flags, launches: int) -> int:
    """On random values every launch gives the bits of the first: alone, beside another stream's work, and
    on fewer SMs."""
    trial = build(case, machine.device, normal=True)
    function = machine.function(trial.kind.function)
    trial = replace(trial, out=as_first(trial, function))
    rounds = max(1, launches // len(trial.out.views) // 5)
    count, wrong = filled(machine, trial, 2 * rounds)
    (other,) = machine.streams(1)
    busy = torch.ones(1024, 1024, dtype=torch.float32, device=machine.device)
    machine.wait()
    for _ in range(2):
        with machine.on(other):
            for _ in range(rounds):
                busy = busy @ busy * 1e-4
        more, found = filled(machine, trial, rounds)
        count, wrong = count + more, wrong + found
    machine.wait()
    try:
        for sms in SMS:
            ops.limit_sms(sms)
            more, found = filled(machine, trial, max(2, rounds // len(SMS)))
            count, wrong = count + more, wrong + found
    finally:
        ops.limit_sms(None)
    flags.add(f"repeats of {case}", None, wrong)
    return count


def as_first(trial: Trial, function: Any) -> Output:
    """The output whose `wants` are what a first launch gives."""
    wants = []
    for which in range(len(trial.out.begins)):
        trial.out.poison(which)
        trial.call(function, trial.out.views[0])
        wants.append(trial.out.images[0].clone())
    return replace(trial.out, wants=tuple(wants))


def same_bits(machine: Any, name: str, case: Case, flags: Flags) -> int:
    """Every config of one problem gives the bits of the first, on random values."""
    kind, configs = SAME_BITS[name]
    trial = replace(build(case, machine.device, normal=True), kind=kind)
    dtype = getattr(torch, kind.out)
    assert trial.out.dtype == dtype
    function = machine.function(kind.function)
    trial = replace(trial, out=as_first(trial, function))
    count = 1
    wrong = zero(machine)
    for config in configs[1:]:
        other = replace(trial, named=trial.named | {"config": config})
        more, found = filled(machine, other, 1)
        count, wrong = count + more, wrong + found
    flags.add(f"configs of {case}", None, wrong)
    return count


def streams(machine: Any, case: Case, flags: Flags, launches: int) -> int:
    """`launches` on each of STREAMS streams, which share their operands."""
    trial = build(case, machine.device)
    trials = [replace(trial, out=another(trial.out)) for _ in range(STREAMS)]
    rounds = max(1, launches // len(trial.out.views))
    wrongs = [zero(machine) for _ in trials]
    everywhere = machine.streams(STREAMS)
    machine.wait()
    count = 0
    for _ in range(rounds):
        for i, stream in enumerate(everywhere):
            with machine.on(stream):
                more, found = filled(machine, trials[i], 1)
                wrongs[i] += found
                count += more
    machine.wait()
    flags.add(f"{STREAMS} streams of {case}", case, torch.stack(wrongs).sum())
    return count


def threads(machine: Any, case: Case, flags: Flags, launches: int, many: int = 4) -> int:
    """From `many` threads at once, each on `many` streams: `launches` on each of them. First calls too."""
    trials = [build(replace(case, seed=case.seed + i), machine.device) for i in range(many)]
    machine.wait()

    def work(trial: Trial) -> tuple[int, Any]:
        own = [replace(trial, out=another(trial.out)) for _ in range(many)]
        wrongs = [zero(machine) for _ in own]
        mine, count = machine.streams(many), 0
        machine.wait()
        for i in range(max(1, launches // len(trial.out.views))):
            for stream, one, wrong in zip(mine, own, wrongs, strict=True):
                with machine.on(stream):
                    more, found = filled(machine, one, 1 + i % 2)
                    wrong += found
                count += more
            if count >= launches * many:
                break
        machine.wait()
        return count, torch.stack(wrongs).sum()

    with ThreadPoolExecutor(many) as pool:
        done = list(pool.map(work, trials))
    wrong = torch.stack([w for _, w in done]).sum()
    flags.add(f"{many} threads x {many} streams of {case}", None, wrong)
    return sum(count for count, _ in done)


def graph(machine: Any, case: Case, flags: Flags, replays: int) -> int:
    """Captured once, replayed over other values and group tables in turn."""
    trials = [build(replace(case, turn=turn), machine.device) for turn in range(2)]
    first = trials[0]
    sources = [[parent.clone() for parent in t.held] for t in trials]
    function = machine.function(first.kind.function)
    views = first.out.views

    def work() -> None:
        for view in views:
            first.call(function, view)

    work()
    machine.wait()
    replay = machine.captured(work)
    wrong = zero(machine)
    for i in range(replays):
        for parent, values in zip(first.held, sources[i % 2], strict=True):
            parent.copy_(values)
        out = replace(trials[i % 2].out, images=first.out.images)
        out.poison(i // 2 % 2)
        replay()
        wrong += out.wrong(i // 2 % 2)
    flags.add(f"graph of {case}", None, wrong)
    return replays * len(views) + len(views)


def bound(machine: Any, case: Case, flags: Flags, launches: int) -> int:
    """Bound launches, moved to other outputs and to another stream."""
    trial = build(case, machine.device)
    views = trial.out.views
    first = trial.call(
        lambda *a, **n: ops.bind(machine.function(trial.kind.function), *a, **n), views[0]
    )
    names = [n for n in ("out", "c") if n in first.tensors]
    (stream,) = machine.streams(1)
    moved = [first.rebind(**dict.fromkeys(names, view)) for view in views]
    there = [launch.with_stream(getattr(stream, "cuda_stream", 0)) for launch in moved]
    wrong, rounds = zero(machine), max(2, launches // len(views))
    machine.wait()
    for i in range(rounds):
        trial.out.poison(i % 2)
        if i % 2:
            machine.wait()
        for launch in there if i % 2 else moved:
            launch()
        if i % 2:
            machine.wait()
        wrong += trial.out.wrong(i % 2)
    flags.add(f"bound launch of {case}", None, wrong)
    return rounds * len(views)


def chain(machine: Any, seed: int, flags: Flags, length: int = 64, times: int = 10) -> int:
    """x W W ... with launches that begin while the one before ends, against those that do not."""
    source = torch.Generator(machine.device).manual_seed(seed)
    make = {"generator": source, "device": machine.device}
    x, w = (torch.randn(SIDE, SIDE, **make).to(torch.bfloat16) for _ in range(2))
    w = w * SIDE**-0.5
    buffers = torch.empty_like(x), torch.empty_like(x)
    gemm = machine.function("gemm")

    def through(config: Config) -> Any:
        y = x
        for i in range(length):
            y = gemm(y, w, buffers[i % 2], config=config)
        return y.clone()

    want, wrong = through(replace(SMALL, stages=6)), zero(machine)
    for _ in range(times):
        wrong += (through(EARLY) != want).any()
    flags.add(f"chain seed={seed}", None, wrong)
    return length * (times + 1)
