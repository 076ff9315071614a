"""A Hopper GPU as a machine that verification can put a kernel on trial on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..ir.dtypes import DType
from ..ir.exchange import PARTIALS
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches, scale_blocks
from .bind import Bound, Bytes, bind
from .launch import (
    MAP_BYTES,
    LoadedKernel,
    Plan,
    partials_bytes,
    stamp_bytes,
    workspace_bytes,
)
from .torch_engine import TorchEngine
from .torch_tensors import current_stream, torch


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """CUDA device `device`. Operands are uploaded per launch into parents filled with NaN. `stamps` gathers the
    rings that each launch of a stamped kernel leaves."""

    device: int = 0
    engine: TorchEngine = field(default_factory=TorchEngine)
    stamps: list[Buffer] = field(default_factory=list)
    repeats: ClassVar[bool] = False

    def execute(
        self,
        program: LoadedKernel,
        operands: Operands,
        pitches: Pitches,
        output: Guarded,
        fill: int,
    ) -> Buffer:
        """Launch once and wait. See `gemmgen.verification.trial.Machine`."""
        where = torch().device("cuda", self.device)
        if output.start is None:  # filled where it is, without a copy
            buffer = torch().full((output.size,), fill, dtype=torch().uint8, device=where)
        else:
            buffer = torch().from_numpy(output.poison(fill)).to(where)
        at = buffer.data_ptr() + output.offset, buffer.data_ptr() + output.beside_offset
        held = upload(operands, pitches, at, where)
        workspace, plan = plan_over(program, held)
        program.launch(plan)
        program.wait(plan)
        if program.kernel.stamps:
            self.stamps.append(rings(program, workspace, plan))
        del held, workspace
        after: Buffer = buffer.cpu().numpy()
        return after


def prepare(
    program: LoadedKernel, operands: Operands, pitches: Pitches, d: DType
) -> tuple[list[Any], Plan]:
    """A launch of `program` over uploaded `operands` and an uninitialised output, to be repeated;
    the list keeps its tensors alive."""
    where = torch().device("cuda", program.device)
    rows = operands.d_rows(pitches.gap)
    out = torch().empty(rows * pitches.d * d.bytes, dtype=torch().uint8, device=where)
    groups = rows // max(1, operands.shape[0])
    scales = torch().empty(scale_blocks(operands) * groups * pitches.scale_d, device=where)
    on = upload(operands, pitches, (out.data_ptr(), scales.data_ptr()), where)
    workspace, plan = plan_over(program, on)
    return [on, workspace, out, scales], plan


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """Operands in device memory, for any kernel of their problem. tensors: uint8, each by its address."""

    bound: Bound
    shape: tuple[int, int, int]
    groups: int
    tensors: dict[int, Any]
    where: Any


def upload(operands: Operands, pitches: Pitches, out: tuple[int, int], where: Any) -> Uploaded:
    """Operands in parents filled with NaN on device `where`. out: the addresses of D and of its scales."""
    tensors: dict[int, Any] = {}

    def place(parent: Bytes) -> int:
        tensor = torch().from_numpy(parent).to(where)
        tensors[int(tensor.data_ptr())] = tensor
        return int(tensor.data_ptr())

    bound = bind(operands, pitches, out[0], place, out[1])
    groups = operands.layout.groups
    return Uploaded(bound=bound, shape=operands.shape, groups=groups, tensors=tensors, where=where)


def plan_over(program: LoadedKernel, on: Uploaded) -> tuple[Any, Plan]:
    """A launch of `program`, and the workspace that it needs as long as it runs."""
    ctas = program.grid(on.shape, on.groups)
    stamps = -(-stamp_bytes(program.kernel, ctas) // MAP_BYTES) * MAP_BYTES
    partials = stamps + workspace_bytes(program.kernel, ctas, on.groups)
    size = partials + partials_bytes(program.kernel, ctas)
    workspace = torch().zeros(size, dtype=torch().uint8, device=on.where)
    at = workspace.data_ptr()
    values = {**on.bound.values, "stamp_rings": at, "group_maps": at + stamps}
    values[PARTIALS] = at + partials
    return workspace, program.plan(on.shape, on.bound.matrices, values, current_stream(on.where))


def rings(program: LoadedKernel, workspace: Any, plan: Plan) -> Buffer:
    """What the last launch of `plan`, now over, left of stamps in the `workspace` that `plan_over` returned."""
    size = stamp_bytes(program.kernel, plan.config.gridDimX)
    found: Buffer = workspace[:size].cpu().numpy()
    return found
