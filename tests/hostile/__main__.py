"""Give gemmgen every hostile input and print a table; exits with 1 if one was not refused as it must be."""

from __future__ import annotations

import sys

from .campaign import campaign, table


def main() -> int:
    outcomes = campaign()
    print(table(outcomes))
    bad = [o for o in outcomes if o.problem]
    for o in bad:
        print(f"{o.surface}: {o.says!a}: {o.problem}", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
