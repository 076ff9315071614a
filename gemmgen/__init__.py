"""gemmgen: a small compiler that generates GEMM kernels for NVIDIA Hopper GPUs.

`Problem` says what to multiply (of `BF16`, `E4M3` and the other dtypes), `Config` how; `compile_to_source` lowers and emits. To run kernels on
torch tensors, see `gemmgen.ops`; `bind` makes a launch of one call, `prepare` compiles beforehand, `do_bench` times a call.
Importing this package loads nothing: each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench.timing import Samples, do_bench
    from .compiling import compile_to_source
    from .config import Config
    from .ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
    from .ops import Launch, as_tensor, bind, prepare
    from .pipeline import Artifact, lower
    from .problem import Problem

__version__ = "0.1.0"
IMPORTED = time_ns()  # since 1970: what runs are files as they were then, or changed later
DTYPES = ("BF16", "E4M3", "E5M2", "F16", "F32", "S32", "S8")
HOMES = {
    **dict.fromkeys(DTYPES, "ir.dtypes"),
    "Artifact": "pipeline",
    "Config": "config",
    "Launch": "ops",
    "Problem": "problem",
    "Samples": "bench.timing",
    "as_tensor": "ops",
    "bind": "ops",
    "compile_to_source": "compiling",
    "do_bench": "bench.timing",
    "lower": "pipeline",
    "prepare": "ops",
}
__all__ = [
    "BF16",
    "E4M3",
    "E5M2",
    "F16",
    "F32",
    "S8",
    "S32",
    "Artifact",
    "Config",
    "Launch",
    "Problem",
    "Samples",
    "__version__",
    "as_tensor",
    "bind",
    "compile_to_source",
    "do_bench",
    "lower",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{HOMES[name]}", __name__), name)
    globals()[name] = found  # found without this function from now on
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
