"""`gemmgen chart`: what a bench measured, as bars; the README's picture is what the command draws today."""

from __future__ import annotations

import json
import re
import shlex
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from xml.etree import ElementTree

import pytest
from test_pictures import DIGIT, marks_of

from gemmgen.cli import main
from gemmgen.cli.bench_page import read
from gemmgen.cli.bench_plots import shape
from gemmgen.cli.chart_command import relative
from gemmgen.see.bars import WIDTH, Bar, Bars, render
from gemmgen.see.plot_picture import SIZE

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs/data/bench"
NAME = "{http://www.w3.org/2000/svg}"


def drawn(capsys, tmp_path, *arguments):
    """What is printed as JSON, and the picture."""
    target = tmp_path / "x.svg"
    code = main(["chart", *arguments, "-o", str(target), "--json"])
    out = capsys.readouterr().out
    assert code == 0, out
    return json.loads(out), target.read_text()


def test_means_are_of_the_times_that_were_measured(capsys, tmp_path):
    (data,) = drawn(capsys, tmp_path, str(DATA / "bf16.json"))[0].values()
    rows = read(DATA / "bf16.json").rows
    times = {p: [r.microseconds for r in rows if r.provider == p] for p in data}
    for provider, mean in data.items():
        product = 1.0
        for x, ours in zip(times[provider], times["gemmgen"], strict=True):
            product *= x / ours
        assert mean == pytest.approx(product ** (1 / len(times["gemmgen"])))
    assert data["gemmgen"] == 1.0


def test_a_mean_leaves_out_who_was_not_timed_everywhere(capsys, tmp_path):
    (data,) = drawn(capsys, tmp_path, str(DATA / "decode.json"))[0].values()
    rows = read(DATA / "decode.json").rows
    some = {r.provider for r in rows} - {*data}
    shapes = {(r.m, r.n, r.k) for r in rows}
    assert some == {"torch._scaled_mm blocks"}
    assert all(len([r for r in rows if r.provider == p]) == len(shapes) for p in data)


def test_every_shape_has_its_bars(capsys, tmp_path):
    data, picture = drawn(capsys, tmp_path, str(DATA / "rows.json"), "--by", "shape", "--name", "R")
    rows = read(DATA / "rows.json").rows
    assert [*data] == [f"R, {of}" for of in dict.fromkeys(map(shape, rows))]
    assert all(f">{x:.2f}" in picture for g in data.values() for x in g.values())


def test_the_fastest_is_said(capsys, tmp_path):
    data, picture = drawn(capsys, tmp_path, str(DATA / "fp8.json"), "--by", "shape")
    assert picture.count(" fastest<") == len(data)
    for name, times in data.items():
        best = min(times, key=times.get)
        said = picture.partition(f"{name}: ")[2].partition(". ")[0]
        assert f"{best} {times[best]:.2f} fastest" in said


def test_a_speed_up_is_over_the_fastest_other(capsys, tmp_path):
    files = [str(DATA / f"{x}.json") for x in ("fp8", "bf16")]
    data, picture = drawn(capsys, tmp_path, *files, "--by", "speedup", "--name", "one")
    assert [*data] == ["one", "dense"]
    for heading, file in zip(data, files, strict=True):
        times = relative(read(Path(file)).rows)
        assert data[heading] == {
            shape: min(x for p, x in of.items() if p != "gemmgen") for shape, of in times.items()
        }
    assert f"{data['one']['4096 x 32768 x 512']:.2f} deep_gemm<" in picture
    rows = [bar for of in data.values() for bar in of.values()]
    assert picture.count('<rect class="ours"') == sum(x >= 1 for x in rows)


def test_only_some(capsys, tmp_path):
    (data,) = drawn(capsys, tmp_path, str(DATA / "fp8.json"), "--only", "deep_gemm")[0].values()
    assert [*data] == ["gemmgen", "deep_gemm"]


def with_ceilings(folder, name):
    data = json.loads((DATA / f"{name}.json").read_text())
    data["ceilings"] = {"flops": 1.5e15, "bytes": 4e12, "gemm": "a GEMM"}
    file = folder / f"{name}.json"
    file.write_text(json.dumps(data))
    return str(file)


@pytest.mark.parametrize("name", ["fp8", "decode", "bf16", "rows"])
def test_a_roofline(capsys, tmp_path, name):
    """Every row is a mark, none over another, with its numbers said; the fastest are filled."""
    data, picture = drawn(capsys, tmp_path, with_ceilings(tmp_path, name), "--by", "roofline")
    (plot,) = data.values()
    rows = read(DATA / f"{name}.json").rows
    *points, roof = plot["series"]
    assert sum(len(s["points"]) for s in points) == len(rows)
    assert roof["points"][-1][1] == 1500 and roof["line"]
    root = ElementTree.fromstring(picture)
    found = marks_of(root)
    assert len(found) == len(rows)
    for (a, b), (c, d) in combinations(found.values(), 2):
        assert max(abs(a - c), abs(b - d)) > SIZE - DIGIT
    said = root.find(f"{NAME}desc").text
    for r in rows:
        x = r.tflops * 1e3 / r.gigabytes_per_second
        assert f"{r.m} x {r.n} x {r.k}: {x:.4g}, {r.tflops:.4g} TFLOP/s" in said
    full = [m for m in root.iter(f"{NAME}path") if m.get("class") == "mark full" and len(m)]
    assert len(full) == len({(r.groups, r.m, r.n, r.k) for r in rows})


def test_a_roofline_needs_ceilings(capsys, tmp_path):
    target = tmp_path / "x.svg"
    argv = ["chart", str(DATA / "fp8.json"), "--by", "roofline", "-o", str(target)]
    assert main(argv) == 2 and not target.exists()
    error = capsys.readouterr().err
    assert "has no ceilings" in error and "gemmgen bench -o FOLDER" in error


def test_bars_are_as_long_as_they_say():
    """On one scale from 0, within the picture, ours in colour; a screen reader gets every number."""
    groups = [("one <&", [Bar(name="gemmgen", length=1.0, ours=True), Bar(name="x", length=2.5)])]
    root = ElementTree.fromstring(render(Bars(title="T", subtitle="S", groups=groups, note="N")))
    bars = [x for x in root.iter(f"{NAME}rect") if x.get("class") != "sheet"]
    widths = [float(x.get("width")) for x in bars]
    half = 0.005  # of the last digit that the picture has
    assert widths[1] == pytest.approx(2.5 * widths[0], abs=3.5 * half)
    assert [x.get("class") for x in bars] == ["ours", "theirs"]
    assert max(float(x.get("x")) + w for x, w in zip(bars, widths, strict=True)) < WIDTH
    assert root.find(f"{NAME}desc").text == "S. one <&: gemmgen 1.00, x 2.50. N"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.json"], "must be a file that `gemmgen bench"),
        (
            [str(DATA / "rows.json"), "--label", "cublas=x"],
            "one that is compared: deep_gemm, gemmgen",
        ),
        (
            [str(DATA / "rows.json"), "--by", "speedup", "--label", "gemmgen=x"],
            "one that is compared: deep_gemm",
        ),
        (
            [str(DATA / "fp8.json"), "--only", "deep_gemm", "--label", "triton blocks=x"],
            "one that is compared: deep_gemm, gemmgen",
        ),
        (
            [str(DATA / "rows.json"), "--label", "gemmgen=x", "--label", "gemmgen=y"],
            "gemmgen is called 'x' already",
        ),
        ([str(DATA / "rows.json"), "--label", "gemmgen"], "PROVIDER=TEXT"),
        ([str(DATA / "rows.json"), "--only", "cublas"], "must be one of deep_gemm, gemmgen"),
        ([str(DATA / "rows.json"), "--name", "a", "--name", "b"], "there are 1 files"),
    ],
)
def test_wrong_arguments(capsys, tmp_path, arguments, says):
    target = tmp_path / "x.svg"
    assert main(["chart", *arguments, "-o", str(target)]) == 2
    assert says in capsys.readouterr().err and not target.exists()
    assert main(["chart", str(DATA / "rows.json"), "-o", str(tmp_path / "x.png")]) == 2
    assert "must end in .svg" in capsys.readouterr().err


def test_the_pictures_of_the_docs_are_drawn_of_their_data(tmp_path, capsys, monkeypatch):
    """Each by a command that docs/performance.md says."""
    said = (ROOT / "docs/performance.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(c) for c in re.findall(r"^gemmgen (chart .*)$", said, re.M)]
    charts = {f"docs/charts/{file.name}" for file in (ROOT / "docs/charts").iterdir()}
    assert charts == {target for *_, target in commands}
    monkeypatch.chdir(ROOT)
    for *words, target in commands:
        assert main([*words, str(tmp_path / "x.svg")]) == 0, capsys.readouterr().err
        assert (tmp_path / "x.svg").read_text() == (ROOT / target).read_text()
        (tmp_path / "x.svg").unlink()


SAID = {  # of docs/performance.md: what a file measured
    "fp8": "FP8 with block scales, M = 4096, 8192",
    "decode": "FP8 with block scales, M = 1 to 128",
    "bf16": "BF16, M = 4096, 8192",
    "rows": "FP8 with block scales, experts, `rows`",
}


def results() -> list[str]:
    """The table of gemmgen's times over others': mean, least, most, at the shapes of both."""
    lines = []
    for name, what in SAID.items():
        times = relative(read(DATA / f"{name}.json").rows)
        for provider in dict.fromkeys(p for x in times.values() for p in x if p != "gemmgen"):
            ratios = [1 / x[provider] for x in times.values() if provider in x]
            cells = f"{len(ratios)} | {geometric_mean(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f}"
            lines.append(f"| {what} | `{provider}` | {cells} |")
    return lines


def test_the_table_of_results_is_of_the_data():
    said = (ROOT / "docs/performance.md").read_text()
    assert [
        x for x in said.splitlines() if x.startswith(tuple(f"| {w} |" for w in SAID.values()))
    ] == results()


def test_the_table_of_groups_is_of_the_data():
    """Beside who computes the same."""
    rows = read(DATA / "rows.json").rows
    theirs = {shape(r): r.microseconds for r in rows if r.provider == "deep_gemm"}
    lines = [
        f"| {r.groups} | {r.m} | {r.n} | {r.k} | {r.microseconds:.1f} | {100 * r.spread:.1f} % | {r.tflops:.0f} | "
        f"{theirs[shape(r)]:.1f} | {r.microseconds / theirs[shape(r)]:.3f} | {r.config} |"
        for r in rows
        if r.provider == "gemmgen"
    ]
    said = (ROOT / "docs/performance.md").read_text()
    assert said.partition("| DeepGEMM us |")[2].partition("\n\n")[0].splitlines()[2:] == lines
    mean = geometric_mean(1 / x["deep_gemm"] for x in relative(rows).values())
    assert f"geometric mean of the ratios {mean:.3f}:" in said.partition("rows.json`),")[2][:60]
