"""What a layer of experts holds on a GPU while it runs, said before it does: its operators are gone through, and none is computed."""

from __future__ import annotations

from typing import Any

from torch._subclasses import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ..ops.mixture import results
from ..ops.mixture_checks import check, check_places
from ..ops.mixture_weights import Experts
from ..runtime.torch_tensors import torch
from . import of_experts

torch_ = torch()
ALLOCATED = 512  # bytes: what torch rounds a tensor up to


class _Held(TorchDispatchMode):  # type: ignore[misc]
    """most: bytes of storages made inside that were there at once, rounded up as torch's allocator does."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[Any, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_id_of(x) for x in _tensors((args, kwargs or {}))}
        found = op(*args, **kwargs or {})
        for x in _tensors(found):
            if _id_of(x) not in given:
                storage = x.untyped_storage()
                size = -(-storage.nbytes() // ALLOCATED) * ALLOCATED
                self.made[_id_of(x)] = (StorageWeakRef(storage), size)
        self.made = {n: kept for n, kept in self.made.items() if not kept[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.made.values()))
        return found


def _id_of(x: Any) -> int:
    """Of its storage."""
    return int(x.untyped_storage()._cdata)


def _tensors(x: Any) -> list[Any]:
    leaves = torch_.utils._pytree.tree_leaves(x)
    return [leaf for leaf in leaves if isinstance(leaf, torch_.Tensor)]


def moe_bytes(
    x: Any,
    w1: Any,
    w2: Any,
    chosen: Any,
    weights: Any,
    *,
    scale_w1: Any = None,
    scale_w2: Any = None,
    bias_w1: Any = None,
    bias_w2: Any = None,
    add: Any = None,
    order: str = "alternating",
    epilogue: str = "swiglu",
    packed: str | None = None,
    activations: str | None = None,
    experts: int | None = None,
    first: int = 0,
) -> int:
    """Bytes that `gemmgen.ops.moe` of such arguments holds at once at most, besides them and its result: rows for any choice, in torch's
    allocator, each tensor rounded up to 512. What a GEMM whose K several CTAs divide hands over in global memory is beside that.

    Arguments as of `moe`, of which only shapes, strides and dtypes are read: also on the meta device, of tensors that are not there yet. Needs no GPU. Raises ArgumentError as `moe`, but for addresses and gradients.
    """
    w = Experts(
        w1=w1,
        w2=w2,
        scale_w1=scale_w1,
        scale_w2=scale_w2,
        bias_w1=bias_w1,
        bias_w2=bias_w2,
        order=order,
        epilogue=epilogue,
        packed=packed,
        activations=activations,
    )
    experts = check(w, x, chosen, weights, add, experts, first)
    check_places(w, addresses=False)
    with FakeTensorMode() as mode:
        as_fakes = {name: _fake(mode, t) for name, t in vars(w).items()}
        called = Experts(**as_fakes), _fake(mode, x), _fake(mode, chosen)
        with _Held() as held:
            results(of_experts.calls(), *called, experts=experts, first=first)
    most: int = held.most
    return most


def _fake(mode: Any, x: Any) -> Any:
    return mode.from_tensor(x) if isinstance(x, torch_.Tensor) else x
