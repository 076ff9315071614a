"""What a cast must write, in NumPy, and casts run by the emulator."""

from __future__ import annotations

import numpy as np

from gemmgen.casts import source
from gemmgen.codes import decode, encode
from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8
from gemmgen.runtime.nvrtc import compile_ptx

LIMITS = {E4M3: np.float32(448), S8: np.float32(127)}
LEAST = np.float32(1e-4)
SMALL_GRID = 3  # CTAs: fewer than tiles, so that they loop
POISON = 0xA5


def codes_of(values, dtype):
    """Bit patterns of `dtype` nearest to `values` (float64), as stored."""
    return encode(np.asarray(values, np.float64), dtype)


def floats(codes, dtype):
    """float32, exact: also of NaN and infinity."""
    return decode(codes, dtype).astype(np.float32)


def reference(x, cast, groups=1):
    """(q codes [rows, columns], scales as bits) of x, bit patterns [rows, columns] in `groups` of rows. Scales are
    [rows, blocks] for "columns", [rows] for "row", [groups * blocks, blocks] for "block"."""
    with np.errstate(all="ignore"):
        parts = [_of_group(g, cast) for g in np.split(floats(x, cast.x), groups)]
    q, scale = (np.concatenate(p) for p in zip(*parts, strict=True))
    return q, (scale[:, 0] if cast.per == "row" else scale).view(np.uint32)


def _of_group(x, cast):
    rows, columns = x.shape
    high = 128 if cast.per == "block" else 1
    wide = columns if cast.per == "row" else 128
    tall, broad = -(-rows // high), -(-columns // wide)
    padded = np.zeros((tall * high, broad * wide), np.float32)
    padded[:rows, :columns] = x
    blocks = padded.reshape(tall, high, broad, wide)
    amax = np.abs(blocks).max((1, 3), keepdims=True)
    finite = np.isfinite(amax)
    scale, factor = _factors(np.maximum(np.where(finite, amax, 1), LEAST), cast)
    scaled = np.where(finite, blocks * factor, np.float32(0)).reshape(padded.shape)
    q = encode(scaled[:rows, :columns], cast.q).view(np.uint8)
    return q, np.where(finite, scale, np.float32("nan")).reshape(tall, broad)


def _factors(amax, cast):
    limit = LIMITS[cast.q]
    if not cast.power_of_two:
        return amax / limit, limit / amax
    mantissa, exponent = np.frexp(amax / limit)
    scale = np.ldexp(np.float32(1), exponent - (mantissa == 0.5)).astype(np.float32)
    return scale, np.float32(1) / scale


def emulate(x, cast, groups=1, pitch=None, offset=0, grid=SMALL_GRID):
    """(q codes, scales as bits) as `reference` gives them, by the cast's PTX. x lies `offset` elements into an
    allocation of NaN, rows `pitch` apart. What is beside q and the scales must stay as it was."""
    rows, columns = x.shape
    pitch, bytes_of = pitch or columns, cast.x.bytes
    parent = np.full(offset + rows * pitch, np.iinfo(x.dtype).max, x.dtype)
    for i, row in enumerate(x):
        parent[offset + i * pitch :][:columns] = row
    memory = GlobalMemory()
    group_rows, blocks = rows // groups, -(-columns // 128)
    stride = -(-group_rows // 4) * 4
    tall = groups * -(-group_rows // 128)
    size = {"columns": groups * blocks * stride, "row": rows, "block": tall * blocks}[cast.per]
    at_x, at_q, at_scale = (
        memory.allocate(p) for p in (parent, _poison(rows * columns + 16), _poison(4 * size + 16))
    )
    values = {"x": at_x + offset * bytes_of, "q": at_q, "scale": at_scale, "x_stride": pitch}
    values |= {"rows": rows, "columns": columns, "group_rows": group_rows, "scale_stride": stride}
    launch(
        load(compile_ptx(source(cast), cast.name)).entries[cast.name],
        grid=grid,
        block=cast.threads,
        cluster=1,
        shared_bytes=0,
        params=[values[p.name] for p in cast.params],
        memory=memory,
    )
    q, scale = memory.read(at_q, rows * columns + 16), memory.read(at_scale, 4 * size + 16)
    assert (q[-16:] == POISON).all() and (scale[-16:] == POISON).all()
    found = scale[:-16].view(np.uint32)
    if cast.per == "columns":
        by_column = found.reshape(groups, blocks, stride)
        assert (by_column[:, :, group_rows:].view(np.uint8) == POISON).all()
        found = by_column[:, :, :group_rows].transpose(0, 2, 1).reshape(rows, blocks)
    if cast.per == "block":
        found = found.reshape(tall, blocks)
    return q[:-16].reshape(rows, columns), found


def _poison(size):
    return np.full(size, POISON, np.uint8)


def special(rows, columns, dtype, seed=0):
    """N(0, 1) with rows of other magnitudes, zeros of both signs, subnormals, and a row each with an infinity, a
    NaN and the greatest finite value; bit patterns."""
    rng = np.random.default_rng(seed)
    wide = {BF16: 60, F16: 8, F32: 60}[dtype]
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-wide, wide, (rows, 1)))
    x[::5] = 0.0
    x[1::5, ::2] = -0.0
    codes = codes_of(x, dtype)
    bits, top = dtype.bits, (1 << (dtype.bits - 1)) - (1 << (dtype.significand - 1))
    for i, code in enumerate((top, top | 1, top - 1, 1, top | 1 << bits - 1)):
        codes[(7 * i + 3) % rows, (131 * i + 5) % columns] = code
    return codes
