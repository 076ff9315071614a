"""GEMMs of which every GPU stores the sum of all, on tensors that only say what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_torch import Placed, fake_torch_fixture  # noqa: F401
from kernels import DENSE, FP8, QUANTISED
from test_ranked import CONFIG, RANKS, K, M, N, box, faked  # noqa: F401

from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16
from gemmgen.ops.all_reduced import AllReduce, all_reduce, all_reduce_bytes
from gemmgen.ops.ranked import mailbox_bytes, reduce_scatter
from gemmgen.pipeline import lower
from gemmgen.runtime.peers import Mailbox as Layout
from gemmgen.runtime.peers import mailbox


def boxed(m=M, n=N, ranks=RANKS, **given):
    return box(size=all_reduce_bytes(m, n, ranks, **given), ranks=ranks)


def operands(rows=M):
    return Placed(rows, K, dtype="bfloat16"), Placed(N, K, dtype="bfloat16")


def test_a_launch_is_told_whose_it_is():
    mine = boxed()
    planned = AllReduce(DENSE, mine, *operands(), config=CONFIG)
    assert planned.kernel.problem == replace(DENSE, collective="all_reduce")
    assert planned.shape == (M, N, K) and planned.launch() is planned.out
    (told,) = planned.kernel.launched
    assert (told["shape_m"], told["ranks"], told["rank"]) == (M, 2, 1)
    assert planned.kernel.matrices["a"].outer == planned.kernel.matrices["d"].outer == M


@pytest.mark.parametrize("rows", (1, M + 1))
def test_rows_are_no_multiple_of_anything(rows):
    assert all_reduce(DENSE, boxed(rows), *operands(rows)).shape == (rows, N)


def test_sums_travel_in_what_is_asked_for():
    planned = AllReduce(DENSE, boxed(), *operands(), config=CONFIG, wire="bf16")
    assert planned.kernel.problem.wire == planned.kernel.kernel.peers.wire == BF16


def test_a_mailbox_may_serve_both():
    both = boxed()
    all_reduce(DENSE, both, *operands())
    reduce_scatter(DENSE, both, *operands(RANKS * (M // 2)))


BAD = {
    "problem": lambda: all_reduce("dense", boxed(), *operands()),
    "memory": lambda: all_reduce(DENSE, "mailbox", *operands()),
    "problem.d": lambda: all_reduce(QUANTISED, boxed(), *operands()),
    "a rows": lambda: all_reduce(DENSE, boxed(), *operands(0)),
    "out shape": lambda: all_reduce(
        DENSE, boxed(), *operands(), Placed(M // 2, N, dtype="bfloat16")
    ),
    "wire": lambda: all_reduce(DENSE, boxed(), *operands(), wire="f32"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    with pytest.raises(ArgumentError) as e:
        BAD[name]()
    assert e.value.argument == name


def test_a_mailbox_for_rows_that_are_shared_out_is_too_small():
    side = 4096
    small = box(size=mailbox_bytes(side // RANKS, side, RANKS))
    given = Placed(side, K, dtype="bfloat16"), Placed(side, K, dtype="bfloat16")
    with pytest.raises(ArgumentError, match="all_reduce_bytes") as e:
        all_reduce(DENSE, small, *given)
    assert e.value.argument == "memory"


@pytest.mark.parametrize("wire", (None, "bf16"))
@pytest.mark.parametrize("ranks", (2, 3, 8))
@pytest.mark.parametrize("m, n", ((1, 1), (17, 40), (512, 7168)))
def test_bytes_are_enough_for_every_config(m, n, ranks, wire):
    has = Layout.of(all_reduce_bytes(m, n, ranks, wire), ranks)
    problems = (replace(p, collective="all_reduce", wire=wire) for p in (DENSE, FP8))
    for p in problems:
        for config in (
            CONFIG,
            replace(CONFIG, block_m=128, block_n=128, consumers=2, multicast="a"),
        ):
            assert has.holds(mailbox(lower(p, config), (m, n, 512), ranks))
    assert all_reduce_bytes(m, n, ranks, wire) > mailbox_bytes(m, n, ranks, wire)
