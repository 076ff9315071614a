"""Every kernel of the gallery, and those whose lanes read scales of A, at the greatest sides: no int of its text overflows,
and it gets where they end."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from operator import mul

import pytest
from exhibits import EXHIBITS
from host_kernel import compiled
from kernels import VARIETY
from test_scheduler_limits import SANITISED

from gemmgen.emit import emit
from gemmgen.ir.counts import INT_LIMIT, MOST_SIDE, REACH
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.pipeline import lower
from gemmgen.runtime.launch import check_launch

GROUPS = 3
GROUP_STRIDE = 1 << 33
FAR = 1 << 44  # elements of FP32: an address has 47 bits at most
SHORT = (8, 264, 264)  # what is not the greatest; of M a tile at most, so that N ends in the last


def shapes():
    for side in range(3):
        yield tuple(MOST_SIDE if i == side else short for i, short in enumerate(SHORT))


def lane_strides(shape):
    """Of A's scales, from row to row and from K block to K block: the greatest that leave an address for the last."""
    return tuple(min(INT_LIMIT - 1, FAR // side) for side in (shape[0], -(-shape[2] // 128)))


def sizes(kernel, shape, groups, integers):
    """Of each parameter: the shape's, and of strides the greatest there are, but where D must lie in memory."""
    own = dict(zip(("shape_m", "shape_n", "shape_k"), shape, strict=True))
    own |= {"groups": groups, "d_stride": shape[1] // kernel.block.fold, "d_stride_g": 0}
    own |= {"scale_d_stride": shape[0], "scale_d_stride_g": 0}
    own |= zip(("scale_a_stride_m", "scale_a_stride_k"), lane_strides(shape), strict=True)
    return [
        own.get(name, GROUP_STRIDE if name.endswith("_g") else INT_LIMIT - 1) for name in integers
    ]


def skipped_rows(kernel, rows):
    """Rows before the last that a walk run by run, which looks at the table at each multiple of the alignment, does not
    begin with: of the greatest side there are 2**24 such multiples."""
    looked_at = 32 * kernel.scheduler.alignment if kernel.scheduler.name == "runs" else rows
    return (rows - 1) // looked_at * looked_at


def runs(kernel, shape, groups, clusters):
    """How many runs of tiles there are."""
    b, c = kernel.block, kernel.cluster
    across, rows = -(-shape[1] // (b.n * c.n)), groups * -(-shape[0] // (b.m * c.m))
    return rows * -(-across // kernel.scheduler.run(rows * across, clusters))


def last_tile(program, kernel, grouping, shape, groups, integers):
    """By what was given to PTX, the least and the greatest, where every thread of a cluster takes the last tile."""
    b, c = kernel.block, kernel.cluster
    skipped = skipped_rows(kernel, shape[0])
    tiles = -(-(shape[0] - skipped) // (b.m * c.m)) * -(-shape[1] // (b.n * c.n)) * groups
    entry = shape[2] if GROUPINGS[grouping].depths else shape[0]  # of the device's table
    entry = 0 if grouping == "rows" else entry
    ctas = 132 // c.size * c.size
    if kernel.scheduler.windowed:  # which are walked in runs
        tiles = runs(kernel, shape, groups, ctas // c.size)
    given = (ctas, tiles - 1, entry, skipped, c.size, *sizes(kernel, shape, groups, integers))
    run = subprocess.run([program, *map(str, given)], capture_output=True, text=True, timeout=600)
    if run.returncode == 77:
        pytest.skip("no room for addresses")
    assert run.returncode == 0, f"{shape}: {run}"
    lines = (line.rsplit(" ", 2) for line in run.stdout.splitlines())
    return {name: (int(least), int(most)) for name, least, most in lines}


LOADS = ("tma_load", "bulk_load from")  # coordinates; bytes of packed weights from their first


def walked(p, kernel, where):
    """(shape, groups, what was given to PTX), of each of the shapes."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    g = GROUPINGS[p.grouping]
    # Groups that are summed have no more K together than one.
    program, groups = where / "kernel", GROUPS if g.rows and not g.summed else 1
    integers = compiled(emit(kernel), kernel.threads, program, SANITISED)
    # Where D's columns are no rows of B, what stores them.
    reaching = (*LOADS, "d col" if p.paged else "tma_store") if p.paged or p.heads else LOADS
    for m, n, k in shapes():
        rows = kernel.block.fold_rows
        if p.heads:  # whole ones, of which D has more columns
            n = max(1, n // (p.gaps.side + p.gaps.mid)) * p.gaps.side
        shape = max(rows, m // rows * rows), n, k
        check_launch(kernel, shape, groups)
        found = last_tile(program, kernel, p.grouping, shape, groups, integers)
        loads = [places for name, places in found.items() if name.startswith(reaching)]
        assert min(least for least, _ in loads) >= 0, (shape, found)
        assert max(most for _, most in loads) >= MOST_SIDE - REACH, (shape, found)
        yield shape, groups, found


@pytest.mark.parametrize("name", EXHIBITS)
def test_no_int_overflows(name, tmp_path):
    p = EXHIBITS[name].problem
    assert len([*walked(p, lower(p, EXHIBITS[name].config), tmp_path)]) == 3


@pytest.mark.parametrize(
    "name", [n for n, (_, c) in VARIETY.items() if c.lane_scales and not c.direct]
)
def test_lanes_read_scales_up_to_the_last_and_no_further(name, tmp_path):
    """Of A, by strides as great as memory allows."""
    p, config = VARIETY[name]
    config = replace(config, pdl=False)  # with which B's are read by the same function
    for shape, groups, found in walked(p, lower(p, config), tmp_path):
        last = (shape[0] - 1, -(-shape[2] // 128) - 1, groups - 1)
        at = (*lane_strides(shape), GROUP_STRIDE)
        least, most = found["load_global_float from"]
        assert least >= 0 and most == sum(map(mul, last, at)), (shape, found)
