"""Groups that split K: their schedule, their proof, the maps they derive, and what they compute."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from check_museum import with_fields, without
from exhibits import exhibit
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8, VECTOR, emitted

from gemmgen.check import Instance, ProtocolViolation, check, ops
from gemmgen.check.audit import audit
from gemmgen.check.prove import prove, uneven
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, GemmgenError
from gemmgen.families import build
from gemmgen.heuristics import choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.groupings import Layout, depths
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.ir.text import dump
from gemmgen.pipeline import lower
from gemmgen.problem import depth_step
from gemmgen.recipes import RECIPES
from gemmgen.target import H200
from gemmgen.verification import exact_integers

SMALL = Config(block_m=64, consumers=1, block_n=64, stages=3)
WGRAD = replace(VECTOR, grouping="k_flat")
ADDED = replace(WGRAD, epilogue=EPILOGUES["residual_f32"])
COLUMNS = replace(DENSE_F32, grouping="k_columns")
TURNED = replace(DENSE_TN, d=DENSE_F32.d, grouping="k_columns")
BOTH = ("k_columns", "k_flat")


def of(*table):
    return Layout(groups=len(table), table=table)


# ---- what each group sums ---------------------------------------------------------------------


def test_depths_follow_each_other_as_far_as_there_is_k():
    found = depths("k_flat", 300, of(128, 0, -5, 300, 7))
    assert [(d.first, d.end) for d in found] == [
        (0, 128),
        (128, 128),
        (128, 128),
        (128, 300),
        (300, 300),
    ]
    assert [d.end for d in depths("masked", 300, of(1, 2))] == [300, 300]


@pytest.mark.parametrize(
    ("problem", "table", "allowed"),
    ((WGRAD, (64, 64), "128"), (replace(COLUMNS, grouping="k_flat"), (12, 8), "8")),
)
def test_depths_that_no_scale_or_row_allows(problem, table, allowed):
    with pytest.raises(ArgumentError, match=f"multiple of {allowed}"):
        exact_integers(problem, 8, 8, 128, 1, of(*table))


def test_scales_say_where_k_may_be_split():
    assert {f for f, x in RECIPES.items() if x.scales_b} == {"fp8_block", "fp8_1d1d"}


# ---- the schedule -------------------------------------------------------------------------------

# DeepGEMM #415 and #429: an odd number of tiles per group, and groups of unequal K. (M, N, K),
# tile, K of each group.
PUBLISHED = {
    "fp8": (VECTOR, (192, 3072, 384), (128, 152), (128, 256)),
    "bf16": (TURNED, (1408, 1408, 640), (128, 128), (384, 256)),
}


@pytest.mark.parametrize("multicast", ("none", "a", "b"))
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_schedules(name, multicast):
    problem, shape, (block_m, block_n), table = PUBLISHED[name]
    p = replace(problem, grouping="k_columns")
    k = build(p, Config(block_m=block_m, block_n=block_n, multicast=multicast))
    for ctas in (2, 6, 132):
        assert not list(audit(k.scheduler, k.block, k.cluster, shape, ctas, of(*table)))


# ---- the text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ("fp8_1d1d/k_grouped", "dense/k_grouped_bf16"))
def test_the_ir_fits_on_two_screens_after_every_pass(name):
    e = exhibit(name)
    sizes = {"build": len(dump(build(e.problem, e.config)).splitlines())}
    lower(e.problem, e.config, observer=lambda n, k: sizes.update({n: len(dump(k).splitlines())}))
    assert max(sizes.values()) <= 120 and len(sizes) > 10


@pytest.mark.parametrize("grouping", BOTH)
def test_maps_of_groups_are_never_prefetched(grouping):
    """DeepGEMM #238: a prefetch of a skipped group's map is an illegal instruction."""
    k = lower(replace(VECTOR, grouping=grouping), Config(stages=3))
    fetched = {s.tensor_map for s in statements(k) if isinstance(s, ir.PrefetchMap)}
    assert not fetched & {m.name for m in k.maps if m.derived}
    assert {m.name for m in k.maps if m.derived} == {"map_a", "map_b"}


def test_addresses_are_64_bits_wide():
    """DeepGEMM #226: sum of K times M overflows 32 bits."""
    source = emitted(WGRAD, Config(stages=3)).source
    assert len(re.findall(r"\(long long\)tile\.k_first \* shape_[mn]\)", source)) == 2


# ---- the proof ----------------------------------------------------------------------------------


def test_uneven_instances_have_tiles_without_k():
    found = uneven(4)
    assert all(i.k_blocks == max(i.depths) and i.tiles == len(i.depths) for i in found)
    for shape in ((True, False), (False, True)):
        assert any(
            shape in itertools.pairwise(mine)
            for mine in ([d == 0 for d in i.depths] for i in found)
        )
    mixed = Instance(k_blocks=2, tiles=4, depths=(2, 2, 0, 1))
    assert [mixed.group(t) for t in range(4)] == [0, 0, 1, 2]
    assert [mixed.opens(t) for t in range(4)] == [True, False, False, True]


def test_thorough():
    proof = check(lower(TURNED, replace(SMALL, in_flight=1)), thorough=True, split=PAIR)
    assert len(proof.instances) > 125 and proof.properties[-1] == "P14"


def unwrapped(kernel):
    return map_stmts(kernel, lambda s: s.body if is_if(s, "has_blocks") else s)


def unstarted(kernel):
    def visit(s):
        if not isinstance(s, ir.TmaLoad):
            return s
        return replace(s, coords=tuple(replace(c, start="") for c in s.coords))

    return map_stmts(kernel, visit)


def prefetched(kernel):
    fetch = ir.PrefetchMap(tensor_map="map_a")
    return replace(kernel, prologue=(fetch, *kernel.prologue))


def overwriting(kernel):
    """The dense family's own K loop: the tile's first K block overwrites the sum."""
    kernel = with_fields(ir.Mma, fresh="tile")(kernel)
    return without(ir.Zero)(kernel)


def one_copy(kernel):
    """Both maps in one place of shared memory."""
    return map_stmts(
        kernel,
        lambda s: replace(s, smem="smem_map_a") if isinstance(s, ir.CopyMap | EDITS) else s,
    )


EDITS = ir.ReplaceExtent | ir.ReplaceAddress | ir.ReplaceStride | ir.PublishMap
IN_FLIGHT = (TURNED, replace(SMALL, in_flight=1))
BROKEN = {
    "no acquire": (WGRAD, SMALL, without(ir.AcquireMap), "P14"),
    "no publication": (WGRAD, SMALL, without(ir.PublishMap), "P14"),
    "no copy": (WGRAD, SMALL, without(ir.CopyMap), "P14"),
    "no extent": (COLUMNS, SMALL, without(ir.ReplaceExtent), "P14"),
    "no address": (WGRAD, SMALL, without(ir.ReplaceAddress), "P14"),
    "no stride": (WGRAD, SMALL, without(ir.ReplaceStride), "P14"),
    "lanes do not meet": (WGRAD, SMALL, without(ir.Sync, of="warp"), "P14"),
    "extent of M": (TURNED, SMALL, with_fields(ir.ReplaceExtent, dim=0), "P14"),
    "extent from 0": (WGRAD, SMALL, with_fields(ir.ReplaceExtent, end="tile.k_end"), "P14"),
    "rows of B": (WGRAD, SMALL, with_fields(ir.ReplaceAddress, rows="shape_n"), "P14"),
    "stride of 2 bytes": (WGRAD, SMALL, with_fields(ir.ReplaceStride, bytes=2), "P14"),
    "one copy for both": (WGRAD, SMALL, one_copy, "P14"),
    "prefetched": (WGRAD, SMALL, prefetched, "P14"),
    "K of the first group": (COLUMNS, SMALL, unstarted, "P10"),
    "scales of the first group": (WGRAD, SMALL, unstarted, "P10"),
    "sum not zeroed": (*IN_FLIGHT, without(ir.Zero), "P10"),
    "sum overwritten": (*IN_FLIGHT, overwriting, "P10"),
    "release of nothing": (*IN_FLIGHT, unwrapped, "P5"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_faults_have_counter_examples(case):
    problem, config, broken, wanted = BROKEN[case]
    kernel = lower(problem, config)
    check(kernel)
    with pytest.raises(ProtocolViolation) as e:
        check(broken(kernel))
    assert e.value.property.id == wanted, e.value


def test_only_kernels_that_derive_maps_need_it():
    kernel = lower(DENSE, SMALL)
    assert "P14" not in check(kernel).properties
    derived = replace(kernel, maps=tuple(replace(m, derived=True) for m in kernel.maps))
    with pytest.raises(ProtocolViolation, match="P14"):
        check(derived)


def in_turn(program, count):
    """Slots of group % `count`: a ring of maps."""

    def of_ring(slot):
        return slot and (*slot[:2], slot[2] % count)

    def visit(op):
        match op:
            case ops.Load():
                copies = tuple(replace(c, slot=of_ring(c.slot)) for c in op.copies)
                return replace(op, copies=copies)
            case ops.MapPublish() | ops.MapAcquire():
                return replace(op, slot=of_ring(op.slot))
        return op

    return replace(program, ops=tuple(tuple(map(visit, todo)) for todo in program.ops))


def test_a_ring_of_maps_is_safe_only_where_the_ring_of_stages_drains():
    """Two maps in turn fail where two groups have fewer K blocks than there are stages, and hold
    where every group has as many."""
    unrolled = unroller(lower(WGRAD, replace(SMALL, stages=4)), PAIR)
    for counts, maps, holds in (
        ((1, 2, 1), 3, True),
        ((1, 2, 1), 2, False),
        ((2, 1, 2), 1, False),
        ((4, 5, 4), 2, True),
        ((4, 5, 4), 1, False),
    ):
        instance = Instance(k_blocks=max(counts), tiles=3, depths=counts)
        program = in_turn(unrolled.program(instance), maps)
        if holds:
            prove(program)
            continue
        with pytest.raises(ProtocolViolation, match="is rewritten while a load may still use it"):
            prove(program)


# ---- the emulator ---------------------------------------------------------------------------------


def emulated(p, config, shape, table, pad=0, sms=4, broken=None):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.trial import judge

    a = emitted(p, config)
    source = broken(a.source) if broken else a.source
    assert not broken or source != a.source
    gpu = EmulatedGpu(sms=sms)
    return judge(gpu, prepare(a.kernel, source), a.kernel, p, shape, 1, pad, of(*table))


# Zero first, in the middle, last, everywhere; one group; more groups than CTAs; unused K at the end.
FP8_TABLES = (
    (0, 128, 256),
    (128, 0, 256),
    (256, 128, 0),
    (0, 0, 0),
    (384,),
    (128, 0, 128, 0, 0, 128, 0),
    (128, 128),
)
BF16_TABLES = (
    (0, 33, 97),
    (64, 0, 66),
    (65, 63, 0),
    (0, 0),
    (130,),
    (1, 0, 64, 0, 0, 2, 63),
    (40, 50),
)


@pytest.mark.nvrtc
@pytest.mark.parametrize("number", range(len(FP8_TABLES)))
@pytest.mark.parametrize("grouping", BOTH)
def test_emulated_fp8(grouping, number):
    multicast = ("none", "a", "b")[number % 3]
    p = replace((WGRAD, ADDED)[number % 2], grouping=grouping, accumulate=number % 3 == 0)
    shape = (70 + 13 * number, 72 + 8 * number, 384)
    emulated(p, replace(SMALL, multicast=multicast), shape, FP8_TABLES[number], number % 2, sms=2)


@pytest.mark.nvrtc
@pytest.mark.parametrize("number", range(len(BF16_TABLES)))
@pytest.mark.parametrize("problem", (COLUMNS, TURNED), ids=("nt", "tn"))
def test_emulated_bf16(problem, number):
    config = replace(
        SMALL, multicast=("a", "b", "none")[number % 3], in_flight=number % 2, stages=2 + number % 3
    )
    p = replace(problem, epilogue=EPILOGUES["residual_f32"]) if number % 2 else problem
    table = tuple(k // depth_step(p) * depth_step(p) for k in BF16_TABLES[number])
    emulated(p, config, (66 + 9 * number, 130, 130), table, pad=number % 2, sms=2)


@pytest.mark.nvrtc
def test_a_group_that_begins_between_16_bytes():
    """K-major: TMA could not load it, and says so by an illegal instruction."""
    with pytest.raises(ArgumentError, match="multiple of 8"):
        emulated(COLUMNS, SMALL, (66, 130, 130), (3, 127), sms=2)


@pytest.mark.nvrtc
@pytest.mark.parametrize("multicast", ("a", "b"))
def test_emulated_published_fp8(multicast):
    """As many tiles as the published case has of 64 x 152, of 3 x 21 an odd number per group."""
    p = replace(VECTOR, grouping="k_flat")
    config = replace(SMALL, block_n=64 if multicast == "b" else 8, multicast=multicast)
    emulated(p, config, (192, 21 * config.block_n, 384), (128, 256))


@pytest.mark.nvrtc
@pytest.mark.parametrize(("multicast", "tiles"), (("a", (3, 11)), ("b", (11, 3))))
def test_emulated_published_bf16(multicast, tiles):
    """11 tiles where clusters pair them, as the published case has of 128 x 128."""
    config = replace(SMALL, block_n=16, multicast=multicast, in_flight=1)
    emulated(TURNED, config, (tiles[0] * 64, tiles[1] * 16, 640), (384, 256))


@pytest.mark.nvrtc
def test_emulated_many_groups():
    """128 groups of which few have K, as in DeepGEMM #238."""
    table = tuple(128 * (g % 50 == 7) for g in range(128))
    emulated(replace(VECTOR, grouping="k_flat"), SMALL, (64, 64, 384), table, sms=3)


@pytest.mark.nvrtc
def test_emulated_block_scales():
    p = replace(FP8, grouping="k_columns")
    emulated(p, replace(SMALL, unroll=2), (100, 200, 512), (128, 256, 0, 128, 0))


def swap(old, new):
    return lambda source: source.replace(old, new)


SLOT = "blockIdx.x * groups + group"
FAULTS = {
    "one slot per CTA": (SLOT, "blockIdx.x", "is rewritten"),
    "one slot per group": (SLOT, "group", "written twice, unordered"),
    "no acquire": ("ptx::acquire_map(group_maps + tile.slot * 2 + 1);", "", "no fence"),
    "no publication": ("ptx::publish_map(group_maps + tile.slot * 2 + 1, smem_map_b);", "", "."),
    "k_first stays": ("k_first = k_end;", "", "."),
    "not cut off": ("ptx::replace_map_extent<1>(smem_map_a, tile.k_end)", "ptx::warp_sync()", "."),
    "only the first group opens": ("other && k_first", "group == 0 && k_first", "."),
    "groups by CTA": ("index / tiles, at", "(index + rank) / tiles % groups, at", "."),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", FAULTS)
def test_emulated_faults(case):
    old, new, message = FAULTS[case]
    config = replace(SMALL, multicast="b" if case == "groups by CTA" else "none")
    with pytest.raises(GemmgenError, match=message):
        emulated(TURNED, config, (136, 72, 130), (33, 60, 37), broken=swap(old, new))


@pytest.mark.nvrtc
def test_the_command_line_takes_depths(capsys):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.cli import main

    shape = "-m 64 -n 72 -k 100 --config {} --set block_m=64 --set consumers=1 --set stages=2"
    command = f"dense --grouping k_columns --layout tn --depths 33,0,67 {shape}"
    assert main(f"run {command} --device emulator".split()) == 0
    assert "gemmgen_dense_k_columns_gemm" in capsys.readouterr().out
    assert main(f"emulate {command}".replace("33,0", "x").split()) == 2
    assert main(f"emulate {command}".replace("--depths", "--rows").split()) == 2


@pytest.mark.parametrize("p", (WGRAD, TURNED), ids=("fp8", "bf16"))
def test_choices_are_legal(p):
    for groups in (1, 4, 16):
        lower(p, choose(p, (4096, 7168, 33536 // groups), H200, groups))
