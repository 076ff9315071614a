"""The emulator as a machine that verification can put a kernel on trial on. Needs NVRTC, no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..emulator import Entry, GlobalMemory, ProtocolError, Schedule, Stats, TensorMap, launch, load
from ..ir.exchange import PARTIALS
from ..ir.nodes import Kernel
from ..verification.engines import NumpyEngine
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .bind import Bound, bind
from .launch import check_gaps, check_launch, grid, partials_bytes, stamp_bytes, workspace_bytes
from .nvrtc import compile_ptx
from .tensor_map import Description, Matrix, describe

WATCHDOG_BYTES = 1 << 16
NAN_BITS = 0xFFFFFFFF
SMS = 4  # of the emulated GPU: few, so that a small problem has several tiles per CTA


@dataclass(frozen=True, kw_only=True)
class EmulatedKernel:
    """A kernel's PTX, parsed, with the IR that says how to launch it."""

    kernel: Kernel
    entry: Entry


def prepare(kernel: Kernel, source: str) -> EmulatedKernel:
    """Compile `source`, emitted from `kernel`, to PTX and parse it.

    Raises CompileError, RuntimeUnavailable, UnsupportedInstruction.
    """
    module = load(compile_ptx(source, kernel.name))
    return EmulatedKernel(kernel=kernel, entry=module.entries[kernel.name])


ELEMENT_TYPES = {
    "UINT8": "u8",
    "BFLOAT16": "bf16",
    "FLOAT16": "f16",
    "FLOAT32": "f32",
    "INT32": "s32",
}


@dataclass(frozen=True, kw_only=True)
class EmulatedGpu:
    """Executes launches on the CPU with `sms` SMs, a whole cluster's at least. `stats` gathers those of every launch,
    `stamps` the rings that each launch of a stamped kernel leaves."""

    sms: int = SMS
    schedule: Schedule | None = None
    engine: NumpyEngine = field(default_factory=NumpyEngine)
    stats: list[Stats] = field(default_factory=list)
    stamps: list[Buffer] = field(default_factory=list)
    on_progress: Callable[[int, int], None] | None = None
    resident: int = 1  # clusters that run at once

    @property
    def repeats(self) -> bool:
        """Of its own schedule; one that is given may differ from launch to launch."""
        return self.schedule is None

    def execute(
        self,
        program: EmulatedKernel,
        operands: Operands,
        pitches: Pitches,
        output: Guarded,
        fill: int,
    ) -> Buffer:
        """Launch once and wait. See `gemmgen.verification.trial.Machine`."""
        kernel, groups = program.kernel, operands.layout.groups
        check_launch(kernel, operands.shape, groups)
        memory = GlobalMemory()
        out = memory.allocate(output.poison(fill), alignment=1024)
        report = memory.allocate(np.zeros(WATCHDOG_BYTES, np.uint8))
        at = out + output.offset, out + output.beside_offset
        bound = bind(operands, pitches, at[0], lambda p: memory.allocate(p), at[1])
        check_gaps(kernel, operands.shape[1], bound.matrices["d"])
        ctas = grid(kernel, operands.shape, max(self.sms, kernel.cluster.size), groups)
        maps = memory.allocate(None, workspace_bytes(kernel, ctas, groups))
        kept = stamp_bytes(kernel, ctas)
        rings = memory.allocate(np.zeros(kept, np.uint8))
        sums = memory.allocate(handed_over(kernel, ctas))
        stats = launch(
            program.entry,
            grid=ctas,
            block=kernel.threads,
            shared_bytes=kernel.smem_bytes or 0,
            params=params(kernel, bound, report, maps, rings, sums),
            memory=memory,
            schedule=self.schedule,
            on_progress=self.on_progress,
            overlaps=kernel.pdl,
            ready=ready(kernel, bound),
            resident=self.resident,
        )
        self.stats.append(stats)
        check_down(kernel, memory.read(sums, partials_bytes(kernel, ctas)))
        if kept:
            self.stamps.append(memory.read(rings, kept))
        return memory.read(out, output.size)


def handed_over(kernel: Kernel, ctas: int) -> Buffer:
    """A workspace as an earlier launch leaves it: flags are down, and whoever takes a sum that is not there has NaN."""
    w = kernel.workspace
    words = np.full((ctas, w.words), NAN_BITS, np.uint32)
    words[:, w.slot :] = 0
    return words.view(np.uint8).reshape(-1)


def check_down(kernel: Kernel, after: Buffer) -> None:
    """Raises ProtocolError if a flag is up: the next launch would not wait for it."""
    w = kernel.workspace
    if (
        w.words
        and (up := after.view(np.uint32).reshape(-1, w.words)[:, w.slot :].nonzero())[0].size
    ):
        raise ProtocolError(f"{kernel.name} leaves flag {up[1][0]} of slot {up[0][0]} up")


def params(
    kernel: Kernel, bound: Bound, report: int, maps: int = 0, rings: int = 0, sums: int = 0
) -> list[int | float | TensorMap]:
    """The kernel's arguments in the order of its signature; `report` is a watched build's, `maps` the
    workspace of one that derives tensor maps, `rings` a stamped one's, `sums` the workspace of one that hands sums over."""
    encoded = [_map(describe(kernel, m, bound.matrices[m.tensor])) for m in kernel.maps]
    values = {**bound.values, "watchdog": report, "group_maps": maps, "stamp_rings": rings}
    values[PARTIALS] = sums
    return [*encoded, *(values[p.name] for p in kernel.params)]


def ready(kernel: Kernel, bound: Bound) -> list[tuple[int, int]]:
    """Where tensors lie that the launch before does not write: address and bytes."""
    of = [
        describe(kernel, m, bound.matrices[m.tensor])
        for m in kernel.maps
        if m.tensor in kernel.ready
    ]
    pointed = [bound.matrices[x.tensor] for x in kernel.pointed if x.tensor in kernel.ready]
    return [(d.address, _bytes(d)) for d in of] + [(m.pointer, _bytes_of(m)) for m in pointed]


def _bytes_of(m: Matrix) -> int:
    """Of a matrix of bytes, from its first to its last."""
    return (m.groups - 1) * m.group_stride + (m.outer - 1) * m.stride + m.inner


def _bytes(d: Description) -> int:
    """From a tensor's first byte to its last."""
    inner, *outer = d.dims
    rows = zip(outer, d.strides, strict=True)
    return inner * d.dtype.bytes + sum((count - 1) * stride for count, stride in rows)


def _map(d: Description) -> TensorMap:
    return TensorMap(
        address=d.address,
        element_bytes=d.dtype.bytes,
        element_type=ELEMENT_TYPES[d.dtype.tensor_map],
        dims=d.dims,
        strides=d.strides,
        box=d.box,
        swizzle=d.swizzle,
    )
