"""The schedulers of several ranks: what is emitted walks as Python does, of every rank."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from random import Random

import pytest
from kernels import DENSE, emitted
from test_scheduler import SHIM, device_code

from gemmgen.config import Config
from gemmgen.ir.collectives import MOST_CHUNKS, Seat
from gemmgen.pipeline import lower
from gemmgen.schedulers import order

FIELDS = {
    "reduce_scatter": ("a_row", "b_row", "d_row", "d_col", "owner", "place", "slot", "slots"),
    "all_reduce": ("a_row", "b_row", "d_row", "d_col", "owner", "place", "slot", "slots"),
    "all_gather": ("a_row", "b_row", "d_row", "d_col", "group", "flag"),
}
CONFIGS = (Config(), Config(multicast="b", raster="n", panel=3), Config(multicast="a", panel=2))
CASES = [(c, x) for c in FIELDS for x in CONFIGS]
MAIN = """
template <class Scheduler, class Tile, class Make, class Show>
void walk(Make make, Show show) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        Scheduler scheduler = make();
        for (Tile t; scheduler.next(t);) show(t);
    }
    std::printf("end\\n");
}
int main() {
    int variant, m, n, k, ranks, own, chunk_rows;
    while (std::scanf("%d %d %d %d %d %d %d %d", &variant, &m, &n, &k, &ranks, &own, &chunk_rows, &gridDim.x) == 8)
        switch (variant) {
            CASES
        }
}
"""


def case(i, collective):
    chunk = ", chunk_rows" * (collective == "all_gather")
    shown, form = "".join(f", t.{x}" for x in FIELDS[collective]), " %d" * len(FIELDS[collective])
    ranks = "ranks, " * (collective != "all_reduce")
    make = f"[&] {{ return v{i}::Scheduler(m, n, k, {ranks}own{chunk}); }}"
    show = f'[](v{i}::Tile t) {{ std::printf("%d{form}\\n", blockIdx.x{shown}); }}'
    return f"case {i}: walk<v{i}::Scheduler, v{i}::Tile>({make}, {show}); break;"


def compiled(where, edits=()):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    parts, switch = [SHIM], []
    for i, (collective, config) in enumerate(CASES):
        code = device_code(emitted(replace(DENSE, collective=collective), config).source)
        for old, new in edits:
            code = code.replace(old, new)
        parts.append(f"namespace v{i} {{\n{code}\n}}")
        switch.append(case(i, collective))
    program = where / "walk.cpp"
    program.write_text("\n".join([*parts, MAIN.replace("CASES", "\n".join(switch))]))
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-o", where / "walk", program]
    subprocess.run(command, check=True)
    return where / "walk"


def question(random, i):
    m, n, k = random.randint(1, 1500), random.randint(1, 1500), random.randint(1, 300)
    ranks, clusters = random.randint(1, 8), random.randint(1, 20)
    chunk_rows = random.randint(-(-m // MOST_CHUNKS), m)
    return i, m, n, k, ranks, random.randrange(ranks), chunk_rows, clusters


def answer(i, m, n, k, ranks, own, chunk_rows, ctas):
    collective, config = CASES[i]
    kernel = lower(replace(DENSE, collective=collective), config)
    where = (kernel.scheduler, kernel.block, kernel.cluster, (m, n, k), ctas)
    for cta in range(ctas):
        seat = Seat(rank=own, ranks=ranks)
        for t in order(*where, cta, seat=seat, chunk_rows=chunk_rows):
            yield " ".join(map(str, (cta, *(getattr(t, x) for x in FIELDS[collective]))))
    yield "end"


def answers(program):
    """What is emitted says, and what Python does."""
    random, asked, wanted = Random(1), [], []
    for i, (_, config) in enumerate(CASES):
        for _ in range(12):
            x = question(random, i)
            x = (*x[:-1], x[-1] * (1 + (config.multicast != "none")))
            asked.append(" ".join(map(str, x)))
            wanted += answer(*x)
    run = subprocess.run(
        [program], input="\n".join(asked), capture_output=True, text=True, check=True
    )
    return run.stdout.splitlines(), wanted


def test_the_device_walks_as_python_does(tmp_path):
    got, wanted = answers(compiled(tmp_path))
    assert got == wanted


EDITS = {
    "the first row's chunk": ("(min(row + BLOCK_M, rows) - 1) / chunk_rows", "row / chunk_rows"),
    "ranks in another order": ("(own + phase) % ranks", "(own + ranks - phase) % ranks"),
    "the flags of the rank before": ("(phase - 1) * CHUNKS", "(phase - 2) * CHUNKS"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_walk_that_is_not_that_is_told(name, tmp_path):
    assert EDITS[name][0] in emitted(replace(DENSE, collective="all_gather"), Config()).source
    got, wanted = answers(compiled(tmp_path, (EDITS[name],)))
    assert got != wanted
