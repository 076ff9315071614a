"""On a Hopper GPU: packed weights of 4 bits become the numbers that they stand for, to the bit: every code with every scale, of INT4 with zeros every 17th."""

from __future__ import annotations

import numpy as np
import pytest
from packed_weights import KINDS, NAMES, drawn, every_scale, wanted

from gemmgen.formats import pack
from gemmgen.unpacking import Unpacking, source

pytestmark = pytest.mark.gpu


def unpacked(packed):
    """What the kernel for it writes: codes of numbers [rows, columns]."""
    import torch

    from gemmgen.runtime.loaded_cast import loaded

    form = packed.format
    kernel = Unpacking(element=form.element, to=packed.to, group=form.group, zeros=form.zeros)
    blocks = torch.from_numpy(np.ascontiguousarray(packed.blocks).reshape(-1)).cuda()
    size = packed.to.bytes * packed.rows * packed.columns
    out = torch.full((size,), 0xCD, dtype=torch.uint8, device="cuda")
    values = {"blocks": blocks.data_ptr(), "numbers": out.data_ptr()}
    values |= {"rows": packed.rows, "columns": packed.columns}
    tiles = kernel.tiles(packed.rows, packed.columns)
    loaded(source, kernel, 0).launch(values, tiles, torch.cuda.current_stream().cuda_stream)
    codes = out.cpu().numpy().view(f"u{packed.to.bytes}")
    return codes.reshape(packed.rows, packed.columns)


@pytest.mark.parametrize(("form", "to"), KINDS, ids=NAMES)
def test_what_was_packed_is_decoded(form, to):
    given = drawn(form, 1000, 32 * 45 if form.group <= 32 else 1408, seed=3)
    packed = pack(given, to)
    assert np.array_equal(unpacked(packed), wanted(given, packed))


OF_32 = [(n, *x) for n, x in zip(NAMES, KINDS, strict=True) if x[0].group <= 32]


@pytest.mark.parametrize(("name", "form", "to"), OF_32, ids=[x[0] for x in OF_32])
def test_every_code_with_every_scale(name, form, to):
    given = every_scale(form, to)
    packed = pack(given, to)
    assert np.array_equal(unpacked(packed), wanted(given, packed))


def test_a_gpu_and_a_cpu_make_the_same_numbers():
    """Of several experts, whose last block of columns is half empty."""
    import torch

    from gemmgen import quant
    from gemmgen.formats import MXFP4

    weights = quant.of(torch.randn(3, 200, 2880).bfloat16(), MXFP4)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        packed = quant.pack(weights, dtype)
        there = packed.to("cuda").numbers()
        assert there.is_cuda and there.shape == (3, 200, 2880) and there.dtype == dtype
        assert torch.equal(there.cpu().view(torch.uint8), packed.numbers().view(torch.uint8))
