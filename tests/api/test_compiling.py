"""`gemmgen.compile_to_source` takes a config, or chooses one for a shape as the command line does."""

from __future__ import annotations

import json

import pytest
from kernels import DENSE, FP8

import gemmgen
from gemmgen import pipeline
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.errors import UnsupportedProblem
from gemmgen.heuristics import choose
from gemmgen.problem import Problem
from gemmgen.target import H100, H200

TUNED, NEAR = (4096, 576, 7168), (4090, 576, 7168)
EMITTED = [  # what the command is told, and the problem that says the same
    ("dense", {"a": "bf16", "b": "bf16"}, ()),
    ("dense", {"a": "f16", "b": "f16", "epilogue": "bias_silu"}, ("--ab", "f16", "--epilogue", "bias_silu")),
    ("fp8_block", {"a": "e4m3", "b": "e4m3", "d": "f32"}, ("--d", "f32")),
    ("fp8_block", {"a": "e4m3", "b": "e4m3", "grouping": "masked"}, ("--grouping", "masked")),
]  # fmt: skip
SHAPES = (TUNED, NEAR, (16, 7168, 2048), (1, 1, 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("family", "fields", "words"), EMITTED, ids=lambda x: str(x))
def test_it_chooses_as_the_command_does(capsys, family, fields, words, shape):
    sides = [w for pair in zip(("-m", "-n", "-k"), map(str, shape), strict=True) for w in pair]
    assert main(["emit", family, *words, *sides, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    a = gemmgen.compile_to_source(Problem(family=family, **fields), shape=shape)
    assert (a.source, a.config_from) == (said["source"], said["config_from"])
    assert (a.problem.to_json(), a.config.to_json()) == (said["problem"], said["config"])


def test_the_artifact_says_where_its_config_comes_from(monkeypatch):
    def source(shape):
        return gemmgen.compile_to_source(DENSE, shape=shape).config_from

    assert (source(TUNED), source(NEAR)) == ("tuned", "tuned at M=4096")
    monkeypatch.setenv("GEMMGEN_TUNED", "none")
    assert source(TUNED) == "cost model"
    assert gemmgen.compile_to_source(DENSE, Config()).config_from == "given"


def test_a_config_that_is_given_is_compiled_as_ever():
    made = [
        f(FP8, Config(stages=3)) for f in (gemmgen.compile_to_source, pipeline.compile_to_source)
    ]
    assert made[0].source == made[1].source and made[0].kernel == made[1].kernel
    seen = []
    gemmgen.compile_to_source(FP8, Config(), observer=lambda name, kernel: seen.append(name))
    assert seen[0] == "build" and len(seen) > 20
    assert gemmgen.compile_to_source(FP8, Config(), stamps=8).kernel.stamps == 8


def test_the_choice_is_for_the_target_and_the_groups(monkeypatch):
    """An H100 has an H200's measured config where it waits for the same."""
    moved = gemmgen.compile_to_source(DENSE, target=H100, shape=TUNED).config_from
    assert moved == "tuned on NVIDIA H200"
    monkeypatch.setenv("GEMMGEN_TUNED", "none")
    masked = Problem(family="fp8_block", a="e4m3", b="e4m3", grouping="masked")
    shape = (64, 4096, 7168)
    made = [gemmgen.compile_to_source(masked, shape=shape, groups=g).config for g in (1, 32)]
    assert made == [choose(masked, shape, H200, g) for g in (1, 32)] and made[0] != made[1]


def test_what_no_tile_computes():
    p = Problem(
        family="fp8_1d1d", a="e4m3", b="e4m3", d="e4m3", epilogue="bias_swiglu", grouping="rows"
    )
    with pytest.raises(UnsupportedProblem, match="fits an SM"):
        gemmgen.compile_to_source(p, shape=(100, 2048, 2048))
