"""Weights of 4 and 8 bits from checkpoints: AWQ, GPTQ, compressed-tensors, MXFP4 and NVFP4 tensors, and INT8 and FP8 with a scale for each channel, as Hugging Face names them, in one form.

`load` reads all layers of a checkpoint, `awq`, `gptq`, `mxfp4`, `nvfp4`, `nvfp4_packed`, `int4_packed`, `channels` and `channels_packed` one; `pack` lays them out for kernels, `joined` and `stacked` make one of several, and `alternating` puts gate's rows and up's in turn. What cannot be taken is an ArgumentError that names the tensor.
"""

from __future__ import annotations

from .awq import awq
from .channels import channels, channels_packed
from .checkpoint import Checkpoint
from .gptq import gptq
from .loading import METHODS, load
from .microscaled import mxfp4
from .nvfp4 import nvfp4, nvfp4_packed
from .packed_words import int4_packed
from .packing import Packed, pack
from .quantised import Quantised, alternating, of
from .stacking import joined, stacked

__all__ = [
    "METHODS",
    "Checkpoint",
    "Packed",
    "Quantised",
    "alternating",
    "awq",
    "channels",
    "channels_packed",
    "gptq",
    "int4_packed",
    "joined",
    "load",
    "mxfp4",
    "nvfp4",
    "nvfp4_packed",
    "of",
    "pack",
    "stacked",
]
