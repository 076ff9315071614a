"""`gemmgen run`: random inputs, launch, verify, time. On a Hopper GPU, or on the emulator without one."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from typing import Any

from ..config import Config
from ..errors import ArgumentError, RuntimeUnavailable
from ..ir.groupings import depths, segments
from ..pipeline import Artifact, compile_to_source
from ..problem import Problem
from ..runtime import driver, emulated
from ..runtime.cache import cached_cubin
from ..runtime.launch import LoadedKernel
from ..runtime.nvrtc import Cubin
from ..see.instance import mean_shape
from ..untrusted import whole
from ..verification.groups import some
from ..verification.inputs import Operands, random_normal
from ..verification.power import line, power
from ..verification.trial import Verdict, judge, pitches, share_of
from . import emulate_command, given, group_options, options
from .progress import Bar


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_shape(parser)
    group_options.add_rows(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    options.add_watchdog(parser)
    parser.add_argument("--pad", type=int, default=0, help="row padding in pieces of 16 bytes")
    parser.add_argument(
        "--repeats", type=int, default=20, help="timed launches, on a GPU (default 20)"
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="a CUDA device's number, emulator, or auto: device 0 if it is a Hopper GPU, else the emulator",
        offers=("auto", "emulator"),
    )
    parser.set_defaults(sms=emulated.SMS, schedule="round-robin", stats=False)


def main(args: argparse.Namespace) -> int:
    if args.repeats < 1:
        raise ArgumentError("--repeats", args.repeats, "must be at least 1")
    device = _device(args.device)
    if device is not None:
        return _on_gpu(args, device)
    given.refuse(args, ("repeats",), "is of timed launches: the emulator times none")
    return emulate_command.main(args)


def _device(asked: str) -> int | None:
    """The CUDA device, or None for the emulator. Raises ArgumentError, RuntimeUnavailable."""
    if asked == "emulator":
        return None
    number = whole(asked)
    if number is not None:
        driver.require_hopper(number)
        return number
    if asked != "auto":
        raise ArgumentError("--device", asked, "must be a CUDA device's number, emulator or auto")
    try:
        driver.require_hopper(0)
    except RuntimeUnavailable:
        return None
    return 0


def _on_gpu(args: argparse.Namespace, device: int) -> int:
    from ..runtime.gpu import Gpu

    shape = options.shape(args)
    name, p = driver.require_hopper(device), options.problem(args)
    layout = group_options.layout(args, p, shape)
    of = layout or some(p, shape)
    mean = mean_shape(p, shape, of)
    (a, cubin), source = options.built(args, _built, mean, name, of.groups)
    program = LoadedKernel(a.kernel, cubin, device, a.source)
    machine = Gpu(device=device)
    with Bar() as bar:
        verdict = judge(
            machine,
            program,
            a.kernel,
            a.problem,
            shape,
            args.seed,
            args.pad,
            layout,
            progress=partial(bar.update, "verifying"),
        )
    operands = random_normal(a.problem, *shape, args.seed, layout)
    powers = power(a.problem, shape, args.seed, layout, share_of(a.kernel, shape[2], of))
    samples = _timed(a, program, operands, args)
    flops = 2.0 * products(a.problem, operands) * shape[1]
    report: dict[str, Any] = {
        "kernel": a.name,
        "config": a.config.to_json(),
        "config_from": source,
        "gpu": name,
        "shape": shape,
        "exact": verdict.exact,
        "worst_error_over_bound": verdict.bound.worst,
        "launches_verified": verdict.launches,
        "power": [asdict(p) for p in powers],
        "seconds": samples.median,
        "spread": samples.spread,
        "tflops": flops / samples.median * 1e-12,
    }
    print(json.dumps(report, indent=2) if args.json else _text(report, verdict, line(powers)))
    return 0


def _built(p: Problem, c: Config) -> tuple[Artifact, Cubin]:
    a = compile_to_source(p, c)
    return a, cached_cubin(a.source, a.name)


def products(p: Problem, x: Operands) -> int:
    """For each column of D: over its rows that are computed, all groups' together, K of each."""
    summed = depths(p.grouping, x.shape[2], x.layout)
    found = segments(p.grouping, x.shape[0], x.layout, p.alignment)
    each = x.layout.groups if x.summed else 1
    rows = ((s.end - s.first, summed[s.group]) for s in found)
    return each * sum(m * (d.end - d.first) for m, d in rows)


def _timed(a: Artifact, program: LoadedKernel, operands: Operands, args: argparse.Namespace) -> Any:
    from ..bench.timing import interleave
    from ..runtime.gpu import prepare

    strides = pitches(a.kernel, operands.shape, args.pad)
    held, plan = prepare(program, operands, strides, a.problem.d)
    samples = interleave({a.name: lambda: program.launch(plan)}, args.repeats)[a.name]
    del held
    return samples


def _text(r: dict[str, Any], verdict: Verdict, shown: str) -> str:
    m, n, k = r["shape"]
    exact = "bitwise equal on exact integers" if verdict.exact else "no exact result (epilogue)"
    return (
        f"{r['kernel']}\n  on {r['gpu']}, M={m} N={n} K={k}; config from: {r['config_from']}\n"
        f"  verified in {verdict.launches} launches: {exact}; random data within its bound "
        f"(worst {verdict.bound.worst:.2f} of it); repeats equal; guard bands intact\n"
        f"  {shown}\n"
        f"  {r['seconds'] * 1e6:.1f} us (spread {r['spread']:.1%}), {r['tflops']:.0f} TFLOP/s, cold L2"
    )
