"""The arithmetic of the cost model, and how near it is to what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen.config import Config
from gemmgen.cost import cost, count_tiles, dram_bytes, operand_bytes, terms
from gemmgen.cost_fit import FIT
from gemmgen.cost_launch import launch
from gemmgen.heuristics import candidates
from gemmgen.ir.dtypes import BF16, E4M3, F32
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.levers import ping_pong
from gemmgen.problem import Problem
from gemmgen.target import H100, H200

FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
GRADIENT = Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, accumulate=True)
DENSE = Problem(family="dense", a=BF16, b=BF16)


def test_cost_counts_waves_of_whole_clusters():
    c = Config(block_m=256, block_n=128, multicast="a")
    q = cost(FP8, c, (4096, 2112, 7168), H200)
    assert (q.tiles, q.waves) == (16 * 18, 3)  # 17 columns of tiles, 9 clusters
    assert q.last_wave_use == pytest.approx((288 - 264) / 132)


def test_cost_parts():
    q = cost(FP8, Config(block_m=256, block_n=128), (4096, 4096, 7168), H200)
    assert q.parts["tensor"] == q.tensor == max(q.parts.values())
    assert q.dram_bytes == 4096 * 7168 * 2 + 4096 * 4096 * 2 + 4 * (4096 + 32) * 56
    assert q.seconds > max(q.parts.values())


def test_multicast_halves_the_shared_operand():
    shape = (4096, 4096, 7168)
    plain = cost(DENSE, Config(block_m=256), shape, H200)
    shared = cost(DENSE, Config(block_m=256, multicast="a"), shape, H200)
    assert plain.l2_bytes - shared.l2_bytes == 512 * 7168 * 2 * 256 / 2
    assert shared.seconds < plain.seconds


def test_straddling_a_scale_block_costs_promotion():
    shape = (128, 8192, 4096)
    aligned, straddling = (cost(FP8, Config(block_n=n), shape, H200) for n in (128, 144))
    assert straddling.promotion / straddling.waves > 144 / 128 * aligned.promotion / aligned.waves


def test_exchanging_a_and_b_saves_tensor_and_shared_memory_work():
    shape, up, swapped = (
        (16, 7168, 16384),
        Config(block_m=64, block_n=64, consumers=1),
        Config(swap_ab=True, block_m=16, block_n=64, consumers=1),
    )
    for p in (FP8, DENSE):
        a, b = (cost(p, c, shape, H200) for c in (up, swapped))
        assert a.tiles == b.tiles and a.l2_bytes == b.l2_bytes, "TMA fetches no rows past M"
        assert b.tensor == pytest.approx(a.tensor / 4)
        assert b.smem_cycles < a.smem_cycles and b.seconds < a.seconds
    assert cost(FP8, up, shape, H200).promotion > cost(FP8, swapped, shape, H200).promotion


def test_several_tiles_of_few_rows_draw_the_same_weights():
    """Halving the rows doubles the tiles, not the CTAs that draw other bytes: what two ask for at once HBM sends in part
    again."""
    shape = (32, 2112, 7168)
    configs = [Config(swap_ab=True, block_m=m, block_n=64, consumers=1) for m in (32, 16)]
    one, two = (cost(FP8, c, shape, H200) for c in configs)
    once, again = (terms(FP8, c, shape, H200) for c in configs)
    assert two.tiles == 2 * one.tiles and two.dram_bytes == one.dram_bytes
    assert once.again == 0 and again.hbm - again.again == pytest.approx(once.hbm)
    sent_again = again.again / once.hbm * one.dram_bytes
    assert sent_again == pytest.approx(FIT.hbm_again / 2 * operand_bytes(FP8, shape)["b"])


def test_rows_of_no_group_are_multiplied_where_an_array_says_whose_rows_are_whose():
    """Up to where the next group begins: as many tiles as of whole multiples of the alignment."""
    few, padded = (
        launch(replace(FP8, grouping="rows"), (m, 2944, 3584), H200, 4) for m in (12, 128)
    )
    assert few.rows == padded.rows == (128,)
    low = launch(replace(FP8, grouping="rows", alignment=64), (12, 2944, 3584), H200, 4)
    assert low.rows == (64,) and launch(FP8, (12, 2944, 3584), H200).rows == (12,)
    config = Config(block_m=16, block_n=128, swap_ab=True)
    tiles = cost(replace(FP8, grouping="rows"), config, (12, 2944, 3584), H200, 4).tiles
    assert tiles == 4 * (128 // 16) * 23


@pytest.mark.parametrize(
    "config, rows",  # that the tiles of a group cover in the mean: it has 474 with those of none, 410 without
    [
        (Config(block_m=128), (384 * 2 + 512 * 3 + 640) / 6),
        (Config(block_m=128, multicast="b"), (512 * 5 + 768) / 6),
        (Config(block_m=256, block_n=112, multicast="b"), (512 * 5 + 1024) / 6),
    ],
    ids=("128", "a pair of 128", "a pair of 256"),
)
def test_groups_that_an_array_says_vary_in_whole_alignments(config, rows):
    """A cluster of many rows covers more than small groups have."""
    of = launch(replace(FP8, grouping="rows"), (474, 2688, 3584), H200, 8)
    assert of.rows == (384, 384, 512, 512, 512, 640)
    side = config.block_m * (2 if config.multicast == "b" else 1)
    assert of.covering(side) * side / len(of.rows) == pytest.approx(rows)


# Groups whose rows vary, timed on one H100: what was chosen when all were taken to be of the mean's size, and what was quicker.
ROWS_TIMED = (
    (
        DENSE,
        (38, 475, 896, 15744),
        Config(block_m=256, block_n=112, stages=3, multicast="b", in_flight=1),  # 1213 us
        Config(block_n=224, stages=3, multicast="b", in_flight=1),  # 882 us
    ),
    (
        DENSE,
        (12, 2006, 2176, 768),
        Config(
            block_n=96, stages=7, multicast="a", in_flight=1, d_columns=32, ping_pong=True
        ),  # 155 us
        Config(
            block_n=160, stages=5, multicast="a", in_flight=1, d_columns=32, ping_pong=True
        ),  # 128 us
    ),
    (
        Problem(family="fp8", a=E4M3, b=E4M3, epilogue="scaled"),
        (35, 805, 2112, 1664),
        Config(block_n=112, stages=6, multicast="b"),  # 249 us
        Config(block_n=144, stages=5, multicast="a", unroll=4),  # 228 us
    ),
)


@pytest.mark.parametrize("problem, shape, slow, quick", ROWS_TIMED)
def test_what_was_quicker_of_varying_groups_costs_less(problem, shape, slow, quick):
    (groups, *mnk), p = shape, replace(problem, grouping="rows")
    costs = [cost(p, c, tuple(mnk), H100, groups).seconds for c in (quick, slow)]
    assert costs[0] < costs[1]


RAGGED = [g for g in GROUPINGS if GROUPINGS[g].ragged]


@pytest.mark.parametrize("grouping", RAGGED)
@pytest.mark.parametrize(
    "rows, config, tiles",
    [  # tiles of six shares of the rows from 0.7 to 1.3, times 8 groups and 4 columns
        (128, Config(block_m=128), 48),  # 32 (1 + 1 + 1 + 2 + 2 + 2) / 6
        (128, Config(block_m=64, consumers=1), 80),  # 32 (2 + 2 + 2 + 3 + 3 + 3) / 6
        (100, Config(block_m=128), 37),  # 32 (5 + 2) / 6
        (128, Config(block_m=128, multicast="b"), 8 * 4 * 2),
        (224, Config(block_m=128, multicast="b"), 2 * 43),  # clusters of 256 rows: 32 (4 + 4) / 6
        (1, Config(block_m=64, consumers=1), 8 * 4),
    ],
)
def test_ragged_groups_vary_in_size(grouping, rows, config, tiles):
    shape = (rows, 512, 1024)
    even = cost(replace(FP8, grouping="batched"), config, shape, H200, 8)
    assert even.tiles == count_tiles(config, shape, 8)
    ragged = cost(replace(FP8, grouping=grouping), config, shape, H200, 8)
    assert ragged.tiles == tiles


def test_a_tile_as_tall_as_the_mean_is_charged_for_what_it_wastes():
    """Of even groups of 256 rows one tile each; a quarter more rows takes a second, mostly empty."""
    shape, tall, low = (256, 4096, 7168), Config(block_m=256), Config(block_m=128)
    even, ragged = (
        [cost(replace(FP8, grouping=g), c, shape, H200, 32).seconds for c in (tall, low)]
        for g in ("batched", "masked")
    )
    assert ragged[0] / ragged[1] > even[0] / even[1]


@pytest.mark.parametrize(
    "problem, shape, config, microseconds",
    [  # DeepGEMM on an H200, its tiles
        (FP8, (4096, 4096, 7168), Config(block_m=256, multicast="a"), 165.71),
        (FP8, (4096, 7168, 16384), Config(block_m=256, multicast="a"), 650.79),
        (FP8, (4096, 24576, 1536), Config(block_m=256, multicast="a"), 230.29),
        (FP8, (4096, 32768, 512), Config(block_m=256, multicast="a"), 126.99),
        (FP8, (4096, 2112, 7168), Config(block_n=192, multicast="b"), 94.14),
        (FP8, (64, 4096, 7168), Config(block_m=64, consumers=1, block_n=32), 13.63),
        (DENSE, (4096, 4096, 7168), Config(block_m=256, multicast="a", in_flight=1), 295.11),
        (DENSE, (4096, 2112, 7168), Config(block_n=176, multicast="b", in_flight=1), 159.1),
    ],
)
def test_the_model_is_near_what_was_measured(problem, shape, config, microseconds):
    assert cost(problem, config, shape, H200).seconds * 1e6 == pytest.approx(microseconds, rel=0.08)


def three(n: int, multicast: str = "none") -> Config:
    return Config(block_m=192, block_n=n, consumers=3, multicast=multicast)


def tall(n: int, d_columns: int, multicast: str = "none") -> Config:
    return Config(block_m=256, block_n=n, d_columns=d_columns, multicast=multicast)


@pytest.mark.parametrize(
    "groups, shape, timed",
    [  # the fastest of each tile in a tuning run on an H200, microseconds; groups split K
        (1, (7168, 4096, 16384), {tall(112, 16): 953.1, three(96, "a"): 1053.0}),
        (1, (4096, 4096, 7168), {tall(112, 16): 248.2, Config(multicast="a"): 255.2}),
        (1, (576, 4096, 7168), {three(96): 37.0, tall(96, 32): 52.1, Config(): 60.3}),
        (1, (24576, 4096, 1536), {three(96): 388.0, three(96, "a"): 404.6, tall(112, 16): 417.8}),
        (1, (32768, 4096, 512), {Config(multicast="a"): 420.0, tall(112, 16, "a"): 489.4}),
        (4, (7168, 2048, 8832), {tall(96, 32): 1162.0, three(96): 1209.0, three(96, "a"): 1273.0}),
        (8, (4096, 7168, 4000), {tall(96, 32): 2126.0, three(96): 2229.0, three(96, "a"): 2367.0}),
        (16, (4096, 7168, 2144), {tall(96, 32): 2528.0, three(96): 2604.0, three(96, "a"): 2803.0}),
    ],
)
def test_weight_gradients_are_priced_in_the_order_measured(groups, shape, timed):
    p = GRADIENT if groups == 1 else replace(GRADIENT, grouping="k_flat")
    prices = {c: cost(p, c, shape, H200, groups).seconds * 1e6 for c in timed}
    assert sorted(timed, key=prices.__getitem__) == sorted(timed, key=timed.__getitem__)
    for c, microseconds in timed.items():
        # Off by 12 % at most, but 19 % for 128x128 at 576 rows, which nobody would choose.
        assert prices[c] == pytest.approx(microseconds, rel=0.2 if shape[0] == 576 else 0.12)


def test_column_scales_are_loaded_once_for_all_waves():
    def of(c: Config) -> float:
        return terms(GRADIENT, c, (4096, 4096, 7168), H200).work.scales / 56

    assert of(Config()) == 256, "32 registers of each of 8 warps"
    assert of(Config(block_m=256)) == 256, "two waves, the same columns"
    assert of(Config(block_m=192, consumers=3)) == 384
    assert of(Config(block_m=256, parts=2)) == 512, "parts take turns in the registers"
    assert of(Config(block_m=64, swap_ab=True, block_n=128)) == 128, "the columns are A's rows"
    assert terms(FP8, Config(), (4096, 4096, 7168), H200).work.scales == 0


def test_loads_of_column_scales_take_the_shared_memory_port():
    """A profile says that 192x96 keeps it busy (docs/performance.md)."""
    shape = (4096, 4096, 7168)
    full, plain = (terms(p, three(96, "a"), shape, H200).full for p in (GRADIENT, FP8))
    assert full.bound == "shared"
    assert full.shared - plain.shared == 56 * 288
    assert terms(GRADIENT, Config(), shape, H200).full.bound == "chain"


def test_pieces_of_d_cost_their_rendezvous():
    shape = (4096, 4096, 7168)
    whole, wide, narrow = (
        terms(GRADIENT, Config(block_m=256, block_n=96, d_columns=x), shape, H200).work.epilogue
        for x in (None, 32, 16)
    )
    assert wide - whole == narrow - wide == 2 * 3 * 200


def test_l2_adds_narrow_boxes_slowly():
    shape = (32768, 4096, 512)
    wide, half, narrow = (
        cost(GRADIENT, Config(block_n=n), shape, H200).hbm for n in (96, 112, 104)
    )
    assert wide < half < 1.2 * wide < 1.6 * wide < narrow


def test_dividing_k_pays_where_sms_have_nothing_to_do():
    shape, plain = (16, 2112, 7168), Config(block_m=64, block_n=64, consumers=1)
    one, four = (cost(FP8, replace(plain, split_k=n), shape, H200) for n in (1, 4))
    assert (one.tiles, four.tiles, four.waves) == (33, 132, 2), "132 SMs hold 30 clusters of 4"
    assert four.tensor / four.waves == pytest.approx(one.tensor / 4)
    two = cost(FP8, replace(plain, split_k=2), shape, H200)
    assert two.seconds < four.seconds < one.seconds
    assert two.epilogue > one.epilogue and two.dram_bytes == one.dram_bytes
    large = (4096, 4096, 7168)
    assert (
        cost(FP8, plain, large, H200).seconds
        < cost(FP8, replace(plain, split_k=2), large, H200).seconds
    )


def test_clusters_that_are_refused_have_a_price():
    """So that an explanation can say why they are."""
    sixteen = Config(split_k=8, multicast="a")
    assert cost(DENSE, sixteen, (4096, 4096, 7168), H200).seconds > 0


def test_clusters_lie_in_gpcs():
    assert [H200.clusters(n) for n in (1, 2, 4, 8)] == [132, 66, 30, 15]


@pytest.mark.parametrize("problem", (FP8, DENSE, replace(FP8, grouping="masked")))
@pytest.mark.parametrize("shape", ((1, 576, 7168), (4096, 4096, 7168), (100, 777, 1000)))
def test_terms_add_up_to_the_cost(problem, shape):
    for c in candidates(problem, shape, H200, rows=shape[0]):
        t, q = terms(problem, c, shape, H200), cost(problem, c, shape, H200)
        assert t.seconds == q.seconds
        assert sum(t.added.values()) == pytest.approx(t.seconds, rel=1e-12)
        assert min(t.added.values()) >= 0
        resources = (t.full.tensor, t.full.shared, t.full.l2, t.full.chain)
        assert t.full.main == getattr(t.full, t.full.bound) == max(resources)


def test_operand_bytes_add_up_to_dram_bytes():
    found = operand_bytes(GRADIENT, (64, 256, 512))
    assert found == {
        "a": 64 * 512,
        "b": 256 * 512,
        "d": 2 * 4 * 64 * 256,
        "scales": 4 * (64 + 2) * 4,
    }
    assert dram_bytes(GRADIENT, (64, 256, 512)) == sum(found.values())


def test_one_stores_while_the_other_multiplies():
    """Of an epilogue shows what is longer than the other's main loop; the last tile's shows whole."""
    shared = Config(block_n=64, in_flight=1)
    turns = replace(shared, block_n=128, ping_pong=True)
    long, short = (4096, 32768, 4096), (4096, 32768, 64)
    t = terms(DENSE, turns, long, H200)
    assert t.full.epilogue == ping_pong.TURN < t.last.epilogue
    t = terms(DENSE, turns, short, H200)
    assert t.full.epilogue == pytest.approx(ping_pong.TURN + (t.last.epilogue - t.full.main) / 2)
    t = terms(DENSE, shared, long, H200)
    assert t.full.epilogue == t.last.epilogue


def test_a_lone_warpgroup_hides_no_promotion():
    shape = (4096, 8192, 4096)
    shared, turns = Config(), Config(ping_pong=True)
    assert terms(FP8, shared, shape, H200).full.promotion > 0
    t = terms(FP8, turns, shape, H200)
    assert t.full.promotion == 0 and t.full.bound == "chain", (
        "it is part of what one does in sequence"
    )


def test_narrow_pieces_and_a_shallow_ring_cost():
    shape = (4096, 32768, 64)
    turns = Config(ping_pong=True, in_flight=1)
    wide, narrow = (replace(turns, d_columns=n) for n in (64, 16))
    a, b = (terms(DENSE, c, shape, H200).last.epilogue for c in (wide, narrow))
    assert b - a == 16 * (ping_pong.PIECE + ping_pong.NARROW_PIECE) - 4 * ping_pong.PIECE
    whole, pieces = (terms(DENSE, c, shape, H200).full for c in (turns, wide))
    assert whole.l2_exposed - pieces.l2_exposed == pytest.approx(ping_pong.WHOLE * whole.main)
