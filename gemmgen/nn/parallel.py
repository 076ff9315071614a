"""Styles of `torch.distributed.tensor.parallel.parallelize_module` that take `Fp8Linear` too, and by which layers of `gemmgen.nn` whose tokens are divided are
computed by the operators of the process group (docs/adr/0054-collective-operators.md). Needs torch.distributed. `ExpertParallel` is for `GroupedExperts`, `Experts4bit` and `Experts`.

Of all else the others are torch's own styles, which may be used in their place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor import parallel as styles

from ..errors import ArgumentError
from ..ops import SCALE_BLOCK
from .across import Across
from .expert_ranks import ExpertRanks
from .experts import GroupedExperts
from .experts4bit import Experts4bit
from .frozen import FP8, torch_
from .linear import Fp8Linear, Linear
from .mixture import Experts


class ColwiseParallel(styles.ColwiseParallel):  # type: ignore[misc]
    """`torch.distributed.tensor.parallel.ColwiseParallel`, which divides out_features. Of an `Fp8Linear` they are a multiple
    of 128 for every rank: its weight, FP8 or a master, has a scale for each 128 x 128. Raises ArgumentError.

    fuse: where input_layouts divide tokens, Shard(0) or Shard(1), they are gathered by `all_gather_gemm`: None: in one launch with the GEMM
    where that pays; True: wherever it can be; False: by torch, as of any DTensor.
    """

    def __init__(self, *, fuse: bool | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.fuse = fuse

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        if not isinstance(module, Linear | Fp8Linear):
            return super()._apply(module, device_mesh)
        _check(module, "out_features", device_mesh)
        _let_meet(self, module, "out_features", device_mesh)
        return _parallel(self, module, device_mesh, Replicate(), Shard(0), Shard(0))


class RowwiseParallel(styles.RowwiseParallel):  # type: ignore[misc]
    """`torch.distributed.tensor.parallel.RowwiseParallel`, which divides in_features. Of an `Fp8Linear` they are a multiple of
    128 for every rank. Raises ArgumentError.

    fuse: where output_layouts divide tokens, Shard(0) or Shard(1), and input_layouts are as they are by default, sums are scattered by `gemm_reduce_scatter`: as of `ColwiseParallel`. Sums
    travel in x's dtype, as torch's do. They are scattered by torch where tokens are no multiple of the ranks. Where output_layouts are as they are by default, so that every rank has the sum,
    and no gradients are asked for (`torch.no_grad`), it is `gemm_all_reduce` that adds them up: of a decode step.
    """

    def __init__(self, *, fuse: bool | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.fuse = fuse

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        if not isinstance(module, Linear | Fp8Linear):
            return super()._apply(module, device_mesh)
        _check(module, "in_features", device_mesh)
        _let_meet(self, module, "in_features", device_mesh)
        return _parallel(self, module, device_mesh, Shard(-1), Shard(1), Replicate())


class ExpertParallel(styles.ParallelStyle):  # type: ignore[misc]
    """Divides the experts of a `GroupedExperts`, an `Experts4bit` or `Experts8bit`, or of `Experts`, which train, among the ranks, in place: rank r of W keeps the experts from r * E / W on. They are a multiple of the ranks. Before
    it is called, every rank has all of them; those of rank 0 are kept, or each rank's own, as `src_data_rank` of `parallelize_module` says.

    `forward` then takes each rank's own tokens, no DTensors: x [tokens, hidden], chosen and weights [tokens, top], with the numbers of all experts; one that is none, as -1, adds nothing. All ranks call it together, with as many
    tokens and as many choices of each: other numbers are not noticed. Results are those of the experts on one rank (docs/adr/0059-experts-over-ranks.md). Raises ArgumentError.
    """

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        ranks = device_mesh.size()
        _check_experts(module, ranks)
        if ranks == 1:
            return module
        for known in (module._buffers, module._parameters):
            for name, x in known.items():
                if x is not None:
                    known[name] = _divided(x, device_mesh, Shard(0), self.src_data_rank)
        module.across = ExpertRanks(
            group_name=device_mesh.get_group().group_name,
            ranks=ranks,
            rank=device_mesh.get_local_rank(),
            held=module.experts // ranks,
        )
        return module


def _check_experts(module: Any, ranks: int) -> None:
    if not isinstance(module, GroupedExperts | Experts4bit | Experts):
        allowed = "must be a gemmgen.nn.GroupedExperts, Experts4bit, Experts8bit or Experts"
        raise ArgumentError("module", type(module).__name__, allowed)
    if any(isinstance(x, DTensor) for x in (*module.buffers(), *module.parameters())):
        raise ArgumentError("module", "divided", "must have all its experts on every rank")
    if module.experts % ranks:
        raise ArgumentError("experts", module.experts, f"must be a multiple of {ranks}, the ranks")


def _let_meet(style: Any, module: Any, side: str, mesh: Any) -> None:
    """Say so to `module` if tokens are divided, or sums are all ranks', and all ranks have as many features."""
    how: Literal["gathered", "scattered", "reduced"] = "gathered"
    (tokens,) = style.input_layouts
    taken = isinstance(tokens, Shard)
    if side == "in_features":
        (tokens,) = style.output_layouts
        how = "scattered" if isinstance(tokens, Shard) else "reduced"
        taken = style.input_layouts == (Shard(-1),) and isinstance(tokens, Shard | Replicate)
    if style.fuse is False or not taken or getattr(module, side) % mesh.size():
        return
    module.across = Across(
        how=how,
        group_name=mesh.get_group().group_name,
        ranks=mesh.size(),
        dim=tokens.dim if isinstance(tokens, Shard) else 0,
        fuse=style.fuse,
    )


def _check(module: Any, name: str, mesh: Any) -> None:
    step, features = SCALE_BLOCK * mesh.size(), getattr(module, name)
    if isinstance(module, Fp8Linear) and features % step:
        allowed = f"must be a multiple of {step}: {SCALE_BLOCK} for each of {mesh.size()} ranks"
        raise ArgumentError(name, features, allowed)


def _parallel(style: Any, module: Any, mesh: Any, x: Any, weight: Any, bias: Any) -> Any:
    """`module` with its tensors divided and its input made to lie as `x` says."""
    placed = {"weight": weight, "weight_scale": weight, "bias": bias}

    def divide(name: str, inner: Any, on: Any) -> None:
        for known in (inner._parameters, inner._buffers):
            for name, tensor in known.items():
                if tensor is not None:
                    known[name] = _divided(tensor, on, placed[name], style.src_data_rank)

    return distribute_module(
        module, mesh, divide, partial(_taken, style, x), partial(_given, style)
    )


def _divided(tensor: Any, mesh: Any, placement: Any, source: int | None) -> Any:
    codes = tensor.dtype == FP8  # which not every backend moves
    moved = distribute_tensor(
        tensor.view(torch_.uint8) if codes else tensor, mesh, [placement], src_data_rank=source
    )
    if codes:
        local = moved.to_local().view(FP8)
        sides = {"shape": tensor.shape, "stride": tensor.stride()}
        return DTensor.from_local(local, mesh, [placement], run_check=False, **sides)
    if isinstance(tensor, torch_.nn.Parameter):
        return torch_.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved


def _taken(style: Any, wanted: Any, module: Any, inputs: Any, mesh: Any) -> Any:
    x = inputs[0]
    if module.across is not None and module.across.takes(x):
        return x.to_local() if isinstance(x, DTensor) else x
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, style.input_layouts, run_check=False)
    return x.redistribute(placements=(wanted,), async_op=True)


def _given(style: Any, module: Any, y: Any, mesh: Any) -> Any:
    if not isinstance(y, DTensor):
        y = DTensor.from_local(y, mesh, [module.across.placement(y)], run_check=False)
    y = y.redistribute(placements=style.output_layouts, async_op=True)
    return y.to_local() if style.use_local_output else y
