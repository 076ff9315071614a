"""Hold the text of random legal configs against their IR; exits with 1 if one differs."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from gemmgen.emit import emit
from gemmgen.ir.rewrite import statements
from gemmgen.link import TextDiffers, link
from gemmgen.link.meaning import MEANING

from .draw import kernels


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.link_configs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="configs (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the configs (default 1)")
    args = parser.parse_args()
    start, seconds, differ = time.perf_counter(), 0.0, 0
    tally: Counter[str] = Counter()
    met: set[type] = set()
    for p, c, kernel in kernels(args.count, args.seed):
        kinds = {"watched": c.watchdog, "stamped": bool(kernel.stamps), p.family: True}
        tally.update(name for name, yes in kinds.items() if yes)
        met |= {type(s) for s in statements(kernel)}
        before = time.process_time()
        try:
            tally["events"] += link(kernel, emit(kernel)).events
        except TextDiffers as e:
            differ += 1
            print(f"{p!r}\n{c!r}\n{e}\n")
        seconds += time.process_time() - before
    print(
        f"{args.count} configs, {differ} differ; {seconds / args.count * 1e3:.0f} ms each to emit and link"
    )
    print(", ".join(f"{name} {n}" for name, n in sorted(tally.items())))
    absent = sorted(s.__name__ for s in MEANING if s not in met)
    print(
        f"{len(met)} kinds of statements; without {', '.join(absent)}"
        if absent
        else f"all {len(met)} kinds of statements"
    )
    print(f"{time.perf_counter() - start:.0f} s in all")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
