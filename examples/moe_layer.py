"""The experts of a DeepSeek-V3-like block: a router that keeps groups of experts, a shared expert, and the chosen ones by ops.moe.

    python examples/moe_layer.py         # 16 experts
    python examples/moe_layer.py --v3    # DeepSeek-V3's sizes: 34 GB of weights

Weights lie as checkpoints have them, gate's rows before up's; of FP8 there are codes and block scales, and nothing else is prepared. The
shared expert is one more, behind the others, which the router gives every token with weight 1: it takes no launch of its own. Prints how far
torch in bfloat16 and gemmgen in FP8 are from the block in float64, whether a CUDA graph of it gives the same bits for other tokens, and times of
a step of decoding and of a prefill, torch's one expert after the other. `gemmgen moe` times layers beside torch's grouped GEMM and DeepGEMM. The kernels need a
Hopper GPU: without one it shows torch's block on the CPU, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from gemmgen import do_bench, ops
from gemmgen.errors import RuntimeUnavailable
from gemmgen.runtime.driver import require_hopper

DECODE, PREFILL = 64, 4096  # tokens
MISSING = 3  # exit code, as of the command line
Choice = tuple[torch.Tensor, torch.Tensor]  # experts and their weights, both [tokens, top + 1]
Way = Callable[[torch.Tensor, Choice], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """groups: of experts, of which a token's are in `kept`. factor: what weights that add up to 1 are times."""

    hidden: int
    intermediate: int
    experts: int
    groups: int
    kept: int
    top: int
    factor: float = 2.5


SMALL = Sizes(hidden=512, intermediate=256, experts=16, groups=4, kept=2, top=4)
V3 = Sizes(hidden=7168, intermediate=2048, experts=256, groups=8, kept=4, top=8)


class Router(torch.nn.Module):
    """Sigmoids of logits, to which a bias per expert is added for the choice alone. A group is as good as its two best."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.sizes = s
        self.weight = torch.nn.Parameter(torch.randn(s.experts, s.hidden) * s.hidden**-0.5)
        self.bias = torch.nn.Parameter(torch.randn(s.experts) * 0.01)

    def forward(self, x: torch.Tensor) -> Choice:
        s, logits = self.sizes, functional.linear(x.float(), self.weight.float())
        found: Choice = ops.select(
            *(logits, s.top),
            score="sigmoid",
            bias=self.bias,
            groups=s.groups,
            kept_groups=s.kept,
            scale=s.factor,
            shared=1,
        )
        return found


class Block:
    """In torch, one expert after the other. w1: [experts + 1, 2 * intermediate, hidden], w2: [experts + 1, hidden, intermediate]; the last is shared."""

    def __init__(self, s: Sizes, device: str) -> None:
        given = {"dtype": torch.bfloat16, "device": device}
        self.router = Router(s).to(device)
        self.w1 = torch.randn(s.experts + 1, 2 * s.intermediate, s.hidden, **given)
        self.w2 = torch.randn(s.experts + 1, s.hidden, s.intermediate, **given)
        self.w1 *= s.hidden**-0.5
        self.w2 *= s.intermediate**-0.5

    def __call__(self, x: torch.Tensor, choice: Choice) -> torch.Tensor:
        """In x's dtype."""
        chosen, weights = choice
        y = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            token, nth = (chosen == expert).nonzero(as_tuple=True)
            gate, up = functional.linear(x[token], self.w1[expert].to(x.dtype)).chunk(2, -1)
            h = functional.linear(functional.silu(gate) * up, self.w2[expert].to(x.dtype))
            y = y.index_add(0, token, h * weights[token, nth, None].to(x.dtype))
        return y


class Quantised:
    """The same on gemmgen, in FP8."""

    def __init__(self, block: Block) -> None:
        self.experts = dict(zip(("w1", "scale_w1"), ops.quantise_blocks(block.w1), strict=True))
        self.experts |= zip(("w2", "scale_w2"), ops.quantise_blocks(block.w2), strict=True)

    def __call__(self, x: torch.Tensor, choice: Choice) -> torch.Tensor:
        chosen, weights = choice
        y: torch.Tensor = ops.moe(x, chosen=chosen, weights=weights, order="halves", **self.experts)
        return y


@torch.no_grad()
def graph_agrees(block: Block, quantised: Quantised, x: torch.Tensor) -> bool:
    """Whether the experts, captured once, give what they do by themselves, for other tokens and what they choose."""
    given, choice = x.clone(), block.router(x)
    quantised(given, choice)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = quantised(given, choice)
    for _ in range(3):
        given.normal_()
        for to, new in zip(choice, block.router(given), strict=True):
            to.copy_(new)
        graph.replay()
        if not torch.equal(y, quantised(given, choice)):
            return False
    return True


def error(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


@torch.no_grad()
def show(s: Sizes, device: str, tokens: int, kernels: bool) -> dict[str, float]:
    """By name, errors of ways to compute a block, which are printed."""
    torch.manual_seed(0)
    block = Block(s, device)
    x = torch.randn(tokens, s.hidden, device=device).bfloat16()
    choice = block.router(x)
    counts = choice[0].flatten().bincount(minlength=s.experts)[: s.experts]
    print(
        f"{tokens} tokens, {s.top} of {s.experts} experts each: {counts.min()} to {counts.max()} of an expert"
    )
    ways: dict[str, Way] = {"torch, bfloat16": block}
    if kernels:
        ways["gemmgen, FP8"] = Quantised(block)
    exact = block(x.double(), choice)  # of the same choice: a near tie may turn by rounding
    found = {name: error(way(x, choice), exact) for name, way in ways.items()}
    for name, off in found.items():
        print(f"  {name:<16} {off:.2%} from float64")
    return found


@torch.no_grad()
def time(s: Sizes) -> None:
    block = Block(s, "cuda")
    quantised = Quantised(block)
    ways: dict[str, Way] = {"torch, bfloat16": block, "gemmgen, FP8": quantised}
    for what, tokens in (("decode", DECODE), ("prefill", PREFILL)):
        x = torch.randn(tokens, s.hidden, device="cuda").bfloat16()
        same = graph_agrees(block, quantised, x)
        print(f"{what}, {tokens} tokens; a graph gives the same bits: {same}")
        choice = block.router(x)
        took = do_bench(partial(block.router, x), repeats=5).median
        print(f"  {'router':<16} {took * 1e6:.0f} us on the device")
        for name, way in ways.items():
            took = do_bench(partial(way, x, choice), repeats=5).median
            print(f"  {name:<16} {took * 1e6:.0f} us on the device")


def main() -> int:
    sizes = V3 if "--v3" in sys.argv[1:] else SMALL
    try:
        name = require_hopper(0)
    except RuntimeUnavailable as e:
        show(SMALL, "cpu", 64, False)
        print(f"gemmgen's kernels need a Hopper GPU: {e}", file=sys.stderr)
        return MISSING
    print(name)
    show(sizes, "cuda", 256, True)
    torch.cuda.empty_cache()
    time(sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
