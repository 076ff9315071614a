"""Groups that are summed: the schedule, the proof, what is computed, what is chosen (docs/adr/0076-sums-of-groups.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from draws import draws
from emulated import judged
from kernels import DENSE, DENSE_F32, DENSE_NN, DENSE_TN, DENSE_TT, FP8, VECTOR, W4A16, emitted

from gemmgen.check import ProtocolViolation, check
from gemmgen.check.audit import audit
from gemmgen.config import Config
from gemmgen.cost import cost, floors
from gemmgen.cost_launch import count_tiles, flops, operand_bytes
from gemmgen.emulator import EmulatorError
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, VerificationError
from gemmgen.families import build
from gemmgen.heuristics import choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.counts import MOST_SIDE
from gemmgen.ir.dealing import IDLE
from gemmgen.ir.dtypes import E4M3, F16, S8, S32
from gemmgen.ir.groupings import Layout
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.launch import check_launch, grid
from gemmgen.schedulers import order
from gemmgen.target import H200
from gemmgen.verification import exact_integers, ladder, random_normal
from gemmgen.verification.parts import parts
from gemmgen.verification.trial import share_of

SUMMED = replace(DENSE, grouping="summed")
ADDED = replace(DENSE_F32, grouping="summed", accumulate=True)
TURNED, STRAIGHT, MIXED = (replace(p, grouping="summed") for p in (DENSE_TN, DENSE_TT, DENSE_NN))
SMALL = Config(block_m=64, consumers=1, block_n=64, stages=3)
DIVIDED, STREAMED = replace(SMALL, split_k=4), replace(SMALL, stream=True)


def of(groups):
    return Layout(groups=groups)


# ---- problems -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", (FP8, VECTOR, W4A16), ids=lambda p: p.family)
def test_scaled_and_packed_operands_are_not_summed(p):
    with pytest.raises(ArgumentError, match=f"none that sums groups in {p.family}") as e:
        replace(p, grouping="summed")
    assert (e.value.argument, e.value.value) == ("grouping", "summed")


def test_b_is_no_weight():
    with pytest.raises(ArgumentError, match="are summed, B is no weight"):
        replace(SUMMED, weights_ready=True)


def test_the_names_say_it():
    p = Problem.from_json(SUMMED.to_json())
    assert p == SUMMED and emitted(p, SMALL).kernel.name.startswith("gemmgen_dense_summed_gemm")


# ---- the schedule and the proof -----------------------------------------------------------------

GROUPS = (1, 2, 5, 129)
CONFIGS = (SMALL, DIVIDED, STREAMED, replace(SMALL, multicast="a"), replace(SMALL, shares=2))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.split_k}-{c.stream}-{c.multicast}")
def test_every_tile_sums_every_group_once(config):
    k = lower(SUMMED, config)
    for groups in GROUPS:
        for ctas in (1, 2, 7):
            for shape in ((1, 1, 1), (200, 130, 72), (130, 400, 200)):
                ctas_ = ctas * k.cluster.size
                blocks = -(-shape[2] // 64) * groups * -(-shape[0] // 64) * -(-shape[1] // 64)
                if config.stream and blocks < ctas:
                    continue
                found = audit(k.scheduler, k.block, k.cluster, shape, ctas_, of(groups))
                assert not list(found)


def test_an_audit_that_is_told_of_one_group_finds_the_others():
    k = lower(SUMMED, SMALL)
    walks = list(order(k.scheduler, k.block, k.cluster, (64, 64, 72), 1, 0, of(3)))
    assert [t.k_blocks for t in walks] == [6]
    plain = replace(k.scheduler, summed=False)
    walks = list(order(plain, k.block, k.cluster, (64, 64, 72), 1, 0, of(3)))
    assert [t.k_blocks for t in walks] == [2]
    assert list(audit(plain, k.block, k.cluster, (64, 64, 72), 1, of(3)))


def loads(k):
    return [s for s in statements(k) if isinstance(s, ir.TmaLoad)]


@pytest.mark.parametrize("p", (SUMMED, TURNED), ids=lambda p: p.layout)
@pytest.mark.parametrize("config", (SMALL, STREAMED))
def test_a_box_lies_in_one_group(p, config):
    start = "tile.k_first" if config.stream else ""
    k = lower(p, config)
    for s in loads(k):
        along, group = (c for c in s.coords if c.base == "k")
        assert s.coords[2] is group and (group.of, along.of) == ("group", "depth")
        assert group.start == along.start == start and group.scale == along.scale == 64
    assert not k.groups.rows and not k.groups.columns and k.groups.summed
    assert [m.grouped for m in k.maps] == [True, True, False]


def misplaced(k, change):
    def visit(s):
        return replace(s, coords=tuple(map(change, s.coords))) if isinstance(s, ir.TmaLoad) else s

    return map_stmts(k, visit)


@pytest.mark.parametrize(
    "change",
    (
        lambda c: replace(c, of="") if c.of == "depth" else c,
        lambda c: replace(c, of="depth") if c.of == "group" else c,
        lambda c: replace(c, start="") if c.of == "group" else c,
        lambda c: ir.Coord(base="tile.a_row") if c.of == "group" else c,
    ),
)
def test_the_proof_asks_where_boxes_lie(change):
    k = lower(SUMMED, STREAMED)
    check(k)
    with pytest.raises(ProtocolViolation, match="map_a"):
        check(misplaced(k, change))


def test_one_gemm_has_no_depth():
    k = lower(DENSE, SMALL)
    with pytest.raises(ProtocolViolation, match="placed along k in depth of it"):
        check(misplaced(k, lambda c: replace(c, of="depth") if c.base == "k" else c))


def test_the_k_of_all_groups_is_counted_in_32_bits():
    k = lower(SUMMED, SMALL)
    most = MOST_SIDE // 128
    check_launch(k, (64, 64, 100), most)
    with pytest.raises(ArgumentError, match="whole K blocks") as e:
        check_launch(k, (64, 64, 100), most + 1)
    assert (e.value.argument, e.value.value) == ("groups, k", (most + 1, 100))


def test_the_grid_has_the_tiles_of_one_gemm_or_a_stretch_for_each_sm():
    shape = (128, 384, 128)
    assert grid(lower(SUMMED, SMALL), shape, 132, 4096) == 12
    assert grid(lower(SUMMED, DIVIDED), shape, 132, 4096) == 48
    assert grid(lower(SUMMED, STREAMED), shape, 132, 4096) == 132
    assert grid(lower(SUMMED, STREAMED), shape, 132, 2) == 12 * 2 * 2


# ---- what is multiplied -------------------------------------------------------------------------


@pytest.mark.parametrize("draw", (exact_integers, ladder, random_normal))
def test_inputs_are_one_gemms(draw):
    """Every product shows in the sum of all, as of one GEMM with the K of all groups."""
    x = draw(SUMMED, 5, 8, 72, 3, of(4))
    assert x.a.shape == (4, 5, 72) and x.b.shape == (4, 8, 72) and x.d_groups == ()
    one = draw(replace(SUMMED, grouping="none"), 5, 8, 4 * 72, 3)
    assert (np.concatenate(list(x.a), 1) == one.a).all()
    (part,) = parts(SUMMED, x, 3, 64)
    assert part.rows == slice(0, 5) and part.operands.shape == (5, 8, 4 * 128)
    padding = part.operands.a.reshape(5, 4, 128)
    assert (padding[:, :, :72].swapaxes(0, 1) == x.a).all() and not padding[:, :, 72:].any()


def test_shares_are_of_the_k_of_all():
    assert share_of(lower(SUMMED, DIVIDED), 72, of(5)) == 3 * 64  # 10 K blocks among 4
    assert share_of(lower(SUMMED, SMALL), 72, of(5)) == 0


F8 = Problem(family="fp8", a=E4M3, b=E4M3, grouping="summed", epilogue=EPILOGUES["scaled"])
TRIALS = {
    "one batch": (SUMMED, SMALL, (64, 64, 128), 1),
    "k tails": (ADDED, SMALL, (70, 136, 72), 3),
    "one of k": (TURNED, SMALL, (72, 64, 1), 7),
    "many batches": (SUMMED, replace(SMALL, unroll=3), (64, 64, 8), 129),
    "divided": (SUMMED, DIVIDED, (70, 64, 72), 5),
    "fewer k blocks than ctas": (SUMMED, replace(SMALL, split_k=8), (64, 64, 64), 3),
    "streamed": (ADDED, STREAMED, (70, 136, 72), 5),
    "streamed, one tile": (SUMMED, STREAMED, (64, 64, 200), 4),
    "streamed nn": (MIXED, STREAMED, (64, 64, 72), 3),
    "tn": (TURNED, DIVIDED, (72, 72, 70), 4),
    "tt": (STRAIGHT, SMALL, (72, 64, 72), 3),
    "shares": (SUMMED, replace(SMALL, shares=2, in_flight=1), (64, 64, 40), 5),
    "slices": (SUMMED, replace(SMALL, consumers=2, stages=4, slice_k=True), (64, 64, 72), 5),
    "swapped": (SUMMED, replace(SMALL, swap_ab=True, block_m=24, split_k=2), (17, 64, 72), 5),
    "multicast a": (SUMMED, replace(SMALL, multicast="a"), (64, 130, 72), 3),
    "multicast b": (STRAIGHT, replace(SMALL, multicast="b"), (136, 64, 72), 3),
    "in turns": (
        ADDED,
        replace(SMALL, consumers=2, ping_pong=True, in_flight=1),
        (130, 136, 72),
        3,
    ),
    "f16": (replace(SUMMED, a=F16, b=F16, d=F16), SMALL, (64, 64, 72), 3),
    "s8": (replace(SUMMED, a=S8, b=S8, d=S32), STREAMED, (64, 64, 144), 3),
    "fp8, promoted": (F8, replace(SMALL, unroll=2), (64, 64, 144), 3),
    "bias": (replace(SUMMED, epilogue=EPILOGUES["bias_silu"]), SMALL, (64, 64, 72), 3),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", TRIALS)
def test_emulated(name):
    p, config, shape, groups = TRIALS[name]
    judged(p, config, shape, of(groups), pad=1, sms=4)


@pytest.mark.nvrtc
@pytest.mark.parametrize("seed", range(draws(8)))
def test_anywhere(seed):
    import random

    drawn = random.Random(seed)
    p = drawn.choice((SUMMED, ADDED, TURNED, STRAIGHT, MIXED))
    config = drawn.choice((SMALL, DIVIDED, STREAMED))
    step = 1 if p.layout == "tn" else 8
    shape = 8 * drawn.randint(1, 18), 8 * drawn.randint(1, 18), step * drawn.randint(1, 140 // step)
    judged(p, config, shape, of(drawn.randint(1, 9)), pad=seed % 2, sms=drawn.choice((4, 8)))


@pytest.mark.nvrtc
@pytest.mark.parametrize("groups", (5, 9))
def test_the_bits_are_the_same_whoever_is_late(groups):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.emulator import Eager, Late, Random
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.trial import output, pitches

    for config in (DIVIDED, STREAMED):
        a, shape = emitted(ADDED, config), (64, 72, 72)
        program, x = prepare(a.kernel, a.source), random_normal(ADDED, *shape, 5, of(groups))
        strides = pitches(a.kernel, shape)
        guarded = output(ADDED, x, strides)
        found = [
            EmulatedGpu(sms=8, schedule=s, resident=8).execute(program, x, strides, guarded, 0)
            for s in (None, Eager(), Late(), Random(seed=3))
        ]
        assert all((other == found[0]).all() for other in found[1:])


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("/ BLOCK_K * BLOCK_K;", "/ BLOCK_K;"),
        ("% depth", "% shape_k"),
        ("/ depth", "/ shape_k"),
        ("depth * groups", "shape_k * groups"),
        ("(k * 64) / depth);", "0);"),
    ),
)
def test_faults_are_found(old, new):
    with pytest.raises((VerificationError, EmulatorError)):
        judged(
            SUMMED, SMALL, (64, 64, 72), of(3), pad=1, sms=4, broken=lambda x: x.replace(old, new)
        )


@pytest.mark.nvrtc
def test_the_command_line_takes_them(capsys):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.cli import main

    command = "run dense --grouping summed --rows 64,64,64 -m 64 -n 72 -k 40 --device emulator"
    assert main(command.split()) == 0
    assert "gemmgen_dense_summed_gemm" in capsys.readouterr().out


# ---- what is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ((128, 384, 128), (256, 256, 256), (384, 128, 384)))
def test_ctas_divide_a_sum_of_few_batches(shape):
    c = choose(ADDED, shape, H200, 129)
    assert c.stream or c.split_k > 1
    assert grid(lower(ADDED, c), shape, H200.sms, 129) > H200.sms / 2


@pytest.mark.parametrize("groups", (4096, 8192))
@pytest.mark.parametrize("shape", ((128, 384, 128), (256, 256, 256), (384, 128, 384)))
def test_all_sms_share_a_long_sum(shape, groups):
    """Few tiles: a cluster has too few CTAs."""
    c = choose(ADDED, shape, H200, groups)
    price = cost(ADDED, c, shape, H200, groups)
    tiles = count_tiles(c, shape)
    ctas = grid(lower(ADDED, c), shape, H200.sms, groups)
    assert c.stream and tiles < H200.sms
    assert ctas == H200.sms or (ctas % tiles == 0 and (H200.sms - ctas) * IDLE <= H200.sms)
    for other in (replace(c, stream=False), replace(c, stream=False, split_k=8)):
        assert cost(ADDED, other, shape, H200, groups).seconds > price.seconds


def test_one_batch_is_one_gemm():
    shape = (4096, 4096, 4096)
    one = replace(SUMMED, grouping="none")
    assert choose(SUMMED, shape, H200, 1) == choose(one, shape, H200)
    assert not choose(SUMMED, (4096, 4096, 512), H200, 8).stream


def test_the_price_is_of_one_gemm_with_the_k_of_all():
    """But for D, which is one either way."""
    one = replace(SUMMED, grouping="none")
    for groups in (1, 3, 16):
        deep = (256, 512, 128 * groups)
        assert operand_bytes(SUMMED, (256, 512, 128), groups) == operand_bytes(one, deep)
        here = cost(SUMMED, Config(), (256, 512, 128), H200, groups)
        assert here == cost(one, Config(), deep, H200)
        assert floors(SUMMED, (256, 512, 128), H200, groups) == floors(one, deep, H200)
    assert flops((2, 3, 5), 7) == 2 * 7 * 30


def test_a_tail_of_k_is_a_k_block_of_each_group():
    tail, whole = (cost(SUMMED, Config(), (4096, 4096, k), H200, 8).tensor for k in (65, 128))
    assert tail == whole


def test_what_is_shown():
    from gemmgen.see.explain import explain
    from gemmgen.see.instance import instance, mean_shape

    assert mean_shape(SUMMED, (64, 64, 72), of(5)) == (64, 64, 72)
    found = instance(lower(SUMMED, SMALL), (64, 64, 72), 1, of(5))
    assert (found.tiles, found.k_blocks) == (1, 10)
    c = choose(SUMMED, (128, 384, 128), H200, 129)
    shown = explain(SUMMED, c, (128, 384, 128), "cost model", groups=129)
    assert shown.floor.flops == 2 * 129 * 128 * 384 * 128 and shown.runners_up


def test_build_knows_no_groups_of_tiles():
    assert build(SUMMED, SMALL).scheduler.params == ()
