"""Models whose layers ranks divide, against the same models on one rank."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from ranks import RANKS, mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from gemmgen import nn
from gemmgen.errors import ArgumentError
from gemmgen.nn import parallel
from gemmgen.torch_ops import group_registration

BATCH, TOKENS, HIDDEN, INNER, HEADS = 2, 16, 512, 1024, 8


def linear(*features):
    return nn.Linear(*features)


def master(*features):
    return nn.Fp8Linear(*features, master=True)


def frozen(*features):
    return nn.Fp8Linear(*features)


class Mlp(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN, dtype=torch.bfloat16)
        self.up, self.down = layer(HIDDEN, INNER), layer(INNER, HIDDEN)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Attention(torch.nn.Module):
    """Each rank has heads of its own."""

    def __init__(self, layer):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN, dtype=torch.bfloat16)
        self.q, self.k, self.v = (layer(HIDDEN, HIDDEN) for _ in "qkv")
        self.out = layer(HIDDEN, HIDDEN)

    def forward(self, x):
        x = self.norm(x)
        heads = [f(x).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2) for f in self.inward]
        y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    @property
    def inward(self):
        return self.q, self.k, self.v


MODELS = {"mlp": Mlp, "attention": Attention}
LAYERS = {"linear": linear, "master": master, "frozen": frozen}
COLUMNS = {"mlp": ("up",), "attention": ("q", "k", "v")}
ROWS = {"mlp": "down", "attention": "out"}


def plan(model, sequence, own, fuse=None):
    """own: gemmgen's styles, else torch's; fuse: as of those."""
    by_columns, by_rows = ColwiseParallel, RowwiseParallel
    if own:
        by_columns = partial(parallel.ColwiseParallel, fuse=fuse)
        by_rows = partial(parallel.RowwiseParallel, fuse=fuse)
    if not sequence:
        return {x: by_columns() for x in COLUMNS[model]} | {ROWS[model]: by_rows()}
    made = {"norm": SequenceParallel()}
    made |= {x: by_columns(input_layouts=Shard(1)) for x in COLUMNS[model]}
    made[ROWS[model]] = by_rows(output_layouts=Shard(1), use_local_output=False)
    return made


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def near(found, expected, allowed):
    off = (whole(found).double() - expected.double()).norm() / expected.double().norm()
    assert off <= allowed, off.item()


def drawn(model, layer):
    made = MODELS[model](LAYERS[layer])
    for p in made.parameters():
        torch.nn.init.normal_(p, std=HIDDEN**-0.5)
    return made


def divided_model(model, layer, sequence, ranks, allowed, own=True, fuse=None, tokens=TOKENS):
    """Forward and backward. Sums that ranks add up are rounded to bfloat16 by each: 2^-9 each, as what follows."""
    on, one = mesh(ranks), drawn(model, layer)
    many = copy.deepcopy(one)
    parallelize_module(many, on, plan(model, sequence, own, fuse))
    x, dy = (torch.randn(BATCH, tokens, HIDDEN).bfloat16() for _ in range(2))
    trains = layer != "frozen"
    alone = x.clone().requires_grad_(trains)
    placed = distribute_tensor(x, on, [Shard(1)], src_data_rank=None) if sequence else x.clone()
    placed = placed.detach().requires_grad_(trains)
    meets = sequence and own and fuse is not False and tokens % ranks == 0
    with CommDebugMode() as moved, torch.set_grad_enabled(trains), operators() as forward:
        y = many(placed)
    if meets:
        assert forward == wanted(model, layer) and not moved.get_total_counts()
    elif own and not sequence and not trains and fuse is not False:
        assert forward == ["fp8_block_gemm_all_reduce"] and not moved.get_total_counts()
    else:
        check_moved(moved, sequence, len(COLUMNS[model]))
    with torch.set_grad_enabled(trains):
        expected = one(alone)
    near(y, expected, allowed)
    if trains:
        with operators() as backward:
            expected.backward(dy)
            y.backward(
                distribute_tensor(dy, on, [Shard(1)], src_data_rank=None) if sequence else dy
            )
        assert bool(backward) == meets
        check_gradients(many, one, allowed)
        near(placed.grad, alone.grad, allowed)


def decoded(model, layer, ranks, allowed, fuse=None):
    """Without gradients, of which the sums are added up in one operator; with them, or where that is not wanted, by torch."""
    on, one = mesh(ranks), drawn(model, layer)
    many = copy.deepcopy(one)
    parallelize_module(many, on, plan(model, False, True, fuse))
    x = torch.randn(BATCH, 1, HIDDEN).bfloat16()
    asked = ["gemm_all_reduce" if layer == "linear" else "fp8_block_gemm_all_reduce"]
    for grads in (False, True):
        with operators() as found, torch.set_grad_enabled(grads):
            y = many(x)
        assert found == (asked if fuse is not False and not grads else [])
        near(y, one(x), allowed)
    parts = [torch.empty_like(y) for _ in range(ranks)]
    with torch.no_grad():
        y = whole(many(x)).contiguous()
        torch.distributed.all_gather(parts, y, group=on.get_group())
    assert all(torch.equal(y, z) for z in parts)


@contextmanager
def operators():
    """The operators of a group that are called meanwhile."""
    found, compute = [], group_registration.compute

    def noted(op, *call):
        found.append(op.name)
        return compute(op, *call)

    with patch.object(group_registration, "compute", noted):
        yield found


def wanted(model, layer):
    """Those of a forward pass."""
    gather, scatter = "all_gather_gemm", "gemm_reduce_scatter"
    if layer != "linear":
        gather, scatter = f"fp8_block_{gather}", f"fp8_block_{scatter}"
    return [gather] * len(COLUMNS[model]) + [scatter]


def along_the_first_side(layer):
    """Tokens without a batch; tensors that are no DTensors; in one graph."""
    on, one = mesh(4), drawn("mlp", layer)
    many = copy.deepcopy(one)
    tokens = {"up": parallel.ColwiseParallel(input_layouts=Shard(0))}
    tokens["down"] = parallel.RowwiseParallel(output_layouts=Shard(0))
    parallelize_module(many, on, tokens)
    x = torch.randn(4 * TOKENS, HIDDEN).bfloat16()
    mine = x.chunk(4)[on.get_local_rank()]

    def run(x):
        return many.down(torch.nn.functional.silu(many.up(x)))

    with torch.no_grad(), operators() as called:
        y = run(mine)
        expected = one.down(torch.nn.functional.silu(one.up(x))).chunk(4)[on.get_local_rank()]
        assert called == wanted("mlp", layer)
        near(y, expected, 0.04)
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(mine), y)


def check_moved(moved, sequence, inward):
    """Activations only: gathered before columns where tokens are divided, summed after rows."""
    counts = {str(x): n for x, n in moved.get_comm_counts().items()}
    summed = "reduce_scatter_tensor" if sequence else "all_reduce"
    expected = {f"c10d_functional.{summed}": 1}
    expected |= {"c10d_functional.all_gather_into_tensor": inward} if sequence else {}
    assert counts == expected, counts


def check_gradients(many, one, allowed):
    for (name, p), q in zip(many.named_parameters(), one.parameters(), strict=True):
        if isinstance(p, DTensor):
            assert p.grad.placements in (p.placements, (Partial(),)), name
        near(p.grad, q.grad, allowed)


def fully_sharded(model, layer, tensor_parallel, sequence=False):
    """Ranks have different batches; with `tensor_parallel` two of them have one batch and divide the layers, by gemmgen's styles with `sequence`, and tokens."""
    on, one = mesh(2, 2) if tensor_parallel else mesh(RANKS), drawn(model, layer)
    many, batches = copy.deepcopy(one), 2 if tensor_parallel else RANKS
    data = on["0"] if tensor_parallel else on
    if tensor_parallel:
        parallelize_module(many, on["1"], plan(model, sequence, sequence or layer != "linear"))
    fully_shard(many, mesh=data)
    x, dy = (torch.randn(batches, BATCH, TOKENS, HIDDEN).bfloat16() for _ in range(2))
    at = data.get_local_rank()

    def lying(t):
        return distribute_tensor(t, on["1"], [Shard(1)], src_data_rank=None) if sequence else t

    with operators() as called:
        y = many(lying(x[at]))
        y.backward(lying(dy[at]))
    assert bool(called) == sequence
    expected = [one(t) for t in x]
    near(y, expected[at], 0.02)
    for each, t in zip(expected, dy, strict=True):
        (each / batches).backward(t)
    for p, q in zip(many.parameters(), one.parameters(), strict=True):
        near(p.grad, q.grad, 0.02)


def states(model, layer):
    """What a divided model saves another one loads, and whole it is what one rank has."""
    on, one = mesh(RANKS), drawn(model, layer)
    made = [copy.deepcopy(one), drawn(model, layer)]
    for each in made:
        parallelize_module(each, on, plan(model, False, layer != "linear"))
    saved = made[0].state_dict()
    made[1].load_state_dict({name: x.clone() for name, x in saved.items()})
    for name, x in one.state_dict().items():
        for each in made:
            found = each.state_dict()[name]
            assert found.dtype == x.dtype
            assert torch.equal(whole(found).float(), x.float()), name
    x = torch.randn(BATCH, TOKENS, HIDDEN).bfloat16()
    with torch.no_grad():
        near(made[1](x), one(x), 0.02)
    if layer == "frozen":
        made[0].half()  # neither rounds codes nor gathers them
        now = made[0].state_dict()
        kept = [n for n, x in saved.items() if n.rsplit(".")[-1] in ("weight", "weight_scale")]
        for name in (n for n in kept if not n.startswith("norm")):
            assert now[name].dtype == saved[name].dtype
            assert now[name].placements == saved[name].placements


def wide_states():
    """FP8 that is divided is made of a wide weight that is."""
    on, one = mesh(RANKS), drawn("mlp", "linear")
    many = Mlp(frozen)
    parallelize_module(many, on, plan("mlp", False, True))
    placed = {n: x.placements for n, x in many.state_dict().items() if isinstance(x, DTensor)}
    state = {
        n: distribute_tensor(x, on, placed[n], src_data_rank=None) if n in placed else x
        for n, x in one.state_dict().items()
    }
    many.load_state_dict(state)
    expected = Mlp(frozen)
    expected.load_state_dict(one.state_dict())
    for name, x in expected.state_dict().items():
        assert torch.equal(whole(many.state_dict()[name]).float(), x.float()), name


def features_that_do_not_divide():
    found = []
    for style, sides in (
        (parallel.ColwiseParallel(), (512, 256)),
        (parallel.RowwiseParallel(), (256, 512)),
    ):
        try:
            parallelize_module(nn.Fp8Linear(*sides), mesh(RANKS), style)
        except ArgumentError as e:
            found.append((e.argument, e.value))
    return found


def experts():
    """Each rank has experts of its own, and the rows for them."""
    on, one = mesh(2), nn.GroupedExperts(4, 256, 128)
    one.put_projections(*(torch.randn(4, 128, 256) for _ in range(2)), torch.randn(4, 256, 128))
    many = copy.deepcopy(one)
    at = on.get_local_rank()
    for name, buffer in [*many.named_buffers()]:
        local = DTensor.from_local(buffer.chunk(2)[at], on, [Shard(0)], run_check=False)
        many._buffers[name] = local
    x, counts = torch.randn(4, 16, 256).bfloat16(), torch.tensor([0, 3, 16, 9]).int()
    placed = [DTensor.from_local(t.chunk(2)[at], on, [Shard(0)]) for t in (x, counts)]
    found = many.masked(*placed)
    assert found.placements == (Shard(0),)
    assert torch.equal(found.full_tensor(), one.masked(x, counts))


def prepared():
    """A layer alone, between torch's own preparations of inputs."""
    on = mesh(RANKS)
    layer, x = nn.Fp8Linear(512, 512, master=True), torch.randn(8, 512).bfloat16()
    expected = layer(x)
    style = PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False
    )
    for name, p in [*layer.named_parameters()]:
        placed = DTensor.from_local(p.data, on, [Replicate()], run_check=False)
        layer.register_parameter(name, torch.nn.Parameter(placed))
    parallelize_module(layer, on, style)
    found = layer(x)
    assert found.placements == (Shard(0),) and torch.equal(found.full_tensor(), expected)
