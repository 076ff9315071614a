"""`ops.set_pdl`: launches that begin while the ones before them end, of all configs that are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, CompileError
from gemmgen.ops import building, dependent, front, refused
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200

CONFIG = Config(block_m=64, block_n=64, consumers=1, stages=2)
KINDS = {"dense": Problem(family="dense", a="bf16", b="bf16", d="bf16")} | {
    grouping: Problem(family="fp8_block", a="e4m3", b="e4m3", d="bf16", grouping=grouping)
    for grouping in ("none", "batched", "masked", "ends", "rows")
}


@pytest.fixture(autouse=True)
def as_before():
    yield
    ops.set_pdl(False)


@pytest.fixture
def chosen(monkeypatch):
    """Every choice is CONFIG."""
    monkeypatch.setattr(building, "kept_choice", lambda *asked: CONFIG)
    monkeypatch.setattr(building.driver, "require_hopper", lambda device: H200.device_name)


def operands() -> dict[str, Placed]:
    return {"a": Placed(64, 128, dtype="bfloat16"), "b": Placed(72, 128, dtype="bfloat16")}


def test_a_call_follows_the_setting(launches, chosen):
    """Also one that was made before under the other."""
    given = operands()
    for on in (False, True, False, True):
        ops.set_pdl(on)
        assert ops.is_pdl() is on
        ops.gemm(**given)
    assert [x.config for x in launches] == [CONFIG, replace(CONFIG, pdl=True)] * 2
    assert len(front.KEPT) == 2


def test_a_plan_under_another_setting_than_its_key_is_not_kept(launches, chosen, monkeypatch):
    """Another thread may set it between the two."""
    kept = building.kept_choice
    monkeypatch.setattr(building, "kept_choice", lambda *x: ops.set_pdl(True) or kept(*x))
    ops.gemm(**operands())
    assert launches[-1].config.pdl and not len(front.KEPT)


def test_a_config_that_is_given_says_itself(launches, chosen):
    ops.set_pdl(True)
    ops.gemm(**operands(), config=CONFIG)
    ops.set_pdl(False)
    ops.gemm(**operands(), config=replace(CONFIG, pdl=True))
    assert [x.config.pdl for x in launches] == [False, True]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", (1, 128, 4096))
def test_choices_may_have_it(kind, rows):
    """Nothing else of them changes, and all are legal."""
    asked = KINDS[kind], (rows, 512, 1024), 4 if kind not in ("dense", "none") else 1
    before = building.config_for(*asked, H200.device_name)
    ops.set_pdl(True)
    after = building.config_for(*asked, H200.device_name)
    assert after == replace(before, pdl=True) and lower(KINDS[kind], after, H200).pdl


def test_where_the_build_refuses_a_choice_the_next_is_taken(monkeypatch):
    """What is refused has `pdl`, what is chosen from has not."""
    p, built = KINDS["dense"], []

    def loaded(p, c, device):
        built.append(c)
        if len(built) == 1:
            raise CompileError("refused")
        return c

    monkeypatch.setattr(building, "loaded", loaded)
    monkeypatch.setattr(building, "priced_for", lambda device: (H200.device_name, H200))
    refused.forget()
    ops.set_pdl(True)
    found = building.loaded_choice(p, (64, 512, 1024), 1, 0)
    refused.forget()
    assert built == [built[0], found] and found.pdl and found != built[0]


def test_launches_that_gpus_share_wait_for_what_was_before():
    p = Problem(family="dense", a="bf16", b="bf16", d="bf16", collective="reduce_scatter")
    ops.set_pdl(True)
    assert dependent.as_asked(p, CONFIG) == CONFIG


@pytest.mark.parametrize("value", (1, 0, None, "True"))
def test_what_is_no_answer(value):
    with pytest.raises(ArgumentError) as e:
        ops.set_pdl(value)
    assert (e.value.argument, e.value.value) == ("on", value)
