"""What is proved is what is emitted: each generated kernel's synchronisation is its IR's."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_extract import from_ir, from_text

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
    text, statements = from_text(source(name)), from_ir(kernel)
    for i, (seen, meant) in enumerate(zip(text, statements, strict=False)):
        assert seen == meant, f"event {i}"
    assert len(text) == len(statements)
    assert len(text) > 20


@pytest.mark.parametrize("name", FILES)
def test_barriers_lie_where_the_ir_puts_them(name):
    kernel = lower(EXHIBITS[name].problem, EXHIBITS[name].config)
    for part in (*kernel.barriers, *kernel.smem):
        assert f"const uint32_t {part.name} = smem_base + {part.offset};" in source(name)
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
