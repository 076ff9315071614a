"""Checkpoints of 4 and 8 bits packed once: files that a model of `gemmgen.nn`'s layers loads as they are.

`repack` reads what `gemmgen.quant` reads, one matrix at a time, and writes files of the safetensors format whose names are those of the layers' `state_dict`; `load` fills a model with them.
"""

from __future__ import annotations

from .loading import load
from .repack import Repacked, repack

__all__ = ["Repacked", "load", "repack"]
