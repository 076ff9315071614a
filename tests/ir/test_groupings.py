"""Groupings: what they compute, how they are walked, and every one of them on the emulator."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from itertools import chain, product
from random import Random

import numpy as np
import pytest
from grouped import CASES, PROBLEMS, layout, problem
from kernels import DENSE as DENSE_BF16
from kernels import FP8, GROUPED, emitted
from test_scheduler import SHIM, device_code

from gemmgen.check.audit import audit
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, GemmgenError
from gemmgen.families import build
from gemmgen.heuristics import choose
from gemmgen.ir.groupings import ALIGNMENTS, DENSE, GROUPINGS, Layout, check_layout, segments
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.schedulers import order
from gemmgen.target import H200
from gemmgen.verification import exact_integers
from gemmgen.verification.groups import cleared, owned, some
from gemmgen.verification.parts import parts


def rows_of(grouping, rows, table, alignment=128, groups=3):
    found = segments(grouping, rows, Layout(groups=groups, table=table), alignment)
    return [(s.group, s.first, s.end) for s in found]


def test_segments_by_hand():
    assert rows_of("batched", 7, ()) == [(0, 0, 7), (1, 0, 7), (2, 0, 7)]
    assert rows_of("masked", 7, (3, 0, 9)) == [(0, 0, 3), (1, 0, 0), (2, 0, 7)]
    assert rows_of("ends", 400, (100, 128, 300)) == [(0, 0, 100), (1, 128, 128), (2, 128, 300)]
    assert rows_of("ends", 400, (100, 64, 300), 64) == [(0, 0, 100), (1, 128, 128), (2, 128, 300)]
    table = (0,) * 100 + (-1,) * 28 + (2,) * 130 + (-1,) * 142
    assert rows_of("rows", 400, table) == [(0, 0, 100), (2, 128, 258)]


@pytest.mark.parametrize(
    ("grouping", "table", "message"),
    (
        ("masked", (1, 2), "3 entries"),
        ("rows", (0,) * 10, "400 entries"),
        ("rows", (0,) * 100 + (1,) * 300, "multiples of 128"),
        ("rows", (3,) * 400, "0 to 2"),
        ("batched", (1,), "0 entries"),
    ),
)
def test_wrong_layouts(grouping, table, message):
    with pytest.raises(ArgumentError, match=message):
        check_layout(grouping, 400, Layout(groups=3, table=table), 128)


def test_problem():
    p = replace(FP8, grouping="ends", alignment=64)
    assert Problem.from_json(p.to_json()) == p
    assert "grouping" not in FP8.to_json(), "headers of kernels without groups stay as they are"
    for wrong in ({"grouping": "some"}, {"alignment": 96}):
        with pytest.raises(ArgumentError) as e:
            replace(FP8, **wrong)
        assert e.value.argument in wrong


# ---- the walk -----------------------------------------------------------------------------------

MULTICASTS = ("none", "a", "b")


def configs(grouping):
    for multicast in MULTICASTS:
        for raster in "mn":
            yield Config(
                block_n=112,
                stages=2,
                multicast=multicast,
                raster=raster,
                panel=3,
            )


def drawn(p, random):
    shape = random.randint(1, 1500), random.randint(1, 900), random.randint(1, 700)
    sizes = tuple(
        random.choice((0, 1, 64, random.randint(0, 700))) for _ in range(random.randint(1, 7))
    )
    return shape, layout(p, shape, sizes)


EMPTY = (0, 1, 15, 16, 17, 18, 33, 34, 35)  # about as many as a walk looks at once, and twice


def sparse(p, random):
    """Groups with rows behind runs of groups without, and one such run behind them."""
    shape = random.randint(1, 3000), random.randint(1, 300), random.randint(1, 700)
    runs = ([0] * n + [random.randint(0, 150)] for n in random.sample(EMPTY, len(EMPTY)))
    return shape, layout(p, shape, (*chain(*runs), *(0,) * random.choice(EMPTY)))


@pytest.mark.parametrize("grouping", GROUPED)
def test_every_tile_once(grouping):
    random = Random(7)
    p = replace(FP8, grouping=grouping)
    for config in configs(grouping):
        k = build(p, config)
        for _ in range(40):
            shape, groups = drawn(p, random)
            ctas = k.cluster.size * random.randint(1, 40)
            assert not list(audit(k.scheduler, k.block, k.cluster, shape, ctas, groups))


MAIN = """
int main() {
    int m, n, k, groups, entries;
    while (std::scanf("%d %d %d %d %d %d", &m, &n, &k, &gridDim.x, &groups, &entries) == 6) {
        std::vector<int> table(entries + 1);
        for (int i = 0; i < entries; ++i) std::scanf("%d", &table[i]);
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
            Scheduler scheduler(m, n, k, ARGUMENTS);
            for (Tile t; scheduler.next(t);) {
                std::printf("%d %d %d %d %d %d %d", blockIdx.x, t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks, t.group);
                std::printf(" %d %d %d %d\\n", REST);
            }
        }
        std::printf("end\\n");
    }
}
"""
ROWS = ("d_end", "0", "0", "0")
DEPTHS = ("k_first", "k_end", "slot", "opens_group")
ARGUMENTS = {
    "group_depths": "&table[0]",
    "groups": "groups",
    "group_rows": "&table[0]",
    "group_ends": "&table[0]",
    "row_groups": "&table[0]",
}


@pytest.mark.parametrize("multicast", MULTICASTS)
@pytest.mark.parametrize(
    ("grouping", "alignment"), [*product(GROUPED, ALIGNMENTS), *product(("ends",), DENSE)]
)
def test_the_device_walks_as_python_does(grouping, multicast, alignment, tmp_path):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    p = replace(FP8 if alignment > 1 else DENSE_BF16, grouping=grouping, alignment=alignment)
    config = Config(block_m=64, consumers=1, block_n=112, stages=2, multicast=multicast, panel=3)
    a = emitted(p, config)
    names = ", ".join(ARGUMENTS[x] for x in a.kernel.scheduler.params)
    shim = f"#include <vector>\n{SHIM}\nusing std::max;\ninline int __ldg(const int* p) {{ return *p; }}\n"
    program = tmp_path / "walk.cpp"
    rest = DEPTHS if GROUPINGS[grouping].depths else ROWS
    fields = ", ".join(x if x == "0" else f"t.{x}" for x in rest)
    main = MAIN.replace("ARGUMENTS", names).replace("REST", fields)
    program.write_text(shim + device_code(a.source) + main)
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unused-result", "-Wno-unknown-pragmas"]
    subprocess.run(["g++", *flags, "-o", tmp_path / "walk", program], check=True)
    random = Random(3)
    asked, expected = [], []
    for i in range(40):
        shape, groups = (sparse if i % 4 == 0 else drawn)(p, random)
        ctas = a.kernel.cluster.size * random.randint(1, 30)
        numbers = (*shape, ctas, groups.groups, len(groups.table), *groups.table)
        asked.append(" ".join(map(str, numbers)))
        k = a.kernel
        for cta in range(ctas):
            for t in order(k.scheduler, k.block, k.cluster, shape, ctas, cta, groups):
                place = (cta, t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks, t.group)
                more = (int(getattr(t, x, 0)) for x in rest)
                expected.append(" ".join(map(str, (*place, *more))))
        expected.append("end")
    run = subprocess.run(
        [tmp_path / "walk"], input="\n".join(asked), capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == expected


# ---- verification -------------------------------------------------------------------------------


@pytest.mark.parametrize("grouping", GROUPED)
def test_parts_make_up_the_whole(grouping):
    p = problem("fp8_rowwise", grouping)
    groups = some(p, (300, 40, 64))
    x = exact_integers(p, 300, 40, 64, 1, groups)
    gap = 2 * GROUPINGS[grouping].outputs
    mine = np.zeros(x.d_rows(gap), int)
    for part in parts(p, x, gap):
        m, n, k = part.operands.shape
        assert n == 40 and m == part.rows.stop - part.rows.start
        assert k == 64 or GROUPINGS[grouping].depths
        assert part.operands.arguments["row_scale"].shape == (m,)
        assert part.operands.arguments["column_scale"].shape == (40,)
        mine[part.rows] += 1
    assert (mine == owned(p, 300, groups, gap)).all()
    assert cleared(p, 300, groups, gap).any() == (grouping == "rows")


# ---- the emulator -------------------------------------------------------------------------------


def emulated(p, config, shape, groups, pad=0, broken=None):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.trial import judge

    a = emitted(p, config)
    source = broken(a.source) if broken else a.source
    assert not broken or source != a.source
    return judge(EmulatedGpu(), prepare(a.kernel, source), a.kernel, p, shape, 1, pad, groups)


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", PROBLEMS)
def test_emulated(name, grouping):
    """Each with another shape, multicast and tile; rows and groups padded every other time."""
    number = 3 * [*PROBLEMS].index(name) + GROUPED.index(grouping)
    case = number % len(CASES)
    p, (shape, sizes) = problem(name, grouping), CASES[case]
    block_m = (64, 128)[number % 2]
    config = Config(
        block_m=block_m,
        consumers=block_m // 64,
        block_n=(64, 96)[case % 2],
        stages=3,
        multicast=MULTICASTS[number % 3],
    )
    if p.family == "fp8_1d1d" or (p.family == "fp8_block" and block_m == 64):
        config = replace(config, block_n=64)
    emulated(p, config, shape, layout(p, shape, sizes), pad=number % 2)


MANY = ((200, 40, 200), (0,) * 3 + (60,) + (0,) * 18 + (1,) + (0,) * 8)


@pytest.mark.nvrtc
@pytest.mark.parametrize("broken", (None, (r"groups - AHEAD\)", "groups - AHEAD + 1)")))
@pytest.mark.parametrize("grouping", ("masked", "ends"))
def test_many_groups_of_which_few_have_rows(grouping, broken):
    """And nothing behind the table is read."""
    p, (shape, sizes) = replace(FP8, grouping=grouping), MANY
    config = Config(block_m=64, consumers=1, block_n=64, stages=2)
    shape = (64, *shape[1:]) if grouping == "masked" else shape
    of = partial(emulated, p, config, shape, layout(p, shape, sizes))
    if broken is None:
        of()
        return
    with pytest.raises(GemmgenError):
        of(broken=swap(*broken))


PAST_THE_END = (
    (300, 40, 200),
    (1, 64, 65, 0, 130, 200),
)  # of 256 rows 1, 1, 2, 3 and 4 blocks of 64
RAGGED = [g for g in GROUPED if GROUPINGS[g].ragged or GROUPINGS[g].again]


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", RAGGED)
@pytest.mark.parametrize(
    ("name", "changes"),
    (
        ("fp8_block", {"multicast": "a"}),
        ("fp8_rowwise", {"consumers": 1, "block_m": 128}),
        ("bf16", {"in_flight": 1}),
        ("bf16", {"unroll": 4, "multicast": "b"}),
        ("s8", {"in_flight": 1, "block_m": 128}),
        ("fp8_block", {"consumers": 3, "block_m": 192}),
    ),
)
def test_whole_blocks_past_the_end(name, changes, grouping):
    p, (shape, sizes) = problem(name, grouping), PAST_THE_END
    if grouping == "ends":
        shape = (sum(-(-s // 128) * 128 for s in sizes), *shape[1:])
    config = Config(**{"block_m": 256, "block_n": 48, "stages": 2} | changes)
    emulated(p, config, shape, layout(p, shape, sizes))


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", RAGGED)
def test_what_is_multiplied(grouping):
    """As many wgmma as there are tiles with rows of a group, no more."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.trial import judge

    p, (shape, sizes) = problem("fp8_block", grouping), PAST_THE_END
    shape = (sum(-(-s // 128) * 128 for s in sizes), *shape[1:])
    a = emitted(p, Config(block_m=256, block_n=48, stages=2))
    gpu = EmulatedGpu()
    judge(gpu, prepare(a.kernel, a.source), a.kernel, p, shape, 1, 0, layout(p, shape, sizes))
    blocks, k_blocks, warps = 4 * sum(-(-s // 256) for s in sizes), -(-200 // 128), 4
    group = ("fence", "mma", "mma", "mma", "mma", "commit", "wait")
    for stats in gpu.stats:
        run = sum(roots["wgmma"] for roots in stats.opcodes.values())
        assert run == blocks * k_blocks * warps * len(group)


def swap(pattern, new):
    return lambda source: re.sub(pattern, new, source, count=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("grouping", "broken"),
    (
        ("masked", swap(r"min\(64, tile\.d_end", "min(64, shape_m")),
        ("ends", swap(r"min\(64, tile\.d_end", "min(64, shape_m")),
        ("masked", swap(r"if \(to < tile\.d_end\)", "if (to < shape_m)")),
        ("masked", swap(r"\+ 64 <= tile\.d_end", "<= tile.d_end")),
        ("ends", swap(r"\+ 64 > tile\.d_end", "> tile.d_end")),
        ("rows", swap(r"< 0 \? 0 :", "< -1 ? 0 :")),
        ("rows", swap(r"m \* CLUSTER_M \* BLOCK_M\), 0\)", "0), 0)")),
        ("batched", swap(r"tile\.b_row, tile\.group\)", "tile.b_row, 0)")),
        ("batched", swap(r"tile\.group \* scale_b_stride_g", "0 * scale_b_stride_g")),
        ("masked", swap(r"tile\.group \* d_stride_g", "0 * d_stride_g")),
        ("ends", swap(r"\+ 127\) / 128 \* 128", "+ 63) / 64 * 64")),
    ),
)
def test_faults_are_found(grouping, broken):
    found(grouping, broken, {})


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "broken",
    (
        swap(r"row_groups \+ start\), 0\)", "row_groups), 0)"),
        swap(r"end \+= ALIGNED", "end += 2 * ALIGNED"),
        swap(r"\+ 64 <= tile\.d_end", "<= tile.d_end"),
        swap(r"min\(64, tile\.d_end", "min(64, shape_m"),
    ),
)
def test_faults_of_runs_are_found(broken):
    found("rows", broken, {"block_m": 192, "consumers": 3})


def found(grouping, broken, changes):
    p = replace(FP8, grouping=grouping)
    config = Config(**{"block_n": 64, "stages": 2} | changes)
    groups = layout(p, (400, 67, 200), (130, 60, 70))
    with pytest.raises(GemmgenError):
        emulated(p, config, (400, 67, 200), groups, broken=broken)


@pytest.mark.nvrtc
def test_the_command_line_takes_groups(capsys):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.cli import main

    command = "run dense --grouping ends --rows 130,0,41 -m 300 -n 72 -k 100 --device emulator"
    assert main(command.split()) == 0
    assert "gemmgen_dense_ends_gemm" in capsys.readouterr().out


def test_only_rows_of_groups_count():
    from gemmgen.cli.run_command import products

    counts = {"batched": 900 * 16, "masked": 171 * 16, "rows": 171 * 16, "ends": 171 * 16}
    counts |= dict.fromkeys(("k_columns", "k_flat"), 300 * 8)
    assert set(counts) == set(GROUPED)
    for grouping, count in counts.items():
        p, shape = problem("bf16", grouping), (300, 8, 16)
        table = layout(p, shape, (130, 0, 41))
        if GROUPINGS[grouping].depths:
            table = Layout(groups=3, table=(8, 0, 0))
        assert products(p, exact_integers(p, *shape, 1, table)) == count


# ---- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", (64, 128))
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize(
    "shape", ((1, 576, 512), (20, 7168, 2048), (192, 4096, 4096), (8192, 6144, 7168))
)
def test_choices_are_legal(grouping, alignment, shape):
    for name in ("fp8_block", "bf16"):
        p = problem(name, grouping, alignment)
        config = choose(p, shape, H200, 8)
        kernel = lower(p, config)
        if grouping == "rows":
            reaches = alignment % (kernel.block.m * kernel.cluster.m) > 0
            assert kernel.scheduler.name == ("runs" if reaches else "rows")
            assert kernel.groups.ragged == reaches


def test_more_groups_more_tiles():
    """Sixteen small GEMMs fill the machine with tiles that one would leave it idle with."""
    p = replace(FP8, grouping="batched")
    many, one = (choose(p, (128, 1024, 7168), H200, groups) for groups in (16, 1))
    assert many.block_m * many.block_n > one.block_m * one.block_n
