"""`gemmgen moe`: what it asks for, prints and writes. No GPU is needed here; tests/tools/test_bench_moe.py has what it times."""

from __future__ import annotations

import csv
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gemmgen.bench import moe
from gemmgen.bench.moe import WAYS
from gemmgen.bench.moe_sizes import MODELS
from gemmgen.cli import main, moe_command
from gemmgen.runtime import driver

OWN = ("--experts", "16", "--top", "2", "--hidden", "1024", "--intermediate", "512")


@pytest.fixture
def asked(monkeypatch):
    """What was measured: numbers of tokens, and the rest."""
    found = []

    def measure(asked, counts, log):
        found.append((asked, [*counts]))
        return [row(tokens=n) for n in found[-1][1]]

    log = SimpleNamespace(source="NVML")
    monkeypatch.setattr(driver, "require_hopper", lambda device: "NVIDIA H100")
    monkeypatch.setattr(driver, "pci_bus_id", lambda device: "0000:01:00.0")
    monkeypatch.setattr(moe_command, "watch", lambda bus_id: nullcontext(log))
    monkeypatch.setattr(moe, "measure", measure)
    return found


def row(**changes):
    names = ("route", "cast", "spread", "GEMM 1", "GEMM 2", "combine")
    launches = dict(zip(names, (5.0, 2.0, 3.0, 60.0, 40.0, 4.0), strict=True))
    given = {"tokens": 8, "touched": 60, "launches": launches, "kernels": 114.0, "spread": 0.01}
    given |= {"graph": 120.0, "graph_spread": 0.02, "torch": 240.0, "read": 95.0}
    given |= {"eager": {"gemmgen": 150.0, "torch": 300.0}}
    apart = {"eager": 30.0, "graph": 1.0}  # from a launch to the next
    given |= {
        "timeline": {
            way: tuple((n, i * (60 + gap), us) for i, (n, us) in enumerate(launches.items()))
            for way, gap in apart.items()
        }
    }
    return moe.Row(**given | changes)


def test_what_is_printed(asked, capsys):
    assert main(["moe", "--model", "qwen3", "--tokens", "1,64"]) == 0
    first, how, head, one, other, clocks = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "NVIDIA H100: qwen3: experts 128, top 8, hidden 4096, intermediate 1536"
    )
    assert "cold L2" in how and clocks == "clocks: NVML"
    assert head.split()[:6] == ["tokens", "experts", "route", "cast", "spread", "GEMM"]
    assert head.endswith("over read  gemmgen eager  torch eager") and "deep_gemm" not in head
    values = "60 5.0 2.0 3.0 60.0 40.0 4.0 114.0 1.140 120.0 240.0 0.500 95.0 1.200 150.0 300.0"
    assert one.split() == ["1", *values.split()] and other.split() == ["64", *values.split()]
    assert asked[0][0].sizes == MODELS["qwen3"] and asked[0][1] == [1, 64]


def test_what_was_not_timed_has_no_number(asked, capsys, monkeypatch):
    kept = {n: us for n, us in row().launches.items() if n != "cast"} | {"cast_other": 1.0}
    rows = [
        row(torch=None, left_out={"torch": "fails: RuntimeError: no"}, eager={"gemmgen": 1.0}),
        row(read=None, torch=None, launches=kept, left_out={"torch": "fails: no"}),
    ]
    monkeypatch.setattr(moe, "measure", lambda *_: rows)
    assert main(["moe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cast_other" in lines[2]
    assert lines[3].split().count("-") == 4 and lines[4].split().count("-") == 5
    assert lines[5].split(maxsplit=1) == ["8", "torch not timed: fails: RuntimeError: no"]
    assert lines[6].split(maxsplit=1) == ["8", "torch not captured: fails: no"]


def test_chains_have_columns(asked, capsys, monkeypatch, tmp_path):
    chains = {"deep_gemm": 200.0, "deep_gemm casts": 160.0}
    eager = {"gemmgen": 150.0, **dict.fromkeys(chains, 300.0)}
    why = {"deep_gemm casts": "fails: no"}
    rows = [
        row(chains=chains, eager=eager, torch=None),
        row(chains={"deep_gemm": 180.0}, eager=eager, left_out=why, torch=None),
    ]
    monkeypatch.setattr(moe, "measure", lambda *found: asked.append(found) or rows)
    assert main(["moe", "--providers", "gemmgen,deep_gemm", "-o", str(tmp_path)]) == 0
    assert asked[0][0].providers == ("gemmgen", "deep_gemm")
    _, _, head, one, other, left_out, _ = capsys.readouterr().out.splitlines()
    after = "deep_gemm  over deep_gemm  deep_gemm casts  over deep_gemm casts  gemmgen eager"
    assert after in head
    timed = ["150.0", "300.0", "300.0"]
    assert one.split()[-7:] == ["200.0", "0.600", "160.0", "0.750", *timed]
    assert other.split()[-7:] == ["180.0", "0.667", "-", "-", *timed]
    assert left_out.split(maxsplit=1) == ["8", "deep_gemm casts not captured: fails: no"]
    found = json.loads((tmp_path / "moe.json").read_text())["rows"]
    assert found[0]["chains"] == chains and found[0]["over_deep_gemm_casts"] == 0.75
    assert found[1]["left_out"] == why
    lines = [*csv.DictReader((tmp_path / "moe.csv").read_text().splitlines()[1:])]
    assert [x["deep_gemm casts"] for x in lines] == ["160.0", ""]
    assert [x["left_out"] for x in lines] == ["", "deep_gemm casts not captured: fails: no"]
    assert lines[0]["deep_gemm eager"] == "300.0" and "chains" not in lines[0]


def test_options(asked, capsys):
    options = ["--tokens", "3", "--router", "zipf", "--providers", "gemmgen,read"]
    options += ["--kind", "int8-rows"]
    assert main(["moe", *OWN, *options, "--repeats", "2", "--seed", "7"]) == 0
    (got, counts) = asked[0]
    assert counts == [3] and got.sizes.weights == 3 * 1024 * 512
    assert (got.router, got.providers, got.repeats, got.seed) == ("zipf", ("gemmgen", "read"), 2, 7)
    printed = capsys.readouterr().out
    assert got.kind == "int8-rows" and "a layer: experts 16, top 2" in printed
    assert "INT8 with a scale per token and channel, microseconds" in printed
    assert main(["moe"]) == 0
    assert "FP8 with block scales, microseconds" in capsys.readouterr().out
    assert asked[1][0].sizes == MODELS["v3"] and len(asked[1][1]) > 3


def test_json_and_files(asked, capsys, tmp_path):
    for _ in range(2):  # its own files are written over
        assert main(["moe", "--tokens", "8,9", "--json", "-o", str(tmp_path)]) == 0
        report = json.loads(capsys.readouterr().out)
    assert (report["model"], report["experts"], report["router"]) == ("v3", 256, "even")
    first = report["rows"][0]
    assert first["over_gemms"] == pytest.approx(1.14) and first["gemms"] == 100
    assert first["launches"]["GEMM 2"] == 40
    kept = json.loads((tmp_path / "moe.json").read_text())
    assert kept == {"generator": "gemmgen bench", **report}
    mark, *lines = (tmp_path / "moe.csv").read_text().splitlines()
    rows = [*csv.DictReader(lines)]
    assert mark == "# gemmgen bench" and [r["tokens"] for r in rows] == ["8", "9"]
    assert rows[0]["GEMM 1"] == "60.0" and rows[0]["over_torch"] == "0.5"


def test_a_timeline(asked, capsys, tmp_path):
    """A process per number of tokens and way, with each launch where it began."""
    file = tmp_path / "layer.json"
    assert main(["moe", "--tokens", "8,9", "--trace", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    trace = json.loads(file.read_text())
    assert trace["otherData"]["model"] == "v3" and trace["otherData"]["source"] == "timed"
    names = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert [*names.values()] == [f"{n} tokens, {way}" for n in (8, 9) for way in WAYS]
    of_second = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert [[e["name"], e["ts"], e["dur"]] for e in of_second] == rows[0]["timeline"]["graph"]


@pytest.mark.parametrize(
    ("options", "name"),
    (
        (("--model", "zz"), "--model"),
        (("--model", "v3", *OWN), "--model"),
        (OWN[:-2], "--intermediate"),
        (OWN[2:], "--experts"),
        ((*OWN, "--experts", "513"), "--experts"),
        ((*OWN, "--top", "17"), "--top"),
        ((*OWN, "--top", "0"), "--top"),
        ((*OWN, "--hidden", "1000"), "--hidden"),
        ((*OWN, "--intermediate", "-16"), "--intermediate"),
        *((("--tokens", x), "--tokens") for x in ("", "0", "1,", "-1", "1.5", "9999999999", "²")),
        *((("--providers", x), "--providers") for x in ("", "torch", "gemmgen,zz", "all")),
        (("--router", "zz"), "--router"),
        (("--kind", "fp8"), "--kind"),
        (("--kind", "int4", "--model", "gpt-oss"), "--hidden"),
        ((*OWN[:-1], "528", "--kind", "mxfp4"), "--intermediate"),
        (("--kind", "int8-rows", "--providers", "gemmgen,deep_gemm"), "--kind"),
        (("--repeats", "1"), "--repeats"),
        (("--seed", "-1"), "--seed"),
        (("--seed", str(1 << 63)), "--seed"),
        (("-o", ""), "-o"),
    ),
    ids=str,
)
def test_what_is_wrong_is_named(asked, capsys, options, name):
    assert main(["moe", *options, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["argument"] == name and not asked


def test_without_a_gpu(capsys):
    assert main(["moe", "--tokens", "0"]) == 2  # what is wrong comes first
    capsys.readouterr()
    try:
        driver.require_hopper(0)
    except moe.RuntimeUnavailable as missing:
        assert main(["moe"]) == 3
        assert str(missing) in capsys.readouterr().err
    else:
        pytest.skip("there is a GPU")
