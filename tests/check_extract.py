"""Two views of a kernel's synchronisation that must be the same: from the emitted text, and from the IR.

The text is read with regular expressions that know the PTX layer's function names and nothing of
templates or of emit.py. Both views are lists of (enclosing blocks, what happens), in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemmgen.emit import VERBS
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import BLOCKS

Event = tuple[tuple[str, ...], tuple[object, ...]]

# ---- from the text ---------------------------------------------------------------------------------

OPENS = (
    (r"for \(Tile tile; scheduler\.next\(tile\);\) \{", "tiles"),
    (r"for \(int chunk = 0; chunk < tile\.k_blocks; chunk \+= (\d+)\) \{", "chunks of {}"),
    (r"for \(int others = worker; scheduler\.next\(tile\); --others\) \{", "turns"),
    (r"if \(others > 0\) \{  // another's", "another's turn"),
    (
        r"for \(int split = (\d+); split <= 128; split \+= \1\) if \(split == 128 - tile\.b_row % 128\) \{",
        "copies per {}",
    ),
    (r"for \(int k = 0; k < tile\.k_blocks; \+\+k, ring\.advance\(\)\) \{", "k"),
    (r"for \(int k = chunk; k < chunk_end; \+\+k, ring\.advance\(\)\) \{", "k of chunk"),
    (r"if \(k != 0\) \{", "after first"),
    (
        r"if \(tile\.d_row \+ \((\d+) \+ warpgroup\) \* 64 \+ 64 (<=|>) tile\.d_end\) \{",
        "rows {} {}",
    ),
    (r"if \(tile\.d_row \+ (\d+) (<=|>) tile\.d_end\) \{", "rows {} {}"),
    (r"if \(warp == 0\) \{", "first warp"),
    (r"if \(tile\.opens_group\) \{", "new group"),
    (r"if \(tile\.k_blocks != 0\) \{", "if blocks"),
    (r"if \(cta_rank != 0\) \{", "if sends"),
    (r"if \(cta_rank == 0\) \{", "if finishes"),
    (r"if \(threadIdx\.x == 0\) \{", "cta leader"),
    (r"if \(threadIdx\.x % 128 == 0\) \{", "leader"),
    (r"(?:\} else )?if \((warpgroup|worker) < (\d+)\) \{  // \w+", "role {} {}"),
)
PHASES = {"ring.phase": 0, "ring.phase ^ 1": 1}
STAGES = {"ring.stage": 0, "ring.previous()": 1}
BAR = r"(\w+) \+ 8 \* "
MAP = r"(&\w+|group_maps \+ tile\.slot \* \d+ \+ \d+)"


def from_text(source: str) -> list[Event]:
    """Every synchronising or asynchronous instruction of the kernel's body, with its blocks."""
    text = source[source.index('extern "C"') :]
    out: list[Event] = []
    blocks: list[str] = []
    for line in joined(text):
        opened = next((f for p, f in ((re.match(p, line), f) for p, f in OPENS) if p), None)
        closing = line.startswith("}")
        if closing and blocks:
            blocks.pop()
        if opened:
            found = next(m for p, _ in OPENS if (m := re.match(p, line)))
            blocks.append(opened.format(*found.groups()))
        elif re.search(r"\{(\s*//.*)?$", line):
            blocks.append("")
        out += [(tuple(b for b in blocks if b), event) for event in events(line)]
    return out


def joined(text: str) -> Iterator[str]:
    """Statements on one line each: a call that goes on after a comma is one line."""
    held = ""
    for raw in text.splitlines():
        line = raw.strip()
        held = f"{held} {line}" if held else line
        headed = line.endswith(")") and line.startswith(("if (tile.d_col", "for (int split"))
        if not (line.endswith(",") or headed):
            yield held
            held = ""


def events(line: str) -> Iterator[tuple[object, ...]]:
    for pattern, make in PATTERNS:
        if found := re.search(pattern, line):
            yield make(*found.groups())
            return


PATTERNS = (
    (
        r"for \(int i = 0; i < STAGES; \+\+i\) ptx::mbarrier_init\(" + BAR + r"i, (\d+)\);",
        lambda bar, n: ("init", bar, int(n)),
    ),
    (
        r"for \(int i = 0; i < (\d+); \+\+i\) ptx::mbarrier_init\(" + BAR + r"i, (\d+)\);",
        lambda each, bar, n: ("init each", int(each), bar, int(n)),
    ),
    (
        r"^ptx::mbarrier_wait\(" + BAR + r"worker, (\w+)\[0\] \^ \(worker == 0\)\);",
        lambda bar, turn: ("wait for turn", bar, turn),
    ),
    (
        r"if \(lane == 0\) ptx::mbarrier_arrive\(" + BAR + r"\(\(worker \+ 1\) % (\d+)\)\);",
        lambda bar, workers: ("pass turn", bar, int(workers)),
    ),
    (r"^others = (\d+);", lambda workers: ("others", int(workers))),
    (
        r"^ring\.phase \^= \(ring\.stage \+ tile\.k_blocks\) / STAGES & 1;",
        lambda: ("pass over phases",),
    ),
    (
        r"^ring\.stage = \(ring\.stage \+ tile\.k_blocks\) % STAGES;",
        lambda: ("pass over stages",),
    ),
    (r"^continue;", lambda: ("continue",)),
    (
        r"^(?:const int|constexpr int) (warpgroup|worker) = (.*?);",
        lambda name, of: ("index", name, of),
    ),
    (
        r"^const uint32_t (\w+) = smem_base \+ (\d+) \+ worker \* (\d+);",
        lambda smem, at, size: ("own", smem, int(at), int(size)),
    ),
    (
        r"const int share = \(tile\.k_blocks \+ CLUSTER_K - 1\) / CLUSTER_K, first = min\(cta_rank \* share, tile\.k_blocks\);",
        lambda: ("share",),
    ),
    (
        r"ptx::mbarrier_wait_cluster\((\w+), (\w+)\[0\]( \^ 1)?\);",
        lambda bar, turn, flip: ("wait turn", bar, turn, int(bool(flip))),
    ),
    (r"^(\w+)\[0\] \^= 1;", lambda turn: ("next turn", turn)),
    (
        r"ptx::mbarrier_arrive_expect_tx\((\w+), (\d+)\);",
        lambda bar, n: ("expect partials", bar, int(n)),
    ),
    (
        r"if \(lane > 0 && lane < CLUSTER_K\) ptx::mbarrier_arrive_remote\((\w+), lane\);",
        lambda bar: ("release partials", bar),
    ),
    (
        r"const uint32_t slot = ptx::cluster_address\((\w+) \+ \(cta_rank - 1\) \* (\d+) \+ \((\d+) \+ warpgroup\) \* (\d+) \+ threadIdx\.x % 128 \* 16, 0\);",
        lambda smem, slot, block, size: ("slot", smem, int(slot), int(block), int(size)),
    ),
    (
        r"const uint32_t bar = ptx::cluster_address\((\w+), 0\);",
        lambda bar: ("completes on", bar),
    ),
    (
        r"ptx::store_async_\w+\(slot \+ 512 \* i, bar, (\w+)\[i\], \1\[i \+ 1\], \1\[i \+ 2\], \1\[i \+ 3\]\);",
        lambda acc: ("send", acc),
    ),
    (
        r"const uint32_t slot = (\w+) \+ \(rank - 1\) \* (\d+) \+ \((\d+) \+ warpgroup\) \* (\d+) \+ threadIdx\.x % 128 \* 16;",
        lambda smem, slot, block, size: ("read slot", smem, int(slot), int(block), int(size)),
    ),
    (
        r"(\w+)\[i\] \+= a, \1\[i \+ 1\] \+= b, \1\[i \+ 2\] \+= c, \1\[i \+ 3\] \+= d;",
        lambda acc: ("add", acc),
    ),
    (r"ptx::fence_mbarrier_init\(\)", lambda: ("init fence",)),
    (r"__syncthreads\(\)", lambda: ("cta sync",)),
    (r"ptx::cluster_arrive\(\)", lambda: ("cluster arrive",)),
    (r"ptx::cluster_wait\(\)", lambda: ("cluster wait",)),
    (r"ptx::launch_dependent_grids\(\)", lambda: ("launch dependents",)),
    (r"ptx::wait_for_grids\(\)", lambda: ("wait for grids",)),
    (r"ptx::setmaxnreg_(\w+)<(\d+)>\(\)", lambda way, n: ("registers", way, int(n))),
    (
        r"for \(int i = 0; i < STAGES; \+\+i, ring\.advance\(\)\) "
        r"ptx::mbarrier_wait\(" + BAR + r"ring\.stage, ring\.phase \^ 1\)",
        lambda bar: ("drain", bar),
    ),
    (r"^Ring next = ring;", lambda: ("next",)),
    (r"^next\.advance\(\);", lambda: ("next advances",)),
    (
        r"^(\w+)\[0\] = ptx::mbarrier_test_wait\(" + BAR + r"next\.stage, next\.phase\);",
        lambda dst, bar: ("peek", dst, bar),
    ),
    (
        r"^if \((\w+)\[0\] == 0\) ptx::mbarrier_wait\(" + BAR + r"ring\.stage, (.*)\);",
        lambda seen, bar, phase: ("wait unless", seen, bar, PHASES[phase]),
    ),
    (
        r"^ptx::mbarrier_wait\(" + BAR + r"ring\.stage, (.*)\);",
        lambda bar, phase: ("wait", bar, PHASES[phase]),
    ),
    (
        r"if \(lane == 0\) ptx::mbarrier_arrive\(" + BAR + r"(.*)\);",
        lambda bar, stage: ("arrive", bar, STAGES[stage]),
    ),
    (
        r"if \(lane < (\d+)\) ptx::mbarrier_arrive_remote\(" + BAR + r"(.*), lane\);",
        lambda n, bar, stage: ("arrive", bar, STAGES[stage], int(n)),
    ),
    (
        r"ptx::mbarrier_arrive_expect_tx\(" + BAR + r"ring\.stage, (\d+)\)",
        lambda bar, n: ("expect", bar, int(n)),
    ),
    (
        r"ptx::tma_load(?:_3d)?\((\w+) \+ ring\.stage \* (\d+) \+ (\d+), "
        + MAP
        + r", "
        + BAR
        + r"ring\.stage, (.*)\);",
        lambda smem, stride, at, m, bar, coords: (
            "load",
            smem,
            int(stride),
            int(at),
            m,
            bar,
            coords,
        ),
    ),
    (
        r"ptx::tma_load_multicast(?:_3d)?\((\w+) \+ ring\.stage \* (\d+) \+ (\d+) \+ cta_rank \* (\d+), "
        + MAP
        + r", "
        + BAR
        + r"ring\.stage, (.*), (\d+)\);",
        lambda smem, stride, at, rank, m, bar, coords, mask: (
            *("load", smem, int(stride), int(at), m, bar, coords),
            *(int(rank), int(mask)),
        ),
    ),
    (
        r"ptx::copy_map\((\w+), &(\w+), lane\)",
        lambda smem, m: ("copy map", smem, m),
    ),
    (r"ptx::warp_sync\(\)", lambda: ("warp sync",)),
    (
        r"if \(lane == 0\) ptx::replace_map_extent<(\d)>\((\w+), (.*)\);",
        lambda dim, smem, end: ("extent", int(dim), smem, end),
    ),
    (
        r"if \(lane == 0\) ptx::replace_map_address\((\w+), (\w+) \+ \(long long\)tile\.k_first \* (\w+)\);",
        lambda smem, tensor, rows: ("address", smem, tensor, rows),
    ),
    (
        r"if \(lane == 0\) ptx::replace_map_stride\((\w+), \(long long\)\(tile\.k_end - tile\.k_first\) \* (\d+)\);",
        lambda smem, size: ("stride", smem, int(size)),
    ),
    (r"ptx::publish_map\(" + MAP + r", (\w+)\)", lambda m, smem: ("publish", m, smem)),
    (r"ptx::acquire_map\(" + MAP + r"\)", lambda m: ("acquire", m)),
    (r"ptx::wgmma_fence\(\)", lambda: ("wgmma fence",)),
    (r"ptx::wgmma_commit\(\)", lambda: ("wgmma commit",)),
    (r"ptx::wgmma_wait<(\d+)>\(\)", lambda n: ("wgmma wait", int(n))),
    (
        r"uint32_t a_tile = ptx::descriptor_low\((\w+) \+ ring\.stage \* (\d+) \+ (\d+) \+ warpgroup \* (\d+),",
        lambda smem, stride, at, w: ("a", smem, int(stride), int(at), int(w)),
    ),
    (
        r"uint32_t b_tile = ptx::descriptor_low\((\w+) \+ ring\.stage \* (\d+)(?: \+ (\d+))?,",
        lambda smem, stride, at: ("b", smem, int(stride), int(at or 0)),
    ),
    (
        r"ptx::mma\((\w+), ptx::descriptor\(a_tile \+ (\d+), .*?\), ptx::descriptor\(b_tile \+ (\d+), .*?\), (.*)\);",
        lambda dst, a, b, scale: ("mma", dst, 16 * int(a), 16 * int(b), scale),
    ),
    (
        r"if \((warpgroup|worker) == (\d+)\) ptx::named_barrier_sync<(\d+), (\d+)>\(\)",
        lambda index, w, n, threads: ("named barrier", index, int(w), int(n), int(threads)),
    ),
    (r"ptx::fence_proxy_async\(\)", lambda: ("proxy fence",)),
    (
        r"ptx::tma_(store|add)(?:_3d)?\(&(\w+), (\w+) \+ \((\d+) \+ warpgroup\) \* (\d+) \+ (\d+), (.*?), (.*)\);",
        lambda verb, m, smem, block, stride, at, inner, outer: (
            *(verb, m, smem, int(block), int(stride), int(at)),
            *(inner, outer),
        ),
    ),
    (r"ptx::bulk_(store|add)\(", lambda verb: ("row", verb)),
    (r"ptx::piece_(store|add)\(", lambda verb: ("piece", verb)),
    (r"ptx::store_commit\(\)", lambda: ("store commit",)),
    (r"ptx::store_wait_(\w+)<(\d+)>\(\)", lambda kind, n: ("store wait", kind, int(n))),
    (
        r"ptx::(?!descriptor|shared_address|cluster_cta_rank|prefetch)(mbarrier\w*|tma\w*|cluster_address|store_async\w*|copy_map|replace_map\w*|publish\w*|acquire\w*|warp_sync|wgmma\w*|fence\w*|cluster\w*|named\w*|bulk\w*)\(",
        lambda name: ("unknown", name),
    ),
)

# ---- from the IR -----------------------------------------------------------------------------------


def from_ir(kernel: ir.Kernel) -> list[Event]:
    """The same list, from the statements and their fields."""
    index = _index(kernel)
    out: list[Event] = [((), ("index", index, "__shfl_sync(0xffffffff, threadIdx.x / 128, 0)"))]
    out += [((), ("index", "warpgroup", "0"))] * (index == "worker")
    out += _body(kernel, kernel.prologue, ())
    for role in kernel.roles:
        inside = (f"role {index} {role.warpgroups[1]}",)
        if role.name == "consumer":
            own = [s for s in kernel.smem if s.copies > 1]
            out += [(inside, ("own", s.name, s.offset, s.stages * s.stage_bytes)) for s in own]
        out += _body(kernel, role.body, inside)
    return out


def _index(kernel: ir.Kernel) -> str:
    """What the text calls a warpgroup's number in the CTA."""
    return "worker" if kernel.consumer.turns > 1 else "warpgroup"


NAMES = {
    ir.ForTiles: "tiles",
    ir.ForTurns: "turns",
    ir.AfterFirst: "after first",
    ir.FirstWarp: "first warp",
    ir.NewGroup: "new group",
    ir.IfBlocks: "if blocks",
    ir.IfSends: "if sends",
    ir.IfFinishes: "if finishes",
    ir.CtaLeader: "cta leader",
    ir.WarpgroupLeader: "leader",
}


def _body(kernel: ir.Kernel, body: tuple[ir.Stmt, ...], inside: tuple[str, ...]) -> Iterator[Event]:
    for s in body:
        if isinstance(s, ir.ForTurns):
            for event in ("pass over phases", "pass over stages", "continue"):
                yield (*inside, "turns", "another's turn"), (event,)
            yield (*inside, "turns"), ("others", kernel.consumer.turns)
        if isinstance(s, BLOCKS):
            yield from _body(kernel, s.body, (*inside, _block(kernel, s)))
        else:
            yield from ((inside, event) for event in _events(kernel, s))


def _block(kernel: ir.Kernel, s: ir.Stmt) -> str:
    if isinstance(s, ir.IfWhole | ir.IfCut):
        d = kernel.buffer("smem_d")
        where = s.wave * kernel.consumers if d.along == "m" else d.rows
        return f"rows {where} {'<=' if isinstance(s, ir.IfWhole) else '>'}"
    if isinstance(s, ir.ForChunks):
        return f"chunks of {s.blocks}"
    if isinstance(s, ir.PerSplit):
        return f"copies per {s.step}"
    if isinstance(s, ir.ForK):
        return f"k{' of chunk' * (s.of == 'chunk')}"
    return NAMES[type(s)]


def _events(kernel: ir.Kernel, s: ir.Stmt) -> Iterator[tuple[object, ...]]:
    match s:
        case ir.InitBarrier():
            (barrier,) = (b for b in kernel.barriers if b.name == s.barrier)
            each = {"stage": (), "tile": (1,), "turn": (barrier.stages,)}[barrier.per]
            yield "init" + " each" * bool(each), *each, s.barrier, s.arrivals
        case ir.WaitForTurn():
            yield "wait for turn", s.barrier, s.turn
        case ir.PassTurn():
            yield "pass turn", s.barrier, kernel.consumer.turns
        case ir.TakeShare():
            yield ("share",)
        case ir.WaitTurn():
            yield "wait turn", s.barrier, s.turn, s.flip
        case ir.NextTurn():
            yield "next turn", s.turn
        case ir.ExpectPartials():
            yield "expect partials", s.barrier, s.tx_bytes
        case ir.ReleasePartials():
            yield "release partials", s.barrier
        case ir.SendPartials():
            yield "slot", *_slot(kernel, s.smem, s.wave, s.src)
            yield "completes on", s.barrier
            yield "send", s.src
        case ir.AddPartials():
            yield "read slot", *_slot(kernel, s.smem, s.wave, s.dst)
            yield "add", s.dst
        case ir.FenceBarrierInit():
            yield ("init fence",)
        case ir.CtaSync():
            yield ("cta sync",)
        case ir.ClusterSync():
            yield ("cluster arrive",)
            yield ("cluster wait",)
        case ir.LaunchDependents():
            yield ("launch dependents",)
        case ir.WaitForGrids():
            yield ("wait for grids",)
        case ir.SetRegisters():
            yield "registers", s.direction, s.count
        case ir.Drain():
            yield "drain", s.barrier
        case ir.Peek():
            yield ("next",)
            yield ("next advances",)
            yield "peek", s.dst, s.barrier
        case ir.WaitUnlessSeen():
            yield "wait unless", s.seen, s.barrier, s.flip
        case ir.Wait():
            yield "wait", s.barrier, s.flip
        case ir.Arrive():
            yield "arrive", s.barrier, s.lag
        case ir.ArriveCluster():
            yield "arrive", s.barrier, s.lag, kernel.cluster.size
        case ir.ExpectTx():
            yield "expect", s.barrier, s.tx_bytes
        case ir.TmaLoad() | ir.TmaLoadMulticast():
            yield _load(kernel, s)
        case ir.CopyMap():
            yield "copy map", s.smem, s.tensor_map
        case ir.WarpSync():
            yield ("warp sync",)
        case ir.ReplaceExtent():
            yield "extent", s.dim, s.smem, s.end
        case ir.ReplaceAddress():
            yield "address", s.smem, s.tensor, s.rows
        case ir.ReplaceStride():
            yield "stride", s.smem, s.bytes
        case ir.PublishMap():
            yield "publish", _map(kernel, s.tensor_map), s.smem
        case ir.AcquireMap():
            yield "acquire", _map(kernel, s.tensor_map)
        case ir.WgmmaFence():
            yield ("wgmma fence",)
        case ir.WgmmaCommit():
            yield ("wgmma commit",)
        case ir.WgmmaWait():
            yield "wgmma wait", s.pending
        case ir.Mma():
            yield from _mma(kernel, s)
        case ir.WarpgroupSync():
            for w in range(s.warpgroups):
                yield "named barrier", _index(kernel), w, s.first_id + w, 128
        case ir.ProxyFence():
            yield ("proxy fence",)
        case ir.TmaStore():
            yield _store(kernel, s)
        case ir.BulkRowStore():
            yield "row", VERBS[s.add]
        case ir.StoreRows():
            yield "piece", VERBS[s.add]
        case ir.StoreCommit():
            yield ("store commit",)
        case ir.StoreWait():
            yield "store wait", "read" if s.reads else "all", s.pending


def _slot(kernel: ir.Kernel, smem: str, wave: int, acc: str) -> tuple[object, ...]:
    (count,) = (r.count for role in kernel.roles for r in role.locals if r.name == acc)
    return smem, kernel.buffer(smem).stage_bytes, wave * kernel.consumers, 4 * 128 * count


def _load(kernel: ir.Kernel, s: ir.TmaLoad | ir.TmaLoadMulticast) -> tuple[object, ...]:
    stride = kernel.buffer(s.smem).stage_bytes
    coords = ", ".join(map(_coord, s.coords))
    event = "load", s.smem, stride, s.offset, _map(kernel, s.tensor_map), s.barrier, coords
    return event if isinstance(s, ir.TmaLoad) else (*event, s.rank_bytes, s.mask)


def _map(kernel: ir.Kernel, name: str) -> str:
    derived = [m.name for m in kernel.maps if m.derived]
    at = f"group_maps + tile.slot * {len(derived)} + "
    return f"{at}{derived.index(name)}" if name in derived else f"&{name}"


def _coord(c: ir.Coord) -> str:
    parts = [c.start] * bool(c.start)
    parts += [c.base if c.scale == 1 else f"{c.base} * {c.scale}"]
    parts += [str(c.offset)] * bool(c.offset)
    parts += [f"cta_rank * {c.rank_step}"] * bool(c.rank_step)
    return " + ".join(parts)


def _mma(kernel: ir.Kernel, s: ir.Mma) -> Iterator[tuple[object, ...]]:
    yield "a", s.a, kernel.buffer(s.a).stage_bytes, s.wave_bytes, s.warpgroup_bytes
    yield "b", s.b, kernel.buffer(s.b).stage_bytes, s.part_bytes
    for i, (a, b) in enumerate(s.steps or ()):
        first = {"block": "0", "tile": "k != 0", "never": "1"}[s.fresh]
        yield "mma", s.dst, a, b, "1" if i else first


def _store(kernel: ir.Kernel, s: ir.TmaStore) -> tuple[object, ...]:
    block, slot = (x * kernel.consumers for x in (s.wave, s.wave if s.slot < 0 else s.slot))
    places = [*map(_coord, s.coords)]
    places[{"m": 1, "n": 0}[kernel.buffer(s.smem).along]] += f" + {64 * block} + warpgroup * 64"
    column, row = places[0], ", ".join(places[1:])
    stride = kernel.buffer(s.smem).stage_bytes
    return VERBS[s.add], s.tensor_map, s.smem, slot, stride, s.offset, column, row
