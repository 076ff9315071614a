"""Choose invariant configs for every M up to --most, and compare the bits of every kernel that is chosen, on the emulator;
exits with 1 if two differ."""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from gemmgen.ops.preparing import every_m

from .campaign import PROBLEMS, SIDES, choices, described_alike, same_bits


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.invariance", description=__doc__)
    parser.add_argument("--most", type=int, default=4096, help="M (default 4096)")
    parser.add_argument(
        "--kernels", type=int, help="so many of those chosen, drawn at random (default all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    args = parser.parse_args(arguments)
    started, kernels, asked, wrong = time.monotonic(), {}, 0, []
    for p, shape, c, split in choices(PROBLEMS, SIDES, every_m(args.most)):
        asked += 1
        kernels.setdefault((p, c), shape)
        if not described_alike(p, shape, c, split):
            wrong.append(f"{p} {shape}: {c} adds up otherwise")
    drawn = [*kernels]
    if args.kernels is not None:
        drawn = Random(args.seed).sample(drawn, min(args.kernels, len(drawn)))
    for p, c in drawn:
        if not same_bits(p, c):
            wrong.append(f"{p} at {kernels[p, c]}: {c} has other bits")
    seconds = time.monotonic() - started
    print(
        f"{asked} choices, {len(kernels)} kernels, {len(drawn)} emulated, {len(wrong)} wrong ({seconds:.0f} s)"
    )
    print("\n".join(wrong), end="\n" * bool(wrong), file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
