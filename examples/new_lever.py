"""A lever in one file: stages released late, for every family that promotes its sums.

A consumer releases a stage as soon as the products that read it are done, then adds the partial sum to the tile's.
What if it released the stage after that? A lever is a record: which values it takes, how names, tables and reports
say it, what the tuner tries, what it costs, and the pass that is handed its value. Needs NVRTC; the GPU is emulated.
"""

from __future__ import annotations

from dataclasses import replace

from gemmgen import Config, Problem, compile_to_source
from gemmgen.cost import cost
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.nodes import ForK, Kernel, Stmt
from gemmgen.ir.rewrite import map_body, map_role
from gemmgen.ir.stmts import releases
from gemmgen.levers import FIELDS, add
from gemmgen.levers.lever import flag
from gemmgen.runtime.emulated import EmulatedGpu, prepare
from gemmgen.target import H200, Target
from gemmgen.verification.trial import Verdict, judge

NAME, SHAPE, SMALL = "late", (4096, 4096, 7168), (200, 264, 384)
PROBLEM = Problem(family="fp8_block", a=E4M3, b=E4M3)


def release_late(kernel: Kernel, target: Target, late: bool) -> Kernel:
    """With `late`, move the releases of a K block's own stage to its end."""

    def visit(s: Stmt) -> Stmt:
        if not isinstance(s, ForK):
            return s
        moved = [x for x in s.body if releases(x) and x.lag == 0]
        return replace(s, body=(*(x for x in s.body if x not in moved), *moved))

    if not late:
        return kernel
    return map_role(kernel, "consumer", lambda r: replace(r, body=map_body(r.body, visit)))


LATE = flag(
    NAME,
    tag="late",
    word="released late",
    reads="a stage is released after its sums are promoted",
    others=lambda c: ({NAME: not c.late},),
    matters=5,  # before all others: it is what is to be learned
    lowers=release_late,
    before="size_barriers",  # which counts the releases
    # A guess: the next load of the stage begins so much later.
    price=lambda price, of, c: {"step": price["step"] + 32.0},
)


def register() -> None:
    if NAME not in FIELDS:
        add(LATE)


def main() -> Verdict:
    register()
    early = Config(stages=3)
    late = early.having(late=True)
    made = compile_to_source(PROBLEM, late)  # lowered, proved, emitted, read back
    print(f"{made.name}: {made.proof}")
    verdict = judge(EmulatedGpu(), prepare(made.kernel, made.source), made.kernel, PROBLEM, SMALL)
    print(f"{verdict.launches} launches verified, to the bit: {verdict.exact}")
    for c in (early, late):
        seconds = cost(PROBLEM, c, SHAPE, H200).seconds
        print(f"the model says {seconds * 1e6:.0f} us of {c.to_json().get(NAME, 'early')}")
    return verdict


if __name__ == "__main__":
    main()
