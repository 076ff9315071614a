"""A's rows held in registers: results on the emulator, what is refused, and faults that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, FP8, GROUPED, INT8_BLOCK, VECTOR
from test_parts import PLAIN, config

from gemmgen.check import ProtocolViolation, check
from gemmgen.errors import IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower

from mutation.rows_hold import early_load, early_release, swapped_fence  # isort: skip
from mutation.rows_protocol import visit  # isort: skip

PROMOTING = tuple(n for n in PROBLEMS if PROBLEMS[n]["family"] != "dense")


def held(**changes):
    return config(**{"hold_a": True} | changes)


# ---- results --------------------------------------------------------------------------------

WAYS = (
    {},
    {"multicast": "a", "unroll": 4},
    {"multicast": "b", "block_m": 64, "consumers": 1},
    {"swizzle_ab": 64},
    {"swizzle_ab": 32, "block_n": 128},
    {"block_n": 64, "block_m": 256},
    {"block_n": 128, "parts": 1},
)


@pytest.mark.nvrtc
@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("name", PROMOTING)
def test_results(name, way):
    p, c = problem(name, "none"), held(**WAYS[way])
    try:
        lower(p, c)
    except IllegalConfig as e:
        assert e.rule.id in ("register-budget", "smem-capacity"), e
        c = held(**WAYS[way] | {"block_n": 64})
    assert judged(p, c, (270, 201, 300), pad=way % 3).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
def test_groups(grouping):
    p = problem("fp8_block", grouping)
    shape, sizes = (200, 264, 400), (70, 0, 33)
    assert judged(p, held(block_n=128, multicast="a"), shape, layout(p, shape, sizes)).exact


@pytest.mark.nvrtc
def test_exchanged_operands():
    c = config(hold_a=True, swap_ab=True, block_m=40, block_n=128, parts=1, stages=3)
    assert judged(FP8, c, (70, 200, 300)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (FP8, PLAIN, VECTOR), ids=lambda p: p.family)
def test_holding_changes_no_bit(p):
    """On random data: the same products, in the same order."""
    assert same_bits(p, (50, 130, 700), (config(block_n=64), held(block_n=64)), 3)


def test_one_read_of_a_for_all_parts():
    kernel = lower(FP8, held())
    loads = [s for s in statements(kernel) if isinstance(s, ir.LoadFragments)]
    multiplies = [s for s in statements(kernel) if isinstance(s, ir.Mma)]
    assert len(loads) == 1 and len(multiplies) == 2
    assert all(isinstance(s, ir.MmaFragments) for s in multiplies)
    (registers,) = (r for role in kernel.roles for r in role.locals if r.name == loads[0].dst)
    assert registers.count == 16, "64 rows x 128 bytes by 128 threads, four bytes each"


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "p", "changes"),
    [
        ("hold-promoted", DENSE, {"parts": 1}),
        ("hold-promoted", replace(DENSE, a=INT8_BLOCK.a, b=INT8_BLOCK.b), {"parts": 1}),
        ("hold-swizzle", FP8, {"swizzle_ab": 0}),
        ("register-budget", replace(VECTOR, d=BF16), {}),
    ],
)
def test_what_is_refused(rule, p, changes):
    with pytest.raises(IllegalConfig) as e:
        lower(p, held(**changes))
    assert e.value.rule.id == rule


BROKEN = {
    "never loaded": (visit(ir.LoadFragments, lambda s: ()), "P2|P10"),
    "the other wave's rows": (
        visit(ir.LoadFragments, lambda s: replace(s, wave_bytes=s.wave_bytes + 8192)),
        "P2|P10",
    ),
    "every warpgroup the same rows": (
        visit(ir.LoadFragments, lambda s: replace(s, warpgroup_bytes=0)),
        "P10",
    ),
    "steps in another order": (
        visit(ir.LoadFragments, lambda s: replace(s, steps=s.steps[::-1])),
        "P10",
    ),
    "loaded after the fence": (visit(ir.ForK, swapped_fence, role="consumer"), "P2"),
    "loaded again while a wgmma reads": (visit(ir.ForK, early_load, role="consumer"), "P2"),
    "released before it is read": (visit(ir.ForK, early_release, role="consumer"), "P2"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_the_proof_refuses(case):
    broken, properties = BROKEN[case]
    kernel = lower(FP8, held(stages=2, block_n=128))
    check(kernel)
    with pytest.raises(ProtocolViolation, match=properties):
        check(broken(kernel))
