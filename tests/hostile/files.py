"""Files where gemmgen reads or writes one: configs, shapes, databases, outputs; pipes, devices, links among them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gemmgen.bench import shapes
from gemmgen.cli import files
from gemmgen.heuristics import database, tuned
from gemmgen.ir.dtypes import BF16
from gemmgen.problem import Problem

from .model import WARNING, Case, call, command

DENSE = Problem(family="dense", a=BF16, b=BF16)
DEEP = 10**5


def directory(path: Path) -> None:
    path.mkdir()


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path)


def huge(path: Path) -> None:
    """4 GiB, of which none is on the disk."""
    path.touch()
    os.truncate(path, 1 << 32)


def content(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


PLACES: dict[str, Callable[[Path], object]] = {
    "a directory": directory,
    "a pipe": os.mkfifo,
    "a device without an end": endless,
    "a link to itself": circle,
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "4 GiB": huge,
    "no UTF-8": content(b"\xff\xfe\x00{"),
    "missing": lambda path: None,
}
NOT_PATHS = ("a\0b", "x" * 5000, "x/" * 3000 + "x", "/proc/self/mem", "/dev/tty\0")


def of_file(
    surface: str, says: str, place: Callable[[Path], object], use: Callable[[str], object], *ids: str
) -> Case:  # fmt: skip
    """`use` is called with the path of what `place` makes."""

    def made(folder: Path) -> Callable[[], object]:
        place(folder / "input")
        return partial(use, str(folder / "input"))

    return Case(surface=surface, says=says, made=made, ids=ids or ("GG-A",))


def read_by(surface: str, use: Callable[[str], object], texts: Iterable[str], *ids: str) -> tuple[Case, ...]:  # fmt: skip
    """All that a file can be and no text, paths that are none, and texts that say nothing it can hold."""
    return (
        *(of_file(surface, says, place, use, *ids) for says, place in PLACES.items()),
        *(call(surface, repr(path), partial(use, path), *ids) for path in NOT_PATHS),
        *(
            of_file(surface, repr(text)[:60], content(text.encode("utf-8", "surrogatepass")), use, *ids)
            for text in texts
        ),
    )  # fmt: skip


# ---- configs --------------------------------------------------------------------------------

NO_CONFIGS = (
    "", "{", "{]", "[]", "null", "4", '"stages"', "{'stages': 4}", '{"stages": 4,}', '{"stages": 4} {}', '{"stages": 4, "stages": 5}',
    '{"stages": NaN}', '{"stages": Infinity}', '{"stages": 1e400}', '{"stages": %s}' % ("9" * 5000), '{"stages": ' + "[" * DEEP,
    '{"a": ' * DEEP, '{"stages": "4"}', '{"tile": 1}', '{"": 1}', '{"stages\\u0000": 4}', '{"%s": 4}' % ("a" * DEEP), "{} \0", "\ufeff{}",
    json.dumps({"registers": [1] * DEEP}), '{"registers": [1e9, 2]}', '{"swap_ab": 1}', '{"multicast": "\\ud800"}',
)  # fmt: skip


def _config(text: str) -> object:
    return command("emit", "dense", "--config", text)


CONFIGS = (
    *read_by("config files", _config, NO_CONFIGS),
    *(call("config text", repr(x)[:60], partial(_config, x)) for x in NO_CONFIGS if x.startswith("{")),
    *(call("config text", f"registers {x}", partial(_config, json.dumps({"registers": [x, 240]}))) for x in (10**30, 10**4000, -8)),
    call("config text", "registers that no CTA has", partial(_config, '{"registers": [65528, 65528]}'), "GG-S"),
)  # fmt: skip

# ---- shapes ---------------------------------------------------------------------------------

NO_SHAPES = (
    "0x1x1", "-1x1x1", "1x1", "1x1x1x1", "1.5x1x1", "²x1x1", "9" * 5000 + "x1x1", "4294967296x1x1", "1e3x1x1", "ax1x1", "1x1x1;2x2x2",
    "1x1x1,", "1 x1x1\n0x0x0", "m,n\n1,2", "m,n,k\n1,2", "m,n,k\n1,2,x", "m,n,k\n,,", "m,n,k\n\"1,2,3", "\0", "1x1x\u0661x", "x" * DEEP,
    "0x10x1x1", "[1,2,3]", "m,n,k", "#",
)  # fmt: skip


def _shapes(path: str) -> object:
    return shapes.parse(f"@{path}", DENSE)


def _groups(text: str) -> object:
    grouped = Problem(family="dense", a=BF16, b=BF16, grouping="k_columns")
    return shapes.parse(text, grouped)


SHAPES = (
    *read_by("shape files", _shapes, ("", "\n\n", *NO_SHAPES)),
    *(call("shapes", repr(x)[:60], partial(shapes.parse, x, DENSE)) for x in (*NO_SHAPES[:12], "", "@", ",")),
    *(call("shapes", repr(x), partial(_groups, x)) for x in ("2147483647x1x1x128", "65537x1x1x128", "1x1x128", "2x1x1x64")),
)  # fmt: skip

# ---- databases ------------------------------------------------------------------------------

TIMED: dict[str, Any] = {"config": {}, "seconds": 1e-5, "predicted": 1e-5}
ROW: dict[str, Any] = {
    "gemmgen": 1, "problem": {"family": "dense", "a": "bf16", "b": "bf16"}, "groups": 1, "m": 8, "n": 64, "k": 64, "device": "X",
    "nvrtc": "13.0", **TIMED, "spread": 0.1, "default": TIMED, "reference": {"name": "cublas", "seconds": 1e-5}, "tried": [], "failed": 0,
}  # fmt: skip
NUMBERS = (None, "1", -1, float("nan"), float("inf"), 10**400, True, [], {})
WRONG_ROWS = {
    **{f"{name}={x!r}"[:60]: {name: x} for name in ("m", "n", "k", "groups", "failed") for x in (*NUMBERS, 1.5, 10**30)},
    **{f"{name}={x!r}"[:60]: {name: x} for name in ("seconds", "predicted", "spread") for x in NUMBERS},
    **{f"nvrtc={x!r}": {"nvrtc": x} for x in ("13", "13.0.1", "²₂.0", "-1.0", "", None, 13.0, "9" * 5000 + ".0")},
    **{f"tried={x!r}"[:60]: {"tried": x} for x in (None, {}, [1], [[1]], [[1, 2, 3]], [["1", "2"]], [[1, 10**400]], [[0, 1]])},
    **{f"reference={x!r}"[:60]: {"reference": x} for x in (1, [], {}, {"name": 1, "seconds": 1}, {"name": "x", "seconds": -1})},
    **{f"{name}={x!r}": {name: x} for name in ("problem", "config", "default", "device") for x in (None, 1, [])},
    "a config out of range": {"config": {"stages": 99}},
    "a field of no config": {"config": {"__class__": 1}},
    "a family that is none": {"problem": {"family": 1, "a": "bf16", "b": "bf16"}},
    "an epilogue of C": {"problem": ROW["problem"] | {"epilogue": ["+", "acc", ["scalar", 'x"; system("']]}},
    "another format": {"gemmgen": 2},
}  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row)


LINE = _line(ROW)
NO_ROWS = (
    *(LINE[:end] for end in range(1, len(LINE), len(LINE) // 24)),
    *(
        "[1]",
        "null",
        "0",
        "{}",
        "[" * DEEP,
        '{"a":' * DEEP,
        "\0",
        LINE + LINE,
        LINE + "\n{",
        "x" * DEEP,
    ),
    LINE[:-1] + ', "m": 9}',
    LINE.replace('"m": 8', '"m": 08'),
    LINE.replace('"m": 8', '"m": ' + "9" * 5000),
)


def _database(path: str) -> object:
    return database.load(Path(path))


def _tuned(path: str) -> object:
    """As a launch finds it: what is wrong is a warning, and the model chooses."""
    before = os.environ.get(tuned.VARIABLE)
    os.environ[tuned.VARIABLE] = path
    tuned.forget()
    try:
        return tuned.find(DENSE, (8, 64, 64), "X")
    finally:
        tuned.forget()
        os.environ.pop(tuned.VARIABLE)
        os.environ.update({} if before is None else {tuned.VARIABLE: before})


DATABASES = (
    *read_by("databases", _database, NO_ROWS),
    *(of_file("databases", says, content(_line(ROW | change).encode()), _database) for says, change in WRONG_ROWS.items()),
    *(of_file("GEMMGEN_TUNED", says, place, _tuned, WARNING) for says, place in PLACES.items()),
    *(of_file("GEMMGEN_TUNED", repr(x)[:60], content(x.encode()), _tuned, WARNING) for x in NO_ROWS[-12:]),
    *(of_file("databases", f"tune --{option}, {says}", place, lambda path, o=option: command("tune", f"--{o}", path))
      for option in ("merge", "report") for says, place in PLACES.items()),
)  # fmt: skip

# ---- outputs --------------------------------------------------------------------------------

NAMES = (
    "",
    ".",
    "..",
    "../x",
    "a/../../x",
    "/etc/x",
    "a\0b",
    "x" * 300,
    "x/" * 3000 + "y",
    "//",
    "a/..",
    "out/../../x",
)


def _written(name: str, folder: Path) -> Callable[[], object]:
    return lambda: files.write(folder / "out", name, b"gemmgen")


def _over(place: Callable[[Path], object]) -> Callable[[Path], Callable[[], object]]:
    """What stands where the file should go."""

    def made(folder: Path) -> Callable[[], object]:
        place(folder / "x.cu")
        return lambda: files.write(folder, "x.cu", b"gemmgen")

    return made


def _into(place: Callable[[Path], object], *argv: str) -> Callable[[Path], Callable[[], object]]:
    """What stands where the folder should be, for a command."""

    def made(folder: Path) -> Callable[[], object]:
        place(folder / "out")
        return lambda: command(*(x.format(folder / "out") for x in argv))

    return made


def outside(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"# Generated by gemmgen: ours.")
    path.symlink_to(path.parent / "elsewhere")


def linked_folder(folder: Path) -> Callable[[], object]:
    """A link out of the folder, made by somebody else."""
    (folder / "other").mkdir()
    (folder / "out").mkdir()
    (folder / "out" / "family").symlink_to(folder / "other")
    return lambda: files.write(folder / "out", "family/x.cu", b"gemmgen")


OVER: dict[str, Callable[[Path], object]] = {
    **{name: PLACES[name] for name in ("a directory", "a pipe", "a device without an end", "a link to itself", "a link to nothing")},
    "a link to our own file": outside,
    "somebody's file": content(b"precious"),
    "somebody's file of 4 GiB": huge,
    "somebody's empty file": content(b""),
}  # fmt: skip
INTO: dict[str, Callable[[Path], object]] = {
    "a file": content(b"gemmgen"),
    "a pipe": os.mkfifo,
    "a link to itself": circle,
    "a device": lambda path: path.symlink_to("/dev/null"),
}
COMMANDS = (
    ("emit", "dense/f16_f32", "-o", "{}"),
    ("emit", "dense/f16_f32", "-o", "{}/deeper/still"),
    ("layout", "dense/f16_f32", "A", "--html", "{}/x.html"),
    ("layout", "dense/f16_f32", "A", "--svg", "{}/x.svg"),
    ("explain", "dense/f16_f32", "-m", "64", "-n", "64", "-k", "64", "--html", "{}/x.html"),
    ("timeline", "dense/f16_f32", "-m", "64", "-n", "64", "-k", "64", "--trace", "{}/x.json"),
)
OUTPUTS = (
    *(Case(surface="outputs", says=f"named {x!r}"[:60], made=partial(_written, x), ids=("GG-A",)) for x in NAMES),
    *(Case(surface="outputs", says=f"over {says}", made=_over(place), ids=("GG-A",)) for says, place in OVER.items()),
    *(Case(surface="outputs", says=f"{argv[0]} {argv[-2]} into {says}", made=_into(place, *argv), ids=("GG-A",)) for argv in COMMANDS for says, place in INTO.items()),
    *(call("outputs", f"-o {x!r}"[:60], partial(command, "emit", "dense/f16_f32", "-o", x)) for x in ("a\0b", "/proc/self/x", "/dev/null/x", "x" * 5000)),
    Case(surface="outputs", says="through a link out of the folder", made=linked_folder, ids=("GG-A",)),
)  # fmt: skip
CASES = (*CONFIGS, *SHAPES, *DATABASES, *OUTPUTS)
