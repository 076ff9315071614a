"""Schedulers: every output tile exactly once, cluster peers agree, the device walks as Python does."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from random import Random

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import DENSE, emitted

from gemmgen.config import Config
from gemmgen.ir.nodes import Block, Cluster
from gemmgen.pipeline import lower
from gemmgen.schedulers import order, panels

# ---- the Python twin ----------------------------------------------------------------------


@st.composite
def cases(draw):
    """(scheduler, block, cluster, shape, CTAs) with at most some hundred tiles."""
    shared = draw(st.sampled_from((None, "a", "b")))
    cluster = Cluster(size=1 if shared is None else 2, shared=shared)
    block = Block(
        m=64 * draw(st.integers(1, 4)),
        n=8 * draw(st.integers(1, 32)),
        k=draw(st.sampled_from((32, 64, 128))),
    )
    tiles = draw(st.tuples(st.integers(0, 24), st.integers(0, 24), st.integers(1, 40)))
    tails = draw(st.tuples(*(st.integers(0, side - 1) for side in (block.m, block.n, block.k))))
    shape = tuple(
        t * s - r for t, s, r in zip(tiles, (block.m, block.n, block.k), tails, strict=True)
    )
    shape = tuple(max(1, side) for side in shape)
    scheduler = panels(draw(st.sampled_from("mn")), draw(st.integers(1, 64)))
    ctas = cluster.size * draw(st.integers(1, 70))
    return scheduler, block, cluster, shape, ctas


@settings(max_examples=draws(2000), deadline=None, derandomize=True)
@given(cases())
def test_every_tile_comes_exactly_once(case):
    scheduler, block, cluster, (m, n, k), ctas = case
    seen = Counter()
    for cta in range(ctas):
        for tile in order(scheduler, block, cluster, (m, n, k), ctas, cta):
            assert tile.a_row == tile.d_row and tile.b_row == tile.d_col
            assert tile.a_row % block.m == tile.b_row % block.n == 0
            assert (tile.k_blocks - 1) * block.k < k <= tile.k_blocks * block.k
            seen[tile.d_row, tile.d_col] += 1
    wanted = {(row, col) for row in range(0, m, block.m) for col in range(0, n, block.n)}
    assert wanted <= set(seen)
    assert set(seen.values()) == {1}
    # What lies outside D only fills the last cluster of a row or column of clusters.
    span_m, span_n = block.m * cluster.m, block.n * cluster.n
    assert all(row // span_m * span_m < m and col // span_n * span_n < n for row, col in seen)


@settings(max_examples=draws(1000), deadline=None, derandomize=True)
@given(cases())
def test_cluster_peers_share_the_operand(case):
    scheduler, block, cluster, shape, ctas = case
    for first in range(0, ctas, cluster.size):
        walks = [
            list(order(scheduler, block, cluster, shape, ctas, first + rank))
            for rank in range(cluster.size)
        ]
        assert len({len(walk) for walk in walks}) == 1, "nobody waits for a peer that has left"
        for tiles in zip(*walks, strict=True):
            assert len({t.k_blocks for t in tiles}) == 1
            rows = {"a": {t.a_row for t in tiles}, "b": {t.b_row for t in tiles}}
            for operand, distinct in rows.items():
                assert len(distinct) == (1 if operand == cluster.shared else cluster.size)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases())
def test_a_panel_is_finished_before_the_next(case):
    scheduler, block, cluster, shape, _ = case
    walk = list(order(scheduler, block, cluster, shape, cluster.size, 0))
    side, at = {"m": (block.m * cluster.m, "d_row"), "n": (block.n * cluster.n, "d_col")}[
        scheduler.fast
    ]
    panel = [getattr(tile, at) // side // scheduler.panel for tile in walk]
    assert panel == sorted(panel)


def test_neighbours_in_time_are_neighbours_in_space():
    """The snake: consecutive tiles of one CTA alone differ by one step, except within a panel's edge."""
    walk = list(order(panels("m", 4), Block(m=1, n=1, k=1), Cluster(), (8, 3, 1), 1, 0))
    at = [(tile.d_row, tile.d_col) for tile in walk]
    assert at[:5] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]
    assert at[11:16] == [(3, 2), (4, 2), (5, 2), (6, 2), (7, 2)], "the next panel turns back"
    assert at[-1] == (7, 0)


# ---- the device's ---------------------------------------------------------------------------

VARIANTS = {
    f"{raster}{panel}-{multicast}": Config(
        raster=raster, panel=panel, multicast=multicast, block_n=112, stages=2
    )
    for raster in ("m", "n")
    for panel in (1, 3, 16)
    for multicast in ("none", "a", "b")
} | {f"split{n}": Config(split_k=n, block_n=64, stages=2, consumers=1, block_m=64) for n in (2, 8)}

SHIM = """
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#define __device__
using std::min;
struct Dim { int x; } threadIdx, blockIdx, gridDim;
namespace ptx { inline void prefetch_line(const void*) {} }
inline int __ffs(uint32_t x) { return __builtin_ffs(x); }
template <class T> T __shfl_sync(unsigned, T x, int) { return x; }
"""
MAIN = """
template <class Scheduler, class Tile>
void walk(int m, int n, int k) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        Scheduler scheduler(m, n, k);
        for (Tile t; scheduler.next(t);)
            std::printf("%d %d %d %d %d %d\\n", blockIdx.x, t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks);
    }
    std::printf("end\\n");
}
int main() {
    int variant, m, n, k;
    while (std::scanf("%d %d %d %d %d", &variant, &m, &n, &k, &gridDim.x) == 5) switch (variant) {
        CASES
    }
}
"""


def device_code(source: str) -> str:
    """The emitted constants, Tile and Scheduler (and Ring)."""
    constants = re.findall(r"^constexpr int .*;$", source, re.M)
    structs = [
        re.search(rf"^struct {name} \{{(?:[^\n]*\}};|.*?\n\}};)$", source, re.M | re.S)[0]
        for name in ("Tile", "Scheduler", "Ring")
    ]
    return "\n".join([*constants, *structs])


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The emitted schedulers of all VARIANTS, compiled into one host program."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    where = tmp_path_factory.mktemp("scheduler")
    parts, switch = [SHIM], []
    for i, config in enumerate(VARIANTS.values()):
        parts.append(f"namespace v{i} {{\n{device_code(emitted(DENSE, config).source)}\n}}")
        switch.append(f"case {i}: walk<v{i}::Scheduler, v{i}::Tile>(m, n, k); break;")
    parts.append(MAIN.replace("CASES", "\n        ".join(switch)))
    program = where / "walk.cpp"
    program.write_text("\n".join(parts))
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-o", where / "walk", program], check=True
    )
    return where / "walk"


def test_the_device_walks_as_python_does(device):
    random = Random(1)
    asked, expected = [], []
    for i, config in enumerate(VARIANTS.values()):
        kernel = lower(DENSE, config)
        for _ in range(60):
            shape = random.randint(1, 3000), random.randint(1, 2500), random.randint(1, 700)
            ctas = kernel.cluster.size * random.randint(1, 66)
            asked.append(f"{i} {shape[0]} {shape[1]} {shape[2]} {ctas}\n")
            for cta in range(ctas):
                for t in order(kernel.scheduler, kernel.block, kernel.cluster, shape, ctas, cta):
                    expected.append(f"{cta} {t.a_row} {t.b_row} {t.d_row} {t.d_col} {t.k_blocks}")
            expected.append("end")
    run = subprocess.run([device], input="".join(asked), capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == expected


def test_the_ring_goes_round(tmp_path):
    """Stage and phase of the k-th block since launch, and the stage before it."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    source = emitted(DENSE, Config(stages=3, block_n=64)).source
    main = """int main() {
        Ring ring;
        for (int k = 0; k < 20; ++k, ring.advance())
            std::printf("%d %u %d\\n", ring.stage, ring.phase, ring.previous());
    }"""
    program = tmp_path / "ring.cpp"
    program.write_text(SHIM + device_code(source) + main)
    subprocess.run(["g++", "-std=c++17", "-o", tmp_path / "ring", program], check=True)
    out = subprocess.run([tmp_path / "ring"], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [f"{k % 3} {k // 3 % 2} {(k - 1) % 3}" for k in range(20)]
