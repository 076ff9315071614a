"""The recipes of docs/extending.md: their diffs are applied to a copy of the sources, and what they say works is run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/extending.md").read_text()
SECTIONS = dict(section.split("\n", 1) for section in TEXT.split("\n## ")[1:])
COPIED = ("gemmgen", "templates", "tests", "docs/tools", "pyproject.toml")

# What each recipe is applied after, and the commands that it says work then.
RECIPES = {
    "A dtype": (
        (),
        ("gemmgen emit dense --ab u8 --d s32", "pytest tests/ir/test_ir.py -k dtype_table"),
    ),
    "An epilogue": ((), ("gemmgen compile dense --epilogue softcap",)),
    "An order of tiles": ((), ("gemmgen compile fp8_block --set order=lines",)),
    "A family": ((), ("gemmgen compile fp8_row --epilogue scaled", "gemmgen compile fp8_row/base")),
    "A pass": ((), ("pytest tests/passes/test_passes.py --update-golden -k order_loads",)),
    "A lever": (("A pass",), ("gemmgen compile fp8_block --set large_first=true",)),
    "A statement": (
        (),
        (
            "pytest tests/emit/test_emit.py --update-golden -k prefetch",
            "pytest tests/emit/test_templates.py -k one_to_one",
            "pytest tests/emit/test_link.py -k has_a_meaning",
        ),
    ),
}


def blocks(section: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", SECTIONS[section], re.M | re.S)
    return [dedent(re.sub(rf"^{indent}", "", text, flags=re.M)) for indent, text in found]


def applied(block: str, root: Path) -> None:
    """A block names its file in its first line. Lines that stand together there stand together here; one hunk of new
    lines makes a file."""
    head, *lines = block.splitlines()
    path = root / head.removeprefix("+++ ")
    assert head.startswith("+++ ") and lines, head
    ends = [-1, *(i for i, x in enumerate(lines) if not x), len(lines)]
    hunks = [lines[i + 1 : j] for i, j in pairwise(ends)]
    if not path.exists():
        assert len(hunks) == 1 and all(x[0] == "+" for x in lines), f"{head}: there is no such file"
        path.write_text("".join(f"{x[1:]}\n" for x in lines))
        return
    text = path.read_text()
    for hunk in hunks:
        old, new = ("".join(f"{x[1:]}\n" for x in hunk if x[0] in of) for of in (" -", " +"))
        assert old and f"\n{text}".count(f"\n{old}") == 1, f"{head}: not once in it:\n{old}"
        text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
    path.write_text(text)


def run(command: str, root: Path) -> str:
    words = shlex.split(command)
    cache = {"PYTHONPATH": str(root), "GEMMGEN_CACHE": str(root / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=root,
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_recipe_is_there():
    """With diffs: the others are run below; and what is run is what its text says."""
    assert {x for x in SECTIONS if blocks(x, "diff")} == {*RECIPES}
    for name, (_, commands) in RECIPES.items():
        said = [c for c in commands if c.startswith("gemmgen") or "--update-golden" in c]
        assert said
        assert not [c for c in said if f"`{c}`" not in SECTIONS[name].replace("python -m ", "")]


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works(name, tmp_path):
    after, commands = RECIPES[name]
    for each in COPIED:
        if (ROOT / each).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / each, tmp_path / each, ignore=ignored)
        else:
            shutil.copy(ROOT / each, tmp_path)
    goldens = {*(tmp_path / "tests/golden").rglob("*.txt")}
    for section in (*after, name):
        for block in blocks(section, "diff"):
            applied(block, tmp_path)
    for command in commands:
        run(command, tmp_path)
    made = {*(tmp_path / "tests/golden").rglob("*.txt")} - goldens
    texts = [f"\n{p.read_text()}" for p in made]
    for block in blocks(name, "text"):
        assert any(f"\n{block}" in text for text in texts), block
