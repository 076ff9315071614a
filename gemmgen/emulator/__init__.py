"""A Hopper GPU in NumPy: executes PTX for compute_90a, checking what hardware would not.

It knows PTX and nothing of what generates it: imports numpy, the standard library, gemmgen.errors.
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
