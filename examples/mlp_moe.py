"""The second half of a transformer's layer, an MLP and a mixture of experts, on gemmgen.nn against torch.nn.

    python examples/mlp_moe.py

Prints how far torch in bfloat16, gemmgen in bfloat16 and gemmgen in FP8 are from the same layer in float64. Needs torch
and a Hopper GPU, and says so without one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator

import torch
from torch.nn import functional

from gemmgen.errors import RuntimeUnavailable
from gemmgen.nn import GroupedExperts, convert_
from gemmgen.runtime.driver import require_hopper

MISSING = 3  # exit code, as of the command line


class Mlp(torch.nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = torch.nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = torch.nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(torch.nn.ModuleList):
    """Each token through each of its experts, one expert after the other."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self):
            token, nth = (chosen == number).nonzero(as_tuple=True)
            y.index_add_(0, token, expert(x[token]) * weights[token, nth, None].to(x.dtype))
        return y


class Layer(torch.nn.Module):
    """x + shared(norm(x)) + experts(norm(x)), `top` experts of a token."""

    def __init__(self, hidden: int, intermediate: int, experts: int, top: int) -> None:
        super().__init__()
        self.top = top
        self.norm = torch.nn.RMSNorm(hidden, eps=1e-6)
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.shared = Mlp(hidden, intermediate)
        self.experts: torch.nn.Module = Experts(Mlp(hidden, intermediate) for _ in range(experts))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """chosen: the experts of each token, [tokens, top]; None: the router's first."""
        y = self.norm(x)
        scores = self.router(y).softmax(-1)
        chosen = scores.topk(self.top).indices if chosen is None else chosen
        return x + self.shared(y) + self.experts(y, chosen, scores.gather(-1, chosen))


def variants(layer: Layer, sizes: tuple[int, int, int]) -> Iterator[tuple[str, Layer]]:
    """By name: `layer` as it is, and on gemmgen. sizes: experts, hidden, intermediate."""
    yield "torch.nn, bfloat16", layer
    plain = copy.deepcopy(layer)
    print(convert_(plain, "bf16"))
    yield "gemmgen.nn, bfloat16", plain
    quantised = copy.deepcopy(layer)
    experts = GroupedExperts(*sizes, device=next(layer.parameters()).device)
    experts.load_state_dict(layer.experts.state_dict())
    quantised.experts = experts
    print(convert_(quantised, where=lambda name, _: name != "router"))
    yield "gemmgen.nn, FP8", quantised


@torch.no_grad()
def errors(
    device: str, *, tokens: int, hidden: int, intermediate: int, experts: int, top: int
) -> dict[str, float]:
    """By variant, the length of its difference to float64, of the length of what the layer adds to x. All take the
    experts that float64 chose: a near tie that another rounding turns would be no error of a kernel's."""
    torch.manual_seed(0)
    layer = Layer(hidden, intermediate, experts, top).to(device, torch.bfloat16)
    x = torch.randn(tokens, hidden, device=device).bfloat16()
    exact = copy.deepcopy(layer).double()
    chosen = exact.router(exact.norm(x.double())).topk(top).indices
    added = exact(x.double(), chosen) - x
    return {
        name: float((made(x, chosen).double() - x - added).norm() / added.norm())
        for name, made in variants(layer, (experts, hidden, intermediate))
    }


def main() -> int:
    try:
        name = require_hopper(0)
    except RuntimeUnavailable as e:
        print(f"this example needs a Hopper GPU: {e}", file=sys.stderr)
        return MISSING
    found = errors("cuda", tokens=1000, hidden=2048, intermediate=1408, experts=16, top=4)
    print(f"relative errors against float64 on {name}")
    for variant, error in found.items():
        print(f"  {variant:<22} {error:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
