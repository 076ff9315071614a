"""Ranks on this machine: processes of one gloo process group that run a function each, all at the same time."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import traceback
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

RANKS = 4
PATIENCE = 120  # seconds for one function
PRELOADED = ["torch.distributed.fsdp", "gemmgen.torch_ops", "torch_reference"]


class RankFailed(Exception):
    pass


class Ranks:
    """`run` calls a function of a module on every rank, with the same arguments, and returns what rank 0's returns. Processes
    stay for the next call; after a failure they are started anew, for the others may wait for ever."""

    def __init__(self) -> None:
        self.processes, self.pipes = [], []

    def run(self, function, *args):
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((function, args))
        answers = [self._answer(pipe) for pipe in self.pipes]
        failed = [f"rank {i}: {text}" for i, (good, text) in enumerate(answers) if not good]
        if failed:
            self.stop()
            raise RankFailed("\n".join(failed))
        return answers[0][1]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.pipes = [], []

    def _answer(self, pipe):
        try:
            return pipe.recv() if pipe.poll(PATIENCE) else (False, f"no answer in {PATIENCE} s")
        except EOFError:
            return False, "ended"

    def _start(self):
        # Not by fork: torch has threads. A server that has imported torch once starts all of them.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        store = Path(tempfile.mkdtemp()) / "store"
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, store, theirs), daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(mine)


@pytest.fixture(scope="session")
def ranks():
    made = Ranks()
    yield made
    made.stop()


def serve(rank, store, pipe):
    """Of one rank: do what comes through the pipe."""
    import torch
    from torch_reference import referring_on_cpu

    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=PATIENCE // 2),
    )
    move_fp8()
    with referring_on_cpu():
        while True:
            function, args = pipe.recv()
            torch.manual_seed(0)
            try:
                pipe.send((True, function(*args)))
            except Exception:
                pipe.send((False, traceback.format_exc()))


def move_fp8():
    """gloo moves no FP8, as NCCL does: here as bytes."""
    import torch
    from torch.distributed.tensor import _api, _dispatch, _redistribute

    moved = _redistribute.redistribute_local_tensor

    def as_bytes(local, *specs, **how):
        if local.dtype != torch.float8_e4m3fn:
            return moved(local, *specs, **how)
        return moved(local.view(torch.uint8), *specs, **how).view(local.dtype)

    for module in (_api, _dispatch, _redistribute):
        if hasattr(module, moved.__name__):
            setattr(module, moved.__name__, as_bytes)


@cache
def mesh(*sides):
    """Of all ranks, or the one of its first ranks that this rank is in: a mesh of 2 of 4 ranks is two meshes."""
    from torch.distributed.device_mesh import init_device_mesh

    if len(sides) == 1 and sides[0] < RANKS:
        return mesh(RANKS // sides[0], *sides)["1"]
    return init_device_mesh("cpu", sides, mesh_dim_names=tuple(map(str, range(len(sides)))))
