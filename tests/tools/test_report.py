"""`gemmgen report`: one page of kernels and measurements."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

import pytest
from test_bench_report import CEILINGS, LEFT_OUT, ROWS, SUMMARY
from test_explain import check_html

from gemmgen.cli import bench_page, compile_command, main, report_command
from gemmgen.cli.bench_report import LeftOut, Row, firsts
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, RuntimeUnavailable
from gemmgen.gallery import GALLERY, artifact, exhibit, path_of
from gemmgen.pipeline import compile_to_source
from gemmgen.problem import Problem
from gemmgen.runtime.disassemble import mnemonics
from gemmgen.see import html, kernel_page, text
from gemmgen.see.page import Book, Facts, Plot, Table

BENCH = {
    "generator": "gemmgen bench",
    **SUMMARY,
    "fastest": firsts(ROWS),
    "rows": [asdict(r) for r in ROWS],
    "left_out": [asdict(x) for x in LEFT_OUT],
    "ceilings": asdict(CEILINGS),
}
SHAPE = ("-m", "512", "-n", "512", "-k", "1024")


@pytest.fixture
def bench(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(BENCH))
    return file


# ---- what a kernel is ---------------------------------------------------------------------


@pytest.mark.parametrize("e", GALLERY, ids=path_of)
def test_every_kernel_has_words(e):
    a = artifact(e)
    page = kernel_page.what_it_is(a)
    assert check_html(html.render(page)) and a.name in text.render(page)
    rows = {p.id: p for p in kernel_page.PROPERTIES}
    (table,) = (b for b in kernel_page.proof(a.proof).blocks if isinstance(b, Table))
    assert {row[0] for row in table.rows} == set(rows)
    assert {row[0] for row in table.rows if row[2] == "proved"} == set(a.proof.properties)


def facts(problem, config):
    a = compile_to_source(Problem.from_json(problem), config)
    blocks = kernel_page.what_it_is(a).blocks
    return {name: says for b in blocks if isinstance(b, Facts) for name, says in b.items}


def test_words_of_a_plain_kernel():
    f = facts({"family": "fp8_block", "a": "e4m3", "b": "e4m3"}, Config(stages=5))
    assert f["A"] == "E4M3 [M, K], n: contiguous along K" and f["D"] == "BF16 [M, N]"
    assert f["tile"].startswith(
        "128 x 128 of the product per CTA; a K block is 128 of K, 128 bytes"
    )
    assert f["warpgroups"] == "1 loads; 2 multiply 64 rows of D each" and f["cluster"] == "none"
    assert "swap_ab" not in f and "pdl" not in f


def test_words_of_an_unusual_one():
    data = {"family": "dense", "a": "bf16", "b": "bf16", "layout": "tn", "epilogue": "bias_relu"}
    c = Config(block_m=256, stages=3, multicast="b", pdl=True)
    f = facts(data, c)
    assert f["A"] == "BF16 [K, M], t: contiguous along M"
    assert f["B"] == "BF16 [K, N], n: contiguous along N"
    assert f["each element"].startswith("max((acc + bias[col]), 0.0) (bias_relu)")
    assert f["cluster"] == "2 CTAs, two CTAs share B by multicast"
    assert f["warpgroups"] == "1 loads; 2 multiply 128 rows of D each, in 2 sub-tiles of 64"
    assert f["pdl"] and "watchdog" not in f


def test_words_of_warpgroups_that_take_turns():
    data = {"family": "dense", "a": "bf16", "b": "bf16"}
    f = facts(data, Config(ping_pong=True))
    assert (
        f["warpgroups"]
        == "1 loads; 2 ping-pong, each with a tile of its own: 128 rows of D, in 2 sub-tiles of 64"
    )
    assert f["ping_pong"].startswith("each consumer warpgroup has a tile of its own")
    three = facts(data, Config(ping_pong=True, consumers=3, swap_ab=True, block_m=16, block_n=64))
    assert (
        three["warpgroups"] == "1 loads; 3 ping-pong, each with a tile of its own: 64 columns of D"
    )


def test_an_epilogue_of_accumulate_is_spelled():
    f = facts(
        {"family": "fp8_1d1d", "a": "e4m3", "b": "e4m3", "d": "f32", "accumulate": True}, Config()
    )
    assert f["each element"].startswith("(acc + D before")


# ---- resources ----------------------------------------------------------------------------


def test_instructions_are_counted_by_what_they_do():
    code = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_2) ;
.L_x_2:
        /*0020*/             @!UP0 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8] ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8] ;
        /*0040*/                   UCGABAR_ARV ;
        /*0050*/                   IMAD R1, R2, R3, R4 ;
"""
    found = {"LDC": 1, "BRA": 1, "HGMMA": 2, "UCGABAR_ARV": 1, "IMAD": 1}
    assert mnemonics(code) == found
    rows = {row[0]: row[1:] for row in report_command.instructions(code).rows}
    assert rows["tensor cores"] == ("2", "HGMMA 2") and rows["barriers"] == ("1", "UCGABAR_ARV 1")
    assert "TMA" not in rows and sum(int(n) for n, _ in rows.values()) == sum(found.values())


def test_what_is_missing_is_said(monkeypatch):
    def missing(source, name):
        raise RuntimeUnavailable("no NVRTC. Run: pip install it")

    monkeypatch.setattr(compile_command, "compile_cubin", missing)
    (block,) = report_command.resources(artifact(exhibit("fp8_block/base"))).blocks
    assert block == Facts(
        title="Not known here", items=(("missing", "no NVRTC. Run: pip install it"),)
    )


@pytest.mark.nvrtc
def test_ptxas_speaks():
    pytest.importorskip("cuda.bindings.nvrtc")
    used = report_command.resources(artifact(exhibit("fp8_block/base"))).blocks[0]
    items = dict(used.items)
    assert items["bytes spilt"] == "0" and items["threads of a CTA"] == "384"
    assert 0 < int(items["registers per thread at launch"]) <= 255


# ---- measurements -------------------------------------------------------------------------


def test_a_bench_is_read_and_shown(bench):
    r = bench_page.read(bench)
    assert list(r.rows) == ROWS and list(r.left_out) == LEFT_OUT and r.ceilings == CEILINGS
    part = bench_page.part(r)
    assert part.name == "Bench of dense on H200"
    facts, times, out = part.pages[0].blocks
    assert dict(facts.items)["fastest"] == "gemmgen 2, torch.mm 0, tie 1"
    assert times.rows[0][:7] == ("1", "4096", "576", "7168", "gemmgen", "100.0", "1.2%")
    assert out.rows == (("1", "1", "576", "7168", "torch._int_mm", "fails: no"),)
    size, roofline = part.pages[1].blocks
    assert isinstance(size, Plot) and [s.name for s in size.series] == ["gemmgen", "torch.mm"]
    assert roofline.series[-1].line and "1000 TFLOP/s" in roofline.series[-1].name
    assert size.series[1].points == ((13.1 * 9.9e-3, 13.1), (80.0, 400))


def test_a_bench_without_ceilings_says_so(tmp_path):
    file = tmp_path / "b.json"
    file.write_text(json.dumps({k: v for k, v in BENCH.items() if k != "ceilings"}))
    roofline = bench_page.part(bench_page.read(file)).pages[1].blocks[1]
    assert "not measured" in roofline.note and not any(s.line for s in roofline.series)


def test_a_bench_of_nothing_has_no_plots(bench):
    part = bench_page.part(replace(bench_page.read(bench), rows=(), left_out=(), geomean=None))
    assert [p.title for p in part.pages] == ["Measured times"]
    check_html(html.book(Book(title="B", parts=(part,))))


def test_every_field_of_a_row_is_checked():
    annotations = {str(f.type) for of in (Row, LeftOut) for f in fields(of)}
    assert annotations == {*bench_page.HOLDS}
    numbers = {f.name for f in fields(Row) if f.type in ("int", "float")}
    assert numbers - {*bench_page.NUMBERS} == {"spread"}  # which may be 0


def broken(**changes):
    return json.dumps({**BENCH, **changes})


@pytest.mark.parametrize(
    "content",
    [
        "not JSON",
        "[]",
        "{}",
        broken(rows=[{"m": 1}]),
        broken(rows=[{**BENCH["rows"][0], "microseconds": 0}]),
        broken(rows=[{**BENCH["rows"][0], "tflops": "<script>"}]),
        broken(rows=[{**BENCH["rows"][0], "gigabytes_per_second": float("nan")}]),
        broken(rows=[{**BENCH["rows"][0], "ratio": "1"}]),
        broken(rows=[{**BENCH["rows"][0], "m": True}]),
        broken(fastest=3),
        broken(ceilings={"flops": 0, "bytes": 1, "gemm": "x"}),
        broken(ceilings={"flops": float("inf"), "bytes": 1, "gemm": "x"}).replace(
            "Infinity", "1e999"
        ),
        broken(rows=[{**BENCH["rows"][0], "tflops": 10**400}]),
        broken(geomean_ratio="1"),
        "[" * 100_000,
    ],
)
def test_what_no_bench_wrote_is_refused(tmp_path, content, capsys):
    file = tmp_path / "b.json"
    file.write_text(content)
    with pytest.raises(ArgumentError) as e:
        bench_page.read(file)
    assert e.value.argument == "--bench"
    assert main(["report", "--bench", str(file)]) == 2


def test_names_in_a_bench_are_escaped(tmp_path):
    file = tmp_path / "b.json"
    rows = [{**BENCH["rows"][0], "provider": "<script>x</script>"}]
    file.write_text(broken(rows=rows, gpu="<img src=x>"))
    check_html(html.book(Book(title="B", parts=(bench_page.part(bench_page.read(file)),))))


# ---- the command --------------------------------------------------------------------------


def test_command(bench, tmp_path, capsys):
    file = tmp_path / "r.html"
    kernels = ("fp8_block/base", "dense")
    assert main(["report", *kernels, *SHAPE, "--bench", str(bench), "-o", str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    document = file.read_text()
    checker = check_html(document)
    assert "http" not in document.replace("http://www.w3.org", "")
    names = ("A in shared memory", "D&#x27;s tile", "Timeline, simulated", "Proof", "Roofline")
    assert all(name in document for name in names)
    assert checker.tags.count("svg") > 15 and checker.tags.count("h2") == 3
    assert main(["report", "dense", *SHAPE, "-o", str(file)]) == 0, "over its own file"
    file.write_text("mine")
    assert main(["report", "dense", *SHAPE, "-o", str(file)]) == 2 and file.read_text() == "mine"


def test_command_is_deterministic(tmp_path, capsys):
    pages = []
    for _ in range(2):
        assert main(["report", "dense/tn", *SHAPE, "-o", str(tmp_path / "r.html")]) == 0
        pages.append((tmp_path / "r.html").read_bytes())
    assert pages[0] == pages[1]


def test_command_to_the_terminal_and_as_json(bench, capsys):
    assert main(["report", "--bench", str(bench)]) == 0
    out = capsys.readouterr().out
    assert "Bench of dense on H200\n=====" in out and "TFLOP/s against size" in out
    assert main(["report", "--bench", str(bench), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"][0]["pages"][1]["title"] == "Plots"


def test_command_needs_something(capsys):
    assert main(["report"]) == 2 and "KERNEL" in capsys.readouterr().err
    assert main(["report", "nothing"]) == 2 and "fp8_block" in capsys.readouterr().err
