"""Command lines, drawn: a command, what it needs, and some of its options with values right and wrong.

Which options there are, the parser says. Flags, numbers and choices need nothing here; others have a row of VALUES.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gemmgen.bench.data import KINDS
from gemmgen.bench.modes import L2, MODES, PACES
from gemmgen.cli import COMMANDS
from gemmgen.cli.cache_command import ACTIONS
from gemmgen.cli.levels import COLOURS, LEVELS
from gemmgen.config import FIELDS
from gemmgen.epilogues import EPILOGUES
from gemmgen.families import FAMILIES
from gemmgen.gallery import GALLERY, path_of
from gemmgen.ir.collectives import COLLECTIVES, WIRES
from gemmgen.ir.dtypes import DTYPES
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.packed import every_name
from gemmgen.problem import LAYOUTS
from gemmgen.recipes import recipe
from gemmgen.see.layout_page import VIEWS

from . import given_files, inventory

Item = tuple[str, ...]  # an option and its value, or a flag


@dataclass(frozen=True)
class Line:
    """fixed: the command and what it takes without options. items: what is given besides."""

    fixed: tuple[str, ...]
    items: tuple[Item, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.fixed, *(word for item in self.items for word in item))

    def without(self, at: int) -> tuple[str, ...]:
        return Line(self.fixed, self.items[:at] + self.items[at + 1 :]).argv

    def as_json(self) -> tuple[str, ...]:
        return self.argv if "--json" in self.argv else (*self.argv, "--json")


ODD = ("", "zz", "-1", "0", "1.5", "NaN", "null", "[]", "²", "9" * 30, " 64", "a,b", "=", "{")
JUNK = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6
).filter(lambda x: not x.startswith("-"))


def seldom() -> st.SearchStrategy[bool]:
    """Once in sixteen. Not at an end of the range, which is drawn more often."""
    return st.integers(0, 15).map(lambda n: n == 7)


def mostly(right: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Right values, and now and then a wrong one."""
    return seldom().flatmap(lambda wrong: JUNK if wrong else right)


def of(*right: Any) -> st.SearchStrategy[str]:
    return mostly(st.sampled_from([str(x) for x in right]))


def value_of(name: str) -> st.SearchStrategy[Any]:
    """Of a field of Config: any that it takes."""
    if name == "registers":
        return st.sampled_from([None, [40, 232], [24, 240], [40, 192]])
    tried = (None, True, False, "none", "a", "b", "m", "n", "panels", "lines", *range(257))
    return st.sampled_from([x for x in tried if FIELDS[name].holds(x)])


def assignment() -> st.SearchStrategy[str]:
    """FIELD=VALUE."""
    names = st.sampled_from([*FIELDS])
    right = names.flatmap(lambda n: value_of(n).map(lambda v: f"{n}={json.dumps(v)}"))
    wrong = st.tuples(names | JUNK, st.sampled_from(["=", ""]), JUNK).map("".join)
    return seldom().flatmap(lambda is_wrong: wrong if is_wrong else right)


def config() -> st.SearchStrategy[str]:
    names = st.lists(st.sampled_from([*FIELDS]), max_size=3, unique=True)
    drawn = names.flatmap(lambda ns: st.fixed_dictionaries({n: value_of(n) for n in ns}))
    wrong = JUNK.map("{{{}".format)
    return seldom().flatmap(lambda is_wrong: wrong if is_wrong else drawn.map(json.dumps))


# ---- values ---------------------------------------------------------------------------------

SIDE = of(1, 16, 64, 100, 256, 1000, 4096, 7168, 8192, 1 << 20)
DTYPE = of(*DTYPES)
NUMBER = of(1, 2, 8, 100)
SOME = st.lists(st.sampled_from([0, 1, 64, 100, 128]), min_size=1, max_size=4)
LIST = mostly(SOME.map(lambda x: ",".join(map(str, x))))
# None of all four tiles that are simulated: it would show what is shown without.
WINDOW = of("0:1", "1:2", "1:3")
CARD = of("NVIDIA H200", "NVIDIA H100 80GB HBM3", 0)
RAN = of("emulator", "gpu", 0)
SHAPES = of("64x64x128", "1x64x64,2x64x64", "4x64x64x128", "@given/shapes.txt")


def files(*right: str) -> st.SearchStrategy[str]:
    """Names of files and folders that are read or written: no name leads out of the folder of the run."""
    return seldom().flatmap(lambda wrong: st.sampled_from(ODD if wrong else right))


BENCHED = files("given/rows.json", "given/bf16.json")
KEPT = files("given/a.jsonl", "given/b.jsonl")
VALUES: dict[str, st.SearchStrategy[str]] = {
    "kernel": of(*FAMILIES, *FAMILIES, *FAMILIES, *map(path_of, GALLERY)),
    "--ab": DTYPE | st.tuples(DTYPE, DTYPE).map(",".join),
    "--layout": of(*LAYOUTS),
    "--d": DTYPE,
    "--grouping": of(*GROUPINGS),
    "--epilogue": of(*EPILOGUES),
    "--collective": of(*COLLECTIVES),
    "--weights": of(*every_name()),
    "--wire": of(*(t.name for t in WIRES)),
    "--ranks": of(1, 2, 3, 8, 9),
    "--config": config(),
    "--set": assignment(),
    "--split-k": of(1, 2, 4, 8),
    **{f"-{x}": SIDE for x in "mnk"},
    "--alignment": of(128, 64, 4, 1),
    "--rows": LIST,
    "--depths": LIST,
    "--level": of(*LEVELS, "trace", "resources"),
    "--color": of(*COLOURS),
    "--dump": of("after:build", "after:plan-multicast"),
    "--why-not": assignment(),
    "--shapes": SHAPES,
    "--device": CARD,
    "--tiles": WINDOW,
    "--blocks": WINDOW,
    "--stamps": of(8, 64),
    "--schedule": of("random:3", "round-robin"),
    "--providers": of("gemmgen", "gemmgen,torch", "all"),
    "--mode": of(*MODES),
    "--pace": of(*PACES),
    "--l2": of(*L2),
    "--data": of(*KINDS),
    "--x": DTYPE,
    "--q": DTYPE,
    "--name": of("one", "another"),
    "--label": of("deep_gemm=Deep", "gemmgen=ours", "deep_gemm=D"),
    "--only": of("deep_gemm", "gemmgen", "peer", "tilelang"),
    "--bench": BENCHED,
    "--beside": assignment() | files("given/trace.json"),
    "--ncu": files("given/ncu.csv"),
    "--html": files("page.html", "pages/page.html"),
    "--svg": files("picture.svg"),
    "--trace": files("trace.json"),
    "-o": files("out", "out/in"),
    "--cubins": files("cubins"),
    "--log": files("log.jsonl"),
    "--merge": KEPT,
    "--report": KEPT,
    "--prefix": of("x", "gemmgen_y"),
    "--up-to": of(8, 100),
    "--sweep": of("m"),
    "--shard": of("1/1", "1/2", "2/2"),
    "--families": of(*FAMILIES, "dense,fp8"),
    "--groupings": of(*GROUPINGS, "none,rows"),
    "--port": of(0, 8123, 70000),
}
OF: dict[tuple[str, str], st.SearchStrategy[str]] = {  # where a name means something else
    **{(command, "kernel"): of(*FAMILIES) for command in ("prepare", "pack", "tune")},
    ("casts", "--shapes"): of("64x128"),
    ("moe", "--model"): of("v3", "v3-local", "mixtral"),
    ("moe", "--tokens"): LIST | of("1", "8,64"),
    ("moe", "--providers"): of(
        "gemmgen", "gemmgen,torch", "gemmgen,torch,read", "gemmgen,deep_gemm"
    ),
    ("moe", "--hidden"): SIDE,
    ("moe", "--intermediate"): SIDE,
    ("run", "--device"): RAN,
    ("timeline", "--device"): RAN,
    ("layout", "what"): of(*VIEWS),
    ("diff", "other"): assignment() | of(*map(path_of, GALLERY)),
    ("cache", "action"): of(*ACTIONS),
    ("chart", "bench"): BENCHED,
    ("chart", "-o"): files("chart.svg"),
    ("tune", "-o"): files("t.jsonl"),
    ("report", "-o"): files("page.html"),
    ("repack", "checkpoint"): files(*given_files.CHECKPOINTS),
    ("repack", "--shard-size"): of(1000, 3000),  # of a few kB in all
    ("host", "what"): of("calls", "operators", "import"),
}


def value(command: str, name: str, x: argparse.Action) -> st.SearchStrategy[str] | None:
    """None: it is not drawn."""
    if (command, name) in OF:
        return OF[command, name]
    if name in VALUES:
        return VALUES[name]
    if x.choices:
        return of(*x.choices)
    return NUMBER if x.type in (int, float) else None


def not_drawn() -> list[str]:
    """What a parser has, and no line."""
    every = ((c, name, x) for c in COMMANDS for name, x in inventory.arguments(c).items())
    found = [(c, n) for c, n, x in every if not inventory.is_flag(x) and value(c, n, x) is None]
    return [" ".join(x) for x in found]


# ---- lines ----------------------------------------------------------------------------------

# Options that go together, as a command is asked for one thing or another; with a kernel or without.
FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "emit": ((), (), (), ("--all", "--check"), ("--all",)),
    "compile": ((), (), ("--all",)),
    "check": ((), (), ("--all",), ("--properties",)),
    "tune": (
        ("-o",),
        ("--compile-only", "--cubins"),
        ("--merge",),
        ("--report",),
        ("--calibrate",),
        ("--regret",),
        ("--sweep",),
    ),
    "bench": ((), ("-o", "--plot")),
    "moe": (
        (),
        (),
        ("--experts", "--top", "--hidden", "--intermediate"),
        ("--explain",),
        ("--explain", "--experts", "--top", "--hidden", "--intermediate"),
    ),
    "report": ((), ("--bench",)),
    "prepare": (("--shapes",),),
    "pack": (("--shapes",),),
    "timeline": ((), (), (), ("--device", "--stamps")),
}
ALONE = {
    "--all",
    "--properties",
    "--merge",
    "--report",
    "--bench",
    "--calibrate",
}  # of a kernel there is none
# What one option is drawn with, so that it says something there.
WITH: dict[str, tuple[Item, ...]] = {
    "--alignment": (("--grouping", "rows"), ("--grouping", "ends")),
    "--accumulate": (("--d", "f32"),),
    "--groups": (("--grouping", "batched"), ("--grouping", "masked")),
    "--stamps": (("--device", "emulator"),),
    "--ranks": tuple(("--collective", x) for x in COLLECTIVES if x != "none"),
    "--wire": (("--collective", "reduce_scatter"), ("--collective", "all_reduce")),
    "--tiles": (("--html", "page.html"), ("--svg", "picture.svg")),
    "--blocks": (("--html", "page.html"),),
    "--rows": (("--grouping", "rows"), ("--grouping", "ends")),
}
OFTEN = ("emit", "show", "explain", "layout", "timeline", "diff", "compile", "emulate")


@st.composite
def lines(draw: Callable[..., Any]) -> Line:
    command = draw(st.sampled_from([*OFTEN, *COMMANDS]))
    form = draw(st.sampled_from(FORMS.get(command, ((),))))
    words = draw(_positionals(command, {*form}))
    available = inventory.options(command)
    needed = [*form, *(name for name, x in available.items() if x.required)]
    more = draw(st.lists(st.sampled_from(sorted(available)), max_size=4))
    items: dict[Item, None] = {}
    for name in [*needed, *more]:
        x, given = available[name], [item[0] for item in items]
        if name in given and not inventory.adds_up(x):
            continue  # the last of several counts, as everywhere
        items[(name, *draw(_of_kernel(command, name, x, words)))] = None
        other = draw(st.sampled_from(WITH[name])) if name in WITH else None
        if other and other[0] in available and other[0] not in given and not draw(seldom()):
            items[other] = None
    return Line((command, *words), tuple(items))


@st.composite
def _positionals(draw: Callable[..., Any], command: str, form: set[str]) -> tuple[str, ...]:
    words: list[str] = []
    for name, x in inventory.positionals(command).items():
        odd, usual = draw(seldom()), not form & ALONE
        if x.nargs not in ("?", "*") or odd != usual:
            words += draw(_words(command, name, x))
    return tuple(words)


@st.composite
def _of_kernel(
    draw: Callable[..., Any], command: str, name: str, x: argparse.Action, words: tuple[str, ...]
) -> tuple[str, ...]:
    """Operands are mostly of the family."""
    if name == "--ab" and words and words[0] in FAMILIES and draw(st.booleans()):
        pairs = recipe(words[0]).operands
        return (",".join(t.name for t in draw(st.sampled_from(pairs))),)
    return draw(_words(command, name, x))


def _words(command: str, name: str, x: argparse.Action) -> st.SearchStrategy[tuple[str, ...]]:
    if inventory.is_flag(x):
        return st.just(())
    of_each = value(command, name, x)
    assert of_each is not None, f"{command} {name}"
    most = 2 if inventory.takes_many(x) else 1
    return st.lists(of_each, min_size=1, max_size=most, unique=True).map(tuple)
