"""Rows 87 to 92: CTAs that divide a tile's K, and the exchange of their sums."""

from __future__ import annotations

from dataclasses import replace

from check_museum import without

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.syncs import is_sync

from .mutant import edit
from .rows_depths import unstarted
from .rows_protocol import counted, drop, row, visit

SPLIT = "fp8_block/split_k"
SIZE = "Shared::PARTIALS_STAGE_BYTES"
SLOT = f"(cta_rank - 1) * {SIZE}"
AWAIT = "if (met[0] == 0) ptx::cluster_wait();"
SHARE = "tile.k_blocks = ptx::opaque_int(min(share, tile.k_blocks - first));"


def read_first(s: ir.If) -> ir.If:
    """Rank 0 adds what is there, then waits for it."""
    adds = tuple(x for x in s.body if isinstance(x, ir.AddPartials))
    return replace(s, body=(*adds, *(x for x in s.body if x not in adds)))


def released_first(s: ir.If) -> ir.If:
    gone = tuple(x for x in s.body if isinstance(x, ir.Arrive) and x.to == "others")
    at = next(i for i, x in enumerate(s.body) if isinstance(x, ir.AddPartials))
    rest = tuple(x for x in s.body[at:] if x not in gone)
    return replace(s, body=(*s.body[:at], *gone, *rest))


def released_at_once(source: str) -> str:
    """What was loaded is added after the arrival, as ptxas may order it."""
    release = "if (lane > 0 && lane < CLUSTER_K) ptx::mbarrier_arrive_remote(partials_empty, lane);"
    before, after = source.split(
        "if (threadIdx.x % 128 == 0) {\n                    // Until D's", 1
    )
    assert release in after
    again = "if (threadIdx.x % 128 == 0) {\n                    // Until D's"
    return f"{before}{release} {again}{after.replace(release, '')}"


def released_behind_the_sum(s: ir.If) -> ir.If:
    at = max(i for i, x in enumerate(s.body) if isinstance(x, ir.AddPartials)) + 1
    return replace(s, body=(*s.body[:at], s.body[-1], *s.body[at:-1]))


def everywhere(s: ir.If) -> tuple[ir.Stmt, ...]:
    """The epilogue outside of what rank 0 alone does."""
    at = max(i for i, x in enumerate(s.body) if isinstance(x, ir.AddPartials)) + 1
    released = replace(s, body=(ir.Sync(of="warp"), s.body[-1]))
    return replace(s, body=s.body[:at]), *s.body[at:-1], released


def sent_first(s: ir.ForTiles) -> ir.ForTiles:
    """Ranks send, then wait until the others have begun."""
    (met,) = (x for x in s.body if is_sync(x, "cluster_await"))
    rest = [x for x in s.body if x is not met]
    at = next(i for i, x in enumerate(rest) if is_if(x, "sends")) + 1
    return replace(s, body=(*rest[:at], met, *rest[at:]))


def begun_first(k: ir.Kernel) -> ir.Kernel:
    """A CTA says that it has begun, then makes its barriers."""
    (began,) = (s for s in k.prologue if is_sync(s, "cluster_arrive"))
    return replace(k, prologue=(began, *(s for s in k.prologue if s is not began)))


def unheard(s: ir.If) -> ir.If:
    """Rank 0 announces the others' sums, and neither waits for them nor adds them."""
    kinds = ir.Wait, ir.AddPartials, ir.Arrive
    return replace(s, body=tuple(x for x in s.body if not isinstance(x, kinds)))


def heard_by_none(source: str) -> str:
    before, after = source.split("ptx::mbarrier_wait_cluster(partials_full, turn[0]);", 1)
    return before + after.replace("rank < CLUSTER_K; ++rank", "rank < 1; ++rank")


ROWS = (
    row("87", SPLIT, "senders do not wait until their slot was read", "P",
        ir=visit(ir.Wait, drop, barrier="partials_empty")),
    row("87b", SPLIT, "senders wait for the release of the tile that they send", "P",
        ir=visit(ir.Wait, lambda s: replace(s, flip=0), barrier="partials_empty")),
    row("87c", SPLIT, "senders leave at once", "P",
        ir=lambda k: replace(k, roles=tuple(replace(r, body=tuple(s for s in r.body if not is_if(s, "sends"))) for r in k.roles))),
    row("87d", SPLIT, "rank 0 releases a slot before it reads it", "S", ir=visit(ir.If, released_first, when="finishes")),
    row("87e", SPLIT, "one sender is never released", "E",
        text=edit(("lane < CLUSTER_K) ptx::mbarrier_arrive_remote", "lane < CLUSTER_K - 1) ptx::mbarrier_arrive_remote"))),
    row("87f", SPLIT, "rank 0 releases a slot while it may still be read", "E", text=released_at_once),
    row("87g", SPLIT, "the same, in the IR", "S", ir=visit(ir.If, released_behind_the_sum, when="finishes")),
    row("88", SPLIT, "rank 0 adds before all have sent", "P", ir=visit(ir.Wait, drop, barrier="partials_full")),
    row("88b", SPLIT, "rank 0 adds, then waits", "P", ir=visit(ir.If, read_first, when="finishes")),
    row("88c", SPLIT, "waits see what their own CTA wrote only", "E",
        text=edit(("try_wait.parity.acquire.cluster.", "try_wait.parity."))),
    row("88d", SPLIT, "the parity of a tile's exchange never changes", "P", ir=without(ir.NextTurn)),
    row("89", SPLIT, "the senders' bytes are not announced", "P", ir=visit(ir.ExpectTx, drop, per="tile")),
    row("89b", SPLIT, "16 bytes too few are announced", "P",
        ir=counted(visit(ir.ExpectTx, lambda s: replace(s, tx_bytes=(s.tx_bytes or 0) - 16), per="tile"))),
    row("89c", SPLIT, "sums complete on the barrier of releases", "P",
        ir=visit(ir.SendPartials, lambda s: replace(s, barrier="partials_empty"))),
    row("90", SPLIT, "two ranks send to one slot", "E", text=edit((SLOT, f"(cta_rank - 1) / 2 * {SIZE}"))),
    row("90b", SPLIT, "each rank sends to the slot after its own", "E", text=edit((SLOT, f"cta_rank * {SIZE}"))),
    row("90c", SPLIT, "sums are sent to the next CTA", "E", text=edit(("% 128 * 16, 0);", "% 128 * 16, 1);"))),
    row("90d", SPLIT, "the first slot is read for all", "E", text=edit((f"(rank - 1) * {SIZE}", f"0 * {SIZE}"))),
    row("90e", SPLIT, "the last slot is not read", "E",
        text=edit(("rank < CLUSTER_K; ++rank", "rank < CLUSTER_K - 1; ++rank"))),
    row("91", SPLIT, "each share ends one K block early", "E",
        text=edit((SHARE, "tile.k_blocks = ptx::opaque_int(min(share, tile.k_blocks - first)) - 1;"), count=0)),
    row("91b", SPLIT, "the last rank's share is one K block short", "E",
        text=edit((SHARE, "tile.k_blocks = ptx::opaque_int(min(share, tile.k_blocks - first - 1));"), count=0)),
    row("91c", SPLIT, "shares are rounded down", "E",
        text=edit(("(tile.k_blocks + CLUSTER_K - 1) / CLUSTER_K", "tile.k_blocks / CLUSTER_K"), count=0)),
    row("91d", SPLIT, "the producer loads all K blocks", "P", ir=visit(ir.TakeShare, drop, "producer")),
    row("91e", SPLIT, "every rank loads from K 0", "P", ir=visit(ir.TmaLoad, unstarted)),
    row("91f", SPLIT, "every rank takes the scales of B from K 0", "P",
        ir=visit(ir.LoadBlockScales, lambda s: replace(s, block=s.block.split()[0]))),
    row("91g", SPLIT, "a rank without K blocks sends the sum before", "P", ir=visit(ir.Zero, drop, dst="acc0")),
    row("91h", SPLIT, "no rank waits for the others to begin", "P", ir=visit(ir.Sync, drop, of="cluster_await")),
    row("91i", SPLIT, "the same, in the text", "E", text=edit((AWAIT, ""))),
    row("91j", SPLIT, "ranks send, then wait for the others to begin", "P", ir=visit(ir.ForTiles, sent_first, "consumer")),
    row("91k", SPLIT, "ranks wait for the others to begin at every tile", "E", text=edit(("met[0] = 1;", ""))),
    row("91l", SPLIT, "a CTA says that it has begun before its barriers are there", "P", ir=begun_first),
    row("91m", SPLIT, "no CTA says that it has begun", "P", ir=visit(ir.Sync, drop, of="cluster_arrive")),
    row("91n", SPLIT, "the same, in the text", "E", text=edit(("ptx::cluster_arrive();", ""))),
    row("91o", SPLIT, "rank 0 leaves before the others have sent", "P", ir=visit(ir.If, unheard, when="finishes")),
    row("91p", SPLIT, "the same, in the text", "E", text=heard_by_none),
    row("91q", SPLIT, "a CTA's own threads do not wait for its barriers", "P", ir=visit(ir.Sync, drop, of="cta")),
    row("92", SPLIT, "every rank stores", "P", ir=visit(ir.If, everywhere, when="finishes")),
    row("92b", SPLIT, "rank 1 finishes too", "E", text=edit(("if (cta_rank == 0) {", "if (cta_rank < 2) {"))),
    row("92c", SPLIT, "each CTA takes tiles by itself", "A",
        text=edit(("index(blockIdx.x / (CLUSTER_M * CLUSTER_N * CLUSTER_K))", "index(blockIdx.x)"))),
)  # fmt: skip
