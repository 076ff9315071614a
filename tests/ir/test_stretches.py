"""Equal stretches of all tiles' K blocks: in Python, on the device, and what the audit says of stretches that are not right."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from random import Random

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import DENSE, FP8, emitted
from test_scheduler import SHIM, device_code

from gemmgen.check.audit import agreement, audit
from gemmgen.check.audit_streams import stretches
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.counts import MOST_TILES, check_tiles
from gemmgen.ir.dealing import IDLE, ctas, of_cta, parts, stretch, stretch_of
from gemmgen.ir.groupings import Layout
from gemmgen.runtime.launch import grid
from gemmgen.schedulers import order

CONFIG = Config(stream=True, block_m=64, block_n=48, consumers=1, stages=2)
VARIANTS = {
    "panels": (DENSE, CONFIG),
    "wide": (DENSE, replace(CONFIG, raster="n", panel=3)),
    "batched": (replace(DENSE, grouping="batched"), CONFIG),
    "batched-wide": (replace(DENSE, grouping="batched"), replace(CONFIG, raster="n", panel=1)),
}


@settings(max_examples=draws(2000), deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_stretches_are_equal_and_cover_every_block_once(tiles, k_blocks, data):
    count = data.draw(st.integers(1, min(140, tiles * k_blocks)))
    sizes = [len(stretch(i, count, tiles * k_blocks)) for i in range(count)]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == tiles * k_blocks
    seen, owner = [], {}
    dealt = [list(parts(i, count, tiles, k_blocks)) for i in range(count)]
    for i, mine in enumerate(dealt):
        assert all(p.first == 0 for p in mine[1:]), "only the first begins inside a tile"
        for p in mine:
            blocks = range(p.tile * k_blocks + p.first, p.tile * k_blocks + p.end)
            owner |= dict.fromkeys(blocks, i)
            seen += blocks
    assert seen == list(range(tiles * k_blocks))
    for i, mine in enumerate(dealt):
        assert all(owner[(p.tile + 1) * k_blocks - 1] == i + p.others for p in mine)
    if count % tiles:
        blocks = tiles * k_blocks
        assert all(stretch_of(b, count, blocks) == i for b, i in owner.items())
    else:
        assert all(len(mine) == 1 for mine in dealt), "each tile's own CTAs have no other"


@settings(max_examples=draws(1000), deadline=None, derandomize=True)
@given(st.integers(1, 140), st.integers(1, 60), st.integers(1, 132))
def test_few_are_left_out_and_none_waits_for_a_later_one(tiles, k_blocks, most):
    count = ctas(tiles, k_blocks, most)
    full = min(tiles * k_blocks, most)
    assert count == full or (count % tiles == 0 and (full - count) * IDLE <= most)
    slots = [of_cta(cta, count, tiles) for cta in range(count)]
    assert sorted(slots) == list(range(count))
    cta_of = {slot: cta for cta, slot in enumerate(slots)}
    for slot, cta in cta_of.items():
        for p in parts(slot, count, tiles, k_blocks):
            assert p.first or all(cta_of[slot + 1 + i] < cta for i in range(p.others))


def test_neighbours_load_the_same_k_blocks():
    """44 CTAs for each of three tiles: three that follow each other have the same K blocks, of different tiles."""
    dealt = [next(iter(parts(of_cta(cta, 132, 3), 132, 3, 16384))) for cta in range(132)]
    for three in zip(dealt[::3], dealt[1::3], dealt[2::3], strict=True):
        assert {(p.first, p.end) for p in three} == {(three[0].first, three[0].end)}
        assert {p.tile for p in three} == {0, 1, 2}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_schedule_is_audited(name):
    kernel = emitted(*VARIANTS[name]).kernel
    assert list(agreement(kernel)) == []
    layout = Layout(groups=3 if kernel.groups.rows else 1)
    for shape in ((1, 1, 1), (100, 300, 500), (64, 48, 4096)):
        for sms in (1, 2, 7, 132):
            ctas = grid(kernel, shape, sms, layout.groups)
            where = (kernel.scheduler, kernel.block, kernel.cluster, shape, ctas, layout)
            assert list(audit(*where)) == []


def walks(shape, ctas):
    k = emitted(DENSE, CONFIG).kernel
    return [list(order(k.scheduler, k.block, k.cluster, shape, ctas, cta)) for cta in range(ctas)]


WRONG = {
    "a slot off by one": lambda t: replace(t, slot=t.slot + 1),
    "one of the others forgotten": lambda t: replace(t, others=max(0, t.others - 1)),
    "one of the others too many": lambda t: replace(t, others=t.others + 1),
    "a part that begins one K block late": lambda t: replace(t, k_first=t.k_first + 64),
    "a part that is one K block short": lambda t: replace(t, k_blocks=t.k_blocks - 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_stretches_that_are_wrong_are_found(name):
    """In one tile of one CTA."""
    right = walks((64, 96, 7 * 64), 3)
    assert list(stretches(right, 64, 7)) == []
    for cta, walk in enumerate(right):
        for at, tile in enumerate(walk):
            changed = [*walk[:at], WRONG[name](tile), *walk[at + 1 :]]
            if changed != walk:
                wrong = [changed if i == cta else w for i, w in enumerate(right)]
                assert list(stretches(wrong, 64, 7)), (cta, at)


def test_a_wait_for_a_later_cta_is_found():
    assert any("after it" in x for x in stretches(walks((64, 96, 7 * 64), 3)[::-1], 64, 7))


def test_a_grid_has_a_k_block_for_each_cta():
    kernel = emitted(FP8, replace(CONFIG, block_n=64)).kernel
    assert grid(kernel, (16, 2112, 7168), 132) == 132
    assert grid(kernel, (16, 64, 7168), 132) == 56
    assert grid(kernel, (16, 64, 128), 132) == 1
    assert grid(kernel, (16, 9 * 64, 7168), 132) == 126, "14 for each of nine tiles"
    assert grid(kernel, (16, 100 * 64, 7168), 132) == 132, "one for each would leave 32 out"


def test_k_blocks_are_counted_in_32_bits():
    kernel = emitted(DENSE, CONFIG).kernel
    tiles = 1 << 16
    most = MOST_TILES // tiles * kernel.block.k
    check_tiles(kernel, (64 * tiles, 48, most))
    with pytest.raises(ArgumentError, match="K blocks"):
        check_tiles(kernel, (64 * tiles, 48, most + 1))


# ---- the device's ---------------------------------------------------------------------------

OPAQUE = "namespace ptx { inline int opaque_int(int x) { return x; } }\n"
MAIN = """
template <class Scheduler, class Tile, class... Groups>
void walk(int m, int n, int k, Groups... groups) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        Scheduler scheduler(m, n, k, groups...);
        for (Tile t; scheduler.next(t);)
            std::printf("%d %d %d %d %d %d %d %d\\n", blockIdx.x, t.a_row, t.b_row, t.d_col, t.k_blocks, t.k_first, t.slot, t.others);
    }
    std::printf("end\\n");
}
int main() {
    int variant, m, n, k, groups;
    while (std::scanf("%d %d %d %d %d %d", &variant, &m, &n, &k, &groups, &gridDim.x) == 6) switch (variant) {
        CASES
    }
}
"""


def test_the_device_walks_as_python_does(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    text, switch = [SHIM, OPAQUE], []
    for i, (problem, config) in enumerate(VARIANTS.values()):
        text.append(f"namespace v{i} {{\n{device_code(emitted(problem, config).source)}\n}}")
        given = "m, n, k" + ", groups" * (problem.grouping == "batched")
        switch.append(f"case {i}: walk<v{i}::Scheduler, v{i}::Tile>({given}); break;")
    text.append(MAIN.replace("CASES", "\n        ".join(switch)))
    program = tmp_path / "walk.cpp"
    program.write_text("\n".join(text))
    build = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-fsanitize=undefined"]
    subprocess.run([*build, "-o", tmp_path / "walk", program], check=True)
    random, asked, expected = Random(1), [], []
    for i, (problem, config) in enumerate(VARIANTS.values()):
        kernel = emitted(problem, config).kernel
        for _ in range(60):
            shape = random.randint(1, 900), random.randint(1, 900), random.randint(1, 900)
            groups = random.randint(1, 4) if problem.grouping == "batched" else 1
            ctas = grid(kernel, shape, random.randint(1, 140), groups)
            asked.append(" ".join(map(str, (i, *shape, groups, ctas))) + "\n")
            for cta in range(ctas):
                where = (kernel.scheduler, kernel.block, kernel.cluster, shape, ctas, cta)
                for t in order(*where, Layout(groups=groups)):
                    of = (t.a_row, t.b_row, t.d_col, t.k_blocks, t.k_first, t.slot, t.others)
                    expected.append(" ".join(map(str, (cta, *of))))
            expected.append("end")
    done = subprocess.run(
        [tmp_path / "walk"], input="".join(asked), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == expected and not done.stderr
