"""Verification that cannot be fooled: inputs, references, rigorous bounds, checks and guard bands."""

from ..codes import decode, encode, table
from .check import BoundReport, check_bound, check_exact, check_repeat
from .engines import Array, Engine, NumpyEngine
from .guarded import POISONS, Guarded
from .inputs import Operands, exact_integers, random_normal
from .ladder import ladder
from .reference import Enclosure, bound, enclosure, product

__all__ = [
    "POISONS",
    "Array",
    "BoundReport",
    "Enclosure",
    "Engine",
    "Guarded",
    "NumpyEngine",
    "Operands",
    "bound",
    "check_bound",
    "check_exact",
    "check_repeat",
    "decode",
    "enclosure",
    "encode",
    "exact_integers",
    "ladder",
    "product",
    "random_normal",
    "table",
]
