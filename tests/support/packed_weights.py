"""Weights of 4 bits to pack, and the numbers that must come of them."""

from __future__ import annotations

import numpy as np

from gemmgen.codes import decode, encode
from gemmgen.formats import MXFP4, NVFP4, Weights, dequantise, elements, int4, paired
from gemmgen.formats.weights import scale_type
from gemmgen.ir.codings import E2M1, INT4, SHIFTS
from gemmgen.ir.dtypes import BF16, E4M3, F16

GROUPS = (32, 64, 128)
SPANS = {
    to: most - least + 1 for to, (least, most) in SHIFTS.items()
}  # exponents that a row may have
KINDS = [(int4(128, "f32"), E4M3), (MXFP4, BF16), (MXFP4, F16), (MXFP4, E4M3), (NVFP4, BF16), (NVFP4, F16), *((int4(g, t.name, zeros=z), t) for g in GROUPS for t in (BF16, F16) for z in (False, True))]  # fmt: skip
NAMES = [f"{form.name}-{to}" for form, to in KINDS]


def drawn(form, rows, columns, seed=0, lead=()):
    """Any codes and zeros, and scales of few sizes, so that some products are subnormal and none overflows."""
    rng = np.random.default_rng(seed)
    shape = (*lead, rows, columns // form.group_of(columns))
    scales = rng.integers(0, 129, (*lead, rows, 1), np.uint8) // 9 * 8 + rng.integers(
        0, SPANS[E4M3], shape, np.uint8
    )
    if form.scale_dtype:
        scales = encode(
            rng.standard_normal(shape) * np.exp2(rng.integers(-12, 8, shape)), form.scale_dtype
        )
    if form.tensor_scaled:
        scales = np.maximum(scales & 0x7F, 1)  # no signs; of 0 codes are not kept
    return Weights(
        format=form,
        codes=rng.integers(0, 256, (*lead, rows, columns // 2), np.uint8),
        scales=scales,
        zeros=rng.integers(0, 16, shape, np.uint8) if form.zeros else None,
    )


def every_scale(form, to):
    """All codes with every finite scale of groups of 32; with zeros with every 17th scale, and each of those with every zero. Of INT4 some of what comes of
    them is rounded."""
    count = {"e8m0": SPANS.get(to, 129), "e4m3": 0x7F}.get(form.scale, 1 << 16)
    bits, groups = np.arange(count), 2048 // form.group  # of a row
    if form.scale_dtype:
        bits = bits[np.isfinite(decode(bits.astype(scale_type(form)), form.scale_dtype))]
    bits = bits[:: 17 if form.zeros else 1]  # odd: all ends of a fraction are among them
    if form.zeros:
        bits = np.repeat(bits, 16)
    columns = form.group * groups
    rows = -(-len(bits) // groups)
    scales = np.resize(bits, rows * groups).reshape(rows, groups)
    if form.scale == "e8m0" and to in SPANS:  # all that a row may have, at every exponent
        rows, scales = 240, np.minimum(np.resize(bits, (1, groups)) + np.arange(240)[:, None], 254)
    given = Weights(
        format=form,
        codes=np.tile(paired(np.arange(16, dtype=np.uint8)), (rows, columns // 16)),
        scales=scales.astype(scale_type(form)),
        zeros=np.resize(np.arange(16, dtype=np.uint8), scales.shape) if form.zeros else None,
    )
    assert rounded(given, to) or form.element == E2M1
    return given


def rounded(given, to):
    """How many weights are no number of `to`, those aside that are too great."""
    exact = dequantise(given)
    near = decode(encode(exact, to), to)
    return int((np.isfinite(near) & (near != exact)).sum())


def wanted(given, packed):
    """Codes of the numbers that a kernel has to make: rounded once, of MXFP4 for E4M3 and FP16 exactly the given over 2^base, of NVFP4 over the factor, of INT4
    for E4M3 without scales."""
    if given.format.element == INT4 and packed.to == E4M3:
        return encode(elements(given) / 512, E4M3)
    values = dequantise(given) / packed.factor
    if packed.bases is not None:
        values = np.ldexp(values, -packed.bases[..., None].astype(np.int64))
        assert np.array_equal(decode(encode(values, packed.to), packed.to), values)
    return encode(values, packed.to)
