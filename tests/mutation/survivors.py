"""Mutants that no net finds: why each is the same kernel, by rules, each with its reason.

A rule rewrites a kernel to a normal form. A mutant is excused if some rule takes it and the right
kernel to the same one; so a rule is sound if what it does to any kernel leaves that kernel as right,
or as wrong, as it was. Rules are asked only of what every net has passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import BLOCKS, is_if
from gemmgen.ir.rewrite import map_stmts, statements, walk
from gemmgen.ir.stmts import releases
from gemmgen.ir.syncs import is_fence, is_sync

from .mutant import Mutant, mutated_kernel, original

Body = tuple[ir.Stmt, ...]
Normal = Callable[[ir.Kernel], ir.Kernel]

LOADS = (ir.TmaLoad,)


def reason(m: Mutant) -> str:
    """Why `m` is no fault, or nothing."""
    if m.text:
        return _of_text(m)
    if not (m.ir or m.family):
        return ""
    made, meant = mutated_kernel(m), original(m.kernel).kernel
    if waits_longer(made, meant):
        return "a wait that leaves fewer groups in flight waits for more: only slower"
    return next((why for normal, why in RULES if normal(made) == normal(meant)), "")


def limit(m: Mutant) -> str:
    """Why no net finds `m`, although it is a fault, if that is known."""
    if _past_the_edge(_guards(m), _columns(m)):
        return (
            "a fault only from the N on where 32 bits overflow: nothing here launches so wide a D"
        )
    return ""


# ---- the IR -----------------------------------------------------------------------------------------


def _bodies(kernel: ir.Kernel, change: Callable[[Body], Iterable[ir.Stmt]]) -> ir.Kernel:
    """`change` applied to every sequence of statements, the innermost first."""

    def block(s: ir.Stmt) -> ir.Stmt:
        return replace(s, body=tuple(change(s.body))) if isinstance(s, BLOCKS) else s

    kernel = map_stmts(kernel, block)
    roles = tuple(replace(r, body=tuple(change(r.body))) for r in kernel.roles)
    return replace(kernel, prologue=tuple(change(kernel.prologue)), roles=roles)


def _runs(body: Body, inside: Callable[[ir.Stmt], bool]) -> Iterator[tuple[bool, list[ir.Stmt]]]:
    """`body` cut into the longest runs that lie inside, and the rest."""
    run: list[ir.Stmt] = []
    for s in body:
        if run and inside(run[-1]) != inside(s):
            yield inside(run[-1]), run
            run = []
        run.append(s)
    if run:
        yield inside(run[-1]), run


def _only(s: ir.Stmt, *kinds: type[ir.Stmt]) -> bool:
    """Whether `s` is of the kinds, or a leader's block of nothing else."""
    return isinstance(s, kinds) or (
        is_if(s, "leader", "cta_leader") and all(isinstance(x, kinds) for x in s.body)
    )


def no_prefetch(kernel: ir.Kernel) -> ir.Kernel:
    return map_stmts(kernel, lambda s: () if _only(s, ir.PrefetchMap) else s)


def waits_longer(made: ir.Kernel, meant: ir.Kernel) -> bool:
    """Whether `made` is `meant` but for waits that leave fewer groups."""

    def left(kernel: ir.Kernel) -> list[int]:
        return [s.pending for s in statements(kernel) if isinstance(s, WAITS)]

    def all_done(kernel: ir.Kernel) -> ir.Kernel:
        return map_stmts(kernel, lambda s: replace(s, pending=0) if isinstance(s, WAITS) else s)

    same = all_done(made) == all_done(meant)
    return same and all(0 <= x <= y for x, y in zip(left(made), left(meant), strict=True))


WAITS = (ir.WgmmaWait, ir.StoreWait)
AGAIN = (
    *(ir.Fence, ir.Sync),
    *(ir.Wait, ir.WgmmaWait, ir.StoreWait),
    *(ir.WgmmaCommit, ir.StoreCommit),
    ir.StageTile,
)


def once(kernel: ir.Kernel) -> ir.Kernel:
    def change(body: Body) -> Iterator[ir.Stmt]:
        for i, s in enumerate(body):
            if not (i and s == body[i - 1] and _only(s, *AGAIN)):
                yield s

    return _bodies(kernel, change)


def reads_suffice(kernel: ir.Kernel) -> ir.Kernel:
    return map_stmts(kernel, lambda s: replace(s, reads=True) if isinstance(s, ir.StoreWait) else s)


def waits_of_all(kernel: ir.Kernel) -> ir.Kernel:
    """A leader's wait for stores done by every thread, if only leaders store."""

    def stores(body: Body, led: bool = False) -> Iterator[bool]:
        for s in body:
            if isinstance(s, ir.TmaStore | ir.BulkRowStore):
                yield led
            if isinstance(s, BLOCKS):
                yield from stores(s.body, led or is_if(s, "leader"))

    if not all(led for r in kernel.roles for led in stores(r.body)):
        return kernel
    return map_stmts(
        kernel,
        lambda s: s.body if is_if(s, "leader") and _only(s, ir.StoreWait) else s,
    )


def waits_early(kernel: ir.Kernel) -> ir.Kernel:
    """A wait for stores that follows a K loop put before it."""

    def change(body: Body) -> list[ir.Stmt]:
        out = list(body)
        for i in range(len(out) - 1):
            loop = out[i]
            if isinstance(loop, ir.ForK) and _only(out[i + 1], ir.StoreWait):
                if any(isinstance(x, STORES) for x in walk(loop.body)):
                    continue
                out[i : i + 2] = [out[i + 1], loop]
        return out

    return _bodies(kernel, change)


STORES = (ir.TmaStore, ir.BulkRowStore, ir.StoreCommit, ir.StoreWait)


def any_order(kernel: ir.Kernel) -> ir.Kernel:
    """What reads D's tile, and what writes different blocks of it, sorted; commits stay where they
    are among the bulk stores."""

    def change(body: Body) -> Iterator[ir.Stmt]:
        for inside, run in _runs(body, lambda s: isinstance(s, ir.TmaStore)):
            yield from _sorted(run, lambda s: (s.wave, s.offset)) if inside else run

    def tails(body: Body) -> Iterator[ir.Stmt]:
        for inside, run in _runs(body, lambda s: isinstance(s, ir.StoreTail) or _only(s, *READERS)):
            yield from sorted(run, key=_tail_first) if inside else run

    def staged(body: Body) -> Iterator[ir.Stmt]:
        for inside, run in _runs(body, lambda s: isinstance(s, ir.StageTile)):
            yield from _sorted(run, lambda s: s.wave) if inside else run

    return _bodies(_bodies(_bodies(kernel, change), tails), staged)


READERS = (ir.TmaStore, ir.BulkRowStore, ir.StoreRows, ir.StoreCommit)


def _tail_first(s: ir.Stmt) -> tuple[int, int]:
    return (0, s.wave) if isinstance(s, ir.StoreTail) else (1, 0)


def _sorted(run: list[ir.Stmt], key: Callable[[Any], Any]) -> list[ir.Stmt]:
    """`run` sorted, if no two have the same key."""
    return sorted(run, key=key) if len(set(map(key, run))) == len(run) else run


def announced_first(kernel: ir.Kernel) -> ir.Kernel:
    """The announcement before the loads that it announces, if it is its barrier's one arrival."""
    single = {
        s.barrier for s in statements(kernel) if isinstance(s, ir.InitBarrier) and s.arrivals == 1
    }

    def change(body: Body) -> Iterator[ir.Stmt]:
        for inside, run in _runs(body, lambda s: isinstance(s, (ir.ExpectTx, *LOADS))):
            expects = [s for s in run if isinstance(s, ir.ExpectTx)]
            names = {s.barrier for s in run} if inside else set()  # type: ignore[attr-defined]
            if len(expects) == 1 and len(names) == 1 and names <= single:
                loads = [s for s in run if isinstance(s, LOADS)]
                run = [*expects, *_sorted(loads, lambda s: (s.smem, s.offset))]
            yield from run

    return _bodies(kernel, change)


def initialised(kernel: ir.Kernel) -> ir.Kernel:
    """Barriers initialised in one order; those that neither TMA nor another CTA touches need no
    fence, only the CTA's rendezvous."""
    by_tma = {s.barrier for s in statements(kernel) if isinstance(s, LOADS)}
    alone = kernel.cluster.size == 1

    def local(s: ir.Stmt) -> bool:
        return alone and isinstance(s, ir.InitBarrier) and s.barrier not in by_tma

    def change(body: Body) -> Iterator[ir.Stmt]:
        def prologue(s: ir.Stmt) -> bool:
            return isinstance(s, ir.InitBarrier) or is_fence(s, "barriers")

        for inside, run in _runs(body, prologue):
            if inside:
                run = [*filter(local, run), *(s for s in run if not local(s))]
            for inits, part in _runs(tuple(run), lambda s: isinstance(s, ir.InitBarrier)):
                yield from _sorted(part, lambda s: s.barrier) if inits else part

    return _bodies(kernel, change)


def fence_last(kernel: ir.Kernel) -> ir.Kernel:
    """wgmma.fence after the mbarrier waits that it stands beside."""

    def change(body: Body) -> Iterator[ir.Stmt]:
        def beside(s: ir.Stmt) -> bool:
            return isinstance(s, ir.Wait) or is_fence(s, "wgmma")

        for inside, run in _runs(body, beside):
            yield from sorted(run, key=lambda s: is_fence(s, "wgmma")) if inside else run

    return _bodies(kernel, change)


def no_leading_offset(kernel: ir.Kernel) -> ir.Kernel:
    """Descriptors of swizzled operands, all of them K-major, without a leading offset."""

    def clear(bits: int | None) -> int | None:
        return bits & ~(0x3FFF << 16) if bits and bits >> 62 else bits

    return map_stmts(
        kernel,
        lambda s: (
            replace(s, a_bits=clear(s.a_bits), b_bits=clear(s.b_bits))
            if isinstance(s, ir.Mma)
            else s
        ),
    )


def lowest_ids(kernel: ir.Kernel) -> ir.Kernel:
    """Named barriers from 1 on, if they exist and no two warpgroups share one."""
    syncs = [s for s in statements(kernel) if is_sync(s, "warpgroup")]
    ids: dict[int, set[int]] = {}
    for s in syncs:
        for w in range(s.warpgroups):
            ids.setdefault(w, set()).add(s.first_id + w)
    every = [i for mine in ids.values() for i in mine]
    if len(set(every)) < len(every) or not set(every) <= set(range(1, 16)):
        return kernel
    return map_stmts(kernel, lambda s: replace(s, first_id=1) if is_sync(s, "warpgroup") else s)


def one_leader(kernel: ir.Kernel) -> ir.Kernel:
    """A warpgroup's leader's block of nothing but leaders' blocks is those blocks."""
    return map_stmts(
        kernel,
        lambda s: (
            s.body
            if is_if(s, "leader") and all(is_if(x, "leader", "cta_leader") for x in s.body)
            else s
        ),
    )


def arrivals_halved(kernel: ir.Kernel) -> ir.Kernel:
    """Every arrival on a barrier made twice in a row, and counted so, made and counted once."""
    made: list[str] = []
    doubled: list[str] = []

    def change(body: Body) -> Iterator[ir.Stmt]:
        skip = False
        for s, after in zip(body, (*body[1:], None), strict=False):
            if skip:
                skip = False
                continue
            if releases(s):
                made.append(s.barrier)
                skip = s == after
                doubled.extend([s.barrier] * skip)
            yield s

    once = _bodies(kernel, change)
    if not made or made != doubled:
        return kernel

    def half(x: Any, name: str) -> Any:
        return replace(x, arrivals=x.arrivals // 2) if name in made else x

    halved = map_stmts(once, lambda s: half(s, s.barrier) if isinstance(s, ir.InitBarrier) else s)
    return replace(halved, barriers=tuple(half(b, b.name) for b in halved.barriers))


HINT = "prefetch.tensormap is a hint: what it names and whether it runs changes no result"
RULES: tuple[tuple[Normal, str], ...] = (
    (no_prefetch, HINT),
    (
        once,
        "done twice in a row it does what it does once: a fence; a rendezvous of the same threads; a "
        "wait for what stays complete until this warp goes on; a commit, whose second group is empty, so "
        "that later waits wait for no less; a write of the same values",
    ),
    (
        reads_suffice,
        "nothing reads D back, so that stores have read shared memory is all a wait must know, at exit "
        "too; waiting for the writes is only slower",
    ),
    (waits_of_all, "threads that have stored nothing have no group to wait for"),
    (waits_early, "stores complete whatever the other warps do: waiting before the K loop is only slower"),
    (
        any_order,
        "stores that only read shared memory and go to different elements of D, and writes to different "
        "blocks of D's tile, have no order",
    ),
    (
        announced_first,
        "bytes may land before they are announced while the announcing arrival, the only one, is due",
    ),
    (
        initialised,
        "barriers are initialised in any order; in a cluster of one, a barrier that TMA does not touch "
        "needs the rendezvous only",
    ),
    (fence_last, "wgmma.fence orders accesses to registers, and a wait on an mbarrier touches none"),
    (
        no_leading_offset,
        "the hardware does not use the leading offset of a swizzled K-major operand (PTX ISA)",
    ),
    (lowest_ids, "any free named barriers will do, if no two warpgroups share one"),
    (one_leader, "the leader of the CTA is the leader of its warpgroup; a leader's leader is itself"),
    (arrivals_halved, "twice as many arrivals, and the barrier counts them"),
)  # fmt: skip

# ---- the text ---------------------------------------------------------------------------------------

NEXT_ONE = "a box that begins past the map's edge: TMA stores none of it"
TEXTS: dict[tuple[str, str], str] = {
    (
        "fp8_block/n56_flat",
        "const uint32_t at = smem_d + block * 7168 + col / 56 * 7168 + row * 112: + at 66 -> -",
    ): "there is one slab, so col / 56 is 0",
    (
        "fp8_block/m64_n32_f16",
        "const int first = whole - tile.d_col, block = 0 + warpgroup;: + at 64 -> -",
    ): "one consumer: its warpgroup is 0",
}


def _of_text(m: Mutant) -> str:
    if re.match(r"ptx::prefetch_tensor_map\(|.*\bprefetch\.tensormap \[", m.says):
        return HINT
    if m.says.startswith("struct alignas(64) TensorMap ") and m.says.endswith(": 64 at 15 -> 128"):
        return (
            "128 bytes at a multiple of 128: maps come first in the parameters, at the same places"
        )
    if re.match(
        r"const int warpgroup = __shfl_sync\(0xffffffff, threadIdx.x / 128, 0\);: 0 at ", m.says
    ):
        return "every lane of a warp holds the same value: any lane may send it"
    if _past_the_edge(_guards(m), [*_columns(m), *_far_columns(m)]):
        return NEXT_ONE
    return TEXTS.get((m.kernel, m.says), "")


GUARD = re.compile(r"\s*if \(((tile\.d_col[\w +]*) <=? [\w +*/%-]+)\)\s*")


def _guards(m: Mutant) -> list[tuple[str, str]]:
    """(condition, where its box begins) of the right and the wrong guard of a tensor store, if that
    is all that differs."""
    if not m.text:
        return []
    right = original(m.kernel).source
    lines = right.splitlines(), m.text(right).splitlines()
    if len(lines[0]) != len(lines[1]):
        return []
    changed = [i for i, (x, y) in enumerate(zip(*lines, strict=True)) if x != y]
    if len(changed) != 1 or "ptx::tma_store(" not in lines[0][changed[0] + 1]:
        return []
    found = [GUARD.fullmatch(side[changed[0]]) for side in lines]
    return [(x[1], x[2]) for x in found if x] if all(found) else []


def _columns(m: Mutant) -> list[tuple[int, int]]:
    """(first column of a tile, N) for every N up to a few tiles."""
    width = original(m.kernel).kernel.block.n
    return [(col, n) for n in range(1, 3 * width + 17) for col in range(0, n, width)]


def _far_columns(m: Mutant) -> list[tuple[int, int]]:
    """The same of the last tile, for N around every power of two from 2^20 on."""
    width = original(m.kernel).kernel.block.n
    ns = [(1 << e) + x for e in range(20, 31) for x in (-16, 0, 8, (1 << e) - 4096)]
    return [((n - 1) // width * width, n) for n in ns]


def _past_the_edge(guards: list[tuple[str, str]], columns: list[tuple[int, int]]) -> bool:
    """Whether the wrong guard lets pass what the right one does, and else only boxes that begin past
    the map's edge, which lies where the right guard says but never before 16 elements."""
    if not guards:
        return False
    (right, start), (wrong, _) = guards
    past = f"{start} >= ({right.split('<')[1]}) and {start} >= 16"
    return all(
        _value(right, *x) == _value(wrong, *x) or (_value(wrong, *x) and _value(past, *x))
        for x in columns
    )


class _Overflow(Exception):
    pass


class _Int(int):
    """A C int: no sum or product may leave 32 bits."""

    def _checked(self, value: int) -> _Int:
        if not -(1 << 31) <= value < 1 << 31:
            raise _Overflow
        return _Int(value)

    def __add__(self, other: int) -> _Int:
        return self._checked(int(self) + int(other))

    def __sub__(self, other: int) -> _Int:
        return self._checked(int(self) - int(other))

    def __mul__(self, other: int) -> _Int:
        return self._checked(int(self) * int(other))

    def __floordiv__(self, other: int) -> _Int:
        return self._checked(int(int(self) / int(other)))

    def __mod__(self, other: int) -> _Int:
        return self._checked(int(self) - int(int(self) / int(other)) * int(other))


def _value(condition: str, col: int, n: int) -> bool:
    """A C condition's value; False where it overflows."""
    text = condition.replace("tile.d_col", "col").replace("/", "//")
    try:
        return bool(eval(text, {"col": _Int(col), "shape_n": _Int(n)}))
    except _Overflow:
        return False
