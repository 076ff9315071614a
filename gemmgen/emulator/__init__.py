"""A Hopper GPU in NumPy: executes PTX for compute_90a, checking what hardware would not.

It knows PTX and nothing of what generates it: imports numpy, the standard library, gemmgen.errors.

What it checks does not depend on the schedule where happens-before can tell: races on shared memory
(4-byte words, between warps and asynchronous operations), proxy fences and their state spaces, unwaited
stores, loads, wgmma and remote arrivals, barriers that two sets of warps may mix up, lanes of a warp of
which one speaks for others that it has not met, .aligned instructions without all of their threads, D
or A written after its wgmma.fence. Deadlocks, tx-count and arrival overflows and wrong results are those of the
schedule at hand, as is what a wait does that gives up (mbarrier.try_wait; RoundRobin's do not).

Not modelled: races between threads of one warp; the order of global writes after reads; register pressure; time. One launch runs at a
time; one that may overlap the launch before it (`overlaps`) races with that if it touches global memory before
griddepcontrol.wait, in any thread, but to read what is said to be `ready`, or reads anything else without coherence.
"""

from .copies import Awaited, Copied, Raised
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
from .ranks import Started, launch_ranks
from .schedule import Eager, Late, Random, RoundRobin, Schedule
from .stats import Stats
from .tensor_map import TensorMap

__all__ = [
    "Awaited",
    "Copied",
    "Deadlock",
    "Eager",
    "EmulatorError",
    "Entry",
    "GlobalMemory",
    "IllegalAccess",
    "Started",
    "Late",
    "Module",
    "ProtocolError",
    "PtxSyntaxError",
    "Race",
    "Raised",
    "Random",
    "RoundRobin",
    "Schedule",
    "Stats",
    "TensorMap",
    "Trap",
    "UninitializedRead",
    "UnsupportedInstruction",
    "launch",
    "launch_ranks",
    "load",
]
