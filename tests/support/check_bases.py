"""Small kernels and instances whose every interleaving the oracle can visit."""

from __future__ import annotations

from dataclasses import dataclass

from kernels import DENSE, DENSE_TN, FP8

from gemmgen.check import Instance, ProtocolViolation
from gemmgen.check.ops import Program
from gemmgen.check.prove import prove
from gemmgen.check.unroll import PAIR, Split, unroller
from gemmgen.config import Config
from gemmgen.ir.nodes import Kernel
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

WHOLE = ((0, 1, 2, 3),)  # a warpgroup as one agent: what two CTAs can afford


@dataclass(frozen=True)
class Base:
    problem: Problem
    config: dict
    k_blocks: int
    tiles: int
    split: Split = PAIR

    @property
    def kernel(self) -> Kernel:
        small = {"block_m": 64, "block_n": 64, "stages": 2, "consumers": 1}
        return lower(self.problem, Config(**{**small, **self.config}))

    def program(self, kernel: Kernel | None = None) -> Program:
        instance = Instance(k_blocks=self.k_blocks, tiles=self.tiles)
        return unroller(kernel or self.kernel, self.split).program(instance)


PING_PONG = {"consumers": 2, "ping_pong": True}

BASES = {
    "dense": Base(DENSE, {}, 3, 2),
    "dense-in-flight": Base(DENSE, {"in_flight": 1}, 3, 2),
    "dense-short-k": Base(DENSE, {}, 1, 3),
    "dense-padded": Base(DENSE, {"swizzle_d": 0}, 2, 2),
    "dense-waves": Base(DENSE, {"block_m": 128}, 2, 2),
    "dense-two-consumers": Base(DENSE, {"block_m": 128, "consumers": 2}, 3, 1, WHOLE),
    "dense-ping-pong": Base(DENSE, PING_PONG, 2, 3, WHOLE),
    "dense-ping-pong-short-k": Base(DENSE, PING_PONG | {"in_flight": 1}, 1, 4, WHOLE),
    "fp8-ping-pong-one-stage": Base(FP8, PING_PONG | {"stages": 1}, 1, 3, WHOLE),
    "dense-tn": Base(DENSE_TN, {}, 3, 2),
    "dense-swap": Base(DENSE, {"swap_ab": True, "block_m": 16, "block_n": 128}, 2, 2),
    "dense-swap-padded": Base(DENSE, {"swap_ab": True, "block_m": 40, "swizzle_d": 0}, 2, 2),
    "fp8-swap": Base(FP8, {"swap_ab": True, "block_m": 8}, 3, 1),
    "fp8": Base(FP8, {}, 3, 1),
    "fp8-tiles": Base(FP8, {}, 1, 2),
    "cluster": Base(DENSE, {"multicast": "a"}, 1, 1, WHOLE),
    "cluster-tn": Base(DENSE_TN, {"multicast": "b"}, 1, 1, WHOLE),
    "cluster-one-stage": Base(DENSE, {"multicast": "b", "stages": 1}, 2, 1, WHOLE),
}


def verdict(program: Program) -> ProtocolViolation | None:
    """What the prover says of one instance."""
    try:
        prove(program)
    except ProtocolViolation as violation:
        return violation
    return None
