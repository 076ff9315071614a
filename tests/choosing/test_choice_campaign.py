"""The campaign over choices and legal configs: a small one, and that it counts what the build refuses."""

from __future__ import annotations

from random import Random

import pytest
from choice_campaign import building, campaign, draw
from choice_campaign.__main__ import main
from choice_campaign.campaign import Campaign, State, table

from gemmgen.config import FIELDS, Config
from gemmgen.errors import CompileError
from gemmgen.families import FAMILIES
from gemmgen.ir.expr import PerColumn, PerElement, arguments
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.orders import ORDERS
from gemmgen.problem import check_shape
from gemmgen.recipes import RECIPES

SPILT = "8 bytes of spills"


@pytest.fixture(name="small")
def small_fixture(monkeypatch, request):
    """A campaign of one process whose compiler refuses the first kernel it is given, and no other; or none."""
    refuses = getattr(request, "param", True)
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    asked = []

    def built(k):
        asked.append(k.digest)
        return SPILT if k.digest == asked[0] and refuses else ""

    monkeypatch.setattr(campaign, "built", built)
    monkeypatch.setattr(campaign, "rescued", lambda seed: (f"{seed}: nothing", False))
    return asked


def run(state, problems=4, configs=0, minutes=5.0):
    made = Campaign(seed=3, jobs=1, minutes=minutes, state=state)
    return made.run(problems=problems, configs=configs), made


@pytest.mark.nvrtc
def test_a_small_campaign_passes(capsys):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    assert main(["--problems", "6", "--configs", "3", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert "| problems | 6 |" in said and "| legal configs | 3 |" in said


@pytest.mark.nvrtc
def test_what_the_build_refuses_is_counted_and_named(small):
    (tally,), made = run(State(None))
    assert (tally.drawn, tally.refused, tally.without, tally.unbuilt) == (4, 1, 0, 0)
    assert len(small) == tally.kernels >= 4 and len({*small}) == len(small)
    assert SPILT in tally.notes[0] and tally.failures == ["3/problems/0: nothing"]
    row = f"| problems | 4 | {tally.kernels} | {tally.kernels} | 1 | 1 | 0 | 0 |"
    assert row in table([tally], made.nvrtc)


@pytest.mark.nvrtc
def test_what_is_built_is_not_built_again(small, tmp_path):
    state = tmp_path / "state"
    run(State(state), problems=2)
    with state.open("a") as f:
        f.write('["torn')
    first = len(small)
    (tally,), _ = run(State(state))
    assert first >= 2 and len(small) == tally.kernels and tally.refused == 1


@pytest.mark.nvrtc
@pytest.mark.parametrize("small", [False], indirect=True)
def test_time_that_is_up_leaves_kernels_unbuilt(small):
    (tally,), _ = run(State(None), minutes=0.0)
    assert len(small) == 1 and tally.unbuilt == tally.kernels - 1
    assert main(["--problems", "2", "--minutes", "0", "--seed", "3"]) == 2


def test_a_problem_without_a_choice_is_counted(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    failed = building.Chosen(what="some problem", failed="IllegalConfig why")
    monkeypatch.setattr(campaign, "chosen", lambda seed: failed)
    (tally,), _ = run(State(None), problems=2)
    assert (tally.without, tally.failures) == (2, ["some problem: IllegalConfig why"] * 2)


def test_a_problem_that_is_named_impossible_is_no_failure(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    named = building.Chosen(what="some problem", failed="no tile fits", unsupported=True)
    monkeypatch.setattr(campaign, "chosen", lambda seed: named)
    (tally,), _ = run(State(None), problems=2)
    assert (tally.impossible, tally.without, tally.failures) == (2, 0, [])


def test_every_next_choice_is_asked_for(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    asked = []

    def compile_cubin(source, name):
        asked.append(name)
        if len(asked) < refuses:
            raise CompileError(f"{name} must not run: {SPILT}. NVRTC said:")

    monkeypatch.setattr(building.nvrtc, "compile_cubin", compile_cubin)
    refuses = 3
    assert building.rescued("3/problems/0") == ("", False) and len({*asked}) == 3
    refuses = 100
    said, _ = building.rescued("3/problems/1")
    assert SPILT in said


def test_every_kind_of_problem_is_drawn():
    rng = Random(0)
    drawn = [draw.launch(rng) for _ in range(3000)]
    problems = [x.problem for x in drawn]
    assert {p.family for p in problems} == {*FAMILIES}
    assert {(p.family, p.a, p.b) for p in problems} == {
        (name, *pair) for name, r in RECIPES.items() for pair in r.operands
    }
    assert {p.grouping for p in problems} == {*GROUPINGS}
    assert {p.layout for p in problems} == {"nt", "nn", "tn", "tt"}
    assert {p.d.name for p in problems} == {"bf16", "f16", "f32", "s32", "e4m3"}
    assert {p.alignment for p in problems} == {1, 4, 8, 64, 128} and any(
        p.accumulate for p in problems
    )
    kinds = {type(x) for p in problems for x in arguments(p.epilogue)}
    assert kinds >= {PerColumn, PerElement}
    assert any(x.shape[0] < 16 for x in drawn) and any(x.shape[0] > 8192 for x in drawn)
    for x in drawn:
        check_shape(x.shape)


def test_every_value_of_every_field_may_be_drawn():
    assert {*draw.DOMAINS} == {*FIELDS} - {"registers", "order"} and len(ORDERS) == 1
    for name, values in draw.DOMAINS.items():
        assert getattr(Config, name) in values and len(values) > 1
    rng = Random(0)
    drawn = [draw.config(rng) for _ in range(5000)]
    assert {c.registers is None for c in drawn} == {True, False}
    for name in ("stages", "consumers", "unroll", "parts", "split_k", "block_k_bytes", "peek"):
        assert {getattr(c, name) for c in drawn} == {*draw.DOMAINS[name]}, name


def test_a_seed_is_a_problem_and_a_config():
    first = [draw.launch(Random(f"0/problems/{i}")) for i in range(20)]
    assert first == [draw.launch(Random(f"0/problems/{i}")) for i in range(20)]
    assert len({str(x) for x in first}) > 15
    assert draw.config(Random("a")) == draw.config(Random("a"))


@pytest.mark.parametrize(
    ("text", "said"),
    (
        ("k must not run: C7511 (wgmma was serialised). NVRTC said:\nptxas info", "C7511 (wgmma was serialised)"),
        ("NVRTC refused k:\nptxas info\nptxas fatal : (C7602) Insufficient registers", "ptxas fatal : (C7602) Insufficient registers"),
    ),
)  # fmt: skip
def test_a_refusal_is_one_line(text, said):
    assert building.reason(text) == said
