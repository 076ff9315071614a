"""`gemmgen timeline`: who does what when, simulated without a GPU; or measured as well, by stamps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config import Config
from ..cost import dram_bytes
from ..errors import ArgumentError
from ..pipeline import MOST_STAMPS, compile_to_source, lower
from ..problem import Problem
from ..runtime import emulated
from ..runtime.launch import grid
from ..see import html, ncu, svg, text, traced
from ..see.chrome_trace import chrome_trace, measured_trace
from ..see.instance import mean_shape
from ..see.measured import measured
from ..see.measured_page import measured_json, measured_page
from ..see.page import Page
from ..see.rings import rings
from ..see.spelling import spelled
from ..see.timeline_lanes import lanes
from ..see.timeline_page import Other, Selection, page, to_json
from ..target import H200
from ..untrusted import whole
from . import emulate_command, files, given, group_options, options
from .fields import fields, split
from .offers import a_file, changes, either
from .on_device import device, record
from .simulated import alone, simulated

STAMPS = 8192  # four per K block and a dozen per tile: enough for some 1,500 K blocks


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is written: a page, a trace, and with --json figures."""

    page: Page
    trace: Callable[[], str]
    figures: dict[str, Any]


NOT_THE_CHOICE = "the best with a ring: the choice is direct, and times of loads into registers are not simulated"


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_shape(parser)
    group_options.add_rows(parser)
    parser.add_argument(
        "--sms",
        type=int,
        help=f"SMs (default {H200.sms}; {emulated.SMS} on the emulator; a GPU's own)",
    )
    parser.add_argument(
        "--device",
        help="run it with stamps and show both: gpu, a CUDA device's number, or emulator (which times nothing)",
        offers=("gpu", "emulator"),
    )
    parser.add_argument(
        "--stamps",
        type=int,
        help=f"that each warpgroup keeps, the newest ones; a power of two (default {STAMPS})",
    )
    for name, what in (("--tiles", "tiles of the CTA"), ("--blocks", "K blocks of a tile")):
        parser.add_argument(name, metavar="A:B", help=f"show only {what} A to B - 1, from 0")
    parser.add_argument(
        "--beside",
        metavar="FIELD=VALUE,...|FILE",
        help="show below it, on one axis, another config of the kernel, simulated, or what --trace wrote to FILE",
        offers=either(changes, a_file),
    )
    parser.add_argument(
        "--ncu",
        type=given.path,
        metavar="FILE",
        help="show beside it what `ncu --csv --page raw` measured of the kernel",
    )
    parser.set_defaults(seed=0, pad=0)
    parser.add_argument(
        "--trace", type=given.path, metavar="FILE", help="write a trace for Perfetto"
    )
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--text", action="store_true", help="to standard output (the default)")
    to.add_argument("--svg", type=given.path, metavar="FILE", help="write the pictures")
    to.add_argument("--html", type=given.path, metavar="FILE", help="write one HTML page")


def main(args: argparse.Namespace) -> int:
    if args.sms is not None and not 1 <= args.sms <= H200.sms:
        raise ArgumentError("--sms", args.sms, f"must be from 1 to {H200.sms}")
    if args.stamps is not None and args.device is None:
        raise ArgumentError("--stamps", args.stamps, "must be given with --device")
    for name in ("beside", "ncu"):
        if getattr(args, name) and args.device:
            value = str(getattr(args, name))
            raise ArgumentError(f"--{name}", value, "must not be given with --device")
    _check_page(args)
    chosen = Selection(tiles=span("--tiles", args.tiles), blocks=span("--blocks", args.blocks))
    shown = (_simulated if args.device is None else _measured)(args, chosen)
    written: list[str] = []
    if args.trace:
        _write(args.trace, shown.trace(), written)
    for file, rendered in ((args.svg, svg.render), (args.html, html.render)):
        if file:
            _write(file, rendered(shown.page), written)
    if args.json:
        print(json.dumps(shown.figures | {"files": written}, indent=2))
    elif written:
        print("\n".join(written))
    if not args.json and (args.text or not written):
        print(text.render(shown.page), end="")
    return 0


def _check_page(args: argparse.Namespace) -> None:
    """Raise ArgumentError for what is said of a page where none is made: --json and --trace have all."""
    if args.json:
        given.refuse(args, ("text",), "cannot be given with --json")
    if not (args.svg or args.html or args.text) and (args.json or args.trace):
        given.refuse(args, ("tiles", "blocks"), "is of a page: needs --text, --svg or --html")
    if not args.json and not (args.html or args.text) and (args.svg or args.trace):
        given.refuse(args, ("ncu",), "is a table: needs --text, --html or --json")
    if not args.json and not (args.svg or args.html or args.text) and args.trace:
        given.refuse(args, ("beside",), "is of a page: needs --text, --svg, --html or --json")


def span(option: str, given: str | None) -> tuple[int, int] | None:
    """A:B as numbers. Raises ArgumentError naming the option."""
    if given is None:
        return None
    first, end = map(whole, given.partition(":")[::2])
    if first is None or end is None or first >= end:
        raise ArgumentError(option, given, "must be A:B, whole numbers with A before B")
    return first, end


def _simulated(args: argparse.Namespace, chosen: Selection) -> Shown:
    shape = options.shape(args)
    layout, mean, groups = group_options.at_work(args, options.problem(args), shape)
    problem, choice, _ = options.choice(args, mean, groups)
    config = choice
    if config.direct:
        config = options.choice(args, mean, groups, pointers=False)[1]
    kernel = lower(problem, config)
    t, launch = simulated(problem, config, kernel, shape, args.sms or H200.sms, layout)
    if config != choice:
        launch = (*launch, ("config", NOT_THE_CHOICE))
    other = _other(args, problem, config, shape) if args.beside else None
    beside: dict[str, Any] = {"beside": {"name": other.name, "cycles": other.end}} if other else {}
    shown = page(t, chosen, launch, other)
    if args.ncu:
        target = replace(H200, sms=args.sms or H200.sms)
        profiled = ncu.read(args.ncu, "--ncu")
        of = layout or alone(problem, shape)
        moved = dram_bytes(problem, mean_shape(problem, shape, of), of.groups)
        ctas = grid(kernel, shape, target.sms, of.groups)
        first, *rest = shown.blocks
        table = ncu.beside(profiled, t, ctas, moved, target)
        shown = replace(shown, blocks=(first, table, *rest))
        beside |= {"ncu": asdict(profiled)}
    return Shown(
        page=shown,
        trace=lambda: chrome_trace(t, H200.clock_hz),
        figures=to_json(t) | beside,
    )


def _other(
    args: argparse.Namespace, problem: Problem, config: Config, shape: options.Shape
) -> Other:
    """What `--beside` names: fields of the config, changed, or a file."""
    if "=" not in args.beside:
        found = traced.read(Path(args.beside), "--beside")
        name = f"{found.source}, {found.kernel} ({args.beside})"
        return Other(
            name=name, short=found.source, end=found.end, lanes=partial(traced.lanes, found)
        )
    changed = Config.from_json({**config.to_json(), **fields("--beside", split(args.beside))})
    layout = group_options.layout(args, problem, shape)
    sms = args.sms or H200.sms
    t, _ = simulated(problem, changed, lower(problem, changed), shape, sms, layout)
    return Other(name=spelled(changed), short="other", end=t.end, lanes=partial(lanes, t))


def _measured(args: argparse.Namespace, chosen: Selection) -> Shown:
    """The launch that `--device` asks for, beside the simulated one."""
    on = device(args.device, args.sms)
    stamps = STAMPS if args.stamps is None else args.stamps
    if not (0 < stamps <= MOST_STAMPS and stamps & (stamps - 1) == 0):
        raise ArgumentError("--stamps", stamps, f"must be a power of two, {MOST_STAMPS} at most")
    shape = options.shape(args) if on.number is not None else options.small_shape(args)
    if on.number is None:
        emulate_command.check(argparse.Namespace(**vars(args) | {"sms": on.sms}), shape)
    given, mean, groups = group_options.at_work(args, options.problem(args), shape)
    problem, config, _ = options.choice(args, mean, groups)
    layout = given or alone(problem, shape)
    a = compile_to_source(problem, config, stamps=stamps)
    s, launch = simulated(
        problem, config, a.kernel, shape, max(on.sms, a.kernel.cluster.size), layout
    )
    found = record(on, a, compile_to_source(problem, config), shape, layout)
    m = measured(s.program, s.latency, rings(a.kernel, found.rings))
    return Shown(
        page=measured_page(m, s, chosen, (*_of_model(launch), *found.facts)),
        trace=lambda: measured_trace(m, s, H200.clock_hz),
        figures=measured_json(m, s) | {"facts": dict(found.facts)},
    )


def _of_model(launch: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Beside a measured time, the simulated one says what it is."""
    return tuple(("simulated time" if name == "time" else name, what) for name, what in launch)


def _write(file: Path, rendered: str, written: list[str]) -> None:
    files.write(file.parent, file.name, rendered.encode())
    written.append(str(file))
