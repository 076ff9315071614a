"""Kernels with stamps: the same statements, the same text and the same proof as without, and lines that note the
time between them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import zip_longest

import pytest
from kernels import DENSE, FP8, VARIETY

import gemmgen.emit
from gemmgen.check import check, ops
from gemmgen.check.ops import Instance
from gemmgen.check.unroll import unroller
from gemmgen.config import Config
from gemmgen.emit import PTX, declaration, emit, environment
from gemmgen.errors import ArgumentError, CacheError, IRError
from gemmgen.gallery import exhibit
from gemmgen.ir import nodes as ir
from gemmgen.ir.promotion import PROMOTION
from gemmgen.ir.rewrite import statements, unstamped, walk
from gemmgen.ir.stamps import HEAD, STAMP
from gemmgen.passes.instrument import instrument
from gemmgen.pipeline import MOST_STAMPS, compile_to_source, lower
from gemmgen.runtime.launch import stamp_bytes
from gemmgen.runtime.launch_record import record_of
from gemmgen.see.simulate import WHOLE
from gemmgen.target import H200

SAME = ("fp8", "dense-waves", "fp8-masked-multicast", "fp8-1d1d-k_flat", "dense-split-in-flight")
INDEXED = "fp8_block/indexed_rows"
WATCHED = (DENSE, Config(watchdog=True))
# Lines that a stamped kernel has and others have not, in a kernel's body.
OPENS = ("Stamps stamps(stamp_rings, warpgroup);", "Stamps stamps(stamp_rings, worker);")
LINES = (*OPENS, "++stamps.tile;", "stamps.close();")


def both(name):
    e = exhibit(name) if "/" in name else None
    problem, config = (e.problem, e.config) if e else VARIETY[name]
    return lower(problem, config), lower(problem, config, stamps=64)


@cache
def program(name, stamps):
    kernel = both(name)[bool(stamps)]
    ranks = max(1, kernel.cluster.k)
    depths = (ranks * 3,) * 2 if kernel.groups.depths else ()
    instance = Instance(k_blocks=ranks * 3, tiles=2, depths=depths)
    return unroller(kernel, WHOLE).program(instance)


def functions(kernel: ir.Kernel) -> list[str]:
    """The PTX layer's, as they stand in a source."""
    files = (environment().get_template(name).render(instr=kernel.instr) for name in PTX)
    return "\n\n".join(text.strip("\n") for text in files).split("\n\n")


def without_stamps(stamped: str, kernel: ir.Kernel) -> str:
    """`stamped` without the lines that are there for stamps, and nothing else changed."""
    env = environment()
    env.globals["kernel"] = kernel
    code = env.get_template("stamps.j2").render() + "\n"
    assert stamped.count(code) == 1
    text = stamped.replace(code, "")
    for name in ("store_clock", "clock64", "global_timer"):
        (chunk,) = (f for f in functions(kernel) if f" {name}(" in f)
        assert text.count(chunk + "\n\n") == 1
        text = text.replace(chunk + "\n\n", "").replace(declaration(chunk) + "\n", "")
    kept = [line for line in text.splitlines(keepends=True) if not is_stamp(line)]
    return "".join(kept)


def is_stamp(line: str) -> bool:
    words = line.strip()
    stamp = words.startswith("stamps.add(") and words.endswith(");")
    named = words in (*LINES, "StampRing* stamp_rings,")
    return stamp or named or words.startswith("// IR sha256 with stamps ")


# ---- the text -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIETY)
def test_sources_differ_in_lines_of_stamps_only(name, monkeypatch):
    """Without functions of what repeats: a stamp between two repeats keeps them apart."""
    monkeypatch.setattr(gemmgen.emit, "LINES_SAVED", 10**6)
    plain, stamped = both(name)
    text = emit(stamped)
    assert sum(map(is_stamp, text.splitlines())) > 10
    alike = stamped.consumer.turns > 1 or stamped.consumer.slices > 1
    opened = OPENS[alike]  # a ring for each warpgroup of the CTA
    assert text.count(opened) == len(stamped.roles)
    assert without_stamps(text, stamped) == emit(plain)


def test_the_whole_source_with_its_header_differs_in_lines_of_stamps_only():
    """Header and all: the proof's sentence too."""
    e = exhibit("fp8_block/base")
    stamped = compile_to_source(e.problem, e.config, stamps=64)
    plain = compile_to_source(e.problem, e.config)
    assert without_stamps(stamped.source, stamped.kernel) == plain.source
    assert str(stamped.proof) == str(plain.proof)


def test_another_line_would_be_seen():
    plain, stamped = both("fp8")
    text = emit(stamped).replace("ring.advance()", "ring.advance( )", 1)
    assert without_stamps(text, stamped) != emit(plain)


@pytest.mark.parametrize("name", VARIETY)
def test_without_stamps_it_is_the_same_kernel(name):
    plain, stamped = both(name)
    assert unstamped(stamped) == plain and unstamped(plain) is plain


def test_a_watched_kernel_keeps_its_watchdog():
    plain, stamped = lower(*WATCHED), lower(*WATCHED, stamps=64)
    assert stamped.device_code == ("watchdog", "stamps")
    assert unstamped(stamped) == plain


# ---- the statements -----------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIETY)
def test_events_count_up_in_each_role(name):
    for role in both(name)[1].roles:
        body = [*walk(role.body)]
        events = [s.event for s in body if isinstance(s, ir.Stamp)]
        assert events == [*range(len(events))]
        # Nothing stands before setmaxnreg, and no stamp before a wait for the launches before.
        early = (ir.SetRegisters, ir.WaitForGrids)
        last = max((i for i, s in enumerate(role.body) if isinstance(s, early)), default=-1)
        first = role.body[last + 1]
        assert isinstance(first, ir.OpenStamps) and isinstance(role.body[-1], ir.CloseStamps)
        tiles = sum(isinstance(s, ir.ForTiles) and s.of not in ("first", "runs") for s in body)
        assert sum(isinstance(s, ir.StampTile) for s in body) == tiles


@pytest.mark.parametrize("stamps", [100, -64, 2 * MOST_STAMPS, 64.0])
@pytest.mark.parametrize("of", [lower, compile_to_source])
def test_a_ring_that_is_no_power_of_two_is_refused(of, stamps):
    allowed = f"stamps={stamps}: must be 0 or a power of two up to {MOST_STAMPS}"
    with pytest.raises(ArgumentError, match=allowed):
        of(FP8, Config(), stamps=stamps)


def test_a_pass_that_is_handed_such_a_ring_raises():
    """Whoever calls it, beside `lower`."""
    with pytest.raises(IRError, match="stamps=100 is not a power of two"):
        instrument(lower(FP8, Config()), H200, 100)


def test_no_record_is_kept_of_a_stamped_kernel():
    with pytest.raises(CacheError, match="stamped"):
        record_of(lower(FP8, Config(), stamps=64))
    assert record_of(lower(FP8, Config())).stamps == 0


def test_bytes_of_rings():
    plain, stamped = both("fp8")
    assert stamp_bytes(plain, 7) == 0
    assert stamp_bytes(stamped, 7) == 7 * 3 * (HEAD + 64 * STAMP)


# ---- the proof and the simulation ---------------------------------------------------------


@pytest.mark.parametrize("name", (*SAME, INDEXED))
def test_the_proof_is_that_of_the_plain_kernel(name):
    plain, stamped = map(check, both(name))
    assert replace(plain, seconds=0) == replace(stamped, seconds=0)


def stepped(program) -> list[list[tuple[str, int, int]]]:
    """Of each agent, from a program without stamps: the operations that the simulation lets take time, and those
    that issue, as (statement, tile, K block)."""
    found = []
    for own in program.ops:
        mine: list[tuple[str, int, int]] = []
        for op in own:
            stmt = op.copies[-1].stmt if isinstance(op, ops.Load) else op.stmt  # the last of a run
            kind = type(stmt).__name__, op.tile, op.k
            again = isinstance(op.stmt, ir.Drain) and mine[-1:] == [kind]
            if is_step(op) and not again:
                mine.append(kind)
        found.append(mine[ahead(program.kernel, own) :])
    return found


def ahead(kernel: ir.Kernel, own: tuple[ops.Op, ...]) -> int:
    """How many loads a producer issues before it waits for the launches before: no stamp is written until then."""
    if not any(isinstance(s, ir.ForTiles) and s.of == "first" for s in statements(kernel)):
        return 0
    loads = any(isinstance(op.stmt, ir.TmaLoad | ir.LoadBlocks) for op in own)
    return loads * min(kernel.stages, max(op.k for op in own) + 1)


def is_step(op: ops.Op) -> bool:
    match op:
        case ops.Sync():
            return op.name[0] == "named barrier"
        case ops.Touch():
            return isinstance(op.stmt, PROMOTION)
        case ops.Read():
            return isinstance(op.stmt, ir.AddPartials | ir.StoreRows | ir.StoreValues)
    timed = ops.Wait | ops.Load | ops.Commit | ops.Retire | ops.Write | ops.Begin | ops.Come
    return isinstance(op, timed | ops.StoreCommit | ops.StoreWait)


def stamped_statements(role: ir.Role) -> list[str]:
    """By event, what stands before the stamp."""
    found = []

    def look(body):
        for stmt, after in zip_longest(body, body[1:]):
            look(getattr(stmt, "body", ()))
            if isinstance(after, ir.Stamp):
                found.append(type(stmt).__name__)

    look(role.body)
    return found


@pytest.mark.parametrize("name", [*(n for n, (_, c) in VARIETY.items() if not c.direct), INDEXED])
def test_stamps_are_the_steps_of_the_simulation(name):
    """In order, of each agent: nothing that takes time lacks a stamp, in the program of the kernel without."""
    stamped = program(name, 64)
    called = {r.name: stamped_statements(r) for r in stamped.kernel.roles}
    for agent, noted, steps in zip(
        stamped.agents, stamped.stamps, stepped(program(name, 0)), strict=True
    ):
        assert [(called[agent.role][n.event], n.tile, n.k) for n in noted] == steps


@pytest.mark.parametrize("name", SAME)
def test_operations_are_those_of_the_plain_kernel(name):
    plain, stamped = program(name, 0), program(name, 64)
    assert [list(map(type, own)) for own in plain.ops] == [
        list(map(type, own)) for own in stamped.ops
    ]
    assert not any(plain.stamps)


# ---- what is compiled ---------------------------------------------------------------------

COMMON = ("fp8_block/base", "dense/n256", "fp8_block/two_wave_multicast_a", INDEXED)


@pytest.fixture
def nvrtc():
    return pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", COMMON)
def test_stamps_spill_no_register(nvrtc, name):
    """`compile_cubin` raises where something is spilt."""
    from gemmgen.runtime.nvrtc import compile_cubin

    kernel = lower(exhibit(name).problem, exhibit(name).config, stamps=8192)
    cubin = compile_cubin(emit(kernel), kernel.name)
    assert cubin.spill_bytes == cubin.stack_bytes == 0


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", COMMON)
def test_no_branch_stands_before_a_stamp(nvrtc, name):
    """Only where a role begins and ends: one thread more or less, outside of all loops."""
    from gemmgen.runtime.nvrtc import compile_ptx

    e, branches = exhibit(name), {}
    for stamps in (0, 64):
        kernel = lower(e.problem, e.config, stamps=stamps)
        branches[stamps] = compile_ptx(emit(kernel), kernel.name).count("bra")
    assert branches[64] - branches[0] <= 2 * len(kernel.roles)
