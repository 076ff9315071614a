"""A fixed part of the mutation table: planned and random faults, every one of which is found.

All of it, half an hour: `python -m tests.mutation --rows --random 600 --seed 1`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import BF16
from gemmgen.problem import Problem
from gemmgen.runtime import driver, tensor_map
from gemmgen.verification import trial

from mutation import nets, survivors  # isort: skip
from mutation.mutant import Built, mutated_kernel, original  # isort: skip
from mutation.random_mutants import draw  # isort: skip
from mutation.rows import NOT_APPLICABLE, ROWS, number  # isort: skip
from mutation import score as scoring  # isort: skip
from mutation.mutant import Mutant, edit  # isort: skip
from mutation.reasons import reason  # isort: skip
from mutation.report import tables  # isort: skip
from mutation.score import Verdict, control, planned, score, score_all  # isort: skip

pytestmark = pytest.mark.nvrtc

EQUIVALENT = {"row 47a"}
# Found only by the bit model, by far rows of D or by a shape past whole tiles: slow.
SLOW = {"row 42", "row 64", "row 64b", "row 71f"}
# Every fault that the emulator is not needed for, and some of the others.
SUBSET = [
    m for m in ROWS if m.id not in EQUIVALENT | SLOW and (m.expected != "E" or number(m) % 4 == 1)
]
PLAIN = "fp8_block/base"
DOC = Path(__file__).parents[2] / "docs/verification.md"


@pytest.fixture(autouse=True)
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


@pytest.fixture(autouse=True)
def own_driver(monkeypatch):
    """Checks of the host put a fake one in its place."""
    places = ((driver, "driver"), (driver, "current"), (driver, "sm_count"), (tensor_map, "driver"))
    for module, name in places:
        monkeypatch.setattr(module, name, getattr(module, name))


def test_every_row_of_the_plan_is_here():
    """Rows 1 to 70: at least one mutant each, or the reason why there is none."""
    absent = {int(n.split()[0]) for n in NOT_APPLICABLE}
    assert {*map(number, ROWS), *absent} >= set(range(1, 71))
    assert len({m.id for m in ROWS}) == len(ROWS)


def test_the_documentation_lists_every_row():
    lines = DOC.read_text().splitlines()
    for m in ROWS:
        start = f"| {m.id.removeprefix('row ')} | {m.says} | {m.layer} | "
        by = [line.removeprefix(start) for line in lines if line.startswith(start)]
        assert len(by) == 1 and (by[0][0] in m.expected or by[0] == "equivalent |"), m.id


@pytest.mark.parametrize("m", SUBSET, ids=lambda m: m.id)
def test_a_row_is_killed(m):
    """By the net that the table names first."""
    (v,) = score_all([m], jobs=1)
    assert v.killed, v.outcome
    assert planned(m, v), (
        f"{v.killed}: another net, or another reason, than the table says: {v.texts}"
    )


@pytest.mark.parametrize("number", range(8))
def test_a_random_mutant_is_killed(number):
    """A survivor is a hole in a net, or needs a rule, with its reason, in mutation/survivors.py."""
    m = draw(8, 1, (PLAIN,))[number]
    (v,) = score_all([m], jobs=1)
    assert v.outcome != "survived", m.says


def test_the_hosts_checks_find_nothing_in_right_code():
    """In a process of its own: they put a fake driver in place of the real one."""
    code = "from mutation import host; print(list(host.checks()))"
    path = os.pathsep.join(map(str, (Path(__file__).parents[2], Path(__file__).parents[1])))
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("m", ROWS, ids=lambda m: m.id)
def test_no_rule_excuses_a_row(m):
    if not m.family:  # those do not get through the passes
        assert bool(survivors.reason(m)) == (m.id in EQUIVALENT)


def test_no_rule_excuses_what_the_proof_finds():
    found = 0
    for m in draw(100, 2):
        if m.ir:
            b = original(m.kernel)
            kernel = mutated_kernel(m)
            built = Built(problem=b.problem, meant=b.meant, kernel=kernel, source="")
            if nets.static(built) or nets.proof(built):
                found += 1
                assert not survivors.reason(m), (m.kernel, m.says)
    assert found > 20


MODELLED = (
    *(PLAIN, "fp8_block/split_k", "fp8/row_scaled", "dense/s8", "dense/s8_scaled"),
    *("fp8_block/batched", "fp8_block/masked_swiglu_fp8", "fp8_block/grouped_by_end"),
    *("fp8_block/grouped_by_row", "dense/k_grouped_bf16", "fp8_1d1d/k_grouped", "fp8_1d1d/wgrad"),
    *("dense/swiglu", "fp8_block/fp8_out"),
)


@pytest.mark.parametrize("name", MODELLED)
def test_the_bit_model_finds_nothing_in_a_right_kernel(name):
    """And knows the bits of all the rows' kernels, of every grouping and kind of output."""
    assert nets.bits.known(original(name).problem)
    assert nets.bit_model(original(name)) is None


def test_the_bit_model_knows_every_kernel_of_the_plan():
    assert all(nets.bits.known(original(name).problem) for name in {m.kernel for m in ROWS})


@pytest.mark.parametrize("name", ["fp8_block/batched", "fp8_1d1d/wgrad", "fp8_block/fp8_out"])
def test_the_bit_model_finds_one_other_bit(name, monkeypatch):
    """In D and, where it has them, in its scales."""
    for field in ("codes", *["scales"] * (name == "fp8_block/fp8_out")):

        def off_by_one(*args, field=field):
            result = trial.run(*args)
            changed = getattr(result, field).copy()
            changed[2, 0] ^= 1
            return replace(result, **{field: changed})

        monkeypatch.setattr(nets, "run", off_by_one)
        assert re.match(
            r"1 of \d+ (elements|scales) have other bits", nets.bit_model(original(name))
        )


def test_the_bit_model_knows_no_bits_where_a_compiler_may_choose():
    x = Problem(family="dense", a=BF16, b=BF16)
    known = {n: nets.bits.known(replace(x, epilogue=e)) for n, e in EPILOGUES.items()}
    assert not known["alpha_beta"] and not known["gelu"] and known["swiglu"]


def test_chunks_of_block_scales_are_walked():
    """Some case has more K than the 32 blocks that are read at a time."""
    kernels = {m.kernel for m in ROWS}
    chunked = {n for n in kernels if nets.chunked(original(n).kernel)}
    assert PLAIN in chunked and "dense/n256" not in chunked
    assert nets.DEEP.shape[2] > 32 * 128


# --- what counts as found


FAULT = Mutant(
    id="fault",
    kernel=PLAIN,
    says="a comment",
    expected="E",
    text=edit(("wgmma", "wgmma /* */")),
)


def nets_that(monkeypatch, found):
    """Only one net is left, E; it returns, or raises, `found`."""

    def net(b):
        if isinstance(found, BaseException):
            raise found
        return found

    for name in ("RUNS", "LAST"):
        monkeypatch.setattr(scoring, name, ())
    monkeypatch.setattr(scoring, "LAST", ((LETTER, net), (LETTER, lambda b: None)))
    monkeypatch.setattr(nets, "audit", lambda b: None)
    monkeypatch.setattr(scoring, "_unchanged", lambda *_: False)
    monkeypatch.setattr(scoring, "_equivalent", lambda m: "")


LETTER = "E"


def test_a_model_that_stops_is_no_kill(monkeypatch):
    monkeypatch.setitem(globals(), "LETTER", "N")
    nets_that(monkeypatch, ValueError("shapes"))
    v = score(FAULT)
    assert (v.outcome, v.killed) == ("error", ()) and "shapes" in v.error
    assert control(PLAIN)[-1] == ("N", v.error)


def test_only_what_should_hang_is_found_by_the_clock(monkeypatch):
    nets_that(monkeypatch, scoring._Time())
    v = score(FAULT)
    assert (v.outcome, v.killed) == ("undecided", ()) and "still running" in v.undecided
    assert score(replace(FAULT, hangs=True)).killed == ("hang",)


def test_a_net_that_is_not_silent_on_the_right_kernel_kills_nothing(monkeypatch):
    nets_that(monkeypatch, "VerificationError: 3 elements differ")
    assert score(FAULT).killed == ("E",)
    v = score(FAULT, noisy="E")
    assert (v.outcome, v.ignored) == ("survived", ("E",))
    assert control(PLAIN) == [("E", "VerificationError: 3 elements differ")]


def test_a_kill_for_another_reason_is_reported_apart(monkeypatch):
    nets_that(monkeypatch, "RaceError: two writes")
    row = replace(FAULT, id="row 1000", reason="^RaceError")
    assert planned(row, score(row)) and "none" in tables([row], [score(row)])
    for other in (replace(row, reason="^VerificationError"), replace(row, expected="P")):
        v = score(other)
        assert v.outcome == "killed" and not planned(other, v)
        assert "| row 1000 |" in tables([other], [v]).split("otherwise than planned")[1]
    nets_that(monkeypatch, KeyError("a net stops"))
    v = score(replace(row, reason=""))
    assert v.killed == ("E",) and not planned(row, v)


def test_rows_that_the_proof_finds_name_their_property():
    found = [reason(m).pattern for m in ROWS if m.expected == "P"]
    assert all(p.startswith(r"\A\[P") for p in found)
    assert len([p for p in found if re.search(r"P\d+ $", p)]) > 120


def test_a_mutant_of_which_nothing_is_known_has_survived():
    assert Verdict(id="x").outcome == "survived"
