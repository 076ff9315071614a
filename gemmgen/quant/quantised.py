"""Weights of 4 and 8 bits as torch tensors, in the one form that every reader gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import formats
from ..codes import encode
from ..errors import ArgumentError
from ..formats import Format, Weights
from ..formats.format import INT4_SCALES
from ..formats.weights import scale_type
from ..ir.codings import ZERO
from ..ir.dtypes import BF16, DTYPES, E4M3, E5M2, F16, F32
from ..runtime.torch_tensors import torch, torch_dtype

FLOATS = (F32, BF16, F16, E4M3, E5M2)  # to which weights are rounded
BITS = {1: "uint8", 2: "int16", 4: "int32"}  # integers that a NumPy array can be made of


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantised:
    """Weights [..., N, K] in `format`, whose groups are g columns; contiguous tensors of one device.

    codes: uint8 [..., N, K / 2]; column 2 j of a row is in the low four bits of byte j; of 8 bits [..., N, K], the bits of INT8 or FP8. scales: [..., N, K / g],
    float16, bfloat16 or float32 of INT4, float32 [..., N, 1] of 8 bits, of E2M1 uint8 exponents (E8M0) or float8_e4m3fn. zeros: uint8 [..., N, K / g], where the format has
    them. tensor_scale: a float32 by which all is multiplied, of NVFP4.
    """

    format: Format
    codes: Any
    scales: Any
    zeros: Any = None
    tensor_scale: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., N, K]"""
        *lead, octets = self.codes.shape
        return (*lead, self.format.octet * octets)

    def numpy(self) -> Weights:
        """The same in NumPy, checked; of CPU tensors over their memory. Raises ArgumentError for tensors that are no
        weights in `format`."""
        bits = getattr(torch(), BITS[scale_type(self.format).itemsize])
        wanted = scale_dtype(self.format)
        if self.scales.dtype != wanted:
            raise ArgumentError("scales dtype", self.scales.dtype, f"must be {wanted}")
        scales = self.scales.view(bits).cpu().numpy().view(scale_type(self.format))
        zeros = None if self.zeros is None else self.zeros.cpu().numpy()
        return Weights(
            format=self.format,
            codes=self.codes.cpu().numpy(),
            scales=scales,
            zeros=zeros,
            tensor_scale=self.tensor_scale,
        )

    def rescaled(self, dtype: Any) -> Quantised:
        """INT4 whose scales are rounded to `dtype`, torch.float16, bfloat16 or float32. Raises ArgumentError for other weights and dtypes, and
        where a scale overflows."""
        names = {torch_dtype(DTYPES[x]): x for x in INT4_SCALES}
        if dtype not in (*names,):
            raise ArgumentError("dtype", dtype, f"must be {' or '.join(map(str, names))}")
        try:
            made = formats.rescaled(self.numpy(), names[dtype])
        except ArgumentError as e:
            argument, value = ("dtype", dtype) if e.argument == "scale" else (e.argument, e.value)
            raise ArgumentError(argument, value, e.allowed) from e
        scales = _scales(made).to(self.scales.device)
        return replace(self, format=made.format, scales=scales)

    def dequantise(self, dtype: Any = None) -> Any:
        """The weights as numbers, [..., N, K] on the device of `codes`: exact in float64, the default, and rounded once to float32, bfloat16,
        float16, float8_e4m3fn (448 beyond it) or float8_e5m2. Raises ArgumentError as `numpy` does, and for another dtype."""
        exact = torch().float64
        rounded = {torch_dtype(x): x for x in FLOATS}
        if dtype is not None and dtype not in (exact, *rounded):
            allowed = f"must be {' or '.join(map(str, (exact, *rounded)))}"
            raise ArgumentError("dtype", dtype, allowed)
        values, to = formats.dequantise(self.numpy()), rounded.get(dtype)
        if to is not None:
            # torch rounds float64 to float32 before it rounds to fewer bits.
            values = encode(values, to).view(f"i{to.bytes}")
        return torch().from_numpy(values).view(dtype or exact).to(self.codes.device)


def of(weight: Any, form: Format) -> Quantised:
    """`weight`, a tensor [..., N, K] of finite numbers, quantised to the nearest in `form` on the CPU
    (`gemmgen.formats.quantise`), on the device of `weight`. Raises ArgumentError."""
    if not isinstance(weight, torch().Tensor):
        raise ArgumentError("weight", type(weight).__name__, "must be a torch tensor")
    if not isinstance(form, Format):
        raise ArgumentError("form", form, "must be a gemmgen.formats.Format")
    if not weight.dtype.is_floating_point:
        raise ArgumentError("weight dtype", weight.dtype, "must be floating-point")
    try:
        made = formats.quantise(weight.detach().double().cpu().numpy(), form)
    except ArgumentError as e:
        raise ArgumentError(e.argument.replace("x", "weight", 1), e.value, e.allowed) from e
    return _tensors(made, weight.device)


def alternating(weights: Quantised) -> Quantised:
    """Weights [..., 2 * I, K] whose first I rows and last I come in turn, as those of gate and up for an epilogue that pairs columns. Copied.
    Raises ArgumentError."""
    if not isinstance(weights, Quantised):
        allowed = "must be a gemmgen.quant.Quantised"
        raise ArgumentError("weights", type(weights).__name__, allowed)
    if weights.shape[-2] % 2:
        raise ArgumentError("weights shape", weights.shape, "must be [..., 2 * I, K]")
    zeros = None if weights.zeros is None else in_turn(weights.zeros, -2)
    scales = in_turn(weights.scales.view(_bits_of(weights.scales)), -2).view(weights.scales.dtype)
    return replace(weights, codes=in_turn(weights.codes, -2), scales=scales, zeros=zeros)


def with_zeros(weights: Quantised) -> Quantised:
    """INT4 with the zeros that a format without them stands for: a layer of GPTQ has none if all are the same."""
    if weights.zeros is not None:
        return weights
    zeros = torch().full_like(weights.scales, ZERO, dtype=torch().uint8)
    return replace(weights, format=replace(weights.format, zeros=True), zeros=zeros)


def in_turn(x: Any, side: int) -> Any:
    """x whose first half along `side`, a negative number, comes in turn with its second."""
    return x.unflatten(side, (2, -1)).transpose(side - 1, side).flatten(side - 1, side).contiguous()


def _bits_of(scales: Any) -> Any:
    """Integers as wide: torch moves no FP8 on every device."""
    return getattr(torch(), BITS[scales.element_size()])


def scale_dtype(form: Format) -> Any:
    """torch's, of a scale: of E8M0 the exponents."""
    return torch_dtype(form.scale_dtype) if form.scale_dtype else torch().uint8


def _tensors(made: Weights, device: Any) -> Quantised:
    return Quantised(
        format=made.format,
        codes=torch().from_numpy(made.codes).to(device),
        scales=_scales(made).to(device),
        zeros=None if made.zeros is None else torch().from_numpy(made.zeros).to(device),
        tensor_scale=made.tensor_scale,
    )


def _scales(made: Weights) -> Any:
    bits = torch().from_numpy(made.scales.view(f"i{made.scales.itemsize}"))
    return bits.view(scale_dtype(made.format))


def packed_rows(codes: Any) -> Any:
    """uint8 codes [K, N], two of a column to a byte: uint8 [N, K / 2], contiguous."""
    turned = codes.t()
    return (turned[:, 0::2] | turned[:, 1::2] << 4).contiguous()


def words(tensor: Any) -> Any:
    """The eight codes of each int32, low bits first: [..., W] -> uint8 [..., W, 8]. A CPU's and a GPU's bytes are little-endian."""
    # A side of 1 may have any stride, which no view of other bits takes.
    octets = tensor.contiguous().view(-1).view(torch().uint8).view(*tensor.shape, 4)
    return torch().stack([octets & 15, octets >> 4], -1).view(*tensor.shape, 8)


assert np.little_endian  # of every machine that torch's CUDA builds are for
