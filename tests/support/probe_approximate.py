"""Measure ex2.approx, rcp.approx and div.approx, and compare them with gemmgen.emulator.approximate.

    PYTHONPATH=. python tests/support/probe_approximate.py OUT

needs a Hopper GPU and cuda-bindings. It runs every mantissa through the two functions, fits the parabolas,
saves OUT/approximate.npz, which belongs into gemmgen/emulator, and then compares random bits of every
instruction.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from gemmgen.emulator import approximate
from gemmgen.emulator.approximate import BIAS, FIXED, FRACTION, MANTISSAS
from gemmgen.emulator.floats import MEASURED, finish
from gemmgen.emulator.syntax import Instruction

THREADS = 256
PARABOLAS = {"ex2": 64, "rcp": 128}
SOURCE = """
extern "C" __global__ void probe(const float* x, const float* y, float* result, int count) {{
    const int i = blockIdx.x * {threads} + threadIdx.x;
    if (i < count) asm("{opcode} {operands};" : "=f"(result[i]) : "f"(x[i]), "f"(y[i]));
}}
"""


def measure(opcode: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What the GPU's `opcode` makes of the bits of x (and y): uint32."""
    from gemmgen.runtime import driver, nvrtc

    operands = "%0, %1, %2" if opcode.startswith("div") else "%0, %1"
    text = SOURCE.format(threads=THREADS, opcode=opcode, operands=operands)
    cubin = nvrtc.compile_cubin(text, "probe")
    driver.require_hopper(0)
    driver.use(0)
    module = driver.call("cuModuleLoadData", cubin.image)
    function = driver.call("cuModuleGetFunction", module, b"probe")
    buffers = [driver.call("cuMemAlloc", x.nbytes) for _ in range(3)]
    for buffer, values in zip(buffers, (x, y), strict=False):
        driver.call("cuMemcpyHtoD", buffer, values.ctypes.data, values.nbytes)
    scalars = [ctypes.c_uint64(int(b)) for b in buffers]
    scalars.append(ctypes.c_int(x.size))  # type: ignore[arg-type]
    array = (ctypes.c_void_p * 4)(*(ctypes.addressof(s) for s in scalars))
    blocks = -(-x.size // THREADS)
    where = ctypes.addressof(array)
    driver.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, 0, where, 0)
    driver.call("cuCtxSynchronize")
    result = np.empty(x.shape, np.uint32)
    driver.call("cuMemcpyDtoH", result.ctypes.data, buffers[2], result.nbytes)
    for buffer in buffers:
        driver.call("cuMemFree", buffer)
    driver.call("cuModuleUnload", module)
    return result


def emulated(opcode: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same by the emulator."""
    sources = [v.view(np.float32) for v in ((x, y) if opcode.startswith("div") else (x,))]
    instruction = Instruction(opcode=opcode, operands=(), guard=None, line=0, source=None)
    with np.errstate(all="ignore"):
        return np.asarray(finish(instruction, MEASURED[opcode])(*sources)).view(np.uint32)


def random_bits(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two times `count` bits of FP32: any, near 1, and special ones."""
    rng = np.random.default_rng(seed)
    special = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)
    special = np.concatenate([special, special | 1 << 31])
    both = []
    for _ in range(2):
        anything = rng.integers(0, 1 << 32, count, np.uint32)
        near = rng.normal(scale=8.0, size=count).astype(np.float32).view(np.uint32)
        one = np.where(rng.random(count) < 0.5, anything, near)
        both.append(np.where(rng.random(count) < 0.001, rng.choice(special, count), one))
    return both[0], both[1]


def mantissas(name: str) -> np.ndarray:
    """What the hardware returns for x in [1, 2), the exponent apart."""
    x = (np.arange(MANTISSAS, dtype=np.uint32) + (BIAS << FRACTION)).astype(np.uint32)
    bits = measure(f"{name}.approx.ftz.f32", x, x).astype(np.int64)
    exponent = {"ex2": BIAS + 1, "rcp": BIAS - 1}[name]
    return bits - (exponent << FRACTION)


def fit(values: np.ndarray, parabolas: int) -> np.ndarray:
    """Fixed-point coefficients [parabolas, 3] nearest to `values`."""
    width = MANTISSAS // parabolas
    at = np.arange(width) / width
    powers = np.stack([np.ones(width), at, at**2], 1)
    c = (values.reshape(parabolas, width) + 0.5) @ np.linalg.pinv(powers).T
    scaled = c * 2.0**FIXED / np.array([1.0, width, width**2 / 2.0**FIXED])
    return np.rint(scaled).astype(np.int64)


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    data = {}
    for name, parabolas in PARABOLAS.items():
        values = mantissas(name)
        curve = fit(values, parabolas)
        off = values - approximate.parabolas(curve)
        data |= {f"{name}_curve": curve, f"{name}_off": off.astype(np.int8)}
        known = approximate.table(name)
        print(f"{name}: off by {off.min()} to {off.max()}; {(known != values).sum()} not as known")
    np.savez_compressed(out / "approximate.npz", **data)
    for opcode in MEASURED:
        x, y = random_bits(1, 1 << 24)
        wrong = measure(opcode, x, y) != emulated(opcode, x, y)
        print(f"{opcode}: {x.size} inputs, {wrong.sum()} differ")
        for i in np.flatnonzero(wrong)[:4]:
            got, want = measure(opcode, x, y)[i], emulated(opcode, x, y)[i]
            print(f"  {x[i]:08x} {y[i]:08x}: GPU {got:08x}, emulator {want:08x}")


if __name__ == "__main__":
    main()
