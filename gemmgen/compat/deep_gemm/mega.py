"""`deep_gemm.mega`: names of Blackwell's kernels, which can be imported."""

from __future__ import annotations

from gemmgen.compat.deep_gemm.refused import refusals

__getattr__ = refusals(__name__)
