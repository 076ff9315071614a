"""Which subcommands show how far they are: those whose code leads to a bar, as the sources say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from gemmgen import cli

ROOT = Path(cli.__file__).parent
BAR = {("progress", "Bar"), ("progress", "counted")}
Name = tuple[str, str]  # of a function: its module, and its own


@lru_cache(maxsize=1)
def shows() -> frozenset[str]:
    """Of COMMANDS."""
    calls = {name: found for path in ROOT.glob("*.py") for name, found in used(path)}
    return frozenset(c for c in cli.COMMANDS if leads_to_a_bar((f"{c}_command", "main"), calls))


def leads_to_a_bar(start: Name, calls: dict[Name, set[Name]]) -> bool:
    left, seen = [start], set()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += calls.get(name, ())
    return bool(seen & BAR)


def used(path: Path) -> Iterator[tuple[Name, set[Name]]]:
    """Of each function of a module, what of `gemmgen.cli` it names: its own module's, or what that imports."""
    tree, own = ast.parse(path.read_text()), path.stem
    functions = [x for x in tree.body if isinstance(x, ast.FunctionDef)]
    names = {f.name: (own, f.name) for f in functions}
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for x in node.names:
                known = x.asname or x.name
                if node.module is None:
                    modules[known] = x.name
                else:
                    names[known] = (node.module, x.name)
    for f in functions:
        found = {names[x.id] for x in ast.walk(f) if isinstance(x, ast.Name) and x.id in names}
        dotted = [x for x in ast.walk(f) if isinstance(x, ast.Attribute)]
        of = [(x.value.id, x.attr) for x in dotted if isinstance(x.value, ast.Name)]
        found |= {(modules[module], name) for module, name in of if module in modules}
        yield (own, f.name), found
