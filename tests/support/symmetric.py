"""Of two processes with a GPU each: GEMMs that they compute together over torch's symmetric memory, held against the same without it.

torchrun --nproc-per-node 2 tests/support/symmetric.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from gemmgen import Problem
from gemmgen.ops.all_reduced import all_reduce, all_reduce_bytes
from gemmgen.ops.gathered import AllGather, Inbox, all_gather_gemm, inbox_bytes
from gemmgen.ops.ranked import Mailbox, mailbox_bytes, reduce_scatter
from gemmgen.torch_ops import explain

F32 = Problem(family="dense", a="bf16", b="bf16", d="f32")
M, N, K, LAUNCHES = 512, 768, 1024, 20


def shared(size, here):
    """Symmetric memory, all zero on every rank."""
    memory = symm_mem.empty(size, dtype=torch.uint8, device=here).zero_()
    found = symm_mem.rendezvous(memory, dist.group.WORLD)
    torch.cuda.synchronize()
    dist.barrier()
    return memory, found


def ones(*shape, here):
    """1, 0 and -1: sums are exact."""
    return torch.randint(-1, 2, shape, device=here).bfloat16()


def gathered(x):
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x)
    return torch.cat(found)


def gathers(ranks, here):
    kept, memory = shared(inbox_bytes(F32, M, K, ranks), here)
    inbox, w = Inbox(memory, here), ones(N, K, here=here)
    placed = AllGather(F32, inbox, None, w, rows=M, chunks=2)
    for i in range(LAUNCHES):
        x = ones(M, K, here=here)
        wanted = gathered(x).float() @ w.float().T
        if i % 2:
            placed.place().copy_(x)
            assert torch.equal(placed.launch(), wanted)
        else:
            assert torch.equal(all_gather_gemm(F32, inbox, x, w, chunks=3), wanted)
    del kept


def scatters(rank, ranks, here):
    kept, memory = shared(mailbox_bytes(M, N, ranks), here)
    box = Mailbox(memory, here)
    for _ in range(LAUNCHES):
        x, w = ones(ranks * M, K, here=here), ones(N, K, here=here)
        wanted = x.float() @ w.float().T
        dist.all_reduce(wanted)
        assert torch.equal(reduce_scatter(F32, box, x, w), wanted[rank * M : rank * M + M])
    del kept


def reduces(ranks, here):
    """Few rows, of which every rank has the sum."""
    kept, memory = shared(all_reduce_bytes(64, N, ranks), here)
    box, group = Mailbox(memory, here), dist.group.WORLD.group_name
    for i in range(LAUNCHES):
        x, w = ones(1 + 3 * i, K, here=here), ones(N, K, here=here)
        wanted = x.float() @ w.float().T
        dist.all_reduce(wanted)
        assert torch.equal(all_reduce(F32, box, x, w), wanted)
        y = one_launch("gemm_all_reduce", x, w, group, out_dtype="f32")
        assert torch.equal(y, wanted)
    del kept


def operators(rank, ranks, here):
    """Those of torch, in one launch of each rank: exact sums, and the gradients of the plain path."""
    group = dist.group.WORLD.group_name
    for m in (M, 2 * M):  # memory is made anew for more rows
        for _ in range(LAUNCHES):
            x, w, v = (ones(*s, here=here) for s in ((m, K), (N, K), (K, N)))
            h = one_launch("all_gather_gemm", x, w, group, out_dtype="f32")
            assert torch.equal(h, gathered(x).float() @ w.float().T)
            a = ones(ranks * m, N, here=here)
            y = one_launch("gemm_reduce_scatter", a, v, group, out_dtype="f32")
            wanted = a.float() @ v.float().T
            dist.all_reduce(wanted)
            assert torch.equal(y, wanted[rank * m : rank * m + m])
        h, rows = torch.ops.gemmgen.all_gather_gemm.gathered(x, w, group, fuse=True)
        assert torch.equal(rows, gathered(x)) and torch.equal(
            h, (rows.float() @ w.float().T).bfloat16()
        )
    layers(group, here)
    codes(group, rank, ranks, here)


def one_launch(name, *given, **said):
    assert explain(name, *given, fuse=True, **said).startswith("one launch")
    return getattr(torch.ops.gemmgen, name)(*given, fuse=True, **said)


def layers(group, here):
    """Forward and backward; sums that travel in BF16 are rounded once more."""
    found = []
    x, w, v = (torch.randn(s, device=here).bfloat16() for s in ((M, K), (N, K), (K, N)))
    for fuse in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, w, v)]
        h = torch.ops.gemmgen.all_gather_gemm(*leaves[:2], group, fuse=fuse)
        y = torch.ops.gemmgen.gemm_reduce_scatter(h, leaves[2], group, wire="bf16", fuse=fuse)
        y.sum().backward()
        found.append([y.detach(), *(t.grad for t in leaves)])
    for one, other in zip(*found, strict=True):
        assert (one.float() - other.float()).norm() < 0.02 * other.float().norm()


def codes(group, rank, ranks, here):
    """FP8 with block scales of 1, in both layouts."""
    for layout in ("mn", "row"):
        x, w = ones(ranks * M, K, here=here), ones(N, K, here=here)
        qx, qw = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
        scale = torch.ones(K // 128, ranks * M, device=here).mT
        scale = scale.contiguous() if layout == "row" else scale
        of_w = torch.ones(N // 128, K // 128, device=here)
        said = {"scale_a_layout": layout, "out_dtype": "f32"}
        y = one_launch("fp8_block_gemm_reduce_scatter", qx, scale, qw, of_w, group, **said)
        wanted = x.float() @ w.float().T
        dist.all_reduce(wanted)
        assert torch.equal(y, wanted[rank * M : rank * M + M])
        y = one_launch("fp8_block_gemm_all_reduce", qx, scale, qw, of_w, group, **said)
        assert torch.equal(y, wanted)
        h = one_launch("fp8_block_all_gather_gemm", qx, scale, qw, of_w, group, **said)
        assert torch.equal(h, gathered(x).float() @ w.float().T)


def main():
    here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(here)
    dist.init_process_group("nccl", device_id=here)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    gathers(ranks, here)
    scatters(rank, ranks, here)
    reduces(ranks, here)
    operators(rank, ranks, here)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} of {ranks}: all as it should be")


if __name__ == "__main__":
    main()
