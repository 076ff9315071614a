"""Arguments several subcommands share: which kernel, at which shape."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

from ..config import Config
from ..epilogues import EPILOGUES
from ..errors import ArgumentError, CompileError
from ..families import FAMILIES
from ..gallery import GALLERY, exhibit, path_of
from ..ir.counts import check_side
from ..ir.dtypes import BF16, DTYPES, E4M3
from ..ir.groupings import GROUPINGS
from ..ir.packed import FORMS, OF_8_BITS, every_name, forms, plain_weights
from ..problem import LAYOUTS, OUTPUTS, Problem
from ..recipes import recipe
from ..target import H200
from ..untrusted import parse_json, read_text
from . import config_options, given
from .fields import fields

KERNELS = (*FAMILIES, *map(path_of, GALLERY))
OPERANDS = dict.fromkeys(
    a.name if a == b else f"{a.name},{b.name}"
    for name in FAMILIES
    for a, b in recipe(name).operands
)
T = TypeVar("T")

Shape = tuple[int, int, int]

DEFAULT_SHAPE = (4096, 4096, 4096)
NOTHING_CHOSEN = "chooses a config, but a gallery kernel has one, and so has --config"
SMALL_SHAPE = (256, 256, 512)  # where nothing is given and the CPU multiplies


def add_kernel(
    parser: argparse.ArgumentParser, *, required: bool = True, many: bool = False
) -> None:
    """KERNEL, and what describes it further. many: any number of them, none included."""
    parser.add_argument(
        "kernel",
        nargs="*" if many else None if required else "?",
        metavar="KERNEL",
        help=f"a family ({', '.join(FAMILIES)}) or a gallery kernel (see `gemmgen list`)",
        offers=KERNELS,
    )
    parser.add_argument(
        "--ab",
        metavar="DTYPE",
        help="operand dtype, or A's and B's as a,b (default: the family's first)",
        offers=OPERANDS,
    )
    parser.add_argument(
        "--layout",
        metavar="LAYOUT",
        help=f"one of {', '.join(LAYOUTS)} (default nt): A, then B; t: A [K, M], B [N, K]; n: A [M, K], B [K, N]",
        offers=LAYOUTS,
    )
    parser.add_argument(
        "--d",
        metavar="DTYPE",
        help="output dtype: bf16 (default), f16, f32, s32 or e4m3 (with scales)",
        offers=[t.name for t in OUTPUTS],
    )
    parser.add_argument(
        "--grouping",
        metavar="NAME",
        help=f"several GEMMs in one launch: {', '.join(GROUPINGS)}",
        offers=GROUPINGS,
    )
    _add_operands(parser)
    parser.add_argument(
        "--epilogue", metavar="NAME", help=f"one of {', '.join(EPILOGUES)}", offers=EPILOGUES
    )
    config_options.add(parser)


def _add_operands(parser: argparse.ArgumentParser) -> None:
    """What else is said of A, B and D."""
    parser.add_argument(
        "--alignment",
        type=int,
        metavar="ROWS",
        help="where groups that share A's rows begin: 128 or 64; of ends also 8, 4 or 1",
        offers=[*map(str, GROUPINGS["ends"].alignments)],
    )
    parser.add_argument(
        "--accumulate",
        action="store_true",
        default=None,
        help="add to what D holds (needs --d f32)",
    )
    parser.add_argument(
        "--weights-ready",
        action="store_true",
        default=None,
        help="a promise: no launch still running when this one begins writes B or its scales; B is loaded ahead where possible",
    )
    parser.add_argument(
        "--weights",
        metavar="FORMAT",
        help=f"of w4a16, what B is packed from: {', '.join(FORMS[BF16])}, or with f16 in the name (default: {plain_weights(BF16)}, of B's dtype); of w4a8_block {' or '.join(FORMS[E4M3])}; of w8a16 {' or '.join(OF_8_BITS[BF16])}, of f16 with _f16",
        offers=[*every_name()],
    )


def add_watchdog(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watchdog",
        dest="set",
        action="append_const",
        const="watchdog=true",
        help="build with a watchdog: a wait of seconds becomes an error with a table",
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    for letter, what in (
        ("m", "rows of A and D"),
        ("n", "rows of B, columns of D"),
        ("k", "depth"),
    ):
        parser.add_argument(f"-{letter}", type=int, metavar=letter.upper(), help=what)


def shape(args: argparse.Namespace, default: Shape = DEFAULT_SHAPE) -> Shape:
    """(M, N, K), `default` where not given. Raises ArgumentError naming the side."""
    sides = tuple(
        d if s is None else s for s, d in zip((args.m, args.n, args.k), default, strict=True)
    )
    for name, side in zip("mnk", sides, strict=True):
        check_side(name, side)
    return sides  # type: ignore[return-value]


def small_shape(args: argparse.Namespace) -> Shape:
    """(M, N, K) for the emulator. Raises ArgumentError naming the side."""
    return shape(args, SMALL_SHAPE)


def problem_and_config(args: argparse.Namespace, at: Shape | None = None) -> tuple[Problem, Config]:
    """What KERNEL and the options after it name, as `choice`."""
    return choice(args, at)[:2]


def choice(
    args: argparse.Namespace,
    at: Shape | None = None,
    groups: int = 1,
    device: str = "",
    **more: bool,
) -> tuple[Problem, Config, str]:
    """The problem, its config for so many groups of the shape `at` on the device of that name (an H200 if none is given), and where
    that comes from. None: the shape in `args`, which nothing but the choice of a config asks for: refused if there is none to choose.
    more: as of `ops.building.picked_for`."""
    p = problem(args)
    if at is None and is_fixed(args):
        given.refuse(args, given.SHAPE, NOTHING_CHOSEN)
    return p, *config(args, p, at or shape(args), groups, device, **more)


def config(
    args: argparse.Namespace, p: Problem, at: Shape, groups: int = 1, device: str = "", **more: bool
) -> tuple[Config, str]:
    """--config, else a gallery kernel's, else the one chosen for `p` at shape `at`, none that the build is known to
    refuse: with the fields of --set changed; and where it comes from. Compiles nothing."""
    found = exhibit(args.kernel)
    if is_fixed(args):
        given.refuse(args, given.INVARIANT, NOTHING_CHOSEN)
    if args.config is not None:
        base, source = Config.from_json(_json(args.config)), "given"
    elif found:
        base, source = found.config, "gallery"
    else:
        from ..ops.building import picked_for

        picked = picked_for(p, at, groups, device or H200.device_name, None, None, **more)
        base, source = picked.config, picked.source(at)
    if not args.set:
        return base, source
    changed = Config.from_json({**base.to_json(), **fields("--set", args.set)})
    check_invariant(args, p, changed, at)
    return changed, f"{source}, changed"


def check_invariant(args: argparse.Namespace, p: Problem, changed: Config, at: Shape) -> None:
    """Raise ArgumentError if --invariant is given and `changed`, by --set, adds up otherwise at shape `at`."""
    if args.invariant and args.set:
        from ..ops import invariance

        invariance.check(p, changed, at[2], invariance.split_of(p, *at[1:]))


def is_fixed(args: argparse.Namespace) -> bool:
    """Whether the config is the same at every shape."""
    return args.config is not None or exhibit(args.kernel) is not None


def built(
    args: argparse.Namespace,
    build: Callable[[Problem, Config], T],
    at: Shape | None = None,
    device: str = "",
    groups: int = 1,
) -> tuple[T, str]:
    """What `build` makes of the `choice` for so many groups of the shape `at` and the device of that name, and where its config comes from: where the build refuses a config that was
    chosen, of the next."""
    from ..ops.refused import MOST, as_given, learn, say

    if args.set or is_fixed(args):
        p, config, source = choice(args, at, groups, device)
        return as_given(p, config, lambda: build(p, config)), source
    refused: list[CompileError] = []
    while True:
        p, config, source = choice(args, at, groups, device)
        try:
            made = build(p, config)
        except CompileError as e:
            refused.append(e)
            if not e.lasting or len(refused) == MOST:
                raise refused[0] from None
            learn(p, config, e)
            continue
        if refused:
            say(p, refused, config)
        return made, source


def problem(args: argparse.Namespace) -> Problem:
    """A family's, or a gallery kernel's, with what the options say of it."""
    found = exhibit(args.kernel)
    if not (found or args.kernel in FAMILIES):
        allowed = ", ".join(KERNELS)
        raise ArgumentError("KERNEL", args.kernel, f"must be one of {allowed}")
    if found:
        data = found.problem.to_json()
    else:
        a, b = (t.name for t in recipe(args.kernel).operands[0])
        data = {"family": args.kernel, "a": a, "b": b}
    said = {
        name: v
        for name in (*given.PROBLEM, *given.COLLECTIVE)
        if name != "ab" and (v := getattr(args, name, None)) is not None
    }
    p = Problem.from_json(with_weights(data | _operands(args)) | said)
    if args.alignment is not None and not GROUPINGS[p.grouping].aligned:
        names = " and ".join(name for name, g in GROUPINGS.items() if g.aligned)
        raise ArgumentError("--alignment", args.alignment, f"is for groupings {names} only")
    return p


def with_weights(data: dict[str, Any]) -> dict[str, Any]:
    """A problem's JSON, with the plainest packed weights if its family has such and it says none of B's dtype."""
    to, coded = DTYPES.get(data["b"]), recipe(data["family"]).coded
    known = forms(coded, to) if coded and to else {}
    if to is None or not known or data.get("weights") in known:
        return data
    return data | {"weights": plain_weights(to, coded)}


def _operands(args: argparse.Namespace) -> dict[str, str]:
    if args.ab is None:
        return {}
    a, *b = args.ab.split(",")
    if len(b) > 1:
        raise ArgumentError("--ab", args.ab, "must be A's and B's dtype, or one for both")
    return {"a": a, "b": b[0] if b else a}


def _json(text: str) -> Any:
    given = text.lstrip().startswith("{")
    return parse_json("--config", text if given else read_text("--config", text))
