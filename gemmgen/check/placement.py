"""P10 in shared memory: a box lands where its coordinates say, and a wgmma reads all of its rows' K.

Tile row r and K column c belong at slab c // slab_cols, row r of it. What every load and wgmma does
is compared with that, statement by statement. Swizzles mix address bits, so a swizzled buffer, and
each of its stages, starts where its pattern does.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.nodes import Coord, Kernel, Mma, Smem, TmaLoad, TmaLoadMulticast
from ..ir.rewrite import statements
from .finding import Finding
from .footprint import MMA_K_BYTES, MMA_ROWS
from .properties import CARRY_OVER

ROWS_PER_PATTERN = 8  # of `swizzle` bytes each, in every swizzle mode
BASES = {"m": "tile.a_row", "n": "tile.b_row", "k": "k"}


def placed(kernel: Kernel) -> Iterator[Finding]:
    """Every buffer, every load and every wgmma of the kernel."""
    for b in kernel.smem:
        pattern = ROWS_PER_PATTERN * (b.swizzle or 0)
        if pattern and any(at % pattern for at in (b.offset or 0, b.stage_bytes)):
            text = (
                f"{b.name}, byte {b.offset} on, is not a multiple of the {pattern} of its swizzle"
            )
            yield Finding(property=CARRY_OVER, message=text)
    for s in statements(kernel):
        texts: Iterator[str] = iter(())
        match s:
            case TmaLoad() | TmaLoadMulticast():
                texts = _load(kernel, s, kernel.buffer(s.smem))
            case Mma():
                texts = _mma(kernel, s)
        for text in texts:
            yield Finding(property=CARRY_OVER, message=f"{type(s).__name__}: {text}")


def _load(kernel: Kernel, s: TmaLoad | TmaLoadMulticast, to: Smem) -> Iterator[str]:
    m = kernel.map(s.tensor_map)
    inner, outer = s.coords
    scales = to.use == "scales"
    slab, within = divmod(inner.offset, to.slab_cols)
    if within or s.offset != slab * to.slab_stride or outer.offset:
        yield f"column {inner.offset} of {to.name} does not lie {s.offset} bytes into it"
    for axis, coord in ((m.inner, inner), (m.outer, outer)):
        step = kernel.block.k if axis == "k" and not scales else 1
        if (coord.base, coord.scale) != (BASES[axis], step):
            yield f"{m.name} is placed along {axis} by {coord.base} * {coord.scale}"
    if m.box != _box(s, to):
        yield f"{m.name}'s box {m.box} does not fill {_box(s, to)} of {to.name}"
    yield from _rank(s, to, (inner, outer))


def _box(s: TmaLoad | TmaLoadMulticast, to: Smem) -> tuple[int, int]:
    """(inner, outer) elements of one slab, or of a rank's slice of it."""
    sliced = s.slice if isinstance(s, TmaLoadMulticast) else None
    if to.use == "scales":
        return sliced or to.cols, to.rows
    return to.slab_cols, sliced or to.rows


def _rank(s: TmaLoad | TmaLoadMulticast, to: Smem, coords: tuple[Coord, Coord]) -> Iterator[str]:
    """A rank's slice lies as far into the buffer as into the tensor."""
    sliced, other = coords if to.use == "scales" else coords[::-1]
    unit = to.dtype.bytes if to.use == "scales" else to.slab_bytes
    shift = (s.rank_bytes or 0) if isinstance(s, TmaLoadMulticast) else 0
    if sliced.rank_step * unit != shift or other.rank_step:
        yield f"ranks are {sliced.rank_step} apart in the tensor, {shift} bytes in {to.name}"


def _mma(kernel: Kernel, s: Mma) -> Iterator[str]:
    a, b = kernel.buffer(s.a), kernel.buffer(s.b)
    axes = {m.smem: m.outer for m in kernel.maps}
    if (axes.get(a.name), axes.get(b.name)) != ("m", "n"):
        yield f"multiplies {a.name} by {b.name}"
    rows = MMA_ROWS * a.slab_bytes
    if (s.wave_bytes, s.warpgroup_bytes) != (s.wave * kernel.consumers * rows, rows):
        yield f"wave {s.wave}'s rows of {a.name} do not start {s.wave_bytes} bytes into it"
    if s.steps != _steps(a, b):
        yield f"the steps {s.steps} do not walk along all of K"
    if s.instr.n != kernel.block.n or b.rows != kernel.block.n:
        yield f"N is {s.instr.n}, {b.name} has {b.rows} rows, the block {kernel.block.n} columns"


def _steps(a: Smem, b: Smem) -> tuple[tuple[int, int], ...]:
    columns = range(0, a.cols * a.dtype.bytes, MMA_K_BYTES)
    return tuple((_column(a, c), _column(b, c)) for c in columns)


def _column(s: Smem, byte: int) -> int:
    slab, within = divmod(byte, s.slab_bytes)
    return slab * s.slab_stride + within
