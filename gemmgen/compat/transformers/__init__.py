"""Transformers' `from_pretrained` with the layers of `gemmgen.nn`: `quantization_config=GemmgenConfig("fp8")`.

Importing this package imports transformers, which gemmgen does not depend on: RuntimeUnavailable, where it is not installed.
A program that loads what `save_pretrained` wrote calls `install()` before; `with_gemmgen` reads checkpoints of AWQ, GPTQ and FP8.
"""

from __future__ import annotations

from .checkpoints import with_gemmgen
from .config import GemmgenConfig, install
from .quantizer import GemmgenQuantizer

__all__ = ["GemmgenConfig", "GemmgenQuantizer", "install", "with_gemmgen"]
