"""Layers of experts: their weights, what a router chose, and the layer in float64."""

from __future__ import annotations

from functools import partial

import torch
from four_bits import exact

from gemmgen import formats, ops, quant
from gemmgen.ir.packed import named_for

BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
BY_ROW = {"fp8 rows": "e4m3", "int8": "s8"}  # kinds of weights whose rows have one scale each
# Of packed weights, their format, what they are packed for, and how rows are quantised for that if not with one scale each. Rows of w1 alternate.
CODED = {
    "int4": (formats.int4(64, "bf16", zeros=True), BF16),
    "mxfp4": (formats.MXFP4, BF16),
    "nvfp4": (formats.NVFP4, BF16),
    "mxfp4 f16": (formats.MXFP4, F16),
    "mxfp4 fp8": (formats.MXFP4, FP8),
    "mxfp4 fp8 blocks": (formats.MXFP4, FP8, "e4m3_128"),
    "int4 fp8 blocks": (formats.int4(128, "f32"), FP8, "e4m3_128"),
    "int8 by bf16": (formats.INT8_ROWS, BF16),
    "fp8 by f16": (formats.FP8_ROWS, F16),
}
OF_8_BITS = ("int8 by bf16", "fp8 by f16")
PLAIN = ("fp8", "bf16", *BY_ROW)
KINDS = (*PLAIN, *CODED)
ORDERS = ("alternating", "halves")
CASES = (*((k, o) for k in PLAIN for o in ORDERS), *((k, ORDERS[0]) for k in CODED))


def drawn(*shape, device="cpu", kind="bf16"):
    """In 16 bits; rows that a layer of that kind takes."""
    dtype = F16 if F16 in CODED.get(kind, ()) else BF16
    return torch.randn(*shape, device=device).to(dtype)


def weights_of(experts, hidden, inner, device="cpu", kind="fp8", order="alternating"):
    """w1 and w2 of `ops.moe`, with their scales if not of 16 bits: of blocks in "fp8", else of rows."""
    gate, up = (drawn(experts, inner, hidden, device=device) * hidden**-0.5 for _ in range(2))
    pair = (gate, up)
    both = torch.stack(pair, 2).flatten(1, 2) if order == "alternating" else torch.cat(pair, 1)
    down = drawn(experts, hidden, inner, device=device) * inner**-0.5
    if kind == "bf16":
        return {"w1": both, "w2": down}
    if kind in CODED:
        return packed(both, down, *CODED[kind])
    if kind in BY_ROW:
        pairs = (ops.quantise_rows(x, None, dtype=BY_ROW[kind]) for x in (both, down))
    else:
        pairs = map(ops.quantise_blocks, (both, down))
    (w1, scale_w1), (w2, scale_w2) = pairs
    return {"w1": w1, "w2": w2, "scale_w1": scale_w1, "scale_w2": scale_w2}


def packed(both, down, form, dtype, activations="e4m3"):
    """w1 and w2 that are quantised and packed, with their factors where they have some."""
    w1, w2 = (quant.pack(quant.of(x, form), dtype) for x in (both, down))
    found = {"w1": w1.blocks, "w2": w2.blocks, "packed": w1.weights}
    found |= {} if w1.factors is None else {"scale_w1": w1.factors, "scale_w2": w2.factors}
    return found | ({"activations": activations} if dtype == FP8 else {})


def unpacked(blocks, factors, rows, columns, weights, activations=None):
    """What packed weights stand for, float64 [E, rows, columns]."""
    form = named_for(activations)[weights]
    shape = len(blocks), rows, columns
    of = {"format": formats.named(form.format), "dtype": form.to}
    return exact(quant.Packed(**of, blocks=blocks, shape=shape, factors=factors))


def choices(tokens, top, experts, device="cpu"):
    """chosen and weights: every expert but one, no two alike of a token."""
    scores = torch.rand(tokens, experts, device=device)
    scores[:, experts // 2] = -1.0
    found = scores.topk(top)
    return {"chosen": found.indices, "weights": found.values}


def wide(w, scale):
    """Codes times their scales, or 16 bits, in float64."""
    if scale is None:
        return w.double()
    if scale.dim() == 2:
        return w.double() * scale.double().unsqueeze(-1)
    rows, columns = w.shape[-2:]
    by = scale.double().repeat_interleave(128, -2).repeat_interleave(128, -1)
    return w.double() * by[..., :rows, :columns]


GATES = {
    "swiglu": torch.nn.functional.silu,
    "geglu": torch.nn.functional.gelu,
    "geglu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "reglu": torch.relu,
}


def gated(epilogue, gate, up):
    """In float64: what is between the GEMMs of an expert."""
    if epilogue == "swiglu_clamped":
        g, u = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return g * torch.sigmoid(1.702 * g) * (u + 1)
    return GATES[epilogue](gate) * up


def biases_of(experts, hidden, inner, device="cpu"):
    """Of `ops.moe`: so large that a missing one is seen."""
    given = {"dtype": F32, "device": device}
    return {
        "bias_w1": torch.randn(experts, 2 * inner, **given),
        "bias_w2": torch.randn(experts, hidden, **given),
    }


LEAVES = ("x", "w1", "w2", "weights", "add")  # of those that are given


def trained(run, of, dy):
    """What `run` gives, and by name the gradients of leaves, dy [T, H] that of the result."""
    leaves = {n: of[n].detach().clone().requires_grad_() for n in LEAVES if n in of}
    y = run(**of | leaves)
    found = torch.autograd.grad(y, [*leaves.values()], dy.to(y.dtype))
    return {"y": y.detach()} | dict(zip(leaves, found, strict=True))


def wide_layer(x, w1, w2, chosen, weights, add=None, **said):
    """[T, H] in float64, one expert after the other, by operators that torch has gradients of."""
    x, w1, w2, weights = (t.double() for t in (x, w1, w2, weights))
    y = torch.zeros_like(x) if add is None else add.double()
    act, first = GATES[said.get("epilogue", "swiglu")], said.get("first", 0)
    for e in range(len(w1)):
        both = x @ w1[e].mT
        halves = said.get("order") == "halves"
        gate, up = both.chunk(2, -1) if halves else (both[:, ::2], both[:, 1::2])
        mine = ((chosen == e + first) * weights).sum(-1, keepdim=True)
        y = y + mine * ((act(gate) * up) @ w2[e].mT)
    return y


def distances(found, exact):
    """By name."""
    return {name: distance(x, exact[name]) for name, x in found.items()}


def layer(
    x,
    w1,
    w2,
    chosen,
    weights,
    scale_w1=None,
    scale_w2=None,
    add=None,
    bias_w1=None,
    bias_w2=None,
    **said,
):
    """[T, H] in float64, one copy after the other."""
    first, halves = said.get("first", 0), said.get("order") == "halves"
    if "packed" in said:
        hidden, inner = x.shape[1], 32 * w1.shape[1]
        named = said["packed"], said.get("activations")
        w1 = unpacked(w1, scale_w1, 2 * inner, hidden, *named)
        w2 = unpacked(w2, scale_w2, hidden, inner, *named)
    else:
        w1, w2 = wide(w1, scale_w1), wide(w2, scale_w2)
    x = x.double()
    out = torch.zeros_like(x) if add is None else add.double()
    for t, of in enumerate(chosen.tolist()):
        for j, e in enumerate(of):
            if first <= e < first + len(w1):
                both = w1[e - first] @ x[t]
                both = both if bias_w1 is None else both + bias_w1[e - first]
                gate, up = both.chunk(2) if halves else (both[::2], both[1::2])
                y = w2[e - first] @ gated(said.get("epilogue", "swiglu"), gate, up)
                y = y if bias_w2 is None else y + bias_w2[e - first]
                out[t] += weights[t, j].double() * y
    return out


def distance(found, exact):
    """Length of the difference, of the length of the exact."""
    return ((found.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()
