"""What `gemmgen.bench.moe` needs of a GPU, on the CPU: float64 in the GEMMs' place, and clocks that say what a test expects."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen.bench import chain, moe, read  # noqa: E402
from gemmgen.bench.clocks import Log  # noqa: E402
from gemmgen.bench.moe_sizes import FORMS, Asked, Sizes  # noqa: E402
from gemmgen.bench.timing import Samples, Timed  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

SIZES = Sizes(experts=6, top=2, hidden=272, intermediate=144)
OF_BLOCKS = Sizes(
    experts=6, top=2, hidden=256, intermediate=128
)  # that a scale of packed weights divides
US = 1e-6
SECONDS = {"gemmgen": 120, "torch": 240, "deep_gemm": 200, "deep_gemm casts": 160}  # millionths
KERNELS = (
    ("route_s32", 5),
    ("cast_bf16_e4m3_per_columns", 2),
    ("spread_16_bytes", 3),
    ("gemmgen_fp8_block_128x64", 60),
    ("gemmgen_fp8_block_128x128", 40),
    ("combine_bf16_by_f32_8", 4),
)


@pytest.fixture
def cpu(on_cpu, monkeypatch):  # noqa: F811
    """Everything runs once on the CPU; clocks say KERNELS of gemmgen's layer, 95 us of the read, and SECONDS of replays, half as much
    more of calls. What is read, in bytes."""
    monkeypatch.setattr(mixture, "CALLS", CALLS)
    found = SimpleNamespace(spans=[], checked=0, captured=[], calls=[])

    def over(spans):
        found.spans.append([size for _, size in spans])
        return SimpleNamespace(check=lambda: setattr(found, "checked", found.checked + 1))

    def recorded(calls, repeats):
        calls["gemmgen"]()
        ours = tuple(
            Timed(kernel=name, seconds=us * US, start=100 * i * US)
            for i, (name, us) in enumerate(KERNELS)
        )
        theirs = (Timed(kernel="read_4_by_1x512x8", seconds=95 * US),)
        return {name: [theirs if name == "read" else ours] * repeats for name in calls}

    def measure(method, replays, log):
        assert method.cold == "flush"
        found.calls.append({*replays})
        slower = {n: 1 if hasattr(call, "replayed") else 1.5 for n, call in replays.items()}
        seconds = {n: SECONDS[n] * US * slower[n] for n in replays}
        return {n: Samples(seconds=(x,) * method.repeats, kernels=()) for n, x in seconds.items()}

    def captured(call, times):
        found.captured.append(call())
        return SimpleNamespace(replayed=call)

    monkeypatch.setattr(read, "over", over)
    monkeypatch.setattr(moe, "recorded", recorded)
    monkeypatch.setattr(moe, "captured", captured)
    monkeypatch.setattr(chain, "measure", measure)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 34, 1 << 34))
    return found


def sizes_of(kind=None):
    return OF_BLOCKS if kind in FORMS else SIZES


def asked(**changes):
    return Asked(
        **{"sizes": sizes_of(changes.get("kind")), "repeats": 3, "device": "cpu", **changes}
    )


def measured(*counts, **changes):
    return moe.measure(asked(**changes), counts, Log(source="none"))
