"""A family in one file: FP8, promoted to FP32 as the family `fp8` is, but with the stage released late.

`fp8` releases a stage as soon as the products that read it are done, then adds the partial sum. What if it
were released after that? Such a kernel is proved and verified here, on the emulator, and its loop is shown beside
that of `fp8`. Needs NVRTC.
"""

from __future__ import annotations

from gemmgen import Config, Problem, lower
from gemmgen.check import check
from gemmgen.emit import emit
from gemmgen.families import FAMILIES, Family, add
from gemmgen.families.common import accumulators, assemble, multiply, partial, pieces
from gemmgen.families.output import epilogue
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.nodes import (
    Accumulate,
    Arrive,
    Fence,
    ForK,
    Kernel,
    Piece,
    TileBody,
    Wait,
    WgmmaCommit,
    WgmmaWait,
    Zero,
)
from gemmgen.ir.rewrite import walk
from gemmgen.recipes import Recipe
from gemmgen.runtime.emulated import EmulatedGpu, prepare
from gemmgen.verification.trial import Verdict, judge

NAME, SHAPE = "fp8_late", (192, 136, 512)


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows: multiply a K block from zero, wait, add. Then give the stage back."""
    acc = accumulators(p, c)
    multiplied = tuple(
        Piece(
            products=(Fence(of="wgmma"), multiply(p, c, wave, part), WgmmaCommit()),
            wait=(WgmmaWait(pending=0),),
            promote=(Accumulate(dst=f"acc{wave}", src="part", part=part),),
        )
        for wave, part, _ in pieces(c)
    )
    released = Piece(release=(Arrive(barrier="empty"),))
    step = (Wait(barrier="full"), *multiplied, released)
    tile = TileBody(
        setup=tuple(Zero(dst=a.name) for a in acc),
        main=(ForK(body=step, unroll=c.unroll),),
        epilogue=epilogue(p, c),
    )
    return assemble(p, c, locals=(*acc, partial(p, c)), tile=tile)


def register() -> None:
    """Make it known to this process; a family to keep has its lines in tables (docs/extending.md)."""
    if NAME in FAMILIES:
        return
    sums = Recipe(
        operands=((E4M3, E4M3),), promotes=True, scale_rows=0, scale_depth=0, unroll=1, coded=0
    )
    add(NAME, Family(build, "FP8, promoted, stages released late"), sums)


def main() -> Verdict:
    register()
    problem, config = Problem(family=NAME, a=E4M3, b=E4M3), Config(stages=3)
    kernel = lower(problem, config)
    print(check(kernel))
    program = prepare(kernel, emit(kernel, ("examples/new_family.py",)))
    verdict = judge(EmulatedGpu(), program, kernel, problem, SHAPE)
    print(f"{kernel.name}: {verdict.launches} launches verified, to the bit: {verdict.exact}")
    early = lower(Problem(family="fp8", a=E4M3, b=E4M3), config)
    for k in (early, kernel):
        consumer = next(r for r in k.roles if r.name == "consumer")
        loop = next(s for s in walk(consumer.body) if isinstance(s, ForK))
        print(k.name, ", ".join(type(s).__name__ for s in loop.body))
    return verdict


if __name__ == "__main__":
    main()
