"""What can be said of a kernel without a GPU: counted in its IR, modelled, simulated, or executed on the emulator.

`python -m docs.tools.figures` takes them anew and writes docs/data/ten-steps-cpu.json (about a minute).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemmgen.check.unroll import unroller
from gemmgen.cost import cost
from gemmgen.heuristics import wave_rows
from gemmgen.ir.groupings import OF_SIZES
from gemmgen.ir.nodes import BulkRowStore, Stmt, TmaLoad, TmaStore
from gemmgen.ir.nodes import Kernel as Lowered
from gemmgen.ir.rewrite import walk
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.runtime import emulated, nvrtc
from gemmgen.runtime.launch import grid
from gemmgen.see.instance import instance
from gemmgen.see.latency import latency
from gemmgen.see.simulate import WHOLE, simulate
from gemmgen.target import H200
from gemmgen.verification.trial import judge

from .steps import Kernel, pairs

DATA = Path(__file__).parent.parent / "data"
FILE = DATA / "ten-steps-cpu.json"
ROWS = 64  # that a BulkRowStore sends one by one, for each warpgroup
EMULATED = {
    4096: (256, 256, 512),
    16: (16, 256, 1024),
}  # by M: what the emulator multiplies instead

Figures = dict[str, int | float]


def counted(k: Kernel) -> Figures:
    """From the IR and the models: the same on every machine."""
    kernel = lower(k.problem, k.config)
    price = cost(k.problem, k.config, k.shape, H200)
    c = k.config
    rows = wave_rows(c, c.multicast, c.raster, c.panel, k.shape, H200)
    registers = {f"registers_{r.name}": r.registers or 0 for r in kernel.roles}
    return {
        "smem_bytes": kernel.smem_bytes or 0,
        **registers,
        "loads": _count(kernel, TmaLoad),
        "stores": _count(kernel, TmaStore) + ROWS * _count(kernel, BulkRowStore),
        "wave_rows": sum(rows),
        "l2_megabytes": round(price.l2_bytes / 1e6, 1),
        **_simulated(k, kernel),
    }


def _count(kernel: Lowered, *classes: type[Stmt]) -> int:
    return sum(isinstance(s, classes) for role in kernel.roles for s in walk(role.body))


def _simulated(k: Kernel, kernel: Lowered) -> Figures:
    layout = OF_SIZES["none"](k.shape[0], [k.shape[0]], k.problem.alignment)
    ctas = grid(kernel, k.shape, H200.sms, layout.groups)
    program = unroller(kernel, WHOLE).program(instance(kernel, k.shape, ctas, layout))
    t = simulate(program, latency(kernel, k.problem, k.config, k.shape, H200, layout.groups))
    return {
        "simulated_us": round(t.end / H200.clock_hz * 1e6, 1),
        "simulated_tensor_percent": round(100 * t.share(0), 1),
    }


def executed(k: Kernel) -> Figures:
    """From NVRTC and the emulator, which also verifies the kernel; they depend on NVRTC's version."""
    a = compile_to_source(k.problem, k.config)
    cubin = nvrtc.compile_cubin(a.source, a.name)
    machine = emulated.EmulatedGpu()
    program = emulated.prepare(a.kernel, a.source)
    judge(machine, program, a.kernel, k.problem, EMULATED[k.shape[0]])
    stats = machine.stats[0]
    of_role = {w: r.name for r in a.kernel.roles for w in range(*r.warpgroups)}
    instructions: Figures = {}
    for warpgroup, count in stats.instructions.items():
        name = f"instructions_{of_role[warpgroup]}"
        instructions[name] = instructions.get(name, 0) + count
    return {
        "spill_bytes": cubin.spill_bytes,
        **instructions,
        "bank_conflicts": sum(s.conflicts for s in stats.sites.values()),
    }


def taken() -> dict[str, Any]:
    """All ten steps', before and after."""
    found: dict[Kernel, Figures] = {}

    def of(k: Kernel | None) -> Figures | None:
        if k is not None and k not in found:
            found[k] = counted(k) | executed(k)
        return found[k] if k is not None else None

    steps = {p.step.slug: {"before": of(p.before), "after": of(p.after)} for p in pairs()}
    return {"nvrtc": ".".join(map(str, nvrtc.version())), "steps": steps}


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(taken(), indent=1) + "\n")
