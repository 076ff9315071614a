"""P15: a launch that may overlap the one before it waits for that before it touches global memory.

Every thread has to wait by itself. Where the prologue waits, that is before the scheduler is made, which reads where groups
end. Where each role does, the scheduler must be one that reads nothing, and of what a role does before, only loads of
tensors that are ready, as the caller promises, may read what others see: a launch that still runs writes none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import nodes as ir
from ..ir.blocks import BLOCKS
from .finding import Finding
from .properties import DEPENDENCY

# Barriers, registers, and the kernel's own parameters.
HARMLESS = (
    ir.PrefetchMap,
    ir.InitBarrier,
    ir.Fence,
    ir.Sync,
    ir.LaunchDependents,
    ir.SetRegisters,
    ir.Zero,
    ir.ExpectTx,
    ir.TakeShare,
)


def dependency(kernel: ir.Kernel) -> Iterator[Finding]:
    """What `kernel` does too early, if it is launched while the launch before it may still run."""
    if not kernel.pdl:
        return
    yield from _before(kernel, kernel.prologue)
    if _waits(kernel.prologue):
        return
    if kernel.tables:
        yield _wrong(
            f"the scheduler reads {kernel.tables[0]} before the wait for the launches before"
        )
    for role in kernel.roles:
        if not _waits(role.body):
            text = f"neither the prologue nor the {role.name} waits, in every thread, for the launches before"
            yield _wrong(text)
        yield from _before(kernel, role.body)


def _waits(body: tuple[ir.Stmt, ...]) -> bool:
    """Whether every thread does that comes to the end of `body`: outside any block."""
    return any(isinstance(s, ir.WaitForGrids) for s in body)


def _before(kernel: ir.Kernel, body: tuple[ir.Stmt, ...]) -> Iterator[Finding]:
    """Of what stands before the wait in `body`, or all of it, what may not."""
    for s in body:
        if isinstance(s, ir.WaitForGrids):
            return
        if isinstance(s, BLOCKS):
            yield from _before(kernel, s.body)
        elif not isinstance(s, HARMLESS) and not _ready(kernel, s):
            yield _wrong(f"{_named(kernel, s)} stands before the wait for the launches before")


def _ready(kernel: ir.Kernel, s: ir.Stmt) -> bool:
    """Whether `s` reads what is ready, by a tensor map that is a parameter or by an address, and writes nothing that others see."""
    if isinstance(s, ir.LoadBlocks):
        return s.tensor in kernel.ready
    if not isinstance(s, ir.TmaLoad):
        return False
    m = kernel.map(s.tensor_map)
    return m.tensor in kernel.ready and not m.derived


def _named(kernel: ir.Kernel, s: ir.Stmt) -> str:
    tensor = (
        kernel.map(s.tensor_map).tensor if isinstance(s, ir.TmaLoad) else getattr(s, "tensor", "")
    )
    return f"{type(s).__name__}{f' of {tensor}' * bool(tensor)}"


def _wrong(text: str) -> Finding:
    return Finding(property=DEPENDENCY, message=text)
