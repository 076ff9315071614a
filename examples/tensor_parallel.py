"""A transformer's layer whose GEMMs ranks divide, and whose tokens too: trained by torch's tensor parallelism and by gemmgen's.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Attention and MLP have their columns, and what follows its rows, on different ranks; between them each rank has a part of the tokens (sequence
parallelism). torch gathers tokens before each GEMM and scatters sums after it. gemmgen.nn.Linear with the styles of gemmgen.nn.parallel hands both to one
operator, which is one launch of each rank where that pays. Prints the losses of 50 steps of both, which are equal within rounding, how the
operators are computed and why, and on GPUs the times of a training step, as it is and compiled, and of a decode step, as it is and in a CUDA graph; beside
them the compiled training step of torch with its GEMMs and collectives overlapped ("async TP"). Without GPUs ranks are processes on the CPU; without torchrun there is one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config as inductor
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import parallel as torch_styles
from torch.nn import functional

from gemmgen import nn as gemmgen_nn
from gemmgen.errors import RuntimeUnavailable
from gemmgen.nn import parallel as gemmgen_styles
from gemmgen.runtime.driver import require_hopper
from gemmgen.torch_ops import explain

STEPS, SHOWN = 50, 10  # of training; of which so many losses are printed


@dataclass(frozen=True, kw_only=True)
class Sizes:
    batch: int
    tokens: int
    hidden: int
    intermediate: int
    heads: int
    decoded: int  # sequences that a decode step adds a token to
    past: int  # tokens that those have


SMALL = Sizes(batch=2, tokens=32, hidden=64, intermediate=128, heads=4, decoded=8, past=16)
LARGE = Sizes(
    batch=1, tokens=8192, hidden=4096, intermediate=14336, heads=32, decoded=64, past=2048
)
Cache = tuple[
    torch.Tensor, torch.Tensor
]  # keys and values of this rank's heads, [sequences, heads, past, side]


class Attention(torch.nn.Module):
    """Each rank has heads of its own."""

    def __init__(self, linear: Callable[[int, int], torch.nn.Module], s: Sizes) -> None:
        super().__init__()
        self.side = s.hidden // s.heads
        self.q, self.k, self.v, self.out = (linear(s.hidden, s.hidden) for _ in range(4))

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """x: [batch, tokens, hidden]; with a cache [1, sequences, hidden], a token of each."""
        q, k, v = (f(x).unflatten(-1, (-1, self.side)) for f in (self.q, self.k, self.v))
        if cache is None:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        else:
            q, k, v = (t[0].unsqueeze(2) for t in (q, k, v))
            k, v = (torch.cat(pair, 2) for pair in ((cache[0], k), (cache[1], v)))
            y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).transpose(0, 1)
        return self.out(y.flatten(2))


class Mlp(torch.nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, linear: Callable[[int, int], torch.nn.Module], s: Sizes) -> None:
        super().__init__()
        self.gate, self.up = (linear(s.hidden, s.intermediate) for _ in range(2))
        self.down = linear(s.intermediate, s.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(torch.nn.Module):
    def __init__(self, linear: Callable[[int, int], torch.nn.Module], s: Sizes) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = (
            torch.nn.LayerNorm(s.hidden, dtype=torch.bfloat16) for _ in range(2)
        )
        self.attention, self.mlp = Attention(linear, s), Mlp(linear, s)

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), cache)
        return x + self.mlp(self.before_mlp(x))


def divided(
    styles: Any, linear: Callable[[int, int], torch.nn.Module], s: Sizes, mesh: DeviceMesh
) -> Layer:
    """The same layer on every rank, of which it keeps its part."""
    torch.manual_seed(0)
    layer: Layer = Layer(linear, s).to(mesh.device_type)
    for weight in (p for p in layer.parameters() if p.dim() == 2):
        torch.nn.init.normal_(weight, std=s.hidden**-0.5)
    columns = {"input_layouts": Shard(1)}
    rows = {"output_layouts": Shard(1), "use_local_output": False}
    plan = {x: torch_styles.SequenceParallel() for x in ("before_attention", "before_mlp")}
    plan |= {f"attention.{x}": styles.ColwiseParallel(**columns) for x in "qkv"}
    plan |= {f"mlp.{x}": styles.ColwiseParallel(**columns) for x in ("gate", "up")}
    plan |= {x: styles.RowwiseParallel(**rows) for x in ("attention.out", "mlp.down")}
    torch_styles.parallelize_module(layer, mesh, plan)
    return layer


def of_tokens(x: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """Of x, which every rank has, its part of the tokens."""
    mine = x.chunk(mesh.size(), 1)[mesh.get_local_rank()].contiguous()
    return DTensor.from_local(mine, mesh, [Shard(1)], run_check=False)


class Trained:
    """A layer, what it is to learn, and its steps."""

    def __init__(self, layer: Layer, s: Sizes, mesh: DeviceMesh) -> None:
        torch.manual_seed(1)
        sides = s.batch, s.tokens, s.hidden
        x, wanted = (torch.randn(sides, device=mesh.device_type).bfloat16() for _ in range(2))
        self.layer, self.elements = layer, x.numel()
        self.x, self.wanted = of_tokens(x, mesh), of_tokens(wanted, mesh).to_local()
        self.optimiser = torch.optim.SGD(layer.parameters(), lr=0.2)

    def step(self) -> torch.Tensor:
        """This rank's part of the loss."""
        y = self.layer(self.x).to_local()
        loss = (y - self.wanted).float().square().sum() / self.elements
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss.detach()

    def losses(self) -> list[float]:
        parts = torch.stack([self.step() for _ in range(STEPS)])
        dist.all_reduce(parts)
        return [float(x) for x in parts]


def decoder(layer: Layer, s: Sizes, mesh: DeviceMesh) -> Callable[[], torch.Tensor]:
    """A step that adds a token to each sequence: what follows the others' keys and values."""
    torch.manual_seed(2)
    device, side = mesh.device_type, s.hidden // s.heads
    every = (torch.randn(s.decoded, s.heads, s.past, side, device=device) for _ in range(2))
    keys, values = (t.bfloat16().chunk(mesh.size(), 1)[mesh.get_local_rank()] for t in every)
    x = of_tokens(torch.randn(1, s.decoded, s.hidden, device=device).bfloat16(), mesh)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return layer(x, (keys, values)).full_tensor()

    return step


def milliseconds(step: Callable[[], object], repeats: int = 20) -> float:
    """Of a step, on a GPU, the mean of many in a row after some."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    since = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - since) / repeats * 1e3


def run(s: Sizes, mesh: DeviceMesh) -> bool:
    """Prints on one rank. Whether both ways agree."""
    say = print if dist.get_rank() == 0 else _silent
    ways = {
        "torch": divided(torch_styles, plain_linear, s, mesh),
        "gemmgen": divided(gemmgen_styles, gemmgen_linear, s, mesh),
    }
    trained = {name: Trained(layer, s, mesh) for name, layer in ways.items()}
    losses = {name: t.losses() for name, t in trained.items()}
    say(f"{mesh.size()} rank(s), {mesh.device_type}; losses of {STEPS} steps, every {SHOWN}th")
    for name, found in losses.items():
        say(f"  {name:<8}", *(f"{x:.4f}" for x in found[::SHOWN]), f"{found[-1]:.4f}")
    off = max(abs(x - y) / x for x, y in zip(*losses.values(), strict=True))
    say(f"  at most {off:.2%} apart")
    one, other = (decoder(layer, s, mesh)() for layer in ways.values())
    apart = float((one - other).double().norm() / one.double().norm())
    say(f"a decode step of {s.decoded} sequences: {apart:.2%} apart")
    say("the MLP's last GEMM is", told(ways["gemmgen"], s, mesh))
    if mesh.device_type == "cuda":
        for name, layer in ways.items():
            steps = trained[name].step, compiled(layer, s, mesh)
            train = " {:.2f}, compiled {:.2f} ms".format(*map(milliseconds, steps))
            decode = decoder(layer, s, mesh)
            alone, graph = milliseconds(decode), milliseconds(replayed(decode))
            say(f"  {name:<8} training step{train}; decode step {alone:.3f}, graph {graph:.3f} ms")
        say(f"  async TP training step, compiled {milliseconds(overlapped(s, mesh)):.2f} ms")
    return off < 0.01 and apart < 0.05


def compiled(layer: Layer, s: Sizes, mesh: DeviceMesh) -> Callable[[], torch.Tensor]:
    """A training step by torch's compiler."""
    return Trained(torch.compile(layer), s, mesh).step


def replayed(step: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """The step from a CUDA graph, once it has run for whatever is made at first."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def overlapped(s: Sizes, mesh: DeviceMesh) -> Callable[[], torch.Tensor]:
    """A training step of torch's tensor parallelism, whose compiler overlaps GEMMs and collectives."""
    torch._dynamo.reset()  # what was compiled without
    inductor._micro_pipeline_tp = True
    return compiled(divided(torch_styles, plain_linear, s, mesh), s, mesh)


def _silent(*text: object) -> None:
    """Of other ranks."""


def told(layer: Layer, s: Sizes, mesh: DeviceMesh) -> str:
    """How its sums come together, of a training step."""
    weight = layer.mlp.down.weight.to_local()
    x = weight.new_empty(s.batch * s.tokens, weight.shape[1])
    group = mesh.get_group().group_name
    return explain("gemm_reduce_scatter", x, weight, group, wire="bf16")


def plain_linear(columns: int, rows: int) -> torch.nn.Module:
    return torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)


def gemmgen_linear(columns: int, rows: int) -> torch.nn.Module:
    return gemmgen_nn.Linear(columns, rows, bias=False)


def gemm_on_cpu(
    a: torch.Tensor, b: torch.Tensor, *, layout: str = "nt", out_dtype: str | None = None
) -> torch.Tensor:
    """What gemmgen's kernels compute, which are a GPU's alone."""
    a, b = a.mT if layout[0] == "t" else a, b.mT if layout[1] == "t" else b
    return (a.float() @ b.float()).to(torch.float32 if out_dtype == "f32" else a.dtype)


def device() -> str:
    """cuda if each rank has a Hopper GPU of its own."""
    try:
        for index in range(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))):
            require_hopper(index)
    except RuntimeUnavailable:
        return "cpu"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cuda"


def main() -> int:
    kind = device()
    backend = "nccl" if kind == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        store = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group(backend, init_method=store, rank=0, world_size=1)
    if kind == "cpu":
        torch.library.impl("gemmgen::gemm", "CPU", gemm_on_cpu)
    agree = run(SMALL if kind == "cpu" else LARGE, init_device_mesh(kind, (dist.get_world_size(),)))
    dist.destroy_process_group()
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
