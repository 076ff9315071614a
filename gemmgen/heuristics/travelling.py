"""The config of a GEMM whose sums travel between GPUs, of that of the GEMM without that.

What multiplies best alone does so here: of two H100s, at four shapes of BF16 the plain GEMM's config, with an outbox or without, was quicker than what the
model chose of all (docs/adr/0058-outbox.md)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..config import Config
from ..cost import cost
from ..errors import GemmgenError
from ..pipeline import lower
from ..problem import Problem, Shape
from ..target import Target

FULL = (
    9 / 8
)  # of a rank's rows, those that tiles, and CTAs of a cluster beside each other, have at most


def with_sums(
    problem: Problem,
    plain: Config,
    shape: Shape,
    ranks: int,
    target: Target,
    unbuilt: Collection[Config],
) -> Config | None:
    """`plain`, with an outbox or without, whichever the model likes better; None if neither is legal, or its tiles reach far past
    a rank's rows. shape: of one rank."""
    priced = []
    for c in (replace(plain, outbox=x) for x in (False, True)):
        try:
            kernel = lower(problem, c, target)
        except GemmgenError:
            continue
        rows = kernel.block.m * kernel.cluster.m
        if -(-shape[0] // rows) * rows > FULL * shape[0]:
            return None
        if c not in unbuilt:
            priced.append((cost(problem, c, shape, target, ranks).seconds, c.outbox, c))
    return min(priced)[2] if priced else None
