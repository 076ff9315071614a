"""What `gemmgen host` times, with launches that cost nothing. No GPU is needed here."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401
from ticking import ticking

from gemmgen.bench import host
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.heuristics.tuned import pick
from gemmgen.ops import building, calls, front
from gemmgen.runtime import driver, torch_tensors


@pytest.fixture
def machine(launches, monkeypatch):
    """Launches, with a GPU that is always done."""
    torch = torch_tensors.torch()
    waits = []
    torch.cuda.synchronize = lambda: waits.append(len(launches))
    torch.zeros = lambda shape, dtype, device: Placed(*shape, dtype=dtype)
    monkeypatch.setattr(building, "chosen", lambda *args: Config(block_n=64, stages=2))
    monkeypatch.setattr(driver, "require_hopper", lambda device: "NVIDIA H200")
    return SimpleNamespace(launches=launches, waits=waits)


def test_every_case_is_launched_and_kept(machine):
    found = host.cases(host._plain)
    assert len(found) == len(machine.launches) == 4 * 4
    assert {way for _, way in found} == {"out given", "out allocated", "bound", "driver alone"}
    assert len(front.KEPT) == 4 * 2  # what is bound is not


def test_nothing_is_checked_while_it_is_timed(machine, monkeypatch):
    found = host.cases(host._plain)
    monkeypatch.setattr(calls, "check_tensor", None)
    for call in found.values():
        call()


def test_batches_by_turns_begin_on_an_idle_gpu():
    done = []
    found = host.batched({n: lambda n=n: done.append(n) for n in "ab"}, 3, lambda: done.append("|"))
    batch = host.CALLS
    assert "".join(done) == ("|" + "a" * batch + "|" + "b" * batch) * 3 + "|"
    assert {n: len(x) for n, x in found.items()} == {"a": 3, "b": 3}
    assert all(second > 0 for x in found.values() for second in x)


def test_the_command(machine, capsys):
    assert main(["host", "--repeats", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gpu"] == "NVIDIA H200" and len(report["rows"]) == 16
    assert {*report["rows"][0]} == {"what", "how", "microseconds", "spread"}
    assert len(machine.launches) == 16 + 16 * 2 * host.CALLS
    assert main(["host", "--repeats", "2"]) == 0
    assert "fp8_block_gemm     bound" in capsys.readouterr().out


def test_batches_are_told_between_them(machine, capsys, monkeypatch):
    ticking(monkeypatch)
    assert main(["host", "--repeats", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "timing: 0 of 3",
        "timing: 1 of 3, 20 s left",
        "timing: 2 of 3, 10 s left",
    ]
    assert len(json.loads(out)["rows"]) == 16


def test_processes_are_told(monkeypatch):
    told = []
    monkeypatch.setattr(host, "_import_seconds", lambda module: 1e-3)
    monkeypatch.setattr(host, "_first_seconds", lambda call, folder: (1e-3, 2e-3))
    rows = host.imports(2, lambda done, total: told.append((done, total)))
    assert [r.what for r in rows] == [*host.MODULES]
    assert told == [(i, 6) for i in range(6)]
    told.clear()
    rows = host.first(2, lambda done, total: told.append((done, total)))
    assert len(rows) == len(host.FIRST) * len(host.STEPS)
    assert told == [(i, 3 * len(host.FIRST)) for i in range(3 * len(host.FIRST))]


def test_operators_beside_the_front_door(machine, monkeypatch, capsys):
    called = []

    def operator(name):
        def out(*given, out, **options):
            called.append((name, len(given), out is not None, *options))

        return SimpleNamespace(out=out)

    names = ("gemm", "fp8_block_gemm", "masked_gemm", "k_grouped_gemm")
    registered = SimpleNamespace(**{name: operator(name) for name in names})
    torch_tensors.torch().ops = SimpleNamespace(gemmgen=registered)
    monkeypatch.setitem(sys.modules, "gemmgen.torch_ops", SimpleNamespace())
    assert main(["host", "operators", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    ways = ("front door", "torch.ops", "bound", "driver alone")
    assert [(r["what"], r["how"]) for r in rows] == [(n, way) for n in names for way in ways]
    assert len(called) == 4 + 4 * 2 * host.CALLS  # all once, then batches
    assert {*called} == {
        ("gemm", 2, True),
        ("fp8_block_gemm", 4, True, "scale_a_layout"),
        ("masked_gemm", 3, True),
        ("k_grouped_gemm", 3, True),
    }
    assert len(machine.launches) == 3 * len(called)


def test_imports_need_no_gpu(capsys):
    assert main(["host", "imports", "--repeats", "2", "--json"]) == 0
    rows = {r["what"]: r["microseconds"] for r in json.loads(capsys.readouterr().out)["rows"]}
    assert {*rows} == {*host.MODULES} and rows["gemmgen"] < rows["gemmgen.pipeline"]


@pytest.mark.nvrtc
def test_a_first_call_needs_no_gpu(capsys, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    few = (host.FIRST[0], host.FIRST[-1])
    monkeypatch.setattr(host, "FIRST", few)
    assert main(["host", "first", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(r["what"], r["how"]) for r in rows] == [(c.name, s) for c in few for s in host.STEPS]
    assert all(r["microseconds"] > 0 for r in rows)


def test_first_calls_have_names_and_configs():
    names = [call.name for call in host.FIRST]
    assert len({*names}) == len(names) and names[0] == "bf16 dense 4096x4096x7168"
    assert "e4m3 fp8_block masked 32x500x3072x4096" in names
    measured = [pick(c.problem, c.shape, groups=c.groups).row is not None for c in host.FIRST]
    assert measured == [True] + [False] * (len(names) - 1)


def test_too_few_repeats(capsys):
    assert main(["host", "imports", "--repeats", "1"]) == 2
    assert "--repeats" in capsys.readouterr().err
