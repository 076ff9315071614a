"""A K loop runs as often as it was written to, whatever the compiler made of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import DENSE, DENSE_TN, FP8, VARIETY, VECTOR, emitted

from gemmgen.config import FIELDS, Config
from gemmgen.emulator import Late, load
from gemmgen.errors import CompileError
from gemmgen.ir.dtypes import E4M3, S8, S32
from gemmgen.problem import Problem
from gemmgen.runtime import emulated
from gemmgen.runtime.nvrtc import compile_cubin, compile_ptx
from gemmgen.runtime.trips import MOST, lost_trips
from gemmgen.verification.trial import judge

needs_nvrtc = pytest.mark.nvrtc
SOURCE = "\nptx::k_block<__LINE__>();\n"  # in line 2
MARK = "\t// begin inline asm\n\t// K block 2\n\t// end inline asm\n"
WAIT = "\t// begin inline asm\n\t{\nWAIT:\n@!done bra WAIT;\n}\n\t// end inline asm\n"
EVERY = tuple(range(1, MOST + 1))


def kernel(body):
    return f".visible .entry f(\n)\n{{\n{body}\tret;\n\n}}\n"


PLAIN = f"$L__BB0_1:\n{MARK}{WAIT}\t@%p1 bra \t$L__BB0_1;\n"
TESTED = f"$L__BB0_1:\n{MARK}\t@%p1 bra \t$L__BB0_2;\n{MARK}\t@%p2 bra \t$L__BB0_1;\n\n$L__BB0_2:\n"
THRICE = f"$L__BB0_1:\n{MARK}{MARK}{MARK}\t@%p1 bra \t$L__BB0_1;\n"
REST = f"$L__BB0_3:\n\t@%p2 bra \t$L__BB0_4;\n{MARK}\t@%p3 bra \t$L__BB0_4;\n{MARK}\n$L__BB0_4:\n"
ENTERED = f"\t@%p0 bra \t$L__BB0_3;\n{THRICE}"
ODD = tuple(n for n in EVERY if n % 3)

FLOWS = {
    "a loop as written": (PLAIN, ()),
    "two copies, each with a test": (TESTED, ()),
    "three copies and the rest": (ENTERED + REST, ()),
    "three copies without the rest": (THRICE, ODD),
    "the rest goes elsewhere": (ENTERED + REST.replace(MARK, ""), ODD),
    "a rest of at most one": (ENTERED + REST.replace(MARK, "", 1), tuple(n for n in EVERY if n % 3 == 2)),
    "in a loop of tiles": (f"$L__BB0_9:\n{THRICE}\t@%p9 bra \t$L__BB0_9;\n", ODD),
    "by a table": (
        "\t$L_table: .branchtargets\n\t\t$L__BB0_3,\n\t\t$L__BB0_5;\n"
        "\tbrx.idx \t%r1, $L_table;\n$L__BB0_5:\n" + THRICE + REST,
        (),
    ),
    "only after a trap": (f"{MARK}\t// begin inline asm\n\ttrap;\n\t// end inline asm\n\texit;\n", EVERY),
    "no mark at all": (WAIT, EVERY),
    "empty assembly before a label": (
        "\t// begin inline asm\n\t// end inline asm\n" + ENTERED + REST,
        (),
    ),
}  # fmt: skip


def test_two_rounds_of_the_greatest_unroll_are_read():
    assert 2 * max(u for u in range(1, 65) if FIELDS["unroll"].holds(u)) + 1 == MOST


@pytest.mark.parametrize("name", FLOWS)
def test_trips_that_no_way_through_the_code_has(name):
    body, lost = FLOWS[name]
    assert lost_trips(SOURCE, kernel(body)) == ({2: lost} if lost else {})


def test_another_loop_s_trips_are_not_this_one_s():
    other = PLAIN.replace("K block 2", "K block 4").replace("BB0_1", "BB0_7")
    two = SOURCE + "\nptx::k_block<__LINE__>();\n"
    assert lost_trips(two, kernel(other + THRICE)) == {2: ODD}
    assert lost_trips(two, kernel(other + PLAIN)) == {}


# What NVVM unrolls by 3 or 5 without the rest, and the same of a number of which it knows nothing.
LOOP = """extern "C" __global__ void f(int blocks, int rank) {{
    const int share = (blocks + 1) / 2, first = min(rank * share, blocks);
    int trips = min(share, blocks - first);
    {opaque}
    #pragma unroll {unroll}
    for (int k = 0; k < trips; ++k) {{
        asm volatile("// K block %0" ::"n"(8));
        asm volatile("bar.sync 1, 128;" ::: "memory");
    }}
}}
"""
LINE_8 = "\n" * 7 + SOURCE.strip()


@needs_nvrtc
@pytest.mark.parametrize("unroll", [2, 3, 4, 5, 6, 7, 8])
def test_a_compiler_may_know_too_much_of_a_loop(unroll):
    known = compile_ptx(LOOP.format(opaque="", unroll=unroll), "f")
    opaque = compile_ptx(LOOP.format(opaque='asm volatile("" : "+r"(trips));', unroll=unroll), "f")
    assert lost_trips(LINE_8, opaque) == {}
    lost = tuple(n for n in EVERY if n % unroll)
    assert lost_trips(LINE_8, known) in ({}, {8: lost})  # a later NVRTC may be mended


SMALL = {"block_m": 64, "block_n": 32, "consumers": 1, "stages": 3}
INT8 = Problem(family="dense", a=S8, b=S8, d=S32)
DIVIDED = {
    "dense": (DENSE, Config(split_k=2, **SMALL)),
    "fp8-fast": (Problem(family="dense", a=E4M3, b=E4M3), Config(split_k=4, **SMALL)),
    "fp8_block": (FP8, Config(split_k=2, **SMALL)),
    "fp8_1d1d": (VECTOR, Config(split_k=2, **SMALL)),
}
OTHERS = {
    "dense-in-flight": (DENSE, Config(split_k=4, in_flight=1, **SMALL)),
    "dense-tn-ends": (replace(DENSE_TN, grouping="ends"), Config(split_k=8, **SMALL)),
    "fp8": (Problem(family="fp8", a=E4M3, b=E4M3), Config(split_k=4, **SMALL)),
    "s8-swap": (INT8, Config(split_k=2, swap_ab=True, **SMALL | {"block_m": 8, "block_n": 64})),
    **{n: VARIETY[n] for n in ("fp8-k_columns", "fp8-1d1d-k_flat", "dense-masked", "fp8-select")},
    **{n: VARIETY[n] for n in ("dense-ping-pong-padded", "fp8-parts-overlapped", "dense-rows")},
}
UNROLLED = [(n, u) for n in DIVIDED for u in range(1, 9)] + [(n, u) for n in OTHERS for u in (3, 5)]


@needs_nvrtc
@pytest.mark.parametrize(("name", "unroll"), UNROLLED)
def test_every_unrolled_loop_runs_every_number_of_times(name, unroll):
    problem, config = (DIVIDED | OTHERS)[name]
    e = emitted(problem, replace(config, unroll=unroll))
    ptx = compile_ptx(e.source, e.name)
    assert e.source.count("ptx::k_block<__LINE__>();") >= 2  # the producer's and the consumers'
    assert lost_trips(e.source, ptx) == {}


@needs_nvrtc
def test_a_build_reads_its_loops_back():
    problem, config = DIVIDED["dense"]
    e = emitted(problem, replace(config, unroll=3))
    assert compile_cubin(e.source, e.name).image
    unmarked = e.source.replace('asm volatile("// K block %0" ::"n"(kLine));', "")
    assert unmarked != e.source
    with pytest.raises(CompileError, match=r"its K loop in line \d+ cannot run 1, 2, 3,"):
        compile_cubin(unmarked, e.name)


@needs_nvrtc
@pytest.mark.parametrize("unroll", [3, 5])
def test_ctas_that_divide_k_by_an_odd_unroll_finish(unroll):
    """With fewer K blocks than a trip of the loop, as many, and one more."""
    e = emitted(DENSE, Config(split_k=2, unroll=unroll, **SMALL))
    program = emulated.EmulatedKernel(
        kernel=e.kernel, entry=load(compile_ptx(e.source, e.name)).entries[e.name]
    )
    for blocks in (1, 2, 2 * unroll + 1):
        gpu = emulated.EmulatedGpu(sms=2, schedule=Late())
        judge(gpu, program, e.kernel, DENSE, (64, 32, blocks * e.kernel.block.k))
