"""What is proved is what is emitted: each generated kernel's synchronisation is its IR's."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_extract import from_ir, from_text
from kernels import VARIETY, emitted

from gemmgen.gallery import GALLERY, path_of
from gemmgen.ir.text import dump
from gemmgen.pipeline import lower

GENERATED = Path(__file__).parent.parent / "generated"
FILES = sorted(str(p.relative_to(GENERATED))[:-3] for p in GENERATED.glob("*/*.cu"))
EXHIBITS = {path_of(e): e for e in GALLERY}


def source(name: str) -> str:
    return (GENERATED / f"{name}.cu").read_text()


def test_every_file_is_an_exhibit():
    assert sorted(EXHIBITS) == FILES


@pytest.mark.parametrize("name", FILES)
def test_text_and_ir_synchronise_alike(name):
    kernel = lower(EXHIBITS[name].problem, EXHIBITS[name].config)
    assert dump(kernel) in (GENERATED / f"{name}.ir").read_text(), "gemmgen emit --all"
    assert_alike(from_text(source(name)), from_ir(kernel))


# These kernels have no file: VARIETY has the ways to take turns.
IN_TURNS = [name for name, (_, config) in VARIETY.items() if config.ping_pong]


@pytest.mark.parametrize("name", IN_TURNS)
def test_text_and_ir_take_turns_alike(name):
    e = emitted(*VARIETY[name])
    assert_alike(from_text(e.source), from_ir(e.kernel))


def assert_alike(text: list, statements: list) -> None:
    for i, (seen, meant) in enumerate(zip(text, statements, strict=False)):
        assert seen == meant, f"event {i}"
    assert len(text) == len(statements)
    assert len(text) > 20


@pytest.mark.parametrize("name", FILES)
def test_barriers_lie_where_the_ir_puts_them(name):
    kernel = lower(EXHIBITS[name].problem, EXHIBITS[name].config)
    for part in kernel.barriers:
        assert f"const uint32_t {part.name} = smem_base + {part.offset};" in source(name)
    for s in kernel.smem:
        own = f" + worker * {s.copy_bytes}" * (s.copies > 1)
        assert f"const uint32_t {s.name} = smem_base + {s.offset}{own};" in source(name)
    assert f"constexpr int STAGES = {kernel.stages};" in source(name)


EDITS = {
    "a parity": ("ring.stage, ring.phase);", "ring.stage, ring.phase ^ 1);"),
    "a byte count": ("expect_tx(full + 8 * ring.stage, ", "expect_tx(full + 8 * ring.stage, 1"),
    "an arrival count": (
        "ptx::mbarrier_init(empty + 8 * i, ",
        "ptx::mbarrier_init(empty + 8 * i, 1",
    ),
    "a stage": (
        "ptx::mbarrier_arrive(empty + 8 * ring.stage)",
        "ptx::mbarrier_arrive(empty + 8 * ring.previous())",
    ),
    "a fence": ("ptx::fence_proxy_async();\n", ";\n"),
    "a wait": ("ptx::wgmma_wait<0>();", "ptx::wgmma_wait<1>();"),
    "a leader": ("if (threadIdx.x % 128 == 0) {", "if (true) {"),
    "an order": ("ptx::wgmma_commit();\n", "\n"),
    "a barrier": ("&map_b, full + 8", "&map_b, empty + 8"),
    "an offset": ("smem_b + ring.stage * ", "smem_b + 0 * "),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_the_text_shows(edit):
    old, new = EDITS[edit]
    text = source("fp8_block/base")
    body = text.index('extern "C"')
    assert old in text[body:]
    edited = text[:body] + text[body:].replace(old, new, 1)
    kernel = lower(EXHIBITS["fp8_block/base"].problem, EXHIBITS["fp8_block/base"].config)
    assert from_text(edited) != from_ir(kernel)


TURNS = {
    "whose tile": ("int others = worker;", "int others = 0;"),
    "how many others": ("others = 2;", "others = 1;"),
    "a parity": ("turn[0] ^ (worker == 0)", "turn[0]"),
    "whose turn": ("turns + 8 * worker, turn", "turns + 8 * 0, turn"),
    "a wait": ("ptx::mbarrier_wait(turns + ", "(void)(turns + "),
    "whose is next": ("(worker + 1) % 2", "(worker + 1) % 3"),
    "an arrival count": ("mbarrier_init(turns + 8 * i, 4)", "mbarrier_init(turns + 8 * i, 8)"),
    "a barrier": ("i < 2; ++i) ptx::mbarrier_init(turns", "i < 1; ++i) ptx::mbarrier_init(turns"),
    "a turn that counts": ("turn[0] ^= 1;", ";"),
    "the phase of others' blocks": ("ring.phase ^= ", "ring.phase |= "),
    "the stage of others' blocks": ("tile.k_blocks) % STAGES;", "1) % STAGES;"),
    "an order": ("ring.stage = (ring.stage + tile.k_blocks) % STAGES;", "ring.phase ^= 0;"),
    "another's tile": ("continue;", ";"),
    "a copy of D": (" + worker * 16384;", " + worker * 0;"),
    "a named barrier": ("if (worker == 1) ptx::named", "if (warpgroup == 1) ptx::named"),
    "a role": ("if (worker < 2) {", "if (warpgroup < 2) {"),
    "who shares a tile": ("constexpr int warpgroup = 0;", "const int warpgroup = worker;"),
}


@pytest.mark.parametrize("edit", TURNS)
def test_an_edit_of_turns_shows(edit):
    old, new = TURNS[edit]
    e = emitted(*VARIETY["dense-ping-pong"])
    body = e.source.index('extern "C"')
    assert old in e.source[body:]
    edited = e.source[:body] + e.source[body:].replace(old, new, 1)
    assert from_text(e.source) == from_ir(e.kernel) != from_text(edited)
