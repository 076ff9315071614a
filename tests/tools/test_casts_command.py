"""`gemmgen casts`: what it times and prints. No GPU is needed here."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ticking import ticking

from gemmgen.bench import casts
from gemmgen.bench.timing import Samples
from gemmgen.cli import main
from gemmgen.errors import GemmgenError
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.ops import casting, quantise
from gemmgen.runtime import driver, torch_tensors


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(driver, "require_hopper", lambda device: "NVIDIA H200")


def row(**changes):
    given = {"rows": 128, "columns": 256, "per": "row", "x": "bf16", "q": "e4m3", "spread": 0.01}
    speeds = {"gigabytes_per_second": 3600.0, "copy_gigabytes_per_second": 4000.0}
    return casts.Row(**{**given, **speeds, "microseconds": 12.5, **changes})


def test_what_is_printed(gpu, monkeypatch, capsys):
    asked = []

    def measure(shapes, *args):
        asked.append(([*shapes], *args))
        return [row()]

    monkeypatch.setattr(casts, "measure", measure)
    options = ["--shapes", "128x256,1x8", "--x", "f32", "--q", "s8", "--power-of-two"]
    assert main(["casts", *options, "--repeats", "3"]) == 0
    shapes, x, *rest = asked[0]
    assert (shapes, x.name, rest) == ([(128, 256), (1, 8)], "f32", ["s8", True, 3])
    assert "3600   4000  90.0%" in capsys.readouterr().out
    assert main(["casts", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert found["share"] == 0.9 and found["per"] == "row"


def test_shapes_are_told(gpu, capsys, monkeypatch):
    ticking(monkeypatch)
    monkeypatch.setattr(casts, "measure", lambda shapes, *args: [row() for _ in shapes])
    assert main(["casts", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [x.partition(",")[0] for x in err.splitlines()] == [
        f"timing: {i} of 3" for i in range(3)
    ]
    assert len(json.loads(out)["rows"]) == 3


@pytest.mark.parametrize("text", ("128", "0x8", "8x-1", "8x8x8", "", "8x8,"))
def test_wrong_shapes(gpu, capsys, text):
    assert main(["casts", "--shapes", text]) == 2
    assert "--shapes" in capsys.readouterr().err


def test_too_few_repeats(gpu, capsys):
    assert main(["casts", "--repeats", "1"]) == 2
    assert "--repeats" in capsys.readouterr().err


class OnCpu:
    """torch, with its tensors on the CPU whatever is asked for."""

    def __init__(self, torch):
        self._torch = torch

    def __getattr__(self, name):
        return getattr(self._torch, name)

    def randn(self, shape, device):
        return self._torch.randn(shape)

    def zeros(self, size, dtype, device):
        return self._torch.zeros(size, dtype=dtype)


@pytest.fixture
def casts_on_cpu(monkeypatch):
    """Casts by the torch code, and a clock that says 2 us for a copy and 4 us for a cast."""
    torch = pytest.importorskip("torch")
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    monkeypatch.setattr(casts, "torch", lambda: OnCpu(torch))
    monkeypatch.setattr(casting, "quantised", quantise.by_torch)

    def interleave(calls, repeats):
        for call in calls.values():
            call()
        return {
            name: Samples(seconds=(2e-6 if "copy" in name else 4e-6,) * repeats, kernels=())
            for name in calls
        }

    monkeypatch.setattr(casts, "interleave", interleave)
    return SimpleNamespace(torch=torch)


def test_every_cast_is_timed_against_its_bytes(casts_on_cpu):
    rows = casts.measure([(8, 256)], BF16, "e4m3", False, 3)
    assert [r.per for r in rows] == ["columns", "row", "block"]
    x_and_q = 8 * 256 * (BF16.bytes + E4M3.bytes)
    scales = {"columns": 8 * 2 * 4, "row": 8 * 4, "block": 2 * 4}
    for r in rows:
        moved = x_and_q + scales[r.per]
        assert r.gigabytes_per_second == pytest.approx(moved / 4e-6 * 1e-9)
        assert r.share == pytest.approx(0.5)


def test_a_wrong_cast_is_not_timed(casts_on_cpu, monkeypatch):
    def wrong(*args):
        q, scale = quantise.by_torch(*args)
        return q, scale * 2

    monkeypatch.setattr(casting, "quantised", wrong)
    with pytest.raises(GemmgenError, match="per columns"):
        casts.measure([(8, 256)], BF16, "e4m3", False, 3)
