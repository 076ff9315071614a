"""What the build refuses of a choice: the next is taken, once, kept, and said; a config that was given is refused."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial

import pytest

import gemmgen
from gemmgen import cli
from gemmgen.cli import bench_entered, compile_command
from gemmgen.config import Config
from gemmgen.epilogues import swiglu
from gemmgen.errors import CompileError, IllegalConfig, UnsupportedProblem
from gemmgen.heuristics import choose, rank
from gemmgen.heuristics.tuned import find, pick
from gemmgen.ir.dtypes import BF16, E4M3, E5M2
from gemmgen.ir.expr import ACC, PerColumn
from gemmgen.ops import building, preparing, refused
from gemmgen.problem import Problem
from gemmgen.runtime import cache, nvrtc
from gemmgen.runtime.nvrtc import Cubin
from gemmgen.target import H200

P = Problem(family="dense", a=BF16, b=BF16)
SHAPE = (1000, 1024, 512)
ARGUMENTS = ("-m", "1000", "-n", "1024", "-k", "512")
TUNED = (4096, 4096, 7168)
SPILLS = "k must not run: 8 bytes of spills. NVRTC said:\nptxas info"
GOOD = b"\x7fELF" + b"\0" * 14 + b"\xbe\x00" + b"code"


@pytest.fixture(autouse=True)
def nothing_known(tmp_path, monkeypatch):
    """No build has refused anything, in this process or on the disk."""
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setattr(building.driver, "require_hopper", lambda device: H200.device_name)
    _forget()
    yield
    _forget()


def _forget():
    refused.forget()
    building.forget_figures()  # of a GPU that another test has calibrated
    building.loaded.cache_clear()


class Compiler:
    """Refuses the kernels that have the tile `bad`, as a compiler would that spills there."""

    def __init__(self, bad, lasting=True):
        self.bad, self.lasting, self.asked = bad, lasting, []

    def __call__(self, source, name, target=H200):
        self.asked.append(name)
        if self.bad in source:
            raise CompileError(SPILLS, lasting=self.lasting)
        facts = {"registers": 0, "spill_bytes": 0, "stack_bytes": 0, "barriers": 0}
        return Cubin(name=name, image=GOOD, seconds=0.1, log="", **facts)


@pytest.fixture(name="compiler")
def compiler_fixture(monkeypatch, request):
    """One for every road to NVRTC, that refuses the tile of the choice."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    c = choose(P, SHAPE, H200)
    made = Compiler(
        f'"block_m": {c.block_m}, "block_n": {c.block_n},', **getattr(request, "param", {})
    )
    monkeypatch.setattr(nvrtc, "compile_cubin", made)
    monkeypatch.setattr(preparing, "compile_cubin", made)
    monkeypatch.setattr(building, "built", partial(building.built, compiler=made))
    monkeypatch.setattr(
        building, "LoadedKernel", lambda kernel, cubin, device: (kernel.name, device)
    )
    return made


def tile(c):
    return c.block_m, c.block_n


# ---- the candidates ---------------------------------------------------------------------------


def sums(c):
    """That a thread holds."""
    return c.block_m * c.block_n // (128 * c.sharing)


def test_the_next_candidate_is_of_another_tile():
    first = choose(P, SHAPE, H200)
    second = choose(P, SHAPE, H200, unbuilt={first: SPILLS})
    assert tile(second) != tile(first)
    ranked = [c.config for c in rank(P, SHAPE, H200)]
    assert second == next(c for c in ranked if 5 * sums(c) <= 4 * sums(first))
    assert choose(P, SHAPE, H200, unbuilt={second: SPILLS}) == first


def test_a_measured_config_that_the_build_refused_is_passed_over():
    first = pick(P, TUNED, H200)
    assert first.row
    second = pick(P, TUNED, H200, unbuilt={first.config: SPILLS})
    assert second.config != first.config
    assert find(P, TUNED, H200.device_name, unbuilt=[first.config]) != first.row


# ---- at run time ------------------------------------------------------------------------------


def test_the_next_choice_is_taken_once_and_said_once(compiler, caplog):
    first = building.chosen(P, SHAPE)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            name, _ = building.loaded_choice(P, SHAPE, 1, 0)
    taken = building.chosen(P, SHAPE)
    assert tile(taken) != tile(first) and f"{taken.block_m}x{taken.block_n}" in name
    assert len(compiler.asked) == 2
    (said,) = [r.getMessage() for r in caplog.records]
    assert str(P.to_json()) in said and str(taken.to_json()) in said
    assert "8 bytes of spills" in said


def test_a_refusal_is_found_by_the_next_process(compiler):
    building.loaded_choice(P, SHAPE, 1, 0)
    taken, asked = building.chosen(P, SHAPE), len(compiler.asked)
    _forget()
    assert building.chosen(P, SHAPE) == taken
    building.loaded_choice(P, SHAPE, 1, 0)
    assert len(compiler.asked) == asked == 2


def test_a_config_that_is_given_is_refused(compiler):
    first = choose(P, SHAPE, H200)
    for count in (1, 1):
        with pytest.raises(CompileError, match="8 bytes of spills"):
            building.loaded(P, first, 0)
        assert len(compiler.asked) == count
    with pytest.raises(CompileError, match="8 bytes of spills"):
        building.compiled(P, first)
    assert len(compiler.asked) == 1


@pytest.mark.parametrize("compiler", [{"lasting": False}], indirect=True)
def test_what_may_build_next_time_is_neither_passed_over_nor_kept(compiler):
    for count in (1, 2):
        with pytest.raises(CompileError):
            building.loaded_choice(P, SHAPE, 1, 0)
        assert len(compiler.asked) == count
    assert not refused.known(P)


def test_a_compiler_that_refuses_all_is_not_asked_for_ever(compiler):
    compiler.bad = "__global__"
    with pytest.raises(UnsupportedProblem, match=r"fits an SM .*8 bytes of spills"):
        building.loaded_choice(P, SHAPE, 1, 0)
    assert 1 < len(compiler.asked) <= refused.MOST


@pytest.mark.parametrize(
    ("says", "kind"),
    [("NVRTC refused k: {}", CompileError), ("k must not run: {}", UnsupportedProblem)],
)
def test_where_no_candidate_is_left_the_first_refusal_is_said(says, kind):
    """If the compiler takes a kernel, but it spills, it is the problem that has no room."""
    configs = [Config(), Config(stages=3)]

    def choose(unbuilt):
        for c in configs:
            if c not in unbuilt:
                return refused.Pick(config=c)
        raise IllegalConfig(gemmgen.passes.check_tile.WGMMA_N, {}, "no more")

    def build(c):
        raise CompileError(says.format(f"{c.stages} bytes"))

    with pytest.raises(kind, match="4 bytes"):
        refused.first_built(P, choose, build)


def test_another_gemmgen_asks_the_compiler_again(compiler, monkeypatch):
    building.loaded_choice(P, SHAPE, 1, 0)
    _forget()
    monkeypatch.setattr(cache.fingerprint, "fingerprint", lambda: "f" * 64)
    building.loaded_choice(P, SHAPE, 1, 0)
    assert len(compiler.asked) == 3  # the cubin is found by its source


def test_a_refusal_that_rotted_is_asked_for_again(compiler, tmp_path):
    building.loaded_choice(P, SHAPE, 1, 0)
    (file,) = (tmp_path / "cache").glob("*.refused")
    data = bytearray(file.read_bytes())
    for place in (3, 60, len(data) - 1):
        data[place] ^= 1
        file.write_bytes(data)
        _forget()
        before = len(compiler.asked)
        building.loaded_choice(P, SHAPE, 1, 0)
        assert len(compiler.asked) == before + 1


# ---- the other roads --------------------------------------------------------------------------


def test_prepare_takes_the_next(compiler):
    made = gemmgen.prepare(P, [SHAPE, (8, 1024, 512)], device=H200.device_name)
    first = choose(P, SHAPE, H200)
    assert len(made.kernels) == 2 and all(tile(c) != tile(first) for _, c in made.kernels)
    assert made.kept == 2 and len(compiler.asked) == 3


def test_pack_takes_the_next(compiler, tmp_path, capsys):
    shape = "x".join(map(str, SHAPE))
    argv = ["pack", "dense", "--shapes", shape, "-o", str(tmp_path / "out"), "--prefix", "some"]
    assert cli.main(argv) == 0
    first = choose(P, SHAPE, H200)
    (cubin,) = (tmp_path / "out").glob("*.cubin")
    assert f"{first.block_m}x{first.block_n}" not in cubin.name and len(compiler.asked) == 2


def test_bench_takes_the_next(compiler, monkeypatch):
    monkeypatch.setattr(bench_entered.driver, "require_hopper", lambda device: H200.device_name)
    argv = ["bench", "dense"]
    args = cli._parser(argv).parse_args(argv)
    _, config, source = bench_entered.for_shape(args, SHAPE)
    assert tile(config) != tile(choose(P, SHAPE, H200)) and source == "cost model"


def test_compile_takes_the_next(compiler, monkeypatch, capsys, caplog):
    monkeypatch.setattr(compile_command, "compile_cubin", compiler)
    argv = ["compile", "dense", *ARGUMENTS, "--json"]
    with caplog.at_level(logging.WARNING):
        assert cli.main(argv) == 0
    (row,) = json.loads(capsys.readouterr().out)
    first = choose(P, SHAPE, H200)
    assert tile(Config.from_json(row["config"])) != tile(first) and len(compiler.asked) == 2
    assert "8 bytes of spills" in caplog.text
    given = json.dumps(first.to_json())
    assert cli.main(["compile", "dense", "--json", "--config", given]) == 1
    assert "8 bytes of spills" in capsys.readouterr().out


def test_tiles_a_little_smaller_are_not_asked_for_one_by_one(monkeypatch):
    """A compiler that takes no tile of more than 64 columns, of which the choice has dozens."""
    asked = []

    def built(c):
        asked.append(c.block_n)
        if c.block_n > 64:
            raise CompileError(SPILLS)
        return c

    picked, made = refused.first_built(
        P, partial(pick, P, (4096, 4096, 4096), H200, 1, "other"), built
    )
    assert picked.config == made and asked[-1] <= 64 and len(asked) <= refused.MOST


# A row's columns have scales of its group's: one tile of it fits an SM, unless its loop is unrolled.
GATED = Problem(
    family="fp8",
    a=E4M3,
    b=E5M2,
    d=E4M3,
    grouping="rows",
    epilogue=swiglu(ACC * PerColumn("scale_b")),
)


@pytest.mark.nvrtc
def test_a_loop_that_spills_unrolled_is_built_as_it_is_written():
    at = (256, 1000, 512)
    next_choice = partial(pick, GATED, at, H200, 1, H200.device_name)
    picked, made = refused.first_built(GATED, next_choice, partial(building.built, GATED))
    *shared, last = refused.known(GATED)
    assert all(c.multicast != "none" for c in shared)  # first with an operand that a cluster shares
    assert replace(last, unroll=1) == picked.config != last
    assert made.cubin.spill_bytes == 0


# ---- what is shown ----------------------------------------------------------------------------


def _explained(capsys, *more):
    assert cli.main(["explain", "dense", *ARGUMENTS, *more]) == 0
    return capsys.readouterr().out


def test_explain_says_what_was_refused_and_what_is_taken(compiler, capsys):
    first = choose(P, SHAPE, H200)
    assert "instead of" not in _explained(capsys)
    building.loaded_choice(P, SHAPE, 1, 0)
    taken = building.chosen(P, SHAPE)
    _forget()
    found = json.loads(_explained(capsys, "--json"))
    assert found["config"] == taken.to_json()
    (said,) = found["refused_by_build"]
    assert said["config"] == first.to_json() and "8 bytes of spills" in said["because"]
    (row,) = [r for r in found["refused"] if "refused_by_build" in r]
    assert row["config"] == first.to_json()
    text = _explained(capsys)
    assert "instead of" in text and "8 bytes of spills" in text and "the build" in text


def test_the_cache_lists_and_verifies_refusals(compiler, capsys):
    building.loaded_choice(P, SHAPE, 1, 0)
    assert cli.main(["cache", "verify"]) == 0
    capsys.readouterr()
    assert cli.main(["cache", "ls"]) == 0
    said = capsys.readouterr().out
    assert "refused by the build" in said and "1 kernels" in said


# ---- with the compiler itself -----------------------------------------------------------------


@pytest.mark.nvrtc
def test_experts_of_wide_layers_have_a_kernel():
    """The default spills with some compilers."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    p = replace(P, grouping="rows")
    made = gemmgen.prepare(p, [(8320, n, 4096) for n in (6144, 7168)], groups=4, device="none")
    assert made.kept == len(made.kernels) >= 1
