"""A command line that was run: was each thing that it gave used, or refused by name?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gemmgen.config import Config
from gemmgen.errors import GemmgenError
from gemmgen.ops import invariance
from gemmgen.problem import Problem
from gemmgen.target import H200

from . import inventory
from .lines import Item, Line
from .model import REFUSALS, Ignored, Tally, named
from .running import Outcome, run

OPTIONAL = {"grouping": "none", "alignment": Problem.alignment, "accumulate": False}
OPTIONAL |= {"collective": Problem.collective, "weights": Problem.weights}
# What describes a kernel: a request shows it, also where nothing is printed.
PROBLEM = (
    *("--ab", "--layout", "--d", "--grouping", "--alignment", "--accumulate", "--weights-ready"),
    "--weights",
    "--epilogue",
    *("--collective", "--wire"),
)
# All that is in an epilogue "none" where `bench` gives the product's operands scales, as `ops` takes them.
NO_EPILOGUE = {"none", "acc", "per_row", "per_column", "device_scalar", "scale_a", "scale_b"}
CONFIGS = ("--config", "--set", "--swap-ab", "--split-k", "--watchdog", "--invariant")
SIDES = ("-m", "-n", "-k")
COUNTS = ("--groups", "--ranks")  # of what one launch is of
SEEN = {*PROBLEM, *CONFIGS, *SIDES, *COUNTS}
# What is meant where an option is not given, which must be told from one that is.
MEANT = {
    ("moe", "--device"): H200.device_name,
    ("moe", "--model"): "v3",
    ("repack", "--activations"): "bf16",
}
# Where a GPU or NVRTC is missing, what was handed on shows these besides.
HANDED_ON = {"prepare": {"--shapes", "--up-to"}, "pack": {"--shapes", "--up-to"}}
OTHER_NAMES = {
    "--ab": ("a", "b"),
    "--swap-ab": ("swap_ab",),
    "--watchdog": ("watchdog",),
    "--sms": ("SM",),
}
EMPTY = {"cache"}  # finds nothing here that its options could change
WRITTEN = {"-o", "--html", "--svg", "--trace"}
TO_TERMINALS = {"--text", "--markdown"}  # how nothing but text is said


def judge(line: Line, tally: Tally) -> None:
    """Raises Ignored."""
    found = run(*line.argv)
    if found.broke:
        raise Ignored(found.broke)
    if found.code == 2:
        tally.refused += 1
        return _refused(line, found)
    if (
        found.code not in (0, 3) and "--check" not in line.argv
    ):  # which finds that files are missing
        raise Ignored(f"exit code {found.code}: {json.dumps(found.said)[:300]}")
    if found.code == 3:
        tally.missing += 1
    else:
        tally.used += 1
    for at, item in enumerate(line.items):
        if line.fixed[0] in EMPTY or (found.code == 3 and not _shows(line, item, found)):
            continue  # read by what this campaign has not: tests/api/test_given.py has a row for each
        if _unwritten(line, item, found) or (
            not _told(line, item, found) and found.like(run(*line.without(at)))
        ):
            raise Ignored(f"{' '.join(item)} was ignored")
        tally.shown.add(f"{line.fixed[0]} {item[0]}")
    return None


def _shows(line: Line, item: Item, found: Outcome) -> bool:
    """Whether it can be seen, although something is missing. Where groups' sizes are given a config is chosen for their mean, and no side of all is."""
    if item[0] in SIDES and {"--rows", "--depths"} & {name for name, *_ in line.items}:
        return False
    handed_on = HANDED_ON.get(line.fixed[0], set()) if found.passed else set()
    return item[0] in handed_on or bool(item[0] in SEEN and found.asked)


def _refused(line: Line, found: Outcome) -> None:
    e = found.said["error"]
    if not e["id"].startswith(REFUSALS):
        raise Ignored(f"{e['id']}: {e['message'][:300]}")
    if (
        found.files and "trace" not in line.argv
    ):  # which shows the passes up to the one that refuses
        raise Ignored(f"{found.files[0][0]} was written, then refused: {e['message'][:300]}")
    words = [w for item in line.items for w in item[1:]] + [*line.fixed[1:]]
    if e["id"].startswith("GG-S001"):
        # A gallery kernel's config may not fit what is changed of its problem; a chosen one always does.
        fixed = (
            any("/" in word for word in line.fixed[1:])
            or {*CONFIGS} & {item[0] for item in line.items}
            or "=" in line.fixed[-1]
            or any("=" in item[1] for item in line.items if item[0] == "--beside")
        )
        if not fixed:
            raise Ignored(f"a chosen config is refused: {e['message'][:300]}")
    elif "argument" in e:
        if e["value"] is None and e["allowed"].startswith("is required"):
            return
        if not named(e["argument"], e["message"], _names(line), words):
            raise Ignored(f"names nothing that was given: {e['message'][:300]}")


def _names(line: Line) -> list[str]:
    """What errors may call what was given."""
    kept = inventory.arguments(line.fixed[0])
    found = [str(x.metavar or x.dest) for x in kept.values() if not x.option_strings]
    for option, *values in line.items:
        found += (*kept[option].option_strings, *OTHER_NAMES.get(option, ()))
        if option in ("--set", "--why-not"):
            found.append(values[0].partition("=")[0])
        if option == "--beside":
            found += [x.partition("=")[0] for x in values[0].split(",")]
        if option == "--config":
            found += _fields(values[0])
    return found + [word.partition("=")[0] for word in line.fixed]


def _fields(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


# ---- what says that it was used -------------------------------------------------------------


def _told(line: Line, item: Item, found: Outcome) -> bool:
    """Whether what came out says so: the request has the value, or it is what holds without it."""
    option, *values = item
    if option in PROBLEM or option in SIDES or option in COUNTS:
        return _of_problem(option, values, found.request)
    if option in CONFIGS:
        return _of_config(line, option, values, found)
    if option == "--json":
        return not found.is_text
    if option in TO_TERMINALS:
        return found.is_text and not found.files
    if option == "--color":
        plain = "\x1b" not in str(found.said)
        nothing = (
            plain and line.fixed[0] == "diff" and not re.search("^[+-]", str(found.said), re.M)
        )
        return values[0] == "auto" or (values[0] == "never" and plain) or nothing
    if option == "--only" and values == ["gemmgen"]:
        return [item[0] for item in line.items].count("--only") > 1  # it is there beside others
    if option == "--top" and line.fixed[0] == "explain":
        shown = len(run(*line.as_json()).said["runners_up"])
        return shown == int(values[0]) or shown < int(_default(line.fixed[0], option))  # of all
    if option == "--why-not":  # what the config has already shows nothing besides
        name, _, text = values[0].partition("=")
        config = Config.from_json(run(*line.as_json()).said["why_not"]["config"]).values()
        return name in config and _same(config[name], _read(text))
    if _written(values, found):
        return True
    return bool(values) and values[0] == _default(line.fixed[0], option)


def _written(values: list[str], found: Outcome) -> bool:
    """A file of that name, or in a folder of that name."""
    names = [Path(name) for name, _ in found.files]
    return any(Path(v) in (x, *x.parents) for v in values if v for x in names)


def _unwritten(line: Line, item: Item, found: Outcome) -> bool:
    """Whether a file that must be there is not."""
    writes = item[0] in WRITTEN and found.code == 0 and "--check" not in line.argv
    return writes and not _written([*item[1:]], found)


def _of_problem(option: str, values: list[str], request: dict[str, Any]) -> bool:
    problem, name = request.get("problem", {}), option.lstrip("-").replace("-", "_")
    if not request:
        return False
    if option == "--ab":
        a, _, b = values[0].partition(",")
        return (problem.get("a"), problem.get("b")) == (a, b or a)
    if option in ("--accumulate", "--weights-ready"):
        return problem.get(name) is True
    if option in SIDES:
        return bool(request["shape"]["mnk".index(name)] == int(values[0]))
    if option in COUNTS:
        return bool(request["groups"] == int(values[0]))
    if option == "--epilogue" and values == ["none"]:
        return {*re.findall(r"\w+", json.dumps(problem.get(name)))} <= NO_EPILOGUE
    return str({**OPTIONAL, **problem}.get(name)) == values[0]


def _of_config(line: Line, option: str, values: list[str], found: Outcome) -> bool:
    if option == "--invariant":
        return bool(found.asked) and all(map(_is_invariant, found.requests))
    data = found.request.get("config")
    config = Config.from_json(data).values() if data else {}
    name = option.lstrip("-").replace("-", "_")
    if option in ("--swap-ab", "--watchdog"):
        return config.get(name) is True
    if option == "--split-k":
        return str(config.get("split_k")) == values[0]
    if option == "--set":
        field, _, text = values[0].partition("=")
        return field in config and _same(config[field], _read(text))
    over = {words[0].partition("=")[0] for name, *words in line.items if name == "--set"}
    wanted = {k: v for k, v in _fields(values[0]).items() if k not in over}
    return all(_same(config.get(k), v) for k, v in wanted.items())


def _is_invariant(request: dict[str, Any]) -> bool:
    """Whether its config adds up as those do that follow no M."""
    if "config" not in request:
        return False
    p, (_, n, k) = Problem.from_json(request["problem"]), request["shape"]
    try:
        wanted = invariance.split_of(p, n, k, True)
        invariance.check(p, Config.from_json(request["config"]), k, wanted)
    except GemmgenError:
        return False
    return True


def _same(has: Any, given: Any) -> bool:
    return bool(has == (tuple(given) if isinstance(given, list) else given))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _default(command: str, option: str) -> str | None:
    default = inventory.options(command)[option].default
    default = MEANT.get((command, option)) if default is None else default
    return None if default is None else str(default)
