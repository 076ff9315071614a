"""Inject random faults and print what came of them; exits with 1 if anything but a compilation did."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from gemmgen.runtime import cache

from .campaign import campaign, table
from .damage import FAULTS, OF_LAUNCHES
from .stores import CUBINS, LAUNCHES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cache_faults", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="faults (default 5000)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default 1)")
    parser.add_argument("--launches", action="store_true", help="of what leads to the kernels")
    args = parser.parse_args()
    logging.getLogger(cache.__name__).setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp())
    try:
        what = (LAUNCHES, OF_LAUNCHES) if args.launches else (CUBINS, FAULTS)
        tallies = campaign(args.count, args.seed, folder, *what)
    finally:
        shutil.rmtree(folder)
    print(table(tallies))
    return int(any(t.lost + t.unstable + t.wrong + t.crashes for t in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
