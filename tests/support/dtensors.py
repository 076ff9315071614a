"""What ranks do with DTensors in tests: calls of operators, each compared with the same call of whole tensors."""

from __future__ import annotations

import random

import torch
from ranks import mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch_reference import BY_NAME, arguments_of, overload

from gemmgen.errors import ArgumentError
from gemmgen.torch_ops.dtensor import names_of, placements
from gemmgen.torch_ops.sharding import Sharding

GROUPS = 3  # that are drawn


def sides(op, name):
    """(M, N, K) that four ranks can divide, and no larger."""
    blocks = op.scaling in ("block", "vector") or name == "quantised" or not op.operands
    return 512 if op.grouping == "ends" else 64, *((512, 512) if blocks else (64, 64))


def case(op, name="", epilogue="none", shape=None, more=None):
    """All arguments by name; `more` takes the place of some."""
    shape, more = shape or sides(op, name), more or {}
    if not op.operands:
        return op.bind((torch.randn(3, *shape[-2:]),), more)
    if op.grouping == "k_columns":
        shape = *shape[:2], max(shape[2], 256)
    args, given = arguments_of(op, epilogue, shape=shape)
    given = op.bind(args, given) | more
    layout = given.get("layout", "nt")  # they are drawn as "nt"
    turned = {"a": layout[0] == "t", "b": layout[1] == "n"}
    return given | {x: given[x].mT.contiguous() for x, is_so in turned.items() if is_so}


def called(op, name, given):
    """The overload, by position and by name."""
    given = {x: given.get(x) for x in names_of(op, name)}
    args = [given.pop(x) for x in op.positional(name)]
    found = overload(op, name)(*args, **given)
    return found if isinstance(found, tuple) else (found,)


def divided(x, on, placed):
    """A DTensor of `x`, which all ranks have; of a partial sum the first rank has all."""
    local = x
    for i, p in enumerate(placed):
        local = part(local, p, on.get_local_rank(i), on.size(i))
    local = local.clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(local, on, placed, run_check=False, shape=x.shape, stride=x.stride())


def part(x, placed, rank, ranks):
    """A rank's, along one dimension of a mesh."""
    if isinstance(placed, Shard):
        parts = x.chunk(ranks, placed.dim)
        return parts[rank] if rank < len(parts) else x.narrow(placed.dim, 0, 0)
    return torch.zeros_like(x) if isinstance(placed, Partial) and rank else x


def error(op, name, given, ranks, found, expected):
    """Of one result, over the bound of sums in another order: every partial sum and every sum of them is rounded
    once to the result's dtype. At most 1."""
    if not found.dtype.is_floating_point or found.dtype.itemsize == 1:
        return float(not torch.equal(found.float(), expected.float()))
    if torch.equal(found, expected):
        return 0.0
    signs = given | {x: t.float().abs().to(t.dtype) for x, t in given.items() if is_number(t)}
    size = called(op, name, signs)[0].double()
    rounding = 2 * ranks * torch.finfo(found.dtype).eps / 2
    return (
        ((found.double() - expected.double()).abs() / (size * rounding)).nan_to_num(0).max().item()
    )


def is_number(t):
    """And no table of groups."""
    return isinstance(t, torch.Tensor) and t.dtype != torch.int32


def every_rule(op_name, name="", epilogue="none", more=None):
    """The sizes that 2 and 4 ranks divided, each as its rule says, without a collective."""
    op, done = BY_NAME[op_name], {}
    for ranks in (2, 4):
        given = case(op, name, epilogue, more=more)
        call = Sharding(op=op, overload=name, given=given)
        few = {x for x in "G0" if ranks > GROUPS}
        done[ranks] = "".join(x for x in call.divisible(ranks) if x not in few)
        for size in ("", *done[ranks]):
            by_rule(op, name, given, size, ranks)
    return done


def by_rule(op, name, given, size, ranks):
    on, expected = mesh(ranks), called(op, name, given)
    call = Sharding(op=op, overload=name, given=given)
    results, tensors = placements(call, size)
    mine = given | {x: divided(given[x], on, [p]) for x, p in tensors.items()}
    with CommDebugMode() as moved:
        found = called(op, name, mine)
    assert not moved.get_total_counts(), (size, moved.get_comm_counts())
    assert [x.placements for x in found] == [(p,) for p in results], (size, found)
    for x, whole in zip(found, expected, strict=True):
        off = error(op, name, given, ranks, x.full_tensor(), whole)
        assert off <= (1 if Partial() in results else 0), (size, off)


def in_parts(op, name, given, size, ranks=2):
    """What `ranks` find who divide a size by its rule, put together here."""
    results, tensors = placements(Sharding(op=op, overload=name, given=given), size)
    parts = [{x: part(given[x], p, i, ranks) for x, p in tensors.items()} for i in range(ranks)]
    found = zip(*[called(op, name, given | mine) for mine in parts], strict=True)
    for placed, each, whole in zip(results, found, called(op, name, given), strict=True):
        if isinstance(placed, Shard):
            together = torch.cat(each, placed.dim)
        else:
            together = sum(each) if isinstance(placed, Partial) else each[0]
        off = error(op, name, given, ranks, together, whole)
        assert off <= (1 if isinstance(placed, Partial) else 0), (op.name, name, size, off)


def any_placements(op_name, name, epilogue, shape, more=None):
    op = BY_NAME[op_name]
    given = case(op, name, epilogue, shape, more)
    for seed, ranks in enumerate(((2,), (4,), (2, 2), (2, 2))):
        any_placement(op, name, given, mesh(*ranks), random.Random(f"{op_name} {seed}"))


def any_placement(op, name, given, on, chosen):
    """Of tensors that lie in any way, torch makes what a rule takes."""
    tensors = [x for x in names_of(op, name) if isinstance(given.get(x), torch.Tensor)]

    def placement(t):
        sharded = [Shard(i) for i in range(t.dim())]
        sums = [Partial()] * (is_number(t) and t.dtype.itemsize > 1)
        return chosen.choice([Replicate(), *sharded, *sums])

    at = {x: [placement(given[x]) for _ in range(on.ndim)] for x in tensors}
    mine = given | {x: divided(given[x], on, at[x]) for x in tensors}
    for x, whole in zip(called(op, name, mine), called(op, name, given), strict=True):
        off = error(op, name, given, on.size(), x.full_tensor(), whole)
        assert off <= 1, (at, off)


def calls_that_differ_in_little():
    """In an argument that is no tensor, or in which of two arguments is given: one after the other, over the same tensors."""
    on = mesh(4)
    x, w = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    by_k = [divided(t, on, [Shard(1)]) for t in (x, w)]
    run = torch.ops.gemmgen.gemm
    for said in (
        {},
        {"epilogue": "relu"},
        {"layout": "nn"},
        {"out_dtype": "f32"},
        {"invariant": True},
    ):
        found = run(*by_k, **said)
        assert_near(found, run(x, w, **said))
        summed = found.placements == (Partial(),)
        assert summed == (said in ({}, {"out_dtype": "f32"})), said
    one, scale = torch.ones(64, 64).to(torch.float8_e4m3fn), torch.rand(64)
    placed = divided(scale, on, [Shard(0)])
    for name in ("scale_a", "scale_b"):
        found = torch.ops.gemmgen.fp8_gemm(*[divided(one, on, [Replicate()])] * 2, **{name: placed})
        assert_near(found, torch.ops.gemmgen.fp8_gemm(one, one, **{name: scale}))
        assert found.placements == (Shard(0 if name == "scale_a" else 1),)


def assert_near(found, expected):
    found = found.full_tensor()
    assert found.dtype == expected.dtype
    torch.testing.assert_close(
        found, expected, rtol=2**-6, atol=2**-6 * expected.abs().max().item()
    )


def promises():
    """What reaches the operator over a rank's own tensors."""
    given = {}

    def watched(a, b, **more):
        given.update(more)
        return a.new_empty(a.shape[0], b.shape[0])

    x = divided(torch.ones(64, 64).bfloat16(), mesh(4), [Shard(0)])
    with torch.library._scoped_library("gemmgen", "IMPL") as library:
        library.impl("gemm", watched, "CPU", allow_override=True)
        torch.ops.gemmgen.gemm(x, x, weights_ready=True, invariant=True)
    assert given.get("invariant") is True and not given.get("weights_ready")


def errors():
    """The arguments that are named."""
    on = mesh(4)
    x, w, out = (divided(torch.ones(64, k).bfloat16(), on, [Shard(0)]) for k in (64, 32, 64))
    run, found = torch.ops.gemmgen.gemm, []
    slots, copies = torch.zeros(64, 2).int(), torch.ops.gemmgen
    for refused in (
        lambda: run.out(x, x, out=out),
        lambda: run(x, w),
        lambda: run(x, x, epilogue="bias"),
        lambda: copies.route(x.int(), 8),
        lambda: copies.combine(x, slots, torch.ones(64, 2)),
        lambda: copies.spread(x, None, slots, 256),
        lambda: copies.moe(x, x, x, slots, slots),
        lambda: copies.w4a16_gemm(x, w, weights="int4_128_bf16"),
        lambda: copies.fp8_block_gemm(x, x, x, x, scale_a_layout="mn", heads=[16, 8, 16]),
    ):
        try:
            refused()
        except ArgumentError as e:
            found.append(e.argument)
    return found


def compiled():
    """A graph of DTensors is one graph."""
    on = mesh(4)
    x, w = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    x, w = divided(x, on, [Shard(0)]), divided(w, on, [Shard(0)])

    def two(x, w):
        h = torch.ops.gemmgen.gemm(x, w, epilogue="silu")
        return torch.ops.gemmgen.gemm(h, w).redistribute(on, [Replicate()]).to_local()

    run = torch.compile(two, backend="aot_eager", fullgraph=True)
    assert torch.equal(run(x, w), two(x, w))
