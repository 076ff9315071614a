"""Operands that candidates are timed with: of their job's shapes, packed weights among them, and drawn whole."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.bench.tuning.jobs import Job
from gemmgen.bench.tuning.operands import draw, draw_codes, one_column
from gemmgen.heuristics import choose
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.bind import bind
from gemmgen.target import H200
from gemmgen.verification.trial import pitches

SHAPE = (16, 200, 1000)
CODED = {
    "int4": Problem(family="w4a16", a="bf16", b="bf16", d="bf16", weights="int4_128_bf16"),
    "int4, zeros": Problem(family="w4a16", a="f16", b="f16", d="f16", weights="int4_32_f16_zeros"),
    "mxfp4": Problem(family="w4a16", a="bf16", b="bf16", d="bf16", weights="e2m1_32_e8m0"),
    "nvfp4": Problem(family="w4a16", a="bf16", b="bf16", d="bf16", weights="e2m1_16_e4m3"),
    "int8 weights": Problem(
        family="w8a16", a="bf16", b="bf16", d="bf16", weights="int8_column_f32"
    ),
    "mxfp4 by fp8": Problem(family="w4a8", a="e4m3", b="e4m3", d="bf16", weights="e2m1_32_e8m0"),
    "masked": Problem(
        family="w4a16", a="bf16", b="bf16", d="bf16", weights="e2m1_32_e8m0", grouping="masked"
    ),
}
PLAIN = {
    "dense": Problem(family="dense", a="bf16", b="bf16", d="bf16"),
    "fp8_block": Problem(family="fp8_block", a="e4m3", b="e4m3", d="bf16"),
}


def job(p):
    return Job(problem=p, shape=SHAPE, groups=3 if p.grouping == "masked" else 1)


@pytest.mark.parametrize("name", CODED | PLAIN)
def test_shapes(name):
    p = (CODED | PLAIN)[name]
    found, (_, n, k) = one_column(job(p)), SHAPE
    lead = (3,) * (p.grouping == "masked")
    assert found.shape[1:] == (n, k)
    if p.form:
        assert found.blocks.shape == (*lead, -(-n // 64), -(-k // 128), p.form.block_bytes)
        first = found.blocks[..., :1, :]
        assert (found.blocks == first).all() and len(np.unique(first)) > 100
    else:
        assert found.blocks is None and found.b.shape == (n, k)


@pytest.mark.parametrize("name", CODED | PLAIN)
def test_what_is_drawn_in_memory(name):
    """All of A, and of packed weights every code, whose records stay; of others all of B."""
    torch = pytest.importorskip("torch")
    from gemmgen.runtime.gpu import Uploaded

    p = (CODED | PLAIN)[name]
    host, tensors = one_column(job(p)), {}

    def place(parent):
        made = torch.from_numpy(parent.copy())
        tensors[made.data_ptr()] = made
        return made.data_ptr()

    kernel = lower(p, choose(p, SHAPE, H200, len(host.a) if host.a.ndim > 2 else 1))
    bound = bind(host, pitches(kernel, SHAPE), 64, place, 128)
    on = Uploaded(bound=bound, shape=SHAPE, groups=1, tensors=tensors, where="cpu")
    before = {n: tensors[bound.matrices[n].pointer].clone() for n in "ab"}
    draw(on, "a", p.a)
    if p.form:
        draw_codes(on, p.form)
    else:
        draw(on, "b", p.b)
    a, b = (tensors[bound.matrices[n].pointer].view(torch.uint8).view(-1) for n in "ab")
    assert (a != before["a"].view(torch.uint8).view(-1)).float().mean() > 0.8
    if not p.form:
        assert (b != before["b"].view(torch.uint8).view(-1)).float().mean() > 0.8
        return
    assert b.numel() == host.blocks.size
    now, then = (
        x.view(-1, p.form.block_bytes) for x in (b, before["b"].view(torch.uint8).view(-1))
    )
    codes = p.form.codes_bytes
    assert torch.equal(now[:, codes:], then[:, codes:])
    assert (now[:, :codes] != then[:, :codes]).float().mean() > 0.9
