"""Sums of a batch of torch tensors, through `gemmgen.ops` and DeepGEMM's name: the kernels that are chosen, run by the emulator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, checked, emulated, real_torch  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.compat.deep_gemm import operands  # noqa: E402

pytestmark = pytest.mark.nvrtc


def integers(*shape):
    return torch.randint(-2, 3, shape).float()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32), ids=str)
@pytest.mark.parametrize("added", ("nothing", "c", "d"))
@pytest.mark.parametrize("batch", (1, 21))
def test_einsum(batch, added, dtype, monkeypatch):
    """K has a tail; b is a permuted view of padded rows."""
    m, n, k = 40, 72, 72
    a, wide = integers(batch, m, k).bfloat16(), integers(n, batch, 80).bfloat16()
    b = wide[:, :, :k].transpose(0, 1)
    d, other = integers(m, n).to(dtype), integers(m, n).to(dtype)
    c = {"nothing": None, "c": other, "d": d}[added]
    want = torch.einsum("bmk,bnk->mn", a.double(), b.double())
    want += 0 if c is None else c.double()
    memory = Memory(a, wide, d, other)
    emulated(monkeypatch, memory)
    monkeypatch.setattr(operands, "check_tensor", checked)
    with memory:
        assert deep_gemm.einsum("bmk,bnk->mn", a, b, d, c) is None
    assert torch.equal(d, want.to(dtype))


@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
def test_the_chosen_kernel(layout, monkeypatch):
    groups, m, n, k = 33, 24, 40, 72
    x, y = integers(groups, m, k).half(), integers(groups, n, k).half()
    a = x.mT.contiguous() if layout[0] == "t" else x
    b = y.mT.contiguous() if layout[1] == "n" else y
    memory = Memory(a, b)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.summed_gemm(a, b, layout=layout)
    assert torch.equal(got, (x.double() @ y.double().mT).sum(0).half())
