"""The classes of errors: each has an id of its own, that stays, and the command shows it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmgen.cli import FAILED, UNAVAILABLE, USAGE, exit_code, main
from gemmgen.cli.errors_command import KINDS
from gemmgen.config import Config
from gemmgen.errors import (
    ArgumentError,
    CacheError,
    DeadlockError,
    IllegalConfig,
    LaunchError,
    RuntimeUnavailable,
    TensorMapError,
)
from gemmgen.ir.dtypes import BF16
from gemmgen.passes import RULES
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import driver, tensor_map

ROOT = Path(__file__).parents[2] / "gemmgen"
# What is published. An id changes or goes nowhere else than here, and that breaks somebody's program.
PUBLISHED = {
    "ArgumentError": "GG-A001",
    "CacheError": "GG-X001",
    "CompileError": "GG-C001",
    "Deadlock": "GG-E004",
    "DeadlockError": "GG-H001",
    "EmulatorError": "GG-E001",
    "GemmgenError": "GG-G001",
    "IRError": "GG-I001",
    "IllegalAccess": "GG-E007",
    "IllegalConfig": "GG-S001",
    "LaunchError": "GG-L001",
    "ProtocolError": "GG-E008",
    "ProtocolViolation": "GG-V002",
    "PtxSyntaxError": "GG-E002",
    "Race": "GG-E005",
    "RuntimeUnavailable": "GG-D001",
    "TensorMapError": "GG-T001",
    "TextDiffers": "GG-V003",
    "Trap": "GG-E009",
    "UninitializedRead": "GG-E006",
    "UnsupportedInstruction": "GG-E003",
    "UnsupportedProblem": "GG-P001",
    "VerificationError": "GG-V001",
}


def subclasses() -> set[str]:
    """The names of all classes of gemmgen that derive from an error of its own, from the source: some modules
    cannot be imported without torch."""
    trees = [ast.parse(path.read_text()) for path in ROOT.rglob("*.py")]
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {cls.name: {b.id for b in cls.bases if isinstance(b, ast.Name)} for cls in found}
    known = {"GemmgenError"}
    while more := {name for name, of in bases.items() if of & known} - known:
        known |= more
    return known


def test_every_class_is_listed_with_an_id_of_its_own():
    assert subclasses() == {kind.__name__ for kind in KINDS} and len(subclasses()) == len(KINDS)
    assert all("id" in vars(kind) for kind in KINDS)
    assert {kind.__name__: kind.id for kind in KINDS} == PUBLISHED
    assert len({*PUBLISHED.values()}) == len(PUBLISHED)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_an_illegal_configs_id_ends_with_the_rules(rule):
    assert IllegalConfig(rule, {}, "").id == f"GG-S001-{rule.id}"


@pytest.mark.parametrize(
    ("argv", "id"),
    (
        (("emit", "dense", "--set", "block_n=7"), "GG-A001"),
        (("emit", "dense", "--set", "stages=16"), "GG-S001-smem-capacity"),
        (
            ("emit", "fp8_1d1d", "--d", "e4m3", "--epilogue", "bias_swiglu", "--grouping", "rows"),
            "GG-P001",
        ),
    ),
)
def test_the_command_shows_the_id(argv, id, capsys):
    assert main([*argv]) == USAGE
    assert re.match(rf"gemmgen: {id}: ", capsys.readouterr().err)
    assert main([*argv, "--json"]) == USAGE
    assert json.loads(capsys.readouterr().out)["error"]["id"] == id


def test_exit_codes():
    found = {kind: exit_code(kind) for kind in (ArgumentError, RuntimeUnavailable, CacheError)}
    assert [*found.values()] == [USAGE, UNAVAILABLE, FAILED]


def test_the_list(capsys):
    assert main(["errors", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {x["type"]: x["id"] for x in listed} == PUBLISHED and all(x["says"] for x in listed)
    assert main(["errors"]) == 0
    assert all(id in capsys.readouterr().out for id in ["GG-A001"])


class Count:
    """A number of the driver's own type."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


class Names:
    def __getattr__(self, name):
        return SimpleNamespace(name=name)


def test_a_tensor_map_that_the_driver_refuses_is_shown_whole(monkeypatch):
    """Its own answer is INVALID_VALUE, whatever is wrong."""
    refusal = (SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"),)
    cu = SimpleNamespace(
        cuTensorMapEncodeTiled=lambda *given: refusal,
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuuint64_t=Count,
        cuuint32_t=Count,
        **dict.fromkeys(
            (f"CUtensorMap{x}" for x in
             ("DataType", "Interleave", "Swizzle", "L2promotion", "FloatOOBfill")), Names()),
    )  # fmt: skip
    for module in (driver, tensor_map):
        monkeypatch.setattr(module, "driver", lambda: cu)
    kernel = lower(Problem(family="dense", a=BF16, b=BF16), Config(stages=2))
    m = kernel.maps[0]
    matrix = tensor_map.Matrix(pointer=4096, outer=72, inner=200, stride=208)
    with pytest.raises(TensorMapError) as e:
        tensor_map.encode(tensor_map.describe(kernel, m, matrix))
    assert issubclass(TensorMapError, LaunchError) and not issubclass(TensorMapError, DeadlockError)
    shown = ("INVALID_VALUE", "BFLOAT16", "[200, 72]", "[416]", "4096", "SWIZZLE_128B")
    assert all(x in str(e.value) for x in shown)
