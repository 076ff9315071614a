"""P10 in registers: what is stored is the sum over every K block of its own tile, each with its scales.

One consumer's statements are executed on names instead of numbers: a register array holds which
rows and which K blocks went into it, a place of D in shared memory which piece of which tile. Whether the bytes it read were the right ones is for races.py
and placement.py to say; here a missing, doubled or misplaced statement shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

from ..ir import nodes as ir
from ..ir.blocks import is_if, of_each, of_run
from ..ir.dealing import Part, parts, share
from ..ir.promotion import HELD_BLOCKS, LANES, OF_A, READS, promotes
from ..ir.rewrite import statements
from ..ir.stores import OfD, slot
from .decoding import multiply_decoded, of_codes
from .evaluated_values import of_values
from .finding import Finding
from .fragment_values import load_fragments, multiply_fragments
from .indexed import of_indices
from .instance import Post
from .lane_values import OF_LANES, share_scales
from .paged import of_pages
from .quantised_values import clear, quantise
from .ranked_values import mine, ranked, senders
from .reader import Held, Reader, Sent, of_kernel, place
from .share_values import begins, of_shares
from .squares import of_squares


def values(kernel: ir.Kernel) -> Iterator[Finding]:
    """Every role, over two tiles of one and of three K blocks; if some may have none, with such; if lanes hold
    the scales of some, with more than twice as many; so if K blocks take turns in places. Where CTAs divide K, with as many and one more for each, and
    rank 0 last, for it reads what others sent; so where warpgroups divide K blocks, the first of them last."""
    ranks = kernel.cluster.k
    uneven = ((0, 3), (3, 0)) * (bool(kernel.groups.depths) or kernel.scheduler.windowed)
    several: tuple[tuple[int, ...], ...] = ((3, 3, 3), (0, 1, 0, 1, 1))
    uneven += ((2 * ranks, 2 * ranks + 1),) * (ranks > 1)
    shares = any(isinstance(s, ir.ShareScales) for s in statements(kernel))
    uneven += ((ranks * 2 * LANES + 1, 3),) * shares
    n = kernel.shares  # of one K block, of a last one of less, of several
    uneven += ((n, n + 1), (3 * n, 1)) * (n > 1)
    slots = (s.stages for s in kernel.smem if s.use == "slots")
    uneven += tuple((ranks * (2 * n + 1), ranks * n) for n in slots)
    for role in kernel.roles:
        many = role.slices
        uneven += ((many, 2 * many + 1), (2 * many - 1, many - 1)) * (many > 1)
        if kernel.peers.slot:
            blank = Reader(counts=(), **of_kernel(kernel))
            long = ((1, 2, 2 * LANES + 1),) * shares
            runs = partial(_run_role, role)
            yield from ranked(blank, runs, long, kernel.peers.every)
        if kernel.scheduler.streams:
            yield from _streamed(kernel, role, shares)
            continue
        for counts in ((1, 1), (3, 3), *uneven, *several * kernel.scheduler.windowed):
            sent: Sent = {}
            for rank, worker in product(reversed(range(ranks)), reversed(range(role.slices))):
                reader = Reader(
                    counts=counts,
                    **of_kernel(kernel),
                    rank=rank,
                    ranks=ranks,
                    worker=worker,
                    slices=role.slices,
                    sent=sent,
                )
                _run(reader, role.body)
                yield from reader.found


def _streamed(kernel: ir.Kernel, role: ir.Role, chunks: bool) -> Iterator[Finding]:
    """The same in stretches, each of which reads what those behind it sent: one, some with a tile's middle, and with whole
    tiles between two others' ends."""
    cases = [
        (2, 1, 1),
        (2, 3, 1),
        (2, 3, 5),
        (2, 3, 4),
        (3, 4, 3),
        (5, 2, 3),
        *[(3, 4 * LANES + 1, 5)] * chunks,
    ]
    for tiles, blocks, ctas in cases:
        sent: Sent = {}
        for index in reversed(range(ctas)):
            reader = Reader(
                counts=(blocks,) * tiles,
                **of_kernel(kernel),
                rank=index,
                dealt=tuple(parts(index, ctas, tiles, blocks)),
                sent=sent,
            )
            _run(reader, role.body)
            yield from reader.found


def _run_role(role: ir.Role, r: Reader) -> None:
    _run(r, role.body)


def _run(r: Reader, body: tuple[ir.Stmt, ...]) -> None:
    for s in body:
        match s:
            case ir.ForTiles() if not of_run(s):
                for tile in _tiles(r):
                    r.tile, r.mine, r.part, r.post = tile
                    r.first, r.ends = r.mine.start, None
                    _run(r, s.body if r.begins_run else of_each(s))
            case ir.If(when="inside" | "head"):
                if r.part and is_if(s, "inside") == (r.part.first > 0):
                    _run(r, s.body)
            case ir.If(when="theirs" | "ours"):
                if is_if(s, "theirs") == (r.post is not None and r.post.place >= 0):
                    _run(r, s.body)
            case ir.ForChunks():
                for at in range(0, len(r.mine), s.blocks):
                    r.chunk = r.mine[at : at + s.blocks]
                    _run(r, s.body)
            case ir.ForK():
                for k in _blocks(r, s):
                    r.k = k
                    _run(r, s.body)
            case ir.If(when="after_first"):
                if r.k > r.mine.start:
                    _run(r, s.body)
            case ir.If(when="new_share"):
                if begins(r):
                    _run(r, s.body)
            case ir.If(when="has_blocks" | "no_blocks" | "idle" | "first_slice" | "other_slice"):
                if r.holds(s.when):
                    _run(r, s.body)
            case ir.If(when="sends" | "finishes"):
                if is_if(s, "sends") == (r.rank > 0):
                    _run(r, s.body)
            case (
                ir.If(when="leader" | "cta_leader" | "first_warp" | "whole" | "cut")
                | ir.PerSplit()
                | ir.ForTiles()
            ):
                _run(r, s.body)
            case _:
                _step(r, s)


def _tiles(r: Reader) -> Iterator[tuple[int, range, Part | None, Post | None]]:
    if r.posts:
        for post in r.posts:
            yield post.tile, mine(post, r.rank, r.ranks, r.counts[post.tile]), None, post
    elif r.dealt:
        for part in r.dealt:
            yield part.tile, range(part.first, part.end), part, None
    else:
        for tile, blocks in enumerate(r.counts):
            yield tile, range(r.worker, blocks, r.slices), None, None


def _blocks(r: Reader, s: ir.ForK) -> Iterable[int]:
    """Where warpgroups divide K blocks, a loop over all of them is another."""
    if s.of == "chunk":
        return r.chunk
    if s.of == "only":
        return r.mine or range(1)
    return range(r.counts[r.tile]) if r.slices > 1 and s.of == "tile" else r.mine


def _step(r: Reader, s: Any) -> None:
    match s:
        case ir.Zero(of="total") | ir.TakeShare(of="first" | "next") | ir.Copy(by="adding"):
            of_shares(r, s)
        case ir.Zero():
            (clear if s.dst in r.maxima else Reader.zero)(r, s.dst)
        case ir.LoadRowScales():
            r.registers[s.dst] = r.now("row scales", s.wave)
        case ir.LoadColumnScales():
            r.registers[s.dst] = r.now("column scales", part=s.part)
        case ir.LoadBlockScales():
            k = r.mine.start if s.block.startswith("first") else r.chunk.start + r.ahead
            # "first" and "next" themselves count from the tile's first K block, wherever this CTA's is; a rank's own is one.
            k -= 0 if s.block.endswith("of group") or r.post else r.mine.start
            has = HELD_BLOCKS if s.of in OF_A else min(LANES, r.ahead)
            wave = s.wave if s.of == "rows" else None
            ks = tuple(range(k, k + has))
            r.registers[s.dst] = Held(what=OF_LANES[s.of], tile=r.tile, wave=wave, ks=ks)
        case ir.ShareScales():
            share_scales(r, s)
        case ir.Copy():
            r.registers[s.dst] = r.registers.get(s.src, Held(what="rubbish", tile=r.tile))
        case ir.ReadCodes() | ir.Decode():
            of_codes(r, s)
        case ir.MmaDecoded():
            multiply_decoded(r, s)
        case ir.Mma():
            _multiply(r, s)
        case ir.LoadIndices() | ir.CopyRows():
            of_indices(r, s)
        case ir.LoadPages() | ir.TmaLoad():
            of_pages(r, s)
        case ir.SumSquares() | ir.AddSquares():
            of_squares(r, s)
        case ir.LoadFragments():
            load_fragments(r, s)
        case ir.MultiplyFragments():
            multiply_fragments(r, s)
        case ir.Accumulate() | ir.Promote():
            _promote(r, s)
        case ir.Evaluate() | ir.StoreValues():
            of_values(r, s)
        case ir.RowAmax() | ir.ShareAmax() | ir.TakeAmax() | ir.Normalise() | ir.StoreScales():
            quantise(r, s)
        case ir.TakeShare():
            r.mine = share(r.counts[r.tile], r.rank, r.ranks)
            r.first = r.mine.start
        case ir.SendPartials():
            _send(r, s)
        case ir.AddPartials():
            _take(r, s)
        case ir.StageTile():
            if r.staged == "sum":
                r.want_sum(s, s.src, s.wave)
            else:
                r.want(s, s.src, r.whole(r.staged, s.wave))
            r.registers[_slot(s)] = _piece(r, s)
        case ir.TmaStore() | ir.StoreRows() | ir.StoreTail():
            r.want(s, _slot(s), _piece(r, s))


def _slot(s: OfD) -> str:
    """A place in shared memory is followed as an array of registers is."""
    return f"slot {slot(s)} of {s.smem}"


def _piece(r: Reader, s: OfD) -> Held:
    return r.whole(f"columns {s.column} on", s.wave)


def _multiply(r: Reader, s: ir.Mma) -> None:
    if s.fresh == "block":
        r.registers[s.dst] = r.now("product", s.wave, s.part)
        return
    if r.k == r.mine.start and s.fresh == "tile":
        r.registers[s.dst] = Held(what="sum", tile=r.tile, wave=s.wave)
    r.add(s, s.dst, s.wave)


def _send(r: Reader, s: ir.SendPartials) -> None:
    r.want_sum(s, s.src, s.wave, r.mine)
    for part in range(r.parts):
        r.sent[r.tile, r.rank or r.worker, s.wave, part] = r.registers.get(place(s.src, part))


def _take(r: Reader, s: ir.AddPartials) -> None:
    r.want_sum(s, s.dst, s.wave, range(0) if s.through == "every_rank" else r.mine)
    for part in range(r.parts):
        _add(r, s, part)


def _add(r: Reader, s: ir.AddPartials, part: int) -> None:
    """In order of rank, or of warpgroup, which here is that of the K blocks."""
    name = place(s.dst, part)
    others: Iterable[int] = range(1, max(r.ranks, r.slices))
    if r.part:
        others = range(r.rank + 1, r.rank + 1 + r.part.others)
    if s.through == "every_rank":
        others = range(r.ranks)  # its own among them
    elif r.post:
        others = senders(r.post, r.ranks)
    sent = (r.sent.get((r.tile, i, s.wave, part)) for i in others)
    found = [r.registers.get(name), *sent]
    ks = tuple(k for held in found if held for k in held.ks)
    alike = all(
        held and (held.what, held.tile, held.part) == (r.total, r.tile, part) for held in found
    )
    what = r.total if alike else "part of the sum"
    r.registers[name] = Held(what=what, tile=r.tile, wave=s.wave if ks else None, ks=ks, part=part)


def _promote(r: Reader, s: ir.Accumulate | ir.Promote) -> None:
    reads = READS[s.by] if isinstance(s, ir.Promote) else ()
    held = r.registers.get(s.src)
    wave = held.wave if held else None
    if promotes(s, "wave"):
        wave = s.wave
    scales = {
        "row_scales": r.now("row scales", wave),
        "column_scales": r.now("column scales", part=s.part),
        "block_scales": r.now("block scales"),
    }
    r.want(s, s.src, r.now("product", wave, s.part))
    for name in reads:
        r.want(s, getattr(s, name), scales[name])
    r.add(s, s.dst, wave, s.part)
