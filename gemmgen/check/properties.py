"""What is proved of every kernel, one stable id each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Property:
    """`id` is stable and documented; the texts may improve."""

    id: str
    name: str
    says: str


DEADLOCK = Property(id="P1", name="deadlock", says="every role reaches its end in every schedule")
RACE = Property(
    id="P2",
    name="race",
    says="no two accesses to the same shared memory or accumulator conflict, and none leaves its buffer",
)
BYTES = Property(
    id="P3", name="bytes", says="each phase announces exactly the bytes that land in it"
)
PHASE = Property(
    id="P4", name="phase", says="each arrival, announcement and landing falls in its own phase"
)
PARITY = Property(
    id="P5",
    name="parity",
    says="a wait on a parity can only mean one phase: not the one before, not the one after",
)
INIT = Property(
    id="P6",
    name="init",
    says="barriers are initialised once, visibly to their users and to the async proxy",
)
PROXY = Property(
    id="P7",
    name="proxy",
    says="a generic write is fenced by its writer before the async proxy touches the bytes",
)
NAMED_BARRIER = Property(
    id="P8", name="named-barrier", says="each rendezvous has a fixed set of threads that fills it"
)
OUTPUT = Property(
    id="P9",
    name="output",
    says="each element of each output tile, and each scale of an FP8 output, is stored exactly once",
)
CARRY_OVER = Property(
    id="P10",
    name="carry-over",
    says="each read sees the bytes of its own tile and K block; ring and order recur for ever",
)
EXIT = Property(
    id="P11",
    name="exit",
    says="nothing is in flight to a CTA, or from it, when its shared memory goes",
)
REGISTERS = Property(
    id="P12", name="registers", says="setmaxnreg is well formed and never waits for ever"
)
CLUSTER = Property(
    id="P13",
    name="cluster",
    says="the scheduler gives every tile once, and cluster peers the same K blocks and operand",
)
TENSOR_MAP = Property(
    id="P14",
    name="tensor-map",
    says="a tensor map derived on the device is whole, published and acquired before it is used, and not rewritten while it is",
)
DEPENDENCY = Property(
    id="P15",
    name="dependency",
    says="a launch that may overlap the one before it touches no global memory until that is over, but for loads of what is said to be ready",
)

PROPERTIES: tuple[Property, ...] = (
    DEADLOCK,
    RACE,
    BYTES,
    PHASE,
    PARITY,
    INIT,
    PROXY,
    NAMED_BARRIER,
    OUTPUT,
    CARRY_OVER,
    EXIT,
    REGISTERS,
    CLUSTER,
    TENSOR_MAP,
    DEPENDENCY,
)
