"""GPUs that add their sums up and round them before they travel (docs/adr/0053-wire.md), run by the emulator."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from emulated import prepared
from kernels import DENSE, DENSE_F32, FP8, VECTOR, emitted
from scattering import (
    KINDS,
    PLAIN,
    SWAPPED,
    Slow,
    calls_of,
    judge,
    node,
    plain_sums,
    scattered,
    shape_of,
)

from gemmgen.codes import decode, encode
from gemmgen.emulator import Eager, Race
from gemmgen.errors import ArgumentError, VerificationError
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.runtime.launch_record import from_json, record_of, to_json
from gemmgen.runtime.peers import Mailbox, mailbox, mailbox_bytes
from gemmgen.verification import random_normal, ranked
from gemmgen.verification.inputs import exact_integers

pytestmark = pytest.mark.nvrtc

WIRES = (BF16, F16)
# Sums of FP32. Eight rows in FP8 are four registers of a thread, of which nothing is left for 16 bytes; 24 are twelve.
FLOATS = {name: kind for name, kind in KINDS.items() if name != "int8"}
FLOATS["four"] = (FP8, replace(SWAPPED, block_m=8))
FLOATS["twelve"] = (DENSE, replace(SWAPPED, block_m=24))


@pytest.mark.parametrize("name", FLOATS)
def test_every_kind_of_sum(name):
    judge(*FLOATS[name], ranks=2, wire=BF16)


@pytest.mark.parametrize("name", ("f32", "direct", "fp8", "twelve"))
def test_sums_of_every_count_in_f16(name):
    judge(*FLOATS[name], ranks=2, wire=F16)


@pytest.mark.parametrize("ranks", (1, 3, 4))
@pytest.mark.parametrize("problem, config", ((DENSE, PLAIN), (FP8, SWAPPED)), ids=("bf16", "fp8"))
def test_every_rank_has_its_rows_of_the_sum(problem, config, ranks):
    judge(problem, config, ranks, wire=BF16)


def launched(problem, wire, ranks, config=PLAIN, count=1, **fields):
    """Whole GEMMs of random data, and what all ranks store."""
    problem = scattered(problem, wire)
    kernel, program = prepared(problem, config)
    wholes = calls_of(problem, shape_of(problem, config, ranks), count, random_normal)
    machines = node(ranks, **fields)
    got = ranked.run(machines, program, kernel, problem, wholes)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_close(machines, problem, whole, results)
    return wholes, got


@pytest.mark.parametrize("wire", WIRES, ids=str)
@pytest.mark.parametrize("ranks", (2, 3, 4))
@pytest.mark.parametrize("problem", (DENSE_F32, VECTOR), ids=("dense", "scaled"))
def test_bits_are_those_of_the_plain_gemms_rounded_and_added_in_order(problem, ranks, wire):
    """The owner's as it is, then those of the ranks behind it, each rounded once."""
    (whole,), ((*got,),) = launched(problem, wire, ranks)
    parts = plain_sums(problem, PLAIN, ranked.together(problem, whole, ranks))
    rows = whole.shape[0] // ranks
    for owner, result in enumerate(got):
        mine = slice(owner * rows, owner * rows + rows)
        total = parts[owner][mine]
        for other in range(1, ranks):
            sent = encode(parts[(owner + other) % ranks][mine].astype(np.float64), wire)
            total = total + np.float32(decode(sent, wire))
        assert (encode(total.astype(np.float64), F32) == np.asarray(result.codes)).all()


@pytest.mark.parametrize(
    "schedule", (Eager(), Slow(rank=0), Slow(rank=1)), ids=("eager", "0 is slow", "1 is slow")
)
def test_bits_do_not_depend_on_who_is_late(schedule):
    def bits(**fields):
        _, got = launched(DENSE, BF16, 2, count=3, **fields)
        return [[r.codes.tobytes() for r in results] for results in got]

    assert bits(schedule=schedule) == bits()


# ---- what a result is held against ---------------------------------------------------------------


def results(problem, wire, whole, ranks):
    """Of a kernel of that wire."""
    kernel, program = prepared(scattered(problem, wire), PLAIN)
    (got,) = ranked.run(node(ranks), program, kernel, scattered(problem, wire), [whole])
    return got


@pytest.mark.parametrize("wire, other", ((BF16, None), (None, BF16), (F16, BF16), (BF16, F16)))
def test_sums_that_are_rounded_otherwise_are_told(wire, other):
    """Of scales that are far enough apart, exact sums have more bits than 16-bit types."""
    whole = exact_integers(VECTOR, *shape_of(VECTOR, PLAIN, 2, k_blocks=4), 1)
    whole = replace(whole, scale_a=whole.scale_a**5)
    got = results(VECTOR, wire, whole, 2)
    ranked.check_exact(node(2), scattered(VECTOR, wire), whole, got)
    with pytest.raises(VerificationError):
        ranked.check_exact(node(2), scattered(VECTOR, other), whole, got)


def test_random_sums_that_are_rounded_are_out_of_the_bounds_of_those_that_are_not():
    (whole,) = calls_of(scattered(DENSE_F32), shape_of(DENSE_F32, PLAIN, 2), 1, random_normal)
    got = results(DENSE_F32, BF16, whole, 2)
    with pytest.raises(VerificationError):
        ranked.check_close(node(2), scattered(DENSE_F32), whole, got)


def test_sums_beyond_f16_are_infinite():
    """The rule of the dtype, not an accident: 65,520 and more round to infinity."""
    whole = exact_integers(VECTOR, *shape_of(VECTOR, PLAIN, 2), 1)
    whole = replace(whole, scale_a=whole.scale_a * np.float32(2.0**20))
    for wire, finite in ((F16, False), (BF16, True)):
        got = results(VECTOR, wire, whole, 2)
        ranked.check_exact(node(2), scattered(VECTOR, wire), whole, got)
        assert np.isfinite(decode(got[0].codes, F32)).all() == finite


# ---- faults --------------------------------------------------------------------------------------

PACK = "ptx::pack_bf16(acc0[2 * i], acc0[2 * i + 1])"
CUT = "(__float_as_uint(acc0[2 * i]) >> 16 | (__float_as_uint(acc0[2 * i + 1]) & 0xFFFF0000))"
FAULTS = {
    "halves that are exchanged": (PACK, "ptx::pack_bf16(acc0[2 * i + 1], acc0[2 * i])"),
    "one half twice": ("ptx::high_bf16(a)", "ptx::low_bf16(a)"),
    "sums that are cut, not rounded": (PACK, CUT),
    "slots that overlap": ("tile.slots + tile.slot) * 1024", "tile.slots + tile.slot) * 1000"),
    "a flag that releases nothing": ("st.release.sys.global", "st.relaxed.sys.global"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_what_travels_is_found(name):
    """In random data: the sums that tests otherwise have are integers, which BF16 has too."""
    problem = scattered(DENSE_F32, BF16)
    kernel, program = prepared(problem, PLAIN, (FAULTS[name],))
    (whole,) = calls_of(problem, shape_of(problem, PLAIN, 2, tail=False), 1, random_normal)
    with pytest.raises((VerificationError, Race)):
        (got,) = ranked.run(node(2), program, kernel, problem, [whole])
        ranked.check_close(node(2), problem, whole, got)


@pytest.mark.parametrize("ranks", (2, 8))
@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_a_mailbox_of_half_the_size_holds_them(wire, ranks):
    kernels = [emitted(scattered(DENSE, w), PLAIN).kernel for w in (wire, None)]
    for m, n in ((1, 1), (513, 40), (2048, 7168)):
        sizes = [mailbox_bytes(m, n, ranks, w) for w in (wire, None)]
        assert sizes[0] < 0.6 * sizes[1]
        has = [Mailbox.of(size, ranks) for size in sizes]
        assert all(
            h.holds(mailbox(k, (m, n, 64), ranks)) for h, k in zip(has, kernels, strict=True)
        )
        assert has[1].holds(mailbox(kernels[0], (m, n, 64), ranks))
    with pytest.raises(ArgumentError, match="wire"):
        mailbox_bytes(64, 64, 2, F32)


@pytest.mark.parametrize("wire", (None, *WIRES), ids=str)
def test_what_is_kept_of_a_kernel_says_in_what_sums_travel(wire):
    record = record_of(emitted(scattered(DENSE, wire), PLAIN).kernel)
    assert from_json(json.loads(json.dumps(to_json(record)))) == record
    assert record.peers.wire == wire
