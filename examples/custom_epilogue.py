"""An epilogue of your own: a soft cap of the scaled sum. It is verified on the emulator. Needs NVRTC."""

from __future__ import annotations

from gemmgen import Config, Problem, compile_to_source
from gemmgen.epilogues import Call, PerColumn, acc
from gemmgen.ir.dtypes import BF16
from gemmgen.runtime.emulated import EmulatedGpu, prepare
from gemmgen.verification.trial import Verdict, judge

# The five lines: an expression, a problem that has it, a config, a proved kernel.
cap = 30.0
softcap = Call("tanh", (acc * PerColumn("gain") / cap,)) * cap
problem = Problem(family="dense", a=BF16, b=BF16, epilogue=softcap)
config = Config(block_m=64, block_n=64, consumers=1)
artifact = compile_to_source(problem, config)


def main() -> Verdict:
    program = prepare(artifact.kernel, artifact.source)
    verdict = judge(EmulatedGpu(), program, artifact.kernel, problem, (96, 80, 256))
    print(artifact.name)
    print(f"{verdict.launches} launches, worst error {verdict.bound.worst:.2f} of its bound")
    return verdict


if __name__ == "__main__":
    main()
