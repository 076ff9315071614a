"""An order of tiles in one file: whole lines, each in the same direction, for every grouping.

Panels let CTAs that run together share operands in L2. What do they gain over plain lines? An order is a few lines of
C++, the same in Python, and a comment; then each config may have it, and the proof, the emulator, the cost model, the
tuner, reports and packs know it. Needs NVRTC; the GPU is emulated.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen import Config, Problem, compile_to_source
from gemmgen.bench.tuning.candidates import candidates
from gemmgen.bench.tuning.jobs import Job
from gemmgen.cost import cost
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.orders import ORDERS, Order, add
from gemmgen.ir.walks import Scheduler
from gemmgen.runtime.emulated import EmulatedGpu, prepare
from gemmgen.see.spelling import spelled
from gemmgen.target import H200
from gemmgen.verification.trial import Verdict, judge

NAME, SHAPE, SMALL = "lines", (4096, 4096, 7168), (200, 264, 384)


def place(s: Scheduler, tiles: Mapping[str, int], index: int) -> dict[str, int]:
    """Tile `index` of a grid: its place along each axis."""
    slow, fast = divmod(index, tiles[s.fast])
    return {s.fast: fast, s.slow: slow}


LINES = Order(
    says=("They come line by line along {FAST}, all in one direction.",),
    device=(
        "const int {fast} = {index} % tiles_{fast};",
        "const int {slow} = {index} / tiles_{fast};",
    ),
    place=place,
)


def register() -> None:
    if NAME not in ORDERS:
        add(NAME, LINES)


def main() -> dict[str, Verdict]:
    register()
    config = Config(order=NAME, block_n=64)
    problem = Problem(family="fp8_block", a=E4M3, b=E4M3)
    verdicts = {}
    for grouping in GROUPINGS:
        if GROUPINGS[grouping].depths or GROUPINGS[grouping].summed:
            continue  # of a family that sums groups
        p = Problem(family="fp8_block", a=E4M3, b=E4M3, grouping=grouping)
        made = compile_to_source(p, config)  # lowered, proved, emitted, read back
        program = prepare(made.kernel, made.source)
        verdicts[grouping] = judge(EmulatedGpu(), program, made.kernel, p, SMALL)
        print(f"{grouping}: {made.proof}; to the bit: {verdicts[grouping].exact}")
    chosen = candidates(Job(problem=problem, shape=SHAPE))
    tried = next(c for c in chosen if c.config.order == NAME)
    print(f"the tuner would try {spelled(tried.config)}")
    seconds = cost(problem, tried.config, SHAPE, H200).seconds
    print(f"the model knows no other order than panels, and says {seconds * 1e6:.0f} us")
    return verdicts


if __name__ == "__main__":
    main()
