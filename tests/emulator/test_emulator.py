"""The emulator's parser and arithmetic, on small hand-written PTX."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import floats
from gemmgen.emulator.convert import _clock
from gemmgen.emulator.parse import parse
from gemmgen.emulator.syntax import Imm, Reg, Vector

HEAD = """
.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""
REGISTERS = """
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %d<32>;
"""
# Every thread's place in `out`: 16 bytes each.
PLACE = """
mov.u32 %r60, %tid.x;
mov.u32 %r61, %ctaid.x;
mov.u32 %r62, %ntid.x;
mad.lo.s32 %r60, %r61, %r62, %r60;
ld.param.u64 %d30, [out];
mad.wide.u32 %d31, %r60, 16, %d30;
"""


def source(body: str, params: tuple[str, ...] = (), cluster: int = 1) -> str:
    """A kernel `k` with the parameter `out` first; `body` may use the registers above."""
    names = ", ".join((".param .u64 out", *params))
    directives = f".maxntid 1024, 1, 1\n.explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n"
    return f"{HEAD}.visible .entry k({names})\n{directives}{{{REGISTERS}{PLACE}{body}\nret;\n}}\n"


def run(body: str, *values, params=(), threads=32, grid=1, cluster=1, shared=4096, **options):
    """Launch `body`; `out` as uint32 [threads of the grid, 4]. Unwritten words are 0xFFFFFFFF."""
    memory = options.pop("memory", None) or emulator.GlobalMemory()
    out = memory.allocate(np.full(16 * threads * grid, 0xFF, np.uint8))
    entry = emulator.load(source(body, params, cluster)).entries["k"]
    run.stats = emulator.launch(
        entry,
        grid=grid,
        block=threads,
        cluster=cluster,
        shared_bytes=shared,
        params=(out, *values),
        memory=memory,
        **options,
    )
    return memory.read(out, 16 * threads * grid).view(np.uint32).reshape(-1, 4)


def computed(instructions: str, *inputs: int, register: str = "%r0", kind: str = "b32") -> int:
    """The value of `register` after `instructions`, with %r1, %r2, ... set to `inputs`."""
    setup = "".join(f"mov.b32 %r{k + 1}, {x};\n" for k, x in enumerate(inputs))
    out = run(f"{setup}{instructions}\nst.global.{kind} [%d31], {register};")
    return int(out[0, :2].copy().view(np.uint64)[0]) if kind == "b64" else int(out[0, 0])


def test_the_parser_keeps_lines_scopes_and_locations():
    text = source(
        '.file 1 "a/kernel.cu"\n.loc 1 17 3\n{\n.reg .pred p;\nL:\nsetp.eq.s32 p, %r1, 0;\n@!p bra L;\n}\nL: bra L;'
    )
    f = parse(text)["k"]
    compare, branch, other = (i for i in f.body[6:9])
    assert text.splitlines()[compare.line - 1].startswith("setp")
    assert str(compare.source) == "kernel.cu:17"
    assert branch.guard == Reg("p@1", negated=True)
    assert (f.labels["L@1"], f.labels["L"]) == (6, 8)
    assert (branch.operands[0].name, other.operands[0].name) == ("L@1", "L")


def test_an_inlined_location_names_both_lines():
    locations = (
        '.file 1 "kernel.cu"',
        ".loc 1 90 5, function_name $L__info_string0, inlined_at 1 80 3",
        "add.u32 %r1, %r1, 1;",
        ".loc 1 80 3, function_name $L__info_string1, inlined_at 1 200 9",
        "add.u32 %r1, %r1, 1;",
        ".loc 1 90 5, function_name $L__info_string0, inlined_at 1 80 3",
        "add.u32 %r1, %r1, 1;",
    )
    *_, last, _ = parse(source("\n".join(locations)))["k"].body
    assert str(last.source) == "kernel.cu:200, inlined from line 90"


def test_clocks_of_32_bits_wrap():
    """Both count turns, 1000 cycles each, of which one goes on."""
    launch = SimpleNamespace(stats=SimpleNamespace(turns=5_000_000))
    group = SimpleNamespace(cta=SimpleNamespace(launch=launch), where=True)
    for kind, want in ((np.uint32, 5 * 10**9 - (1 << 32)), (np.uint64, 5 * 10**9)):
        group.R = [np.zeros(4, kind)]
        _clock(0)(group)
        assert (group.R[0] == want).all()


def test_operands():
    f = parse(source("mov.b64 %d1, {%r1, 0fBF800000};\nld.global.v2.u32 {%r1, _}, [%d1+-8];"))["k"]
    pack, load = f.body[6:8]
    assert pack.operands[1] == Vector((Reg("%r1"), Imm(0xBF800000, 32)))
    assert (load.operands[1].base, load.operands[1].offset) == (Reg("%d1"), -8)


@pytest.mark.parametrize(
    ("instructions", "inputs", "want"),
    (
        ("add.s32 %r0, %r1, %r2;", (0xFFFFFFFF, 2), 1),
        ("sub.u32 %r0, %r1, %r2;", (1, 2), 0xFFFFFFFF),
        ("max.u16x2 %r0, %r1, %r2;", (0x00018000, 0x00027FFF), 0x00028000),
        ("add.u16x2 %r0, %r1, %r2;", (0x0001FFFF, 0x00010001), 0x00020000),
        ("mul.lo.s32 %r0, %r1, %r2;", (0x10001, 0x10001), 0x20001),
        ("mul.hi.u32 %r0, %r1, %r2;", (0x80000000, 6), 3),
        ("mul.hi.s32 %r0, %r1, %r2;", (0x80000000, 6), 0xFFFFFFFD),
        ("mad.lo.s32 %r0, %r1, %r2, %r1;", (7, 6), 49),
        ("div.s32 %r0, %r1, %r2;", (0xFFFFFFF9, 2), 0xFFFFFFFD),
        ("rem.s32 %r0, %r1, %r2;", (0xFFFFFFF9, 2), 0xFFFFFFFF),
        ("div.u32 %r0, %r1, %r2;", (0xFFFFFFF9, 2), 0x7FFFFFFC),
        ("div.s32 %r0, %r1, %r2;", (7, 0), 0xFFFFFFFF),
        ("min.s32 %r0, %r1, %r2;", (0xFFFFFFFF, 2), 0xFFFFFFFF),
        ("min.u32 %r0, %r1, %r2;", (0xFFFFFFFF, 2), 2),
        ("not.b32 %r0, %r1;", (5,), 0xFFFFFFFA),
        ("neg.s32 %r0, %r1;", (5,), 0xFFFFFFFB),
        ("abs.s32 %r0, %r1;", (0xFFFFFFFB,), 5),
        ("shl.b32 %r0, %r1, 33;", (1,), 0),
        ("shl.b32 %r0, %r1, %r2;", (1, 31), 0x80000000),
        ("shr.u32 %r0, %r1, 4;", (0x80000000,), 0x08000000),
        ("shr.s32 %r0, %r1, 40;", (0x80000000,), 0xFFFFFFFF),
        ("shf.l.wrap.b32 %r0, %r1, %r2, 8;", (0x11223344, 0x55667788), 0x66778811),
        ("shf.r.clamp.b32 %r0, %r1, %r2, 8;", (0x11223344, 0x55667788), 0x88112233),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", (12, 10, 6), 12 ^ 10 ^ 6),
        ("bfe.u32 %r0, %r1, 4, 8;", (0xABCD,), 0xBC),
        ("bfe.s32 %r0, %r1, 4, 8;", (0xABCD,), 0xFFFFFFBC),
        ("bfi.b32 %r0, %r1, %r2, 4, 2;", (3, 0), 0x30),
        ("bfi.b32 %r0, %r1, %r2, 0, 32;", (3, 0x77), 3),
        ("prmt.b32 %r0, %r1, %r2, 0x5410;", (0x11223344, 0x55667788), 0x77883344),
        ("prmt.b32 %r0, %r1, %r2, 0x000B;", (0x81223344, 0), 0x444444FF),
        ("popc.b32 %r0, %r1;", (0xF0F0,), 8),
        ("clz.b32 %r0, %r1;", (0x00800000,), 8),
        ("bfind.u32 %r0, %r1;", (0x00800000,), 23),
        ("bfind.shiftamt.u32 %r0, %r1;", (0x00800000,), 8),
        ("bfind.shiftamt.u32 %r0, %r1;", (0,), 0xFFFFFFFF),
        ("brev.b32 %r0, %r1;", (1,), 0x80000000),
        ("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, 1, 2, %p1;", (0xFFFFFFFF, 0), 1),
        ("setp.lt.u32 %p1|%p2, %r1, %r2; selp.b32 %r0, 1, 2, %p2;", (0xFFFFFFFF, 0), 1),
        (
            "setp.eq.s32 %p1, %r1, %r1; setp.eq.and.s32 %p2, %r1, %r2, !%p1; selp.b32 %r0, 1, 2, %p2;",
            (3, 3),
            2,
        ),
        ("setp.eq.s32 %p1, %r1, 0; or.pred %p2, %p1, !%p1; selp.u32 %r0, 1, 0, %p2;", (3,), 1),
        ("mov.b64 %d1, {%r1, %r2}; mov.b64 {%r3, %r0}, %d1;", (5, 9), 9),
        ("cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r0, %h1;", (0x1FFFE,), 0xFFFFFFFE),
        ("cvt.sat.s8.s32 %r0, %r1;", (300,), 127),
        ("cvt.rn.f32.s32 %f1, %r1; cvt.rzi.s32.f32 %r0, %f1;", (0xFFFFFFF9,), 0xFFFFFFF9),
        ("mov.b32 %f1, %r1; cvt.rni.s32.f32 %r0, %f1;", (0x40200000,), 2),
        ("mov.b32 %f1, %r1; cvt.rzi.u32.f32 %r0, %f1;", (0xC0000000,), 0),
        ("setp.eq.s32 %p1, %r1, 1; @%p1 bra NEXT; NEXT: mov.u32 %r0, %nctaid.x;", (2,), 1),
    ),
)
def test_integers(instructions, inputs, want):
    assert computed(instructions, *inputs) == want


@pytest.mark.parametrize(
    ("instructions", "inputs", "want"),
    (
        ("mul.wide.s32 %d1, %r1, %r2;", (0xFFFFFFFF, 2), 2**64 - 2),
        ("mul.wide.u32 %d1, %r1, %r2;", (0xFFFFFFFF, 2), 0x1FFFFFFFE),
        ("cvt.s64.s32 %d2, %r1; mad.wide.s32 %d1, %r1, %r2, %d2;", (0xFFFFFFFF, 2), 2**64 - 3),
        ("cvt.u64.u32 %d2, %r1; shl.b64 %d1, %d2, 32;", (3,), 3 << 32),
        ("cvt.u64.u32 %d2, %r1; shl.b64 %d2, %d2, 32; mul.hi.u64 %d1, %d2, %d2;", (4,), 16),
    ),
)
def test_wide_integers(instructions, inputs, want):
    assert computed(instructions, *inputs, register="%d1", kind="b64") == want


def bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


@pytest.mark.parametrize(
    ("instruction", "inputs", "want"),
    (
        ("add.f32 %f0, %f1, %f2;", (1.5, 2.25), bits(3.75)),
        ("sub.f32 %f0, %f1, %f2;", (math.inf, math.inf), 0x7FFFFFFF),
        ("mul.ftz.f32 %f0, %f1, %f2;", (2.0**-80, -(2.0**-60)), 0x80000000),
        ("mul.f32 %f0, %f1, %f2;", (2.0**-80, 2.0**-60), 1 << 9),
        ("min.f32 %f0, %f1, %f2;", (math.nan, 2), bits(2)),
        ("max.f32 %f0, %f1, %f2;", (-0.0, 0.0), 0),
        ("add.sat.f32 %f0, %f1, %f2;", (3, 4), bits(1)),
        ("neg.f32 %f0, %f1;", (0.0, 0), 0x80000000),
        ("div.rn.f32 %f0, %f1, %f2;", (1, 3), bits(np.float32(1) / np.float32(3))),
        ("ex2.approx.f32 %f0, %f1;", (-1, 0), bits(0.5)),
        ("copysign.f32 %f0, %f1, %f2;", (-1, 2), bits(-2)),
        ("rcp.approx.f32 %f0, %f1;", (4, 0), bits(0.25)),
    ),
)
def test_floats(instruction, inputs, want):
    moves = "".join(f"mov.b32 %f{k + 1}, %r{k + 1};" for k in range(2))
    assert computed(moves + instruction, *map(bits, inputs), register="%f0", kind="f32") == want


def test_approximate_functions_are_named():
    computed("mov.b32 %f1, %r1; lg2.approx.f32 %f0, %f1;", 0, register="%f0", kind="f32")
    assert run.stats.approximate == {"lg2"}


def rounded(x: Fraction) -> np.float32:
    """The float32 nearest to a rational, ties to even."""
    if x == 0:
        return np.float32(0)
    exponent = max(math.frexp(float(abs(x)))[1] - 24, -149)
    while abs(x) / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    return np.float32(math.ldexp(round(x / Fraction(2) ** exponent), exponent))


def test_fma_is_rounded_once():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(1, 2**24, 4000).astype(np.float32) for _ in range(2))
    # Addends that put the sum next to a tie of float32, and beyond float64's reach.
    c = (a.astype(np.float64) * b * 2.0 ** rng.integers(-60, 30, 4000)).astype(np.float32)
    c[::3] = (2.0 ** rng.integers(-40, 20, c[::3].size)).astype(np.float32)
    c *= rng.choice(np.array([-1, 1], np.float32), 4000)
    got = floats.fma32(a, b, c)
    want = [
        rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert (got == np.array(want, np.float32)).all()


def test_a_tie_that_double_rounding_gets_wrong():
    a, b, c = (np.array([x], np.float32) for x in (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60))
    c += 0
    assert floats.fma32(a, b, c)[0] == np.float32(1 + 2.0**-11 + 2.0**-23)


@pytest.mark.parametrize(
    ("kind", "value", "want"),
    (
        ("bf16", 1 + 2.0**-8, 0x3F80),
        ("bf16", 1 + 3 * 2.0**-8, 0x3F82),
        ("bf16", math.nan, 0x7FFF),
        ("bf16", 3.4e38, 0x7F80),
        ("f16", 65519.0, 0x7BFF),
        ("f16", 65520.0, 0x7C00),
        ("f16", math.nan, 0x7FFF),
        ("f16", 2.0**-25, 0),
    ),
)
def test_narrowing(kind, value, want):
    body = (
        f"mov.b32 %f1, {bits(value)}; mov.b32 %f2, {bits(-2.0)}; cvt.rn.{kind}x2.f32 %r0, %f2, %f1;"
    )
    minus_two = {"bf16": 0xC000, "f16": 0xC000}[kind]
    assert computed(body) == minus_two << 16 | want


@pytest.mark.parametrize(
    "instruction", ("sad.s32 %r1, %r2, %r3, %r4;", "add.rz.f32 %f1, %f2, %f3;")
)
def test_what_is_not_implemented_is_named(instruction):
    with pytest.raises(
        emulator.UnsupportedInstruction, match=r"(sad\.s32|add\.rz\.f32) at PTX line \d+"
    ):
        run(instruction)


def test_bad_syntax_is_named():
    with pytest.raises(emulator.PtxSyntaxError):
        parse(source("ld.global.u32 %r1, [%d1+]];"))


def test_a_register_that_nothing_writes():
    with pytest.raises(
        emulator.UninitializedRead, match=r"add\.s32 at PTX line \d+: nothing writes %r2"
    ):
        run("mov.u32 %r1, 1; add.s32 %r0, %r1, %r2;")


def test_global_memory_is_checked():
    memory = emulator.GlobalMemory()
    blank = memory.allocate(None, 64)
    load = "ld.param.u64 %d1, [a]; ld.global.u32 %r1, [%d1+{}];"
    params = (".param .u64 a",)
    with pytest.raises(emulator.UninitializedRead, match=r"ld\.global"):
        run(load.format(0), blank, params=params, memory=memory)
    with pytest.raises(emulator.IllegalAccess, match="no allocation"):
        run(load.format(64), blank, params=params, memory=memory)
    with pytest.raises(emulator.IllegalAccess, match="not aligned"):
        run(load.format(2), blank, params=params, memory=memory)
