"""`gemmgen cache`: the compiled kernels on the disk. Needs neither NVRTC nor a GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CacheError
from ..runtime.cache import NONE, Places, places
from ..runtime.cache_files import SUFFIX
from ..runtime.cache_survey import Item, shrink, survey

ACTIONS = {
    "ls": "the kernels in every directory, with their damage if any",
    "verify": "as ls, but only what is damaged; exit code 1 if anything is",
    "gc": "remove from your directory what was used longest ago, down to --bytes (default: its limit)",
    "dir": "the directories, and whether they can be used",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    says = "\n".join(f"  {name:<8}{text}" for name, text in ACTIONS.items())
    parser.description = f"{parser.description}\n\n{says}"
    parser.add_argument(
        "action", metavar="ACTION", help=f"one of {', '.join(ACTIONS)}", offers=ACTIONS
    )
    parser.add_argument("--bytes", type=int, metavar="N", help="gc: keep at most so many")
    parser.add_argument("--all", action="store_true", help="gc: keep none")


def main(args: argparse.Namespace) -> int:
    if args.action not in ACTIONS:
        raise ArgumentError("ACTION", args.action, f"must be one of {', '.join(ACTIONS)}")
    for name, given in (("--bytes", args.bytes is not None), ("--all", args.all)):
        if given and args.action != "gc":
            raise ArgumentError(name, getattr(args, name[2:]), "is for gc only")
    actions = {"ls": _list, "verify": _verify, "gc": _collect, "dir": _directories}
    return actions[args.action](args, places())


def _list(args: argparse.Namespace, where: Places) -> int:
    items, refused = _surveyed(where)
    if args.json:
        print(json.dumps({"entries": [*map(_described, items)], "refused": refused}, indent=2))
        return 0
    for item in items:
        print(_line(item))
    _print_total(items, where)
    _print_refused(refused)
    return 0


def _verify(args: argparse.Namespace, where: Places) -> int:
    items, refused = _surveyed(where)
    damaged = [item for item in items if item.damage]
    if args.json:
        found = {"entries": len(items), "damaged": [*map(_described, damaged)], "refused": refused}
        print(json.dumps(found, indent=2))
    else:
        for item in damaged:
            print(_line(item))
        _print_refused(refused)
        print(f"{len(items)} verified, {len(damaged)} damaged")
    return int(bool(damaged or refused))


def _collect(args: argparse.Namespace, where: Places) -> int:
    if args.all and args.bytes is not None:
        raise ArgumentError("--bytes", args.bytes, "cannot be given with --all")
    if args.bytes is not None and args.bytes < 0:
        raise ArgumentError("--bytes", args.bytes, "must be at least 0")
    limit = 0 if args.all else where.limit if args.bytes is None else args.bytes
    removed = shrink(where.own, limit) if where.own else ()
    size = sum(e.size for e in removed)
    if args.json:
        print(json.dumps({"removed": [e.key for e in removed], "bytes": size}, indent=2))
    else:
        print(f"{len(removed)} files removed, {size} bytes")
    return 0


def _directories(args: argparse.Namespace, where: Places) -> int:
    rows = [
        {"path": str(p), "use": "own" if p == where.own else "shared", "state": _state(p)}
        for p in where.all
    ]
    if args.json:
        print(json.dumps({"directories": rows, "limit": where.limit}, indent=2))
        return 0
    for row in rows:
        print(f"{row['use']:<7} {row['path']}  ({row['state']})")
    if not rows:
        print(NONE)
    return 0


def _state(path: Path) -> str:
    try:
        found = survey(path)
    except CacheError as e:
        return f"refused: {e}"
    return f"{_kernels(found)} kernels" if path.exists() else "missing"


def _kernels(items: Iterable[Item]) -> int:
    return sum(item.stored.suffix == SUFFIX for item in items)


def _surveyed(where: Places) -> tuple[list[Item], dict[str, str]]:
    """The entries of all directories that can be used, and why others cannot."""
    items: list[Item] = []
    refused: dict[str, str] = {}
    for path in where.all:
        try:
            items += survey(path)
        except CacheError as e:
            refused[str(path)] = str(e)
    return items, refused


def _described(item: Item) -> dict[str, Any]:
    """Times of use in nanoseconds since 1970, as the file system keeps them."""
    found: dict[str, Any] = {"key": item.stored.key, "folder": str(item.folder)}
    found |= {"bytes": item.stored.size, "used_ns": item.stored.used}
    if item.launch:
        return {**found, "name": item.launch.name, "launches": item.launch.key}
    if item.refused:
        return {**found, "name": item.refused["name"], "refused": item.refused["text"]}
    if item.entry is None:
        return {**found, "damage": item.damage}
    e, c = item.entry, item.entry.cubin
    found |= {"name": c.name, "arch": e.arch, "nvrtc": e.compiler, "cubin_bytes": len(c.image)}
    return {**found, "registers": c.registers, "seconds": c.seconds}


def _line(item: Item) -> str:
    head = f"{item.stored.key[:12]}  {item.stored.size:>8}  {_time(item.stored.used)}"
    if item.launch:
        return f"{head}  launch of {item.launch.key[:12]}, {item.launch.name}"
    if item.refused:
        return f"{head}  refused by the build: {item.refused['name']}"
    if item.entry is None:
        file = item.folder / f"{item.stored.key}{item.stored.suffix}"
        return f"{head}  damaged: {item.damage} ({file})"
    return f"{head}  {item.entry.cubin.name}"


def _time(nanoseconds: int) -> str:
    try:
        when = datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc)
    except (ValueError, OverflowError, OSError):  # a file system may hold any year
        return "????-??-?? ??:??"
    return when.strftime("%Y-%m-%d %H:%M")


def _print_total(items: list[Item], where: Places) -> None:
    size = sum(item.stored.size for item in items)
    print(f"{_kernels(items)} kernels, {size} bytes in {where.own or NONE}")


def _print_refused(refused: dict[str, str]) -> None:
    for path, why in refused.items():
        print(f"not used: {path}: {why}")
