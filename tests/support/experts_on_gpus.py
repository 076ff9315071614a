"""Experts that GPUs divide, a process for each, against the same experts on one."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import parallelize_module

from gemmgen import formats, nn, quant
from gemmgen.nn.parallel import ExpertParallel

EXPERTS, HIDDEN, INNER, TOKENS, TOP = 16, 1024, 512, 96, 4  # tokens of a rank
BF16 = torch.bfloat16
FROZEN = ("fp8", "mxfp4", "mxfp4 by fp8")
TRAINED = ("bf16 that trains", "fp8 that trains")
# Of the length of what one GPU computes, whose configs are of other numbers of rows; of gradients in FP8, which are quantised after they travelled, where
# one GPU quantises what never was rounded: a code is up to 2^-4 of its number away, in the mean 2^-4 / sqrt(3), and the two are off alike: 0.82 of 2^-4.
CLOSE, CODES = 2.0**-6, 2.0**-4
PATIENCE = 240  # seconds


def drawn(kind):
    first, second = (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
    if kind in TRAINED:
        made = nn.Experts(EXPERTS, HIDDEN, INNER, kind=kind.split()[0]).cuda()
        with torch.no_grad():
            for w in made.parameters():
                w.normal_(std=w.shape[-1] ** -0.5)
        return made
    w1, w2 = (torch.randn(s) * s[-1] ** -0.5 for s in (first, second))
    if kind == "fp8":
        made = nn.GroupedExperts(EXPERTS, HIDDEN, INNER)
        made.put_projections(w1[:, :INNER], w1[:, INNER:], w2)
        return made.cuda()
    to = torch.float8_e4m3fn if "fp8" in kind else BF16
    packed = [quant.pack(quant.of(w, formats.MXFP4), to) for w in (w1, w2)]
    return nn.Experts4bit.from_packed(*packed, order="alternating").cuda()


def near(name, found, want, bound=CLOSE):
    off, size = (found.double() - want.double()).norm(), want.double().norm()
    assert found.shape == want.shape and off <= bound * size, (name, float(off / size))


def run(rank, ranks, store, kind):
    """What a process does. Raises AssertionError."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{store}", rank=rank, world_size=ranks)
    try:
        torch.manual_seed(0)
        one = drawn(kind)
        many = copy.deepcopy(one)
        mesh = dist.device_mesh.init_device_mesh("cuda", (ranks,))
        parallelize_module(many, mesh, ExpertParallel())
        for tokens in (TOKENS, 1):
            bound = CODES if "fp8" in kind else CLOSE
            check(one, many, rank, ranks, tokens, bound, kind in TRAINED)
    finally:
        dist.destroy_process_group()


def check(one, many, rank, ranks, tokens, bound, trains):
    x = torch.randn(ranks * tokens, HIDDEN).to("cuda", BF16)
    chosen = torch.rand(ranks * tokens, EXPERTS).argsort(1)[:, :TOP].cuda()
    chosen[::5, 1] = -1
    weights = torch.rand(chosen.shape, device="cuda")
    whole = [x, chosen, weights]
    mine = [t.chunk(ranks)[rank].clone() for t in whole]
    leaves = [t.requires_grad_() for of in (whole, mine) for t in (of[0], of[2])] if trains else []
    y, want = many(*mine), one(*whole)
    near("y", y, want.chunk(ranks)[rank])
    assert torch.equal(many(*mine), y), "the same bits each time"
    if not trains:
        return
    dy = torch.randn(want.shape, device="cuda").to(BF16)
    want.backward(dy)
    y.backward(dy.chunk(ranks)[rank])
    of_x, of_weights, mine_x, mine_weights = (t.grad for t in leaves)
    near("x", mine_x, of_x.chunk(ranks)[rank], bound)
    near("weights", mine_weights, of_weights.chunk(ranks)[rank], bound)
    for name in ("gate_up", "down"):
        found, exact = getattr(many, name).grad.to_local(), getattr(one, name).grad
        near(name, found, exact.chunk(ranks)[rank], bound)
    one.zero_grad(set_to_none=True)
    many.zero_grad(set_to_none=True)
