"""Layers of 4 bits from a checkpoint's tensors: an MLP as AWQ stores it and a block of experts as gpt-oss does, on gemmgen.nn.

    python examples/w4a16.py

Weights are random, names and layouts those of the checkpoints; gemmgen.quant reads them (`quant.load(folder, "awq")` reads files). Prints what was read, how far the layers, and torch with the dequantised
weights in 16 bits, are from float64, and times of both. Reading and packing run anywhere; the kernels need a Hopper GPU: without one it shows torch's alone, on the CPU, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from gemmgen import do_bench, ops, quant
from gemmgen.errors import RuntimeUnavailable
from gemmgen.nn import Experts4bit, Linear4bit
from gemmgen.runtime.driver import require_hopper

MISSING = 3  # exit code, as of the command line
MLP, MOE = "model.layers.0.mlp", "model.layers.0.mlp.experts"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs of a word, from its low bits up
Tensors = dict[str, torch.Tensor]
Way = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    hidden: int
    intermediate: int
    experts: int
    top: int
    tokens: int


SMALL = Sizes(hidden=256, intermediate=384, experts=4, top=2, tokens=16)
GPU = Sizes(hidden=2880, intermediate=2880, experts=32, top=4, tokens=16)  # of gpt-oss-20b
AWQ = Sizes(hidden=4096, intermediate=14336, experts=0, top=0, tokens=16)  # of Llama 3 8B


# ---- tensors as checkpoints have them -------------------------------------------------------


def of_awq(s: Sizes) -> Tensors:
    """qweight int32 [K, N / 8], qzeros [K / 128, N / 8], scales float16 [K / 128, N], of three projections."""
    sides = ((s.intermediate, s.hidden), (s.intermediate, s.hidden), (s.hidden, s.intermediate))
    found = {}
    for name, (n, k) in zip(PROJECTIONS, sides, strict=True):
        codes, zeros = torch.randint(16, (k, n)), torch.randint(6, 11, (k // 128, n))
        found[f"{MLP}.{name}.qweight"] = awq_words(codes)
        found[f"{MLP}.{name}.qzeros"] = awq_words(zeros)
        sizes = 0.5 + torch.rand(k // 128, n)
        found[f"{MLP}.{name}.scales"] = (sizes * k**-0.5 / 4.6).half()
    return found


def awq_words(codes: torch.Tensor) -> torch.Tensor:
    eight = codes.view(codes.shape[0], -1, 8)[..., AWQ_ORDER]
    return (eight << 4 * torch.arange(8)).sum(-1).to(torch.int32)


def of_gpt_oss(s: Sizes) -> Tensors:
    """blocks uint8 [E, N, K / 32, 16], scales uint8 [E, N, K / 32] and bias bfloat16 [E, N] of both projections; rows of gate_up_proj alternate."""
    both = (s.experts, 2 * s.intermediate, s.hidden)
    found = {}
    for name, (e, n, k) in (
        ("gate_up_proj", both),
        ("down_proj", (s.experts, s.hidden, s.intermediate)),
    ):
        near = 127 + round(torch.tensor(k**-0.5 / 2.9).log2().item())
        found[f"{MOE}.{name}_blocks"] = torch.randint(256, (e, n, k // 32, 16), dtype=torch.uint8)
        scales = torch.randint(near - 1, near + 2, (e, n, k // 32), dtype=torch.uint8)
        found[f"{MOE}.{name}_scales"] = scales
        found[f"{MOE}.{name}_bias"] = torch.randn(e, n).bfloat16() / 8
    return found


# ---- layers ---------------------------------------------------------------------------------


class Mlp(torch.nn.Module):
    """down(silu(gate(x)) * up(x)), of layers of any kind."""

    def __init__(self, layers: Mapping[str, Way]) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (self.layers[name] for name in PROJECTIONS)
        return down(functional.silu(gate(x)) * up(x))


class Experts:
    """gpt-oss's experts in torch, one after the other, of weights that are numbers."""

    def __init__(self, w: Tensors, chosen: torch.Tensor, shares: torch.Tensor) -> None:
        self.w, self.chosen, self.shares = w, chosen, shares

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        w, y = {name: t.to(x.dtype) for name, t in self.w.items()}, torch.zeros_like(x)
        for expert in self.chosen.unique().tolist():
            token, nth = (self.chosen == expert).nonzero(as_tuple=True)
            both = functional.linear(x[token], w["gate_up"][expert], w["gate_up_bias"][expert])
            gate, up = both[:, ::2].clamp(max=7.0), both[:, 1::2].clamp(-7.0, 7.0)
            h = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            out = functional.linear(h, w["down"][expert], w["down_bias"][expert])
            y.index_add_(0, token, out * self.shares[token, nth, None].to(x.dtype))
        return y


def mlps(s: Sizes, device: str, kernels: bool) -> tuple[Way, dict[str, Way]]:
    """The MLP in float64, and ways to compute it in float16."""
    weights = quant.load({n: t.to(device) for n, t in of_awq(s).items()}, "awq")
    of = {name: weights[f"{MLP}.{name}"] for name in PROJECTIONS}
    wide = {n: w.dequantise() for n, w in of.items()}
    exact = Mlp({n: partial(functional.linear, weight=w) for n, w in wide.items()})
    half = {n: partial(functional.linear, weight=w.half()) for n, w in wide.items()}
    ways: dict[str, Way] = {"torch, float16": Mlp(half)}
    if kernels:
        ways["gemmgen, 4 bits"] = Mlp({n: Linear4bit.from_quantised(w) for n, w in of.items()})
    describe("AWQ", of)
    return exact, ways


def mixtures(s: Sizes, device: str, kernels: bool) -> tuple[Way, dict[str, Way]]:
    """The experts in float64, and ways to compute them in bfloat16; all tokens' choices are the same in each."""
    tensors = {n: t.to(device) for n, t in of_gpt_oss(s).items()}
    loaded = quant.load(tensors, "mxfp4")
    of = {name: loaded[f"{MOE}.{name}_proj"] for name in ("gate_up", "down")}
    biases = {f"{name}_bias": tensors[f"{MOE}.{name}_proj_bias"] for name in of}
    logits = torch.randn(s.tokens, s.experts, device=device)
    chosen, shares = ops.select(logits, s.top)
    wide = {name: w.dequantise() for name, w in of.items()} | biases
    ways: dict[str, Way] = {
        "torch, bfloat16": Experts({n: w.bfloat16() for n, w in wide.items()}, chosen, shares)
    }
    if kernels:
        layer: Any = Experts4bit.from_quantised(**of, **biases, activation="swiglu_clamped")
        ways["gemmgen, 4 bits"] = partial(layer, chosen=chosen, weights=shares)
    describe("gpt-oss", of)
    return Experts(wide, chosen, shares), ways


def describe(what: str, of: dict[str, quant.Quantised]) -> None:
    for name, w in of.items():
        parts = [t for t in (w.codes, w.scales, w.zeros) if t is not None]
        size = sum(t.numel() * t.element_size() for t in parts)
        print(f"{what}: {name} {list(w.shape)} of {w.format.name}, {size / 1e6:.1f} MB")


@torch.no_grad()
def show(
    s: Sizes,
    make: Callable[..., tuple[Way, dict[str, Way]]],
    device: str,
    kernels: bool,
    dtype: torch.dtype,
) -> dict[str, float]:
    """By way, its error, the length of a difference of the length of the result in float64; printed, on a GPU with its time."""
    torch.manual_seed(0)
    exactly, ways = make(s, device, kernels)
    x = torch.randn(s.tokens, s.hidden, device=device).to(dtype)
    exact, found = exactly(x.double()), {}
    for name, way in ways.items():
        found[name] = float((way(x).double() - exact).norm() / exact.norm())
        took = ""
        if x.is_cuda:
            took = f", {do_bench(partial(way, x), repeats=5).median * 1e6:.0f} us"
        print(f"  {name:<16} {found[name]:.3%} from float64{took}")
    return found


def main() -> int:
    try:
        name = require_hopper(0)
    except RuntimeUnavailable as e:
        show(SMALL, mlps, "cpu", False, torch.float16)
        show(SMALL, mixtures, "cpu", False, torch.bfloat16)
        print(f"gemmgen's kernels need a Hopper GPU: {e}", file=sys.stderr)
        return MISSING
    print(name)
    show(AWQ, mlps, "cuda", True, torch.float16)
    show(GPU, mixtures, "cuda", True, torch.bfloat16)
    return 0


if __name__ == "__main__":
    sys.exit(main())
