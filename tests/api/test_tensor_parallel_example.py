"""examples/tensor_parallel.py: two ranks of this machine's CPU, as torchrun starts them, and one without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor.parallel", exc_type=ImportError)

ROOT = Path(__file__).parents[2]
PATH = ROOT / "examples" / "tensor_parallel.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
SECONDS = 120


def shown(*ranks):
    """What it prints; by how many processes, or by one without torchrun."""
    run = [sys.executable, *(TORCHRUN * bool(ranks)), *ranks, str(PATH)]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        env.pop(name, None)
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text, way):
    (line,) = (x for x in text.splitlines() if x.strip().startswith(way))
    return [float(x) for x in line.split()[1:]]


@pytest.mark.parametrize("ranks", ((), ("2",)), ids=("alone", "two"))
def test_both_ways_learn_the_same(ranks):
    text = shown(*ranks)
    assert f"{ranks[0] if ranks else 1} rank(s), cpu" in text
    one, other = (losses(text, way) for way in ("torch", "gemmgen"))
    assert len(one) == len(other) == 6 and one == sorted(one, reverse=True)
    assert one[-1] < 0.6 * one[0]
    assert all(abs(x - y) < 0.01 * x for x, y in zip(one, other, strict=True))
    path = "gemm and then reduce_scatter_tensor: tensors are on cpu" if ranks else "gemm: the group"
    assert f"the MLP's last GEMM is {path}" in text
