"""The levers' records against what is derived from them, and against `Config`, which is written."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from kernels import DENSE, FP8, LOGITS

import gemmgen.levers
from gemmgen.bench.tuning.candidates import _changes
from gemmgen.bench.tuning.jobs import Job
from gemmgen.config import FIELDS, Config
from gemmgen.cost_launch import launch
from gemmgen.errors import IllegalConfig
from gemmgen.families import build
from gemmgen.families.common import kernel_name
from gemmgen.heuristics import choose, rank
from gemmgen.ir.nodes import Kernel
from gemmgen.ir.orders import ORDERS
from gemmgen.levers import LEVERS, Price, add
from gemmgen.levers.lever import flag
from gemmgen.passes import PIPELINE
from gemmgen.pipeline import lower
from gemmgen.see.kernel_page import config as described
from gemmgen.see.spelling import spelled
from gemmgen.target import H200

SOME = (None, False, True, "none", "a", "b", "m", "n", "twin", (40, 216), *range(257))
# Which the tile, the ring or the order of tiles says.
IN_THE_TILE = ("block_m", "block_n", "block_k_bytes", "stages", "consumers")
# Of what a config asks of a family; all else is asked of a pass.
OF_FAMILIES = (*IN_THE_TILE, "multicast", "raster", "panel", "order", "unroll", "in_flight", "swizzle_ab", "swizzle_d",
               "registers", "parts", "ping_pong", "slice_k")  # fmt: skip

# What else a legal config has that differs in it.
BESIDE = {"block_m": {"block_m": 64, "consumers": 1}, "swap_ab": {"swap_ab": True, "block_m": 16, "block_n": 128},
          "d_columns": {"d_columns": 64, "block_n": 128}, "weights_ahead": {"weights_ahead": True, "pdl": True},
          "direct": {"direct": True, "swap_ab": True, "block_m": 16, "block_n": 64, "consumers": 1, "unroll": 4}}  # fmt: skip
BESIDE["slice_k"] = {"slice_k": True, "block_m": 64}
BESIDE["one_block"] = {"one_block": True, "swap_ab": True, "block_m": 64, "block_n": 128}
BESIDE["slots"] = {"slots": True, **BESIDE["direct"]}

ROOT = Path(gemmgen.levers.__file__).parents[1]
CHOOSING = (
    *ROOT.glob("cost*.py"),
    *ROOT.glob("heuristics/*.py"),
    ROOT / "bench/tuning/candidates.py",
)

each = pytest.mark.parametrize("lever", LEVERS, ids=lambda x: x.name)


@pytest.fixture(autouse=True)
def another_order(monkeypatch):
    """That of ours by another name: of orders there is but one."""
    monkeypatch.setitem(ORDERS, "twin", ORDERS["panels"])


def other(lever):
    return next(v for v in SOME if lever.values.holds(v) and v != lever.default)


def changed(lever):
    return replace(Config(), **{lever.name: other(lever)})


def test_controls_offer_what_a_lever_takes():
    """What is listed, or a span says, holds; nothing beside it does. Of what neither says, only None is known."""
    for values in (x.values for x in LEVERS):
        assert values.holds(None) == (values.null or None in (values.listed or tuple)())
        if values.listed:
            assert all(map(values.holds, values.listed())) and not values.holds("no such value")
        if values.span:
            low, high, step = values.span
            offered = {*range(low, high + 1, step)}
            assert {v for v in range(low - 2 * step, high + 2 * step) if values.holds(v)} == offered
    assert [x.name for x in LEVERS if not (x.values.listed or x.values.span)] == ["registers"]


def test_a_config_has_a_field_per_lever():
    *own, more = fields(Config)
    assert [f.name for f in own] == [x.name for x in LEVERS]
    assert [f.default for f in own] == [x.default for x in LEVERS]
    assert (more.name, more.default) == ("more", ())
    said = Config.__doc__ or ""
    assert all(x.name in said for x in LEVERS)


@each
def test_the_default_is_a_value_and_needs_no_words(lever):
    assert lever.values.holds(lever.default) and lever.plain(Config())
    assert not lever.tagged(Config()) and not lever.said(Config())


@each
def test_another_value_shows_in_the_name_in_tables_and_in_json(lever):
    c = changed(lever)
    assert kernel_name(FP8, c) != kernel_name(FP8, Config())
    assert bool(lever.tagged(c)) == (lever.name not in (*IN_THE_TILE, "panel"))
    assert spelled(c) != spelled(Config())
    assert lever.name in c.to_json() and Config.from_json(c.to_json()) == c
    assert (lever.name in Config().to_json()) != lever.added


@cache
def items_of(c):
    """What a report says of a legal config, of the first problem that has it."""
    scattered = replace(DENSE, collective="reduce_scatter")
    for p in (DENSE, FP8, replace(DENSE, weights_ready=True), scattered, LOGITS):
        try:
            return {k: v for k, v in described(c, lower(p, c)).items if k != "name"}
        except IllegalConfig:
            continue
    raise AssertionError(f"{c} is not legal")


@each
def test_a_report_says_it(lever):
    """Under the lever's name, or in the lines of the tile, the ring, the warpgroups, the cluster, the order."""
    if lever.name == "registers":
        pytest.skip("the table of registers has them")
    c = replace(Config(block_n=64), **BESIDE.get(lever.name, {lever.name: other(lever)}))
    said, before = items_of(c), items_of(Config(block_n=64))
    assert said != before and bool(lever.reads) == (lever.name in said)


def test_a_report_says_what_is_left_running_under_promotion_too():
    c = Config(in_flight=1, parts=2)
    items = dict(described(c, lower(FP8, c)).items)
    assert "where they are promoted" in items["in_flight"]
    c = Config(d_columns=64)
    items = dict(described(c, lower(DENSE, c)).items)
    assert items["d_columns"].startswith("64: ")


@each
def test_no_request_is_kept_on_a_kernel(lever):
    """A family builds the same, whatever is asked of passes."""
    if lever.name in OF_FAMILIES:
        assert lever.name not in {s.of for s in PIPELINE} - {"ping_pong", "slice_k"}
        return
    plain, asked = (build(DENSE, c) for c in (Config(), changed(lever)))
    assert replace(asked, name=plain.name) == plain
    assert lever.name in {s.of for s in PIPELINE}


def test_what_a_kernel_says_of_itself_is_a_fact():
    """Set where it comes about."""
    assert {x.name for x in LEVERS} & {f.name for f in fields(Kernel)} == {
        "pdl",
        "watchdog",
        "shares",
    }


LAUNCHES = [launch(p, (4096, 4096, 512), H200) for p in (DENSE, FP8)]


@each
def test_a_price_changes_what_a_price_has(lever):
    """And a lever that is priced changes something, of one family or the other."""
    if not lever.price:
        return
    c = replace(Config(), **BESIDE.get(lever.name, {lever.name: other(lever)}))
    names = [f.name for f in fields(Price)]
    plain = dict.fromkeys(names, 0)
    found = [lever.price(plain, of, c) for of in LAUNCHES]
    assert any(found) and all({*x} <= {*names} for x in found)


@each
def test_what_a_choice_makes_of_a_tile_is_legal_values(lever):
    tiles = (Config(in_flight=0), Config(block_m=256), Config(block_m=64, swap_ab=True))
    offered = [x for of in LAUNCHES for c in tiles for x in (lever.offers or no_offers)(of, c)]
    for x in offered:
        assert all(FIELDS[name].holds(value) for name, value in x.items())
    assert bool(offered) == bool(lever.offers)


def no_offers(of, c):
    return ()


@pytest.mark.parametrize("name", ("peek", "ping_pong", "in_flight", "unroll", "pdl", "watchdog"))
def test_no_layer_that_chooses_or_prices_knows_it_by_name(name):
    """They ask the table; of others that are sides of a tile, or ways to share it, they know."""
    for path in CHOOSING:
        tree = ast.parse(path.read_text())
        used = {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
        given = {x.arg for x in ast.walk(tree) if isinstance(x, ast.keyword)}
        said = {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)}
        assert name not in used | given | said, path.name


def test_a_choice_takes_what_a_lever_of_a_program_offers():
    """And its price decides: a cheaper kernel is chosen, a dearer one is not."""
    kept, shape = list(LEVERS), (4096, 4096, 4096)
    try:
        for name, step in (("sooner", -8.0), ("later", 8.0)):
            add(flag(name, tag=name, offers=lambda of, c, n=name: ({}, {n: True}),
                     price=lambda price, of, c, s=step: {"step": price["step"] + s}))  # fmt: skip
        chosen = choose(DENSE, shape, H200)
        assert chosen.sooner and not chosen.later
    finally:
        LEVERS[:] = kept
        for name in ("sooner", "later"):
            gemmgen.levers.FIELDS.pop(name)
            gemmgen.levers.MORE.pop(name)


def test_the_tuner_tries_what_levers_offer():
    shape = (4096, 4096, 4096)
    (choice, *_) = rank(DENSE, shape, H200, limit=1)
    tried = [*_changes(Job(problem=DENSE, shape=shape), choice, H200)]
    for lever in LEVERS:
        offered = [replace(choice.config, **x) for x in lever.others(choice.config)]
        assert [c for c in tried if c in offered] == offered
    few = rank(DENSE, (128, 128, 512), H200, limit=1)[0]
    alone = {
        (c.raster, c.panel) for c in _changes(Job(problem=DENSE, shape=(128, 128, 512)), few, H200)
    }
    assert alone == {(few.config.raster, few.config.panel)}, "one wave has no order"
