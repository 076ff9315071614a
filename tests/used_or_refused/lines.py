"""Command lines, drawn: a command, what it needs, and some of its options with values right and wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.families import FAMILIES
from gemmgen.gallery import GALLERY, path_of
from gemmgen.ir.dtypes import DTYPES
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.problem import LAYOUTS

Item = tuple[str, ...]  # an option and its value, or a flag


@dataclass(frozen=True)
class Line:
    """fixed: the command and its positional arguments. items: what is given besides."""

    fixed: tuple[str, ...]
    items: tuple[Item, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.fixed, *(word for item in self.items for word in item))

    def without(self, at: int) -> tuple[str, ...]:
        return Line(self.fixed, self.items[:at] + self.items[at + 1 :]).argv


ODD = ("", "zz", "-1", "0", "1.5", "NaN", "null", "[]", "²", "9" * 30, " 64", "a,b", "=", "{")
JUNK = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6
).filter(lambda x: not x.startswith("-"))


def mostly(right: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Right values, and now and then a wrong one."""
    return st.integers(0, 11).flatmap(lambda n: right if n else JUNK)


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
    return st.integers(0, 7).flatmap(lambda n: right if n else wrong)


def config() -> st.SearchStrategy[str]:
    names = st.lists(st.sampled_from([*FIELDS]), max_size=3, unique=True)
    drawn = names.flatmap(lambda ns: st.fixed_dictionaries({n: value_of(n) for n in ns}))
    return st.integers(0, 7).flatmap(
        lambda n: drawn.map(json.dumps) if n else JUNK.map("{{{}".format)
    )


SIDE = of(1, 16, 64, 100, 256, 1000, 4096, 7168, 8192, 1 << 20)
DTYPE = of(*DTYPES)
KERNEL: dict[str, st.SearchStrategy[str] | None] = {
    "--ab": DTYPE | st.tuples(DTYPE, DTYPE).map(",".join),
    "--layout": of(*LAYOUTS),
    "--d": DTYPE,
    "--grouping": of(*GROUPINGS),
    "--alignment": of(128, 64),
    "--accumulate": None,
    "--weights-ready": None,
    "--epilogue": of(*EPILOGUES),
    "--config": config(),
    "--set": assignment(),
    "--swap-ab": None,
    "--split-k": of(1, 2, 4, 8),
    "--watchdog": None,
}
SIDES = {f"-{x}": SIDE for x in "mnk"}
SOME = st.lists(st.sampled_from([0, 1, 64, 100, 128]), min_size=1, max_size=4)
LIST = mostly(SOME.map(lambda x: ",".join(map(str, x))))
GROUPS = {"--rows": LIST, "--depths": LIST}
WINDOW = of("0:1", "1:2", "0:4")
NUMBER = of(1, 2, 8, 100)
LEVEL = {"--level": of("ir", "cu", "trace"), "--color": of("auto", "always", "never")}
PREPARED = {
    "--shapes": of("64x64x128", "1x64x64,2x64x64"),
    "--device": of("NVIDIA H200", 0),
    "--up-to": NUMBER,
    "--threads": NUMBER,
}
FLAGS = dict.fromkeys(("--all", "--check", "--stats", "--text", "--markdown", "--properties"))
# Of each command: whether it takes a KERNEL, what else it needs, and its options beside those of KERNEL. No option writes a file.
COMMANDS: dict[str, tuple[bool, st.SearchStrategy[tuple[str, ...]], dict[str, Any]]] = {
    "emit": (True, st.just(()), {**SIDES, "--dump": of("after:build", "after:plan-multicast"), "--check": None}),
    "show": (True, st.just(()), {**SIDES, **LEVEL}),
    "explain": (True, st.just(()), {**SIDES, "--groups": NUMBER, "--top": NUMBER, "--why-not": assignment()}),
    "layout": (True, of("A", "B", "acc", "D", "scales").map(lambda x: (x,)), {**SIDES, "--text": None}),
    "timeline": (True, st.just(()), {**SIDES, **GROUPS, "--sms": NUMBER, "--tiles": WINDOW, "--blocks": WINDOW, "--device": JUNK, "--stamps": of(8, 64)}),
    "diff": (True, st.tuples(assignment()) | st.tuples(of(*map(path_of, GALLERY))), {**SIDES, "--level": of("ir", "cu", "resources")}),
    "check": (True, st.just(()), {**SIDES, "--properties": None}),
    "compile": (True, st.just(()), SIDES),
    "run": (True, st.just(()), {**SIDES, **GROUPS, "--seed": NUMBER, "--pad": NUMBER, "--repeats": NUMBER, "--device": of("emulator", 0)}),
    "emulate": (True, st.just(()), {**SIDES, **GROUPS, "--seed": NUMBER, "--pad": NUMBER, "--sms": NUMBER, "--stats": None, "--schedule": of("random:3")}),
    "prepare": (True, st.just(()), PREPARED),
    "tune": (True, st.just(("-o", "t.jsonl")), {"--shapes": PREPARED["--shapes"], "--limit": NUMBER, "--repeats": NUMBER, "--again": None}),
    "bench": (True, st.just(()), {"--shapes": PREPARED["--shapes"], "--repeats": NUMBER, "--mode": of("kernel", "operator"), "--pace": of("burst", "sustained"), "--l2": of("flush", "warm"), "--seconds": NUMBER}),
    "casts": (False, st.just(()), {"--shapes": of("64x128"), "--repeats": NUMBER, "--x": DTYPE, "--q": DTYPE, "--power-of-two": None}),
    "host": (False, of("calls", "operators").map(lambda x: (x,)), {"--repeats": NUMBER}),
    "cache": (False, of("ls", "dir", "verify", "gc").map(lambda x: (x,)), {"--bytes": NUMBER, "--all": None}),
    "list": (False, st.just(()), {}),
    "rules": (False, st.just(()), {"--markdown": None}),
    "errors": (False, st.just(()), {"--markdown": None}),
}  # fmt: skip
OFTEN = ("emit", "show", "explain", "layout", "timeline", "diff", "compile", "emulate")
NAMES = of(*FAMILIES, *FAMILIES, *FAMILIES, *map(path_of, GALLERY))


@st.composite
def lines(draw: Callable[..., Any]) -> Line:
    command = draw(st.sampled_from([*OFTEN * 2, *COMMANDS]))
    takes, needs, own = COMMANDS[command]
    kernel = (draw(NAMES),) if takes else ()
    available = {**(KERNEL if takes else {}), **own}
    names = draw(st.lists(st.sampled_from(sorted(available)), max_size=4)) if available else []
    items = []
    for name in names:
        if name in (item[0] for item in items) and name != "--set":
            continue  # the last of several counts, as everywhere
        strategy = available[name]
        items.append((name,) if strategy is None else (name, draw(strategy)))
    return Line((command, *kernel, *draw(needs)), tuple(items))


DEFAULTS = Config().to_json()
