"""Experts with rows of their own in one launch: the device says how many each has. Needs NVRTC."""

from __future__ import annotations

from gemmgen import Config, Problem, compile_to_source
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.groupings import OF_SIZES
from gemmgen.runtime.emulated import EmulatedGpu, prepare
from gemmgen.verification.trial import Verdict, judge

MOST, N, K = 160, 128, 256  # rows of A that each expert has room for, columns, depth
ROWS = (70, 0, 160)  # of each expert: a tail, nobody, all


def main() -> Verdict:
    problem = Problem(family="fp8_block", a=E4M3, b=E4M3, grouping="masked")
    artifact = compile_to_source(problem, Config(block_m=64, consumers=1, stages=4))
    program = prepare(artifact.kernel, artifact.source)
    layout = OF_SIZES["masked"](MOST, ROWS, problem.alignment)
    verdict = judge(EmulatedGpu(), program, artifact.kernel, problem, (MOST, N, K), layout=layout)
    print(artifact.name)
    print(f"{len(ROWS)} experts with {ROWS} rows: {verdict.launches} launches verified")
    print("rows past each expert's count were left untouched")
    return verdict


if __name__ == "__main__":
    main()
