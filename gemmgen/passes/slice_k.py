"""Where asked, sliced-K: let the consumer warpgroups divide a tile's K blocks, and the first of them finish it."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    AddPartials,
    Arrive,
    ForK,
    If,
    Kernel,
    ReadCodes,
    RejoinRing,
    Role,
    SendPartials,
    Stmt,
    SumSquares,
    Sync,
    TileBody,
    Zero,
)
from ..ir.promotion import PROMOTION
from ..ir.rewrite import map_body, map_role, statements
from ..ir.stmts import releases
from ..ir.syncs import is_sync
from ..target import Target
from .add_shares import RANKS
from .split_k import SMEM, buffer, waves

SLICE_CONSUMERS = Rule(
    id="slice-consumers",
    says="slice_k needs two to four consumers, and four consumers need slice_k or packed weights, not ping_pong",
    because="One warpgroup has nobody to divide K blocks with. Four that take turns, or share out rows of operands as they are, were not measured: "
    "what they need of registers is not known.",
)
SLICE_ALONE = Rule(
    id="slice-alone",
    says="slice_k needs CTAs that sum all of a tile's K, from a ring, of one tile at a time: ping_pong false, split_k 1, stream false, direct "
    "false, shares 1, no groups that split K, no collective",
    because="The warpgroups divide the K blocks of the tile that the CTA has, and hand over their sums once for each tile.",
)
SLICE_SUMS = Rule(
    id="slice-sums",
    says="slice_k needs sums that stay in the tensor core, or of packed weights, and none of squares of A's rows",
    because="What a promoting warpgroup does between two K blocks is hidden by others that share its tile; scales of numbers, and squares, of a slice were not tried.",
)
SLICE_RING = Rule(
    id="slice-ring",
    says="with slice_k stages must be a multiple of consumers, and with in_flight=1 of more than one stage for each",
    because="Then within a tile each stage is one warpgroup's. A barrier tells phases by their parity: who comes to another's stage may "
    "find it one phase behind, and take the one before that for its own. A warpgroup that still holds one stage needs another.",
)
RULES = (SLICE_CONSUMERS, SLICE_ALONE, SLICE_SUMS, SLICE_RING)

MOST, MOST_DECODING = 3, 4  # consumers that do not divide K blocks
MEETING = 2  # named barrier; 0 is __syncthreads, 1 the epilogue's


def slice_k(kernel: Kernel, target: Target, slice_k: bool) -> Kernel:
    """With `slice_k`, give each consumer warpgroup every so-many-th K block of the tile, with sums of its own; then all but the first write
    theirs to shared memory, and the first adds them up in order and goes on to the epilogue. Sets ForK.of and Arrive.lag; inserts what
    clears the sums of who has no K blocks, what
    exchanges and where they meet, twice: when sums are there, and when they were read; and a buffer."""
    _check_consumers(kernel, slice_k)
    if not slice_k:
        return kernel
    _check(kernel)
    sums = waves(kernel)
    partials = buffer(kernel, sums, kernel.consumer.slices - 1)
    kernel = replace(kernel, smem=(*kernel.smem, partials))
    return map_role(kernel, "consumer", lambda r: _sliced(r, sums))


def _check_consumers(kernel: Kernel, slice_k: bool) -> None:
    role = kernel.consumer
    count, decodes = role.count, any(isinstance(x, ReadCodes) for x in statements(kernel))
    most = MOST_DECODING if decodes and role.turns == 1 else MOST
    if count == 1 if slice_k else count > most:
        values = {"slice_k": slice_k, "consumers": count, "ping_pong": role.turns > 1}
        fix = "Use slice_k=false, or more consumers." if slice_k else "Use slice_k=true."
        raise IllegalConfig(SLICE_CONSUMERS, values, fix)


def _check(kernel: Kernel) -> None:
    role, s = kernel.consumer, kernel.scheduler
    values = {
        "ping_pong": role.turns > 1,
        "split_k": kernel.cluster.k,
        "stream": s.streams,
        "direct": not kernel.ring,
        "shares": kernel.shares,
        "scheduler": s.name,
    }
    plain = tuple(values.values())[:-1] == (False, 1, False, False, 1)
    if not plain or kernel.groups.depths or s.name in RANKS:
        raise IllegalConfig(SLICE_ALONE, values, "Use slice_k=false.")
    found = [*statements(kernel)]
    packed = any(isinstance(x, ReadCodes) for x in found)
    if not packed and any(isinstance(x, PROMOTION) for x in found):
        raise IllegalConfig(SLICE_SUMS, {"slice_k": True, "promotes": True}, "Use slice_k=false.")
    if any(isinstance(x, SumSquares) for x in found):
        raise IllegalConfig(SLICE_SUMS, {"slice_k": True, "squares": True}, "Use slice_k=false.")
    lag = max((x.lag for x in found if releases(x)), default=0)
    each, left = divmod(kernel.stages, role.slices)
    if left or each <= lag:
        ring = {"stages": kernel.stages, "consumers": role.slices, "in_flight": lag}
        least = role.slices * max(each, 1 + lag)
        raise IllegalConfig(SLICE_RING, ring, f"Use stages={least}, for one.")


def _sliced(role: Role, sums: dict[str, int]) -> Role:
    meet = Sync(of="consumers", first_id=MEETING, warpgroups=role.slices)
    send = tuple(SendPartials(src=a, smem=SMEM, wave=w, through="cta") for a, w in sums.items())
    add = tuple(AddPartials(dst=a, smem=SMEM, wave=w, through="cta") for a, w in sums.items())
    exchange = (
        If(when="other_slice", body=send),
        meet,
        If(when="first_slice", body=add),
        meet,  # before the next tile's sums are written where these were read
    )

    # Behind the loop: a sum that begins with zeros would be cleared between the fence and the wgmma of an unrolled loop's first copy.
    clear = If(when="idle", body=tuple(Zero(dst=a) for a in sums))

    def visit(s: Stmt) -> Stmt:
        match s:
            case ForK(of="tile"):
                return replace(s, of="slice")
            case Arrive(lag=1) if releases(s):
                return replace(s, lag=role.slices)
            case Sync() if is_sync(s, "warpgroup"):
                return replace(s, warpgroups=1)
            case TileBody():
                cleared = any(isinstance(x, Zero) for x in s.setup)
                epilogue = (*exchange, If(when="first_slice", body=s.epilogue))
                drain = (If(when="has_blocks", body=(x,)) if releases(x) else x for x in s.drain)
                return replace(
                    s, drain=(*drain, *(clear,) * (not cleared), RejoinRing()), epilogue=epilogue
                )
        return s

    return replace(role, body=map_body(role.body, visit))
