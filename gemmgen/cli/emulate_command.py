"""`gemmgen emulate`: execute the compiled kernel's PTX on the CPU and say what a profiler would."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from ..emulator import Eager, Late, Random, RoundRobin, Schedule, Stats
from ..errors import ArgumentError
from ..pipeline import compile_to_source
from ..runtime import emulated
from ..runtime.emulated import EmulatedGpu, prepare
from ..target import H200
from ..untrusted import whole
from ..verification.groups import some
from ..verification.power import line, power
from ..verification.trial import judge, share_of
from . import group_options, options, progress

MOST_ELEMENTS = 1 << 26  # of the operands and the output: hours
SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "round-robin": RoundRobin,
    "eager": Eager,
    "late": Late,
}


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_shape(parser)
    group_options.add_rows(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    options.add_watchdog(parser)
    parser.add_argument("--pad", type=int, default=0, help="row padding in pieces of 16 bytes")
    parser.add_argument(
        "--sms", type=int, default=emulated.SMS, help=f"emulated SMs (default {emulated.SMS})"
    )
    parser.add_argument(
        "--schedule",
        default="round-robin",
        help=f"{', '.join(SCHEDULES)}, or random:SEED (default round-robin)",
        offers=(*SCHEDULES, "random:"),
    )
    parser.add_argument(
        "--stats", action="store_true", help="bank conflicts, instructions by role, bytes copied"
    )


def main(args: argparse.Namespace) -> int:
    shape = options.small_shape(args)
    check(args, shape)
    layout, mean, groups = group_options.chosen_for(args, options.problem(args), shape)
    problem, config, _ = options.choice(args, mean, groups)
    order = schedule(args.schedule)
    a = compile_to_source(problem, config)
    with progress.Bar() as bar:
        told = partial(bar.update, "emulating")
        machine = EmulatedGpu(sms=args.sms, schedule=order, on_progress=told)
        program = prepare(a.kernel, a.source)
        verdict = judge(machine, program, a.kernel, a.problem, shape, args.seed, args.pad, layout)
    share = share_of(a.kernel, shape[2], layout or some(a.problem, shape))
    powers = power(a.problem, shape, args.seed, layout, share)
    report: dict[str, Any] = {
        "kernel": a.name,
        "shape": shape,
        "sms": args.sms,
        "exact": verdict.exact,
        "worst_error_over_bound": verdict.bound.worst,
        "launches_verified": verdict.launches,
        "power": [asdict(p) for p in powers],
    }
    if args.stats:
        roles = {w: r.name for r in a.kernel.roles for w in range(*r.warpgroups)}
        report["stats"] = described(machine.stats[0], roles)
    print(json.dumps(report, indent=2) if args.json else text(report, line(powers)))
    return 0


def check(args: argparse.Namespace, shape: options.Shape) -> None:
    """Raise ArgumentError for what would take all of memory, or is no seed."""
    for name, value, most in (
        ("--seed", args.seed, 2**63 - 1),
        ("--pad", args.pad, 1 << 10),
        ("--sms", args.sms, H200.sms),
    ):
        if not 0 <= value <= most:
            raise ArgumentError(name, value, f"must be from 0 to {most}")
    m, n, k = shape
    given = (args.rows or args.depths or "").count(",") + 1
    if given * (m * k + n * k + m * n) > MOST_ELEMENTS:
        allowed = f"must make at most {MOST_ELEMENTS} elements of A, B and D"
        raise ArgumentError("-m, -n, -k", shape, allowed)


def schedule(name: str) -> Schedule:
    """A Schedule by name. Raises ArgumentError."""
    kind, _, seed = name.partition(":")
    number = whole(seed)
    if kind == "random" and number is not None:
        return Random(seed=number)
    if name not in SCHEDULES:
        raise ArgumentError("--schedule", name, f"must be {', '.join(SCHEDULES)} or random:SEED")
    return SCHEDULES[name]()


def described(s: Stats, roles: dict[int, str]) -> dict[str, Any]:
    """One launch's Stats as JSON; warp instructions are summed over all CTAs."""
    return {
        "warp_instructions": {
            f"{roles[w]} (warpgroup {w})": count for w, count in sorted(s.instructions.items())
        },
        "bytes_loaded_by_tma": s.bytes_loaded,
        "bytes_stored_by_tma": s.bytes_stored,
        "shared_memory": [
            {
                "instruction": site,
                "executions": x.executions,
                "wavefronts": x.wavefronts,
                "bank_conflicts": x.conflicts,
            }
            for site, x in s.sites.items()
        ],
        "computed_exactly_where_hardware_approximates": sorted(s.approximate),
    }


def text(r: dict[str, Any], shown: str) -> str:
    m, n, k = r["shape"]
    exact = "bitwise equal on exact integers" if r["exact"] else "no exact result (epilogue)"
    lines = [
        f"{r['kernel']}\n  on the emulator ({r['sms']} SMs), M={m} N={n} K={k}",
        f"  verified in {r['launches_verified']} launches: {exact}; random data within its bound "
        f"(worst {r['worst_error_over_bound']:.2f} of it); repeats equal; guard bands intact; no race, "
        "no deadlock, no unwritten byte read",
        f"  {shown}",
    ]
    if "stats" in r:
        lines += _stats(r["stats"])
    return "\n".join(lines)


def _stats(s: dict[str, Any]) -> list[str]:
    lines = ["  warp instructions:"]
    lines += [f"    {role:<24} {count:>10}" for role, count in s["warp_instructions"].items()]
    lines.append(
        f"  TMA: {s['bytes_loaded_by_tma']} bytes in, {s['bytes_stored_by_tma']} bytes out"
    )
    lines.append("  shared memory:         executions wavefronts conflicts")
    lines += [
        f"    {x['executions']:>28} {x['wavefronts']:>10} {x['bank_conflicts']:>9}  {x['instruction']}"
        for x in s["shared_memory"]
    ]
    return lines
