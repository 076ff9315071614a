"""A's rows held in registers: results on the emulator, what is refused, and faults that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, FP8, GROUPED, INT8_BLOCK, VECTOR, emitted
from test_parts import PLAIN, config, judged, machine

from gemmgen.check import ProtocolViolation, check
from gemmgen.errors import IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.verification import random_normal

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
    gpu = machine()
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import output, pitches

    shape, found = (50, 130, 700), []
    operands = random_normal(p, *shape, 3)
    for c in (config(block_n=64), held(block_n=64)):
        a = emitted(p, c)
        strides = pitches(a.kernel, shape)
        d = output(p, operands, strides)
        after = gpu.execute(prepare(a.kernel, a.source), operands, strides, d, 0xFF)
        found.append(d.extract(after))
    assert (found[0] == found[1]).all()


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


def edited(kind, change):
    return lambda k: map_stmts(k, lambda s: change(s) if isinstance(s, kind) else s)


def in_loop(change):
    """`change` of the consumers' K loop."""

    def visit(s: ir.ForK) -> ir.ForK:
        return change(s) if any(isinstance(x, ir.LoadFragments) for x in s.body) else s

    return edited(ir.ForK, visit)


def swapped_fence(s: ir.ForK) -> ir.ForK:
    """The load after the fence that orders its registers."""
    at = next(i for i, x in enumerate(s.body) if isinstance(x, ir.LoadFragments))
    body = (*s.body[:at], s.body[at + 1], s.body[at], *s.body[at + 2 :])
    return replace(s, body=body)


def early_load(s: ir.ForK) -> ir.ForK:
    """The load for the second part while the first's wgmma runs."""
    load = next(x for x in s.body if isinstance(x, ir.LoadFragments))
    at = next(i for i, x in enumerate(s.body) if isinstance(x, ir.WgmmaWait))
    return replace(s, body=(*s.body[:at], load, *s.body[at:]))


def early_release(s: ir.ForK) -> ir.ForK:
    """The stage released before its rows were read."""
    release = next(x for x in s.body if isinstance(x, ir.Arrive | ir.ArriveCluster))
    rest = [x for x in s.body if x is not release]
    at = next(i for i, x in enumerate(rest) if isinstance(x, ir.LoadFragments))
    return replace(s, body=(*rest[:at], release, *rest[at:]))


BROKEN = {
    "never loaded": (edited(ir.LoadFragments, lambda s: ()), "P2|P10"),
    "the other wave's rows": (
        edited(ir.LoadFragments, lambda s: replace(s, wave_bytes=s.wave_bytes + 8192)),
        "P2|P10",
    ),
    "every warpgroup the same rows": (
        edited(ir.LoadFragments, lambda s: replace(s, warpgroup_bytes=0)),
        "P10",
    ),
    "steps in another order": (
        edited(ir.LoadFragments, lambda s: replace(s, steps=s.steps[::-1])),
        "P10",
    ),
    "loaded after the fence": (in_loop(swapped_fence), "P2"),
    "loaded again while a wgmma reads": (in_loop(early_load), "P2"),
    "released before it is read": (in_loop(early_release), "P2"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_the_proof_refuses(case):
    broken, properties = BROKEN[case]
    kernel = lower(FP8, held(stages=2, block_n=128))
    check(kernel)
    with pytest.raises(ProtocolViolation, match=properties):
        check(broken(kernel))
