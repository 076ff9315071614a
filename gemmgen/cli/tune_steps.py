"""What the modes of `gemmgen tune` share: the GPU that is there, candidates, cubins, and lines on what happens."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from ..bench.tuning import candidates as choosing
from ..bench.tuning import held_out
from ..bench.tuning.compiling import Built, Kernel, compile_all
from ..bench.tuning.jobs import Candidate, Job
from ..bench.tuning.session import Settings
from ..config import Config
from ..errors import ArgumentError, CompileError
from ..families import FAMILIES
from ..heuristics import ANY
from ..heuristics.tuned import Pick, pick
from ..ir.groupings import GROUPINGS
from ..ops import limits, refused
from ..ops.building import picked_for, priced_for, target_named
from ..problem import Problem
from ..runtime import driver, nvrtc
from ..target import H200, Target
from . import files, given, options
from .offers import some
from .progress import Bar, counted

# Options that say how to measure, and where the results go.
MEASURING = (
    *("database", "again", "log", "no_reference"),
    *("budget", "total", "timeout", "repeats"),
)
OF_CHOICES = ("count", "seed", "families", "groupings", "sms")  # --regret's and --sweep's
SIDE = "m"  # that is swept
SHAPES, SIDES = 40, 4  # that are drawn: shapes; N and K to sweep
Plan = dict[Job, list[Candidate]]
Cubins = dict[tuple[Problem, Config], Built]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """The modes that measure choices, and what they rest on."""
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure this GPU's memory, tensor cores and launches, and choose by these figures from now on",
    )
    parser.add_argument(
        "--regret",
        action="store_true",
        help="time the default choice against the best candidate at shapes that no database has",
    )
    parser.add_argument(
        "--sweep",
        metavar="SIDE",
        help="m: time the default choice at every M from 1 to 512, and say where more rows take less time",
        offers=(SIDE,),
    )
    drawn = f"shapes to draw in all (default {SHAPES}), or N and K to sweep (default {SIDES})"
    parser.add_argument("--count", type=int, help=drawn)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    for name, known in (("families", FAMILIES), ("groupings", GROUPINGS)):
        parser.add_argument(
            f"--{name}",
            metavar="NAME,...",
            help=f"draw for these {name}, where KERNEL is not given: {', '.join(known)} (default all)",
            offers=some(known),
        )
    parser.add_argument(
        "--sms", type=int, metavar="COUNT", help="choose for so many SMs, and launch on no more"
    )


def check_effort(args: argparse.Namespace) -> None:
    """Raise ArgumentError for what is out of range, and for what says which config to take."""
    given.refuse(args, (*given.CONFIG, *given.INVARIANT), "is what tuning looks for")
    for name in ("budget", "timeout", "limit", "repeats", "processes", "count"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ArgumentError(f"--{name}", value, "must be more than 0")
    if not args.total >= 0:
        raise ArgumentError("--total", args.total, "must be at least 0")
    if not args.factor >= 1:
        raise ArgumentError("--factor", args.factor, "must be at least 1")
    if args.compile_only and not args.cubins:
        raise ArgumentError("--cubins", None, "is required with --compile-only")
    if args.compile_only:
        given.refuse(args, MEASURING, "is for measuring: cannot be given with --compile-only")


def device_of(args: argparse.Namespace, number: int = 0) -> str:
    """The name of the GPU that is measured, CUDA device `number`; "" where none is. Raises RuntimeUnavailable."""
    return "" if args.compile_only else driver.require_hopper(number)


def target_for(device: str, number: int = 0) -> Target:
    """What configs are priced for: the GPU of that name and number that is here, or where none is measured, "", an H200; with the
    SMs that are allowed."""
    return priced_for(number)[1] if device else target_named(H200.device_name)


@contextmanager
def at_most(sms: int | None, device: str) -> Iterator[None]:
    """Launches here take so many SMs at most meanwhile, and configs are chosen for them. Raises ArgumentError."""
    there = target_for(device).sms
    if sms is not None and not H200.cluster_max <= sms <= there:
        allowed = (
            f"must be from {H200.cluster_max}, the SMs of the largest cluster, to the GPU's {there}"
        )
        raise ArgumentError("--sms", sms, allowed)
    before = limits.sm_limit()
    limits.limit_sms(before if sms is None else sms)
    try:
        yield
    finally:
        limits.limit_sms(before)


def settings(args: argparse.Namespace, device: str, *, reference: bool, again: int = 0) -> Settings:
    return Settings(
        device=device,
        nvrtc=nvrtc.version(),
        budget=args.budget,
        timeout=args.timeout,
        repeats=args.repeats,
        reference=reference,
        again=again,
        sms=args.sms,
    )


def problems_of(args: argparse.Namespace) -> tuple[Problem, ...]:
    """KERNEL's, or those of --families and --groupings. Raises ArgumentError."""
    if args.kernel is not None:
        given.refuse(
            args, ("families", "groupings"), "is for tuning without KERNEL, which says both"
        )
        return (options.problem(args),)
    given.refuse(args, (*given.PROBLEM, "shapes"), "needs KERNEL")
    families, groupings = (
        None if text is None else text.split(",") for text in (args.families, args.groupings)
    )
    return held_out.problems(families, groupings)


def picked(j: Job, device: str, target: Target) -> Pick:
    """The default choice: what gemmgen's functions take on that device, H200 if none is here. Compiles nothing."""
    name = device or H200.device_name
    return picked_for(j.problem, j.shape, j.groups, name, target, ANY)


def asked_for(j: Job, device: str, target: Target) -> Config:
    """The default choice as if the build refused nothing: whatever it has refused by now, the same."""
    name = device or H200.device_name
    return pick(j.problem, j.shape, target, j.groups, name, split_k=ANY).config


def chosen(
    args: argparse.Namespace, jobs: Sequence[Job], device: str, target: Target, folder: Path
) -> tuple[dict[Job, Pick], Cubins]:
    """The default choices, compiled: as gemmgen's functions, the next one where the build refuses one. Raises as
    `refused.all_built`."""
    built: Cubins = {}

    @cache
    def choice(j: Job, unbuilt: int) -> Pick:
        return picked(j, device, target)

    def now(j: Job) -> Pick:
        return choice(j, len(refused.known(j.problem)))

    def build(kernels: list[Kernel]) -> dict[Kernel, Built | CompileError]:
        found = compiled(args, kernels, folder)
        built.update({k: b for k, b in found.items() if b.cubin})
        return {k: b if b.cubin else CompileError(b.failed) for k, b in found.items()}

    def choose() -> list[Kernel]:
        return [(j.problem, now(j).config) for j in jobs]

    refused.all_built(choose, build)
    return {j: now(j) for j in jobs}, built


def planned(args: argparse.Namespace, jobs: list[Job], target: Target) -> Plan:
    plan: Plan = {}
    for j in counted("choosing candidates", jobs):
        plan[j] = choosing.candidates(j, args.limit, args.factor, target)
    return plan


def compiled(
    args: argparse.Namespace, kernels: list[tuple[Problem, Config]], folder: Path
) -> Cubins:
    with Bar() as bar:
        told = partial(bar.update, "compiling candidates")
        return compile_all(kernels, folder, args.processes, told)


@contextmanager
def cubins_in(args: argparse.Namespace) -> Iterator[Path]:
    """The folder of --cubins, or one that is removed afterwards."""
    if args.cubins:
        yield args.cubins
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def tally(built: Cubins) -> dict[str, int]:
    return {"kernels": len(built), "refused": sum(not b.cubin for b in built.values())}


def filled(args: argparse.Namespace, built: Cubins, of: Any, share: str = "") -> int:
    """What --compile-only has to say: `of` what shapes, which are that share."""
    data = {**tally(built), "shapes": of, **({"shard": share} if share else {})}
    line = f"{args.cubins}: {len(built)} kernels" + f" of shard {share}" * bool(share)
    print(json.dumps(data, indent=2) if args.json else line)
    return 0


def kept(args: argparse.Namespace, load: Callable[[Path], list[T]]) -> list[T]:
    """What the file of results has already."""
    return load(args.database) if args.database and args.database.exists() else []


def left_of(
    args: argparse.Namespace, keys: Mapping[T, K], known: Iterable[K], what: str
) -> list[T]:
    """Those whose key is not known, all with --again; said."""
    there = {*known}
    left = [x for x, key in keys.items() if args.again or key not in there]
    say(f"{len(left)} of {len(keys)} {what}")
    return left


def each(
    args: argparse.Namespace,
    items: Iterable[T],
    count: int,
    one: Callable[[T], None],
    what: str,
    started: float | None = None,
) -> bool:
    """Call `one` with each of `count` items, until --total is used up since `started`, now if None. Whether nobody stopped it."""
    started, done = time.monotonic() if started is None else started, 0
    try:
        for x in items:
            if args.total and time.monotonic() - started > args.total:
                say(f"--total is used up: {count - done} {what} left")
                break
            one(x)
            done += 1
    except KeyboardInterrupt:
        say(f"stopped; {done} {what} were measured")
        return False
    return True


def write(path: Path, text: str) -> None:
    files.write(path.parent, path.name, text.encode())


def say(text: str) -> None:
    """What happens, beside the result: on stderr, so that --json stays JSON."""
    print(text, file=sys.stderr, flush=True)
