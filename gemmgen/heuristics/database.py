"""Measured configs as text: one JSON object per line, sorted, so that git merges line by line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..problem import Problem, Shape
from ..untrusted import parse_json, read_text, whole

FORMAT = 1  # of a line; its first field, so that every such file names gemmgen in its first bytes
VERSIONS = ("gemmgen", "driver", "torch")  # of a row's conditions

Line = tuple[int, str]  # of a file: its number from 1, its text
Key = tuple[str, str, int, int, int, int]  # device, problem as JSON, groups, N, K, M


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A config and its device time. seconds: the median; None if it was not measured. predicted: what the
    cost model says, seconds."""

    config: Config
    seconds: float | None
    predicted: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Where and with what a row was measured. gemmgen, torch: their versions; driver: the newest CUDA that it runs; "" for not known.
    power_limit: watts that the GPU might draw; sm_mhz: the median clock of its SMs while the finalists were timed."""

    gemmgen: str = ""
    driver: str = ""
    torch: str = ""
    power_limit: float | None = None
    sm_mhz: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """The fastest config found for `groups` GEMMs of `shape` (M, N, K), of one group in the mean, on one device.

    spread: interquartile range of its times over their median. default: the cost model's choice in the same
    run. reference: a provider's name and its seconds in that run. tried: (predicted, measured) seconds of
    every config timed. failed: candidates that did not compile, verify or finish.
    """

    problem: Problem
    groups: int
    shape: Shape
    device: str
    nvrtc: tuple[int, int]
    best: Timed
    spread: float
    default: Timed
    reference: tuple[str, float] | None = None
    tried: tuple[tuple[float, float], ...] = ()
    failed: int = 0
    conditions: Conditions = Conditions()

    @property
    def key(self) -> Key:
        """What there is one line of. Not NVRTC's version: the newer one's line replaces the older's."""
        m, n, k = self.shape
        return self.device, _text(self.problem.to_json()), self.groups, n, k, m


def better(one: Row, other: Row) -> Row:
    """Of two rows of one key that of the newer NVRTC, else the faster; else, of equals, the one whose text
    comes first. So the order in which files are merged does not matter."""
    if one.nvrtc != other.nvrtc:
        return max(one, other, key=lambda r: r.nvrtc)
    return min(one, other, key=lambda r: (r.best.seconds or math.inf, to_line(r)))


def merge(rows: Iterable[Row]) -> list[Row]:
    """One row per key, the `better` of each, sorted by key."""
    found: dict[Key, Row] = {}
    for row in rows:
        found[row.key] = better(found[row.key], row) if row.key in found else row
    return [found[key] for key in sorted(found)]


def to_text(rows: Iterable[Row]) -> str:
    """The file that holds `rows`: merged, sorted, one line each."""
    return "".join(to_line(row) + "\n" for row in merge(rows))


def to_line(row: Row) -> str:
    """One JSON object, its fields always in this order; configs without the fields that have their defaults."""
    m, n, k = row.shape
    data: dict[str, Any] = {
        "gemmgen": FORMAT,
        "problem": row.problem.to_json(),
        "groups": row.groups,
        "m": m,
        "n": n,
        "k": k,
        "device": row.device,
        "nvrtc": ".".join(map(str, row.nvrtc)),
        **_known(row.conditions),
        "config": brief(row.best.config),
        "seconds": _rounded(row.best.seconds),
        "spread": _rounded(row.spread),
        "predicted": _rounded(row.best.predicted),
        "default": {
            "config": brief(row.default.config),
            "seconds": _rounded(row.default.seconds),
            "predicted": _rounded(row.default.predicted),
        },
    }
    if row.reference:
        data["reference"] = {"name": row.reference[0], "seconds": _rounded(row.reference[1])}
    data["tried"] = [[_rounded(x) for x in pair] for pair in row.tried]
    return _text({**data, "failed": row.failed})


def _known(c: Conditions) -> dict[str, Any]:
    known = {k: _rounded(v) if isinstance(v, float) else v for k, v in vars(c).items() if v}
    return {"conditions": known} if known else {}


def brief(c: Config) -> dict[str, Any]:
    """`c` as JSON, without the fields that have their defaults."""
    defaults = Config().to_json()
    return {k: v for k, v in c.to_json().items() if k not in defaults or v != defaults[k]}


def load(path: Path) -> list[Row]:
    """Every row of a file, merged. Raises ArgumentError naming the file, the line and what is wrong."""
    rows, errors = scan(path)
    if errors:
        raise errors[0]
    return rows


def scan(path: Path) -> tuple[list[Row], list[ArgumentError]]:
    """The rows of a file, merged, and an error for each line that is none. Raises ArgumentError if the file
    cannot be read."""
    return read(path, numbered(path))


def unmerged(path: Path) -> list[Row]:
    """As `load`, every row of the file: several for one shape, if it has so many."""
    rows, errors = each(path, numbered(path))
    if errors:
        raise errors[0]
    return rows


def numbered(path: Path) -> list[Line]:
    """The lines of a file that are not blank. Raises ArgumentError if it cannot be read."""
    lines = enumerate(read_text("database", path).splitlines(), 1)
    return [(number, text) for number, text in lines if text.strip()]


def read(
    path: Path, lines: Iterable[Line], known: Iterable[Row] = ()
) -> tuple[list[Row], list[ArgumentError]]:
    """The rows of `lines` of that file and those `known`, merged, and an error for each line that is none."""
    rows, errors = each(path, lines)
    return merge([*known, *rows]), errors


def each(path: Path, lines: Iterable[Line]) -> tuple[list[Row], list[ArgumentError]]:
    """As `read`, not merged."""
    rows, errors = [], []
    for number, text in lines:
        try:
            rows.append(from_line(text))
        except ArgumentError as e:
            where = f"{path} line {number}: {e.argument}"
            errors.append(ArgumentError(where, e.value, e.allowed))
    return rows, errors


def from_line(line: str) -> Row:
    """The inverse of `to_line`. Raises ArgumentError naming the field."""
    data = parse_json("row", line)
    if not isinstance(data, dict):
        raise ArgumentError("row", line, "must be a JSON object")
    if data.get("gemmgen") != FORMAT:
        raise ArgumentError("gemmgen", data.get("gemmgen"), f"must be {FORMAT}, the rows' format")
    sides = [_whole(data, name) for name in "mnk"]
    return Row(
        problem=Problem.from_json(_member(data, "problem", dict)),
        groups=_whole(data, "groups"),
        shape=(sides[0], sides[1], sides[2]),
        device=_member(data, "device", str),
        nvrtc=_version(data),
        best=_timed(data, "", required=True),
        spread=_number(data, "spread", least=0.0),
        default=_timed(_member(data, "default", dict), "default.", required=False),
        reference=_reference(data),
        tried=_tried(data),
        failed=_whole(data, "failed", least=0),
        conditions=_conditions(data),
    )


def _timed(data: dict[str, Any], prefix: str, *, required: bool) -> Timed:
    measured = required or data.get("seconds") is not None
    return Timed(
        config=Config.from_json(_member(data, "config", dict, prefix)),
        seconds=_number(data, "seconds", prefix) if measured else None,
        predicted=_number(data, "predicted", prefix),
    )


def _reference(data: dict[str, Any]) -> tuple[str, float] | None:
    if data.get("reference") is None:
        return None
    found = _member(data, "reference", dict)
    prefix = "reference."
    return _member(found, "name", str, prefix), _number(found, "seconds", prefix)


def _conditions(data: dict[str, Any]) -> Conditions:
    if data.get("conditions") is None:
        return Conditions()
    found = _member(data, "conditions", dict)
    told, prefix = [x for x in vars(Conditions()) if x in found], "conditions."
    read: dict[str, Any] = {
        x: _member(found, x, str, prefix) if x in VERSIONS else _number(found, x, prefix)
        for x in told
    }
    return Conditions(**read)


def _tried(data: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    pairs = _member(data, "tried", list)
    for pair in pairs:
        two = isinstance(pair, list) and len(pair) == 2
        if not (two and _positive(pair[0]) and _positive(pair[1])):
            raise ArgumentError("tried", pair, "must be pairs of seconds: predicted, measured")
    return tuple((float(x), float(y)) for x, y in pairs)


def _version(data: dict[str, Any]) -> tuple[int, int]:
    text = _member(data, "nvrtc", str)
    parts = [whole(x) for x in text.split(".")]
    match parts:
        case [int(major), int(minor)]:
            return major, minor
    raise ArgumentError("nvrtc", text, "must be MAJOR.MINOR")


def _member(data: dict[str, Any], name: str, kind: type, prefix: str = "") -> Any:
    if not isinstance(data.get(name), kind):
        spelled = {"dict": "an object", "list": "a list", "str": "a string"}[kind.__name__]
        raise ArgumentError(prefix + name, data.get(name), f"must be {spelled}")
    return data[name]


def _whole(data: dict[str, Any], name: str, least: int = 1) -> int:
    value = data.get(name)
    if type(value) is not int or not least <= value <= MOST_SIDE:
        raise ArgumentError(name, value, f"must be an integer from {least} to {MOST_SIDE}")
    return value


def _number(data: dict[str, Any], name: str, prefix: str = "", least: float | None = None) -> float:
    value = data.get(name)
    if least == 0.0 and value == 0 and type(value) in (int, float):
        return 0.0
    if not _positive(value):
        raise ArgumentError(prefix + name, value, "must be a positive number")
    return float(value)  # type: ignore[arg-type]


def _positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max  # type: ignore[operator]


def _rounded(seconds: float | None) -> float | None:
    """To four significant digits: less than what a measurement repeats to."""
    return None if seconds is None else float(f"{seconds:.4g}")


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, allow_nan=False)
