"""`gemmgen timeline`: the simulated times obey the kernel's protocol as the proof knows it, the cost model's
terms, and, in a case that a person can follow, arithmetic by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from exhibits import exhibit
from kernels import DENSE, FP8, VARIETY
from test_explain import check_html

from gemmgen.check import ops
from gemmgen.check.canonical import run
from gemmgen.check.ops import Instance
from gemmgen.check.prove import prove
from gemmgen.check.unroll import unroller
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.cost import terms
from gemmgen.errors import ArgumentError, IRError
from gemmgen.gallery import GALLERY, path_of
from gemmgen.heuristics import choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.groupings import OF_SIZES
from gemmgen.ir.rewrite import map_stmts
from gemmgen.levers.split_k import exchange_cycles
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.see import html, svg, text
from gemmgen.see.chrome_trace import chrome_trace
from gemmgen.see.instance import instance, mean_shape, mean_size
from gemmgen.see.latency import Latency, latency
from gemmgen.see.page import Bar, Lane, Lanes
from gemmgen.see.simulate import WHOLE, simulate
from gemmgen.see.timeline import names
from gemmgen.see.timeline_lanes import tracks
from gemmgen.see.timeline_page import Selection, page, to_json
from gemmgen.target import H200

SHAPE = (4096, 4096, 4096)
ROUND = Latency(
    tensor=80,
    multiply=100,
    drain=10,
    promote=30,
    stage=50,
    load=40,
    load_bytes=32768,
    store=20,
    d_elements=128 * 128,
    flight=1000,
    remote=200,
    exchange=500,
    exchange_rate=64.0,
)


def described(name):
    return VARIETY[name] if "/" not in name else (exhibit(name).problem, exhibit(name).config)


@cache
def simulated(name, k_blocks, tiles):
    problem, config = described(name)
    kernel = lower(problem, config)
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=k_blocks, tiles=tiles))
    return simulate(program, latency(kernel, problem, config, SHAPE, H200))


def by_hand(k_blocks=2, tiles=1, **changed):
    kernel = lower(DENSE, Config())
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=k_blocks, tiles=tiles))
    return simulate(program, replace(ROUND, **changed))


def carried(t, kind, cta=None):
    return [f for f in t.flights if f.carried == kind and cta in (None, f.cta)]


# ---- by hand ------------------------------------------------------------------------------


def test_two_k_blocks_by_hand():
    """Two boxes of 20 cycles each land 1000 later; two warpgroups take turns at the tensor core."""
    t = by_hand()
    assert [(f.start, f.end) for f in carried(t, "load")] == [(0, 1040), (0, 1080)]
    first, second = ([f for f in carried(t, "multiply") if f.agent == a] for a in (0, 1))
    assert [(f.start, f.end) for f in first] == [(1040, 1140), (1240, 1340)]
    assert [(f.start, f.end) for f in second] == [(1140, 1240), (1340, 1440)]
    # The last group's end, its drain, staging, half of D in two boxes through the port, until it is written.
    assert [f.end for f in carried(t, "store")] == [1405, 1410, 1505, 1510]
    assert [own[-1].end for own in t.steps] == [2410, 2510, 0]
    assert t.end == 2510
    assert t.waiting(0) == {"full": 1040, "wgmma": 110 + 200, "stores": 1010}
    assert t.waiting(1) == {"full": 1040, "wgmma": 210 + 200, "stores": 1010}
    assert t.work(0) == t.work(1) == {"stage D": 50}
    assert [t.over(a) for a in range(3)] == [100, 0, 2510]
    assert (t.occupied(0), t.share(0)) == (400 / 2510, 320 / 2510)


def test_the_producer_waits_for_a_stage():
    """Four stages: the fifth load waits until both warpgroups are through with the first K block."""
    t = by_hand(k_blocks=5)
    fifth = carried(t, "load")[4]
    assert (fifth.op.k, fifth.stage, fifth.start) == (4, 0, 1250)
    assert (fifth.end, t.waiting(2)) == (1250 + 40 + 1000, {"empty": 1250})


def test_slower_memory_shows_as_waits_for_it():
    fast, slow = by_hand(k_blocks=40), by_hand(k_blocks=40, load=400)
    assert slow.waiting(0)["full"] > fast.waiting(0)["full"] + 40 * 100
    assert slow.end > 40 * 400


def test_arrivals_elsewhere_take_time():
    problem, config = described("dense/two_wave_in_flight")
    kernel = lower(problem, config)
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=40, tiles=1))
    lat = replace(latency(kernel, problem, config, SHAPE, H200), flight=0)
    near, far = (simulate(program, replace(lat, remote=r)) for r in (0, 5000))
    assert far.end > near.end + 5000


def test_a_group_left_in_flight_costs_no_drain():
    """Each K block's wait is for the products of the one before; the last is after the K blocks."""
    kernel = lower(*described("dense/two_wave_in_flight"))
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=6, tiles=1))
    t = simulate(program, ROUND)
    ends = [f.end for f in carried(t, "multiply") if f.agent == 0][1::2]  # of two waves each
    waits = [s for s in t.steps[0] if isinstance(s.op, ops.Retire)]
    assert len(waits) == 7
    assert [s.end for s in waits] == [
        max(s.start, e) for s, e in zip(waits, [0, *ends], strict=True)
    ]


def test_partial_sums_meet_by_hand():
    """Three ranks send 64 x 32 FP32 at once; rank 0 takes 64 bytes a cycle, and 500 cycles later has them."""
    kernel = lower(*described("fp8_block/split_k"))
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=8, tiles=1))
    t = simulate(program, ROUND)
    sent = carried(t, "send")
    now = sent[0].start
    assert [(f.start, f.end) for f in sent] == [(now, now + 128 * n + 500) for n in (1, 2, 3)]
    (full,) = (p.at for p in t.phases if p.bar[0] == "partials_full")
    assert full == sent[-1].end
    assert [f.cta for f in sent] == [0] * 3


def test_rows_of_a_ragged_tile_are_copied():
    """Where rows end within a tile, its two warpgroups copy half of it each."""
    kernel = lower(*described("fp8_block/masked"))
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=1, tiles=2, cut=(1,)))
    t = simulate(program, ROUND)
    copies = [s.cycles for own in t.steps for s in own if isinstance(s.op, ops.Rows)]
    assert copies == [10] * 4  # in two CTAs
    assert {f.op.tile for f in carried(t, "store")} == {0}


def test_copies_of_rows_by_hand():
    """Beside B's boxes A's stage of 8192 bytes passes the port in a quarter of 40 cycles, and is there 1000 later; what comes two K blocks
    later is announced then."""
    p = replace(DENSE, grouping="ends", indexed=True)
    kernel = lower(p, Config(block_m=64, block_n=64, consumers=1, stages=4))
    t = simulate(unroller(kernel, WHOLE).program(Instance(k_blocks=4, tiles=1)), ROUND)
    loads, copies = carried(t, "load"), carried(t, "copy")
    assert [(f.start, f.end) for f in loads[:3]] == [(0, 1010), (0, 1030), (0, 1050)]
    assert [(f.start, f.end) for f in copies[:3]] == [(0, 1020), (0, 1040), (0, 1060)]
    assert [(f.op.k, f.stage) for f in copies] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    waits = [s for own in t.steps for s in own if isinstance(s.op, ops.Come)]
    # After the third K block all but two have come, after the fourth and the last tile the rest.
    assert [s.end for s in waits][:2] == [1020, copies[1].end]
    assert waits[-1].end == copies[-1].end
    first = min(f.start for f in carried(t, "multiply"))
    assert first == 1020 and t.waiting(1)["copies"] == sum(s.cycles for s in waits)
    drawn = text.render(page(t, Selection(), ()))
    assert "c waits for copies" in drawn and "copies: rows of A on their way" in drawn


def test_an_agent_that_never_ends_is_an_error():
    kernel = lower(DENSE, Config())
    mute = map_stmts(kernel, lambda s: () if isinstance(s, ir.Arrive) else s)
    program = unroller(mute, WHOLE).program(Instance(k_blocks=5, tiles=1))
    with pytest.raises(IRError, match=r"consumer.* never gets past Wait"):
        simulate(program, ROUND)


# ---- the protocol -------------------------------------------------------------------------

PROTOCOL = (
    *("dense", "fp8_block/base", "fp8_block/two_wave_multicast_a", "fp8_block/three_consumers"),
    *("fp8_block/split_k", "fp8_block/swap_ab", "fp8_block/n144"),
    *("dense/two_wave_in_flight", "dense/swiglu_fp8", "fp8_1d1d/k_grouped", "fp8_block/masked"),
    *("dense-ping-pong", "dense-ping-pong-three", "fp8-1d1d-ping-pong-k_flat"),
    "fp8_block/indexed_rows",
)


@pytest.fixture(params=PROTOCOL)
def t(request):
    stages = described(request.param)[1].stages
    ranks = described(request.param)[1].split_k
    return simulated(request.param, ranks * (2 * stages + 1), 3)


def test_every_operation_happens_once_and_cycles_add_up(t):
    for agent, (own, todo) in enumerate(zip(t.steps, t.program.ops, strict=True)):
        assert [id(s.op) for s in own] == [id(op) for op in todo]
        assert own[0].start == 0 and all(a.end == b.start for a, b in pairwise(own))
        assert all(s.cycles >= 0 for s in own)
        parts = sum(t.work(agent).values()), sum(t.waiting(agent).values()), t.over(agent)
        assert sum(parts) == t.end


def test_waits_end_when_their_phase_completes(t):
    at = {(p.bar, p.number): p.at for p in t.phases}
    assert len(at) == len(t.phases)
    waits = [s for own in t.steps for s in own if isinstance(s.op, ops.Wait)]
    assert waits
    for s in waits:
        assert s.end == max(s.start, at[s.op.bar, s.op.phase] if s.op.phase >= 0 else 0)


def test_phases_are_those_of_the_proof(t):
    counters = (c for c in run(t.program).counters if not c.synchronises)
    completed = Counter(p.bar for p in t.phases)
    assert {c.name: c.phase for c in counters if c.phase} == completed


def test_the_order_is_one_that_the_proof_allows(t):
    """What the proof says is over when an operation starts is over at that time."""
    known = prove(t.program)
    for agent, own in enumerate(t.steps):
        for at, s in enumerate(own):
            for other, done in enumerate(known.before(agent, at)):
                assert not done or t.steps[other][done - 1].end <= s.start


def test_the_tensor_core_serves_one_at_a_time(t):
    for cta in {a.cta for a in t.agents}:
        found = sorted((f.start, f.end) for f in carried(t, "multiply", cta))
        assert found and all(a[1] <= b[0] for a, b in pairwise(found))


def test_no_more_loads_are_under_way_than_there_are_stages(t):
    stages = t.program.kernel.stages
    for cta in {a.cta for a in t.agents}:
        rounds = defaultdict(list)
        for f in carried(t, "load", cta):
            rounds[f.op.tile, f.op.k].append((f.start, f.end))
        spans = [(min(s for s, _ in r), max(e for _, e in r)) for r in rounds.values()]
        assert all(sum(s <= now < e for s, e in spans) <= stages for now, _ in spans)


def test_products_follow_the_copies_of_their_rows():
    t = simulated("fp8_block/indexed_rows", 9, 3)
    for cta in {a.cta for a in t.agents}:
        come = {(f.op.tile, f.op.k): f.end for f in carried(t, "copy", cta)}
        products = carried(t, "multiply", cta)
        assert products and all(f.start >= come[f.op.tile, f.op.k] for f in products)


def test_products_follow_their_loads_and_loads_the_products_before(t):
    stages = t.program.kernel.stages
    for cta in {a.cta for a in t.agents}:
        landed, issued, read = {}, {}, {}
        for f in carried(t, "load", cta):
            key = f.op.tile, f.op.k
            landed[key] = max(landed.get(key, 0), f.end)
            issued[key] = min(issued.get(key, f.start), f.start)
        for f in carried(t, "multiply", cta):
            key = f.op.tile, f.op.k
            assert f.start >= landed[key]
            read[key] = max(read.get(key, 0), f.end)
        ring = sorted(landed)
        assert all(issued[b] >= read[a] for a, b in zip(ring, ring[stages:], strict=False))


@pytest.mark.parametrize("name", ("dense-ping-pong", "dense-ping-pong-three"))
def test_warpgroups_take_tiles_in_turns(name):
    """One after the other multiplies, each its own tiles; one stores while the next multiplies."""
    t = simulated(name, 24, 7)
    turns = t.program.kernel.consumer.turns
    products = sorted(carried(t, "multiply"), key=lambda f: f.start)
    tiles = [f.op.tile for f in products]
    assert tiles == sorted(tiles) and set(tiles) == set(range(7))
    for f in products:
        assert t.agents[f.agent].warpgroup == f.op.tile % turns
    for tile in range(6):
        staged = [
            s
            for own in t.steps
            for s in own
            if s.op.tile == tile and s.doing == "stage D" and s.cycles
        ]
        others = [f for f in products if f.op.tile == tile + 1]
        assert staged and any(f.start < staged[0].end and f.end > staged[0].start for f in others)
    assert all(t.waiting(a)["turns"] for a in range(turns))


def test_waits_for_a_turn_are_drawn_and_explained():
    t = simulated("dense-ping-pong", 24, 4)
    drawn = text.render(page(t, Selection(tiles=(0, 4)), ()))
    assert "t waits for turns" in drawn and "turns: another warpgroup's K" in drawn
    second = next(line for line in drawn.splitlines() if line.startswith("  consumer 1  "))
    assert second.split()[2].startswith("tttt")
    plain = text.render(page(simulated("dense", 24, 4), Selection(), ()))
    assert "turns" not in plain


# ---- the cost model -----------------------------------------------------------------------

COSTED = (
    *("fp8_block/base", "fp8_block/two_wave_multicast_a", "dense/n256", "dense/tn"),
    "fp8_1d1d/wgrad",
)


@pytest.mark.parametrize("name", COSTED)
def test_the_durations_are_the_cost_models(name):
    problem, config = described(name)
    w = terms(problem, config, SHAPE, H200).work
    t = simulated(name, w.steps, 3)
    tensor = len(carried(t, "multiply", 0)) * t.latency.tensor
    assert tensor == pytest.approx(3 * w.tensor, rel=0.01)
    promoted = t.work(0)["promote"] / 3
    drains = w.steps * config.waves * 120
    between = w.promotion + w.scales - drains
    assert promoted == pytest.approx(max(0, between) if promoted else 0, rel=0.02)
    staged = t.work(0)["stage D"] / 3
    assert staged == pytest.approx(w.epilogue - exchange_cycles(config), rel=0.01)


@pytest.mark.parametrize("name", COSTED)
def test_tiles_take_about_what_the_cost_model_says(name):
    """At least the bound resource's time, at most what the model adds up, which has some more for safety."""
    problem, config = described(name)
    full = terms(problem, config, SHAPE, H200).full
    t = simulated(name, terms(problem, config, SHAPE, H200).work.steps, 3)
    assert 3 * full.main <= t.end <= 3 * full.total


MEMORY = (
    (Config(block_m=64, consumers=1), (16, 7168, 7168), True),
    (Config(), SHAPE, False),
    (exhibit("fp8_block/split_k").config, (64, 960, 4096), True),
    (exhibit("fp8_block/split_k").config, (1024, 1024, 4096), False),
)


@pytest.mark.parametrize(("config", "shape", "from_hbm"), MEMORY)
def test_the_slower_memory_feeds_the_tile(config, shape, from_hbm):
    """One CTA's part of a tile: what it loads, and its share of D, which rank 0 stores alone."""
    found = terms(FP8, config, shape, H200)
    lat = latency(lower(FP8, config), FP8, config, shape, H200)
    hbm = found.hbm * found.clock_hz / found.waves
    assert (hbm > found.full.l2) == from_hbm
    taken = lat.load * found.work.steps + lat.store / config.split_k
    assert taken == pytest.approx(max(hbm, found.full.l2), rel=0.02)


def test_shared_memory_keeps_the_tensor_core():
    problem, config = described("fp8_block/n56_flat")
    kernel, w = lower(problem, config), terms(problem, config, SHAPE, H200).work
    lat = latency(kernel, problem, config, SHAPE, H200)
    assert lat.multiply / lat.tensor == pytest.approx(w.shared / w.tensor, rel=0.02)
    assert w.shared > 1.2 * w.tensor


def test_the_exchange_is_not_staged_as_well():
    problem, config = described("fp8_block/split_k")
    w = terms(problem, config, SHAPE, H200).work
    lat = latency(lower(problem, config), problem, config, SHAPE, H200)
    assert exchange_cycles(config) > 1500
    assert lat.stage == round(w.epilogue - exchange_cycles(config))
    sent = 3 * 64 * 32 * 4 / lat.exchange_rate  # bytes of three ranks
    assert lat.exchange + sent == exchange_cycles(config)


@pytest.mark.parametrize(
    "name", ("w4a16/int4", "w4a16/mxfp4_grouped", "dense/slice_k", "dense/mqa_logits")
)
def test_a_stage_is_loaded_whole_and_a_tile_of_d_stored_whole(name):
    problem, config = described(name)
    kernel = lower(problem, config)
    lat = latency(kernel, problem, config, SHAPE, H200)
    assert lat.load_bytes == sum(kernel.buffer(f"smem_{x}").stage_bytes for x in "ab")
    assert lat.d_elements == kernel.block.d_m * kernel.block.d_n


def test_codes_are_decoded_for_as_long_as_the_model_says():
    problem, config = described("w4a16/int4")
    w = terms(problem, config, SHAPE, H200).work
    lat = latency(lower(problem, config), problem, config, SHAPE, H200)
    assert 2 * lat.decode == pytest.approx(w.decoding / w.steps, abs=1) and lat.decode > 100


def test_what_slices_send_is_not_staged_as_well():
    problem, config = described("dense/slice_k")
    w = terms(problem, config, SHAPE, H200).work
    lat = latency(lower(problem, config), problem, config, SHAPE, H200)
    assert lat.stage == round(w.epilogue - w.exchange) and lat.adding == round(w.exchange) > 0


# ---- the instance -------------------------------------------------------------------------


def test_instance_is_what_the_scheduler_gives_the_first_cta():
    kernel = lower(DENSE, Config())
    assert instance(kernel, (1024, 1024, 640), 20) == Instance(k_blocks=10, tiles=4)
    with pytest.raises(ArgumentError, match="at most"):
        instance(kernel, (128, 128, 1 << 24), 1)


def test_instances_of_groups():
    e = exhibit("fp8_1d1d/k_grouped")
    layout = OF_SIZES[e.problem.grouping](1024, [256, 0, 768], 128)
    shape = (e.config.block_m * 2, e.config.block_n, 1024)
    kernel = lower(e.problem, e.config)
    found = instance(kernel, shape, 2, layout)
    assert found.depths == (2, 0, 6) and found.k_blocks == 6
    assert mean_shape(e.problem, shape, layout) == (*shape[:2], round(1024 / 3))
    masked = exhibit("fp8_block/masked")
    layout = OF_SIZES["masked"](512, [300, 512], 128)
    kernel = lower(masked.problem, masked.config)
    ends = instance(kernel, (512, 128, 512), kernel.cluster.size, layout).rows
    assert any(rows < masked.config.block_m for own in ends for rows in own)
    assert mean_shape(masked.problem, (512, 128, 512), layout) == (406, 128, 512)


def test_groups_without_rows_have_none_and_are_priced_as_one():
    p = described("fp8_block/masked")[0]
    layout = OF_SIZES[p.grouping](512, [0, 0], 1)
    assert mean_size(p, (512, 128, 512), layout) == (0, 128, 512)
    assert mean_shape(p, (512, 128, 512), layout) == (1, 128, 512)


def test_rows_end_in_one_warpgroups_piece_and_not_in_the_others():
    """Of 330 rows CTA 0's second tile has 74, its first warpgroup's 64 among them; the CTA beside it has none."""
    e = exhibit("fp8_block/masked")
    kernel, layout = lower(e.problem, e.config), OF_SIZES["masked"](512, [330], 128)
    chosen = instance(kernel, (512, 128, 512), kernel.cluster.size, layout)
    program = unroller(kernel, WHOLE).program(chosen)
    found = {
        (a.cta, a.warpgroup, op.tile)
        for a, todo in zip(program.agents, program.ops, strict=True)
        for op in todo
        if isinstance(op, ops.Rows)
    }
    assert found == {(0, 1, 1), (1, 0, 1), (1, 1, 1)}


def test_nothing_to_do_is_an_error():
    e = exhibit("fp8_block/masked")
    kernel, layout = lower(e.problem, e.config), OF_SIZES["masked"](512, [0], 128)
    with pytest.raises(ArgumentError, match="a tile"):
        instance(kernel, (512, 128, 512), kernel.cluster.size, layout)


# ---- what is shown ------------------------------------------------------------------------


def test_lines_hold_every_interval_once_and_none_over_another():
    t = simulated("fp8_block/split_k", 40, 2)
    lines = tracks(t)
    assert len({line.name for line in lines}) == len(lines)
    for line in lines:
        assert all(a.end <= b.start for a, b in pairwise(line.items))
    shown = Counter(id(i) for line in lines for i in line.items)
    items = [*(s for own in t.steps for s in own if s.cycles), *(f for f in t.flights if f.cycles)]
    assert shown == Counter(map(id, items)) and set(shown.values()) == {1}


def test_trace_events():
    t = simulated("fp8_block/two_wave_multicast_a", 20, 2)
    trace = json.loads(chrome_trace(t, 1e9))
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"X", "M"}
    assert trace["otherData"]["latency_cycles"]["flight"] == 700
    named = {(e["pid"], e["tid"]): e["args"] for e in events if e["name"] == "thread_name"}
    spans = defaultdict(list)
    for e in events:
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int)
        if e["ph"] == "X":
            assert e["name"] and e["cat"] and e["dur"] > 0
            assert e["dur"] * 1000 == pytest.approx(e["args"]["cycles"])
            spans[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert set(spans) <= set(named) and {p for p, _ in named} == {0, 1}
    for line in spans.values():
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(line))
    waits = [e["args"] for e in events if e["name"].startswith("waits for full")]
    assert waits and all({"barrier", "stage", "phase", "tile", "k_block"} <= set(w) for w in waits)


def test_a_letter_is_what_a_slice_holds_most_of():
    bars = (bar(0, 10, "a"), bar(10, 14, "b"), bar(15, 20, "c"))
    b = Lanes(
        title="x", start=0, end=40, unit="cycles", lanes=(Lane(name="n", bars=bars),), legend=()
    )
    assert text.lanes(b, 1 + 4 + 20)[1] == "  n  aaaaabbccc" + "." * 10
    assert text.lanes(b, 1 + 4 + 20)[0].endswith("0 to 40, 2.0 cycles a letter")


def bar(start, end, mark):
    return Bar(start=start, end=end, mark=mark, hue=0, label="", tip="")


def test_pictures_are_cut_to_what_was_chosen():
    t = simulated("fp8_block/base", 20, 3)
    shown = page(t, Selection(tiles=(1, 2), blocks=(3, 5)), ())
    (picture,) = (b for b in shown.blocks if isinstance(b, Lanes))
    chosen = [f for f in t.flights if f.op.tile == 1 and f.op.k in (3, 4)]
    assert picture.start <= min(f.start for f in chosen)
    assert picture.end >= max(f.end for f in chosen)
    assert picture.end - picture.start < t.end / 4
    with pytest.raises(ArgumentError, match="3 tiles and 20 K blocks"):
        page(t, Selection(tiles=(3, 4)), ())


def test_html_and_svg_are_well_formed():
    t = simulated("fp8_block/base", 40, 3)
    shown = page(t, Selection(), (("problem", "a < b"),))
    check_html(html.render(shown))
    drawing = ElementTree.fromstring(svg.render(shown))
    tips = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert any(tip.startswith("waits for full[0] phase 0, tile 0, K block 0") for tip in tips)
    assert sum(isinstance(b, Lanes) for b in shown.blocks) == 2


def test_ticks_are_round():
    assert list(svg.ticks(0, 1000)) == list(range(0, 1001, 100))
    assert list(svg.ticks(130, 655)) == list(range(200, 656, 100))


def test_json_adds_up():
    t = simulated("fp8_block/three_consumers", 20, 2)
    found = to_json(t)
    assert [w["name"] for w in found["warpgroups"]] == list(names(t.program.kernel, t.agents))
    assert len(found["warpgroups"]) == 2 * (3 + 1)  # of a cluster of two
    for w in found["warpgroups"]:
        assert sum(w["work"].values()) + sum(w["waits"].values()) + w["over"] == found["cycles"]
    assert json.loads(json.dumps(found)) == found


def test_doing_names_every_operation_that_takes_time():
    for name in PROTOCOL:
        t = simulated(name, 24, 2)
        work = {s.doing for own in t.steps for s in own if not s.waits and s.cycles}
        assert "issue" not in work


# ---- the command --------------------------------------------------------------------------


@pytest.mark.parametrize("e", GALLERY, ids=path_of)
def test_the_gallery_has_timelines(e, capsys):
    argv = ["timeline", path_of(e), "-m", "512", "-n", "512", "-k", "1024", "--sms", "4"]
    if e.config.cluster_size > 4:
        argv[-1] = str(e.config.cluster_size)
    assert main(argv) == 0
    assert "Who waits for what" in capsys.readouterr().out


def test_files(tmp_path, capsys):
    page_, trace = tmp_path / "t.html", tmp_path / "t.json"
    argv = ["timeline", "dense", "-m", "256", "-n", "256", "-k", "512", "--json"]
    assert main([*argv, "--html", str(page_), "--trace", str(trace)]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(trace), str(page_)]
    assert json.loads(trace.read_text())["traceEvents"] and "<svg" in page_.read_text()
    assert main([*argv, "--html", str(page_), "--trace", str(trace)]) == 0, "over its own files"


@pytest.mark.parametrize(
    ("given", "says"),
    (
        (["--tiles", "2:1"], "--tiles='2:1': must be A:B"),
        (["--blocks", "x"], "--blocks='x': must be A:B"),
        (["--tiles", "900:901"], "must hold some of"),
        (["--sms", "0"], "--sms=0: must be from 1 to 132"),
    ),
)
def test_wrong_arguments(given, says, capsys):
    assert main(["timeline", "dense", "-m", "256", "-n", "256", "-k", "512", *given]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("grouping", ("masked", "ends", "rows"))
@pytest.mark.parametrize("rows", ("0", "0,0"))
def test_groups_without_rows_have_no_timeline(grouping, rows, capsys):
    assert main(["timeline", "dense", "--grouping", grouping, "--rows", rows]) == 2
    assert f"--rows='{rows}': must not all be 0" in capsys.readouterr().err


def test_a_cluster_must_fit(capsys):
    name = "fp8_block/two_wave_multicast_a"
    assert main(["timeline", name, "--sms", "1"]) == 2
    assert "must hold a cluster of 2" in capsys.readouterr().err


def test_the_same_in_every_process():
    argv = ["timeline", "fp8_block/split_k", "-m", "64", "-n", "512", "-k", "4096"]
    found = {
        subprocess.run(
            [sys.executable, "-m", "gemmgen", *argv],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize("command", ("timeline", "emulate"))
def test_a_config_is_chosen_for_the_groups_that_are_given(command, capsys):
    """As `gemmgen run` chooses it."""
    p = Problem(family="fp8_block", a=E4M3, b=E4M3, grouping="masked")
    shape, sizes = (256, 256, 512), (8, 0, 4, 4)
    of = OF_SIZES["masked"](256, list(sizes), 1)
    wanted = choose(p, mean_shape(p, shape, of), H200, of.groups)
    assert wanted != choose(p, shape, H200)
    given = ["--grouping", "masked", "--rows", ",".join(map(str, sizes))]
    sides = [x for pair in zip(("-m", "-n", "-k"), map(str, shape), strict=True) for x in pair]
    assert main([command, "fp8_block", *given, *sides]) == 0
    assert lower(p, wanted).name in capsys.readouterr().out
