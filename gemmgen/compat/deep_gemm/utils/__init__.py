"""The names that DeepGEMM's programs import from `deep_gemm.utils`."""

from __future__ import annotations

from gemmgen.compat.deep_gemm.refused import refusals

from . import dist as dist
from . import layout, math
from .layout import *  # noqa: F403
from .math import *  # noqa: F403

__all__ = [*layout.__all__, *math.__all__]
__getattr__ = refusals(__name__)
