"""`python -m docs.tools.measure`: times the kernels of the ten steps on a Hopper GPU.

Each kernel is verified first; then those of one shape are timed by turns, each launch with a cold L2. The medians go to
docs/data/ten-steps-gpu.json, from where `python -m docs.tools.ten_steps` takes them into the pages. Needs a GPU,
its driver, cuda-bindings, NVRTC and torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from gemmgen.bench.timing import Samples, interleave
from gemmgen.errors import RuntimeUnavailable
from gemmgen.pipeline import compile_to_source
from gemmgen.runtime import driver
from gemmgen.runtime.cache import cached_cubin
from gemmgen.runtime.launch import LoadedKernel
from gemmgen.verification.inputs import random_normal
from gemmgen.verification.trial import judge, pitches

from .steps import Kernel, Pair, pairs
from .ten_steps import MEASURED

Timer = Callable[[tuple[Kernel, ...]], Mapping[Kernel, Samples]]


def report(gpu: str, repeats: int, timed: Timer) -> dict[str, Any]:
    """What the file holds: of each step the medians, µs, and their spread (interquartile range over median)."""
    of: dict[Kernel, Samples] = {}
    for _, same in groupby(kernels(pairs()), key=lambda k: k.shape):
        of |= timed(tuple(same))
    steps = {p.step.slug: _figures(p, of) for p in pairs()}
    return {"gpu": gpu, "repeats": repeats, "steps": steps}


def kernels(of: Iterable[Pair]) -> tuple[Kernel, ...]:
    """Each once, those of one shape together."""
    found = {k: None for p in of for k in (p.before, p.after) if k is not None}
    return tuple(sorted(found, key=lambda k: k.shape, reverse=True))


def _figures(pair: Pair, of: Mapping[Kernel, Samples]) -> dict[str, Any]:
    both = {"before": pair.before, "after": pair.after}
    return {
        which: {"us": round(of[k].median * 1e6, 2), "spread": round(of[k].spread, 4)}
        for which, k in both.items()
        if k is not None
    }


def on_gpu(device: int, repeats: int) -> Timer:
    """Verifies and times on CUDA device `device`. The timer raises VerificationError, LaunchError."""
    from gemmgen.runtime.gpu import Gpu, prepare

    def timed(same: tuple[Kernel, ...]) -> Mapping[Kernel, Samples]:
        calls, held, machine = {}, [], Gpu(device=device)
        for k in same:
            a = compile_to_source(k.problem, k.config)
            program = LoadedKernel(a.kernel, cached_cubin(a.source, a.name), device)
            judge(machine, program, a.kernel, k.problem, k.shape)
            operands = random_normal(k.problem, *k.shape, 0)
            alive, plan = prepare(program, operands, pitches(a.kernel, k.shape), k.problem.d)
            held.append(alive)
            calls[k] = lambda program=program, plan=plan: program.launch(plan)
        named = {k.words: call for k, call in calls.items()}
        samples = interleave(named, repeats)
        return {k: samples[k.words] for k in same}

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.tools.measure", description=__doc__)
    parser.add_argument("-o", type=Path, default=MEASURED, metavar="FILE", help="the file to write")
    parser.add_argument("--repeats", type=int, default=20, help="timed launches (default 20)")
    parser.add_argument("--device", type=int, default=0, help="the CUDA device (default 0)")
    args = parser.parse_args()
    try:
        name = driver.require_hopper(args.device)
    except RuntimeUnavailable as missing:
        parser.exit(3, f"{missing}\n")
    found = report(name, args.repeats, on_gpu(args.device, args.repeats))
    args.o.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
