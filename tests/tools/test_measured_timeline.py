"""`gemmgen timeline --device`: what stamps say, on the emulator: D is the plain kernel's to the bit, stamps come in
the simulation's order, and pages and traces have both."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from kernels import DENSE, FP8, VARIETY
from test_explain import check_html
from test_timeline import ROUND

from docs.tools.faults import faults
from gemmgen.check import ops
from gemmgen.check.ops import Instance
from gemmgen.check.unroll import unroller
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.errors import VerificationError
from gemmgen.gallery import exhibit
from gemmgen.ir.groupings import OF_SIZES
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.problem import Problem
from gemmgen.see import html, svg, text
from gemmgen.see.chrome_trace import chrome_trace, measured_trace
from gemmgen.see.instance import instance
from gemmgen.see.measured import measured
from gemmgen.see.measured_page import measured_json, measured_page
from gemmgen.see.page import Facts, Lanes, Table
from gemmgen.see.rings import Ring, Stamp, rings
from gemmgen.see.simulate import WHOLE, simulate
from gemmgen.see.timeline_page import Selection

STAMPS = 512


@dataclass(frozen=True, kw_only=True)
class Case:
    """sizes: of the groups."""

    problem: Problem
    config: Config
    shape: tuple[int, int, int]
    sms: int = 2
    sizes: tuple[int, ...] = ()

    @property
    def layout(self):
        p, side = self.problem, self.shape[2 if "k_" in self.problem.grouping else 0]
        return OF_SIZES[p.grouping](side, list(self.sizes or [side]), p.alignment)


def of(name, shape, **options):
    found = VARIETY.get(name) or (exhibit(name).problem, exhibit(name).config)
    return Case(problem=found[0], config=found[1], shape=shape, **options)


CASES = {
    "dense": Case(problem=DENSE, config=Config(stages=3), shape=(256, 256, 320)),
    "fp8": Case(problem=FP8, config=Config(block_n=64, unroll=2), shape=(200, 130, 900)),
    "cluster": of("fp8-multicast-a", (256, 256, 384), sms=2),
    "in flight": of("dense-in-flight-multicast", (256, 128, 256), sms=2),
    "split": of("fp8_block/split_k", (64, 64, 2048), sms=4),
    "ragged": of("fp8-masked-multicast", (200, 128, 256), sms=2, sizes=(200, 0, 65)),
    "depths": of("fp8-1d1d-k_flat", (128, 256, 640), sms=2, sizes=(384, 0, 256)),
    "turns": of("dense-ping-pong", (384, 128, 320), sms=1),
    "rows by index": Case(
        problem=replace(DENSE, grouping="ends", indexed=True),
        config=Config(block_m=64, block_n=64, consumers=1, stages=3),
        shape=(200, 64, 320),
        sms=2,
        sizes=(130, 0, 40),
    ),
    "swapped": of("fp8-swap-waves", (48, 256, 256), sms=1),
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One case, launched with and without stamps."""

    case: Case
    kernel: object
    d: object
    plain: object
    data: bytes
    program: object

    @property
    def rings(self):
        return rings(self.kernel, self.data)


def execute(case, stamps):
    """The kernel, D's bytes with what surrounds them, and the rings."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification import random_normal
    from gemmgen.verification.trial import output, pitches

    a = compile_to_source(case.problem, case.config, stamps=stamps)
    operands = random_normal(case.problem, *case.shape, 3, case.layout)
    strides, machine = pitches(a.kernel, case.shape), EmulatedGpu(sms=case.sms)
    d = output(case.problem, operands, strides)
    after = machine.execute(prepare(a.kernel, a.source), operands, strides, d, 0xFF)
    return a.kernel, after, b"".join(x.tobytes() for x in machine.stamps)


@cache
def ran(name, stamps=STAMPS):
    from gemmgen.runtime.launch import grid

    case = CASES[name]
    kernel, d, data = execute(case, stamps)
    _, plain, nothing = execute(case, 0)
    assert nothing == b""
    ctas = grid(kernel, case.shape, max(case.sms, kernel.cluster.size), case.layout.groups)
    program = unroller(kernel, WHOLE).program(instance(kernel, case.shape, ctas, case.layout))
    return Ran(case=case, kernel=kernel, d=d, plain=plain, data=data, program=program)


def timelines(name, stamps=STAMPS):
    r = ran(name, stamps)
    return measured(r.program, ROUND, r.rings), simulate(r.program, ROUND)


# ---- on the emulator ----------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_stamps_change_no_bit_of_d(name):
    r = ran(name)
    assert (r.d == r.plain).all()


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_stamps_come_in_the_simulations_order(name):
    """Of each agent of the first cluster: events, tiles and K blocks, none left out."""
    r = ran(name)
    found = {(x.cta, x.warpgroup): x for x in r.rings}
    assert r.program.agents
    for agent, noted in zip(r.program.agents, r.program.stamps, strict=True):
        ring = found[agent.cta, agent.warpgroup]
        assert [(s.event, s.tile, s.k) for s in ring.newest] == [
            (n.event, n.tile, n.k) for n in noted
        ]
        assert ring.lost == 0 and noted


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_stamps_are_monotone_in_every_ring(name):
    r = ran(name)
    assert len(r.rings) % (r.kernel.cluster.size * r.kernel.threads // 128) == 0
    for ring in r.rings:
        at = [ring.opened, *(s.at for s in ring.newest), ring.closed]
        assert at == sorted(at) and ring.opened_ns <= ring.closed_ns
        tiles = [s.tile for s in ring.newest if s.tile >= 0]
        assert tiles == sorted(tiles)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_every_operation_is_measured_once(name):
    m, s = timelines(name)
    for own, simulated in zip(m.timeline.steps, s.steps, strict=True):
        assert [id(a.op) for a in own] == [id(b.op) for b in simulated]
        assert own[0].start >= 0 and all(a.end == b.start for a, b in pairwise(own))
        assert all(x.cycles >= 0 for x in own)
    kinds = Counter(f.carried for f in m.timeline.flights)
    commits = sum(isinstance(op, ops.Commit) for own in m.timeline.program.ops for op in own)
    begun = sum(isinstance(op, ops.Begin) for own in m.timeline.program.ops for op in own)
    assert kinds["product"] == commits and kinds["landing"] and kinds["copy"] == begun
    assert {*kinds} == {"product", "landing", *["copy"] * (name == "rows by index")}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ("dense", "cluster"))
def test_a_full_ring_keeps_the_newest(name):
    few, all_ = ran(name, 8), ran(name)
    for short, whole in zip(few.rings, all_.rings, strict=True):
        assert short.count == whole.count and short.lost == max(0, whole.count - 8)
        kept, wanted = ([(s.event, s.tile, s.k) for s in x.newest[-8:]] for x in (short, whole))
        assert kept == wanted
    assert any(x.lost for x in few.rings)
    m, s = timelines(name, 8)
    assert m.lost == tuple(max(0, len(noted) - 8) for noted in few.program.stamps)
    shown = measured_page(m, s, Selection(), ())
    (facts,) = (b for b in shown.blocks if isinstance(b, Facts))
    said = dict(facts.items)["lost"]
    assert f"{m.lost[0]} of" in said and "--stamps keeps more" in said
    assert (
        measured_json(m, s)["measured"]["lost_stamps"][
            "producer 0" if name == "dense" else "CTA 0 producer 0"
        ]
        == m.lost[2]
    )


# ---- by hand ------------------------------------------------------------------------------


def by_hand(step=10, change=lambda noted: noted):
    """Two K blocks of the plainest kernel, a stamp every `step` cycles of every warpgroup."""
    kernel = lower(DENSE, Config(), stamps=64)
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=2, tiles=1))
    made = []
    for agent, noted in zip(program.agents, program.stamps, strict=True):
        stamps = tuple(
            Stamp(at=1000 + step * i, event=n.event, tile=n.tile, k=n.k)
            for i, n in enumerate(change(noted), 1)
        )
        made.append(
            Ring(
                cta=agent.cta,
                warpgroup=agent.warpgroup,
                opened=1000,
                opened_ns=500,
                closed=1000 + step * 20,
                closed_ns=500 + step * 10,
                count=len(stamps),
                newest=stamps,
            )
        )
    return program, made


def test_an_operation_ends_at_its_stamp():
    program, made = by_hand()
    m = measured(program, ROUND, made)
    timed = [(type(s.op).__name__, s.end) for s in m.timeline.steps[0] if s.cycles]
    loop = ["Wait", "Commit", "Retire"] * 2
    rest = ["StoreWait", "Sync", "Write", "Sync", "StoreCommit", "StoreWait"]
    assert timed == [(kind, 10 * i) for i, kind in enumerate(loop + rest, 1)]
    products = [(f.start, f.end) for f in m.timeline.flights if f.carried == "product"]
    assert products == [(20, 30), (50, 60)] * 2  # of two warpgroups
    # Here the producer issues at 20 and 40, when consumers are said to have seen both: no load is under way.
    assert not any(f.carried == "landing" for f in m.timeline.flights)
    assert m.clock_hz == 2e9 and (m.starts, m.ends) == (0, 0)


def test_a_load_lasts_until_it_is_seen():
    program, made = by_hand()
    late = [
        replace(r, newest=tuple(replace(s, at=s.at + 100) for s in r.newest), closed=2000)
        if r.warpgroup < 2
        else r
        for r in made
    ]
    m = measured(program, ROUND, late)
    found = [(f.start, f.end, f.stage) for f in m.timeline.flights if f.carried == "landing"]
    assert found == [(20, 110, 0), (40, 140, 1)]


def test_nothing_is_under_way_since_a_time_that_is_lost():
    """The consumers' first commits are lost and their ends are not."""
    program, made = by_hand()
    left = [replace(r, newest=r.newest[2:]) if r.warpgroup < 2 else r for r in made]
    m = measured(program, ROUND, left)
    assert m.lost == (2, 2, 0)
    products = [(f.start, f.end) for f in m.timeline.flights if f.carried == "product"]
    assert products == [(50, 60)] * 2
    assert [s.end for s in m.timeline.steps[0] if s.cycles][:2] == [40, 50]


def test_stamps_that_are_not_the_programs_are_an_error():
    program, made = by_hand()
    with pytest.raises(VerificationError, match="wrote 11 stamps, its program writes 12"):
        measured(
            program, ROUND, [replace(made[0], count=11, newest=made[0].newest[:-1]), *made[1:]]
        )
    wrong = (*made[0].newest[:3], replace(made[0].newest[3], k=7), *made[0].newest[4:])
    with pytest.raises(VerificationError, match=r"stamp 3 is .* \(0, 0, 7\), .* \(0, 0, 1\)"):
        measured(program, ROUND, [replace(made[0], newest=wrong), *made[1:]])


def packed(count, records, closed):
    head = struct.pack("<4Q8I", closed - 5000, 1, closed, 2, count, *[0] * 7)
    return head + b"".join(struct.pack("<2I2i", *r) for r in records)


def test_rings_are_read_as_they_lie():
    """Of four places the fifth stamp took the first; the clock's low word wrapped between two stamps."""
    kernel, wrap = lower(DENSE, Config(), stamps=4), 1 << 32
    records = [(40, 4, 1, -1), (wrap - 30, 1, 0, 0), (wrap - 20, 2, 0, 1), (10, 3, -1, -1)]
    ring = packed(5, records, 3 * wrap + 90)
    found = rings(kernel, ring * 6)
    assert [(r.cta, r.warpgroup) for r in found] == [(c, w) for c in (0, 1) for w in (0, 1, 2)]
    r = found[0]
    assert [s.at - 3 * wrap for s in r.newest] == [-30, -20, 10, 40]
    assert [s.event for s in r.newest] == [1, 2, 3, 4] and (r.newest[2].tile, r.lost) == (-1, 1)
    assert (r.opened, r.opened_ns, r.closed_ns) == (3 * wrap - 4910, 1, 2)
    with pytest.raises(VerificationError, match="not 3 rings"):
        rings(kernel, ring * 4)


def test_tiles_are_numbered_as_the_ctas_where_warpgroups_take_turns():
    """Each notes how many it had before; the producer has all of them."""
    kernel = lower(DENSE, Config(ping_pong=True, consumers=3, block_m=64), stamps=4)
    ring = packed(3, [(10, 1, -1, -1), (20, 2, 0, 5), (30, 3, 2, -1)], 9000)
    found = rings(kernel, (ring + b"\0" * 16) * 4)
    tiles = [[s.tile for s in r.newest] for r in found]
    assert tiles == [[-1, 0, 6], [-1, 1, 7], [-1, 2, 8], [-1, 0, 2]]
    assert [s.k for s in found[1].newest] == [-1, 5, -1]


# ---- what is shown ------------------------------------------------------------------------


def hand():
    program, made = by_hand(step=200)
    return measured(program, ROUND, made), simulate(program, ROUND)


def test_both_stand_in_one_picture():
    m, s = hand()
    shown = measured_page(m, s, Selection(), (("problem", "a < b"),))
    (picture,) = (b for b in shown.blocks if isinstance(b, Lanes))
    called = [lane.name for lane in picture.lanes]
    assert called[:4] == [
        f"consumer {i}, {kind}" for i in (0, 1) for kind in ("measured", "simulated")
    ]
    assert (picture.start, picture.end) == (0, max(m.timeline.end, s.end))
    first, second = picture.lanes[:2]
    assert [b.end for b in first.bars] == [x.end for x in m.timeline.steps[0] if x.cycles]
    assert [b.end for b in second.bars] == [x.end for x in s.steps[0] if x.cycles]
    check_html(html.render(shown))
    drawing = ElementTree.fromstring(svg.render(shown))
    tips = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(tip.startswith("waits for full[0] phase 0, tile 0, K block 0") for tip in tips) == 4
    assert "consumer 0, measured" in text.render(shown)


def test_pictures_show_what_was_chosen_of_both():
    m, s = hand()
    shown = measured_page(m, s, Selection(blocks=(1, 2)), ())
    (picture,) = (b for b in shown.blocks if isinstance(b, Lanes))
    assert 0 == picture.start < picture.end < s.end
    assert all(
        lane.bars for lane in picture.lanes if "consumer" in lane.name and ":" not in lane.name
    )


def test_where_the_cycles_go_adds_up():
    m, s = hand()
    tables = (b for b in measured_page(m, s, Selection(), ()).blocks if isinstance(b, Table))
    rows = next(t for t in tables if t.title == "Where the cycles go").rows
    sums = Counter()
    for name, _, cycles, _, simulated, _ in rows:
        sums[name, "measured"] += int(cycles.replace(",", ""))
        sums[name, "simulated"] += int(simulated.replace(",", ""))
    for i, name in enumerate(("consumer 0", "consumer 1", "producer 0")):
        for kind, t in (("measured", m.timeline), ("simulated", s)):
            assert sums[name, kind] + t.over(i) == t.end


def test_the_trace_has_a_process_of_each():
    m, s = hand()
    trace, plain = json.loads(measured_trace(m, s, 1e9)), json.loads(chrome_trace(s, 1e9))
    assert set(plain) == set(trace) and set(plain["otherData"]) < set(trace["otherData"])
    named = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert named == {0: "simulated CTA 0", 1: "measured CTA 0"}
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {frozenset(e) for e in spans} == {
        frozenset(e) for e in plain["traceEvents"] if e["ph"] == "X"
    }
    for e in spans:
        hz = 1e9 if e["pid"] == 0 else m.clock_hz
        assert e["dur"] * 1e-6 * hz == pytest.approx(e["args"]["cycles"], rel=1e-3)
    simulated = [e for e in trace["traceEvents"] if e["pid"] == 0 and e["ph"] == "X"]
    assert simulated == [e for e in plain["traceEvents"] if e["ph"] == "X"]


# ---- the command --------------------------------------------------------------------------

SMALL = ("timeline", "fp8_block/split_k", "-m", "64", "-n", "64", "-k", "1024")


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def test_files(nvrtc, tmp_path, capsys):
    page, trace = tmp_path / "t.html", tmp_path / "t.json"
    argv = [*SMALL, "--device", "emulator", "--json", "--html", str(page), "--trace", str(trace)]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == [str(trace), str(page)]
    assert len(found["measured"]["warpgroups"]) == len(found["warpgroups"])
    assert "times nothing" in found["facts"]["device"]
    assert "measured CTA 3" in trace.read_text() and ", measured" in page.read_text()


def test_the_page_in_a_browser(nvrtc, tmp_path, tab, capsys):
    page = tmp_path / "t.html"
    assert main([*SMALL, "--device", "emulator", "--html", str(page)]) == 0
    assert faults(tab, page.as_uri(), tmp_path.as_uri()) == []


def test_lost_stamps_are_said_and_cannot_be_chosen(nvrtc, capsys):
    argv = [
        "timeline",
        "dense",
        "-m",
        "128",
        "-n",
        "128",
        "-k",
        "1024",
        "--device",
        "emulator",
        "--stamps",
        "8",
    ]
    assert main(argv) == 0
    assert "the oldest stamps, for want of room" in capsys.readouterr().out
    assert main([*argv, "--blocks", "0:1"]) == 2
    assert "must hold something whose stamps are left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    (
        (("--device", "tpu"), "--device='tpu': must be gpu, a CUDA device's number or emulator"),
        (("--device", "gpu", "--sms", "4"), "--sms=4: must not be given with a GPU"),
        (("--device", "emulator", "--stamps", "100"), "--stamps=100: must be a power of two"),
        (("--stamps", "64"), "--stamps=64: must be given with --device"),
        (("--device", "emulator", "--stamps", "0"), "--stamps=0: must be a power of two"),
        (("--device", "emulator", "-m", "100000", "-k", "100000"), "must make at most"),
    ),
)
def test_wrong_arguments(given, says, capsys):
    assert main(["timeline", "dense", *given]) == 2
    assert says in capsys.readouterr().err
