"""Two processes with a GPU each: one is killed between two launches, and the other ends with an error that names it; two on one GPU are refused."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from two_gpus import RANKS, host

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
SECONDS = 180  # compiling included
WATCHDOG = 2  # seconds that a kernel waits
OPERATORS = ("gemm_reduce_scatter", "all_gather_gemm")
# What NCCL's own watchdog does when a kernel has stopped itself: nothing, for this is of ours.
ALONE = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


def processes(*given):
    """Both, as they end: (exit code, output) by rank. None is left."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    program = [sys.executable, str(ROOT / "tests" / "support" / "killed.py"), *given]
    started = [
        subprocess.Popen(
            program,
            cwd=ROOT,
            env={**os.environ, **ALONE, **where, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [x.communicate(timeout=SECONDS)[0] for x in started]
        return [(x.returncode, text) for x, text in zip(started, outputs, strict=True)]
    finally:
        for x in started:
            x.kill()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_rank_that_is_killed_is_named(name):
    host()
    (ended, left), (killed, gone) = processes(name, "meet")
    assert killed == -9 and "rank 1: 5 launches" in gone, gone
    assert ended == 0 and "nothing came from rank(s) 1" in left, left
    what = "sums of rank[1]" if name == "gemm_reduce_scatter" else "rows of rank[1] chunk 0"
    assert what in left
    seconds = float(re.search(r"told after ([\d.]+) s", left)[1])
    assert WATCHDOG <= seconds < WATCHDOG + 3


def test_two_ranks_on_one_gpu_are_refused():
    pytest.importorskip("torch")
    for ended, text in processes(OPERATORS[0], "share"):
        assert ended == 0 and "ranks 0 and 1 on GPU" in text, text
