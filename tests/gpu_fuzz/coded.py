"""B of packed weights: packed so that they stand for given numbers, or of any codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gemmgen.codes import decode, encode
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ir.packed import FORMS, OF_8_BITS
from gemmgen.verification.coded import exactly, randomly

from .kind import Kind

TO = {"bfloat16": BF16, "float16": F16, "float8_e4m3fn": E4M3}
APART = 1_000_003  # between the seeds of two groups


@dataclass(frozen=True)
class _Operand:
    """Numbers [N, K] as codes, and as packed blocks, with what sums over each 128 of K are scaled by, if they are."""

    b: Any
    blocks: Any = None
    scale_b: Any = None
    rows_per_scale: int = 0

    def numbers(self, to: Any) -> Any:
        """What they stand for, float32."""
        found = decode(self.b, to)
        if self.scale_b is not None:
            found = found * np.repeat(self.scale_b, 128, -1)[:, : found.shape[1]]
        return found.astype(np.float32)


def packed(kind: Kind, values: Any, seed: int, *, normal: bool) -> tuple[Any, Any]:
    """float32 [.., N, K] and uint8 [.., ceil(N/64), ceil(K/128), bytes]: `values` themselves, which are 0, 1 and 2 of either sign, of FP8 times a
    power of two in each row, or, if `normal`, other numbers, of any codes; and what stands for them."""
    to = TO[kind.a]
    known = FORMS[to] | OF_8_BITS.get(to, {})
    form, *lead = known[kind.weights], *values.shape[:-2]
    matrices = values.reshape(-1, *values.shape[-2:]).to("cpu", torch.float32).numpy()
    drawn = [
        (randomly if normal else exactly)(_Operand(encode(x, to)), form, seed + APART * i)
        for i, x in enumerate(matrices)
    ]
    numbers = [x.numbers(to) for x in drawn]
    n, k = values.shape[-2:]
    blocks = (-(-n // 64), -(-k // 128), form.block_bytes)
    found = np.stack([x.blocks for x in drawn]) if drawn else np.empty((0, *blocks), np.uint8)
    whole = np.stack(numbers) if numbers else np.empty((0, n, k), np.float32)
    return (
        torch.from_numpy(whole).reshape(values.shape).to(values.device),
        torch.from_numpy(found).reshape(*lead, *blocks).to(values.device),
    )
