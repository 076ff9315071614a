"""Modules of torch on gemmgen's kernels. Importing this package imports torch and registers `gemmgen.torch_ops`.

`Linear` and `Fp8Linear` take the place of `torch.nn.Linear`, `GroupedExperts` of the experts of a mixture; `MoE` and its `Experts` train.
`convert_` replaces the linear layers of a model. All of them load an ordinary `state_dict`, and quantise what they load.
`Linear4bit` and `Experts4bit` have weights of 4 bits, `Linear8bit` and `Experts8bit` of 8, of checkpoints that `gemmgen.quant` reads.
`gemmgen.nn.parallel` has styles that divide them among ranks.
"""

from __future__ import annotations

from .convert import Conversion, convert_
from .experts import GroupedExperts
from .experts4bit import Experts4bit
from .experts8bit import Experts8bit
from .linear import Fp8Linear, Linear
from .linear4bit import Linear4bit
from .linear8bit import Linear8bit
from .mixture import Experts, MoE

__all__ = [
    "Conversion",
    "Experts",
    "Experts4bit",
    "Experts8bit",
    "Fp8Linear",
    "GroupedExperts",
    "Linear",
    "Linear4bit",
    "Linear8bit",
    "MoE",
    "convert_",
]
