"""Split-K: the CTAs of a cluster divide a tile's K. Results on the emulator, and faults that must show."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from check_museum import is_one
from emulated import judged, machine
from grouped import PROBLEMS, layout, problem
from kernels import (
    DENSE,
    DENSE_F32,
    DENSE_NN,
    DENSE_TN,
    DENSE_TT,
    FP8,
    GROUPED,
    QUANTISED,
    VECTOR,
    emitted,
)

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emulator.errors import Race
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import GemmgenError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dealing import share
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.rewrite import map_stmts, statements, walk
from gemmgen.ir.syncs import is_fence, is_sync
from gemmgen.pipeline import lower
from gemmgen.verification import random_normal

BY_ROWS = tuple(g for g in GROUPED if not GROUPINGS[g].depths)


def config(**changes) -> Config:
    return Config(
        **{"split_k": 4, "block_m": 64, "block_n": 32, "consumers": 1, "stages": 2} | changes
    )


SWAP = {"swap_ab": True, "block_m": 16, "block_n": 64}


# (config, shape, pad): as many K blocks as ranks, more, one more, fewer (some ranks have none), one;
# tails in M, N and K; several tiles per CTA; two warpgroups and two waves; more ranks than SMs.
CASES = (
    (config(), (64, 32, 512), 0),
    (config(split_k=2), (13, 50, 1100), 1),
    (config(stages=3), (100, 40, 640), 0),
    (config(split_k=8), (30, 24, 300), 0),
    (config(split_k=2), (5, 7, 9), 2),
    (config(block_m=128, consumers=2, unroll=4), (130, 70, 1300), 0),
    (config(split_k=2, block_m=256, consumers=2, raster="n"), (200, 30, 520), 0),
    (config(block_n=64, split_k=2), (300, 190, 400), 0),
    (config(**SWAP), (9, 200, 900), 0),
    (config(**SWAP | {"block_n": 128}), (33, 130, 260), 1),
    (config(**SWAP, split_k=8, unroll=4), (16, 64, 2048), 0),
)


# All of them for one problem, every third for the others.
TRIED = [
    (name, case)
    for i, name in enumerate(PROBLEMS)
    for case in range(len(CASES))
    if name == "fp8_block" or (i + case) % 3 == 0
]


@pytest.mark.nvrtc
@pytest.mark.parametrize(("name", "case"), TRIED)
def test_results(name, case):
    c, shape, pad = CASES[case]
    assert judged(problem(name, "none"), c, shape, pad=pad).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "schedule",
    (emulator.Eager(), emulator.Late(), *(emulator.Random(seed=s) for s in range(4))),
    ids=repr,
)
def test_every_schedule_gives_the_same_bits(schedule):
    """Whoever is late: rank 0 adds in order of rank."""
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import output, pitches

    found = []
    for gpu in (machine(), machine(schedule=schedule)):
        a = emitted(FP8, config())
        shape = 70, 60, 1100
        operands, strides = random_normal(FP8, *shape, 4), pitches(a.kernel, shape)
        d = output(FP8, operands, strides)
        found.append(
            d.extract(gpu.execute(prepare(a.kernel, a.source), operands, strides, d, 0xFF))
        )
    assert (found[0] == found[1]).all()


@pytest.mark.nvrtc
@pytest.mark.parametrize("in_flight", (0, 1))
@pytest.mark.parametrize("p", (DENSE_NN, DENSE_TN, DENSE_TT), ids=lambda p: p.layout)
def test_layouts(p, in_flight):
    c = config(block_n=64, in_flight=in_flight)
    assert judged(p, c, (70, 72, 600), pad=in_flight).exact
    swapped = config(**SWAP | {"block_m": 64}, in_flight=in_flight)
    assert judged(p, swapped, (70, 72, 130), pad=in_flight).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue):
    name = ("fp8_block", "f16_f32")[[*EPILOGUES].index(epilogue) % 2]
    p = replace(problem(name, "none"), epilogue=EPILOGUES[epilogue])
    judged(p, config(stages=3), (70, 72, 700), pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("fold", ("bias", "swiglu"))
def test_quantised_outputs(fold):
    n = 128 if fold == "bias" else 256
    p = replace(QUANTISED, epilogue=EPILOGUES[fold])
    judged(p, config(block_n=n, split_k=2), (70, n + 6, 300), pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE_F32, VECTOR), ids=lambda p: p.family)
def test_adding_to_d(p):
    judged(replace(p, accumulate=True), config(), (70, 33, 600), pad=1)


PARTS = (
    (FP8, {"block_n": 64}, (70, 72, 600)),
    (FP8, {"block_m": 128, "consumers": 2, "block_n": 144, "split_k": 2}, (130, 144, 400)),
    (VECTOR, {"block_n": 64}, (70, 72, 600)),
)


@pytest.mark.nvrtc
@pytest.mark.parametrize(("p", "changes", "shape"), PARTS)
def test_tiles_in_parts(p, changes, shape):
    """All parts of a sum are sent and added."""
    c = config(**changes, parts=2)
    assert judged(p, c, shape).exact
    check(lower(p, c))


def test_a_part_of_another_sum_is_not_added():
    kernel = lower(FP8, config(split_k=2, block_n=64, parts=2))
    wrong = map_stmts(kernel, lambda s: replace(s, part=0) if isinstance(s, ir.Promote) else s)
    with pytest.raises(ProtocolViolation):
        check(wrong)


GROUPS = ((1, 0, 3, 17), (16, 5, 0, 33), (70, 1))


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", BY_ROWS)
@pytest.mark.parametrize("which", range(3))
def test_groups(which, grouping):
    number = which * len(BY_ROWS) + BY_ROWS.index(grouping)
    p = problem([*PROBLEMS][number % len(PROBLEMS)], grouping)
    sizes = GROUPS[number % 3]
    rows = max(sizes) if GROUPINGS[grouping].rows else sum(-(-s // 128) * 128 for s in sizes)
    changes = ({}, SWAP, {"block_m": 128, "consumers": 2})[number // 3 % 3]
    shape = rows, (72, 33)[number % 2], (300, 640, 130)[number % 3]
    c = config(**changes, split_k=(2, 4)[number % 2])
    assert judged(p, c, shape, layout(p, shape, sizes), pad=number % 2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (FP8, DENSE), ids=lambda p: p.family)
def test_a_watched_build(p):
    assert judged(p, config(watchdog=True), (64, 32, 600)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("seed", range(8))
def test_random_configs(seed):
    """Whatever is legal is proved and right."""
    random = Random(seed)
    tried = 0
    while tried < 2:
        p = problem(random.choice([*PROBLEMS]), random.choice(("none", "none", *BY_ROWS)))
        swap, c = random.random() < 0.4, config(split_k=random.choice((2, 4, 8)))
        side, consumers = random.choice(((64, 1), (128, 2), (128, 1)))
        other = 8 * random.randint(1, 8)
        c = replace(
            c,
            swap_ab=swap,
            block_m=other if swap else side,
            block_n=side if swap else other,
            consumers=consumers,
            stages=random.randint(2, 5),
            swizzle_d=random.choice((None, None, 0)),
            in_flight=random.choice((0, 1)),
            unroll=random.choice((1, 4)),
        )
        try:
            lower(p, c)
        except IllegalConfig as e:
            assert e.rule.id in LEGAL_REFUSALS, e
            continue
        tried += 1
        sizes = tuple(random.choice((0, 1, 7, 30)) for _ in range(random.randint(1, 3)))
        rows = random.randint(1, 130)
        if not GROUPINGS[p.grouping].rows and p.grouping != "none":
            rows = sum(-(-s // 128) * 128 for s in sizes) or 1
        shape = rows, random.randint(1, 100), random.randint(1, 1500)
        judged(p, c, shape, layout(p, shape, sizes), pad=random.randint(0, 2), seed=seed)


LARGEST = (
    (FP8, {"block_m": 128, "block_n": 128, "consumers": 2, "unroll": 4}),
    (replace(FP8, grouping="masked", epilogue=EPILOGUES["residual"]), {"block_m": 256, "block_n": 72, "consumers": 2}),
    (replace(DENSE, epilogue=EPILOGUES["bias_gelu"]), {"block_m": 256, "block_n": 48, "consumers": 2, "stages": 1}),
    (replace(DENSE, epilogue=EPILOGUES["bias_silu"]), {"block_m": 128, "block_n": 160, "consumers": 2, "stages": 1}),
    (replace(QUANTISED, epilogue=EPILOGUES["residual"]), {"block_n": 128}),
    (VECTOR, {"swap_ab": True, "block_m": 64, "block_n": 128, "consumers": 2}),
    (FP8, {"block_m": 128, "block_n": 128, "consumers": 2, "parts": 2, "unroll": 4}),
    (replace(FP8, grouping="masked", epilogue=EPILOGUES["swiglu"]), {"block_n": 128, "parts": 2, "unroll": 4}),
    (VECTOR, {"block_n": 112, "parts": 2, "unroll": 4}),
)  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", range(len(LARGEST)))
def test_large_tiles_do_not_spill(case):
    machine()
    from gemmgen.runtime.nvrtc import compile_cubin

    p, changes = LARGEST[case]
    a = emitted(p, config(**{"split_k": 2} | changes))
    assert compile_cubin(a.source, a.name).spill_bytes == 0


LEGAL_REFUSALS = (
    "wgmma-n",
    "promotion-overlaps",
    "ragged-rows",
    "smem-capacity",
    "register-budget",
)


def test_shares_cover_k_once_in_order():
    for blocks in range(1, 70):
        for ranks in (1, 2, 4, 8):
            shares = [share(blocks, r, ranks) for r in range(ranks)]
            assert [k for s in shares for k in s] == [*range(blocks)]
            assert max(map(len, shares)) == -(-blocks // ranks) == len(shares[0])


@pytest.mark.nvrtc
def test_exchanges_have_no_bank_conflicts():
    gpu = machine()
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import judge

    a = emitted(FP8, config(block_m=128, consumers=2, block_n=64))
    judge(gpu, prepare(a.kernel, a.source), a.kernel, FP8, (128, 64, 600))
    assert [s.conflicts for s in gpu.stats] == [0] * 3


# ---- faults the proof must find --------------------------------------------------------------------


def each(kind, change, **fields):
    def fn(s):
        return change(s) if is_one(s, kind, fields) else s

    return lambda k: map_stmts(k, fn)


def drop(_):
    return ()


def twice(s):
    return s, s


def late(s):
    """The share taken by the consumers only."""
    return replace(s, body=tuple(x for x in s.body if not isinstance(x, ir.TakeShare)))


def everywhere(s):
    """The epilogue outside of what rank 0 alone does."""
    at = max(i for i, x in enumerate(s.body) if isinstance(x, ir.AddPartials)) + 1
    added = (*s.body[:at], ir.Sync(of="warp"), s.body[-1])
    return replace(s, body=added), *s.body[at:-1]


def sent_first(s):
    """The cluster awaited behind the first sums."""
    met = [x for x in s.body if is_sync(x, "cluster_await")]
    rest = [x for x in s.body if x not in met]
    at = next((i + 1 for i, x in enumerate(rest) if is_if(x, "sends")), 0)
    return replace(s, body=(*rest[:at], *met, *rest[at:]))


def awaiting(k):
    """By rank 0 alone."""
    (met,) = (s for s in statements(k) if is_sync(s, "cluster_await"))
    k = each(ir.Sync, drop, of="cluster_await")(k)
    return each(ir.If, lambda s: replace(s, body=(met, *s.body)), when="finishes")(k)


def begun_first(k):
    began = [s for s in k.prologue if is_sync(s, "cluster_arrive")]
    return replace(k, prologue=(*began, *(s for s in k.prologue if s not in began)))


def unheard(s):
    """The others' sums announced, neither awaited nor added."""
    kinds = ir.Wait, ir.AddPartials, ir.Arrive
    return replace(s, body=tuple(x for x in s.body if not isinstance(x, kinds)))


def role(name, change):
    def whole(k):
        (only,) = (r for r in k.roles if r.name == name)
        done = change(replace(k, roles=(only,), prologue=())).roles[0]
        return replace(k, roles=tuple(done if r.name == name else r for r in k.roles))

    return whole


def before(kind, other):
    """Statements of `kind` moved before those of `other`, in the same block."""

    def fn(s):
        if not is_if(s, "finishes", "sends") or not any(isinstance(x, other) for x in s.body):
            return s
        moved = [x for x in s.body if isinstance(x, kind)]
        rest = [x for x in s.body if not isinstance(x, kind)]
        at = next(i for i, x in enumerate(rest) if isinstance(x, other))
        return replace(s, body=(*rest[:at], *moved, *rest[at:]))

    return lambda k: map_stmts(k, fn)


def barrier(name, **fields):
    return lambda k: map_stmts(
        replace(
            k, barriers=tuple(replace(b, **fields) if b.name == name else b for b in k.barriers)
        ),
        lambda s: (
            replace(s, **fields) if isinstance(s, ir.InitBarrier) and s.barrier == name else s
        ),
    )


def last_wait(k):
    (consumer,) = (r for r in k.roles if r.name == "consumer")
    body = tuple(s for s in consumer.body if not is_if(s, "sends"))
    return replace(
        k, roles=tuple(replace(r, body=body) if r.name == "consumer" else r for r in k.roles)
    )


WAVES = {"block_m": 128}
FAULTS = {
    "a slot is overwritten before it is read": ({}, "P3", each(ir.Wait, drop, barrier="partials_empty")),
    "rank 0 reads before all have sent": ({}, "P2", each(ir.Wait, drop, barrier="partials_full")),
    "rank 0 reads, then waits": ({}, "P2", before(ir.AddPartials, ir.Wait)),
    "rank 0 releases, then reads": ({}, "P2", before(ir.Arrive, ir.AddPartials)),
    "rank 0 never releases": ({}, "P3", each(ir.Arrive, drop, to="others")),
    "released twice": ({}, "P2", each(ir.Arrive, twice, to="others")),
    "no bytes announced": ({}, "P1", each(ir.ExpectTx, drop, per="tile")),
    "announced twice": ({}, None, each(ir.ExpectTx, twice, per="tile")),
    "too few bytes announced": ({}, "P3", each(ir.ExpectTx, lambda s: replace(s, tx_bytes=s.tx_bytes - 16), per="tile")),
    "announced by all threads": ({}, None, each(ir.If, lambda s: s.body if getattr(s.body[0], "per", "") == "tile" else s, when="cta_leader")),
    "a wave not sent": (WAVES, "P3", each(ir.SendPartials, drop, wave=1)),
    "a wave sent twice": (WAVES, None, each(ir.SendPartials, twice, wave=1)),
    "a wave sent to another's place": (WAVES, None, each(ir.SendPartials, lambda s: replace(s, wave=0), wave=1)),
    "another wave's sums sent": (WAVES, "P10", each(ir.SendPartials, lambda s: replace(s, src="acc0"), wave=1)),
    "a wave not added": (WAVES, "P10", each(ir.AddPartials, drop, wave=1)),
    "added twice": ({}, "P10", each(ir.AddPartials, twice)),
    "sent on the other barrier": ({}, None, each(ir.SendPartials, lambda s: replace(s, barrier="partials_empty"))),
    "the parity never changes": ({}, None, each(ir.NextTurn, drop)),
    "the parity changes twice": ({}, None, each(ir.NextTurn, twice)),
    "senders wait for this tile's release": ({}, "P3", each(ir.Wait, lambda s: replace(s, flip=0), barrier="partials_empty")),
    "rank 0 waits for the tile before": ({}, None, each(ir.Wait, lambda s: replace(s, flip=1), barrier="partials_full")),
    "senders leave at once": ({}, "P11", last_wait),
    "every rank stores": ({}, None, each(ir.If, lambda s: s.body, when="finishes")),
    "every rank finishes what it has": ({}, "P2", each(ir.If, everywhere, when="finishes")),
    "every rank sends": ({}, None, each(ir.If, lambda s: s.body, when="sends")),
    "nobody takes a share": ({}, None, each(ir.TakeShare, drop)),
    "the producer takes none": ({}, None, role("producer", each(ir.TakeShare, drop))),
    "the consumers take none": ({}, None, role("consumer", each(ir.TakeShare, drop))),
    "the share of a share": ({}, None, role("producer", each(ir.TakeShare, twice))),
    "loads from K 0": ({}, "P10", each(ir.TmaLoad, lambda s: replace(s, coords=tuple(replace(c, start="") for c in s.coords)))),
    "the tile's first scales": ({}, "P10", each(ir.LoadBlockScales, lambda s: replace(s, block="first"), block="first of group")),
    "scales counted from the tile's first": ({}, "P10", each(ir.LoadBlockScales, lambda s: replace(s, block="next"), block="next of group")),
    "sums of a rank without K": ({}, "P10", each(ir.Zero, drop, dst="acc0")),
    "one arrival too many": ({}, None, barrier("partials_full", arrivals=2)),
    "one warp's release is enough": ({"block_m": 128, "consumers": 2}, None, barrier("partials_empty", arrivals=1)),
    "no rank waits for the others to begin": ({}, "P6", each(ir.Sync, drop, of="cluster_await")),
    "ranks send before the others have begun": ({}, "P6", each(ir.ForTiles, sent_first)),
    "only rank 0 waits": ({}, "P6", awaiting),
    "a CTA begins before its barriers are there": ({}, "P6", begun_first),
    "no CTA begins": ({}, "P8", each(ir.Sync, drop, of="cluster_arrive")),
    "a CTA begins twice": ({}, "P8", each(ir.Sync, twice, of="cluster_arrive")),
    "one thread of a CTA begins": ({}, "P8", each(ir.Sync, lambda s: ir.If(when="cta_leader", body=(s,)), of="cluster_arrive")),
    "one thread waits for the others": ({}, "P8", each(ir.Sync, lambda s: ir.If(when="leader", body=(s,)), of="cluster_await")),
    "a CTA's own threads do not wait for its barriers": ({}, "P6", each(ir.Sync, drop, of="cta")),
    "rank 0 leaves before the others have sent": ({}, "P4", each(ir.If, unheard, when="finishes")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses(fault):
    changes, property, change = FAULTS[fault]
    kernel = lower(FP8, config(**changes))
    check(kernel)
    wrong = change(kernel)
    assert wrong != kernel
    with pytest.raises(ProtocolViolation) as e:
        check(wrong)
    if property:
        assert e.value.property.id == property, e.value


def test_what_the_pass_leaves_alone():
    for p in (DENSE, FP8, VECTOR):
        kernel = lower(p, Config(stages=2))
        found = {type(s) for s in statements(kernel)}
        assert not found & {ir.TakeShare, ir.SendPartials, ir.NextTurn}
        assert not any(is_if(s, "sends", "finishes") for s in statements(kernel))
        assert not kernel.scheduler.shares and kernel.cluster.k == 1


def test_only_rank_0_has_an_epilogue():
    """Whatever the epilogue, it stands in what rank 0 alone does as a whole, after the sum."""
    kinds = ir.StageTile | ir.Evaluate | ir.TmaStore | ir.BulkRowStore | ir.StoreTail

    def of_epilogue(s):
        return isinstance(s, kinds) or is_fence(s, "async")

    for p in (DENSE, QUANTISED, replace(DENSE, grouping="masked"), FP8):
        kernel = lower(p, config(block_n=128, split_k=2))
        (tiles,) = (s for s in walk(kernel.roles[0].body) if isinstance(s, ir.ForTiles))
        (finish,) = (s for s in tiles.body if is_if(s, "finishes"))
        inside = [*filter(of_epilogue, walk(finish.body))]
        assert inside and inside == [*filter(of_epilogue, walk(tiles.body))]
        order = list(walk(finish.body))
        at = [i for i, s in enumerate(order) if isinstance(s, ir.AddPartials)]
        assert max(at) < min(i for i, s in enumerate(order) if of_epilogue(s))


# ---- faults in the text that the emulator must find -------------------------------------------------


def swap(pattern, new, count=1):
    return lambda source: re.sub(pattern, new, source, count=count)


TEXT_FAULTS = {
    "the last rank's range ends one early": swap(r"min\(share, tile\.k_blocks - first\)", "min(share, tile.k_blocks - first - 1)", 0),
    "ranges begin one late": swap(r"first = min\(cta_rank \* share,", "first = min(cta_rank * share + (cta_rank != 0),", 0),
    "shares round down": swap(r"\(tile\.k_blocks \+ CLUSTER_K - 1\) / CLUSTER_K", "tile.k_blocks / CLUSTER_K", 0),
    "the wrong slot": swap(r"\(cta_rank - 1\) \* Shared::PARTIALS_STAGE_BYTES", "(3 - cta_rank) % 3 * 8192 + (cta_rank == 2) * 64"),
    "two ranks in one slot": swap(r"\(cta_rank - 1\) \* Shared::PARTIALS_STAGE_BYTES", "(cta_rank - 1) / 2 * 8192"),
    "to the next CTA": swap(r"threadIdx\.x % 128 \* 16, 0\);", "threadIdx.x % 128 * 16, 1);"),
    "a register left out": swap(r"\+= d;", "+= 0 * d;"),
    "the first slot for all": swap(r"\(rank - 1\) \* Shared::PARTIALS_STAGE_BYTES", "0 * 8192"),
    "one slot fewer read": swap(r"rank < CLUSTER_K; \+\+rank", "rank < CLUSTER_K - 1; ++rank"),
    "the sum of a sum": swap(r"acc0\[i\] \+= a,", "acc0[i] += acc0[i] + a,"),
    "waits see their own CTA only": swap(r"try_wait\.parity\.acquire\.cluster\.", "try_wait.parity."),
    "one rank is not released": swap(r"lane < CLUSTER_K\) ptx::mbarrier_arrive_remote", "lane < CLUSTER_K - 1) ptx::mbarrier_arrive_remote"),
    "another rank stores": swap(r"if \(cta_rank == 0\) \{", "if (cta_rank < 2) {"),
    "tiles taken by each CTA alone": swap(r"index\(blockIdx\.x / \(CLUSTER_M \* CLUSTER_N \* CLUSTER_K\)\)", "index(blockIdx.x)"),
    "the parity stays": swap(r"turn\[0\] \^= 1;", ""),
    "an empty share reads past the scales": swap(r"kk = min\(tile\.k_first / 128 \+ lane, \(shape_k - 1\) / 128\)", "kk = tile.k_first / 128 + lane"),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_the_emulator_finds(fault):
    shape = 130, 96, 1300
    with pytest.raises(GemmgenError):
        judged(FP8, config(), shape, broken=TEXT_FAULTS[fault])


def test_names_say_so():
    assert lower(DENSE, config()).name.endswith("64x32x64_s2c1_k4")
    assert np.unique([lower(DENSE, config(split_k=n)).name for n in (1, 2, 4, 8)]).size == 4


@pytest.mark.nvrtc
def test_a_narrow_wait_is_a_race():
    """mbarrier.try_wait defaults to .cta: what another CTA stored is then not ordered (PTX ISA)."""
    with pytest.raises(Race):
        judged(FP8, config(), (64, 32, 600), broken=TEXT_FAULTS["waits see their own CTA only"])
