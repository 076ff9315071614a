"""A mixture of experts that trains: gemmgen.nn.MoE in BF16 and in FP8 beside torch's operators, from the same parameters.

    python examples/moe_training.py

Each takes the same steps of Adam on the same batches, whose targets another mixture gives. Prints the losses of all, and on a GPU what a step takes. The kernels need a Hopper GPU: without one it
shows torch's alone, on the CPU, and says so.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from gemmgen import do_bench, ops
from gemmgen.errors import RuntimeUnavailable
from gemmgen.nn import MoE
from gemmgen.runtime.driver import require_hopper

MISSING = 3  # exit code, as of the command line
Layer = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """shared: the intermediate features of an expert that all tokens have."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top: int
    shared: int


SMALL = Sizes(tokens=64, hidden=128, intermediate=64, experts=8, top=2, shared=64)
LARGE = Sizes(tokens=4096, hidden=2048, intermediate=1408, experts=16, top=4, shared=1408)


def moe(s: Sizes, kind: str, device: str) -> MoE:
    given = {"kind": kind, "shared": s.shared, "device": device}
    return MoE(s.hidden, s.intermediate, s.experts, s.top, **given)  # type: ignore[arg-type]


class InTorch(torch.nn.Module):
    """What a MoE of BF16 computes, one expert after the other; autograd has its gradients."""

    def __init__(self, layer: MoE) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of, e = self.layer, self.layer.experts
        chosen, weights = ops.select(of.router(x.float()), of.top)
        s: Any = of.shared
        h = functional.silu(x @ s.gate_proj.weight.mT) * (x @ s.up_proj.weight.mT)
        y = (h @ s.down_proj.weight.mT).float()
        for expert in range(e.experts):
            token, nth = (chosen == expert).nonzero(as_tuple=True)
            both = functional.linear(x[token], e.gate_up[expert])
            h = functional.silu(both[:, ::2]) * both[:, 1::2]
            found = functional.linear(h, e.down[expert]).float()
            y = y.index_add(0, token, found * weights[token, nth, None])
        return y.to(x.dtype)


def ways(s: Sizes, device: str, kernels: bool) -> Iterator[tuple[str, torch.nn.Module]]:
    """By name, layers with parameters of their own, all alike at first."""
    first = moe(s, "bf16", device)
    yield "torch, BF16", InTorch(copy.deepcopy(first))
    if not kernels:
        return
    for kind in ("bf16", "fp8"):
        made = moe(s, kind, device)
        made.load_state_dict(first.state_dict())
        yield f"gemmgen, {kind.upper()}", made


def step(
    layer: torch.nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, goal: torch.Tensor
) -> torch.Tensor:
    loss = (layer(x).float() - goal).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.detach()


def show(s: Sizes, device: str, steps: int, kernels: bool) -> dict[str, list[float]]:
    """By name, losses of all steps, which are printed."""
    torch.manual_seed(0)
    teacher = InTorch(moe(s, "bf16", device))
    batches = torch.randn(4, s.tokens, s.hidden, device=device).bfloat16()
    with torch.no_grad():
        goals = torch.stack([teacher(x).float() for x in batches])
    found = {}
    for name, layer in ways(s, device, kernels):
        optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)
        losses = [step(layer, optimiser, batches[i % 4], goals[i % 4]) for i in range(steps)]
        found[name] = torch.stack(losses).tolist()
        print(f"  {name:<14} loss {found[name][0]:.4f} to {found[name][-1]:.4f} in {steps} steps")
        if device == "cuda":
            took = do_bench(partial(step, layer, optimiser, batches[0], goals[0]), repeats=5).median
            print(f"  {name:<14} {took * 1e6:.0f} us a step on the device")
    return found


def main() -> int:
    try:
        name = require_hopper(0)
    except RuntimeUnavailable as e:
        show(SMALL, "cpu", 40, False)
        print(f"gemmgen's kernels need a Hopper GPU: {e}", file=sys.stderr)
        return MISSING
    print(name)
    show(LARGE, "cuda", 40, True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
