"""`deep_gemm.utils.dist`: names of what gemmgen does not do, which can be imported."""

from __future__ import annotations

from gemmgen.compat.deep_gemm.refused import refusals

__getattr__ = refusals(__name__)
