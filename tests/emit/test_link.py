"""What is proved is what is emitted: a kernel's text, read back, is what its IR says, and an edit of either shows."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from draws import draws
from exhibits import EXHIBITS
from kernels import DENSE, VARIETY, emitted
from link_configs.draw import kernels
from values import values

from gemmgen import pipeline
from gemmgen.check.meaning import CONDITIONS
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.errors import IRError
from gemmgen.gallery import GALLERY, path_of
from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.ir.text import dump
from gemmgen.link import TextDiffers, from_ir, from_text, link, meaning_epilogue, meaning_waits
from gemmgen.link.errors import Unreadable
from gemmgen.link.meaning import MEANING
from gemmgen.link.statements import parsed
from gemmgen.link.walk import Walk
from gemmgen.passes.check_complete import LOWERED
from gemmgen.pipeline import lower

GENERATED = Path(__file__).parents[2] / "generated"
FILES = sorted(str(p.relative_to(GENERATED))[:-3] for p in GENERATED.glob("*/*.cu"))


def source(name: str) -> str:
    return (GENERATED / f"{name}.cu").read_text()


def test_every_file_is_an_exhibit():
    assert sorted(map(path_of, GALLERY)) == FILES and len(FILES) <= 40


@pytest.mark.parametrize("name", FILES)
def test_text_and_ir_are_the_same(name):
    kernel = lower(EXHIBITS[name].problem, EXHIBITS[name].config)
    assert dump(kernel) in (GENERATED / f"{name}.ir").read_text(), "gemmgen emit --all"
    assert link(kernel, source(name)).events > 100


@pytest.mark.parametrize("name", VARIETY)
@pytest.mark.parametrize("kind", ("plain", "watched", "stamped"))
def test_of_every_variety(name, kind):
    problem, config = VARIETY[name]
    config = replace(config, watchdog=kind == "watched")
    kernel = lower(problem, config, stamps=64 * (kind == "stamped"))
    link(kernel, emit(kernel))


def test_a_store_from_where_shared_memory_begins():
    """Its address is nothing but a cast."""
    config = Config(
        block_m=64, block_n=64, block_k_bytes=32, stages=6, consumers=3, swizzle_d=128, slice_k=True
    )
    kernel = lower(DENSE, config)
    assert kernel.buffer("smem_d").offset == 0
    link(kernel, emit(kernel))


def test_of_random_configs():
    """More: python -m tests.link_configs"""
    kinds = {"watched": 0, "stamped": 0}
    for _, config, kernel in kernels(draws(60), 3):
        link(kernel, emit(kernel))
        kinds["watched"] += config.watchdog
        kinds["stamped"] += bool(kernel.stamps)
    assert min(kinds.values()) >= draws(60) // 10


def test_every_lowered_statement_has_a_meaning():
    classes = {getattr(ir, name) for name in ir.__all__}
    concrete = {c for c in classes if isinstance(c, type) and issubclass(c, ir.Stmt)} - {ir.Stmt}
    assert {*MEANING} == concrete - NOT_EMITTED


def test_every_value_of_a_statement_has_a_meaning():
    """In the text and in the proof, where one is looked up by the value of a field."""
    tables = [
        *(
            (ir.ForTiles, "of", meaning_waits.FOR_TILES_OF),
            (ir.Wait, "per", meaning_waits.WAIT_PER),
        ),
        *((ir.Fence, "of", meaning_waits.FENCE_OF), (ir.Sync, "of", meaning_waits.SYNC_OF)),
        (ir.StageTile, "by", meaning_epilogue.STAGES),
        (ir.If, "when", CONDITIONS),
    ]
    for cls, name, table in tables:
        assert {*table} == {*values(cls, name)}, cls


NOT_EMITTED = {*LOWERED}  # a pass spells them


def test_a_statement_without_a_meaning_is_an_error(monkeypatch):
    kernel = lower(*VARIETY["dense"])
    monkeypatch.delitem(MEANING, ir.Arrive)
    with pytest.raises(IRError, match="what Arrive means"):
        from_ir(kernel)


def test_the_reader_knows_nothing_of_what_emits():
    code = "import sys, gemmgen.link; print('jinja2' in sys.modules, 'gemmgen.emit' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_every_build_is_held_against_its_ir(monkeypatch):
    emitted_text = pipeline.emit
    more = lambda *a: emitted_text(*a).replace("wgmma_wait<0>()", "wgmma_wait<1>()")  # noqa: E731
    assert pipeline.compile_to_source(*VARIETY["dense"]).link.events > 100
    monkeypatch.setattr(pipeline, "emit", more)
    with pytest.raises(TextDiffers, match="WgmmaWait"):
        pipeline.compile_to_source(*VARIETY["dense"])


def done(text):
    walk = Walk({})
    walk.run(parsed(text), {})
    return walk.events


def test_a_loop_that_runs_once_is_its_body_and_one_that_never_runs_nothing():
    loop = "for (int i = {}; i < {}; {}) x[i] = y[2 * i];"
    assert done(loop.format(3, 4, "++i")) == done("x[3] = y[6];")
    assert done(loop.format(0, 8, "i += 8")) == done("x[0] = y[0];")
    assert done(loop.format(8, 8, "i += 4")) == done(";")
    assert done(loop.format(0, 9, "i += 8")) != done("x[0] = y[0];")
    assert done(loop.format(0, "n", "++i")) != done("x[0] = y[0];")
    with pytest.raises(Unreadable, match="i is changed"):
        done("for (int i = 0; i < 1; ++i) i = 5;")


# ---- edits of a kernel's text -----------------------------------------------------------------------

EDITS = {
    "a parity": ("ring.stage, ring.phase);", "ring.stage, ring.phase ^ 1);"),
    "a byte count": ("expect_tx(full + 8 * ring.stage, ", "expect_tx(full + 8 * ring.stage, 1"),
    "an arrival count": ("mbarrier_init(empty + 8 * i, ", "mbarrier_init(empty + 8 * i, 1"),
    "a stage": ("arrive(empty + 8 * ring.stage)", "arrive(empty + 8 * ring.previous())"),
    "a fence": ("ptx::fence_proxy_async();\n", ";\n"),
    "a wait": ("ptx::wgmma_wait<0>();", "ptx::wgmma_wait<1>();"),
    "a leader": ("if (threadIdx.x % 128 == 0) {", "if (true) {"),
    "a commit": ("ptx::wgmma_commit();\n", "\n"),
    "a barrier": ("full + 8 * ring.stage, k * 128", "empty + 8 * ring.stage, k * 128"),
    "an offset": ("smem_b + ring.stage * ", "smem_b + 0 * "),
    "the ring": ("++k, ring.advance()", "++k"),
    "an accumulator in use": ("ptx::wgmma_fence();", "ptx::wgmma_fence(); part[0] = 0;"),
    "a product behind the fence": ("ptx::wgmma_wait<0>();", "acc0[0] += 1; ptx::wgmma_wait<0>();"),
    "a descriptor": ("A_DESCRIPTOR_HIGH", "A_DESCRIPTOR_LOW"),
    "a descriptor's way": ("a_tile + way", "a_tile + 2 * way"),
    "a scale": ("scale_1 * part[i + 2]", "scale_0 * part[i + 2]"),
    "an unroll": ("#pragma unroll 1\n", "#pragma unroll 2\n"),
    "no unroll": ("#pragma unroll\n", "\n"),
    "a return": ("ptx::wgmma_commit();", "ptx::wgmma_commit(); return;"),
    "a stage from before": (
        "ptx::mbarrier_wait(full + 8 * ring.stage, ring.phase);",
        "const int at = ring.stage; ring.advance(); ptx::mbarrier_wait(full + 8 * at, ring.phase);",
    ),
    "launch bounds": ("__launch_bounds__(384, 1)", "__launch_bounds__(512, 1)"),
    "cluster dims": (
        "__launch_bounds__(384, 1)\n",
        "__launch_bounds__(384, 1) __cluster_dims__(1, 1, 1)\n",
    ),
    "a parameter": ("int d_stride,", "long long d_stride,"),
    "a pointer": ("const float* scale_b", "const int* scale_b"),
    "registers": ("setmaxnreg_dec<40>", "setmaxnreg_dec<48>"),
    "a buffer's place": ("smem_base + Shared::B", "smem_base + 16 + Shared::B"),
    "a barrier's place": ("smem_base + Shared::FULL", "smem_base + Shared::EMPTY"),
    "alignment": ("__align__(1024)", "__align__(128)"),
    "who plays which role": ("if (warpgroup < 2) {", "if (warpgroup < 1) {"),
    "who a lane is": ("lane = threadIdx.x % 32", "lane = threadIdx.x % 16"),
    "the scheduler's shape": ("scheduler(shape_m, shape_n,", "scheduler(shape_n, shape_m,"),
}
FRAME = {
    "where a part begins": ("static constexpr int A = 0", "static constexpr int A = 1024"),
    "a stage's bytes": ("A_STAGE_BYTES = 16384", "A_STAGE_BYTES = 8192"),
    "the bytes that land": ("TX_BYTES = 33280", "TX_BYTES = 33288"),
    "a descriptor's stride": ("A_DESCRIPTOR_HIGH = 1024", "A_DESCRIPTOR_HIGH = 2048"),
    "a descriptor's swizzle": ("| 1u << 30;", "| 2u << 30;"),
    "stages": ("constexpr int STAGES = 5;", "constexpr int STAGES = 4;"),
    "the tile": ("BLOCK_K = 128;", "BLOCK_K = 64;"),
    "the ring's turn": ("stage = 0, phase ^= 1;", "stage = 0;"),
    "the stage before": ("STAGES - 1 : stage - 1", "STAGES - 1 : stage"),
    "the first phase": ("uint32_t phase = 0;", "uint32_t phase = 1;"),
    "a type": ("typedef unsigned int uint32_t;", "typedef int uint32_t;"),
    "a map's size": ("char opaque[128];", "char opaque[64];"),
    "one kernel": ('extern "C"', 'extern "C" __global__ void more() {}\nextern "C"'),
    "a function beside it": (
        "// The position in",
        "__device__ int other() { return 0; }\n// The position in",
    ),
}
TURNS = {
    "whose tile": ("int others = worker;", "int others = 0;"),
    "how many others": ("others = 2;", "others = 1;"),
    "a parity": ("turn[0] ^ (worker == 0)", "turn[0]"),
    "whose turn": ("turns + 8 * worker, turn", "turns + 8 * 0, turn"),
    "a wait": ("ptx::mbarrier_wait(turns + ", "(void)(turns + "),
    "whose is next": ("(worker + 1) % 2", "(worker + 1) % 3"),
    "an arrival count": ("mbarrier_init(turns + 8 * i, 4)", "mbarrier_init(turns + 8 * i, 8)"),
    "a barrier": (
        "i < 2; ++i)\n            ptx::mbarrier_init(turns",
        "i < 1; ++i)\n            ptx::mbarrier_init(turns",
    ),
    "a turn that counts": ("turn[0] ^= 1;", ";"),
    "the phase of others' blocks": ("ring.phase ^= ", "ring.phase |= "),
    "the stage of others' blocks": ("tile.k_blocks) % STAGES;", "1) % STAGES;"),
    "an order": ("ring.stage = (ring.stage + tile.k_blocks) % STAGES;", "ring.phase ^= 0;"),
    "another's tile": ("continue;", ";"),
    "a copy of D": (" + worker * 2 * Shared::D_STAGE_BYTES;", " + worker * 0;"),
    "a named barrier": ("if (worker == 1) ptx::named", "if (warpgroup == 1) ptx::named"),
    "a role": ("if (worker < 2) {", "if (warpgroup < 2) {"),
    "who shares a tile": ("constexpr int warpgroup = 0;", "const int warpgroup = worker;"),
}
WATCHED = {
    "a wait that gives up": ("if (ptx::mbarrier_try_wait(bar, parity)) return;", "return;"),
    "a wait that does not wait": ("while (!ptx::mbarrier_try", "while (ptx::mbarrier_try"),
    "whose time": ("- reported < 2", "- since < 2"),
    "what is told": ("report->entries[entry] = stuck;", ""),
    "who is told": ("watchdog_wait(watchdog, full", "watchdog_wait(nullptr, full"),
    "which barrier": ("watchdog_wait(watchdog, full", "watchdog_wait(watchdog, empty"),
}
STAMPED = {
    "a wrap": ("count++ % 64", "count++ % 128"),
    "an event": ("stamps.add(1, ", "stamps.add(2, "),
    "who writes": ("writes = threadIdx.x % 128 == 0;", "writes = threadIdx.x % 32 == 0;"),
}


def edited(text: str, edit: tuple[str, str]) -> str:
    old, new = edit
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize("edit", {**EDITS, **FRAME})
def test_an_edit_of_the_text_shows(edit):
    e = EXHIBITS["fp8_block/base"]
    text = source("fp8_block/base")
    body = text.index('extern "C"') if edit in EDITS else 0
    text = text[:body] + edited(text[body:], ({**EDITS, **FRAME})[edit])
    with pytest.raises(TextDiffers):
        link(lower(e.problem, e.config), text)


@pytest.mark.parametrize("edit", TURNS)
def test_an_edit_of_turns_shows(edit):
    e = emitted(*VARIETY["dense-ping-pong"])
    with pytest.raises(TextDiffers):
        link(e.kernel, edited(e.source, TURNS[edit]))


@pytest.mark.parametrize(
    ("kind", "edit"), [("w", x) for x in WATCHED] + [("s", x) for x in STAMPED]
)
def test_an_edit_of_what_watches_and_stamps_shows(kind, edit):
    problem, config = VARIETY["dense"]
    kernel = lower(problem, replace(config, watchdog=kind == "w"), stamps=64 * (kind == "s"))
    with pytest.raises(TextDiffers):
        link(kernel, edited(emit(kernel), (WATCHED if kind == "w" else STAMPED)[edit]))


def test_what_differs_is_told():
    e = EXHIBITS["fp8_block/base"]
    text = edited(source("fp8_block/base"), ("ptx::wgmma_wait<0>();", "ptx::wgmma_wait<1>();"))
    with pytest.raises(TextDiffers) as caught:
        link(lower(e.problem, e.config), text)
    assert caught.value.id == "GG-V003"
    assert "in consumer, WgmmaWait; if (warpgroup < 2)" in caught.value.where
    assert caught.value.ir == "wgmma.wait_group.sync.aligned(0)"
    assert caught.value.text == "wgmma.wait_group.sync.aligned(1)"


def test_an_edit_of_the_ir_shows():
    """Each statement of a kernel left out, once."""
    e = emitted(*VARIETY["fp8-multicast-a"])
    blocks = tuple(s for s in statements(e.kernel) if not hasattr(s, "body"))
    for left_out in dict.fromkeys(blocks):
        less = map_stmts(e.kernel, lambda s, x=left_out: () if s == x else s)
        with pytest.raises(TextDiffers):
            link(less, e.source)


WAIT = "ptx::mbarrier_wait(full + 8 * ring.stage, ring.phase);"
LOOP = "#pragma unroll 1\n"


def test_what_was_read_before_it_changed_shows():
    """The ring's stage in a constant: of this K block it is the same, from before the loop it is another."""
    e, text = EXHIBITS["fp8_block/base"], source("fp8_block/base")
    kernel = lower(e.problem, e.config)
    constant, wait = "const int at = ring.stage; ", WAIT.replace("ring.stage", "at")
    link(kernel, edited(text, (WAIT, constant + wait)))
    with pytest.raises(TextDiffers, match="stale"):
        link(kernel, edited(edited(text, (WAIT, wait)), (LOOP, f"{constant}\n{LOOP}")))


# What says the same in other words.
SAME = {
    "another name": (r"\bscale_0\b", "one"),
    "another order": (
        r"4 \* \(warpgroup \* 64 \+ warp \* 16",
        "4 * (warp * 16 + 64 * warpgroup",
    ),
    "a number in its place": (r"\bSTAGES; \+\+i", "5; ++i"),
    "no comments": (r"(?<!\") *//[^\n]*\n", "\n"),  # but for one that is the text of an asm
    "a function by another name": (r"\bmbarrier_wait\b", "await"),
}


@pytest.mark.parametrize("same", SAME)
def test_other_words_are_no_difference(same):
    e, text = EXHIBITS["fp8_block/base"], source("fp8_block/base")
    other = re.sub(*SAME[same], text)
    assert other != text
    link(lower(e.problem, e.config), other)


def test_functions_that_exchange_their_names_show():
    """What a function is called says nothing."""
    e, text = EXHIBITS["fp8_block/base"], source("fp8_block/base")
    names = {"wgmma_fence": "wgmma_commit", "wgmma_commit": "wgmma_fence"}
    begin, end = text.rindex("namespace ptx {"), text.rindex("}  // namespace ptx")
    inside = re.sub(r"wgmma_(fence|commit)\(\)", lambda m: names[m[0][:-2]] + "()", text[begin:end])
    with pytest.raises(TextDiffers):
        link(lower(e.problem, e.config), text[:begin] + inside + text[end:])


@pytest.mark.parametrize(
    "text", ("", "}", 'extern "C"', "int x;", 'extern "C" void f() {', "{" * 5000)
)
def test_what_is_no_kernel_differs(text):
    assert from_text(text)[-1][0] == "unreadable"
