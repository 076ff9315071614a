"""Values of the command line, and packs: names, numbers and text that become C, files or sizes of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gemmgen.config import Config
from gemmgen.ir.dtypes import BF16
from gemmgen.ops import every_m
from gemmgen.pack import pack
from gemmgen.problem import Problem

from .files import INTO
from .model import USAGE, Case, call, command
from .texts import NAMES

DENSE = Problem(family="dense", a=BF16, b=BF16)
ANY = ("GG-A", "GG-S", "GG-P")
KERNEL = "dense"

# ---- --set ----------------------------------------------------------------------------------

SETS = (
    "", "=", "stages", "=4", "stages=", "stages==4", "stages = 4", "stages=four", "stages=NaN", "stages=Infinity", "stages=-Infinity",
    "stages=1e400", "stages=" + "9" * 5000, "stages=" + "[" * 10**5, 'stages="4"', "stages=[4]", "stages={}", "stages=null", "stages=true",
    'stages={"a":1,"a":2}', "Stages=4", "stages\n=4", "stages\0=4", "__class__=1", "to_json=1", "stages=4;rm", "stages=$(id)",
    "block_m=1e2", "block_m=0x80", "registers=[1e308,1]", "registers=[[1]]", "registers=24,240", "multicast=A", "multicast=\u202ea", "ﬆages=4",
    "a" * 10**5 + "=1", "raster=" + "m" * 10**5, f"registers={[1] * 10**4}", "watchdog=1", "swap_ab=yes",
)  # fmt: skip
SET = tuple(call("--set", repr(x)[:60], partial(command, "emit", KERNEL, "--set", x)) for x in SETS)

# ---- other options --------------------------------------------------------------------------

HUGE_NUMBER = "9" * 5000
OPTIONS: tuple[tuple[str, ...], ...] = (
    *(("emit", x) for x in NAMES if x and x[0] != "-"),
    *(("emit", KERNEL, option, x) for option in ("--ab", "--d", "--epilogue", "--layout", "--grouping") for x in ("a b", "../x", "a\0b", "²", "x" * 10**5, 'a"b', "{}", "\udcff")),
    *(("emit", kernel, "--weights", x) for kernel in (KERNEL, "w4a16") for x in (*NAMES, "int4", "int4_128_bf16 ", "../int4_128_bf16", "x" * 10**5) if x[:1] != "-" and (x or kernel != KERNEL)),
    *(("emit", KERNEL, "--alignment", x) for x in ("-1", "1", "64.0", "²", HUGE_NUMBER)),
    *(("emit", KERNEL, f"-{side}", x) for side in "mnk" for x in ("0", "-1", "2147483648", "1e3", "NaN", "²", HUGE_NUMBER)),
    *(("emit", KERNEL, "--split-k", x) for x in ("0", "3", "NaN", HUGE_NUMBER)),
    *(("emit", KERNEL, "--dump", x) for x in ("after:", "after:../x", "\0", "x" * 10**5)),
    *(("show", KERNEL, "--level", x) for x in ("", "asm", "../cu")),
    *(("layout", KERNEL, x) for x in ("E", "../A", "A\0")),
    *(("emulate", KERNEL, *x) for x in (
        ("-m", "2147483647"), ("-m", "65536", "-n", "65536"), ("-k", "2147483647"), ("--seed", "-1"), ("--seed", HUGE_NUMBER), ("--pad", "-1"),
        ("--pad", "1000000000"), ("--sms", "1000000000"), ("--sms", "-1"), ("--schedule", "random:²"), ("--schedule", "random:-1"),
        ("--schedule", "random:" + HUGE_NUMBER), ("--rows", "1"), ("--depths", "8"))),
    *(("emulate", KERNEL, "--grouping", "rows", "--rows", x) for x in ("²", "-1", "1,,1", "1.5", HUGE_NUMBER, "2147483648", ",".join(["1"] * 10**5))),
    *(("timeline", KERNEL, *x) for x in (
        ("--sms", "0"), ("--sms", HUGE_NUMBER), ("--tiles", "²:9"), ("--tiles", "2:1"), ("--tiles", "0:" + HUGE_NUMBER), ("--blocks", ":"),
        ("-m", "2147483647", "-k", "2147483647"), ("--stamps", "8"), ("--device", "²"), ("--device", HUGE_NUMBER),
        ("--device", "emulator", "--stamps", "0"), ("--device", "emulator", "--stamps", "-8"), ("--device", "emulator", "--stamps", HUGE_NUMBER),
        ("--device", "emulator", "-m", "2147483647", "-k", "2147483647"), ("--device", "emulator", "--sms", HUGE_NUMBER))),
    *(("explain", KERNEL, *x) for x in (("--groups", "0"), ("--groups", HUGE_NUMBER), ("--top", "1000000000"), ("--why-not", "stages"), ("--why-not", "=1"))),
    *(("prepare", KERNEL, "--shapes", "1x64x64", *x) for x in (
        ("--up-to", "0"), ("--up-to", "1000000000000"), ("--threads", "0"), ("--threads", "-5"), ("--set", "stages=2"))),
    *(("cache", x) for x in ("", "rm", "../ls")),
    *(("cache", "gc", "--bytes", x) for x in ("-1", "1e9", "²")),
    *(("diff", KERNEL, x) for x in ("stages", "=", "stages=99", "dense/../x")),
    *(("run", KERNEL, "--device", x) for x in ("-1", "gpu", "")),
)  # fmt: skip
VALUES = tuple(
    call(
        "options",
        " ".join(map(ascii, argv))[:60],
        partial(command, *argv),
        *ANY,
        *(USAGE,),
    )
    for argv in OPTIONS
)
SIZES = tuple(call("options", f"every M to {x!r}", partial(every_m, x)) for x in (2**40, 10**400))

# ---- packs ----------------------------------------------------------------------------------

PREFIXES = (*NAMES, "A", "Gemm", "_a", "int;", "a" * 65, "a/b", "a.h", None, 5, b"a")
NO_SHAPES = ((0, 1, 1), (1, -1, 1), (1, 1, 2**31), (1, 1), (1, 1, 1, 1), (1.5, 1, 1), ("1", 1, 1), (None, 1, 1), "abc")  # fmt: skip


NO_GROUPS = (0, -1, 2**31, 1.5, "1", None)
BATCHED = replace(DENSE, grouping="batched")


def _pack(prefix: object = "p", shape: object = (1, 64, 64), problem: Problem = DENSE) -> object:
    return pack(problem, {shape: Config()}, prefix=prefix, device="X")  # type: ignore[arg-type, dict-item]


def _into(place: Callable[[Path], object]) -> Callable[[Path], Callable[[], object]]:
    """`gemmgen pack` into what somebody left where the folder should be."""

    def made(folder: Path) -> Callable[[], object]:
        place(folder / "out")
        argv = ("pack", KERNEL, "--shapes", "1x64x64", "--prefix", "A;", "-o", str(folder / "out"))
        return partial(command, *argv)

    return made


PACKS = (
    *(call("packs", f"prefix {x!r}"[:60], partial(_pack, x)) for x in PREFIXES),
    *(call("packs", f"shape {x!r}", partial(_pack, "p", x)) for x in NO_SHAPES),
    *(Case(surface="packs", says=f"into {says}", made=_into(place), ids=("GG-A",)) for says, place in INTO.items()),
    call("packs", "no shapes", lambda: pack(DENSE, {}, prefix="p", device="X")),
    *(call("packs", f"groups {x!r}", partial(_pack, "p", (x, 1, 64, 64), BATCHED)) for x in NO_GROUPS),
    call("packs", "no groups", partial(_pack, "p", (1, 64, 64), BATCHED)),
)  # fmt: skip
CASES = (*SET, *VALUES, *SIZES, *PACKS)
