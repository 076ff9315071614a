"""Operands on their way to registers that wait in shared memory: results on the emulator, the pass, the proof, and faults that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from direct_cases import GROUPED, PLAIN, WAYS, in_groups, in_one_way
from emulated import judged, same_bits
from kernels import DENSE, DIRECT, FP8, emitted

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.errors import IllegalConfig, VerificationError
from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.summation import summation

SLOTS = replace(DIRECT, slots=True)


def config(stages=3, **changes):
    return replace(SLOTS, stages=stages, **{"unroll": stages} | changes)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("stages", (1, 2, 3, 4, 6))
@pytest.mark.parametrize("k", (8, 64, 72, 136, 248, 320, 520))
def test_every_number_of_k_blocks(stages, k):
    """As many as there are places, fewer and more, the last one whole and not; rows beyond M; several tiles of a CTA."""
    assert judged(DENSE, config(stages), (5, 75, k), pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("p", "changes"),
    (
        *WAYS,
        (DENSE, {"block_k_bytes": 256, "stages": 2}),
        (DENSE, {"unroll": 6}),
        (DENSE, {"pdl": True, "stages": 4}),
        (FP8, {"lane_scales": True, "block_m": 16, "split_k": 2, "pdl": True, "stages": 2}),
        (FP8, {"lane_scales": True, "stages": 4, "watchdog": True}),
    ),
    ids=str,
)
def test_with_other_ways(p, changes):
    in_one_way(p, config(**changes))


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("of", ("bf16", "fp8_block"))
def test_groups(grouping, of):
    in_groups(of, grouping, config)


@pytest.mark.nvrtc
def test_under_every_schedule():
    for schedule in (emulator.Eager(), emulator.Late(), emulator.Random(seed=3)):
        c = config(split_k=2)
        assert judged(DENSE, c, (8, 70, 576), sms=2, schedule=schedule).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE, PLAIN), ids=lambda p: p.family)
def test_no_bit_is_another(p):
    """Nor is the order of the sums: batch-invariant calls may exchange it for what holds K blocks in registers."""
    assert same_bits(p, (8, 70, 1040), (DIRECT, config(), config(4)), 1)
    assert summation(p, DIRECT, 1040) == summation(p, config(), 1040)


# ---- faults in the text ----------------------------------------------------------------------

FAULTS = {
    "too few groups are waited for": ("wait_for_copies<4>", "wait_for_copies<5>"),
    "none is": ("ptx::wait_for_copies<4>();", ""),
    "copies are in no group": ("ptx::commit_copies();", ""),
    "the next place": ("smem_slots + k % 3", "smem_slots + (k + 1) % 3"),
    "another thread's place": (
        "+ threadIdx.x * 16;\n                    #pragma",
        "+ (threadIdx.x ^ 32) * 16;\n                    #pragma",
    ),
    "a place is filled before it is read": ("kk = k + 3, at", "kk = k + 2, at"),
    "A's place over B's": ("Shared::SLOTS_STAGE_BYTES + 8192", "Shared::SLOTS_STAGE_BYTES + 6144"),
    "past the last K block": ("if (kk < tile.k_blocks) {", "{"),
    "past K": ("at + 32 < shape_k ? 16 : 0", "16"),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault):
    right, wrong = FAULTS[fault]

    def broken(text):
        assert right in text
        return text.replace(right, wrong)

    with pytest.raises((VerificationError, emulator.EmulatorError)):
        judged(DENSE, config(), (8, 70, 456), broken=broken, sms=1, schedule=emulator.Late())


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", (1, 2, 3, 4))
def test_a_place_is_filled_when_its_k_block_was_multiplied(stages):
    k = emitted(DENSE, config(stages)).kernel
    loads = [s for s in statements(k) if isinstance(s, ir.LoadFragments)]
    assert [s.distance for s in loads if s.block == "first" and s.tensor == "b"] == [*range(stages)]
    assert not any(isinstance(s, ir.Copy) for s in statements(k))
    (loop,) = (s for s in statements(k) if isinstance(s, ir.ForK))
    kinds = [s.by if isinstance(s, ir.LoadFragments) else "multiply" for s in loop.body]
    assert kinds == ["read", "read", "multiply", "copy", "copy"]
    assert {s.pending for s in loads if s.by == "read"} == {2 * (stages - 1)}


def test_registers_hold_one_k_block_and_shared_memory_the_others():
    plain, c = emitted(DENSE, replace(SLOTS, slots=False)).kernel, config(4)
    k = emitted(DENSE, c).kernel
    assert {r.name for r in k.consumer.locals} < {r.name for r in plain.consumer.locals}
    assert k.buffer("smem_slots").stage_bytes == (64 + 4 * 8) * 128
    assert k.per_sm * (k.smem_bytes + 1024) <= 233472


def test_it_needs_direct():
    with pytest.raises(IllegalConfig) as e:
        lower(DENSE, replace(SLOTS, direct=False))
    assert e.value.rule.id == "slots-direct"


# ---- the proof ------------------------------------------------------------------------------


def changing(having, **to):
    def change(s):
        asked = isinstance(s, ir.LoadFragments) and all(
            getattr(s, k) == v for k, v in having.items()
        )
        if not asked:
            return s
        return replace(s, **to) if to else ()

    return change


WRONG = {
    "a K block is not copied": changing({"block": "next", "by": "copy", "tensor": "b"}),
    "the first is not": changing({"block": "first", "tensor": "a", "distance": 0}),
    "one too far ahead": changing({"block": "next", "by": "copy", "tensor": "a"}, distance=4),
    "one too near": changing({"block": "next", "by": "copy", "tensor": "a"}, distance=2),
    "registers are not read": changing({"by": "read", "tensor": "b"}),
    "a group too few is waited for": changing({"by": "read"}, pending=5),
    "none is": changing({"by": "read"}, pending=100),
    "the other operand's rows": changing({"tensor": "b"}, of="columns"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_proof_sees(wrong):
    kernel = emitted(DENSE, config()).kernel
    assert check(kernel)
    with pytest.raises(ProtocolViolation):
        check(map_stmts(kernel, WRONG[wrong]))


def test_a_place_that_is_too_small():
    kernel = emitted(DENSE, config()).kernel
    smem = tuple(replace(s, rows=s.rows - (s.use == "slots")) for s in kernel.smem)
    with pytest.raises(ProtocolViolation, match="bytes for a K block"):
        check(replace(kernel, smem=smem))
