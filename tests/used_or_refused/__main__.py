"""Draw command lines and calls and print what came of them; exits with 1 if one was neither used nor refused by name."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/support")]

from gemmgen.cli import COMMANDS  # noqa: E402
from used_or_refused import campaign, inventory  # noqa: E402
from used_or_refused.model import Tally  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.used_or_refused", description=__doc__)
    parser.add_argument(
        "--draws", type=int, default=10_000, help="half of them command lines (default 10000)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| surface | draws | used | refused by name | missing here | wrong | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    found = [
        _row("command lines", campaign.of_lines, args.draws - args.draws // 2, args.seed),
        _row("calls in Python", campaign.of_calls, args.draws // 2, args.seed),
    ]
    every = {f"{c} {name}" for c in COMMANDS for name in inventory.options(c)}
    seen = len(every & found[0].shown)
    print(
        f"{len(every)} options of {len(COMMANDS)} commands are drawn; {seen} were seen to be used"
    )
    wrong = [(text, draw) for tally in found for text, draw in tally.wrong.items()]
    for text, draw in wrong:
        print(f"{text}\n  {draw}", file=sys.stderr)
    return int(bool(wrong))


def _row(name: str, run: campaign.Run, draws: int, seed: int) -> Tally:
    began = time.monotonic()
    t = run(draws, seed)
    counts = (t.draws, t.used, t.refused, t.missing, len(t.wrong))
    print(
        f"| {name} | {' | '.join(map(str, counts))} | {time.monotonic() - began:.0f} |", flush=True
    )
    return t


if __name__ == "__main__":
    sys.exit(main())
