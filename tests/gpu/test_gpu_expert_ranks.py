"""On two Hopper GPUs of one host: experts that a process for each GPU divide, against those of one."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def two_gpus():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.parametrize(
    "kind", ("fp8", "mxfp4", "mxfp4 by fp8", "bf16 that trains", "fp8 that trains")
)
def test_of_one_gpu(kind, tmp_path):
    from experts_on_gpus import PATIENCE, run
    from torch.multiprocessing import start_processes

    given = (2, str(tmp_path / "store"), kind)
    processes = start_processes(run, args=given, nprocs=2, join=False, start_method="spawn")
    until = time.monotonic() + PATIENCE
    while not processes.join(1):  # raises what one of them does
        if time.monotonic() > until:
            for p in processes.processes:
                p.kill()
            pytest.fail(f"no end after {PATIENCE} s")
