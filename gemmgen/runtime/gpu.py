"""A Hopper GPU as a machine that verification can put a kernel on trial on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.dtypes import DType
from ..ir.expr import parameter
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .launch import LoadedKernel, Plan
from .tensor_map import Matrix
from .torch_engine import TorchEngine
from .torch_tensors import current_stream, torch

NAN_BYTE = 0xFF  # NaN in FP8, BF16, FP16 and FP32


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """CUDA device `device`. Operands are uploaded per launch into parents filled with NaN."""

    device: int = 0
    engine: TorchEngine = field(default_factory=TorchEngine)

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
        buffer = torch().full((output.size,), fill, dtype=torch().uint8, device=where)
        held, plan = _plan(program, operands, pitches, buffer.data_ptr() + output.offset, where)
        program.launch(plan)
        torch().cuda.synchronize(where)
        del held
        after: Buffer = buffer.cpu().numpy()
        return after


def prepare(
    program: LoadedKernel, operands: Operands, pitches: Pitches, d: DType
) -> tuple[list[Any], Plan]:
    """A launch of `program` over uploaded `operands` and an uninitialised output, to be repeated;
    the list keeps its tensors alive."""
    where = torch().device("cuda", program.device)
    m = operands.shape[0]
    out = torch().empty(m * pitches.d * d.bytes, dtype=torch().uint8, device=where)
    held, plan = _plan(program, operands, pitches, out.data_ptr(), where)
    return [*held, out], plan


def _plan(
    program: LoadedKernel, operands: Operands, pitches: Pitches, out: int, where: Any
) -> tuple[list[Any], Plan]:
    held, matrices, values = upload(operands, pitches, where)
    m, n, k = operands.shape
    matrices["d"] = Matrix(pointer=out, outer=m, inner=n, stride=pitches.d)
    values |= {"d": out, "d_stride": pitches.d, "shape_m": m, "shape_n": n, "shape_k": k}
    return held, program.plan((m, n, k), matrices, values, current_stream(where))


def upload(
    operands: Operands, pitches: Pitches, device: Any
) -> tuple[list[Any], dict[str, Matrix], dict[str, int | float]]:
    """Copy `operands` to `device`: what must stay alive, tensors by map, scalars and pointers by name."""
    held: list[Any] = []

    def matrix(rows: npt.NDArray[Any], pitch: int) -> Matrix:
        parent = np.full((rows.shape[0], pitch * rows.itemsize), NAN_BYTE, np.uint8)
        parent[:, : rows.shape[1] * rows.itemsize] = np.ascontiguousarray(rows).view(np.uint8)
        held.append(torch().from_numpy(parent).to(device))
        outer, inner = rows.shape
        return Matrix(pointer=held[-1].data_ptr(), outer=outer, inner=inner, stride=pitch)

    matrices = {"a": matrix(operands.a, pitches.a), "b": matrix(operands.b, pitches.b)}
    values: dict[str, int | float] = {}
    if operands.scale_a is not None and operands.scale_b is not None:
        matrices["scale_a"] = matrix(operands.scale_a.T, pitches.scale_a)
        scale_b = matrix(operands.scale_b, operands.scale_b.shape[1])
        values |= {"scale_b": scale_b.pointer, "scale_b_stride_n": scale_b.stride}
        values["scale_b_stride_k"] = 1
    for name, value in operands.arguments.items():
        if isinstance(value, float):
            values[parameter(name)] = value
        else:
            values[parameter(name)] = matrix(value[None], value.size).pointer
    return held, matrices, values
