"""Where asked, let every warp load its operands from global memory into registers: no ring, no producer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import FP8, S32
from ..ir.fragments import ROWS, pieces, registers
from ..ir.nodes import (
    Arrive,
    Copy,
    Fence,
    ForK,
    If,
    InitBarrier,
    Kernel,
    LoadFragments,
    Mma,
    MmaDecoded,
    MultiplyFragments,
    Pointed,
    PrefetchMap,
    Registers,
    Role,
    Stmt,
    TileBody,
    TmaMap,
    Wait,
    WgmmaCommit,
    WgmmaWait,
    Zero,
)
from ..ir.rewrite import map_body, map_role, map_stmts, statements, walk
from ..ir.stmts import releases
from ..ir.syncs import is_fence, is_sync
from ..target import Target

DIRECT_TILE = Rule(
    id="direct-tile",
    says="direct needs swap_ab, one consumer warpgroup and a tile of 64 columns",
    because="A warp's mma.sync has 16 rows: with swap_ab those are columns of D, and each of B's rows is loaded by one warp, A's few rows "
    "by all. Warpgroups would share nothing: two are better two CTAs. A second wave of one would hold as many registers again.",
)
DIRECT_OPERANDS = Rule(
    id="direct-operands",
    says="direct reads K-major operands of BF16, FP16 or FP8, no packed weights, and K blocks of at least 64 bytes",
    because="Four lanes load 64 bytes of a row. What is MN-major would have to be transposed between lanes, and INT8 has no path yet.",
)
DIRECT_ALONE = Rule(
    id="direct-alone",
    says="direct has no ring, no producer and no wgmma: multicast none, in_flight 0, parts 1, swizzle_ab and registers null, no ping_pong, "
    "peek, stream or weights_ahead, and no groups that split K",
    because="Each of these says how stages in shared memory are filled, swizzled, awaited or shared, or how registers move from a "
    "producer to consumers.",
)
DIRECT_SCALES = Rule(
    id="direct-scales",
    says="direct needs lane_scales where A has scales per row, and reads no scales of columns",
    because="No stage brings scales: lanes load A's as they do B's.",
)
DIRECT_UNROLL = Rule(
    id="direct-unroll",
    says="direct needs an unroll that is a multiple of stages",
    because="A K block's fragments become those of the one before. In so many copies of the loop's body that is another name for the same "
    "registers; else it is a move, which waits until they are loaded.",
)
INDEXED_PRODUCER = Rule(
    id="indexed-producer",
    says="rows by index need a producer that loads A: direct false",
    because="Each lane of a direct kernel reads its rows itself, four lanes a row, and knows no index.",
)
PAGED_PRODUCER = Rule(
    id="paged-producer",
    says="rows by page need a producer that loads B: direct false",
    because="Each lane of a direct kernel reads rows of B where B begins, and knows no page.",
)
RULES = (
    *(DIRECT_TILE, DIRECT_OPERANDS, DIRECT_ALONE, DIRECT_SCALES, DIRECT_UNROLL),
    *(INDEXED_PRODUCER, PAGED_PRODUCER),
)


def read_direct(kernel: Kernel, target: Target, direct: bool) -> Kernel:
    """With `direct`, replace the ring: each warp holds `stages` K blocks' fragments of its rows and of all columns, and loads another in the
    place of the first when it has multiplied that. Drops the producer, the ring's buffers and barriers and what waits for them, the maps of A and
    B and wgmma; adds what points to A and B and the registers."""
    if not direct:
        return kernel
    _check(kernel)
    (mma,) = {s for s in statements(kernel) if isinstance(s, Mma)}
    operands = {"rows": _map(kernel, mma.a), "columns": _map(kernel, mma.b)}
    sides = {"rows": ROWS, "columns": mma.instr.n}
    k_bytes = kernel.block.k * mma.instr.a.bytes
    held = tuple(
        Registers(
            name=f"{m.tensor}_{i}",
            dtype=S32,
            count=registers(sides[of], k_bytes),
            transient=i == kernel.stages,
        )
        for of, m in operands.items()
        for i in range(kernel.stages + 1)
    )
    gone = {s.name for s in kernel.smem if s.ring} | {m.name for m in operands.values()}
    gone |= {b.name for b in kernel.barriers if b.per == "stage"}
    tensors = {of: m.tensor for of, m in operands.items()}
    pointed = tuple(_pointed(kernel, m) for m in operands.values())
    reads = _Operands(tensors=tensors, stages=kernel.stages, halves=mma.instr.a in FP8)
    kernel = replace(
        kernel,
        maps=tuple(m for m in kernel.maps if m.name not in gone),
        smem=tuple(s for s in kernel.smem if s.name not in gone),
        barriers=tuple(b for b in kernel.barriers if b.name not in gone),
        params=(*kernel.params, *(p for x in pointed for p in x.params)),
        pointed=pointed,
        roles=(kernel.consumer,),
    )
    kernel = map_stmts(kernel, lambda s: _without(s, gone))
    synchronised = map_body(kernel.prologue, lambda s: _met(s, fenced=bool(kernel.barriers)))
    kernel = replace(kernel, prologue=synchronised)
    return map_role(kernel, "consumer", lambda r: _reading(r, reads, held))


def _check(kernel: Kernel) -> None:
    if any(m.indices for m in kernel.maps):
        raise IllegalConfig(INDEXED_PRODUCER, {"direct": True}, "Use direct=false.")
    if any(m.pages for m in kernel.maps):
        raise IllegalConfig(PAGED_PRODUCER, {"direct": True}, "Use direct=false.")
    role, instr = kernel.consumer, kernel.instr
    waves = len({s.wave for s in statements(kernel) if isinstance(s, Mma)})
    if kernel.buffer("smem_d").along != "n" or role.count * waves > 1:
        values = {"block_n": kernel.block.n, "consumers": role.count, "waves": waves}
        raise IllegalConfig(DIRECT_TILE, values, "Use swap_ab=true, consumers=1 and block_n=64.")
    k_bytes = kernel.block.k * instr.a.bytes
    decoded = any(isinstance(s, MmaDecoded) for s in statements(kernel))
    if instr.majors or instr.d.integer or decoded or not pieces(k_bytes):
        of = {"a": instr.a.name, "b": instr.b.name, **instr.majors, "block_k_bytes": k_bytes}
        of |= {"decoded": True} if decoded else {}
        raise IllegalConfig(DIRECT_OPERANDS, of, "Use direct=false.")
    pending = max(s.pending for s in walk(role.body) if isinstance(s, WgmmaWait))
    swizzles = {s.swizzle for s in kernel.smem if s.use == "operand"}
    asked = {
        "multicast": kernel.cluster.shared or "none",
        "in_flight": pending,
        "swizzle_ab": next(iter(swizzles)),
        "registers": role.registers,
        "ping_pong": role.turns > 1,
        "stream": kernel.scheduler.streams,
        "depths": kernel.groups.depths,
    }
    plain = {"multicast": "none", "in_flight": 0, "swizzle_ab": None, "registers": None}
    more = {k: v for k, v in asked.items() if v != plain.get(k, False) and v != ""}
    if more:
        raise IllegalConfig(DIRECT_ALONE, more, "Use direct=false, or their defaults.")
    scales = [s.name for s in kernel.smem if s.use == "scales"]
    if scales:
        raise IllegalConfig(DIRECT_SCALES, {"in stages": scales}, "Use lane_scales=true.")
    (unroll,) = {s.unroll for s in walk(role.body) if isinstance(s, ForK)}
    if unroll % kernel.stages:
        values = {"unroll": unroll, "stages": kernel.stages}
        raise IllegalConfig(DIRECT_UNROLL, values, f"Use unroll={kernel.stages}.")


def _map(kernel: Kernel, smem: str) -> TmaMap:
    return next(m for m in kernel.maps if m.smem == smem)


def _pointed(kernel: Kernel, m: TmaMap) -> Pointed:
    dtype = kernel.buffer(m.smem).dtype
    return Pointed(tensor=m.tensor, dtype=dtype, outer=m.outer, grouped=m.grouped)


def _without(s: Stmt, gone: set[str]) -> Stmt | tuple[Stmt, ...]:
    """What is left of `s` where the ring, its maps and wgmma are not."""
    match s:
        case Wait() | InitBarrier() if s.barrier in gone:
            return ()
        case Arrive() if releases(s):
            return ()
        case PrefetchMap() if s.tensor_map in gone:
            return ()
        case Fence(of="wgmma") | WgmmaCommit() | WgmmaWait():
            return ()
        case If(when="after_first", body=()):
            return ()
    return s


def _met(s: Stmt, *, fenced: bool) -> Stmt | tuple[Stmt, ...]:
    """At the start there is nothing that the CTA's threads would wait to see. Barriers, where there are any, are those of the
    exchange in a cluster, which is awaited before that."""
    needless = is_sync(s, "cta") or (is_fence(s, "barriers") and not fenced)
    return () if needless else s


@dataclass(frozen=True, kw_only=True)
class _Operands:
    """What a role does with them in place of its waits and its wgmma. tensors: whose the accumulator's rows and columns are."""

    tensors: dict[str, str]
    stages: int
    halves: bool

    def load(self, block: str, distance: int) -> tuple[Stmt, ...]:
        return tuple(
            LoadFragments(dst=f"{t}_{distance}", tensor=t, of=of, block=block, distance=distance)  # type: ignore[arg-type]
            for of, t in self.tensors.items()
        )

    def first(self) -> tuple[Stmt, ...]:
        """As many K blocks as are held."""
        return tuple(s for i in range(self.stages) for s in self.load("first", i))

    def shift(self) -> tuple[Stmt, ...]:
        """The next K block's fragments are this one's then."""
        return tuple(
            Copy(dst=f"{t}_{i}", src=f"{t}_{i + 1}")
            for i in range(self.stages)
            for t in self.tensors.values()
        )

    def multiply(self, s: Mma) -> tuple[Stmt, ...]:
        rows, columns = (f"{t}_0" for t in self.tensors.values())
        product = MultiplyFragments(
            dst=s.dst,
            row_fragments=rows,
            column_fragments=columns,
            by="halves" if self.halves else "words",
        )
        return (*(Zero(dst=s.dst),) * (s.fresh == "block"), product)


def _reading(role: Role, reads: _Operands, held: tuple[Registers, ...]) -> Role:
    sums = {s.dst for s in walk(role.body) if isinstance(s, Mma) and s.fresh == "tile"}

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case Mma():
                return reads.multiply(s)
            case ForK():
                # ptxas counts these loads all together: who waits for one waits for all before it, so none comes first.
                body = (*s.body, *reads.load("next", reads.stages), *reads.shift())
                return replace(s, body=body)
            case TileBody():
                zero = tuple(Zero(dst=name) for name in sorted(sums))
                return replace(s, setup=(*s.setup, *zero, *reads.first()))
        return s

    return replace(role, locals=(*role.locals, *held), body=map_body(role.body, visit))
