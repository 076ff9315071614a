"""The database of measured configs: its text, its merging, and which launch a row serves. No GPU is needed."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace

import pytest
from kernels import DENSE, FP8

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose, tuned
from gemmgen.heuristics import database as database_text
from gemmgen.heuristics.database import Row, Timed, from_line, load, merge, scan, to_line, to_text
from gemmgen.heuristics.lines import lines_of, start, starts_of
from gemmgen.heuristics.tuned import NONE, VARIABLE, lookup, pick
from gemmgen.ir.dtypes import F32
from gemmgen.ir.expr import ACC, DeviceScalar, PerColumn, PerRow
from gemmgen.pipeline import lower
from gemmgen.target import H200

DEVICE = H200.device_name
TUNED = Config(block_m=128, block_n=176, in_flight=1, panel=16)


def row(problem=DENSE, shape=(4096, 4096, 4096), seconds=1.5e-4, config=TUNED, **changes):
    given = {
        "problem": problem,
        "groups": 1,
        "shape": shape,
        "device": DEVICE,
        "nvrtc": (13, 0),
        "best": Timed(config=config, seconds=seconds, predicted=1.4e-4),
        "spread": 0.01,
        "default": Timed(config=Config(), seconds=1.6e-4, predicted=1.3e-4),
        "reference": ("torch.mm", 1.7e-4),
        "tried": ((1.3e-4, 1.6e-4), (1.4e-4, seconds)),
        "failed": 1,
    }
    return Row(**given | changes)


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Write rows to the user's database; no other is asked."""
    path = tmp_path / "tuned.jsonl"
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "none.jsonl")
    monkeypatch.setenv(VARIABLE, str(path))

    def write(*rows, text=None):
        path.write_text(to_text(rows) if text is None else text)
        tuned.forget()
        return path

    yield write
    tuned.forget()


# ---- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one",
    [
        row(),
        row(reference=None, tried=()),
        row(default=Timed(config=Config(), seconds=None, predicted=1e-4)),
        row(replace(FP8, grouping="masked"), (192, 4096, 7168), groups=32),
        row(replace(DENSE, epilogue=ACC * PerRow("x") + 2.0), config=Config(registers=(24, 240))),
    ],
    ids=range(5),
)
def test_a_line_and_back(one):
    line = to_line(one)
    assert from_line(line) == one and to_line(from_line(line)) == line
    assert "\n" not in line and line.startswith('{"gemmgen": 1, "problem": ')


def test_a_line_names_only_what_differs_from_the_defaults():
    data = json.loads(to_line(row()))
    assert data["config"] == {"block_n": 176, "in_flight": 1, "panel": 16}
    assert data["default"]["config"] == {}
    assert data["nvrtc"] == "13.0" and (data["m"], data["n"], data["k"]) == (4096, 4096, 4096)


def test_seconds_have_four_digits():
    assert json.loads(to_line(row(seconds=1.23456789e-4)))["seconds"] == 1.235e-4


def test_a_file_is_sorted_and_merged_whatever_the_order():
    rows = [row(shape=(m, n, 512), seconds=s) for m in (64, 8, 1024) for n in (512, 4096)
            for s in (1e-5, 2e-5)]  # fmt: skip
    rows += [row(FP8), row(device="NVIDIA H100 80GB HBM3"), row(groups=2)]
    texts = set()
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        texts.add(to_text(rows))
    (text,) = texts
    kept = [from_line(line) for line in text.splitlines()]
    assert len(kept) == 9 and {r.best.seconds for r in kept} == {1e-5, 1.5e-4}
    assert kept == sorted(kept, key=lambda r: r.key)
    m_of = [r.shape[0] for r in kept if r.shape[1:] == (4096, 512)]
    assert m_of == [8, 64, 1024]


def test_merging_keeps_the_faster_or_the_newer_compilers():
    fast, slow, newer = row(), row(seconds=2e-4), row(seconds=3e-4, nvrtc=(13, 10))
    older = row(seconds=1e-9, nvrtc=(12, 9))
    assert merge([slow, fast]) == merge([fast, slow]) == [fast]
    assert merge([fast, newer, older]) == merge([older, newer, fast]) == [newer]


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"gemmgen": 2}, "gemmgen"),
        ({"problem": None}, "problem"),
        ({"problem": {"family": "dense", "a": "bf16", "b": "f4"}}, "b"),
        ({"groups": 0}, "groups"),
        ({"m": True}, "m"),
        ({"k": 1.5}, "k"),
        ({"nvrtc": "13"}, "nvrtc"),
        ({"config": {"block_n": 17}}, "block_n"),
        ({"config": {"tile": 17}}, "tile"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": None}, "seconds"),
        ({"spread": "1"}, "spread"),
        ({"default": {"config": {}, "predicted": 0}}, "default.predicted"),
        ({"reference": {"name": "x"}}, "reference.seconds"),
        ({"tried": [[1]]}, "tried"),
        ({"device": 3}, "device"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, change, argument):
    path = tmp_path / "x.jsonl"
    path.write_text(to_line(row()) + "\n\n" + json.dumps(json.loads(to_line(row())) | change))
    with pytest.raises(ArgumentError) as e:
        load(path)
    assert e.value.argument == f"{path} line 3: {argument}" and e.value.allowed
    assert scan(path)[0] == [row()]


@pytest.mark.parametrize("text", ['{"gemmgen": 1', "[]", "<<<<<<< HEAD"])
def test_what_is_no_row(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="line 1: row"):
        load(path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        load(tmp_path / "absent.jsonl")


# ---- lookup ---------------------------------------------------------------------------------------


def test_the_exact_shape(database):
    database(row())
    assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == TUNED
    found = pick(DENSE, (4096, 4096, 4096))
    assert found.config == TUNED and found.source((4096, 4096, 4096)) == "tuned"


@pytest.mark.parametrize(
    ("problem", "shape", "device", "groups"),
    [
        (DENSE, (4096, 4104, 4096), DEVICE, 1),
        (DENSE, (4096, 4096, 4104), DEVICE, 1),
        (DENSE, (4096, 4096, 4096), "NVIDIA H100 80GB HBM3", 1),
        (DENSE, (4096, 4096, 4096), DEVICE, 2),
        (replace(DENSE, layout="tn"), (4096, 4096, 4096), DEVICE, 1),
        (replace(DENSE, epilogue=EPILOGUES["bias"]), (4096, 4096, 4096), DEVICE, 1),
        (FP8, (4096, 4096, 4096), DEVICE, 1),
    ],
)
def test_another_place_is_not_served(database, problem, shape, device, groups):
    database(row())
    assert lookup(problem, shape, device, groups) is None


def test_names_of_arguments_and_brackets_do_not_matter(database):
    database(row(replace(DENSE, epilogue=EPILOGUES["tensor_scaled"])))
    same = ACC * DeviceScalar("mine") * DeviceScalar("yours")
    assert lookup(replace(DENSE, epilogue=same), (4096, 4096, 4096), DEVICE) == TUNED
    other = ACC * PerRow("mine") * PerColumn("yours")
    assert lookup(replace(DENSE, epilogue=other), (4096, 4096, 4096), DEVICE) is None


def test_what_is_ready_is_loaded_ahead_whatever_is_chosen(database):
    database(row())
    ready, ahead = replace(DENSE, weights_ready=True), {"pdl": True, "weights_ahead": True}
    for shape, measured in (((4096, 4096, 4096), True), ((77, 512, 512), False)):
        plain, found = pick(DENSE, shape), pick(ready, shape)
        assert found.config == replace(plain.config, **ahead) and found.row == plain.row
        assert (found.row is not None) == measured
        lower(ready, found.config)
        another = pick(ready, shape, unbuilt={found.config: "no room"}).config
        assert another == replace(
            pick(DENSE, shape, unbuilt={plain.config: "no room"}).config, **ahead
        )
        assert another != found.config
    promised = row(problem=ready, shape=(64, 512, 512))
    database(promised)
    assert pick(DENSE, (64, 512, 512)).row == promised


def test_a_measured_config_that_the_build_refuses_ahead_is_passed_over(database):
    """Also one that was measured with pdl."""
    shape = (4096, 4096, 4096)
    database(row(config=replace(TUNED, pdl=True)))
    ready = replace(DENSE, weights_ready=True)
    refused = pick(ready, shape).config
    assert refused == replace(TUNED, pdl=True, weights_ahead=True)
    assert pick(ready, shape, unbuilt={refused: "no room"}).row is None


@pytest.mark.parametrize("grouping", ("masked", "rows", "ends"))
def test_where_a_table_says_whose_weights_come_first_nothing_is_ahead(database, grouping):
    database()
    plain, shape = replace(DENSE, grouping=grouping), (512, 512, 512)
    ready = replace(plain, weights_ready=True)
    assert pick(ready, shape, groups=4).config == pick(plain, shape, groups=4).config


@pytest.mark.parametrize("collective", ("all_gather", "reduce_scatter", "all_reduce"))
def test_where_ranks_work_together_nothing_is_ahead(database, collective):
    """Their launches follow each other."""
    database()
    plain, shape = replace(DENSE, collective=collective), (4096, 4096, 512)
    ready = replace(plain, weights_ready=True)
    config = pick(ready, shape, groups=2).config
    assert config == pick(plain, shape, groups=2).config
    lower(ready, config)


def test_a_measured_config_that_divides_k_is_not_for_who_wants_it_whole(database):
    """Then the cost model chooses, among those that do not."""
    shape = (64, 512, 8192)
    parted = replace(TUNED, block_n=64, split_k=2, panel=1)
    database(row(shape=shape, config=parted))
    assert pick(DENSE, shape).config == parted
    whole = pick(DENSE, shape, split_k=1)
    assert whole.row is None and whole.config == choose(DENSE, shape, H200, split_k=1)
    assert whole.config.split_k == 1 < choose(DENSE, shape, H200).split_k
    database(row(shape=shape))
    assert pick(DENSE, shape, split_k=1).config == TUNED


def test_where_groups_split_k_its_mean_is_the_nearest(database):
    p = replace(FP8, family="fp8_1d1d", d=F32, grouping="k_flat")
    config = Config(block_n=144, stages=3)
    database(row(p, (4096, 7168, 8192), groups=4, config=config))
    assert lookup(p, (4096, 7168, 8192), DEVICE, 4) == config
    assert lookup(p, (4096, 7168, 7000), DEVICE, 4) == config
    assert pick(p, (4096, 7168, 7000), groups=4).source((4096, 7168, 7000)) == "tuned at K=8192"
    for shape, groups in (
        ((4096, 7168, 6000), 4),
        ((4000, 7168, 8192), 4),
        ((4096, 7168, 8192), 8),
    ):
        assert lookup(p, shape, DEVICE, groups) is None


def test_the_nearest_m_with_as_many_waves(database):
    near, far = Config(block_m=64, consumers=1), Config(block_m=64, consumers=1, panel=4)
    database(
        row(shape=(96, 512, 512), config=near),
        row(shape=(128, 512, 512), config=far),
        row(shape=(4096, 4096, 4096)),
    )
    assert lookup(DENSE, (100, 512, 512), DEVICE) == near
    assert lookup(DENSE, (112, 512, 512), DEVICE) == far  # nearer as a ratio
    assert lookup(DENSE, (72, 512, 512), DEVICE) == near  # 3/4 of it
    assert lookup(DENSE, (71, 512, 512), DEVICE) is None
    assert pick(DENSE, (100, 512, 512)).source((100, 512, 512)) == "tuned at M=96"
    # 32 x 24 tiles of 128 x 176: 6 waves of 132 SMs; 34 x 24: 7.
    assert lookup(DENSE, (4090, 4096, 4096), DEVICE) == TUNED
    assert lookup(DENSE, (4352, 4096, 4096), DEVICE) is None


def test_many_waves_may_differ_by_one_in_sixteen(database):
    database(row(shape=(65536, 4096, 4096)))
    assert lookup(DENSE, (65536 + 1024, 4096, 4096), DEVICE) == TUNED
    assert lookup(DENSE, (65536 + 8192, 4096, 4096), DEVICE) is None


def test_an_illegal_config_is_passed_over(database, caplog):
    shape = (4096, 4096, 4096)
    database(row(config=Config(block_n=256, stages=16)), row(shape=(4095, *shape[1:])))
    with caplog.at_level(logging.DEBUG, "gemmgen"):
        assert lookup(DENSE, shape, DEVICE) == TUNED  # of the neighbour
    assert "smem-capacity" in caplog.text
    database(row(config=Config(block_n=256, stages=16)))
    assert lookup(DENSE, shape, DEVICE) is None
    found = pick(DENSE, shape)
    assert found.config == choose(DENSE, shape, H200) and found.source(shape) == "cost model"


def test_corrupt_lines_are_one_warning(database):
    database(text=to_line(row()) + "\nnonsense\n{}\n")
    with pytest.warns(RuntimeWarning, match=r"line 2.*2 such lines") as caught:
        assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == TUNED
        assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == TUNED
    assert len(caught) == 1


def test_only_lines_of_the_shape_are_read(database, monkeypatch):
    shapes = [(4096, n, k) for n in (512, 1024) for k in (256, 512)]
    database(
        *(row(shape=s) for s in shapes), *(row(FP8, s, groups=g) for s in shapes for g in (1, 2))
    )
    read = []
    monkeypatch.setattr(
        database_text, "from_line", lambda text: read.append(text) or from_line(text)
    )
    assert (
        lookup(DENSE, (4096, 512, 256), DEVICE) == lookup(DENSE, (4000, 512, 256), DEVICE) == TUNED
    )
    assert [from_line(text) for text in read] == [row(shape=(4096, 512, 256))]


def test_a_line_in_another_form_is_read_at_once(database):
    """Whatever the order of its fields, spaces and escapes."""
    data = json.loads(to_line(row()))
    turned = {x: data[x] for x in reversed(data)}
    problem = {x: data["problem"][x] for x in reversed(data["problem"])}
    for text in (
        json.dumps(turned),
        json.dumps(data | {"problem": problem}),
        json.dumps(data, separators=(",", ":")),
        to_line(row()).replace("NVIDIA", "\\u004eVIDIA"),
        f" {to_line(row())}",
    ):
        assert not starts_of(text)
        database(text=f"{text}\n{to_line(row(seconds=1.0, config=Config()))}\n")
        assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == TUNED


def test_a_wrong_field_is_a_warning_when_the_line_is_asked_for(database):
    database(text=to_line(row()) + "\n" + to_line(row(FP8)).replace('"failed": 1', '"failed": -1'))
    assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == TUNED
    with pytest.warns(RuntimeWarning, match=r"line 2: failed") as caught:
        assert lookup(FP8, (4096, 4096, 4096), DEVICE) is None
        assert lookup(FP8, (4096, 4096, 4096), DEVICE) is None
    assert len(caught) == 1


def test_a_missing_database_is_one_warning(database, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nowhere/tuned.jsonl")
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        assert lookup(DENSE, (4096, 4096, 4096), DEVICE) is None


def test_the_users_database_comes_first(database, tmp_path, monkeypatch):
    shipped = tmp_path / "shipped.jsonl"
    shipped.write_text(to_text([row(config=Config()), row(FP8, config=Config())]))
    monkeypatch.setattr(tuned, "SHIPPED", shipped)
    database(row())
    assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == TUNED
    assert lookup(FP8, (4096, 4096, 4096), DEVICE) is not None
    monkeypatch.setenv(VARIABLE, "")
    assert lookup(DENSE, (4096, 4096, 4096), DEVICE) == Config()
    monkeypatch.setenv(VARIABLE, NONE)
    assert lookup(DENSE, (4096, 4096, 4096), DEVICE) is None


def test_what_is_shipped_loads_and_is_found():
    rows = load(tuned.SHIPPED)
    lines = lines_of(tuned.SHIPPED)
    assert rows and not lines.rows and not lines.errors
    for r in rows:
        found, errors = lines.found(start(r.device, r.problem, r.groups, r.shape))
        assert r in found and not errors


def test_commands_say_where_the_config_is_from(database, capsys):
    database(row())
    for argv, source in (
        (["dense"], "tuned"),
        (["dense", "-m", "4090"], "tuned at M=4096"),
        (["dense", "-n", "512"], "cost model"),
        (["dense", "--set", "raster=n"], "tuned, changed"),
        (["dense", "-n", "512", "--set", "panel=3"], "cost model, changed"),
        (["dense", "--config", "{}"], "given"),
        (["dense", "--config", "{}", "--set", "block_n=64"], "given, changed"),
        (["dense/n256", "--set", "panel=3"], "gallery, changed"),
        (["dense/n256"], "gallery"),
    ):
        assert main(["emit", *argv, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["config_from"] == source
