"""Calls whose result has gaps between heads' parts: what they launch, and which calls are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_torch import Placed, codes, fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import HEADS

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ops.kept import READ, Unreadable

M, N, K, COLUMNS = 64, 512, 256, 640
CONFIG = Config(block_n=64, stages=2)


def call(**changes):
    given = {
        "a": codes(M, K),
        "scale_a": Placed(M, 2, stride=(1, M)),
        "b": codes(N, K),
        "scale_b": Placed(4, 2),
        "scale_a_layout": "mn",
        "config": CONFIG,
    }
    return ops.fp8_block_gemm(**given | {"heads": (128, 64, 128)} | changes)


def test_a_result_has_the_gaps(launches):
    made = call()
    assert tuple(made.shape) == (M, COLUMNS)
    (found,) = launches
    assert found.problem == HEADS and found.shape == (M, N, K)
    d = found.matrices["d"]
    assert (d.pointer, d.outer, d.inner) == (made.data_ptr(), M, COLUMNS)


def test_an_output_may_have_padded_rows(launches):
    out = Placed(M, COLUMNS, dtype="bfloat16", stride=(COLUMNS + 8, 1))
    assert call(out=out) is out
    assert launches[0].matrices["d"].stride == launches[0].values["d_stride"] == COLUMNS + 8


def test_no_rows_launch_nothing(launches):
    none = {"a": codes(0, K), "scale_a": Placed(0, 2)}
    assert tuple(call(**none).shape) == (0, COLUMNS) and not launches
    with pytest.raises(ArgumentError, match=r"^b rows=512: must be a multiple of 160"):
        call(**none, heads=(128, 64, 32))


@pytest.mark.parametrize("family", ["fp8", "dense"])
def test_any_problem_may_have_them(family, launches):
    p = replace(HEADS, family=family)
    made = ops.multiply(p, codes(M, K), codes(N, K), config=CONFIG)
    assert tuple(made.shape) == (M, COLUMNS) and launches[0].problem == p


def test_of_a_column_of_b_that_is_stored_the_other_way():
    a, b = (Placed(*s, dtype="bfloat16") for s in ((M, K), (K, 80)))
    p = replace(HEADS, family="dense", a="bf16", b="bf16", layout="nn", heads=(32, 8, 16))
    with pytest.raises(ArgumentError, match=r"^b columns=80: must be a multiple of 48"):
        ops.multiply(p, a, b)


def test_which_keys_are_the_same():
    def key(x):
        return READ[type(x)](x)

    assert key((128, 64, 128)) == key((128, 64, 128)) != key((128, 64, 96))
    assert key([1, 2]) != key((1, 2))
    for other in ((True, 64, 128), (128.0, 64, 128), ((1,), 2), [Placed(1)]):
        with pytest.raises(Unreadable):
            key(other)
