"""The device's walk over tiles up to the limits that the host sets: as Python's, and no int overflows."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from itertools import islice

import pytest
from kernels import FP8, emitted
from test_counts import CTAS, shapes
from test_groupings import ARGUMENTS, DEPTHS, ROWS
from test_scheduler import SHIM, device_code

from gemmgen import schedulers
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig
from gemmgen.ir.counts import MOST_SIDE, most_tiles
from gemmgen.ir.groupings import GROUPINGS, Layout, Segment
from gemmgen.runtime.launch import check_launch
from gemmgen.schedulers import order

SANITISED = ("-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error")


def variants():
    """Every grouping that has a scheduler of its own, raster and multicast, and split K where it may be."""
    for grouping in (name for name, g in GROUPINGS.items() if not g.summed):
        for raster in "mn":
            for multicast, block_n in (("none", 8), ("a", 8), ("b", 16)):
                yield grouping, {"raster": raster, "multicast": multicast, "block_n": block_n}
            yield grouping, {"raster": raster, "split_k": 8, "block_n": 8}
    for raster in "mn":  # tiles that rows of a group, multiples of 128, do not fill: run by run
        yield "rows", {"raster": raster, "block_m": 192, "consumers": 3, "block_n": 8}


def kernels():
    small = {"block_m": 64, "consumers": 1, "stages": 2, "panel": 64}
    for grouping, changes in variants():
        try:
            a = emitted(replace(FP8, grouping=grouping), Config(**small | changes))
        except IllegalConfig as e:
            assert e.rule.id == "split-depths"
            continue
        yield grouping, a


RUN = 1 << 20  # rows


class Rows:
    """The group of each row, without 2**31 entries."""

    def __getitem__(self, row):
        assert 0 <= row < MOST_SIDE
        return row // RUN % 3


def runs(rows, layout, alignment):
    """Of `Rows`, without looking at each."""
    for first in range(0, rows, RUN):
        yield Segment(group=layout.table[first], first=first, end=min(first + RUN, rows))


def test_long_runs_are_runs():
    found = list(schedulers.runs(3 * RUN + 5, Layout(groups=3, table=Rows()), 128))
    assert found == list(runs(3 * RUN + 5, Layout(groups=3, table=Rows()), 128))


def tables(grouping, shape):
    """(groups, table) where most is counted."""
    m, _, k = shape
    return {
        "none": [(1, ())],
        "batched": [(1, ()), (3, ())],
        "masked": [(3, (m, 2**31 - 1, m))],
        "rows": [(3, Rows())],
        "ends": [(3, (m - 1, -1, 2**31 - 1)), (2, (0, m))],
    }.get(grouping, [(3, (k, 2**31 - 1, -(2**31))), (3, (k // 2, 2**31 - 1, 5))])


def asked():
    """(kernel, shape, layout, where to begin): at the first tile, and near the last."""
    for i, (grouping, a) in enumerate(kernels()):
        for groups in {count for count, _ in tables(grouping, (1, 1, 1))}:
            for shape in shapes(a.kernel, groups):
                tiles = most_tiles(a.kernel, shape, groups)
                check_launch(a.kernel, shape, groups)
                for count, table in tables(grouping, shape):
                    if count == groups:
                        stride = CTAS // a.kernel.cluster.size
                        for begin in {0, max(0, tiles // stride - 3) * stride}:
                            yield i, a.kernel, shape, Layout(groups=count, table=table), begin


MAIN = """
template <class Scheduler, class Tile, class Make, class Print>
void walk(long long begin, Make make, Print print) {
    for (int cta : {0, 1, gridDim.x - 1}) {
        blockIdx.x = cta;
        Scheduler scheduler = make();
        scheduler.index += begin;
        Tile t;
        for (int i = 0; i < 5 && scheduler.next(t); ++i) {
            std::printf("%d %d %d %d %d %d", cta, t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks);
            print(t);
        }
    }
    std::printf("end\\n");
    std::fflush(stdout);
}
int main() {
    int variant, m, n, k, groups, entries;
    long long begin;
    while (std::scanf("%d %d %d %d %d %lld %d %d", &variant, &m, &n, &k, &gridDim.x, &begin, &groups, &entries) == 8) {
        std::vector<int> table(entries + 1);
        for (int i = 0; i < entries; ++i) if (std::scanf("%d", &table[i]) != 1) return 1;
        const int* by_row = (const int*)(1ll << 40);
        switch (variant) {
            CASES
        }
    }
}
"""
LDG = """
inline int __ldg(const int* p) {
    const long long row = p - (const int*)(1ll << 40);
    return row >= 0 && row < 1ll << 31 ? row / RUN % 3 : *p;
}
"""


def case(i, grouping, a):
    names = [ARGUMENTS[x] for x in a.kernel.scheduler.params]
    names = ["by_row" if grouping == "rows" else x for x in names]
    rest = () if grouping == "none" else DEPTHS if GROUPINGS[grouping].depths else ROWS
    fields = [x if x == "0" else f"int(t.{x})" for x in ("group", *rest) * bool(rest)]
    said = f'std::printf("{" %d" * len(fields)}\\n"{"".join(f", {x}" for x in fields)});'
    make = f"[&] {{ return v{i}::Scheduler({', '.join(['m', 'n', 'k', *names])}); }}"
    types = f"v{i}::Scheduler, v{i}::Tile"
    return f"case {i}: walk<{types}>(begin, {make}, [&](v{i}::Tile& t) {{ {said} }}); break;"


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The emitted schedulers of all kernels in one host program, in which an int that overflows is a trap."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    where = tmp_path_factory.mktemp("walk")
    parts = [f"#include <vector>\n{SHIM}\nusing std::max;\n{LDG.replace('RUN', str(RUN))}"]
    found = list(enumerate(kernels()))
    parts += [f"namespace v{i} {{\n{device_code(a.source)}\n}}" for i, (_, a) in found]
    cases = "\n            ".join(case(i, grouping, a) for i, (grouping, a) in found)
    (where / "walk.cpp").write_text("\n".join([*parts, MAIN.replace("CASES", cases)]))
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Werror",
        "-Wno-format-zero-length",
        "-Wno-unknown-pragmas",
        *SANITISED,
    ]
    subprocess.run([*command, "-o", where / "walk", where / "walk.cpp"], check=True)
    return where / "walk"


def expected(kernel, shape, layout, begin):
    """As Python walks. A walk that begins further on is that of a CTA that there is not."""
    size, depths = kernel.cluster.size, bool(GROUPINGS_BY_SCHEDULER[kernel.scheduler.name].depths)
    for cta in (0, 1, CTAS - 1):
        walk = order(
            kernel.scheduler, kernel.block, kernel.cluster, shape, CTAS, cta + begin * size, layout
        )
        for t in islice(walk, 5):
            place = [cta, t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks]
            if depths:
                slot = cta * layout.groups + t.group
                place += [t.group, t.k_first, t.k_end, slot, int(t.opens_group)]
            elif kernel.scheduler.name != "panels":
                place += [t.group, t.d_end, 0, 0, 0]
            yield " ".join(map(str, place))
    yield "end"


GROUPINGS_BY_SCHEDULER = {g.scheduler: g for g in GROUPINGS.values()}
GROUPINGS_BY_SCHEDULER |= {schedulers.RUNS: GROUPINGS["rows"]}


def test_the_device_walks_as_python_does_at_every_limit(device, monkeypatch):
    monkeypatch.setitem(schedulers.GRIDS, schedulers.RUNS, runs)
    questions, answers = [], []
    for i, kernel, shape, layout, begin in asked():
        table = () if isinstance(layout.table, Rows) else layout.table
        numbers = (i, *shape, CTAS, begin, layout.groups, len(table), *table)
        questions.append(" ".join(map(str, numbers)))
        answers.append(list(expected(kernel, shape, layout, begin)))
    run = subprocess.run([device], input="\n".join(questions), capture_output=True, text=True)
    got = [part.strip("\n").split("\n") for part in run.stdout.split("end\n")]
    for question, answer, said in zip(questions, answers, got, strict=False):
        assert [x for x in said if x] == answer[:-1], question
    assert run.returncode == 0, f"overflows at {questions[len(got) - 1]}"
    assert len(got) == len(questions) + 1
