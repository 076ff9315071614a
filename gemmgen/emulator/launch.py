"""What callers use: load a module, launch a kernel."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .decode import decode
from .errors import EmulatorError
from .machine import SHARED_LIMIT, GridRun, Progress
from .memory import GlobalMemory
from .parse import parse
from .program import NUMPY, Program
from .schedule import RoundRobin, Schedule
from .stats import Stats
from .syntax import Param
from .tensor_map import BYTES, TensorMap

Argument = int | float | TensorMap
MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kernel, decoded and ready to launch any number of times."""

    name: str
    program: Program

    @property
    def params(self) -> tuple[Param, ...]:
        return self.program.function.params


@dataclass(frozen=True, kw_only=True)
class Module:
    """A PTX module."""

    entries: Mapping[str, Entry]


def load(ptx: str) -> Module:
    """Parse and decode once. Raises PtxSyntaxError, UnsupportedInstruction, UninitializedRead."""
    functions = parse(ptx)
    return Module(entries={n: Entry(name=n, program=decode(f)) for n, f in functions.items()})


def launch(
    entry: Entry,
    *,
    grid: int,
    block: int,
    cluster: int | None = None,
    shared_bytes: int,
    params: Sequence[Argument],
    memory: GlobalMemory,
    schedule: Schedule | None = None,
    on_progress: Progress | None = None,
    most_turns: int | None = None,
    overlaps: bool = False,
    ready: Sequence[tuple[int, int]] = (),
    resident: int = 1,
) -> Stats:
    """Run `grid` CTAs of `block` threads, with `shared_bytes` of dynamic shared memory, and return when
    all have exited.

    cluster: CTAs of a cluster, where the launch says so. If None, as many as the kernel is compiled for
    (.reqnctapercluster); without that directive there are none, and each CTA is by itself.

    params: one per .param of the kernel, a TensorMap for each 128-byte one. schedule: RoundRobin()
    if None. on_progress(done, total) is called as CTAs exit. most_turns: give up after so many turns of
    the schedule, with Deadlock. overlaps: launched with programmatic stream serialization; ready: what may be
    read all the same before griddepcontrol.wait, (address, bytes) of each part: the launch before writes nothing there. resident: clusters that
    run at once; more do only where those cannot go on without. Raises an
    EmulatorError that names the instruction: Deadlock, Race, UninitializedRead, IllegalAccess, ProtocolError, ...
    """
    cluster = sized(entry, grid, block, cluster, shared_bytes)
    memory.new_launch()
    initialised(entry, memory)
    return GridRun(
        program=entry.program,
        grid=grid,
        block=block,
        cluster_size=cluster,
        shared_bytes=shared_bytes,
        params=pack(entry.params, params),
        memory=memory,
        schedule=schedule or RoundRobin(),
        on_progress=on_progress,
        most_turns=most_turns,
        overlaps=overlaps,
        ready=tuple((first, first + size) for first, size in ready),
        resident=resident,
    ).run()


def initialised(entry: Entry, memory: GlobalMemory) -> None:
    """Put the module's variables into memory."""
    scope = entry.program.scope
    for name, address in scope.globals.items():
        v = scope.function.variables[name]
        memory.map(address, v.init.ljust(v.size, b"\0"))


def sized(entry: Entry, grid: int, block: int, asked: int | None, shared_bytes: int) -> int:
    """CTAs of a cluster. Raises EmulatorError for a launch that the hardware would refuse."""
    cluster = _cluster(entry, asked)
    _check(entry, grid, block, cluster, shared_bytes)
    return cluster


def _cluster(entry: Entry, asked: int | None) -> int:
    """PTX ISA, cluster dimension directives."""
    directives = entry.program.function.directives
    required = directives.get("reqnctapercluster")
    if required is None and asked is None and "explicitcluster" in directives:
        raise EmulatorError(f"{entry.name}: .explicitcluster: the launch must say of what size")
    size = int(np.prod(required)) if required else asked or 1
    most = directives.get("maxclusterrank", (size,))[0]
    rules = {
        f"cluster={asked}: the kernel is compiled for {size}": asked in (None, size),
        f"cluster={size}: at most {most}": size <= most,
    }
    for rule, holds in rules.items():
        if not holds:
            raise EmulatorError(f"{entry.name}: {rule}")
    return size


def _check(entry: Entry, grid: int, block: int, cluster: int, shared_bytes: int) -> None:
    directives = entry.program.function.directives
    most = int(np.prod(directives.get("maxntid", (MOST_THREADS,))))
    used = entry.program.scope.static_end - 1024 + shared_bytes
    rules = {
        f"block={block}: 1 to {most} threads": 0 < block <= most,
        f"grid={grid}: a positive multiple of the cluster": grid > 0 and grid % cluster == 0,
        f"shared_bytes={shared_bytes}: at most {SHARED_LIMIT} in all": 0 <= used <= SHARED_LIMIT,
    }
    for rule, holds in rules.items():
        if not holds:
            raise EmulatorError(f"{entry.name}: {rule}")


def pack(wanted: Sequence[Param], values: Sequence[Argument]) -> bytes:
    """The parameter space."""
    if len(wanted) != len(values):
        raise EmulatorError(f"{len(values)} parameters, the kernel takes {len(wanted)}")
    size = wanted[-1].offset + wanted[-1].size if wanted else 0
    space = bytearray(size)
    for p, value in zip(wanted, values, strict=True):
        space[p.offset : p.offset + p.size] = _packed(p, value)
    return bytes(space)


def _packed(p: Param, value: Argument) -> bytes:
    if isinstance(value, TensorMap) != (p.type == "b8" and p.size == BYTES):
        raise EmulatorError(f"parameter {p.name}: .{p.type} of {p.size} bytes, got {value!r}")
    if isinstance(value, TensorMap):
        return value.encode()
    if p.type in ("f32", "f64"):
        return bytes(NUMPY[p.type](value).tobytes())
    if isinstance(value, float):
        return struct.pack("<f" if p.size == 4 else "<d", value)
    mask = (1 << 8 * p.size) - 1
    return (value & mask).to_bytes(p.size, "little")
