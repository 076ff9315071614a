"""The forms that a kernel takes on its way to the GPU, and whether a terminal shows colours."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable

from ..errors import ArgumentError
from ..ir.text import dump
from ..pipeline import Artifact
from ..runtime.disassemble import sass
from ..runtime.nvrtc import compile_ptx
from . import given
from .compile_command import cubin_of

LEVELS: dict[str, Callable[[Artifact], str]] = {
    "ir": lambda a: dump(a.kernel),
    "cu": lambda a: a.source,
    "ptx": lambda a: compile_ptx(a.source, a.name) + "\n",
    "sass": lambda a: sass(cubin_of(a).image),
}
COLOURS = ("auto", "always", "never")
# What differs wherever anything before it does, and what it is replaced with: line numbers of the source;
# instructions' addresses and the numbers of labels.
NOISE = {
    "ptx": ((re.compile(r"^\s*\.(?:loc|file)\b.*\n", re.M), ""),),
    "sass": ((re.compile(r"/\*\w+\*/\s*"), ""), (re.compile(r"\.L_x_\d+"), ".L_x")),
}


def add_level(parser: argparse.ArgumentParser, *more: str) -> None:
    names = (*LEVELS, *more)
    parser.add_argument(
        "--level",
        default="ir",
        metavar="LEVEL",
        help=f"one of {', '.join(names)} (default ir)",
        offers=names,
    )
    parser.add_argument(
        "--color",
        default="auto",
        metavar="WHEN",
        help=f"one of {', '.join(COLOURS)} (default auto)",
        offers=COLOURS,
    )


def check(args: argparse.Namespace, *more: str) -> None:
    """Raises ArgumentError for another level or colour."""
    for name, allowed in (("level", (*LEVELS, *more)), ("color", COLOURS)):
        if getattr(args, name) not in allowed:
            allowed_text = f"must be one of {', '.join(allowed)}"
            raise ArgumentError(f"--{name}", getattr(args, name), allowed_text)


def uncoloured(args: argparse.Namespace, by: str) -> None:
    """Raise ArgumentError for a colour where `by` says that nothing has any."""
    given.refuse(
        args, ("color",), f"cannot be given with {by}, which has no colours of a terminal's"
    )


def coloured(args: argparse.Namespace) -> bool:
    """As asked; else on a terminal, unless NO_COLOR is set (no-color.org), or where FORCE_COLOR is (force-color.org)."""
    if args.color == "auto":
        if os.environ.get("FORCE_COLOR"):
            return True
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return bool(args.color == "always")


def comparable(a: Artifact, level: str) -> list[str]:
    """Its lines without what differs for no reason of its own: the kernel's name, addresses, numbering."""
    return without_noise(LEVELS[level](a), a.name, level)


def without_noise(text: str, name: str, level: str) -> list[str]:
    """Lines of a kernel's `text` of that level."""
    text = text.replace(name, "KERNEL")
    for pattern, replacement in NOISE.get(level, ()):
        text = pattern.sub(replacement, text)
    return text.splitlines()
