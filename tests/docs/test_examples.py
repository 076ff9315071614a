"""Every example runs, as a reader runs it, and shows what it says it shows."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmgen.errors import RuntimeUnavailable
from gemmgen.runtime import nvrtc

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SHOWS = {  # what an example's output must hold
    "call_from_c.py": ("ffn.h", "pack.json"),
    "compare_configs.py": ("the model's", "smem-capacity"),
    "emit_and_read.py": ("P1", "role producer", "__global__"),
    "grouped_experts.py": ("(70, 0, 160) rows: 3 launches",),
    "new_epilogue.py": ("soft_cap", "P1", "of its bound"),
    "new_lever.py": ("P1", "to the bit: True", "us of True"),
    "new_order.py": ("ends: P1", "to the bit: True", "order lines"),
    "new_family.py": ("P1", "to the bit: True", "Accumulate, Arrive"),
}
NO_NVRTC = ("compare_configs.py", "emit_and_read.py")


def need_nvrtc():
    try:
        nvrtc.bindings()
    except RuntimeUnavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", SHOWS)
def test_example_runs(tmp_path, name):
    if name not in NO_NVRTC:
        need_nvrtc()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GEMMGEN_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, str(FOLDER / name)]
    ended = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode in ((0, 3) if name == "call_from_c.py" else (0,)), ended.stderr
    assert not [words for words in SHOWS[name] if words not in ended.stdout], ended.stdout


def test_models_choice_is_the_cheapest():
    """What the example prints first is what the model chose, and the refused one is last."""
    sys.path.insert(0, str(FOLDER))
    try:
        import compare_configs
    finally:
        sys.path.remove(str(FOLDER))
    rows = compare_configs.compare()
    assert rows[0].name == "the model's" and rows[-1].seconds is None
    assert [r.seconds for r in rows[:-1]] == sorted(r.seconds for r in rows[:-1])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_is_valid(path):
    """The schema's required fields (nbformat 4.5); executed from the top."""
    book = json.loads(path.read_text())
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"])
        assert cell["cell_type"] in ("markdown", "code") and cell["metadata"] == {}
        assert all(isinstance(line, str) for line in cell["source"])
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert all(cell["outputs"] for cell in code)
    shown = {kind for cell in code for out in cell["outputs"] for kind in out.get("data", ())}
    assert shown >= {"image/svg+xml", "text/html"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_has_the_outputs_that_jupyter_makes(path):
    """All of them: no cell shows a time, or anything of this machine. On failure: python -m docs.tools.notebook."""
    need_nvrtc()
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    from docs.tools.notebook import executed, text_of

    assert text_of(executed(path)) == path.read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_imports_what_is_documented(path):
    """Names of the API reference, or that gemmgen itself has."""
    pages = "\n".join(p.read_text() for p in (ROOT / "docs/api").glob("*.md"))
    documented = re.findall(r"^::: ([\w.]+)$", pages, re.M)
    for cell in json.loads(path.read_text())["cells"]:
        tree = ast.parse("".join(cell["source"]) if cell["cell_type"] == "code" else "")
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Import)
            if isinstance(node, ast.ImportFrom) and node.module != "gemmgen":
                names = {f"{node.module}.{x.name}" for x in node.names}
                assert node.module in documented or names <= {*documented}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_runs(path, capsys):
    """Cell by cell in one namespace; the value of a cell's last line is shown as a notebook shows it."""
    need_nvrtc()
    names: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            shown.append(value_of("".join(cell["source"]), names))
    pictures = [v._repr_svg_() for v in shown if hasattr(v, "_repr_svg_")]
    assert pictures and all(p.startswith("<svg") for p in pictures)
    assert "bit by bit" in capsys.readouterr().out


def value_of(source: str, names: dict[str, object]) -> object:
    """Execute a cell; the value of its last expression, or None."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_all_are_listed_and_tested():
    """Every row of README.md is a file; each program is run here, or in a test that names it."""
    listed = set(re.findall(r"\]\(([\w.]+)\)", (FOLDER / "README.md").read_text()))
    here = {p.name for p in FOLDER.iterdir() if p.suffix in (".py", ".ipynb")}
    assert listed <= here
    others = [p for p in (ROOT / "tests").glob("*/test_*.py") if p.name != Path(__file__).name]
    named = "\n".join(p.read_text() for p in others)
    untested = here - set(SHOWS) - {p.name for p in NOTEBOOKS}
    assert not [name for name in untested if Path(name).stem not in named]
