"""A config that was given is built once more, sparing of registers, where ptxas has too few for it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from kernels import FP8, emitted

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.errors import CompileError, IllegalConfig
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ops import building, refused
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import cache, nvrtc
from gemmgen.runtime.nvrtc import Cubin, options, sparing, starved
from gemmgen.target import H200

P, C = Problem(family="dense", a=BF16, b=BF16), Config()
SPILLS = "k must not run: 8 bytes of spills. NVRTC said:\nptxas info"
SERIAL = (
    "k must not run: C7512 (wgmma was serialised for lack of registers). NVRTC said:\nptxas info"
)
TRIPS = "k must not run: its K loop in line 3 cannot run 5 times, as the compiler unrolled it."
SYNTAX = "NVRTC refused k:\nk.cu(1): error: 8 bytes of spills was expected"
# Without -O1 it spills 32 bytes with NVRTC 13.0 and 13.5, and no rule forbids it.
TIGHT = (
    replace(FP8, family="fp8_1d1d", d=E4M3, grouping="k_columns"),
    Config(stages=4, unroll=5),
)


class Compiler:
    """Refuses with `text` what is not compiled sparing of registers; with `always`, everything."""

    def __init__(self, text, always=False):
        self.text, self.always, self.asked = text, always, []

    def __call__(self):
        self.asked.append(nvrtc.SPARING in options(H200))
        if self.always or not self.asked[-1]:
            raise CompileError(f"{self.text} {len(self.asked)}")
        return "made"


@pytest.mark.parametrize("text", (SPILLS, SERIAL))
def test_for_want_of_registers_it_is_built_sparing_of_them(text, caplog):
    compiler = Compiler(text)
    with caplog.at_level(logging.WARNING):
        assert refused.as_given(P, C, compiler) == "made"
    assert compiler.asked == [False, True] and nvrtc.SPARING in caplog.text
    assert text.partition(" NVRTC")[0] in caplog.text
    assert nvrtc.SPARING not in options(H200)


@pytest.mark.parametrize("text", (TRIPS, SYNTAX))
def test_for_any_other_reason_it_is_refused(text):
    compiler = Compiler(text)
    with pytest.raises(CompileError, match=r"1$"):
        refused.as_given(P, C, compiler)
    assert compiler.asked == [False]


def test_if_that_does_not_help_the_first_error_is_raised(caplog):
    compiler = Compiler(SPILLS, always=True)
    with pytest.raises(CompileError, match=r"1$"):
        refused.as_given(P, C, compiler)
    assert compiler.asked == [False, True] and not caplog.text
    assert nvrtc.SPARING not in options(H200)


def test_what_is_sparing_is_kept_apart():
    """In the cache on the disk: the options are part of what a cubin is found by."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    plain = cache.inputs_of("source", "k")
    with sparing():
        assert cache.inputs_of("source", "k").key != plain.key
    assert cache.inputs_of("source", "k").key == plain.key


def test_functions_on_tensors_build_what_they_are_given(monkeypatch, tmp_path):
    """And a choice of the same config is passed over as before."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "cache"))
    compiler = Compiler(SPILLS)

    def compiled(source, name, target=H200):
        compiler()
        facts = {"registers": 0, "spill_bytes": 0, "stack_bytes": 0, "barriers": 0}
        image = b"\x7fELF" + b"\0" * 14 + b"\xbe\x00" + b"code"
        return Cubin(name=name, image=image, seconds=0.1, log="", **facts)

    built = building.built
    monkeypatch.setattr(building, "built", lambda p, c: built(p, c, compiled))
    monkeypatch.setattr(building, "LoadedKernel", lambda kernel, cubin, device: kernel.name)
    for kept in (building.loaded, building.given):
        kept.cache_clear()
    assert building.given(P, C, 0) == lower(P, C).name
    assert building.given(P, C, 0) == lower(P, C).name and compiler.asked == [False, True]
    with pytest.raises(CompileError):
        building.loaded(P, C, 0)
    for kept in (building.loaded, building.given):
        kept.cache_clear()


@pytest.mark.nvrtc
def test_a_kernel_that_spills_is_compiled(tmp_path, caplog, capsys):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    tight = emitted(*TIGHT)
    if nvrtc.version() < (13, 0):
        pytest.skip("this compiler does not spill it")
    with pytest.raises(CompileError) as refusal:
        nvrtc.compile_cubin(tight.source, tight.name)
    assert starved(refusal.value)
    argv = ["compile", "fp8_1d1d", "--d", "e4m3", "--grouping", "k_columns", "-o", str(tmp_path)]
    with caplog.at_level(logging.WARNING):
        assert main([*argv, "--config", json.dumps(TIGHT[1].to_json())]) == 0
    assert nvrtc.SPARING in caplog.text and "spills 0 bytes" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == [f"{tight.name}.cubin"]


def test_the_rules_know_what_sparing_does_not_help():
    """Each of these spills with ptxas at -O1 too."""
    fp8 = replace(FP8, family="fp8")
    scaled = replace(fp8, family="dense", a=F16, b=F16, layout="tn", grouping="batched")
    for p, c in (
        (fp8, Config(block_m=256, block_k_bytes=64, unroll=2)),
        (fp8, Config(ping_pong=True, stages=3, unroll=2)),
        (fp8, Config(unroll=4, registers=(40, 192), watchdog=True)),
        (scaled, Config(multicast="a", swizzle_ab=0, registers=(40, 192), watchdog=True)),
    ):
        with pytest.raises(IllegalConfig, match="register-budget"):
            lower(p, c)
    watched = lower(scaled, Config(multicast="a", swizzle_ab=0, watchdog=True))
    assert next(r.registers for r in watched.roles if r.name == "producer") == 56
