"""Every gallery kernel, compiled by NVRTC and run by the emulator, against the exact result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from exhibits import EXHIBITS, exhibit
from kernels import emitted

from gemmgen import emulator
from gemmgen.errors import UnsupportedProblem, VerificationError
from gemmgen.ir.argument_names import parameter, row_stride
from gemmgen.ir.dtypes import F32
from gemmgen.ir.expr import BEFORE, fold
from gemmgen.ir.row_sums import fold_rows
from gemmgen.verification import (
    NumpyEngine,
    check_bound,
    check_exact,
    exact_integers,
    random_normal,
)
from gemmgen.verification.gaps import between_gaps
from gemmgen.verification.trial import output, pitches

pytestmark = pytest.mark.nvrtc

NAN_BYTE = 0xFF
SMS = 4  # so that CTAs take several tiles
# Tails everywhere, one K block, fewer K blocks than stages, several tiles per CTA.
SHAPES = ((128, 128, 256), (200, 136, 400), (1, 8, 16), (129, 72, 1040))
# Groups, pairs of columns, scales of D, sums of rows: tests/ir/test_groupings.py, tests/families/test_outputs.py, test_row_sums.py. Packed
# weights: tests/formats, tests/emit.
NAMES = tuple(
    name
    for name, e in EXHIBITS.items()
    if e.problem.grouping == "none"
    and fold(e.problem.epilogue) == fold_rows(e.problem.epilogue) == 1
    and not (e.problem.quantised or e.problem.weights)
)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A tensor in the emulator's memory; `pitch` in elements."""

    address: int
    rows: int
    cols: int
    pitch: int


@cache
def compiled(name: str) -> tuple[Any, Any, str]:
    """The gallery entry, its kernel and source, and its PTX."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.nvrtc import compile_ptx

    e = exhibit(name)
    a = emitted(e.problem, e.config)
    return e, a, compile_ptx(a.source, a.name)


@cache
def loaded(name: str, ptx: str) -> emulator.Entry:
    return emulator.load(ptx).entries[name]


def upload(memory: emulator.GlobalMemory, rows: Any, pitch: int) -> Matrix:
    """Rows `pitch` elements apart, NaN between them."""
    parent = np.full((rows.shape[0], pitch * rows.itemsize), NAN_BYTE, np.uint8)
    parent[:, : rows.shape[1] * rows.itemsize] = np.ascontiguousarray(rows).view(np.uint8)
    address = memory.allocate(parent)
    return Matrix(address=address, rows=rows.shape[0], cols=rows.shape[1], pitch=pitch)


def tensor_map(kernel: Any, m: Any, matrix: Matrix) -> emulator.TensorMap:
    """What runtime/tensor_map.py gives the driver."""
    smem = kernel.buffer(m.smem)
    inner = max(m.clip, matrix.cols // m.clip * m.clip)
    row_bytes = -(-max(matrix.pitch, inner) * smem.dtype.bytes // 16) * 16
    return emulator.TensorMap(
        address=matrix.address,
        element_bytes=smem.dtype.bytes,
        element_type="f32" if smem.dtype is F32 else "",
        dims=(inner, matrix.rows),
        strides=(row_bytes,),
        box=m.box,
        swizzle=smem.swizzle or 0,
    )


def arguments(a: Any, operands: Any, memory: Any, d: Matrix) -> list[Any]:
    kernel, (m, n, k) = a.kernel, operands.shape
    p = pitches(kernel, (m, n, k))
    ab = (operands.a, operands.b)
    a, b = (x.T if mn else x for x, mn in zip(ab, operands.mn_major, strict=True))
    matrices = {"a": upload(memory, a, p.a), "b": upload(memory, b, p.b), "d": d}
    values: dict[str, Any] = {"shape_m": m, "shape_n": n, "shape_k": k}
    values |= {"d": d.address, "d_stride": d.pitch}
    if operands.scale_a is not None:
        matrices["scale_a"] = upload(memory, operands.scale_a.T, p.scale_a)
        if operands.rows_per_scale == 1:
            matrices["scale_b"] = upload(memory, operands.scale_b.T, p.scale_b)
        scale_b = upload(memory, operands.scale_b, operands.scale_b.shape[1])
        values |= {"scale_b": scale_b.address, "scale_b_stride_n": scale_b.pitch}
        values["scale_b_stride_k"] = 1
    for name, value in operands.arguments.items():
        if name == BEFORE.name:  # lies in D
            continue
        if isinstance(value, float):
            values[parameter(name)] = value
        elif value.ndim == 2:
            c = upload(memory, value, n + n % 2 + 4)
            values |= {parameter(name): c.address, row_stride(name): c.pitch}
        else:
            values[parameter(name)] = memory.allocate(value)
    maps = [tensor_map(kernel, x, matrices[x.tensor]) for x in kernel.maps]
    return [*maps, *(values[x.name] for x in kernel.params)]


def run(name: str, operands: Any, ptx: str = "", fill: int = NAN_BYTE, **options: Any) -> Any:
    """The codes of D [M, N]; what lies around them must not have changed."""
    e, a, unchanged = compiled(name)
    memory, (m, n, _) = emulator.GlobalMemory(), operands.shape
    p = pitches(a.kernel, operands.shape)
    guarded = output(e.problem, operands, p)
    base = memory.allocate(guarded.poison(fill), alignment=1024)
    d = Matrix(address=base + guarded.offset, rows=m, cols=operands.d_columns, pitch=p.d)
    b, c = a.kernel.block, a.kernel.cluster
    tiles = -(-m // (b.m * c.m)) * -(-n // (b.n * c.n))
    run.stats = emulator.launch(
        loaded(a.name, ptx or unchanged),
        grid=min(tiles, SMS // c.size) * c.size,
        block=a.kernel.threads,
        cluster=c.size,
        shared_bytes=a.kernel.smem_bytes,
        params=arguments(a, operands, memory, d),
        memory=memory,
        **options,
    )
    after = memory.read(base, guarded.size)
    guarded.check(after, fill)
    return between_gaps(guarded.extract(after), operands.heads, fill)


def check(problem: Any, operands: Any, result: Any) -> None:
    try:
        check_exact(problem, operands, result, NumpyEngine())
    except UnsupportedProblem:
        check_bound(problem, operands, result, NumpyEngine())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", NAMES)
def test_the_gallery_is_exact(name, shape):
    problem = compiled(name)[0].problem
    m, n, k = shape
    n += -n % problem.gaps.side  # whole heads
    operands = exact_integers(problem, m, n, k, 0)
    check(problem, operands, run(name, operands))


@pytest.mark.parametrize(
    "name",
    (
        "fp8_block/base",
        "fp8_block/two_wave_multicast_a",
        "dense/padded_d",
        "dense/two_wave_in_flight",
    ),
)
def test_results_do_not_depend_on_the_schedule(name):
    problem = compiled(name)[0].problem
    operands = random_normal(problem, 300, 136, 528, 1)
    first = run(name, operands)
    check_bound(problem, operands, first, NumpyEngine())
    schedules = (emulator.Eager(), emulator.Late(), emulator.Random(seed=3, budget=40))
    for schedule in schedules:
        assert (run(name, operands, schedule=schedule, fill=0x5A) == first).all()


def test_stats():
    operands = exact_integers(compiled("fp8_block/base")[0].problem, 256, 256, 512, 0)
    run("fp8_block/base", operands)
    stats = run.stats
    assert stats.bytes_loaded == 4 * 4 * (2 * 128 * 128 + 128 * 4)
    assert stats.bytes_stored == 256 * 256 * 2
    assert stats.conflicts == 0
    assert stats.opcodes[0]["wgmma"] == 4 * 4 * (
        4 * (4 + 3)
    )  # warps x tiles x K blocks x (mma + 3)
    assert set(stats.instructions) == {0, 1, 2}


def drop(pattern: str, which: int = 0):
    """The PTX without the match number `which`."""

    def change(ptx: str) -> str:
        found = list(re.finditer(pattern, ptx))
        return ptx[: found[which].start()] + ptx[found[which].end() :]

    return change


def replace(pattern: str, by: str):
    return lambda ptx: re.sub(pattern, by, ptx)


WAIT = r"\{\n\.reg \.pred done;\nWAIT:\n[^}]*\}"
DEADLOCK, RACE, PROTOCOL = emulator.Deadlock, emulator.Race, emulator.ProtocolError
ALL = (RACE, PROTOCOL, emulator.UninitializedRead)
BASE, CLUSTER = "fp8_block/base", "fp8_block/two_wave_multicast_a"
MUTANTS = {
    "consumer does not wait": (BASE, drop(WAIT, 0), ALL),
    "producer does not wait": (BASE, drop(WAIT, 1), ALL),
    "no proxy fence": (BASE, drop(r"fence\.proxy\.async\.shared::cta;"), RACE),
    "no first epilogue barrier": (BASE, drop(r"bar\.sync 1, 128;", 0), RACE),
    "no second epilogue barrier": (BASE, drop(r"bar\.sync 1, 128;", 1), RACE),
    "wrong barrier count": (BASE, replace(r"bar\.sync 1, 128;", "bar.sync 1, 96;"), PROTOCOL),
    "one barrier for both": (BASE, replace(r"bar\.sync 2, 128;", "bar.sync 1, 128;"), PROTOCOL),
    "released by all but one warp": (BASE, replace(r"(mov.u32 \t%r\d+), 8;", r"\1, 7;"), (RACE, PROTOCOL)),
    "no init fence": (BASE, drop(r"fence\.mbarrier_init\.release\.cluster;"), PROTOCOL),
    "no wgmma wait": (BASE, drop(r"wgmma\.wait_group\.sync\.aligned 0;"), RACE),
    "no wait for the store before": (BASE, drop(r"cp\.async\.bulk\.wait_group\.read 0;"), RACE),
    "no drain": (BASE, drop(r"cp\.async\.bulk\.wait_group 0;"), PROTOCOL),
    "no release": (BASE, drop(r"mbarrier\.arrive\.shared::cta\.b64 _, \[[^;]*;"), DEADLOCK),
    "bytes + 16": (BASE, replace(r"33280;", "33296;"), DEADLOCK),
    "bytes - 512": (BASE, replace(r"33280;", "32768;"), (DEADLOCK, PROTOCOL)),
    "descriptor stride": (BASE, replace("1073741888", "1073741856"), VerificationError),
    "descriptor swizzle": (BASE, replace("1073741888", "-2147483584"), VerificationError),
    "setmaxnreg over the pool": (BASE, replace(r"(maxnreg\.inc\S+) 232", r"\1 240"), DEADLOCK),
    "no cluster barrier": (CLUSTER, drop(r"barrier\.cluster\.wait\.acquire\.aligned;"), PROTOCOL),
    "releases one CTA only": (CLUSTER, replace(r"(mapa\S+ remote, %r\d+), %r\d+;", r"\1, 0;"), (RACE, DEADLOCK, PROTOCOL)),
    "no tail": (CLUSTER, drop(WAIT, -1), PROTOCOL),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_faults_are_caught(mutant):
    name, change, error = MUTANTS[mutant]
    e, _, ptx = compiled(name)
    wrong = change(ptx)
    assert wrong != ptx
    operands = exact_integers(e.problem, 384, 256, 1024, 0)
    with pytest.raises(error):
        check(e.problem, operands, run(name, operands, wrong))
