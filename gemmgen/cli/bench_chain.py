"""`gemmgen bench --mode chain`: the GEMMs of --shapes, one after the other in one CUDA graph."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..bench import shapes
from ..bench.clocks import UNKNOWN, Log, watch
from ..bench.data import Data
from ..bench.modes import Method
from ..bench.select import FLOOR
from ..bench.work import work
from ..errors import ArgumentError
from ..ir.dtypes import F16
from ..problem import Problem
from ..runtime import driver
from ..see.spelling import spelled
from . import files
from .bench_entered import for_shape, providers
from .progress import Bar

if TYPE_CHECKING:
    from ..bench.timing import Samples

HEAD = ("provider", "us", "spread", "GB/s", "ratio", "over read", "linked", "MHz")
FORMAT = "{:<22} {:>9} {:>6} {:>6} {:>6} {:>9} {:>6} {:>5}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One provider's replay of the whole chain. gigabytes_per_second: of A, B and D of every GEMM, each once; of the
    floor of A and B. ratio: its time over the reference's; over_read: over the floor's; None where that was not
    measured. linked: GEMMs that read what the one before wrote."""

    provider: str
    microseconds: float
    spread: float
    gigabytes_per_second: float
    ratio: float | None
    over_read: float | None
    linked: int
    sm_mhz: float | None


def run(
    args: argparse.Namespace, p: Problem, chain: Sequence[shapes.Shape], method: Method, data: Data
) -> int:
    """Measure and print. Raises ArgumentError for groups, and for packed weights times FP16, of which a chain's products would overflow."""
    if p.form and p.a == F16:
        allowed = "is of products that stay in range: packed weights are multiplied with BF16 there"
        raise ArgumentError("--mode", method.mode, allowed)
    if p.grouping != "none":
        raise ArgumentError("--mode", method.mode, f"is of GEMMs without groups, not {p.grouping}")
    gpu = driver.require_hopper(0)
    with watch(driver.pci_bus_id(0)) as log, Bar() as bar:
        report = measure(args, p, chain, method, data, log, bar)
    report = {"gpu": gpu, "kernel": args.kernel, "title": method.title, "data": data.kind, **report}
    if args.o:
        mark = {"generator": "gemmgen bench"}
        files.write(args.o, "chain.json", json.dumps({**mark, **report}, indent=2).encode())
    print(json.dumps(report, indent=2) if args.json else table(report))
    return 0


def measure(
    args: argparse.Namespace,
    p: Problem,
    chain: Sequence[shapes.Shape],
    method: Method,
    data: Data,
    log: Log,
    bar: Bar,
) -> dict[str, Any]:
    """What is printed, but for the device and the method."""
    from ..bench import chain as chains
    from ..bench import sources
    from ..bench.providers import Provider

    configs = [for_shape(args, shape)[1:] for shape in chain]
    entered = [
        [x for x in providers(args, p, config) if isinstance(x, Provider)] for config, _ in configs
    ]
    verify, step = not args.no_verify, bar.steps("measuring", 2 * len(entered[0]) + 1)
    made = chains.chains(p, chain, entered, data, verify=verify, step=step)
    replays = chains.graphs(made.found, verify=verify, step=step)
    samples = chains.measure(method, replays, log)
    linked = {name: x.linked for name, x in made.found.items()}
    return {
        "chain": [list(shape) for shape in chain],
        "configs": [{"config": spelled(c), "config_from": source} for c, source in configs],
        "rows": [asdict(r) for r in rows(p, chain, samples, linked, sources.reference(p))],
        "left_out": made.left_out,
    }


def rows(
    p: Problem,
    chain: Sequence[shapes.Shape],
    samples: Mapping[str, Samples],
    linked: Mapping[str, int],
    reference: str,
) -> list[Row]:
    """In the order of `samples`."""
    done = [work(p, shape) for shape in chain]
    read, moved = sum(w.inputs for w in done), sum(w.bytes for w in done)

    def over(name: str, other: str) -> float | None:
        return samples[name].median / samples[other].median if other in samples else None

    return [
        Row(
            provider=name,
            microseconds=s.median * 1e6,
            spread=s.spread,
            gigabytes_per_second=(read if name == FLOOR else moved) / s.median * 1e-9,
            ratio=over(name, reference) if name != FLOOR else None,
            over_read=over(name, FLOOR),
            linked=linked[name],
            sm_mhz=(s.clocks or UNKNOWN).sm_mhz,
        )
        for name, s in samples.items()
    ]


def table(report: Mapping[str, Any]) -> str:
    sides = ", ".join("x".join(map(str, shape)) for shape in report["chain"])
    lines = [
        f"{report['gpu']}: {report['kernel']}, {report['title']}, {report['data']} data",
        f"chain of {len(report['chain'])}: {sides}",
        FORMAT.format(*HEAD),
        *(_line(Row(**r)) for r in report["rows"]),
        *(f"{name:<22} not timed: {why}" for name, why in report["left_out"].items()),
        *(f"{i}: {c['config']} ({c['config_from']})" for i, c in enumerate(report["configs"])),
    ]
    return "\n".join(lines)


def _line(r: Row) -> str:
    ratios = ("-" if x is None else f"{x:.3f}" for x in (r.ratio, r.over_read))
    clock = "-" if r.sm_mhz is None else f"{r.sm_mhz:.0f}"
    times = f"{r.microseconds:.2f}", f"{r.spread:.1%}", f"{r.gigabytes_per_second:.0f}"
    return FORMAT.format(r.provider, *times, *ratios, r.linked, clock).rstrip()
