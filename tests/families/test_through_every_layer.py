"""What a program adds in one file, a lever, a family, an order, an epilogue, through every layer: with no other file
changed it is emitted, proved, verified, explained, priced, tried by the tuner, planned by the benchmark, reported and
packed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from emulated import judged
from fake_torch import fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import DENSE, FP8
from numpy import array

from gemmgen import cli
from gemmgen.bench import cases, providers, work
from gemmgen.bench.data import NORMAL
from gemmgen.bench.tuning.candidates import candidates
from gemmgen.bench.tuning.jobs import Job
from gemmgen.check import check
from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.families import FAMILIES
from gemmgen.gallery import GALLERY, path_of
from gemmgen.heuristics import choose
from gemmgen.ir.orders import ORDERS
from gemmgen.ir.text import dump
from gemmgen.levers import FIELDS, LEVERS, MORE, TAKEN, add
from gemmgen.pack import pack
from gemmgen.pack.render import files
from gemmgen.passes import PIPELINE, steps
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.problem import Problem
from gemmgen.recipes import RECIPES
from gemmgen.target import H200
from gemmgen.verification.reference import bound

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import new_epilogue
import new_family
import new_lever
import new_order

sys.path.pop(0)
TABLES = (EPILOGUES, FAMILIES, RECIPES, ORDERS, FIELDS, MORE)
GENERATED = Path(__file__).parents[2] / "generated"
SHAPE, SMALL = (4096, 4096, 4096), (200, 264, 384)


@dataclass(frozen=True)
class Added:
    """problem, config: a kernel that has it. like: the same without. says: how the command line asks for it. shows: its
    word in tables, "" if a problem's are not there. exact: whether random data are judged to the bit."""

    program: Any
    problem: Problem
    config: Config
    like: tuple[Problem, Config]
    says: tuple[str, ...]
    shows: str = ""
    exact: bool = True


SMALL_TILE = Config(block_m=64, block_n=64, consumers=1)
CAPPED = replace(DENSE, epilogue=new_epilogue.SOFT_CAP)


def added() -> dict[str, Added]:
    """Once they are known."""
    late, fp8_late = SMALL_TILE.having(late=True), replace(FP8, family="fp8_late")
    lines = replace(SMALL_TILE, order="lines")
    return {
        "lever": Added(new_lever, FP8, late, (FP8, SMALL_TILE), ("fp8_block",), "released late"),
        "family": Added(new_family, fp8_late, SMALL_TILE, (replace(FP8, family="fp8"), SMALL_TILE), ("fp8_late",)),
        "order": Added(new_order, FP8, lines, (FP8, SMALL_TILE), ("fp8_block",), "order lines"),
        "epilogue": Added(new_epilogue, CAPPED, SMALL_TILE, (DENSE, SMALL_TILE), ("dense", "--epilogue", "soft_cap"), exact=False),
    }  # fmt: skip


@pytest.fixture(name="x", params=("lever", "family", "order", "epilogue"))
def x_fixture(request):
    """One of them, known as long as the test runs."""
    before, levers = [dict(t) for t in TABLES], list(LEVERS)
    for program in (new_lever, new_family, new_order, new_epilogue):
        program.register()
    yield added()[request.param]
    LEVERS[:] = levers
    for table, kept in zip(TABLES, before, strict=True):
        table.clear()
        table.update(kept)


def asked(x, *more):
    return [*x.says, "--config", json.dumps(x.config.to_json()), *more]


def test_it_is_emitted_proved_and_read_back(x):
    made, like = compile_to_source(x.problem, x.config), lower(*x.like)
    assert made.name != like.name and made.kernel != like
    assert str(made.proof).startswith("P1 to P13 proved") and made.link.events > 100
    assert check(made.kernel) and made.source.count("__global__") == 1


@pytest.mark.nvrtc
def test_it_is_verified_with_its_bound(x):
    """On the emulator; of what the hardware approximates to no bit."""
    verdict = judged(x.problem, x.config, SMALL)
    assert verdict.exact == x.exact
    assert 0 <= verdict.bound.worst <= 1


@pytest.mark.parametrize("x", ["family"], indirect=True)
def test_a_family_has_the_bound_of_its_own_sums(x):
    """One chain over K has another than sums of 128 of K."""
    from gemmgen.verification import random_normal
    from gemmgen.verification.engines import NumpyEngine

    engine, plain = NumpyEngine(), replace(x.problem, family="dense")
    late, chain = (bound(p, random_normal(p, 48, 40, 2048, 3), engine) for p in (x.problem, plain))
    assert late.max() < chain.max()


def test_it_is_chosen_for_priced_and_tried(x):
    chosen = choose(x.problem, SHAPE, H200)
    lower(x.problem, chosen)
    assert cost(x.problem, x.config, SHAPE, H200).seconds > 0
    tried = candidates(Job(problem=x.problem, shape=SHAPE))
    assert tried[0].config == chosen
    if x.shows:
        changed = [c.config for c in tried if x.shows.split()[-1] in json.dumps(c.config.to_json())]
        assert changed, "the tuner tries it"


@pytest.mark.parametrize("x", ["lever"], indirect=True)
def test_a_lever_has_its_price(x):
    early, late = (cost(x.problem, c, SHAPE, H200).seconds for c in (x.like[1], x.config))
    assert late > early


def test_the_benchmark_plans_it(x, launches):
    """Who is measured, what a launch does and how many bytes it moves; one call launches it."""
    p = work.launched(x.problem)
    entered = providers.gemmgen(x.config)
    assert entered.takes(p) and providers.reference(p) == providers.reference(x.like[0])
    assert work.work(p, SHAPE).flops == 2 * 4096**3
    entered.make(cases.make(p, SMALL, NORMAL), False)()
    assert [(found.problem, found.config) for found in launches] == [(p, x.config)]
    assert launches[0].shape == SMALL


def test_json_and_names_tell_it_apart(x):
    assert Config.from_json(json.loads(json.dumps(x.config.to_json()))) == x.config
    assert Problem.from_json(json.loads(json.dumps(x.problem.to_json()))) == x.problem
    assert len({lower(*y).name for y in ((x.problem, x.config), x.like)}) == 2


@pytest.mark.parametrize("command", ("emit", "check", "explain", "timeline"))
def test_the_command_line_has_it(x, command, capsys):
    more = ("-m", "512", "-n", "512", "-k", "512") if command in ("explain", "timeline") else ()
    assert cli.main([command, *asked(x, *more)]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert out.strip()
    if command == "check":
        assert "P1 to P13 proved" in out
    if command == "emit":
        assert lower(x.problem, x.config).name in out


@pytest.mark.nvrtc
def test_it_is_reported_and_packed(x, tmp_path, capsys):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    page = tmp_path / "page.html"
    assert cli.main(["report", *asked(x), "-o", str(page)]) == 0, capsys.readouterr().err
    assert lower(x.problem, x.config).name in page.read_text()
    made = pack(x.problem, {(64, 128, 256): x.config}, prefix="added", device="H200")
    assert lower(x.problem, x.config).name in files(made)["pack.json"].decode()


# ---- levers that are added --------------------------------------------------------------------------

OF_A_LEVER = pytest.mark.parametrize("x", ["lever"], indirect=True)


@OF_A_LEVER
def test_what_was_there_is_as_it_was(x):
    """A lever that nobody asks for changes no kernel, no name and no file."""
    for e in GALLERY:
        assert dump(lower(e.problem, e.config)) in (GENERATED / f"{path_of(e)}.ir").read_text()
        assert "late" not in e.config.to_json()
    assert not Config().late and Config(more={"late": False}) == Config()


@OF_A_LEVER
def test_its_pass_stands_where_it_says(x):
    names = [s.name for s in steps()]
    assert names.index("release_late") == names.index("size_barriers") - 1
    assert len(names) == len(PIPELINE) + 1


@OF_A_LEVER
@pytest.mark.parametrize(
    ("changes", "argument"),
    (
        ({"name": "late"}, "name"),
        ({"name": "stages"}, "name"),
        ({"name": "Later"}, "name"),
        ({"name": "waves"}, "name"),
        ({"name": "more"}, "name"),
        ({"name": "later", "default": 3}, "default"),
        ({"name": "later", "tag": ""}, "tag"),
        ({"name": "later", "added": False}, "tag"),
    ),
)
def test_a_lever_that_fits_nowhere_is_refused(x, changes, argument):
    with pytest.raises(ArgumentError) as e:
        add(replace(new_lever.LATE, **changes))
    assert e.value.argument == argument and len(LEVERS) == len(FIELDS)


@OF_A_LEVER
def test_a_pass_before_none_is_refused(x):
    add(replace(new_lever.LATE, name="later", tag="lt", before="nothing"))
    with pytest.raises(ArgumentError, match="before='nothing'"):
        lower(FP8, Config())


def test_no_name_is_taken_that_is_not_said():
    own = {name for name in vars(Config) if not name.startswith("_")}
    assert own == {*TAKEN} | {f.name for f in fields(Config)}


@OF_A_LEVER
@pytest.mark.parametrize("more", ({"later": True}, {"late": 3}, {"stages": 3}, 5, "late", array(5)))
def test_values_of_it_are_checked(x, more):
    with pytest.raises(ArgumentError):
        Config(more=more)


def test_a_config_has_no_other_attributes():
    with pytest.raises(AttributeError, match="no late"):
        Config().late  # noqa: B018


@OF_A_LEVER
@pytest.mark.parametrize("of", ("late=true", "order=lines"))
def test_a_field_of_it_is_set_on_the_command_line(x, of, capsys):
    assert cli.main(["emit", "fp8_block", "--set", of]) == 0
    name = capsys.readouterr().out.split(maxsplit=2)[1]
    assert name.endswith(f"_{of.partition('=')[2].replace('true', 'late')}")
    assert cli.main(["emit", "fp8_block", "--set", f"{of.partition('=')[0]}=7"]) == 2
    assert "must be one of" in capsys.readouterr().err
