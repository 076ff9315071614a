"""`gemmgen tune --merge`: databases of several runs, machines or GPUs as one, and what they do not agree on."""

from __future__ import annotations

import argparse
import json
import sys

from ..bench.tuning.merging import Source, merged
from ..heuristics.database import to_line, unmerged
from . import given
from .tune_steps import say, write


def main(args: argparse.Namespace) -> int:
    """1 if there is a conflict; the rows are written all the same."""
    given.refuse(args, given.others(args, "merge", "database"), "cannot be given with --merge")
    paths = dict.fromkeys(args.merge)
    sources = [Source(file=str(path), row=row) for path in paths for row in unmerged(path)]
    rows, conflicts = merged(sources)
    text = "".join(to_line(row) + "\n" for row in rows)
    if args.database:
        write(args.database, text)
        say(f"{len(rows)} rows of {len(sources)} in {args.database}")
    for c in conflicts:
        say(f"conflict of {c.kind}: {c.text}")
    if args.json:
        found = {
            "rows": [json.loads(to_line(r)) for r in rows],
            "conflicts": [*map(vars, conflicts)],
        }
        print(json.dumps(found, indent=2))
    elif not args.database:
        sys.stdout.write(text)
    return int(bool(conflicts))
