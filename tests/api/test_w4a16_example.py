"""examples/w4a16.py: on the CPU with float64 in the kernels' place, and what it says without a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from example_runs import example_fixture, without_a_gpu  # noqa: E402, F401
from roundings import of_length  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

NAME = "w4a16.py"


# What torch rounds. Of an MLP three matrices, gate, up, what is activated, its product with up, the result. Of experts gate, 1.702 of it,
# its sigmoid, its product with that, up, up + 1, their product, the result, a share, its product with the result, the sum.
MLP, EXPERTS = 8, 11


@pytest.mark.parametrize(
    ("block", "dtype", "roundings"),
    (("mlps", torch.float16, MLP), ("mixtures", torch.bfloat16, EXPERTS)),
)
def test_the_layers_are_as_near_as_their_dtypes(example, block, dtype, roundings, capsys):
    """Kernels round no more often than torch; 1.2 of its error is more than chance makes of as many roundings."""
    found = example.show(example.SMALL, getattr(example, block), "cpu", True, dtype)
    plain, mine = found.values()
    assert 0 < mine < 1.2 * plain < of_length(dtype, roundings)
    out = capsys.readouterr().out
    assert ("int4_128_f16_zeros" if block == "mlps" else "e2m1_32_e8m0") in out


def test_words_are_those_of_awq(example):
    """Of outputs 0 to 7, as AutoAWQ's own packing has them: 0x75316420 from the low bits up 0, 2, 4, 6, 1, 3, 5, 7."""
    words = example.awq_words(torch.arange(8).view(1, 8))
    assert words.tolist() == [[0x75316420]]


def test_without_a_gpu_it_says_so():
    out = without_a_gpu(NAME)
    assert "torch, bfloat16" in out and "gemmgen, 4 bits" not in out
