"""`gemmgen list`: families, groupings, gallery kernels and epilogues."""

from __future__ import annotations

import argparse
import json

from ..epilogues import EPILOGUES
from ..families import FAMILIES
from ..gallery import GALLERY, path_of
from ..ir.groupings import GROUPINGS


def add(parser: argparse.ArgumentParser) -> None:
    del parser


def main(args: argparse.Namespace) -> int:
    tables = {
        "families": {name: f.says for name, f in FAMILIES.items()},
        "groupings": {name: g.says for name, g in GROUPINGS.items()},
        "gallery": {path_of(e): e.shows for e in GALLERY},
    }
    if args.json:
        print(json.dumps({**tables, "epilogues": [*EPILOGUES]}, indent=2))
        return 0
    for title, table in tables.items():
        print(f"{title}:")
        width = max(map(len, table))
        print("\n".join(f"  {name:<{width}}  {says}" for name, says in table.items()))
    print("epilogues:\n  " + ", ".join(EPILOGUES))
    return 0
