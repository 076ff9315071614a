"""What kernels are tried at whose operands go straight into registers, however those wait on their way."""

from __future__ import annotations

from dataclasses import replace

from emulated import judged
from grouped import layout, problem
from kernels import DENSE, DENSE_F16, DENSE_F32, FP8

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import E5M2

PLAIN = replace(FP8, family="fp8")
MIXED = replace(PLAIN, a=E5M2)
GROUPED = ("batched", "masked", "rows", "ends")
# Of a problem, changes of a config.
WAYS = (
    (DENSE_F16, {"block_m": 16}),
    (DENSE_F32, {"block_m": 24, "block_k_bytes": 64}),
    (DENSE, {"split_k": 2}),
    (DENSE, {"split_k": 8, "block_m": 16, "watchdog": True}),
    (replace(DENSE, epilogue=EPILOGUES["bias_relu"]), {}),
    (replace(DENSE_F32, accumulate=True), {}),
    (PLAIN, {}),
    (PLAIN, {"block_m": 32, "stages": 1}),
    (MIXED, {"block_m": 16, "split_k": 4}),
    (replace(PLAIN, family="dense"), {}),
    (FP8, {"lane_scales": True}),
)


def in_one_way(p, config):
    """Six K blocks, or two for a CTA where eight divide them."""
    assert judged(p, config, (19, 100, 1056 // p.a.bytes), pad=1, sms=2).exact


def in_groups(of, grouping, config):
    """Groups without rows; whose last tile reaches past their end. config: of the changes that it takes."""
    p = problem(of, grouping, 64)
    shape, sizes = (40 if grouping == "batched" else 128, 70, 400), (40, 0, 12)
    c = config(block_m=16, lane_scales=of == "fp8_block")
    assert judged(p, c, shape, layout(p, shape, sizes), pad=1, sms=2).exact
