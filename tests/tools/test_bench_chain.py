"""Chains of GEMMs: what each reads, how they are replayed, what is printed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from kernels import DENSE, FP8

from gemmgen.bench import chain as chains
from gemmgen.bench.cases import product
from gemmgen.bench.clocks import Log
from gemmgen.bench.data import Data
from gemmgen.bench.modes import Method
from gemmgen.bench.providers import Provider
from gemmgen.bench.timing import FLUSH_BYTES, MARK_BYTES, WARMUP, Samples
from gemmgen.bench.work import work
from gemmgen.cli import bench_chain, bench_command, main
from gemmgen.errors import VerificationError

SHAPES = ((16, 64, 128), (16, 96, 64), (16, 64, 128), (16, 32, 64))  # the second and the last read
CPU = Data(device="cpu")


def multiplies(name="ours", library="gemmgen", fresh=False, spoil=0.0):
    """A provider in float64, which writes the same tensor again, or a new one."""

    def make(case, _):
        out = case.out()

        def call():
            d = product(case, "plain").to(out.dtype) + spoil
            return d if fresh else out.copy_(d)

        return call

    return Provider(name=name, library=library, takes=bool, make=make, scaling="plain")


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    for module in (chains, __import__("gemmgen.bench.contest", fromlist=["x"])):
        monkeypatch.setattr(module, "Data", lambda kind: Data(kind=kind, device="cpu"))
    return torch


def entered(*providers):
    return [providers] * len(SHAPES)


def test_each_reads_what_the_one_before_wrote_where_it_can(torch):
    told = []
    step = partial(told.append, "one")
    made = chains.chains(DENSE, SHAPES, entered(multiplies()), CPU, verify=True, step=step)
    assert len(told) == 1
    ours = made.found["ours"]
    assert ours.linked == 2 and not made.left_out
    once = ours().clone()
    assert torch.equal(ours(), once) and once.abs().mean() > 0.1


def test_outputs_of_another_dtype_are_not_read(torch):
    p = replace(FP8, family="dense")
    made = chains.chains(p, SHAPES, entered(multiplies()), CPU, verify=False)
    assert made.found["ours"].linked == 0


def test_new_outputs_are_not_read(torch):
    made = chains.chains(DENSE, SHAPES, entered(multiplies(fresh=True)), CPU, verify=True)
    assert made.found["ours"].linked == 0


def test_wrong_ones_are_left_out(torch):
    others = multiplies(), multiplies("theirs", "torch", spoil=3.0)
    made = chains.chains(DENSE, SHAPES, entered(*others), CPU, verify=True)
    assert [*made.found] == ["ours"] and made.left_out["theirs"].startswith("wrong result")
    with pytest.raises(VerificationError):
        chains.chains(DENSE, SHAPES, entered(multiplies(spoil=3.0)), CPU, verify=True)


@pytest.mark.parametrize("lost", [False, True])
def test_a_replay_does_what_the_calls_do(torch, monkeypatch, lost):
    """A graph that lacks the last GEMM leaves zeros."""
    made = chains.chains(DENSE, SHAPES, entered(multiplies()), CPU, verify=False)

    def captured(each, times):
        assert times == 1
        calls = each.calls[:-1] if lost else each.calls
        return lambda: [call() for call in calls]

    monkeypatch.setattr(chains, "captured", captured)
    if not lost:
        assert [*chains.graphs(made.found, verify=True)] == ["ours"]
        return
    with pytest.raises(VerificationError):
        chains.graphs(made.found, verify=True)
    assert [*chains.graphs(made.found, verify=False)] == ["ours"]


# ---- times, over a fake device --------------------------------------------------------------


@pytest.mark.parametrize(("l2", "size"), [(None, FLUSH_BYTES), ("warm", MARK_BYTES)])
def test_replays_take_turns_after_a_flush(monkeypatch, l2, size):
    device = SimpleNamespace(now=0.0, ran=[])

    def run(name, seconds):
        device.ran.append(name)
        device.now += seconds

    def empty(count, **_):
        assert count == size // 4
        return SimpleNamespace(bitwise_not_=lambda: run("flush", 1.0))

    def event():
        at = device.now
        return SimpleNamespace(
            at=at, synchronize=lambda: None, elapsed_time=lambda other: (other.at - at) * 1e3
        )

    cuda = SimpleNamespace(synchronize=lambda: None)
    fake = SimpleNamespace(empty=empty, cuda=cuda, int32="int32")
    monkeypatch.setattr(chains, "torch", lambda: fake)
    monkeypatch.setattr(chains, "event", event)
    replays = {"a": lambda: run("a", 0.25), "b": lambda: run("b", 0.5)}
    method = Method(mode="chain", l2=l2, repeats=3)
    found = chains.measure(method, replays, Log(source="none"))
    assert found["a"].seconds == (0.25,) * 3 and found["b"].seconds == (0.5,) * 3
    assert device.ran == ["flush", "a", "flush", "b"] * (WARMUP + 3)


# ---- what is printed ------------------------------------------------------------------------


def samples(us):
    return Samples(seconds=(us * 1e-6,) * 3, kernels=())


def test_rows_are_of_the_whole_chain():
    times = {"gemmgen": samples(12.0), "torch.mm": samples(16.0), "read": samples(10.0)}
    linked = {"gemmgen": 2, "torch.mm": 1, "read": 0}
    ours, theirs, floor = bench_chain.rows(DENSE, SHAPES, times, linked, "torch.mm")
    assert (ours.ratio, ours.over_read) == pytest.approx((0.75, 1.2)) and ours.linked == 2
    assert (theirs.ratio, theirs.over_read) == pytest.approx((1.0, 1.6))
    assert (floor.ratio, floor.over_read) == (None, 1.0)
    done = [work(DENSE, shape) for shape in SHAPES]
    assert ours.gigabytes_per_second == pytest.approx(sum(w.bytes for w in done) / 12e-6 * 1e-9)
    assert floor.gigabytes_per_second == pytest.approx(sum(w.inputs for w in done) / 10e-6 * 1e-9)
    alone = bench_chain.rows(DENSE, SHAPES, {"gemmgen": times["gemmgen"]}, linked, "torch.mm")[0]
    assert (alone.ratio, alone.over_read) == (None, None)


@pytest.fixture
def faked(monkeypatch):
    def measure(args, p, chain, method, data, log, bar):
        times = {"gemmgen": samples(12.0), "read": samples(10.0)}
        made = bench_chain.rows(p, chain, times, {"gemmgen": 0, "read": 0}, "torch.mm")
        return {
            "chain": [list(shape) for shape in chain],
            "configs": [{"config": "64x64", "config_from": "tuned"}] * len(chain),
            "rows": [vars(r) for r in made],
            "left_out": {"torch.mm": "fails: x"},
        }

    @contextmanager
    def watch(bus):
        yield Log(source="none")

    monkeypatch.setattr(bench_chain, "measure", measure)
    monkeypatch.setattr(bench_chain, "watch", watch)
    monkeypatch.setattr(bench_command.driver, "require_hopper", lambda device: "H200")
    monkeypatch.setattr(bench_command.driver, "pci_bus_id", lambda device: "0000:01:00.0")


CHAIN = ["bench", "fp8_block", "--mode", "chain", "--shapes", "16x256x512,16x128x256"]
GIVEN = ["--providers", "gemmgen,read"]


def test_the_table(faked, capsys, tmp_path):
    assert main([*CHAIN, *GIVEN, "-o", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "a chain replayed from a CUDA graph" in lines[0] and "cold L2" in lines[0]
    assert lines[1] == "chain of 2: 16x256x512, 16x128x256"
    assert lines[3].split()[:2] == ["gemmgen", "12.00"] and lines[3].split()[5] == "1.200"
    assert lines[5].endswith("not timed: fails: x") and lines[6] == "0: 64x64 (tuned)"
    written = json.loads((tmp_path / "chain.json").read_text())
    assert written["chain"] == [[16, 256, 512], [16, 128, 256]]


def test_json(faked, capsys):
    assert main([*CHAIN, *GIVEN, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"][1]["provider"] == "read" and report["kernel"] == "fp8_block"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--grouping", "batched", "--shapes", "2x16x64x64"], "without groups"),
        (["--plot", "-o", "x"], "--plot"),
        (["--l2", "rotate"], "flush or warm"),
        (["--pace", "sustained"], "burst"),
    ],
)
def test_what_is_refused(faked, capsys, more, says):
    assert main([*CHAIN, *GIVEN, *more]) == 2
    assert says in capsys.readouterr().err
