"""Where asked, let wgmma take A from registers, which read shared memory once for all parts of a tile."""

from __future__ import annotations

from dataclasses import fields, replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import S32
from ..ir.nodes import ForK, Kernel, LoadFragments, Mma, MmaFragments, Registers, Stmt, WgmmaFence
from ..ir.rewrite import map_role, map_stmts, statements
from ..target import Target

HOLD_PROMOTED = Rule(
    id="hold-promoted",
    says="only a family that promotes can hold A in registers",
    because="It waits for each wgmma before the next K block's A takes the registers. A sum that stays in the tensor "
    "core is not waited for, and has one wgmma of all columns, which reads A once anyway.",
)
HOLD_SWIZZLE = Rule(
    id="hold-swizzle",
    says="A held in registers must be swizzled in shared memory",
    because="ldmatrix takes 32 bytes of K of a row from neighbouring chunks; unswizzled they lie in two core matrices.",
)
RULES = (HOLD_PROMOTED, HOLD_SWIZZLE)

FRAGMENTS = "fragments"
STEP_REGISTERS = 4  # of a thread: 64 rows x 32 bytes of K


def hold_a(kernel: Kernel, target: Target) -> Kernel:
    """Before the first wgmma of each wave load its rows of A, and multiply from there. Sets LoadFragments
    and MmaFragments; adds their registers."""
    if not kernel.hold_a:
        return kernel
    found = [s for s in statements(kernel) if isinstance(s, Mma)]
    for s in found:
        a = kernel.buffer(s.a)
        if s.fresh != "block":
            raise IllegalConfig(HOLD_PROMOTED, {"hold_a": True}, "Use hold_a=false.")
        if not a.swizzle:
            values = {"buffer": a.name, "swizzle": a.swizzle}
            raise IllegalConfig(HOLD_SWIZZLE, values, "Use swizzle_ab=null.")
    count = STEP_REGISTERS * len(found[0].steps or ())
    held = Registers(name=FRAGMENTS, dtype=S32, count=count)
    kernel = map_stmts(
        kernel, lambda s: replace(s, body=_loop(s.body)) if isinstance(s, ForK) else s
    )
    return map_role(kernel, "consumer", lambda r: replace(r, locals=(*r.locals, held)))


def _loop(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A load goes before the fence that orders its registers before the wgmma."""
    out: list[Stmt] = []
    waves: set[int] = set()
    for s in body:
        if isinstance(s, Mma):
            if s.wave not in waves:
                waves.add(s.wave)
                out.insert(_fence(out), _load(s))
            s = MmaFragments(**{f.name: getattr(s, f.name) for f in fields(s)}, fragments=FRAGMENTS)
        out.append(s)
    return tuple(out)


def _fence(out: list[Stmt]) -> int:
    return max(i for i, s in enumerate(out) if isinstance(s, WgmmaFence))


def _load(s: Mma) -> LoadFragments:
    assert s.wave_bytes is not None and s.warpgroup_bytes is not None and s.steps
    return LoadFragments(
        dst=FRAGMENTS,
        smem=s.a,
        wave=s.wave,
        wave_bytes=s.wave_bytes,
        warpgroup_bytes=s.warpgroup_bytes,
        steps=tuple(a for a, _ in s.steps),
    )
