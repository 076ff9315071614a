"""A Hopper GPU in NumPy: executes PTX for compute_90a, checking what hardware would not.

It knows PTX and nothing of what generates it: imports numpy, the standard library, gemmgen.errors.

What it checks does not depend on the schedule where happens-before can tell: races on shared memory
(4-byte words, between warps and asynchronous operations), proxy fences, unwaited stores, loads, wgmma
and remote arrivals, barriers that two sets of warps may mix up. Deadlocks, tx-count and arrival
overflows and wrong results are those of the schedule at hand.

Not modelled: races between threads of one warp; the order of global reads after writes of other CTAs
(only double writes are races); `mbarrier.try_wait` giving up early (it returns when the phase is over);
register pressure; time. One launch runs at a time; one that may overlap the launch before it
(`overlaps`) must not touch global memory before griddepcontrol.wait, in any thread.
"""

from .errors import (
    Deadlock,
    EmulatorError,
    IllegalAccess,
    ProtocolError,
    PtxSyntaxError,
    Race,
    Trap,
    UninitializedRead,
    UnsupportedInstruction,
)
from .launch import Entry, Module, launch, load
from .memory import GlobalMemory
from .schedule import Eager, Late, Random, RoundRobin, Schedule
from .stats import Stats
from .tensor_map import TensorMap

__all__ = [
    "Deadlock",
    "Eager",
    "EmulatorError",
    "Entry",
    "GlobalMemory",
    "IllegalAccess",
    "Late",
    "Module",
    "ProtocolError",
    "PtxSyntaxError",
    "Race",
    "Random",
    "RoundRobin",
    "Schedule",
    "Stats",
    "TensorMap",
    "Trap",
    "UninitializedRead",
    "UnsupportedInstruction",
    "launch",
    "load",
]
