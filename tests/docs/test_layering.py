"""Who may import whom. The table is the architecture; change it in an ADR, not in passing."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import gemmgen
from gemmgen.recipes import RECIPES
from gemmgen.runtime import fingerprint

ROOT = Path(__file__).parents[2] / "gemmgen"

COMPILER = {
    "errors": set(),
    "target": set(),
    "notebook": set(),  # what `_repr_html_` of problems, configs and kernels is made of
    "environment": set(),  # names of variables
    "untrusted": {"errors"},  # reads what comes from outside
    "ir": {"errors", "notebook"},
    # Records: which values, what is offered and what it costs; what they do to a kernel is in passes.
    "levers": {"ir", "errors"},
    "config": {"errors", "notebook", "levers"},
    "activations": {"ir"},
    "epilogues": {"ir", "errors", "activations"},
    "recipes": {"errors", "ir"},  # what the sums of a family are
    "problem_checks": {"ir", "errors", "recipes"},  # what fields may be beside others
    "problem": {"ir", "errors", "epilogues", "notebook", "recipes", "problem_checks"},
    "schedulers": {"ir"},
    # In which order an element is added up, of any config: a fact about levers, asked by the choice and by tests.
    "summation": {"ir", "config", "levers", "problem", "recipes", "target"},
    # families, passes and emit never import each other: that is the whole architecture.
    "families": {
        *["ir", "errors", "config", "levers", "problem", "recipes", "epilogues", "schedulers"]
    },
    "passes": {"ir", "errors", "target", "levers"},
    "emit": {"ir", "errors"},
    "casts": {"ir", "errors", "emit"},  # kernels that quantise; nothing of them is lowered
    "routing": {"ir", "errors", "emit"},  # nor of those that give copies rows by expert
    "combining": {"ir", "errors", "emit"},  # nor of those that add up experts' results
    "selecting": {"ir", "errors", "emit"},  # nor of those that choose experts
    "largest": {"ir", "errors", "emit"},  # nor of those that find rows' largest numbers
    "spreading": {"ir", "errors", "emit"},  # nor of those that copy tokens to experts' rows
    "pairing": {"ir", "errors", "emit"},  # nor of those that split FP32 into pairs
    "unpacking": {"ir", "errors", "emit"},  # nor of those that write out weights of 4 bits
    "pipeline": {
        *["ir", "errors", "target", "config", "problem", "families", "passes", "emit", "check"],
        *["link", "notebook"],
    },
    "cost_terms": set(),
    "cost_launch": {"ir", "errors", "target", "levers", "config", "problem", "recipes", "passes"},
    "cost_fit": set(),
    "cost_stream": {"target"},  # of launches that multiply nothing
    "cost_direct": {"config", "levers", "cost_terms", "cost_launch", "cost_fit"},
    "cost_edge": {"ir", "config", "cost_terms", "cost_launch", "cost_fit"},
    "cost_rates": {"target", "problem", "cost_fit"},
    "cost_ranks": {"ir", "config", "cost_terms", "cost_launch", "cost_fit"},
    "cost": {
        *["ir", "errors", "target", "config", "problem", "recipes", "passes", "pipeline"],
        *[
            "cost_terms",
            "cost_launch",
            "cost_fit",
            "cost_direct",
            "cost_edge",
            "cost_ranks",
            "cost_rates",
            "levers",
        ],
    },
    "heuristics": {
        *["ir", "errors", "target", "config", "problem", "passes", "pipeline", "cost", "untrusted"],
        *["environment", "recipes", "summation", "levers"],
        "cost_launch",  # many configs of one launch are priced
    },
    # Whether a collective in the launch pays: of the config that is chosen with it, and of the one without.
    "cost_link": {
        *["ir", "errors", "target", "problem", "cost_launch", "cost_ranks", "heuristics"],
    },
    "gallery": {"ir", "errors", "target", "config", "problem", "recipes", "epilogues", "pipeline"},
}
CHECKS = {
    "check": {"ir", "errors", "schedulers"},
    "link": {"ir", "errors"},  # reads text; never what emits it
    "emulator": {"errors"},  # knows PTX, and nothing of gemmgen
    "codes": {"ir"},  # bit patterns and the numbers they stand for
    "formats": {"ir", "errors", "codes"},  # what weights of 4 bits stand for, exactly
    "verification": {
        *["ir", "errors", "config", "problem", "recipes", "epilogues", "codes", "formats"],
    },
}
# runtime/gpu.py and emulated.py are machines that verification puts kernels on trial on; it knows neither.
RUNTIME = {
    "runtime": {
        *["ir", "errors", "target", "casts", "verification", "emulator", "notebook", "environment"],
        "codes",
    }
}
# Shows what the compiler decided. Where a swizzle puts a byte it asks the emulator, as the tests do; what each
# agent does, operation by operation, it asks the proof.
SEE = {"see": {*COMPILER, "emulator", "check"}}
# Ahead of time: what the compiler made, its cubins and the C code that launches them. It describes tensor maps
# with the runtime's own rules, and launches nothing.
PACK = {
    "pack": {
        *["ir", "errors", "target", "config", "problem", "recipes", "pipeline", "emit", "runtime"]
    }
}
TOP = {
    "ops": {*COMPILER, *RUNTIME},
    "torch_ops": {
        *["ir", "errors", "config", "epilogues", "problem", "recipes", "runtime", "ops"],
        "cost_link",  # whether one launch pays
        *["formats", "quant"],  # the CPU multiplies by the numbers of packed weights
    },
    # Weights of 4 bits from checkpoints, as torch tensors.
    "quant": {"ir", "errors", "untrusted", "codes", "formats", "unpacking", "runtime"},
    # Modules of torch: what `torch_ops` is to functions.
    "nn": {"errors", "ir", "runtime", "ops", "torch_ops", "formats", "quant"},
    # Checkpoints of 4 bits into files that such modules load.
    "repacking": {"errors", "untrusted", "ir", "runtime", "formats", "quant", "nn"},
    "compat": {
        "ir",
        "errors",
        "target",
        "problem",
        "runtime",
        "ops",
        "environment",  # whether a process is told to serve another library's name
        *[
            "nn",
            "formats",
            "quant",
            "repacking",
        ],  # what other libraries' ways of changing a model put into it
    },  # other libraries' names for ops
    "bench": {*COMPILER, *RUNTIME, *CHECKS, "ops", "quant"},
    "cli": {*COMPILER, *RUNTIME, *CHECKS, *SEE, *PACK, "ops", "bench", "quant", "repacking"},
    "__main__": {"cli"},
    # What chooses a config as `ops` does, and compiles no more than the pipeline.
    "compiling": {"config", "errors", "passes", "pipeline", "problem", "target", "ops"},
    "__init__": set(COMPILER)
    | {"ops", "compiling", "bench"},  # lazily: importing gemmgen loads no numpy, cuda or torch
}
ALLOWED = COMPILER | CHECKS | RUNTIME | SEE | PACK | TOP
MODULES = sorted(ROOT.rglob("*.py"))


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.AST, package: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Absolute module paths that `tree`, in gemmgen's sub-package `package`, imports anywhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            here = ("gemmgen", *package[: len(package) - node.level + 1]) if node.level else ()
            base = (*here, *(node.module.split(".") if node.module else ()))
            found |= {(*base, alias.name) for alias in node.names}
    return found


@cache
def imports_of(path: Path) -> set[tuple[str, ...]]:
    return imported(ast.parse(path.read_text()), path.relative_to(ROOT).parts[:-1])


def layers_imported(path: Path) -> set[str]:
    inside = {name[1] for name in imports_of(path) if name[0] == "gemmgen" and len(name) > 1}
    return inside - {layer(path), "__version__"}  # a constant of the package itself


@pytest.mark.parametrize(
    ("source", "package", "name"),
    (
        ("from . import dense", ("families",), ("gemmgen", "families", "dense")),
        ("from ..ir.nodes import Kernel", ("passes",), ("gemmgen", "ir", "nodes", "Kernel")),
        ("from .. import passes", ("families",), ("gemmgen", "passes")),
        ("from . import passes", (), ("gemmgen", "passes")),
        ("def f():\n  from .emit import emit", (), ("gemmgen", "emit", "emit")),
        ("import gemmgen.emit", ("passes",), ("gemmgen", "emit")),
        ("from gemmgen.emit import emit", ("passes",), ("gemmgen", "emit", "emit")),
    ),
)
def test_every_spelling_of_an_import_is_seen(source, package, name):
    assert imported(ast.parse(source), package) == {name}


def long(source: str) -> list[str]:
    """What of it is longer than house rule 5 allows: the file, or functions."""
    nodes = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.FunctionDef)]
    found = [x.name for x in nodes if x.end_lineno - x.lineno >= 60]
    return found + ["the file"] * (len(source.splitlines()) > 300)


def test_what_is_long_is_seen():
    body = "    x = 1\n"
    assert long("def f():\n" + 59 * body) == []
    assert long("def f():\n" + 60 * body) == ["f"]
    assert long("def f():\n" + 300 * body) == ["f", "the file"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_sources_are_small(path):
    assert not long(path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_layering(path):
    assert layer(path) in ALLOWED, "a new layer: give it a row in the table"
    extra = layers_imported(path) - ALLOWED[layer(path)]
    assert not extra, f"{path.relative_to(ROOT)} may not import {sorted(extra)}"


def test_a_kernel_passes_through_no_layer_that_its_fingerprint_leaves_out():
    """From what makes it, and what finds it, to all that they import, at whatever time."""
    by_name = {name_of(path): path for path in MODULES}
    left = [("gemmgen", "pipeline"), ("gemmgen", "runtime", "cache_index")]
    found: set[tuple[str, ...]] = set()
    while left:
        name = left.pop()
        if name not in by_name or name in found:
            continue
        found.add(name)
        left += [x[:i] for x in imports_of(by_name[name]) for i in range(2, len(x) + 1)]
    assert {name[1] for name in found} >= {"passes", "check", "emit", "link", "families", "runtime"}
    assert not {name[1] for name in found} & {*fingerprint.BESIDE}
    assert {*fingerprint.BESIDE} <= {layer(path) for path in MODULES}


def name_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def at_run_time(tree: ast.Module) -> ast.Module:
    """`tree` without what only a type checker reads."""

    class Without(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            typed = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if typed else self.generic_visit(node)

    return Without().visit(tree)


OF_MODULES = {  # what torch's layers are converted to, and experts multiply in: a width, no family
    "nn/kinds.py": "fp8",
    "torch_ops/moe_checks.py": "fp8",
}


def test_nothing_but_families_asks_which_family_it_is():
    """Their names are in `families`, and in `recipes`, where every other layer reads what it needs to know of one."""
    named = {
        f"{path.relative_to(ROOT)} line {node.lineno}: {node.value!r}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent.name != "families" and path != ROOT / "recipes.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in RECIPES
        if OF_MODULES.get(str(path.relative_to(ROOT))) != node.value
    }
    assert not named


def test_no_module_imports_itself_by_way_of_others():
    """At whatever time: an import inside a function that closes a circle would hide one."""
    by_name = {name_of(path): path for path in MODULES}
    below = {}
    for name, path in by_name.items():
        found, text = imports_of(path), path.read_text()
        if "TYPE_CHECKING" in text:
            found = imported(at_run_time(ast.parse(text)), path.relative_to(ROOT).parts[:-1])
        ours = (x for x in found if x[0] == "gemmgen")
        # `from .x import y` is of module x.y if there is one, else of x.
        below[name] = {x if x in by_name else x[:-1] for x in ours} & {*by_name} - {name}
    TopologicalSorter(below).prepare()  # raises CycleError, which names the circle


def test_a_circle_is_seen():
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
    tree = at_run_time(ast.parse("if TYPE_CHECKING:\n  import a\nif x:\n  import b"))
    assert imported(tree, ()) == {("b",)}


def test_the_table_has_no_cycles():
    done: set[str] = set()
    while ready := {name for name, below in ALLOWED.items() if below <= done} - done:
        done |= ready
    assert done == set(ALLOWED), f"in a cycle: {sorted(set(ALLOWED) - done)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_runtime_and_what_stands_on_it_touch_torch_and_cuda(path):
    outside = {name[0] for name in imports_of(path)}
    if layer(path) in COMPILER | PACK:
        assert not outside & {"torch", "cuda", "numpy"}
    if layer(path) in CHECKS | SEE:
        top = ast.parse(path.read_text()).body
        at_module_level = {n[0] for statement in top for n in module_level(statement)}
        assert not at_module_level & {"torch", "cuda"}
    if layer(path) != "emit":
        assert "jinja2" not in outside


def module_level(statement: ast.stmt) -> set[tuple[str, ...]]:
    inside_a_function = ast.FunctionDef | ast.ClassDef
    return set() if isinstance(statement, inside_a_function) else imported(statement, ())


@pytest.mark.parametrize("module", ("gemmgen", "gemmgen.pipeline", "gemmgen.heuristics"))
def test_importing_the_compiler_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*sorted({{'torch', 'cuda', 'numpy'}} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


def test_tests_stand_by_what_they_test():
    """In folders that CONTRIBUTING.md names, each module's name once: they are imported by it."""
    files = sorted((ROOT.parent / "tests").rglob("test_*.py"))
    said = (ROOT.parent / "CONTRIBUTING.md").read_text()
    assert not [
        f for f in files if f.parent.parent.name != "tests" or f"`{f.parent.name}`" not in said
    ]
    assert len({f.name for f in files}) == len(files)


def classes() -> dict[str, list[str]]:
    """Where each class name is defined."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    return found


def test_a_public_name_and_the_irs_mean_one_thing():
    """Of the program's objects and of the IR's own modules; what the proof and the emulator do with a statement has its name."""
    found = classes()
    public = [found[name] for name in (*gemmgen.__all__, "Groups") if name in found]
    of_ir = [[x for x in places if x.startswith("ir/")] for places in found.values()]
    assert not [places for places in (*public, *of_ir) if len(places) > 1]
