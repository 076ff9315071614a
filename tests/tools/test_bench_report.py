"""What `gemmgen bench` prints, writes and draws, from rows made here."""

from __future__ import annotations

import csv
import io
import json
import math
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
from kernels import DENSE
from ticking import ticking

from gemmgen.bench import sources
from gemmgen.bench.ceilings import Ceilings
from gemmgen.bench.clocks import Clocks, Log
from gemmgen.bench.select import FLOOR
from gemmgen.bench.shapes import depths_of, parse
from gemmgen.bench.timing import Samples
from gemmgen.cli import bench_command, bench_entered, bench_plots, main
from gemmgen.cli.bench_report import RULE, LeftOut, Row, as_csv, firsts, geomean, over_read, table
from gemmgen.config import Config
from gemmgen.errors import GemmgenError
from gemmgen.heuristics import tuned
from gemmgen.heuristics.database import Row as TunedRow
from gemmgen.heuristics.database import Timed, to_text
from gemmgen.problem import Problem
from gemmgen.see.spelling import spelled
from gemmgen.target import H200


def row(provider="gemmgen", m=4096, us=100.0, ratio=0.5, standing="", tflops=800.0, **more):
    return Row(
        groups=1,
        m=m,
        n=576,
        k=7168,
        provider=provider,
        microseconds=us,
        spread=0.012,
        tflops=tflops,
        gigabytes_per_second=more.pop("gbps", 400.0),
        ratio=ratio,
        config="128x128" if provider == "gemmgen" else "",
        kernels="k1 + k2",
        standing=standing,
        **more,
    )


ROWS = [
    row(standing="fastest", sm_mhz=1754.6, sm_mhz_least=1400, watts=690.2, celsius=61),
    row("torch.mm", us=200.0, ratio=1.0, tflops=400),
    row(m=16, us=10, ratio=2.0, standing="tie", tflops=13, gbps=800),
    row("torch.mm", m=16, us=9.9, ratio=1.0, standing="tie", tflops=13.1, gbps=810),
    row(m=1, ratio=None, tflops=1, gbps=900, standing="fastest"),
]
LEFT_OUT = [LeftOut(groups=1, m=1, n=576, k=7168, provider="torch._int_mm", reason="fails: no")]
SUMMARY = {
    "gpu": "H200",
    "kernel": "dense",
    "title": "cold L2, device time, medians",
    "data": "normal",
    "clocks": "NVML",
    "geomean_ratio": 1.0,
}
CEILINGS = Ceilings(flops=1e15, bytes=4e12, gemm="torch.mm 8192x8192x8192")


def test_geometric_mean_of_gemmgen_alone():
    assert geomean(ROWS) == pytest.approx(1.0)
    assert geomean([row(ratio=0.25), row(ratio=1.0), row("x", ratio=9.0)]) == pytest.approx(0.5)
    assert geomean([row(ratio=None)]) is None and geomean([]) is None


def test_how_often_each_was_first():
    assert firsts(ROWS) == {"gemmgen": 2, "torch.mm": 0, "tie": 1}


def test_over_the_floor():
    """Which is no contestant: it computes nothing."""
    of_one = [row(us=15.0), row("torch.mm", us=12.0), row("read", us=10.0, ratio=None)]
    found = over_read(of_one)
    assert [r.over_read for r in found] == [1.5, 1.2, 1.0]
    assert over_read(of_one[:2]) == of_one[:2]
    assert "read" not in firsts(found) and geomean(found) == geomean(of_one)
    lines = table(found, [], SUMMARY).splitlines()
    assert [line.split()[10] for line in lines[2:5]] == ["1.500", "1.200", "1.000"]


def test_csv_reads_back(tmp_path):
    text = as_csv(ROWS)
    assert text.startswith("# gemmgen bench\n")
    back = list(csv.DictReader(io.StringIO(text.partition("\n")[2])))
    assert [r["provider"] for r in back] == [r.provider for r in ROWS]
    assert [*back[0]] == [*asdict(ROWS[0])]
    assert (back[0]["sm_mhz"], back[1]["sm_mhz"], back[4]["ratio"]) == ("1754.6", "", "")
    path = tmp_path / "bench.csv"
    path.write_text(text)
    assert parse(f"@{path}", DENSE) == ((4096, 576, 7168), (16, 576, 7168), (1, 576, 7168))


def test_an_empty_csv_has_its_header():
    assert as_csv([]).splitlines()[1].startswith("groups,m,n,k,provider,microseconds")


def test_the_table_says_who_computes_an_epilogue():
    second = table(ROWS, LEFT_OUT, {**SUMMARY, "epilogue": "bias_silu"}).splitlines()[1]
    assert second == "epilogue bias_silu: gemmgen's; the others compute the product alone"


def test_the_table():
    lines = table(ROWS, LEFT_OUT, SUMMARY).splitlines()
    assert lines[0] == "H200: dense, cold L2, device time, medians, normal data"
    columns = "G M N K provider us spread TFLOP/s GB/s ratio over read MHz W C config"
    assert lines[1].split() == columns.split()
    first = "1 4096 576 7168 gemmgen 100.0 1.2% 800 400 0.500 - fastest 1755 690 61 128x128"
    assert lines[2].split() == first.split()
    second = "1 4096 576 7168 torch.mm 200.0 1.2% 400 400 1.000 - - - -"
    assert lines[3].split() == second.split()
    assert lines[4].split()[11] == "tie" and lines[6].split()[9] == "-"
    assert lines[7].endswith("torch._int_mm          not timed: fails: no")
    assert lines[8] == f"fastest: gemmgen 2, torch.mm 0, tie 1 ({RULE})"
    assert lines[9] == "clocks, power, temperature: NVML"
    assert lines[10] == "geometric mean of gemmgen's ratios: 1.000"
    assert table([], [], {**SUMMARY, "geomean_ratio": None}).endswith("ratios: none")


def test_the_table_says_what_the_reference_computes():
    grouped = {**SUMMARY, "reference": "torch.mm, one", "reference_is_one_gemm": True}
    assert "which computes something else: one GEMM" in table(ROWS, [], grouped)
    same = {**grouped, "reference": "deep_gemm", "reference_is_one_gemm": False}
    assert table(ROWS, [], same).endswith("ratios: to deep_gemm, which computes the same")
    assert "ratios: to" not in table(ROWS, [], SUMMARY)


def test_of_groups_the_reference_is_named(monkeypatch):
    p = Problem.from_json({**DENSE.to_json(), "grouping": "ends"})
    rows = [row(), row("torch._grouped_mm"), row("torch.mm, one"), row(FLOOR)]
    monkeypatch.setattr(sources, "reference", lambda p: "torch.mm, one")
    assert bench_command._reference(p, rows)["reference_is_one_gemm"]
    found = bench_command._reference(p, rows[:2])
    assert found == {"reference": "torch._grouped_mm", "reference_is_one_gemm": False}
    assert bench_command._reference(DENSE, rows) == bench_command._reference(p, rows[:1]) == {}


# ---- plots ----------------------------------------------------------------------------------


RUN = bench_plots.Measured(name="", rows=tuple(ROWS), ceilings=CEILINGS)


def test_points_against_size():
    """GFLOP = TFLOP/s x us / 1000."""
    found = {s.name: s for s in bench_plots.against_size(RUN).series}
    assert [*found] == ["gemmgen", "torch.mm"]
    want = [(0.1, 1), (0.13, 13), (80, 800)]
    points = found["gemmgen"].points
    assert [x for p in points for x in p] == pytest.approx([x for p in want for x in p])
    assert found["torch.mm"].points[1] == (80, 400)
    assert found["gemmgen"].best == (0, 2) and found["torch.mm"].best == (0,)


def test_points_of_the_roofline():
    """800 TFLOP/s at 400 GB/s are 2000 FLOP per byte."""
    *points, roof = bench_plots.roofline(RUN).series
    found = points[0].points
    assert found[-1] == (2000, 800) and found[0] == pytest.approx((1e3 / 900, 1))
    assert points[0].tips[-1] == "gemmgen, 4096 x 576 x 7168: 2000, 800 TFLOP/s"
    assert roof.line and roof.points[-1] == (4000, 1000)
    bare = bench_plots.roofline(replace(RUN, ceilings=None), {"torch.mm": "cuBLAS"})
    assert [s.name for s in bare.series] == ["gemmgen", "cuBLAS"] and "bench -o" in bare.note


def test_the_roof_bends_where_the_ceilings_meet():
    roof = bench_plots.roof
    assert roof(CEILINGS, [10, 1000]) == [(10, 40), (250, 1000), (1000, 1000)]
    assert roof(CEILINGS, [10, 100]) == [(10, 40), (100, 400)]
    assert roof(CEILINGS, [500, 1000]) == [(500, 1000), (1000, 1000)]


def test_the_floor_is_no_point():
    rows = [*ROWS, row(FLOOR, us=1.0)]
    assert bench_plots.computing(rows) == tuple(ROWS)


# ---- the command, its device faked ----------------------------------------------------------


@pytest.fixture
def faked(monkeypatch):
    """Every shape takes gemmgen 2 us and the reference 4 us."""

    def measure(args, shape, method, data, log, step):
        step()
        rows = tuple(r for r in ROWS[:2])
        return bench_command.Result(rows=rows, left_out=tuple(LEFT_OUT))

    @contextmanager
    def watch(bus):
        assert bus == "0000:01:00.0"
        yield Log(source="not available: x")

    monkeypatch.setattr(bench_command, "measure", measure)
    monkeypatch.setattr(bench_command, "watch", watch)
    monkeypatch.setattr(bench_command, "_ceilings", lambda p, data: CEILINGS)
    monkeypatch.setattr(bench_command.driver, "require_hopper", lambda device: "H200")
    monkeypatch.setattr(bench_command.driver, "pci_bus_id", lambda device: "0000:01:00.0")


PLAIN = ["bench", "dense", "--shapes", "3x5x7,2x4x6", "--providers", "gemmgen"]


def test_json(faked, capsys):
    assert main([*PLAIN, "--json", "--mode", "operator", "--data", "uniform"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["method"]["mode"] == "operator" and report["method"]["l2"] == "rotate"
    assert (report["data"], report["clocks"]) == ("uniform", "not available: x")
    assert report["geomean_ratio"] == 0.5 and report["fastest"]["gemmgen"] == 2
    assert len(report["rows"]) == 4 and report["rows"][0]["watts"] == 690.2
    assert report["left_out"][0]["reason"] == "fails: no" and "ceilings" not in report


def test_progress(faked, capsys, monkeypatch):
    """A shape is gemmgen's kernel, each provider made ready, and each round; here each takes one step of three."""
    ticking(monkeypatch)
    assert main([*PLAIN, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "measuring: 1 of 6, 50 s left\nmeasuring: 2 of 6, 40 s left\n"
    assert json.loads(out)["fastest"]["gemmgen"] == 2


def test_files(faked, capsys, tmp_path):
    assert main([*PLAIN, "-o", str(tmp_path)]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"bench.csv", "bench.json"}
    assert json.loads((tmp_path / "bench.json").read_text())["ceilings"] == asdict(CEILINGS)
    assert "not available: x" in capsys.readouterr().out
    assert len((tmp_path / "bench.csv").read_text().splitlines()) == 6


def test_plots_are_written_when_asked_for(faked, capsys, tmp_path):
    for _ in range(2):  # the second time over its own files
        assert main([*PLAIN, "-o", str(tmp_path), "--plot"]) == 0
    names = {"bench.csv", "bench.json", "tflops.svg", "roofline.svg"}
    assert {p.name for p in tmp_path.iterdir()} == names
    for name in ("tflops.svg", "roofline.svg"):
        assert "4096 x 576 x 7168: " in (tmp_path / name).read_text().partition("</desc>")[0]
    assert json.loads((tmp_path / "bench.json").read_text())["ceilings"]["flops"] == 1e15


def test_plots_need_a_folder(faked, monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "measure", None)
    assert main([*PLAIN, "--plot"]) == 2
    assert "needs -o" in capsys.readouterr().err


def samples(seconds, **clocks):
    meanwhile = Clocks(
        **{**dict.fromkeys(("sm_mhz", "sm_mhz_least", "watts", "celsius")), **clocks}, readings=1
    )
    return Samples(
        seconds=seconds, kernels=("a", "b"), main="a", clocks=meanwhile if clocks else None
    )


def test_ratios_are_to_the_reference_or_the_first_other():
    found = {"gemmgen": samples((1.0,)), "triton": samples((4.0,)), "torch.mm": samples((2.0,))}
    assert bench_command._base(found, "torch.mm") == 2.0
    assert bench_command._base(found, "torch.bmm") == 4.0
    assert bench_command._base({"gemmgen": samples((1.0,))}, "torch.mm") is None


def test_a_row_has_place_and_clocks():
    p = Problem(family="dense", a=DENSE.a, b=DENSE.b)
    s = samples((1e-6, 2e-6, 3e-6, 4e-6), sm_mhz=1700, watts=650)
    plain = bench_command._row(p, (100, 200, 300), "torch.mm", s, 5e-6, Config())
    assert plain.tflops == pytest.approx(2 * 100 * 200 * 300 / 2.5e-6 * 1e-12)
    assert (plain.ratio, plain.kernels, plain.sm_mhz) == (pytest.approx(0.5), "a + b", None)
    placed = bench_command._placed(plain, "tie", s.clocks)
    assert (placed.standing, placed.sm_mhz, placed.watts) == ("tie", 1700, 650)
    assert replace(placed, standing="", sm_mhz=None, watts=None) == plain
    assert bench_command._row(p, (1, 2, 3), "gemmgen", s, None, Config()).ratio is None
    assert math.isclose(plain.spread, 1 / 2.5)


@pytest.fixture
def contest(monkeypatch):
    """A contest of two whose kernels are `mains`; times as given."""
    from gemmgen.bench import modes
    from gemmgen.bench.contest import Contest

    mains = {"gemmgen": "ours", "torch.mm": "theirs"}
    seconds = {"gemmgen": (4e-6,) * 4, "torch.mm": (8e-6,) * 4}

    def found(*_):
        return {n: Samples(seconds=seconds[n], kernels=(mains[n],), main=mains[n]) for n in mains}

    turns = {n: [lambda: None] for n in mains}
    entered = Contest(turns=turns, left_out={"torch.bmm": "fails: x"})
    monkeypatch.setattr(bench_command, "_contest", lambda *_: entered)
    monkeypatch.setattr(bench_command.driver, "require_hopper", lambda device: H200.device_name)
    monkeypatch.setenv(tuned.VARIABLE, tuned.NONE)
    monkeypatch.setattr(modes, "warm_up", lambda turns: None)
    monkeypatch.setattr(modes, "identify", found)
    monkeypatch.setattr(modes, "measure", found)
    return mains, seconds


def measured(*arguments):
    from gemmgen.bench.data import Data
    from gemmgen.bench.modes import Method
    from gemmgen.cli import _parser

    argv = ["bench", "dense", "--no-verify", *arguments]
    args = _parser(argv).parse_args(argv)
    return bench_command.measure(
        args, (64, 128, 256), Method(), Data(), Log(source="none"), lambda: None
    )


def test_a_shape_is_measured(contest):
    result = measured()
    assert [r.provider for r in result.rows] == ["gemmgen", "torch.mm"]
    assert [r.config_from for r in result.rows] == ["cost model", ""]
    assert [r.standing for r in result.rows] == ["fastest", ""]
    assert [r.ratio for r in result.rows] == [0.5, 1.0]
    assert [(x.groups, x.m, x.n, x.k, x.provider) for x in result.left_out] == [
        (1, 64, 128, 256, "torch.bmm")
    ]


def test_the_floor_is_measured_beside(contest):
    """Neither the fastest nor what ratios are taken to; its bytes are those it reads."""
    mains, seconds = contest
    mains |= {"read": "reads"}
    seconds |= {"read": (2e-6,) * 4}
    del mains["torch.mm"]
    ours, floor = measured().rows
    assert (ours.ratio, ours.standing, ours.over_read) == (None, "fastest", 2.0)
    assert (floor.ratio, floor.standing, floor.over_read) == (None, "", 1.0)
    assert floor.gigabytes_per_second == pytest.approx(2 * 256 * (64 + 128) / 2e-6 * 1e-9)
    assert ours.gigabytes_per_second > floor.gigabytes_per_second / 2


def test_where_a_config_comes_from(contest, tmp_path, monkeypatch):
    assert measured("--set", "panel=3").rows[0].config_from == "cost model, changed"
    assert measured("--config", "{}").rows[0].config_from == "given"
    best = Timed(config=Config(block_n=64), seconds=1e-6, predicted=1e-6)
    database = tmp_path / "tuned.jsonl"
    tuned_row = TunedRow(
        problem=DENSE,
        groups=1,
        shape=(64, 128, 256),
        device=H200.device_name,
        nvrtc=(13, 0),
        best=best,
        spread=0.0,
        default=best,
        reference=None,
        tried=(),
        failed=0,
    )
    database.write_text(to_text([tuned_row]))
    monkeypatch.setenv(tuned.VARIABLE, str(database))
    found = measured().rows[0]
    assert (found.config_from, found.config.split()[0]) == ("tuned", "128x64")
    assert "config_from" in as_csv([found]).splitlines()[1]


def test_groups_of_k_look_for_the_mean_that_is_launched(contest, monkeypatch):
    from gemmgen.cli import _parser

    asked = []

    def pick(p, shape, target, groups, device, unbuilt, split_k):
        asked.append((shape, groups))
        return tuned.Pick(config=Config())

    monkeypatch.setattr(bench_entered, "pick", pick)
    argv = ["bench", "fp8_1d1d", "--grouping", "k_flat", "--d", "f32"]
    args = _parser(argv).parse_args(argv)
    assert bench_entered.for_shape(args, (3, 200, 96, 1000))[2] == "cost model"
    assert asked == [((200, 96, -(-sum(depths_of(3, 1000)) // 3)), 3)]


def test_noise_makes_a_tie(contest):
    contest[1]["torch.mm"] = (4e-6, 4e-6, 5e-6, 9e-6)
    assert [r.standing for r in measured().rows] == ["tie", "tie"]


def test_one_kernel_under_two_names_is_an_error(contest):
    contest[0]["torch.mm"] = "ours"
    with pytest.raises(GemmgenError, match=r"gemmgen and torch\.mm ran the same kernel, ours"):
        measured()


def test_a_config_in_few_words():
    """Of those that differ in nothing but who takes tiles, too."""
    assert spelled(Config()) == "128x128 2wg 4st m8"
    assert spelled(Config(ping_pong=True)) == "128x128 2wg 4st m8 ping-pong"
    assert spelled(Config(peek=True)) == "128x128 2wg 4st m8 peeking"
    several = Config(unroll=4, d_columns=32, split_k=2)
    assert spelled(several) == "128x128 2wg 4st m8 u4 K/2 D by 32 columns"
