"""An epilogue in one file: a soft cap, in one line and by a name of its own, for every family.

An epilogue is an expression; kernels, their parameters, the inputs of a trial and the bound of its error follow from
it. A name makes it known to the command line too. Needs NVRTC; the GPU is emulated.
"""

from __future__ import annotations

from gemmgen import Config, Problem, compile_to_source
from gemmgen.epilogues import EPILOGUES, Call, PerColumn, acc
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.runtime.emulated import EmulatedGpu, prepare
from gemmgen.verification.trial import Verdict, judge

NAME, SMALL = "soft_cap", (96, 80, 256)
SOFT_CAP = Call("tanh", (acc * PerColumn("gain") / 30.0,)) * 30.0  # the line
CONFIG = Config(block_m=64, block_n=64, consumers=1)
PROBLEMS = (
    Problem(family="dense", a=BF16, b=BF16, epilogue=SOFT_CAP),
    Problem(family="fp8_block", a=E4M3, b=E4M3, epilogue=SOFT_CAP),
)


def register() -> None:
    EPILOGUES.setdefault(NAME, SOFT_CAP)


def main() -> list[Verdict]:
    register()
    verdicts = []
    for p in PROBLEMS:
        made = compile_to_source(p, CONFIG)  # lowered, proved, emitted, read back
        verdicts.append(
            judge(EmulatedGpu(), prepare(made.kernel, made.source), made.kernel, p, SMALL)
        )
        print(f"{made.name}: {made.proof}")
        launches, worst = verdicts[-1].launches, verdicts[-1].bound.worst
        print(f"{launches} launches, worst error {worst:.2f} of its bound")
    return verdicts


if __name__ == "__main__":
    main()
