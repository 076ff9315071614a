"""Measure what one wgmma computes and compare it, bit for bit, with gemmgen.emulator.tensor_core.

    PYTHONPATH=. python tests/support/probe_wgmma.py OUT

needs a Hopper GPU, cuda-bindings and numpy. It runs random tiles of every operand type, prints
mismatches per distribution, scores each switch of `Arithmetic` on a sample, and saves a few outputs
of every distribution to OUT/wgmma_*.npz, which belong into tests/data.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
import traceback
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.emulator.descriptor import SWIZZLE_BYTES, UNIT, Descriptor
from gemmgen.emulator.operand_formats import FORMATS, K_BYTES, decode, table
from gemmgen.emulator.tensor_core import ARITHMETIC, Arithmetic, mma

M, N = 64, 256
THREADS, REGISTERS = 128, N // 2
TILES = 8  # per distribution of the operands and of c
SECONDS = 135  # after which no further type is started
SAMPLE_ROWS, SAMPLE_COLUMNS = 2, 4

PAIRS = (
    ("e4m3", "e4m3"),
    ("bf16", "bf16"),
    ("f16", "f16"),
    ("e5m2", "e5m2"),
    ("e4m3", "e5m2"),
    ("e5m2", "e4m3"),
    ("s8", "s8"),
)
OPERANDS = ("all", "finite", "normal", "wide", "sparse", "sparse_wide", "subnormal", "tiny")
OPERANDS += ("huge", "zeros", "ternary", "rare_special")
ADDENDS = ("none", "zero", "matching", "wide", "cancelling", "huge", "tiny", "special", "bits")

# Both C and, with / for //, Python: a test evaluates them against gemmgen.emulator.descriptor.
CHUNK = "chunk % 2 * {leading} + chunk / 2 * 16"  # of a [rows, 32] tile, to shared memory
ROW = "thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8"
COLUMN = "i / 4 * 8 + thread % 4 * 2 + i % 2"

SOURCE = """
extern "C" __global__ void __launch_bounds__({threads})
probe(const uint4* a, const uint4* b, const {number}* c, {number}* d, int accumulate) {{
    __shared__ __align__(1024) unsigned char smem[{a_bytes} + {b_bytes}];
    const int thread = threadIdx.x;
    a += blockIdx.x * ({a_bytes} / 16);
    b += blockIdx.x * ({b_bytes} / 16);
    c += blockIdx.x * ({m} * {n});
    d += blockIdx.x * ({m} * {n});
    for (int chunk = thread; chunk < {a_bytes} / 16; chunk += {threads})
        *reinterpret_cast<uint4*>(smem + {a_chunk}) = a[chunk];
    for (int chunk = thread; chunk < {b_bytes} / 16; chunk += {threads})
        *reinterpret_cast<uint4*>(smem + {a_bytes} + {b_chunk}) = b[chunk];
    {number} acc[{registers}];
#pragma unroll
    for (int i = 0; i < {registers}; ++i) acc[i] = c[({row}) * {n} + {column}];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned address;
    asm("{{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }}" : "=r"(address) : "l"(smem));
    const unsigned long long a_descriptor = {a_bits}ull | address >> 4;
    const unsigned long long b_descriptor = {b_bits}ull | (address + {a_bytes}) >> 4;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{after_b}, 0;\\n"
        "{mnemonic} {{{outputs}}}, %{registers}, %{after_a}, p{immediates};\\n}}"
        : {operands}
        : "l"(a_descriptor), "l"(b_descriptor), "r"(accumulate));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < {registers}; ++i) d[({row}) * {n} + {column}] = acc[i];
}}
"""


def source(a_type: str, b_type: str) -> str:
    integer, bits = a_type == "s8", 8 if a_type == "s8" else FORMATS[a_type].bits
    kinds = f"{'s32' if integer else 'f32'}.{a_type}.{b_type}"
    letter = "r" if integer else "f"
    return SOURCE.format(
        threads=THREADS,
        number="int" if integer else "float",
        m=M,
        n=N,
        a_bytes=M * K_BYTES,
        b_bytes=N * K_BYTES,
        a_chunk=CHUNK.format(leading=leading(M)),
        b_chunk=CHUNK.format(leading=leading(N)),
        a_bits=constant_bits(M),
        b_bits=constant_bits(N),
        registers=REGISTERS,
        after_a=REGISTERS + 1,
        after_b=REGISTERS + 2,
        row=ROW,
        column=COLUMN,
        mnemonic=f"wgmma.mma_async.sync.aligned.m{M}n{N}k{K_BYTES * 8 // bits}.{kinds}",
        immediates="" if integer else ", 1, 1" if bits == 8 else ", 1, 1, 0, 0",
        outputs=", ".join(f"%{i}" for i in range(REGISTERS)),
        operands=", ".join(f'"+{letter}"(acc[{i}])' for i in range(REGISTERS)),
    )


def leading(rows: int) -> int:
    return rows * 16


def encoded(d: Descriptor) -> int:
    """The 64 bits that `decode_descriptor` reads."""
    fields = d.start // UNIT | d.leading // UNIT << 16 | d.stride // UNIT << 32
    return fields | d.base_offset << 49 | SWIZZLE_BYTES.index(d.swizzle) << 62


def constant_bits(rows: int) -> int:
    """A descriptor at address 0 of an unswizzled K-major tile."""
    d = Descriptor(start=0, leading=leading(rows), stride=128, base_offset=0, swizzle=0)
    return encoded(d)


# --- inputs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """TILES random tiles; everything follows from these fields."""

    a_type: str
    b_type: str
    operands: str
    addend: str


@dataclass(frozen=True)
class Inputs:
    """Codes [TILES, 64, K] and [TILES, 256, K], c float32 or int32 [TILES, 64, 256]."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


def cases(a_type: str, b_type: str) -> list[Case]:
    return [Case(a_type, b_type, o, c) for o in OPERANDS for c in ADDENDS]


def inputs(case: Case) -> Inputs:
    rng = np.random.default_rng(zlib.crc32(repr(case).encode()))
    if case.a_type == "s8":
        return integer_inputs(case, rng)
    k = FORMATS[case.a_type].k
    a = codes(case.operands, case.a_type, (TILES, M, k), rng)
    b = codes(case.operands, case.b_type, (TILES, N, k), rng)
    with np.errstate(all="ignore"):
        return Inputs(a, b, addend(case, a, b, rng).astype(np.float32))


def integer_inputs(case: Case, rng: np.random.Generator) -> Inputs:
    shape = (TILES, M, N)
    c = rng.integers(-(2**31), 2**31, shape)
    if case.addend in ("zero", "matching", "tiny"):
        c = c >> 16
    a, b = (rng.integers(0, 256, (TILES, rows, K_BYTES)).astype(np.uint8) for rows in (M, N))
    return Inputs(a, b, c.astype(np.int32))


def codes(how: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    form = FORMATS[kind]
    unsigned = np.uint8 if form.bits == 8 else np.uint16
    wide = {"e4m3": 5, "e5m2": 9, "f16": 9, "bf16": 12}[kind]
    values = rng.standard_normal(shape)
    if how == "all":
        return rng.integers(0, 1 << form.bits, shape).astype(unsigned)
    if how == "finite":
        return rng.choice(finite_codes(kind)[0], shape)
    if how == "subnormal":
        small = rng.integers(0, 1 << form.fraction, shape)
        sign = rng.integers(0, 2, shape) << (form.bits - 1)
        some = encode(values * 2.0 ** (1 - form.bias), kind)
        return np.where(rng.random(shape) < 0.8, small | sign, some).astype(unsigned)
    if "wide" in how:
        values = values * np.exp2(rng.integers(-wide, wide + 1, shape))
    if how == "tiny":
        values = values * np.exp2(-(form.bias // 2) + rng.integers(-6, 3, shape))
    if how == "huge":
        values = values * np.exp2(form.bias // 2 + rng.integers(-3, 2, shape))
    if how == "ternary":
        values = rng.integers(-1, 2, shape).astype(np.float64)
    if how == "zeros":  # every other row zero, and every other pair of rows of one sign
        row = np.arange(shape[1])[:, None]
        values = np.where(row % 4 < 2, values, np.copysign(values, (-1.0) ** (row // 4)))
        values = np.where(row % 2, values, np.copysign(0.0, values))
    zeros = {"sparse": 0.8, "sparse_wide": 0.6}.get(how, 0.0)
    values = np.where(rng.random(shape) < zeros, np.copysign(0.0, values), values)
    result = encode(values, kind)
    if how == "rare_special":
        special = np.flatnonzero(table(kind, "ignored").special)
        result = np.where(rng.random(shape) < 0.01, rng.choice(special, shape), result)
    return result.astype(unsigned)


def addend(case: Case, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    x, y = decode(a, case.a_type), decode(b, case.b_type)
    x, y = (np.where(np.isfinite(v), v, 0.0) for v in (x, y))
    total = x @ y.transpose(0, 2, 1)
    scale = float(np.sqrt(np.mean(total**2))) or 1.0
    scale = min(scale, 1e38)
    c = rng.standard_normal(total.shape)
    match case.addend:
        case "none" | "matching":
            return c * scale
        case "zero":
            return np.copysign(0.0, c)
        case "wide":
            return c * scale * np.exp2(rng.integers(-24, 25, c.shape))
        case "cancelling":
            return -total * (1 + c * np.exp2(-rng.integers(4, 30, c.shape)))
        case "huge":
            return np.clip(c * 2.0**126, -3.4028234e38, 3.4028234e38)
        case "tiny":
            return c * np.exp2(rng.integers(-150, -110, c.shape))
        case "special":
            return np.where(rng.random(c.shape) < 0.5, c * scale, _specials(c.shape, rng))
    return rng.integers(0, 1 << 32, c.shape).astype(np.uint32).view(np.float32)


def _specials(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.choice(
        np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-149, -(2.0**-127)]), shape
    )


@cache
def finite_codes(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """All finite codes and their values, in the order of the values."""
    t = table(kind, "ignored")
    finite = np.flatnonzero(~t.special).astype(np.uint8 if t.special.size == 256 else np.uint16)
    order = np.argsort(t.values[finite], kind="stable")
    return finite[order], t.values[finite[order]].astype(np.float64)


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Roughly the nearest finite code; signs of zeros are kept."""
    in_order, known = finite_codes(kind)
    at = np.clip(np.searchsorted(known, values), 1, len(known) - 1)
    nearest = in_order[np.where(values - known[at - 1] < known[at] - values, at - 1, at)]
    sign = 1 << (FORMATS[kind].bits - 1)
    is_zero = table(kind, "ignored").values[nearest] == 0
    signed_zero = np.where(np.signbit(values), sign, 0).astype(nearest.dtype)
    return np.where(is_zero, signed_zero, nearest)


# --- comparison, in worker processes ----------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """Mismatches of one case; `texts` describes the first, `sample` is what the npz gets."""

    case: Case
    outputs: int
    mismatches: int
    texts: tuple[str, ...]
    sample: dict[str, np.ndarray]


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def want(case: Case, x: Inputs, tile: int, rules: Arithmetic | None = None) -> np.ndarray:
    c = None if case.addend == "none" else x.c[tile]
    return bits(mma(x.a[tile], x.b[tile], c, case.a_type, case.b_type, rules))


def compare(case: Case, got: np.ndarray) -> Compared:
    """`got`: the GPU's bits, uint32 [TILES, 64, 256]."""
    x, wrong, texts = inputs(case), 0, []
    for tile in range(TILES):
        expected = want(case, x, tile)
        bad = np.argwhere(expected != got[tile])
        wrong += len(bad)
        for i, j in bad[: 2 - len(texts)]:
            texts.append(describe(case, x, (tile, i, j), int(got[tile, i, j]), int(expected[i, j])))
    return Compared(case, got.size, wrong, tuple(texts), sample(case, x, got))


def describe(case: Case, x: Inputs, at: tuple[int, int, int], got: int, expected: int) -> str:
    tile, i, j = at
    a, b, c = x.a[tile, i], x.b[tile, j], x.c[tile, i, j]
    lines = [f"    {case.operands}/{case.addend} tile {tile} row {i} column {j}"]
    lines += [
        f"      a {' '.join(f'{v:x}' for v in a)}",
        f"      b {' '.join(f'{v:x}' for v in b)}",
    ]
    if case.a_type != "s8":
        ea, eb = table(case.a_type, "field").exponents[a], table(case.b_type, "field").exponents[b]
        products = decode(a, case.a_type) * decode(b, case.b_type)
        shown = (f"{e}{'z' if p == 0 else ''}" for e, p in zip(ea + eb, products, strict=True))
        lines.append(f"      exponents {' '.join(shown)}")
    lines.append(f"      c {c!r} {int(bits(np.array([c]))[0]):08x}")
    both = np.array([got, expected], np.uint32).view(x.c.dtype)
    lines.append(f"      got {got:08x} {both[0]!r}, want {expected:08x} {both[1]!r}")
    return "\n".join(lines)


def sample(case: Case, x: Inputs, got: np.ndarray) -> dict[str, np.ndarray]:
    """A corner of one tile; for rows and columns alone decide an output."""
    rows, columns = slice(0, SAMPLE_ROWS), slice(0, SAMPLE_COLUMNS)
    return {
        "a": x.a[0, rows],
        "b": x.b[0, columns],
        "c": bits(x.c[0, rows, columns]),
        "d": bits(got[0, rows, columns]),
        "accumulate": np.array(case.addend != "none"),
    }


def alternatives(rules: Arithmetic) -> dict[str, Arithmetic]:
    """Every switch of `rules` thrown alone."""
    choices: dict[str, tuple[Any, ...]] = {
        "aligned": tuple(rules.aligned + i for i in (-2, -1, 1, 2)),
        "kept": tuple(rules.kept + i for i in (-1, 1)) if rules.kept < 23 else (22,),
        "c_aligned": (rules.aligned - 1, rules.aligned, rules.aligned + 1, 23, 30),
        "lowest": (-126, -1000, -132, -133, -149),
        "zero": ("ignored", "field"),
        "cut": ("truncate", "floor"),
        "rounding": ("truncate", "nearest"),
        "overflow": ("infinity", "largest"),
        "zero_sign": ("positive", "signed"),
        "underflow_sign": ("kept", "positive"),
        "small": ("kept", "flushed"),
        "small_c": ("kept", "flushed"),
    }
    assert choices.keys() == {f.name for f in fields(Arithmetic)}
    return {
        f"{name}={value}": replace(rules, **{name: value})
        for name, values in choices.items()
        for value in values
        if value != getattr(rules, name)
    }


def score(case: Case, got: np.ndarray, trials: dict[str, Arithmetic]) -> dict[str, np.ndarray]:
    """Per trial, where it is wrong on the first tile: packed bits."""
    x = inputs(case)
    return {n: np.packbits(want(case, x, 0, r) != got) for n, r in trials.items()}


# --- the GPU ----------------------------------------------------------------------------------


def measure(a_type: str, b_type: str, batches: list[Inputs]) -> list[np.ndarray]:
    """D of every tile, as bits: one launch with scale-d = 1 per case, 0 for addend "none"."""
    from gemmgen.runtime import driver, nvrtc

    cubin = nvrtc.compile_cubin(source(a_type, b_type), "probe")
    driver.require_hopper(0)
    driver.use(0)
    module = driver.call("cuModuleLoadData", cubin.image)
    function = driver.call("cuModuleGetFunction", module, b"probe")
    x = batches[0]
    buffers = [driver.call("cuMemAlloc", v.nbytes) for v in (x.a, x.b, x.c, x.c)]
    results = []
    for x, case in zip(batches, cases(a_type, b_type), strict=True):
        for buffer, values in zip(buffers, (x.a, x.b, x.c), strict=False):
            host = np.ascontiguousarray(values)
            driver.call("cuMemcpyHtoD", buffer, host.ctypes.data, host.nbytes)
        driver.call("cuMemsetD8", buffers[3], 0xA5, x.c.nbytes)
        scalars = [ctypes.c_uint64(int(b)) for b in buffers]
        scalars.append(ctypes.c_int(case.addend != "none"))  # type: ignore[arg-type]
        array = (ctypes.c_void_p * 5)(*(ctypes.addressof(s) for s in scalars))
        where = ctypes.addressof(array)
        driver.call("cuLaunchKernel", function, TILES, 1, 1, THREADS, 1, 1, 0, 0, where, 0)
        driver.call("cuCtxSynchronize")
        got = np.empty(x.c.shape, np.uint32)
        driver.call("cuMemcpyDtoH", got.ctypes.data, buffers[3], got.nbytes)
        results.append(got)
    for buffer in buffers:
        driver.call("cuMemFree", buffer)
    driver.call("cuModuleUnload", module)
    return results


# --- the report -------------------------------------------------------------------------------


def probe(pool: ProcessPoolExecutor, a_type: str, b_type: str, out: Path) -> None:
    started = time.perf_counter()
    todo = cases(a_type, b_type)
    batches = list(pool.map(inputs, todo))
    got = measure(a_type, b_type, batches)
    compared = list(pool.map(compare, todo, got))
    save(out / f"wgmma_{a_type}_{b_type}.npz", compared)
    outputs, wrong = sum(c.outputs for c in compared), sum(c.mismatches for c in compared)
    seconds = time.perf_counter() - started
    print(f"\n{a_type} x {b_type}: {outputs} outputs, {wrong} mismatches, {seconds:.1f} s")
    matrix(compared)
    for text in [t for c in compared for t in c.texts][:16]:
        print(text)
    if a_type != "s8":
        scores(pool, todo, got, ARITHMETIC[a_type])
    sys.stdout.flush()


def matrix(compared: list[Compared]) -> None:
    """Mismatches, operands down and addends across."""
    found = {(c.case.operands, c.case.addend): c for c in compared}
    each = compared[0].outputs
    print(f"  mismatches of {each} each" + " " * 3 + "".join(f"{name:>11}" for name in ADDENDS))
    for o in OPERANDS:
        counts = [found[o, name].mismatches for name in ADDENDS]
        print(f"  {o:>28}" + "".join(f"{count:>11}" for count in counts))


def scores(
    pool: ProcessPoolExecutor, todo: list[Case], got: list[np.ndarray], rules: Arithmetic
) -> None:
    """Every switch thrown alone, then the best one adopted for as long as that helps."""
    for _ in range(4):
        trials = {"as it is": rules} | alternatives(rules)
        parts = list(pool.map(score, todo, [g[0] for g in got], [trials] * len(todo)))
        wrong = {n: np.concatenate([p[n] for p in parts]) for n in trials}
        count = {n: ones(w) for n, w in wrong.items()}
        print(f"  on {len(todo) * M * N} outputs, {rules}")
        print("    switch: wrong, of which wrong only with it, mended by it")
        base = wrong["as it is"]
        for n in trials:
            breaks = ones(wrong[n] & ~base)
            mends = ones(base & ~wrong[n])
            print(f"    {n:>24}: {count[n]:>9} {breaks:>9} {mends:>9}{helped(parts, todo, n)}")
        best = min(trials, key=lambda n: count[n])
        if count[best] >= count["as it is"]:
            return
        print(f"  adopting {best}")
        rules = trials[best]


def ones(packed: np.ndarray) -> int:
    return int(np.unpackbits(packed).sum())


def helped(parts: list[dict[str, np.ndarray]], todo: list[Case], name: str) -> str:
    """The cases in which switch `name` mends most."""
    mends = [ones(p["as it is"] & ~p[name]) for p in parts]
    best = sorted(range(len(todo)), key=lambda i: -mends[i])[:3]
    shown = [f"{todo[i].operands}/{todo[i].addend} {mends[i]}" for i in best if mends[i]]
    return "  mends " + ", ".join(shown) if shown else ""


def save(path: Path, compared: list[Compared]) -> None:
    names = compared[0].sample
    np.savez_compressed(path, **{n: np.stack([c.sample[n] for c in compared]) for n in names})


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers, which are one per core already
    started = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for a_type, b_type in PAIRS:
            if time.perf_counter() - started > SECONDS:
                print(f"out of time: {a_type} x {b_type} not run")
                continue
            try:
                probe(pool, a_type, b_type, out)
            except Exception:
                traceback.print_exc(file=sys.stdout)
    size = sum(p.stat().st_size for p in out.glob("wgmma_*.npz"))
    print(f"\n{time.perf_counter() - started:.1f} s; samples: {size} bytes in {out}")


if __name__ == "__main__":
    main()
