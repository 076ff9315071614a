"""Modules of torch on gemmgen's kernels. Importing this package imports torch and registers `gemmgen.torch_ops`.

`Linear` and `Fp8Linear` take the place of `torch.nn.Linear`, `GroupedExperts` of the experts of a mixture.
`convert_` replaces the linear layers of a model. All of them load an ordinary `state_dict`, and quantise what they load.
`gemmgen.nn.parallel` has styles that divide them among ranks.
"""

from __future__ import annotations

from .convert import Conversion, convert_
from .experts import GroupedExperts
from .linear import Fp8Linear, Linear

__all__ = ["Conversion", "Fp8Linear", "GroupedExperts", "Linear", "convert_"]
