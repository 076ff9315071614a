"""GEMMs that two processes compute together, with a GPU each, over torch's symmetric memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from two_gpus import RANKS, host

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
SECONDS = 400  # compiling included


def test_two_processes():
    host()
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    program = ROOT / "tests" / "support" / "symmetric.py"
    done = subprocess.run(
        [*run, str(RANKS), str(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all as it should be") == RANKS
