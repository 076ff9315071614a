"""Of two processes with a GPU each: GEMMs that they compute together over torch's symmetric memory, held against the same without it.

torchrun --nproc-per-node 2 tests/support/symmetric.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from gemmgen import Problem
from gemmgen.ops.gathered import AllGather, Inbox, all_gather_gemm, inbox_bytes
from gemmgen.ops.ranked import Mailbox, mailbox_bytes, reduce_scatter

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


def main():
    here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(here)
    dist.init_process_group("nccl", device_id=here)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    gathers(ranks, here)
    scatters(rank, ranks, here)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} of {ranks}: all as it should be")


if __name__ == "__main__":
    main()
