"""The protocol proof: no schedule of a lowered kernel's roles deadlocks, races or corrupts."""

from __future__ import annotations

from .certificate import Certificate
from .errors import Lane, ProtocolViolation, Trace
from .ops import Instance
from .properties import PROPERTIES, Property
from .prove import Proof, check, instances

__all__ = [
    "PROPERTIES",
    "Certificate",
    "Instance",
    "Lane",
    "Proof",
    "Property",
    "ProtocolViolation",
    "Trace",
    "check",
    "instances",
]
