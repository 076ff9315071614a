"""In a launch that may overlap the one before it, loads of what that may still write are coherent: in the text, in PTX, on the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from kernels import DENSE, FP8, VARIETY, VECTOR, emitted
from test_emulator import run

from gemmgen.bench.tuning.jobs import Job, launch
from gemmgen.config import Config
from gemmgen.emulator import Race
from gemmgen.emulator.spaces import HEAP
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.link import TextDiffers, link
from gemmgen.verification.trial import judge

WIDE = Config(block_n=64)
FEW = Config(swap_ab=True, block_m=16, block_n=64, consumers=1)
READ = re.compile(r"ptx::(load_(?:global|once)_(?:float|int))\(")
WAYS = {"load_global_float", "load_global_int", "load_once_float", "load_once_int"}


def of(p, epilogue, grouping, config, pdl=True):
    """The kernel and its text, None where there is no such kernel."""
    try:
        asked = replace(p, epilogue=EPILOGUES[epilogue], grouping=grouping)
        return emitted(asked, replace(config, pdl=pdl))
    except (ArgumentError, IllegalConfig):
        return None


def code(text):
    """Without comments."""
    return "\n".join(line.partition("//")[0] for line in text.splitlines())


@pytest.mark.parametrize(
    ("p", "grouping"),
    [
        pytest.param(p, g, id=f"{p.family}-{g}")
        for p in (DENSE, FP8, VECTOR)
        for g in GROUPINGS
        if p == DENSE or not GROUPINGS[g].summed
    ],
)
def test_every_load_is_coherent(p, grouping):
    """And where launches do not overlap, all are as they were: for the compiler to move and the hardware to keep."""
    found = 0
    for epilogue, config in product(EPILOGUES, (WIDE, FEW)):
        e, plain = (of(p, epilogue, grouping, config, pdl) for pdl in (True, False))
        assert (e is None) == (plain is None)
        if e is None:
            continue
        found += 1
        assert not re.search(r"__ldg|\.nc\b", code(e.source)), e.kernel.name
        read = READ.findall(code(plain.source))
        assert not {*read} & WAYS, plain.kernel.name
        assert ("__ldg" in plain.source) == bool(READ.search(code(e.source)))
    assert found


KINDS = {  # a kernel that has them, and how its loads are made
    "scales of blocks": ((FP8, "none", "none", WIDE), {"load_global_float"}),
    "of rows and columns": ((DENSE, "scaled", "none", WIDE), {"load_once_float"}),
    "of a tensor": ((DENSE, "tensor_scaled", "batched", FEW), {"load_once_float"}),
    "rows that are masked": ((DENSE, "none", "masked", WIDE), {"load_global_int"}),
    "ends": ((DENSE, "none", "ends", WIDE), {"load_global_int"}),
    "depths": ((DENSE, "none", "k_flat", WIDE), {"load_global_int"}),
    "groups of rows": ((DENSE, "none", "rows", WIDE), {"load_global_int", "load_once_int"}),
    "all": ((FP8, "bias_residual", "rows", FEW), WAYS),
}


@cache
def kind(name):
    return of(*KINDS[name][0])


@pytest.mark.parametrize("name", KINDS)
def test_a_load_that_is_not_coherent_is_found(name):
    """Each one alone, of schedulers too."""
    e = kind(name)
    assert {m[1] for m in READ.finditer(e.source)} == KINDS[name][1]
    link(e.kernel, e.source)
    for m in READ.finditer(e.source):
        text = e.source[: m.start()] + "__ldg(" + e.source[m.end() :]
        with pytest.raises(TextDiffers, match="coherent") as error:
            link(e.kernel, text)
        assert f"in line {text[: m.start()].count(chr(10)) + 1}" in str(error.value)
    function = e.source.rindex("ld.global.")
    text = e.source[:function] + "ld.global.nc." + e.source[function + len("ld.global.") :]
    with pytest.raises(TextDiffers, match="coherent"):
        link(e.kernel, text)


@pytest.mark.parametrize("name", ["of rows and columns", "of a tensor", "groups of rows"])
def test_what_keeps_a_load_behind_the_wait(name):
    """Its pointer, made opaque there: else the load must be volatile."""
    e = kind(name)
    (pointer, *_) = re.findall(r"const auto (?:at|table)_\w+ = ptx::opaque\((.+)\);", e.source)
    text = e.source.replace(f"ptx::opaque({pointer})", pointer, 1)
    with pytest.raises(TextDiffers, match="is not volatile"):
        link(e.kernel, text)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "name", [*KINDS, *(name for name, (_, config) in VARIETY.items() if config.pdl)]
)
def test_the_compiler_makes_none_of_its_own(name):
    """As it does of what it sees that the kernel only reads."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.nvrtc import compile_ptx

    e = kind(name) if name in KINDS else emitted(*VARIETY[name])
    ptx = compile_ptx(e.source, e.kernel.name)
    assert not re.search(r"\bldu\.|\bld\.[\w.]*\bnc\b", ptx)


@cache
def launched(name):
    """A kernel, and what it is put on trial with: three groups where it has groups."""
    e = kind(name)
    grouped = e.problem.grouping != "none"
    of_one = Job(problem=e.problem, shape=(77, 136, 384), groups=3 if grouped else 1)
    return e, *launch(of_one)


def tried(name, text):
    """`text` in the kernel's place, on the emulator. Raises Race, VerificationError."""
    from gemmgen.runtime.emulated import EmulatedGpu, prepare

    e, shape, layout = launched(name)
    program = prepare(e.kernel, text)
    judge(EmulatedGpu(sms=3), program, e.kernel, e.problem, shape, pad=0, layout=layout)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", KINDS)
def test_the_result(name):
    """As it is, it is right; with any kind of its loads not coherent the emulator sees it."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    source = kind(name).source
    tried(name, source)
    for way in sorted(KINDS[name][1]):
        with pytest.raises(Race, match="without coherence"):
            tried(name, source.replace(f"ptx::{way}(", "__ldg("))


WAIT = "griddepcontrol.wait;"
OUT = ((HEAP, 16 * 64),)


@pytest.mark.parametrize(
    "load",
    ["ld.global.nc.u32 %r1, [%d31];", "ldu.global.u32 %r1, [%d31];"],
)
def test_the_emulator_refuses_it_after_the_wait_too(load):
    run(WAIT + load, threads=64)  # the launch before is over
    run(WAIT + load.replace(".nc", "").replace("ldu", "ld"), threads=64, overlaps=True)
    with pytest.raises(Race, match="without coherence"):
        run(WAIT + load, threads=64, overlaps=True)
    run(WAIT + load, threads=64, overlaps=True, ready=OUT)  # which nobody writes
