"""On a Hopper GPU: the docs' Python blocks that need one run too, and the ten steps can be measured."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from test_docs import DOCS, NEEDS_A_GPU, NEEDS_GPUS, ROOT, name, of

from docs.tools import measure
from docs.tools.steps import STEPS

pytestmark = pytest.mark.gpu

PAGES = [path for path in DOCS if "zh" not in path.parts]
PAGES = [p for p in PAGES if any(f.path == p and f.before == NEEDS_A_GPU for f in of("python"))]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_whole_page_runs(path, tmp_path):
    """All blocks of a page in their order, those for a GPU among them, but not those for several."""
    blocks = (f for f in of("python") if f.path == path and f.before != NEEDS_GPUS)
    source = "\n\n".join(f.text for f in blocks)
    program = tmp_path / "page.py"  # torch.compile reads sources
    program.write_text(source)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GEMMGEN_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_ten_steps_are_measured():
    """Each kernel verified, then timed; nothing is written."""
    found = measure.report("this GPU", 2, measure.on_gpu(0, 2))
    assert [*found["steps"]] == [s.slug for s in STEPS]
    times = [t["us"] for of_step in found["steps"].values() for t in of_step.values()]
    assert all(t > 0 for t in times)
