"""`gemmgen moe`: a layer of experts from hidden states to hidden states, launch by launch, and beside torch's way."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..bench.clocks import watch
from ..bench.moe_sizes import (
    BLOCKS,
    DEFAULT,
    KINDS,
    MODELS,
    MOST_TOKENS,
    PROVIDERS,
    REPEATS,
    ROUTERS,
    Asked,
    Sizes,
)
from ..errors import ArgumentError
from ..runtime import driver
from ..see.launch_trace import launch_trace
from ..untrusted import whole
from . import files, given, moe_explain
from .offers import some
from .progress import counted

if TYPE_CHECKING:
    from ..bench.moe import Row

TOKENS = "1,8,64,1024,4096"
MOST_SEED = (1 << 63) - 1  # torch's generators take no more
SIZES = ("experts", "top", "hidden", "intermediate")
AFTER = ("sum", "over GEMMs", "graph", "torch", "over torch", "read", "over read")
OVER, EAGER, LEFT_OUT = "over", "eager", "left_out"
MAPPED = ("launches", "chains", "eager", LEFT_OUT, "timeline")  # of a row, by name


def add(parser: argparse.ArgumentParser) -> None:
    default = next(iter(MODELS))
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"sizes of one of {', '.join(MODELS)} (default {default})",
        offers=MODELS,
    )
    for name, what in zip(
        SIZES, ("experts", "experts of a token", "features", "features of an expert"), strict=True
    ):
        parser.add_argument(f"--{name}", type=int, help=f"{what}: instead of --model, all four")
    parser.add_argument(
        "--tokens", default=TOKENS, metavar="T,...", help=f"numbers of tokens (default {TOKENS})"
    )
    parser.add_argument(
        "--router",
        default=ROUTERS[0],
        choices=ROUTERS,
        help="experts as likely as each other, or expert n as likely as 1 / n (default even)",
    )
    parser.add_argument(
        "--kind",
        default=BLOCKS,
        choices=KINDS,
        help=f"of gemmgen's weights, with rows to match: scales of blocks, or of tokens and channels (default {BLOCKS})",
    )
    parser.add_argument(
        "--providers",
        default=",".join(DEFAULT),
        metavar="A,B,...",
        help=f"of {', '.join(PROVIDERS)}, gemmgen among them: torch computes in BF16; read only reads the weights of as many "
        "experts; deep_gemm, where it is installed, is a chain of DeepGEMM's kernels with torch between them, and one with gemmgen's "
        f"casts (default {','.join(DEFAULT)})",
        offers=some(PROVIDERS),
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=REPEATS,
        help=f"rounds per number of tokens (default {REPEATS})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default 0)")
    parser.add_argument(
        "-o", metavar="FOLDER", type=given.path, help="write moe.csv and moe.json here"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=given.path,
        help="write a timeline of each layer's launches, called and replayed from a graph, for Perfetto",
    )
    moe_explain.add(parser)


def main(args: argparse.Namespace) -> int:
    if args.explain:
        asked_of = [_count(x, args.tokens) for x in args.tokens.split(",")]
        return moe_explain.main(args, *_sizes(args), asked_of)
    moe_explain.refuse(args)
    if args.repeats < 2:
        raise ArgumentError("--repeats", args.repeats, "must be at least 2")
    if not 0 <= args.seed <= MOST_SEED:
        raise ArgumentError("--seed", args.seed, f"must be from 0 to {MOST_SEED}")
    name, sizes = _sizes(args)
    asked = Asked(
        sizes=sizes,
        providers=tuple(args.providers.split(",")),
        router=args.router,
        kind=args.kind,
        repeats=args.repeats,
        seed=args.seed,
    )
    counts = [_count(text, args.tokens) for text in args.tokens.split(",")]
    gpu = driver.require_hopper(0)
    from ..bench import moe

    with watch(driver.pci_bus_id(0)) as log:
        rows = moe.measure(asked, counted("timing", counts), log)
    summary = {"gpu": gpu, "model": name, **asdict(sizes), "router": asked.router}
    summary["kind"] = asked.kind
    summary |= {"seed": asked.seed, "repeats": asked.repeats, "clocks": log.source}
    report = {**summary, "rows": [asdict(r) | {"gemms": r.gemms, **r.ratios} for r in rows]}
    if args.o:
        mark = {"generator": "gemmgen bench"}
        files.write(args.o, "moe.json", json.dumps({**mark, **report}, indent=2).encode())
        files.write(args.o, "moe.csv", as_csv(rows).encode())
    print(json.dumps(report, indent=2) if args.json else table(rows, summary))
    if args.trace:
        files.write(args.trace.parent, args.trace.name, traced(rows, summary).encode())
    return 0


def traced(rows: Sequence[Row], summary: dict[str, Any]) -> str:
    """In the Trace Event Format: a process per number of tokens and way."""
    calls = {
        f"{r.tokens} tokens, {way}": started for r in rows for way, started in r.timeline.items()
    }
    return launch_trace(summary, calls)


def _sizes(args: argparse.Namespace) -> tuple[str, Sizes]:
    """With the model's name, "" for sizes that were given. Raises ArgumentError."""
    found = {name: getattr(args, name) for name in SIZES}
    if all(x is None for x in found.values()):
        name = args.model or next(iter(MODELS))
        if name not in MODELS:
            raise ArgumentError("--model", name, f"must be one of {', '.join(MODELS)}")
        return name, MODELS[name]
    if args.model is not None:
        raise ArgumentError("--model", args.model, "is instead of sizes of your own")
    for name, x in found.items():
        if x is None:
            raise ArgumentError(f"--{name}", None, "is required with the other sizes")
    return "", Sizes(**found)


def _count(text: str, given: str) -> int:
    found = whole(text)
    if not found or found > MOST_TOKENS:
        raise ArgumentError("--tokens", given, f"{text!r} must be from 1 to {MOST_TOKENS}")
    return found


def table(rows: Sequence[Row], summary: dict[str, Any]) -> str:
    """A line per number of tokens."""
    launched, chains, eager = (
        list(dict.fromkeys(name for x in found for name in x))
        for found in zip(*((r.launches, r.chains, r.eager) for r in rows), strict=True)
    )
    beside = [x for name in chains for x in (name, f"{OVER} {name}")]
    head = ("tokens", "experts", *launched, *AFTER, *beside, *(f"{x} {EAGER}" for x in eager))
    cells = ((*_cells(r, launched), *_beside(r, chains, eager)) for r in rows)
    lines = [
        head,
        *((str(r.tokens), str(r.touched), *x) for r, x in zip(rows, cells, strict=True)),
    ]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sizes = ", ".join(f"{name} {summary[name]}" for name in SIZES)
    return "\n".join(
        [
            f"{summary['gpu']}: {summary['model'] or 'a layer'}: {sizes}; router {summary['router']}",
            f"{KINDS[summary['kind']]}, microseconds, cold L2, medians; graph and other ways: replays between events; {EAGER}: calls between "
            "events; others: device time",
            *("  ".join(x.rjust(w) for x, w in zip(line, wide, strict=True)) for line in lines),
            *(f"{r.tokens:>{wide[0]}}  {x}" for r in rows for x in _left_out(r)),
            f"clocks: {summary['clocks']}",
        ]
    )


def _cells(r: Row, launched: Sequence[str]) -> tuple[str, ...]:
    """After the first two."""
    over = {name: "-" if x is None else f"{x:.3f}" for name, x in r.ratios.items()}
    return (
        *(_us(r.launches.get(name)) for name in launched),
        *(_us(r.kernels), over["over_gemms"], _us(r.graph)),
        *(_us(r.torch), over["over_torch"], _us(r.read), over["over_read"]),
    )


def _beside(r: Row, chains: Sequence[str], eager: Sequence[str]) -> tuple[str, ...]:
    """Of chains their time and what the graph is over it, and all that was timed without a graph."""
    pairs = ((us, r.graph / us if us else None) for us in map(r.chains.get, chains))
    over = (x for us, ratio in pairs for x in (_us(us), "-" if ratio is None else f"{ratio:.3f}"))
    return *over, *(_us(r.eager.get(name)) for name in eager)


def _left_out(r: Row) -> list[str]:
    """Who was not timed, or not in a graph, and why."""
    how = {name: "not captured" if name in r.eager else "not timed" for name in r.left_out}
    return [f"{name} {how[name]}: {why}" for name, why in r.left_out.items()]


def _us(x: float | None) -> str:
    return "-" if x is None else f"{x:.1f}"


def as_csv(rows: Sequence[Row]) -> str:
    """A column for each launch, each chain and each way without a graph."""
    flat = [
        {name: x for name, x in asdict(r).items() if name not in MAPPED}
        | {"gemms": r.gemms, **r.ratios, **r.launches, **r.chains}
        | {f"{name} {EAGER}": us for name, us in r.eager.items()}
        | {LEFT_OUT: "; ".join(_left_out(r))}
        for r in rows
    ]
    text = io.StringIO()
    text.write("# gemmgen bench\n")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for x in flat for name in x)))
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
