"""gemmgen: a small compiler that generates GEMM kernels for NVIDIA Hopper GPUs.

`Problem` says what to multiply, `Config` how; `compile_to_source` lowers and emits. To run kernels on
torch tensors, see `gemmgen.ops`. Importing this package loads neither torch nor CUDA.
"""

from __future__ import annotations

from .config import Config
from .pipeline import Artifact, compile_to_source, lower
from .problem import Problem

__version__ = "0.1.0"
__all__ = ["Artifact", "Config", "Problem", "__version__", "compile_to_source", "lower"]
