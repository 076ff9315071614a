"""gemmgen: a small compiler that generates GEMM kernels for NVIDIA Hopper GPUs.

`Problem` says what to multiply, `Config` how; `compile_to_source` lowers and emits. To run kernels on
torch tensors, see `gemmgen.ops`; to compile them beforehand, `prepare`. Importing this package loads neither torch nor CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import Config
from .pipeline import Artifact, compile_to_source, lower
from .problem import Problem

if TYPE_CHECKING:
    from .ops import prepare

__version__ = "0.1.0"
__all__ = ["Artifact", "Config", "Problem", "__version__", "compile_to_source", "lower", "prepare"]


def __getattr__(name: str) -> Any:
    """`prepare`, imported when it is first used: it stands on the runtime."""
    if name != "prepare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .ops import prepare

    return prepare
