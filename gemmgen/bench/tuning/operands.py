"""Operands that are timed: made on the host without their size, and drawn in device memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import ops
from ...ir.dtypes import DType
from ...ir.packed import COLUMNS, Form
from ...runtime.gpu import Uploaded
from ...runtime.torch_tensors import torch, torch_dtype
from ...verification.inputs import Operands, random_normal
from .jobs import Job, launch

CHUNK = 1 << 26  # elements drawn at a time


def one_column(job: Job) -> Operands:
    """Operands of the job's shape whose A, B and scales are one column over and over, or whose packed weights one block, without its memory."""
    shape, layout = launch(job)
    deep = COLUMNS if job.problem.form else 1
    drawn = random_normal(job.problem, shape[0], shape[1], deep, 0, layout)
    blocks = -(-shape[2] // ops.SCALE_BLOCK)

    def wide(x: Any, columns: int) -> Any:
        return None if x is None else np.broadcast_to(x[..., :1], (*x.shape[:-1], columns))

    packed = drawn.blocks
    if packed is not None:
        across = -(-shape[2] // COLUMNS)
        packed = np.broadcast_to(packed, (*packed.shape[:-2], across, packed.shape[-1]))
    return replace(
        drawn,
        a=wide(drawn.a, shape[2]),
        b=wide(drawn.b, shape[2]),
        scale_a=wide(drawn.scale_a, blocks),
        scale_b=wide(drawn.scale_b, blocks),
        blocks=packed,
    )


def draw(on: Uploaded, name: str, dtype: DType) -> None:
    """Fill the tensor `name`, padding and all, with N(0, 1), or with every integer there is."""
    codes = on.tensors[on.bound.matrices[name].pointer].view(-1).view(torch_dtype(dtype))
    for first in range(0, codes.numel(), CHUNK):
        part = codes[first : first + CHUNK]
        if dtype.integer:
            drawn = torch().randint(-128, 128, part.shape, device=part.device)
        else:
            drawn = torch().randn(part.shape, device=part.device)
        part.copy_(drawn.to(part.dtype))


def draw_codes(on: Uploaded, form: Form) -> None:
    """Any codes in all blocks of B, whose records stay."""
    blocks = on.tensors[on.bound.matrices["b"].pointer].view(torch().uint8)
    blocks.view(-1, form.block_bytes)[:, : form.codes_bytes].random_(0, 256)
