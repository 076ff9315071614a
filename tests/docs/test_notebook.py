"""What notebooks show, and the names by which users of other kernel languages look into a kernel."""

from __future__ import annotations

from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from kernels import DENSE

from gemmgen import ops
from gemmgen.config import FIELDS, Config
from gemmgen.errors import RuntimeUnavailable
from gemmgen.families import build
from gemmgen.gallery import artifact, exhibit
from gemmgen.ir.text import dump
from gemmgen.notebook import folded, table
from gemmgen.pipeline import lower
from gemmgen.runtime import compiled, disassemble
from gemmgen.runtime.compiled import Compiled

BASE = artifact(exhibit("fp8_block/base"))


class Cells(HTMLParser):
    """The texts of a fragment, by the tag they stand in; tags close in order."""

    def __init__(self, fragment):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(fragment)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        assert "src" not in dict(attrs) and tag not in ("script", "style", "link")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1], data))

    def of(self, tag):
        return [text for kind, text in self.texts if kind == tag]


def test_fragments_are_escaped():
    cells = Cells(table("a<b", {"<i>": "</td>"}) + folded("&", "<x>"))
    assert (
        cells.of("caption") == ["a<b"] and cells.of("th") == ["<i>"] and cells.of("td") == ["</td>"]
    )
    assert cells.of("summary") == ["&"] and cells.of("pre") == ["<x>"]


def test_a_config_shows_what_is_not_a_default_first():
    cells = Cells(Config(stages=7, pdl=True)._repr_html_())
    assert cells.of("th")[:2] == ["stages", "pdl"] and cells.of("td")[:2] == ["7", "True"]
    assert {*cells.of("th")} == {*FIELDS} and all("default" in x for x in cells.of("td")[2:])


def test_a_problem_shows_what_it_is():
    cells = Cells(DENSE._repr_html_())
    assert dict(zip(cells.of("th"), cells.of("td"), strict=True))["a"] == "bf16"


def test_a_kernel_shows_its_ir_lowered_or_not():
    for kernel, smem in (
        (BASE.kernel, str(BASE.kernel.smem_bytes)),
        (build(DENSE, Config()), "not"),
    ):
        cells = Cells(kernel._repr_html_())
        assert cells.of("caption") == [kernel.name] and cells.of("pre") == [dump(kernel)]
        rows = dict(zip(cells.of("th"), cells.of("td"), strict=True))
        assert rows["bytes of shared memory"].startswith(smem)
        assert rows["roles"] == "2 consumer, 1 producer"


def test_an_artifact_shows_all_of_it():
    cells = Cells(BASE._repr_html_())
    assert cells.of("caption") == ["Problem", "Config", BASE.name]
    assert cells.of("pre") == [dump(BASE.kernel), BASE.source]


# ---- compiled kernels ---------------------------------------------------------------------


def made(source=BASE.source):
    cubin = SimpleNamespace(image=b"ELF", registers=168, spill_bytes=0)
    return Compiled(BASE.kernel, cubin, source)


def test_stages_are_made_when_asked_for_and_kept(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(compiled, "compile_ptx", lambda *x: asked.append(x) or "PTX")
    monkeypatch.setattr(compiled, "sass", lambda image: asked.append(image) or "SASS")
    k = made()
    assert [*k.asm] == ["ptx", "cubin", "sass"] and len(k.asm) == 3
    assert "ptx" in k.asm and "cu" not in k.asm and not asked
    assert (k.asm["ptx"], k.asm["ptx"]) == ("PTX", "PTX") and asked == [(BASE.source, BASE.name)]
    k.show_sass()
    assert capsys.readouterr().out == "SASS\n" and asked[1:] == [b"ELF"]
    k.show_sass()
    assert asked[1:] == [b"ELF"] and k.asm["cubin"] == b"ELF"


def test_an_unknown_stage_names_those_there_are():
    with pytest.raises(KeyError, match="ptx, cubin, sass"):
        made().asm["ttir"]
    assert made().asm.get("ttir") is None


def test_what_it_uses():
    k = made()
    assert (k.n_regs, k.n_spills, k.get_kernel_source()) == (168, 0, BASE.source)
    rows = Cells(k._repr_html_())
    assert dict(zip(rows.of("th"), rows.of("td"), strict=True))["registers per thread"] == "168"


def test_a_kernel_without_its_source_says_so():
    k = made(source=None)
    for ask in (k.get_kernel_source, lambda: k.asm["ptx"]):
        with pytest.raises(RuntimeUnavailable, match="without its source"):
            ask()
    assert k.asm["cubin"] == b"ELF"


@pytest.mark.gpu
def test_a_loaded_one():
    k = ops.loaded(DENSE, Config(), 0)
    assert isinstance(k, Compiled) and 0 < k.n_regs <= 255 and k.asm["cubin"] == k.cubin.image
    with pytest.raises(RuntimeUnavailable, match="without its source"):
        k.get_kernel_source()


@pytest.mark.nvrtc
def test_a_real_one(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    monkeypatch.setenv("GEMMGEN_CACHE", "none")
    k = ops.compiled(DENSE, Config(block_n=64, stages=2))
    assert k.kernel == lower(DENSE, Config(block_n=64, stages=2))
    assert 0 < k.n_regs <= 255 and k.n_spills == 0
    assert f".entry {k.kernel.name}(" in k.asm["ptx"] and k.asm["cubin"][:4] == b"\x7fELF"
    try:
        disassemble.find()
    except RuntimeUnavailable:
        return
    assert "HGMMA" in k.asm["sass"]
