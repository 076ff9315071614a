"""Rows of A that come by index: results on the emulator, faults in the text, the pass, and the proof's findings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import judged
from grouped import CASES, layout, problem
from kernels import emitted

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.check.placement import placed
from gemmgen.config import Config
from gemmgen.emulator import EmulatorError
from gemmgen.errors import ArgumentError, IllegalConfig, VerificationError
from gemmgen.heuristics import candidates
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.ir.syncs import is_fence, is_sync
from gemmgen.passes import index_rows, read_direct
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200
from gemmgen.verification import random_normal
from gemmgen.verification.indexed import stored_a


def indexed(name: str = "fp8_block", **more) -> Problem:
    return replace(problem(name, "ends"), indexed=True, **more)


def config(**changes) -> Config:
    small = {"block_m": 64, "block_n": 32, "stages": 2, "consumers": 1}
    return Config(**small | changes)


SHAPE, SIZES = (300, 136, 200), (0, 130, 41)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {},
        {"stages": 1},
        {"stages": 3, "unroll": 4},
        {"consumers": 2, "block_m": 128},
        {"consumers": 2, "block_m": 128, "multicast": "b"},
        {"consumers": 3, "block_m": 192},
        {"parts": 2, "block_n": 64},
        {"peek": True},
        {"ping_pong": True, "consumers": 2},
        {"split_k": 2},
        {"swap_ab": True, "block_m": 8, "block_n": 64},
        {"swap_ab": True, "block_m": 24, "block_n": 64},
        {"pdl": True},
        {"watchdog": True},
        {"lane_scales": True},
    ),
    ids=str,
)
def test_results(changes):
    """Rows that come several times, rows of none, groups without rows, K whose last piece of 16 bytes is not whole."""
    p = indexed()
    assert judged(p, config(**changes), SHAPE, layout(p, SHAPE, SIZES), pad=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ("fp8_1d1d", "s8_block", "fp8_rowwise", "bf16", "f16_f32", "s8"))
def test_families(name):
    """A's scales are of the product's rows."""
    p = indexed(name)
    shape = (300, 64, 5 * 64 + 24)
    judged(p, config(stages=3), shape, layout(p, shape, SIZES), pad=1)


@pytest.mark.nvrtc
def test_a_layout_of_b():
    p = indexed("bf16", layout="nn")
    judged(p, config(block_n=64), (200, 64, 200), layout(p, (200, 64, 200), (70, 60)))


@pytest.mark.nvrtc
@pytest.mark.parametrize(("shape", "sizes"), CASES)
def test_groups(shape, sizes):
    p = indexed("bf16")
    judged(p, config(stages=4), shape, layout(p, shape, sizes), sms=2)


@pytest.mark.nvrtc
def test_under_every_schedule():
    p = indexed()
    for schedule in (emulator.Eager(), emulator.Late(), emulator.Random(seed=3)):
        c = config(stages=3)
        assert judged(p, c, (200, 40, 520), layout(p, (200, 40, 520), (90, 20)), schedule=schedule)


def test_what_is_drawn():
    """Rows that come twice and more, rows that never come, NaN in those; and where an index is -1 zeros would do."""
    p = indexed()
    x = random_normal(p, *SHAPE, 3, layout(p, SHAPE, SIZES))
    stored = stored_a(x)
    there = x.indices >= 0
    assert there.sum() == sum(SIZES) and (stored[x.indices[there] // x.top] == x.a[there]).all()
    taken, often = np.unique(x.indices[there] // x.top, return_counts=True)
    assert often.max() > 1 and taken.size < len(stored)
    assert len({*(x.indices[there] % x.top)}) == x.top


# ---- faults in the text ----------------------------------------------------------------------

FAULTS = {
    "another row": ("const int row = first + 16 * i", "const int row = (first ^ 1) + 16 * i"),
    "the first rows again": ("const int row = first + 16 * i", "const int row = first"),
    "an index for a row": ("/ static_cast<uint32_t>(top)", "/ static_cast<uint32_t>(1)"),
    "not swizzled": ("(piece ^ row % 8) * 16", "piece * 16"),
    "another piece": ("k * 128 + piece * 16", "k * 128 + (piece ^ 1) * 16"),
    "another K block": ("at = k * 128", "at = (k ^ 1) * 128"),
    "past K": ("min(max(shape_k - at, 0) * 1, 16)", "16"),
    "not fenced": (
        "ptx::fence_proxy_async();\n                    ptx::warp_sync",
        "ptx::warp_sync",
    ),
    "announced too early": ("ptx::wait_for_copies<1>();", ""),
    "lanes not met": ("ptx::warp_sync();\n                    //", "//"),
    "another stage": ("(ring.stage + STAGES - 1) % STAGES", "ring.stage"),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault):
    right, wrong = FAULTS[fault]
    p = indexed()
    with pytest.raises((VerificationError, EmulatorError)):
        judged(
            p,
            config(),
            SHAPE,
            layout(p, SHAPE, SIZES),
            pad=1,
            broken=lambda t: t.replace(right, wrong),
        )


def test_the_text_says_so_of_indices():
    """No index leads outside of A; no map of A is there."""
    text = emitted(indexed(), config()).source
    assert "source < static_cast<uint32_t>(sources) ? " in text and "map_a" not in text


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "changes"),
    (
        ("indexed-shared", {"consumers": 2, "block_m": 128, "multicast": "a"}),
        ("indexed-span", {"swizzle_ab": 64}),
        ("register-budget", {"consumers": 2, "block_m": 256}),
        ("indexed-producer", {"direct": True}),
        (
            "indexed-producer",
            {"direct": True, "swap_ab": True, "block_m": 8, "block_n": 64, "unroll": 2}
            | {"lane_scales": True},
        ),
    ),
)
def test_rules(rule, changes):
    with pytest.raises(IllegalConfig) as e:
        lower(indexed(), config(**changes))
    assert e.value.rule.id == rule


@pytest.mark.parametrize("name", ("bf16", "fp8_block"))
def test_the_pass_takes_what_a_choice_considers(name):
    """Clusters share B, and no candidate is one that these rules refuse."""
    shared = set()
    for rows in (16, 64, 512):
        found = [*candidates(indexed(name), (rows, 4096, 4096), H200, groups=32)]
        shared |= {c.multicast for c in found}
        for c in found[::4]:
            try:
                lower(indexed(name), c)
            except IllegalConfig as e:
                assert e.rule not in (*index_rows.RULES, read_direct.INDEXED_PRODUCER), c
    assert shared == {"none", "b"}


@pytest.mark.parametrize("stages", (2, 3, 4))
def test_stages_that_are_released_late(stages):
    """With the next one: that must be announced before the first is waited for again."""
    c = config(block_m=128, block_n=64, consumers=2, stages=stages, in_flight=1, multicast="b")
    kernel = lower(indexed("bf16"), c)
    check(kernel)
    assert {s.pending for s in statements(kernel) if isinstance(s, ir.WaitCopies)} <= {
        0,
        stages - 2,
    }


def test_a_narrow_k_block():
    with pytest.raises(IllegalConfig) as e:
        lower(indexed("bf16"), config(block_k_bytes=64))
    assert e.value.rule.id == "indexed-span"


@pytest.mark.parametrize("stages", (1, 2, 3, 5))
def test_arrivals_and_bytes(stages):
    """Of the leader, and of each warp once; TMA's bytes are B's and the scales'."""
    kernel, plain = (
        lower(indexed(), config(stages=stages)),
        lower(replace(indexed(), indexed=False), config(stages=stages)),
    )
    (full,), (before,) = ([b for b in k.barriers if b.name == "full"] for k in (kernel, plain))
    assert (full.arrivals, before.arrivals) == (5, 1)
    assert before.tx_bytes - full.tx_bytes == plain.buffer("smem_a").stage_bytes
    waits = [s.pending for s in statements(kernel) if isinstance(s, ir.WaitCopies)]
    assert waits == [min(2, stages - 1), *[0] * (stages > 1)]


def test_without_indices_nothing_changes():
    plain = replace(indexed(), indexed=False)
    assert not any(isinstance(s, ir.CopyRows) for s in statements(lower(plain, config())))


# ---- the problem ----------------------------------------------------------------------------


@pytest.mark.parametrize("grouping", [g for g in GROUPINGS if g != "ends"])
def test_other_groupings_refuse(grouping):
    with pytest.raises(ArgumentError, match="indexed"):
        replace(problem("bf16", grouping), indexed=True)


@pytest.mark.parametrize("more", ({"layout": "tn"}, {"indexed": 1}), ids=str)
def test_what_no_problem_is(more):
    with pytest.raises(ArgumentError, match="indexed"):
        replace(problem("bf16", "ends"), **{"indexed": True} | more)


def test_json():
    p = indexed()
    assert p.to_json()["indexed"] is True and Problem.from_json(p.to_json()) == p
    assert "indexed" not in replace(p, indexed=False).to_json()


# ---- the proof ------------------------------------------------------------------------------


def each(kind, change, **having):
    """A change of every statement of `kind` with these values."""

    def visit(s):
        has = isinstance(s, kind) and all(getattr(s, n) == v for n, v in having.items())
        return change(s) if has else s

    return visit


def drop(s):
    return ()


def dropped(which):
    return lambda s: (
        replace(s, body=tuple(x for x in s.body if not which(x))) if is_if(s, "begun") else s
    )


WRONG = {
    "not waited for": each(ir.WaitCopies, drop),
    "waited for too few": each(ir.WaitCopies, lambda s: replace(s, pending=s.pending + 1)),
    "not fenced": dropped(lambda s: is_fence(s, "async")),
    "lanes not met": dropped(lambda s: is_sync(s, "warp")),
    "not announced": each(ir.Arrive, drop, to="copied"),
    "another stage": each(ir.Arrive, lambda s: replace(s, lag=s.lag - 1), to="copied"),
    "the last not announced": lambda s: (
        () if is_if(s, "begun") and isinstance(s.body[0], ir.Arrive) else s
    ),
    "indices of another tile": each(ir.LoadIndices, drop),
    "indices of another array": each(ir.LoadIndices, lambda s: replace(s, tensor="group_ends")),
    "too few indices": each(ir.LoadIndices, lambda s: replace(s, count=s.count - 16)),
    "another K": each(ir.CopyRows, lambda s: replace(s, k=replace(s.k, scale=64))),
    "not copied": each(ir.CopyRows, drop),
    "too many arrivals": each(
        ir.InitBarrier, lambda s: replace(s, arrivals=s.arrivals + 1), barrier="full"
    ),
}


@pytest.mark.parametrize("stages", (2, 4))
@pytest.mark.parametrize("wrong", WRONG)
def test_the_proof_finds(wrong, stages):
    kernel = lower(indexed(), config(stages=stages))
    check(kernel)
    with pytest.raises(ProtocolViolation):
        check(map_stmts(kernel, WRONG[wrong]))


def without(name):
    return lambda k: replace(k, params=tuple(p for p in k.params if p.name != name))


def pointed(**changes):
    return lambda k: replace(k, pointed=tuple(replace(x, **changes) for x in k.pointed))


RESOURCES = {
    "nothing that is pointed to": (
        lambda k: replace(k, pointed=()),
        "a is pointed to as 0 operands",
    ),
    "another operand": (pointed(tensor="b"), "a is pointed to as 0 operands"),
    "the same twice": (lambda k: replace(k, pointed=k.pointed * 2), "as 2 operands"),
    "along N": (pointed(outer="n"), "multiplies smem_a as M"),
    "elements of another size": (pointed(dtype=BF16), "a has elements of bf16"),
    "no indices": (without("rows"), "not given const int* rows"),
    "no copies of each": (without("top"), "not given int top"),
    "no end of A": (without("sources"), "not given int sources"),
}


@pytest.mark.parametrize("wrong", RESOURCES)
def test_what_rows_by_index_need_is_found_missing(wrong):
    change, found = RESOURCES[wrong]
    kernel = change(lower(indexed(), config()))
    assert any(found in x.message for x in placed(kernel))
    with pytest.raises(ProtocolViolation, match="P10"):
        check(kernel)


@pytest.mark.parametrize("thorough", (False, True))
@pytest.mark.parametrize("multicast", ("none", "b"))
def test_proved(multicast, thorough):
    c = Config(block_m=128, block_n=64, stages=3, consumers=2, multicast=multicast)
    assert "P13" in str(check(lower(indexed(), c), thorough=thorough))
