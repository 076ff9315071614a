"""How far kernels count: up to the limits that the host sets no int on the device overflows; past them it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import DENSE, FP8, GROUPED

from gemmgen import ops
from gemmgen.config import FIELDS, Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.counts import INT_LIMIT, MOST_SIDE, MOST_TILES, REACH, most_tiles
from gemmgen.ir.groupings import GROUPINGS, Layout
from gemmgen.pipeline import lower
from gemmgen.problem import check_shape
from gemmgen.runtime.launch import check_launch, workspace_bytes

CTAS = 132 * 8


def test_nothing_reaches_further_past_a_side():
    """A cluster's tiles, K of a stage, and where a group begins."""
    check = {name: FIELDS[name].holds for name in ("block_m", "block_n", "block_k_bytes")}
    reach = max(n * 2 for holds in check.values() for n in range(1, 4096) if holds(n))
    assert max(reach, *GROUPINGS["ends"].alignments) <= REACH
    assert MOST_SIDE + REACH - 1 < INT_LIMIT and MOST_TILES + CTAS < INT_LIMIT


def shapes(kernel, groups):
    """One side after the other as long as it may be; then with as much of another as makes the most tiles."""
    b, c = kernel.block, kernel.cluster
    m, n = b.m * c.m, b.n * c.n
    yield 1, 1, MOST_SIDE
    yield 1, MOST_SIDE, 1
    yield MOST_SIDE, 1, 1
    yield MOST_SIDE, MOST_TILES // most_tiles(kernel, (MOST_SIDE, 1, 1), groups) * n, MOST_SIDE
    for rows in range(1, n + 1):
        per = most_tiles(kernel, (rows * m, 1, 1), groups)
        if MOST_TILES // per * n <= MOST_SIDE:
            yield rows * m, MOST_TILES // per * n, 7
            return


def test_longer_sides_are_refused_by_name():
    kernel = lower(DENSE, Config())
    for i, name in enumerate("mnk"):
        for side in (0, MOST_SIDE + 1, INT_LIMIT - 1):
            shape = tuple(side if i == j else 8 for j in range(3))
            for check in (lambda shape: check_launch(kernel, shape), check_shape):
                with pytest.raises(ArgumentError, match=str(MOST_SIDE)) as e:
                    check(shape)
                assert (e.value.argument, e.value.value) == (name, side)


@pytest.mark.parametrize("grouping", ("none", *GROUPED))
def test_more_tiles_are_refused_by_name(grouping):
    kernel = lower(replace(FP8, grouping=grouping), Config(block_m=64, consumers=1, block_n=8))
    groups = 1 if grouping == "none" else 3
    *_, (m, n, k) = shapes(kernel, groups)
    check_launch(kernel, (m, n, k), groups)
    with pytest.raises(ArgumentError, match=f"at most {MOST_TILES} tiles of 64 x 8") as e:
        check_launch(kernel, (m, n + 8, k), groups)
    assert e.value.argument == ("m, n" if groups == 1 else "groups, m, n")


def test_more_maps_than_are_counted_are_refused_by_name():
    kernel = lower(replace(FP8, grouping="k_columns"), Config(block_n=64))
    most = (INT_LIMIT - 1) // (2 * 132)
    assert workspace_bytes(kernel, 132, most) == 128 * 2 * 132 * most
    with pytest.raises(ArgumentError, match=f"at most {most}") as e:
        workspace_bytes(kernel, 132, most + 1)
    assert (e.value.argument, e.value.value) == ("groups", most + 1)


F8, C = "float8_e4m3fn", Config()
OPERANDS = {  # (argument, call) with a side
    "a columns": lambda k: ops.fp8_gemm(Placed(1, k, dtype=F8), Placed(128, k, dtype=F8), config=C),
    "a rows": lambda m: ops.fp8_gemm(Placed(m, 16, dtype=F8), Placed(16, 16, dtype=F8), config=C),
    "b rows": lambda n: ops.fp8_gemm(Placed(16, 16, dtype=F8), Placed(n, 16, dtype=F8), config=C),
    "b columns": lambda n: ops.gemm(
        Placed(16, 16, dtype="bfloat16"), Placed(16, n, dtype="bfloat16"), layout="nn", config=C
    ),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_ops_takes_sides_up_to_the_limit(name, launches):
    OPERANDS[name](MOST_SIDE)
    assert MOST_SIDE in launches[-1].shape
    for side in (MOST_SIDE + 16, INT_LIMIT - 16):
        with pytest.raises(ArgumentError, match=str(MOST_SIDE)) as e:
            OPERANDS[name](side)
        assert (e.value.argument, e.value.value) == (name, side)
    assert len(launches) == 1


@pytest.mark.parametrize("grouping", GROUPED)
def test_the_emulator_refuses_what_a_gpu_does(grouping):
    """Before it computes anything."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from types import SimpleNamespace

    from gemmgen.runtime.emulated import EmulatedGpu, EmulatedKernel

    kernel = lower(replace(FP8, grouping=grouping), C)
    operands = SimpleNamespace(shape=(8, MOST_SIDE + 1, 8), layout=Layout(groups=3))
    with pytest.raises(ArgumentError, match=str(MOST_SIDE)):
        EmulatedGpu().execute(EmulatedKernel(kernel=kernel, entry=None), operands, None, None, 0)
