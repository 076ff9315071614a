"""Mutation testing: faults planted in the IR, the emitted text, launches and the host, and who finds them.

    python -m tests.mutation --rows --random 600 --seed 1 --jobs 2

Golden files take no part: a mutant is killed by something that knows what is right, or it lives.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent

# Run as `tests.mutation` or, under pytest, as `mutation`: the tests' own modules are found by name.
for folder in (TESTS / "ir", TESTS / "support", TESTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
