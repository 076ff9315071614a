"""Quantised weights in the order in which kernels read them, as torch tensors, and the numbers that kernels make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .. import formats
from ..codes import encode
from ..errors import ArgumentError
from ..formats import Format, Weights
from ..formats.packing import row_pairs
from ..ir.codings import INT4
from ..ir.dtypes import BF16, E4M3, F16, F32, DType
from ..ir.packed import BY_BLOCK, COLUMNS, ROWS, Form
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, torch, torch_dtype
from ..unpacking import Unpacking, source
from .quantised import Quantised

# Rows of a matrix that are packed at once: measured, 4 to 5 bytes for each weight of them.
CHUNK = 64 * ROWS
TAKEN = (BF16, F16, E4M3)
loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """Weights [..., N, K] of `format`, one of groups, for products with `dtype`: blocks, uint8 [..., ceil(N / 64), ceil(K / 128), bytes of a
    block] (`gemmgen.ir.packed`). factors: float32 [..., N], what is multiplied lacks: 2^base of each row, of MXFP4 for E4M3 and FP16, of NVFP4 the tensor's
    scale times 2^7, and of 8 bits the row's scale, of E4M3 for FP16 times 2^8; None: 1."""

    format: Format
    dtype: DType
    blocks: Any
    shape: tuple[int, ...]
    factors: Any = None

    @property
    def weights(self) -> str:
        """What operators and layers call such blocks: the format's name, with "_f16" of all but INT4 for float16."""
        return self.form.name

    @property
    def activations(self) -> str | None:
        """What layers are told of products with them: "e4m3" where rows of 16 bits are quantised for them, "e4m3_128" where only with a scale for each 128
        columns of one, None where not."""
        if self.form.scales_sums:
            return BY_BLOCK
        return E4M3.name if self.dtype == E4M3 else None

    @property
    def form(self) -> Form:
        f = self.format
        return Form(element=f.element, to=self.dtype, group=f.group, zeros=f.zeros)

    def sum_scales(self) -> Any:
        """Of INT4 for E4M3, what sums of `numbers` over each 128 columns are scaled by, float32 [..., N, ceil(K/128)] on the device of the blocks; None of others, whose
        numbers have their scales."""
        form = self.form
        if not form.scales_sums:
            return None
        *lead, down, across, _ = self.blocks.shape
        held = self.blocks[..., form.codes_bytes :].contiguous().view(torch().float32)
        rows = torch().empty_like(held)
        rows[..., torch().from_numpy(row_pairs().reshape(-1)).to(held.device)] = held
        found = rows.transpose(-1, -2)
        return found.reshape(*lead, down * ROWS, across)[..., : self.shape[-2], :].contiguous()

    def wide(self) -> Any:
        """float64 [..., N, K] on the device of the blocks: what a kernel multiplies by, times what scales its sums; a row's factor is not in it."""
        numbers, scales = self.numbers().double(), self.sum_scales()
        if scales is None:
            return numbers
        return numbers * scales.double().repeat_interleave(COLUMNS, -1)[..., : self.shape[-1]]

    def to(self, device: Any) -> Packed:
        """The same on that device."""
        factors = None if self.factors is None else self.factors.to(device)
        return replace(self, blocks=self.blocks.to(device), factors=factors)

    def numbers(self) -> Any:
        """What a kernel multiplies by, [..., N, K] of `dtype`, contiguous, on the device of the blocks: (code - zero) * scale rounded once, of
        others than INT4 exactly the weight over its row's factor; of INT4 for E4M3 the code - 8, times 2^-9 (`sum_scales`).

        On a CUDA device one launch of a generated kernel for each [N, K], on torch's current stream; elsewhere NumPy, with the same bits. Raises RuntimeUnavailable
        on a GPU without NVRTC or that is not Hopper.
        """
        out = torch().empty(self.shape, dtype=torch_dtype(self.dtype), device=self.blocks.device)
        rows, columns = self.shape[-2:]
        blocks = self.blocks.reshape(-1, *self.blocks.shape[-3:])
        for i, each in enumerate(out.view(-1, rows, columns)):
            if out.is_cuda:
                self._launch(blocks[i], each)
            else:
                each.view(torch().uint8).copy_(self._reference(blocks[i]))
        return out

    def _launch(self, blocks: Any, out: Any) -> None:
        form, (rows, columns) = self.format, out.shape
        kernel = Unpacking(element=form.element, to=self.dtype, group=form.group, zeros=form.zeros)
        values = {"blocks": blocks.data_ptr(), "numbers": out.data_ptr()}
        values |= {"rows": rows, "columns": columns}
        tiles, stream = kernel.tiles(rows, columns), current_stream(out.device)
        loaded(kernel, out.device.index).launch(values, tiles, stream)

    def _reference(self, blocks: Any) -> Any:
        rows, columns = self.shape[-2:]
        held = formats.Packed(
            format=self.format, to=self.dtype, blocks=blocks.numpy(), rows=rows, columns=columns
        )
        values = formats.numbers(held)
        return torch().from_numpy(encode(values, self.dtype).view(np.uint8))


def pack(
    weights: Quantised,
    dtype: Any = None,
    *,
    group: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Packed:
    """`weights` for products with `dtype`: torch.bfloat16 (None), torch.float16, of MXFP4, and of INT4 without zeros in groups of 128 or whole rows, torch.float8_e4m3fn, whose scales become float32. Packed on the CPU, once; the
    result is on the device of `weights`. group: the columns, 32, 64 or 128, as whose scales those of a row or a wider group are packed, with the same numbers; None: for INT4 with a scale for a
    whole row the largest that divides K, which `Packed.format` says, and that of the format for others. progress: called with (rows packed, rows of all matrices), at first with 0.

    Raises ArgumentError for what is not multiplied with `dtype`: INT4 whose scales are of another dtype (`Quantised.rescaled`), or of whole rows
    of a K that is no multiple of 32, a group that divides none, NVFP4 for E4M3, or with a scale below 0, INT4 for E4M3 with zeros, of groups of 32 or 64, or with a scale of which 2^9 times is no float32, MXFP4 with a row whose exponents span more than 11 for E4M3, 24 for float16, and E4M3 for float16 with a scale of which 2^8 times is no float32.
    """
    if not isinstance(weights, Quantised):
        raise ArgumentError("weights", type(weights).__name__, "must be a gemmgen.quant.Quantised")
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", progress, "must be a function of two arguments")
    wanted = torch().bfloat16 if dtype is None else dtype
    if (
        wanted == torch_dtype(E4M3)
        and weights.format.element == INT4
        and weights.shape[-1] % COLUMNS
    ):
        allowed = (
            f"must be a multiple of {COLUMNS} for INT4 with {wanted}: scales are of so many columns"
        )
        raise ArgumentError("K", weights.shape[-1], allowed)
    to = next((t for t in TAKEN if torch_dtype(t) == wanted), None)
    if to is None:
        allowed = " or ".join(str(torch_dtype(t)) for t in TAKEN)
        raise ArgumentError("dtype", dtype, f"must be {allowed}")
    *lead, rows, _ = weights.shape
    total, done, parts = math.prod((*lead, rows)), 0, []
    said = progress or (lambda done, of: None)
    said(done, total)
    for chunk in _chunks(weights.numpy()):
        parts.append(_packed(chunk, group, to, dtype))
        done += len(chunk.codes)
        said(done, total)
    blocks = np.concatenate([x.blocks for x in parts])  # of all matrices: chunks are whole blocks
    return Packed(
        format=parts[0].format,
        dtype=to,
        blocks=torch().from_numpy(blocks).view(*lead, -(-rows // ROWS), *blocks.shape[1:]),
        shape=weights.shape,
        factors=_factors(parts, (*lead, rows)),
    ).to(weights.codes.device)


def _packed(chunk: Weights, group: int | None, to: DType, dtype: Any) -> formats.Packed:
    if to == E4M3 and chunk.format.element == INT4:
        chunk = formats.rescaled(chunk, F32.name)  # exactly
        group = COLUMNS if group is None and not chunk.format.group else group
    chunk = formats.grouped(chunk, group)
    try:
        return formats.pack(chunk, to)
    except ArgumentError as e:
        if e.argument != "to":
            raise
        raise ArgumentError("dtype", dtype, e.allowed) from e


def _chunks(x: Weights) -> Iterator[Weights]:
    """Of one matrix after the other, so many rows."""
    codes, scales = (y.reshape(-1, *y.shape[-2:]) for y in (x.codes, x.scales))
    zeros = x.zeros if x.zeros is None else x.zeros.reshape(scales.shape)
    for i in range(len(codes)):
        for first in range(0, x.shape[-2], CHUNK):
            at = i, slice(first, first + CHUNK)
            some = None if zeros is None else zeros[at]
            yield replace(x, codes=codes[at], scales=scales[at], zeros=some)


def _factors(parts: list[formats.Packed], shape: tuple[int, ...]) -> Any:
    """Of each row; None where the form of the blocks has none."""
    scales = [x.scales for x in parts if x.scales is not None]
    if scales:
        return torch().from_numpy(np.concatenate(scales)).view(shape)
    bases = [x.bases for x in parts if x.bases is not None]
    if bases:
        found = np.ldexp(np.float32(1), np.concatenate(bases))
        return torch().from_numpy(found).view(shape)
    first = parts[0]
    return torch().full(shape, first.factor) if first.format.tensor_scaled else None
