"""D with rows so far apart that element offsets pass 2^31: only five rows of it are ever backed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gemmgen.codes import code_type
from gemmgen.emulator import GlobalMemory, launch
from gemmgen.errors import VerificationError
from gemmgen.runtime import emulated
from gemmgen.runtime.bind import bind
from gemmgen.runtime.launch import grid
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.epilogue import transcendental
from gemmgen.verification.inputs import exact_integers
from gemmgen.verification.reference import product
from gemmgen.verification.trial import pitches

from .mutant import Built

SHAPE = (5, 21, 64)  # the last columns of a row of 21 are the tail's
PITCH = 1 << 29  # elements: row 4 begins at element 2^31
BASE = 1 << 44


class FarMemory(GlobalMemory):
    """Keeps rows `step` bytes apart side by side; between them there is nothing."""

    def __init__(self, rows: int, step: int, width: int) -> None:
        super().__init__()
        self.rows, self.step, self.width = rows, step, width
        self.image = self.allocate(np.full(rows * width, 0xFF, np.uint8))

    def _locate(self, addresses: Any, size: int, who: str) -> Any:
        row, byte = np.divmod(addresses - BASE, self.step)
        far = (row >= 0) & (row < self.rows) & (byte + size <= self.width)
        near = np.where(far, self.image + row * self.width + byte, addresses)
        return super()._locate(near, size, who)


def far_rows(program: emulated.EmulatedKernel, b: Built) -> None:
    """Raise VerificationError, or what the emulator raises, unless D is right: of one GEMM that only writes D."""
    p = b.problem
    if transcendental(p.epilogue) or p.grouping != "none" or p.accumulate:
        return
    operands = exact_integers(b.problem, *SHAPE, 3)
    got = _run(program, b, operands)
    engine = NumpyEngine()
    want = engine.round_to(product(b.problem, operands, engine), b.problem.d)
    if (wrong := got != want).any():
        raise VerificationError(f"{int(wrong.sum())} elements of far rows differ")


def _run(program: emulated.EmulatedKernel, b: Built, operands: Any) -> Any:
    m, n, _ = SHAPE
    near = pitches(b.kernel, SHAPE)
    strides = replace(near, d=PITCH)
    width = near.d * b.problem.d.bytes
    memory = FarMemory(m, PITCH * b.problem.d.bytes, width)
    bound = bind(operands, strides, BASE, lambda p: memory.allocate(p))
    launch(
        program.entry,
        grid=grid(b.kernel, SHAPE, b.kernel.cluster.size),
        block=b.kernel.threads,
        cluster=b.kernel.cluster.size,
        shared_bytes=b.kernel.smem_bytes or 0,
        params=emulated.params(b.kernel, bound, 0),
        memory=memory,
    )
    rows = memory.read(memory.image, m * width).view(code_type(b.problem.d))
    return rows.reshape(m, -1)[:, :n]
