"""`gemmgen bench`: shapes x providers, interleaved in one run on one GPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench import shapes
from ..bench.clocks import UNKNOWN, Clocks, Log, watch
from ..bench.data import KINDS, Data
from ..bench.modes import L2, MODES, PACES, Method, Step
from ..bench.noise import standings
from ..bench.select import ALL, DEFAULT, FLOOR, REFERENCE
from ..bench.work import verified, work
from ..config import Config
from ..errors import ArgumentError
from ..problem import Problem
from ..runtime import driver
from ..runtime.gpu import Gpu
from ..see import svg
from ..see.page import Page
from ..see.spelling import spelled
from ..verification.trial import judge
from . import bench_chain, bench_page, files, given, options
from .bench_entered import for_shape, problem, providers
from .bench_plots import computing
from .bench_report import LeftOut, Row, as_csv, firsts, geomean, over_read, table
from .offers import some
from .progress import Bar

if TYPE_CHECKING:
    from ..bench.contest import Contest


LIBRARIES = ("gemmgen", REFERENCE, "torch", "triton", "tilelang", "deep_gemm", "flag_gems", "quack")
PLOTS = ("tflops.svg", "roofline.svg")  # files
UNUSED = {"burst": ("seconds",), "sustained": ("repeats",)}  # options, by pace


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of one shape."""

    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    parser.add_argument(
        "--shapes",
        help=f"{', '.join(shapes.SETS)}, or MxNxK,...; with groups "
        f"{', '.join(shapes.GROUPED)}, where they split K {', '.join(shapes.K_GROUPED)}, or GxMxNxK,... (default the first of them); "
        "or @FILE, a CSV or a shape to a line",
        offers=some((*shapes.SETS, *shapes.GROUPED, *shapes.K_GROUPED)),
    )
    parser.add_argument(
        "--providers",
        default=DEFAULT,
        metavar="A,B,...",
        help=f"names or libraries: {', '.join(LIBRARIES)}; {FLOOR}: the floor, which only reads A and B; {ALL}: each of the others "
        f"that is installed (default {DEFAULT})",
        offers=some((*LIBRARIES, FLOOR, ALL)),
    )
    _add_method(parser)
    parser.add_argument("--no-verify", action="store_true", help="time without verifying first")
    parser.add_argument(
        "-o",
        metavar="FOLDER",
        type=given.path,
        help="write bench.csv and bench.json here, with the device's ceilings, which are measured too",
    )
    parser.add_argument(
        "--plot",
        action="store_true",
        help=f"with -o: draw {' and '.join(PLOTS)}",
    )


def _add_method(parser: argparse.ArgumentParser) -> None:
    d = Method()
    modes = "kernel: device time; operator: wall time of whole calls; cudagraph: calls replayed; chain: all shapes in one graph"
    parser.add_argument(
        "--mode",
        default=d.mode,
        metavar="MODE",
        help=f"one of {', '.join(MODES)} ({modes})",
        offers=MODES,
    )
    parser.add_argument(
        "--pace",
        default=d.pace,
        metavar="PACE",
        help=f"{' or '.join(PACES)}: a few calls of each in turn, or seconds of each without rest",
        offers=PACES,
    )
    parser.add_argument(
        "--l2",
        metavar="HOW",
        help=f"how inputs are kept out of the L2: {', '.join(L2)} (default flush for bursts of kernels and chains, "
        "else rotate)",
        offers=L2,
    )
    parser.add_argument(
        "--data", default=KINDS[0], metavar="KIND", help=f"one of {', '.join(KINDS)}", offers=KINDS
    )
    parser.add_argument(
        "--repeats", type=int, default=d.repeats, help=f"rounds per shape (default {d.repeats})"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=d.seconds,
        help=f"of each sustained run (default {d.seconds:g})",
    )


def main(args: argparse.Namespace) -> int:
    method = Method(**{n: getattr(args, n) for n in ("mode", "pace", "l2", "repeats", "seconds")})
    given.refuse(args, UNUSED[method.pace], f"is not for --pace {method.pace}")
    data = Data(kind=_kind(args.data))
    if args.plot and not args.o:
        raise ArgumentError("--plot", True, "needs -o, a folder to draw into")
    p = problem(args)
    wanted = shapes.parse(args.shapes, p)
    m, n, k = wanted[0][-3:]
    options.config(args, p, (m, n, k))  # so that a wrong one is an error now, as is a wrong name
    entered = providers(args, p, Config())
    if method.chained:
        given.refuse(args, ("plot",), "is not for --mode chain")
        return bench_chain.run(args, p, wanted, method, data)
    gpu = driver.require_hopper(0)
    with watch(driver.pci_bus_id(0)) as log, Bar() as bar:
        step = bar.steps("measuring", len(wanted) * (1 + len(entered) + method.rounds))
        results = [measure(args, shape, method, data, log, step) for shape in wanted]
        ceilings = _ceilings(p, data) if args.o else None
    rows = [row for r in results for row in r.rows]
    left_out = [x for r in results for x in r.left_out]
    summary = {
        "gpu": gpu,
        "kernel": args.kernel,
        "title": method.title,
        "method": {**asdict(method), "l2": method.cold},
        "data": data.kind,
        "epilogue": args.epilogue or "",
        "clocks": log.source,
        "geomean_ratio": geomean(rows),
        "fastest": firsts(rows),
        **_reference(p, rows),
        **({"ceilings": asdict(ceilings)} if ceilings else {}),
    }
    found = {"rows": [asdict(r) for r in rows], "left_out": [asdict(x) for x in left_out]}
    report = {**summary, **found}
    if args.o:
        _write(args.o, report, rows, ceilings if args.plot else None)
    print(json.dumps(report, indent=2) if args.json else table(rows, left_out, summary))
    return 0


def _write(folder: Path, report: dict[str, Any], rows: list[Row], ceilings: Any) -> None:
    mark = {"generator": "gemmgen bench"}
    files.write(folder, "bench.json", json.dumps({**mark, **report}, indent=2).encode())
    files.write(folder, "bench.csv", as_csv(rows).encode())
    if ceilings and computing(rows):
        title = f"{report['gpu']}: {report['kernel']}, {report['title']}"
        drawn = bench_page.pictures(rows, ceilings)
        for name, plot in zip(PLOTS, drawn, strict=True):
            files.write(folder, name, svg.render(Page(title=title, blocks=(plot,))).encode())


def _kind(text: str) -> str:
    """Raises ArgumentError for data that is not for timing."""
    if text not in KINDS:
        raise ArgumentError("--data", text, f"must be one of {', '.join(KINDS)}")
    return text


def _ceilings(p: Problem, data: Data) -> Any:
    from ..bench import ceilings

    return ceilings.measure(p, data)


def measure(
    args: argparse.Namespace,
    shape: shapes.Shape,
    method: Method,
    data: Data,
    log: Log,
    step: Step,
) -> Result:
    """Every provider at `shape`, each verified first unless told not to. step: called when gemmgen is built, after each
    provider and each round. Raises GemmgenError if two ran the same kernel."""
    from ..bench import modes, sources
    from ..bench.identity import check_distinct
    from ..ops import building

    p, config, config_from = for_shape(args, shape)
    if not args.no_verify:
        program = building.given(p, config, 0)
        judge(Gpu(), program, program.kernel, p, verified(p, shape))
    step()
    contest = _contest(args, p, shape, config, method, data, step)
    modes.warm_up(contest.turns)
    identified = modes.identify(contest.turns)
    check_distinct({name: s.main for name, s in identified.items()})
    samples = modes.measure(method, contest.turns, identified, log, step)
    check_distinct({name: s.main for name, s in samples.items()})
    computing = {name: s for name, s in samples.items() if name != FLOOR}
    base, places = _base(computing, sources.reference(p)), standings(computing)
    rows = [
        _placed(_row(p, shape, name, s, base, config), places.get(name, ""), s.clocks or UNKNOWN)
        for name, s in samples.items()
    ]
    rows = over_read(rows)
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    return Result(
        rows=tuple(replace(r, config_from=config_from if r.config else "") for r in rows),
        left_out=tuple(
            LeftOut(groups=groups, m=m, n=n, k=k, provider=name, reason=why)
            for name, why in contest.left_out.items()
        ),
    )


def _contest(
    args: argparse.Namespace,
    p: Problem,
    shape: shapes.Shape,
    config: Config,
    method: Method,
    data: Data,
    step: Step,
) -> Contest:
    from ..bench import contest
    from ..bench.providers import Provider

    chosen, verify = providers(args, p, config), not args.no_verify
    if p.grouping == "none":
        single = [x for x in chosen if isinstance(x, Provider)]
        return contest.single(p, shape, single, method, data, verify=verify, step=step)
    names = [x.name for x in chosen]
    return contest.grouped(p, shape, config, names, method, data, verify=verify, step=step)


def _base(samples: dict[str, Any], reference: str) -> float | None:
    """The time that ratios are taken to: the reference's, else that of the first other than gemmgen."""
    others = [name for name in (reference, *samples) if name in samples and name != "gemmgen"]
    return float(samples[others[0]].median) if others else None


def _reference(p: Problem, rows: list[Row]) -> dict[str, Any]:
    """Of groups, who the ratios are to, and whether it computes something else: one GEMM."""
    from ..bench import sources

    if p.grouping == "none":
        return {}
    timed = dict.fromkeys(r.provider for r in computing(rows))
    others = [n for n in (sources.reference(p), *timed) if n in timed and n != "gemmgen"]
    if not others:
        return {}
    return {"reference": others[0], "reference_is_one_gemm": sources.is_one_gemm(others[0])}


def _placed(row: Row, standing: str, c: Clocks) -> Row:
    return replace(
        row,
        standing=standing,
        sm_mhz=c.sm_mhz,
        sm_mhz_least=c.sm_mhz_least,
        watts=c.watts,
        celsius=c.celsius,
    )


def _row(
    p: Problem, shape: shapes.Shape, name: str, samples: Any, base: float | None, config: Config
) -> Row:
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    done = work(p, shape)
    moved = done.inputs if name == FLOOR else done.bytes
    return Row(
        groups=groups,
        m=m,
        n=n,
        k=k,
        provider=name,
        microseconds=samples.median * 1e6,
        spread=samples.spread,
        tflops=done.flops / samples.median * 1e-12,
        gigabytes_per_second=moved / samples.median * 1e-9,
        ratio=samples.median / base if base and name != FLOOR else None,
        config=spelled(config) if name == "gemmgen" else "",
        kernels=" + ".join(samples.kernels),
    )
