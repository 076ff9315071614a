"""A command line that was run: was each thing that it gave used, or refused by name?"""

from __future__ import annotations

import json
from typing import Any

from gemmgen import cli
from gemmgen.config import Config
from gemmgen.problem import Problem

from .lines import KERNEL, SIDES, Item, Line
from .model import REFUSALS, Ignored, Tally, named
from .running import Outcome, run

OPTIONAL = {"grouping": "none", "alignment": Problem.alignment, "accumulate": False}
SEEN = {*KERNEL, *SIDES, "--groups"}  # what a request shows, also where nothing is printed
OTHER_NAMES = {"--ab": ("a", "b"), "--swap-ab": ("swap_ab",), "--watchdog": ("watchdog",)}
POSITIONAL = {"layout": ("KERNEL", "WHAT"), "host": ("what",), "cache": ("ACTION",)}
EMPTY = {"cache"}  # finds nothing here that its options could change
CONFIGS = {"--config", "--set", "--swap-ab", "--split-k", "--watchdog"}


def judge(line: Line, tally: Tally) -> None:
    """Raises Ignored."""
    found = run(*line.argv)
    if found.broke:
        raise Ignored(found.broke)
    if found.code == 2:
        tally.refused += 1
        return _refused(line, found)
    if found.code not in (0, 3):
        raise Ignored(f"exit code {found.code}: {json.dumps(found.said)[:300]}")
    if found.code == 0:
        tally.used += 1
    else:
        tally.missing += 1
    for at, item in enumerate(line.items):
        if line.fixed[0] in EMPTY or (found.code == 3 and (item[0] not in SEEN or not found.asked)):
            continue  # read by what this campaign has not: tests/api/test_given.py has a row for each
        if not _told(line, item, found) and found.like(run(*line.without(at))):
            raise Ignored(f"{' '.join(item)} was ignored")
    return None


def _refused(line: Line, found: Outcome) -> None:
    e = found.said["error"]
    if not e["id"].startswith(REFUSALS):
        raise Ignored(f"{e['id']}: {e['message'][:300]}")
    words = [w for item in line.items for w in item[1:]] + [*line.fixed[1:]]
    if e["id"].startswith("GG-S001"):
        # A gallery kernel's config may not fit what is changed of its problem; a chosen one always does.
        fixed = (
            any("/" in word for word in line.fixed[1:])
            or CONFIGS & {item[0] for item in line.items}
            or "=" in line.fixed[-1]
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
    found = list(POSITIONAL.get(line.fixed[0], ("KERNEL",)))
    for option, *value in line.items:
        found += (option, *OTHER_NAMES.get(option, ()))
        if option in ("--set", "--why-not"):
            found.append(value[0].partition("=")[0])
        if option == "--config":
            found += _fields(value[0])
    return found + [word.partition("=")[0] for word in line.fixed]


def _fields(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _told(line: Line, item: Item, found: Outcome) -> bool:
    """Whether what came out says so: the request has the value, or it is what holds without it."""
    option, *value = item
    request = found.request
    problem = request.get("problem", {})
    config = Config.from_json(request["config"]).values() if "config" in request else {}
    name = option.lstrip("-").replace("-", "_")
    if option == "--ab":
        a, _, b = value[0].partition(",")
        return (problem.get("a"), problem.get("b")) == (a, b or a)
    if option in ("--accumulate", "--weights-ready", "--swap-ab", "--watchdog"):
        return {**problem, **config}.get(name) is True
    if option == "--split-k":
        return str(config.get("split_k")) == value[0]
    if option == "--set":
        field, _, text = value[0].partition("=")
        return field in config and _same(config[field], _read(text))
    if option == "--config":
        wanted = _fields(value[0])
        return all(_same(config.get(k), v) for k, v in wanted.items()) or "--set" in [
            i[0] for i in line.items
        ]
    if option in KERNEL:
        return str({**OPTIONAL, **problem}.get(name)) == value[0]
    if option in SIDES and request:
        return request["shape"]["mnk".index(name)] == int(value[0])
    if option == "--groups" and request:
        return request["groups"] == int(value[0])
    if option == "--top":
        return len(found.said["runners_up"]) <= int(value[0])
    return bool(value) and value[0] == _default(line.fixed[0], option)


def _same(has: Any, given: Any) -> bool:
    return bool(has == (tuple(given) if isinstance(given, list) else given))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _default(command: str, option: str) -> str | None:
    parser = cli.subcommands(cli._parser([command]))[command]
    action = next(x for x in parser._actions if option in x.option_strings)
    return None if action.default is None else str(action.default)
