"""One process that launches: takes chunks from its input, one JSON object a line, and answers alike.

It says which case it begins, so that whoever watches knows where it was when it hung or died.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, TextIO

from .exact import Flags, settled
from .tally import Chunk, Tally
from .tiers import LEAKS, NAMES, TIERS

MACHINE = f"{__package__}.machine:Gpu"


def made(name: str) -> Any:
    """The machine that `module:class` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def case_seed(seed: int, tier: str, index: int) -> int:
    return Random(f"{seed} {tier} {index}").randrange(1 << 31)


class Worker:
    def __init__(self, machine: Any, seed: int, out: TextIO) -> None:
        self.machine, self.seed, self.out = machine, seed, out

    def say(self, **what: Any) -> None:
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()

    def do(self, chunk: Chunk) -> None:
        if chunk.careful:
            for i in range(chunk.first, chunk.end):
                self.say(done=asdict(self.tried(chunk.tier, range(i, i + 1))), case=i)
        elif chunk.tier in LEAKS:
            self.say(done=asdict(self.measured(chunk)))
        else:
            self.say(done=asdict(self.tried(chunk.tier, range(chunk.first, chunk.end))))

    def tried(self, tier: str, indices: range) -> Tally:
        flags, launches = Flags(), 0
        for i in indices:
            self.say(case=i)
            launches += TIERS[tier].run(self.machine, i, case_seed(self.seed, tier, i), flags)
        wrong, failures = settled(self.machine, flags)
        return Tally(cases=len(indices), launches=launches, mismatches=wrong, failures=failures)

    def measured(self, chunk: Chunk) -> Tally:
        """The cases, and the memory that was there after the first of them and is gone after the last."""
        alone = TIERS[chunk.tier].alone
        measure = self.machine.taken if alone else self.machine.held
        warm = min(chunk.end, chunk.first + (len(NAMES) if alone else 1))
        total = self.tried(chunk.tier, range(chunk.first, warm))
        before, host = measure(), resident()
        total += self.tried(chunk.tier, range(warm, chunk.end))
        total.leaked = measure() - before
        total.host = resident() - host if alone else 0
        if total.leaked > 0:
            total.failures.append(f"{chunk.tier} from {chunk.first}: {total.leaked} bytes are gone")
        return total


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(name: str, seed: int) -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints goes to the log
    worker = Worker(made(name), seed, out)
    worker.say(ready=True)
    for line in sys.stdin:
        try:
            worker.do(Chunk(**json.loads(line)))
        except Exception as e:  # whatever it was: a device that saw an error is of no more use
            traceback.print_exc()
            worker.say(error=f"{type(e).__name__}: {e}"[:500])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
