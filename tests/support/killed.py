"""One of two processes with a GPU each, whose other one is gone between two launches: this one is told so, and ends.

python3 tests/support/killed.py gemm_reduce_scatter   # with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from gemmgen import torch_ops
from gemmgen.errors import ArgumentError, DeadlockError
from gemmgen.ops.collective import watch_ranks

M, N, K, LAUNCHES, KILLED = 512, 768, 1024, 5, 1


def call(name, rank, here):
    """One, and what it must be."""
    group, scatters = dist.group.WORLD.group_name, name == "gemm_reduce_scatter"
    x = torch.full((2 * M if scatters else M, K), rank + 1.0, device=here).bfloat16()
    w = torch.ones(N, K, device=here).bfloat16()
    y = getattr(torch_ops, name)(x, w, group, fuse=True, out_dtype="f32")
    rows = [1.0 * K] * M + [2.0 * K] * M
    return y, torch.full((M,), 3.0 * K) if scatters else torch.tensor(rows)


def meet(name, rank, here):
    """Launches of both; then only of this one."""
    watch_ranks(True)
    for _ in range(LAUNCHES):
        y, rows = call(name, rank, here)
        torch_ops.wait(dist.group.WORLD.group_name)
        assert torch.equal(y, rows.to(here)[:, None].expand_as(y))
    print(f"rank {rank}: {LAUNCHES} launches", flush=True)
    if rank == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    since = time.monotonic()
    call(name, rank, here)
    try:
        torch_ops.wait(dist.group.WORLD.group_name)
    except DeadlockError as e:
        print(f"told after {time.monotonic() - since:.1f} s: {e}", flush=True)


def share(name, rank, here):
    """Both on one GPU."""
    try:
        call(name, rank, here)
    except ArgumentError as e:
        print(f"refused: {e}", flush=True)


def main():
    name, how = sys.argv[1:]
    rank = int(os.environ["RANK"])
    here = torch.device("cuda", 0 if how == "share" else rank)
    torch.cuda.set_device(here)
    # By gloo nothing but this file asks what became of the GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if how == "meet" else "gloo")
    {"meet": meet, "share": share}[how](name, rank, here)
    os._exit(
        0
    )  # nothing can be done on a GPU whose kernel has stopped itself, not even an orderly end


if __name__ == "__main__":
    main()
