"""What operands of an operator stand for, in float64."""

from __future__ import annotations

import pytest

from gemmgen import formats, quant
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ir.packed import forms
from gemmgen.recipes import recipe
from gemmgen.runtime.torch_tensors import dtype_of

torch = pytest.importorskip("torch")


def operands(op, given):
    """a [..., M, K] and b [..., N, K], dequantised."""
    if op.coded:
        a = given["a"].double()
        if op.scaling == "rows":
            a = a * given["scale_a"].repeat_interleave(128, -1)[..., : a.shape[-1]]
        return a, numbers(op, given)
    a, b = (given[x].double() for x in "ab")
    if given.get("packing") == "flat":
        depths = given["group_depths"].tolist()
        a, b = (flat(x, given[f"scale_{n}"].shape[0], depths) for n, x in (("a", a), ("b", b)))
    layout = given.get("layout", "nt")
    a, b = a.mT if layout[0] == "t" else a, b.mT if layout[1] == "n" else b
    a = taken(a, given)
    if op.scaling in ("block", "vector"):
        a = a * given["scale_a"].repeat_interleave(128, -1)[..., : a.shape[-1]]
        scale = given["scale_b"].repeat_interleave(128, -1)[..., : b.shape[-1]]
        if op.scaling == "block":
            scale = scale.repeat_interleave(128, -2)[..., : b.shape[-2], :]
        b = b * scale
    return a, b


def numbers(op, given):
    """What packed weights stand for, [..., N, K]; a row's factor is not theirs."""
    n, b = given["columns"], given["b"]
    shape = (*b.shape[:-3], 64 * b.shape[-3] if n is None else n, given["a"].shape[-1])
    dtype = dtype_of("a", given["a"], (BF16, F16, E4M3))
    known = forms(recipe(op.family).coded, dtype)
    form = formats.named(known[given["weights"]].format)
    packed = quant.Packed(format=form, dtype=dtype, blocks=b, shape=shape)
    return packed.wide()


def taken(a, given):
    """a's rows, by index if there are indices; zeros where there is no such row."""
    if given.get("rows") is None:
        return a
    found = torch.div(given["rows"].long(), given["top"], rounding_mode="floor")
    there = (found >= 0) & (found < len(a))
    return torch.cat([a, a.new_zeros(1, a.shape[1])])[found.where(there, len(a))]


def flat(x, rows, depths):
    parts = torch.split(x, [rows * k for k in depths])
    return torch.cat([part.view(rows, -1) for part in parts if part.numel()], 1)
