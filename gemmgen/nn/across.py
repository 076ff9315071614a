"""What a layer's forward does with rows that ranks divide, instead of torch's collectives: as `gemmgen.nn.parallel` has said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..runtime.torch_tensors import torch
from ..torch_ops import group_linear, group_reduced
from ..torch_ops.dtensor import DISTRIBUTED, is_dtensor
from .frozen import own

Functions = tuple[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Across:
    """how: "gathered", by a layer whose out_features ranks divide; "scattered", by one whose in_features they divide; "reduced", by such a one whose y every rank
    has, where no gradients are asked for. dim: of x and y, the side whose parts the ranks have. ranks: of the group of that name. fuse: as of `gemmgen.torch_ops.all_gather_gemm`."""

    how: Literal["gathered", "scattered", "reduced"]
    group_name: str
    ranks: int
    dim: int
    fuse: bool | None = None

    def linear(self, x: Any, weight: Any, bias: Any, kind: str = "") -> Any:
        """kind: "" or "fp8_", as of `gemmgen.torch_ops.group_linear`."""
        if self.how == "reduced":
            run = getattr(group_reduced, f"{kind}reduced_linear")
            return run(x, own(weight), own(bias), self.group_name, fuse=self.fuse)
        run = getattr(group_linear, f"{kind}{self.how}_linear")
        given = own(weight), self._bias(bias), self.group_name, self.dim
        return run(x, *given, fuse=self.fuse)

    def frozen(self, x: Any, weight: tuple[Any, Any], bias: Any) -> Any:
        """weight: FP8 codes and their scales."""
        if self.how == "reduced":
            local = own(weight[0]), own(weight[1])
            return group_reduced.frozen_reduced(
                x, local, own(bias), self.group_name, fuse=self.fuse
            )
        run = getattr(group_linear, f"frozen_{self.how}")
        given = (*map(own, weight),), self._bias(bias), self.group_name, self.dim
        return run(x, *given, fuse=self.fuse)

    def takes(self, x: Any) -> bool:
        """Whether x, a rank's own tensor or a DTensor, lies as it must; torch's way takes it otherwise."""
        if self.how == "reduced":
            return self._takes_parts(x)
        last, at = x.dim() - 1, self.dim % x.dim()
        if at == last:
            return False
        if is_dtensor(x):
            (placed,) = x.placements
            side = at if self.how == "gathered" else last
            if not placed.is_shard() or placed.dim % x.dim() != side:
                return False
            return bool(x.shape[at] % self.ranks == 0)
        return bool(self.how == "gathered" or x.shape[at] % self.ranks == 0)

    def _takes_parts(self, x: Any) -> bool:
        """Of features, and where nobody asks for gradients."""
        if torch().is_grad_enabled():
            return False
        if not is_dtensor(x):
            return True
        (placed,) = x.placements
        return bool(placed.is_shard() and placed.dim % x.dim() == x.dim() - 1)

    def placement(self, y: Any) -> Any:
        """How the parts of a result lie."""
        if self.how == "reduced":
            return DISTRIBUTED.Replicate()
        side = y.dim() - 1 if self.how == "gathered" else self.dim % y.dim()
        return DISTRIBUTED.Shard(side)

    def _bias(self, bias: Any) -> Any:
        """This rank's; of one that each rank has whole, every rank's gradient is of its own rows."""
        if not is_dtensor(bias) or self.how == "gathered":
            return own(bias)
        return bias.to_local(grad_placements=[DISTRIBUTED.Partial()])
