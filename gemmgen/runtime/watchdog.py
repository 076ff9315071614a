"""The report of a watched kernel: in host memory, so that it outlives the kernel's trap."""

from __future__ import annotations

import ctypes
from collections import Counter
from dataclasses import dataclass, fields

from ..errors import DeadlockError
from ..ir.exchange import PARTIALS
from ..ir.nodes import Barrier, Kernel
from .driver import call, driver

FLAGS = Barrier(name=PARTIALS, stages=1, per="tile")  # in global memory; `stage`: whose are awaited
OF_RANKS = Barrier(name="sums of rank", stages=1, per="tile")  # the same of other GPUs
OF_ROWS = Barrier(name="rows of rank", stages=1, per="tile")  # `parity`: in which chunk
ENTRIES = 2047  # as templates/watchdog.j2 lays them out


@dataclass(frozen=True)
class Stuck:
    """Where one warp waits. Fields in the order of the device's struct Stuck."""

    cta: int
    role: int
    barrier: int
    stage: int
    parity: int
    row: int
    col: int
    k: int


WORDS = len(fields(Stuck))


class Report:
    """Page-locked host memory the device writes to. Freed with the process: kernels may still run."""

    def __init__(self) -> None:
        size = 4 * WORDS * (1 + ENTRIES)
        flags = driver().CU_MEMHOSTALLOC_DEVICEMAP | driver().CU_MEMHOSTALLOC_PORTABLE
        self._host = call("cuMemHostAlloc", size, flags)
        ctypes.memset(int(self._host), 0, size)
        self.device_pointer = int(call("cuMemHostGetDevicePointer", self._host, 0))

    def entries(self) -> list[Stuck]:
        """What warps have reported, in the order they did."""
        words = ctypes.cast(int(self._host), ctypes.POINTER(ctypes.c_int32))
        count = min(words[0], ENTRIES)
        starts = (WORDS * (1 + i) for i in range(count))
        return [Stuck(*(words[at + j] for j in range(WORDS))) for at in starts]


def deadlock(kernel: Kernel, entries: list[Stuck]) -> DeadlockError:
    """The error that shows `entries`: one line per CTA, role and place, with how many warps wait there."""
    lines = [
        f"{kernel.name} is stuck: {len(entries)} warps wait (CTA, role, barrier, tile, K block)"
    ]
    flags = OF_ROWS if kernel.arrivals.chunks else OF_RANKS if kernel.peers.flags else FLAGS
    lines += _late(kernel, entries, flags)
    for stuck, warps in sorted(Counter(entries).items(), key=lambda x: _order(x[0])):
        role, barrier = kernel.roles[stuck.role].name, (*kernel.barriers, flags)[stuck.barrier]
        lines.append(
            f"  CTA {stuck.cta:>4}  {role:<9} {warps} warp(s)  {barrier.name}[{stuck.stage}] "
            f"{'chunk' if barrier is OF_ROWS else 'parity'} {stuck.parity}  {_where(stuck, barrier)}"
        )
    return DeadlockError("\n".join(lines))


def _late(kernel: Kernel, entries: list[Stuck], flags: Barrier) -> list[str]:
    """The ranks that did not come, if some did not."""
    late = {x.stage for x in entries if flags is not FLAGS and x.barrier == len(kernel.barriers)}
    return [f"  nothing came from rank(s) {', '.join(map(str, sorted(late)))}"] if late else []


def _where(stuck: Stuck, barrier: Barrier) -> str:
    """A barrier of the ring is waited for at a K block, or where the ring is drained; another at a tile."""
    if stuck.row < 0:
        return "draining the ring" if barrier.per == "stage" else "with a tile's sums"
    tile = f"tile row {stuck.row} column {stuck.col}"
    return tile if stuck.k < 0 else f"{tile}, K block {stuck.k}"


def _order(s: Stuck) -> tuple[int, ...]:
    return (s.cta, s.role, s.barrier, s.stage, s.row, s.col, s.k)
