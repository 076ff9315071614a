"""What Nsight Compute measured of a launch, from its CSV, beside what the simulation says."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ..errors import ArgumentError
from ..target import Target
from ..untrusted import read_text
from .page import Table, microseconds
from .timeline import Timeline

# Columns of `ncu --csv --page raw`.
DURATION = "gpu__time_duration.sum"
BUSY = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
METRICS = (DURATION, BUSY, TENSOR, DRAM)
NAME = "Kernel Name"
OURS = "gemmgen_"  # what the names of our kernels begin with
TIMES = {
    "ns": 1e-9,
    "nsecond": 1e-9,
    "us": 1e-6,
    "usecond": 1e-6,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "second": 1.0,
}
WRITES = f"must be what `ncu --csv --page raw --metrics {','.join(METRICS)}` printed"


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """One launch. seconds; the others are shares of the peak, of the whole launch, from 0 to 1."""

    kernel: str
    seconds: float
    busy: float
    tensor: float
    dram: float


def read(file: Path, argument: str) -> Profiled:
    """The last launch of a kernel of ours. Raises ArgumentError, which names the column that is missing."""
    try:
        return _last(read_text(argument, file).splitlines())
    except (csv.Error, ValueError, KeyError, AttributeError) as e:
        raise ArgumentError(argument, str(file), f"{WRITES} ({type(e).__name__}: {e})") from e


def _last(lines: list[str]) -> Profiled:
    """Raises ValueError, KeyError, AttributeError and csv.Error for what is no such table."""
    # ncu prints lines of its own, and of the program, before the table.
    heads = (i for i, line in enumerate(lines) if f'"{NAME}"' in line or line.startswith(NAME))
    table = csv.DictReader(lines[next(heads, len(lines)) :])
    for column in (NAME, *METRICS):
        if column not in (table.fieldnames or ()):
            raise ValueError(f"it has no column {column!r}")
    units, *rows = [*table] or [{}]
    ours = [r for r in rows if (r[NAME] or "").startswith(OURS)]
    if not ours:
        raise ValueError(f"it has no launch of a kernel named {OURS}*")
    return _profiled(ours[-1], units)


def _profiled(row: Mapping[str, str], units: Mapping[str, str]) -> Profiled:
    busy, tensor, dram = (_number(row[c]) / 100 for c in (BUSY, TENSOR, DRAM))
    seconds = _number(row[DURATION]) * TIMES[units[DURATION]]
    return Profiled(kernel=row[NAME], seconds=seconds, busy=busy, tensor=tensor, dram=dram)


def _number(text: str) -> float:
    """As ncu spells it: with a separator every three digits."""
    found = float(text.replace(",", ""))
    if not (isfinite(found) and found >= 0):
        raise ValueError(text)
    return found


def beside(p: Profiled, t: Timeline, ctas: int, dram_bytes: float, target: Target) -> Table:
    """Measured and simulated, of a launch of `ctas` CTAs that moves `dram_bytes`. What of SMs is simulated is the first
    cluster's, as if all CTAs did alike."""
    own = sorted({a.cta for a in t.agents})
    seconds, filled = t.end / target.clock_hz, ctas / target.sms
    tensor = sum(map(t.occupied, own)) / len(own) * filled
    shares = (
        ("SMs busy", p.busy, filled),
        ("tensor pipe active", p.tensor, tensor),
        (
            "DRAM throughput, of its peak",
            p.dram,
            dram_bytes / seconds / target.hbm_bytes_per_second,
        ),
    )
    rows = [("duration, us", microseconds(p.seconds), microseconds(seconds))]
    rows += [(name, f"{measured:.1%}", f"{simulated:.1%}") for name, measured, simulated in shares]
    return Table(
        title="Measured by Nsight Compute, beside the simulation",
        columns=("what", "measured", "simulated"),
        rows=tuple(rows),
        note=f"Measured: {p.kernel}. Simulated at {target.clock_hz / 1e9:.3f} GHz, without the launch; every byte moves once.",
    )
