"""Tiles promoted in two parts of their columns. Results on the emulator, and faults that must show."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest
from emulated import judged, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, FP8, GROUPED, INT8_BLOCK, VECTOR, fitting

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import GemmgenError, IllegalConfig
from gemmgen.heuristics import candidates, choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import E4M3, E5M2
from gemmgen.ir.expr import fold
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200

PROMOTING = tuple(n for n in PROBLEMS if PROBLEMS[n]["family"] != "dense")
PLAIN = Problem(family="fp8", a=E4M3, b=E5M2)
MOE = replace(FP8, d=E4M3, epilogue=EPILOGUES["reglu"])  # SwiGLU's data movement, exact


def config(**changes) -> Config:
    return Config(**{"block_n": 256, "parts": 2, "stages": 2} | changes)


# ---- results --------------------------------------------------------------------------------

# Parts that are one scale block each, that share one, that a second one begins in: as a switch, as selects.
WIDTHS = (256, 192, 144, 128, 112, 64, 32)


RULES = ("wgmma-n", "multicast-slice", "register-budget", "scale-blocks")
RULES += ("output-scales", "output-pieces", "smem-capacity", "tile-rows", "tma-loads")
ROWS = (
    {},
    {"block_m": 64, "consumers": 1, "multicast": "b"},
    {"block_m": 256, "unroll": 4, "multicast": "a"},
    {"consumers": 1},
)


@pytest.mark.nvrtc
@pytest.mark.parametrize("block_n", WIDTHS)
@pytest.mark.parametrize("name", PROMOTING)
def test_widths(name, block_n):
    """The first way to share out rows that is legal, another one each time; tails in M, N and K."""
    p, number = problem(name, "none"), PROMOTING.index(name) + WIDTHS.index(block_n)
    for changes in (*ROWS[number % 4 :], *ROWS[: number % 4]):
        c = config(block_n=block_n, **changes)
        try:
            lower(p, c)
        except IllegalConfig as e:
            assert e.rule.id in RULES, e
            continue
        assert judged(p, c, (270, block_n + 9, 300), pad=number % 3).exact
        return
    assert p.a.integer and block_n // 2 % 16


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", PROMOTING)
def test_groups(name, grouping):
    p = problem(name, grouping)
    number = [*PROMOTING].index(name) + GROUPED.index(grouping)
    shape, sizes = ((300, 330, 200), (130, 0, 41)) if number % 2 else ((200, 264, 400), (70, 1))
    multicast = ("none", "a", "a" if grouping == "rows" else "b")[number % 3]
    c = config(block_n=192 if p.family == "fp8_1d1d" else 256, multicast=multicast)
    assert judged(p, c, shape, layout(p, shape, sizes), pad=number % 2).exact


PAIRED = {"fp8_block": FP8, "fp8": PLAIN, "s8_block": INT8_BLOCK, "fp8_1d1d": VECTOR}


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", ("none", *GROUPED))
@pytest.mark.parametrize("name", PAIRED)
def test_quantised_pairs(name, grouping):
    """The data movement bit for bit, then SwiGLU itself: the block-scaled, in each grouping."""
    for epilogue in ("reglu", "swiglu")[: 1 + (name == "fp8_block")]:
        p = replace(PAIRED[name], grouping=grouping, d=E4M3, epilogue=EPILOGUES[epilogue])
        shape, sizes = (200, 298, 136), (70, 0, 63)
        rows = {"block_m": 64, "consumers": 1} if name == "fp8_1d1d" else {}
        judged(p, config(**rows), shape, layout(p, shape, sizes), pad=len(name) % 2)


@pytest.mark.nvrtc
@pytest.mark.parametrize("multicast", ("none", "a", "b"))
@pytest.mark.parametrize("shape", ((1, 2, 16), (130, 514, 260), (300, 256, 128)))
def test_first_gemm_of_experts(shape, multicast):
    for block_m, consumers in ((128, 2), (64, 1)):
        c = config(block_m=block_m, consumers=consumers, multicast=multicast, unroll=4, stages=3)
        judged(MOE, c, shape, pad=shape[0] % 2)


@pytest.mark.nvrtc
@pytest.mark.parametrize("epilogue", ("bias_relu", "residual", "scaled", "silu"))
def test_epilogues(epilogue):
    for p in (FP8, replace(PLAIN, d=E4M3)):
        judged(replace(p, epilogue=EPILOGUES[epilogue]), config(), (70, 290, 200), pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (FP8, PLAIN, VECTOR), ids=lambda p: p.family)
def test_parts_change_no_bit(p):
    """On random data: the same products, in the same order, with the same scales."""
    configs = (Config(stages=2), config(block_n=128), config(block_n=192))
    assert same_bits(p, (50, 300, 700), configs, 4)


@pytest.mark.nvrtc
@pytest.mark.parametrize("seed", range(6))
def test_random_configs(seed):
    """Whatever is legal is proved and right."""
    random = Random(seed)
    tried = 0
    while tried < 2:
        p = problem(random.choice(PROMOTING), random.choice(("none", "none", *GROUPED)))
        if random.random() < 0.5:
            p = replace(p, d=E4M3, epilogue=EPILOGUES["reglu"])
        block_m, consumers = random.choice(((64, 1), (128, 1), (128, 2), (192, 3), (256, 2)))
        c = config(
            block_m=block_m,
            block_n=random.choice((256, random.randrange(16, 264, 8))),
            consumers=consumers,
            multicast=random.choice(("none", "none", "a", "b")),
            raster=random.choice("mn"),
            swizzle_ab=random.choice((None, None, 0, 32, 64)),
            swizzle_d=random.choice((None, None, 0, 32)),
            unroll=random.choice((1, 4)),
        )
        try:
            lower(p, c)
        except IllegalConfig as e:
            assert e.rule.id in RULES, e
            continue
        tried += 1
        sizes = tuple(random.choice((0, 1, 64, 70, 130)) for _ in range(random.randint(1, 4)))
        rows = random.randint(1, 200)
        if not GROUPINGS[p.grouping].rows and p.grouping != "none":
            rows = sum(-(-s // 128) * 128 for s in sizes) or 1
        shape = fitting(p, (rows, random.randint(1, 600), random.randint(1, 400)))
        judged(p, c, shape, layout(p, shape, sizes), pad=random.randint(0, 2), seed=seed)


# ---- what the compiler makes of it ------------------------------------------------------------


def test_registers_of_128x256():
    """Two consumers of 64 rows: 128 sums and 64 of a part fit beside what is moved to them."""
    kernel = lower(replace(MOE, grouping="masked"), config(stages=4))
    (consumer, _) = kernel.roles
    counts = {r.name: r.count for r in consumer.locals}
    assert (counts["acc0"], counts["part"], consumer.registers) == (128, 64, 232)


@pytest.mark.parametrize(
    ("block_n", "spelled"),
    (
        (256, (("block", 0, 0), ("block", 1, 1))),
        (128, (("block", 0, 0), ("block", 1, 0))),
        (192, (("split", 0, 0), ("split", 1, 0))),
        (144, (("split", 0, 0), ("split", 1, 0))),
    ),
)
def test_a_part_takes_the_scale_of_its_block(block_n, spelled):
    kernel = lower(FP8, config(block_n=block_n))
    found = [s for s in statements(kernel) if isinstance(s, ir.Promote)]
    assert tuple((s.by, s.part, s.block) for s in found) == spelled


def test_names_say_so():
    assert lower(FP8, config()).name.endswith("128x256x128_s2c2_p2")
    assert "parts" not in Config().to_json() and config().to_json()["parts"] == 2


@pytest.mark.parametrize("p", PAIRED.values(), ids=PAIRED)
def test_the_heuristics_take_parts_where_nothing_else_is_legal(p):
    moe = replace(p, d=E4M3, epilogue=EPILOGUES["swiglu"])
    for grouping, shape in (("none", (4096, 4096, 7168)), ("masked", (256, 4096, 7168))):
        c = choose(replace(moe, grouping=grouping), shape, H200, 8 if grouping != "none" else 1)
        assert (c.parts, c.block_n) == (2, 256)
    for other in (p, replace(moe, d=FP8.d), replace(p, d=E4M3), replace(DENSE, **vars_of(moe))):
        assert {c.parts for c in candidates(other, (4096, 4096, 7168), H200)} == {1}


def vars_of(p: Problem) -> dict[str, object]:
    return {"d": p.d, "epilogue": p.epilogue} if fold(p.epilogue) > 1 else {}


# ---- faults the proof must find ---------------------------------------------------------------


def each(kind, change):
    return lambda k: map_stmts(k, lambda s: change(s) if isinstance(s, kind) else s)


def released_early(kernel):
    """The stage is released before the last part's wait."""

    def change(s):
        if not any(isinstance(x, ir.Arrive) for x in s.body):
            return s
        body = list(s.body)
        at = next(i for i, x in enumerate(body) if isinstance(x, ir.Arrive))
        body[at - 1 : at + 1] = body[at - 1 : at + 1][::-1]
        return replace(s, body=tuple(body))

    return each(ir.ForK, change)(kernel)


def second(change):
    return lambda s: change(s) if s.part else s


FAULTS = {
    "the first part's columns of B": (FP8, {}, each(ir.Mma, lambda s: replace(s, part_bytes=0))),
    "the first part twice": (FP8, {}, each(ir.Mma, lambda s: replace(s, part=0, part_bytes=0))),
    "half of the part's columns": (FP8, {}, each(ir.Mma, lambda s: replace(s, part_bytes=s.part_bytes // 2))),
    "past the tile": (FP8, {}, each(ir.Mma, lambda s: replace(s, part=2 * s.part, part_bytes=2 * s.part_bytes))),
    "into the first part's registers": (FP8, {}, each(ir.Promote, lambda s: replace(s, part=0))),
    "into each other's registers": (FP8, {}, each(ir.Promote, lambda s: replace(s, part=1 - s.part))),
    "added to the first part": (PLAIN, {}, each(ir.Accumulate, lambda s: replace(s, part=0))),
    "the other block's scale": (FP8, {}, each(ir.Promote, lambda s: replace(s, block=1 - s.block))),
    "the first block's scale": (FP8, {}, each(ir.Promote, lambda s: replace(s, block=0))),
    "the second block's scale where both share one": (FP8, {"block_n": 128}, each(ir.Promote, lambda s: replace(s, block=s.part))),
    "one scale where two meet": (FP8, {"block_n": 192}, each(ir.Promote, lambda s: replace(s, by="block"))),
    "no second part": (FP8, {}, each(ir.Promote, second(lambda s: ()))),
    "the second part not multiplied": (FP8, {}, each(ir.Mma, second(lambda s: ()))),
    "promoted before it is waited for": (FP8, {}, each(ir.WgmmaWait, lambda s: replace(s, pending=1))),
    "released early": (FP8, {}, released_early),
    "released after the first part": (FP8, {}, lambda k: each(ir.ForK, lambda s: replace(s, body=tuple(
        y for x in s.body if not isinstance(x, ir.Arrive)
        for y in ((ir.Arrive(barrier="empty"), x) if isinstance(x, ir.Promote) and not x.part else (x,))))
        if any(isinstance(x, ir.Arrive) for x in s.body) else s)(k)),
    "the first part's column scales": (VECTOR, {"block_n": 192}, each(ir.LoadColumnScales, lambda s: replace(s, part=0))),
    "column scales of the first part only": (VECTOR, {"block_n": 192}, each(ir.LoadColumnScales, second(lambda s: ()))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses(fault):
    p, changes, change = FAULTS[fault]
    kernel = lower(p, config(**changes))
    check(kernel)
    wrong = change(kernel)
    assert wrong != kernel
    with pytest.raises(ProtocolViolation):
        check(wrong)


# ---- faults in the text that the emulator must find -------------------------------------------------


def swap(pattern, new, count=1):
    return lambda source: re.sub(pattern, new, source, count=count)


TEXT_FAULTS = {
    "the first part's columns of B": (FP8, {}, swap(r"ring\.stage \* Shared::B_STAGE_BYTES \+ 16384", "ring.stage * Shared::B_STAGE_BYTES")),
    "into the first part's registers": (FP8, {}, swap(r"acc0\[i \+ 6([4-7])\] \+=", lambda m: f"acc0[i + {int(m[1]) - 4}] +=", 0)),
    "a part 8 columns wide of its place": (FP8, {}, swap(r"acc0\[i \+ 64\] \+=", "acc0[i + 60] +=")),
    "the first block's scale": (FP8, {}, swap(r"\* block_scales\[1\]", "* block_scales[0]", 0)),
    "the switch counts from the part's first column": (FP8, {"block_n": 192}, swap(r"2 \* i \+ 96 <", "2 * i <", 0)),
    "selects count from the part's first column": (FP8, {"block_n": 144}, swap(r"2 \* i \+ 72 <", "2 * i <", 0)),
    "added to the first part": (PLAIN, {}, swap(r"acc0\[i \+ 64\] \+=", "acc0[i] +=")),
    "the first part's column scales": (VECTOR, {"block_n": 192}, swap(r" \+ 384 \+ 8 \* \(lane % 4\)", " + 8 * (lane % 4)")),
    "not waited for": (FP8, {}, lambda s: s[: s.index("acc0[i + 64]")][::-1].replace(";)(>0<tiaw_ammgw::xtp", ";)(>1<tiaw_ammgw::xtp", 1)[::-1] + s[s.index("acc0[i + 64]") :]),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_the_emulator_finds(fault):
    p, changes, broken = TEXT_FAULTS[fault]
    c, shape = config(**changes), (70, 520, 300)
    judged(p, c, shape)
    with pytest.raises(GemmgenError):
        judged(p, c, shape, broken=broken)
