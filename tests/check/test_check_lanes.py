"""The proof knows lanes: one that arrives speaks for the others up to where they last met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exhibits import exhibit
from kernels import FP8

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_stmts
from gemmgen.ir.syncs import is_fence
from gemmgen.pipeline import lower

APART = "by other lanes than the one that says it is over: they have not met since"


def lowered(name: str) -> ir.Kernel:
    e = exhibit(name)
    return lower(e.problem, e.config)


def in_k(change):
    """`change` of the body of each consumer's K loop."""

    def visit(s: ir.Stmt) -> ir.Stmt:
        inside = isinstance(s, ir.ForK) and any(isinstance(x, ir.Mma) for x in s.body)
        return replace(s, body=change(s.body)) if inside else s

    return lambda kernel: map_stmts(kernel, visit)


def scales_last(body):
    """Each lane reads its scales once the products are waited for, just before one lane releases the stage."""
    scales = tuple(s for s in body if isinstance(s, ir.LoadRowScales))
    rest = tuple(s for s in body if s not in scales)
    at = next(i for i, s in enumerate(rest) if isinstance(s, ir.Arrive))
    return (*rest[:at], *scales, *rest[at:])


def meeting_after(kind):
    """The warp meets after each statement of this kind."""
    return in_k(
        lambda body: tuple(
            x for s in body for x in ([s, ir.Sync(of="warp")] if isinstance(s, kind) else [s])
        )
    )


def leader_waits(body):
    return tuple(ir.If(when="leader", body=(s,)) if isinstance(s, ir.Wait) else s for s in body)


def zeroed_after(body):
    """What a product is summed in is cleared between the fence and the product."""
    (dst,) = {s.dst for s in body if isinstance(s, ir.Mma)}
    zero = ir.Zero(dst=dst)
    return tuple(x for s in body for x in ([s, zero] if is_fence(s, "wgmma") else [s]))


def released_behind_the_sum(s):
    """Before the warps of rank 0 meet in the epilogue."""
    if not (isinstance(s, ir.If) and s.when == "finishes"):
        return s
    at = max(i for i, x in enumerate(s.body) if isinstance(x, ir.AddPartials)) + 1
    return replace(s, body=(*s.body[:at], s.body[-1], *s.body[at:-1]))


def test_reads_of_lanes_that_have_not_met():
    kernel = lowered("fp8_block/split_k")
    check(kernel)
    with pytest.raises(ProtocolViolation, match=rf"P2.*smem_partials.*{APART}"):
        check(map_stmts(kernel, released_behind_the_sum))


def test_a_product_makes_lanes_meet():
    kernel = lower(FP8, Config())
    late = in_k(scales_last)(kernel)
    with pytest.raises(ProtocolViolation, match=rf"P2.*smem_scale_a.*{APART}"):
        check(late)
    check(meeting_after(ir.LoadRowScales)(late))


def test_what_the_leader_waits_for_the_other_lanes_do_not_know():
    kernel = in_k(leader_waits)(lower(FP8, Config()))
    with pytest.raises(ProtocolViolation, match=r"P2.*smem_scale_a"):
        check(kernel)


@pytest.mark.parametrize("name", ["fp8_block/base", "dense/k_grouped_bf16"])
def test_a_sum_is_not_cleared_after_the_fence(name):
    with pytest.raises(ProtocolViolation, match=r"P2.*no wgmma\.fence orders the accesses"):
        check(in_k(zeroed_after)(lowered(name)))
