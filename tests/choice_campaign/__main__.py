"""Choose for random problems, draw random legal configs, and build every kernel; exits with 1 if the build
refused one or a problem had no choice, with 2 if time was up before all were built.

With --state, what was built is not built again: run it once more, and it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .campaign import Campaign, State, table


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.choice_campaign", description=__doc__)
    p.add_argument("--problems", type=int, default=300, help="random ones (default 300)")
    p.add_argument("--configs", type=int, default=0, help="random legal ones (default 0)")
    p.add_argument("--seed", type=int, default=0, help="of all that is random (default 0)")
    p.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    p.add_argument("--minutes", type=float, default=600.0, help="then build no more (default 600)")
    p.add_argument("--state", type=Path, help="what is built, by NVRTC")
    return p


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    campaign = Campaign(
        seed=args.seed, jobs=args.jobs, minutes=args.minutes, state=State(args.state)
    )
    tallies = campaign.run(problems=args.problems, configs=args.configs)
    print(table(tallies, campaign.nvrtc))
    for tally in tallies:
        for line in (*tally.failures, *tally.notes):
            print(f"{tally.name}: {line}", file=sys.stderr)
    if any(t.failures for t in tallies):
        return 1
    return 2 * any(t.unbuilt for t in tallies)


if __name__ == "__main__":
    sys.exit(main())
