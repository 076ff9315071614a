"""What modules keep in FP8: codes and scales that no change of a model's dtype may touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops import SCALE_BLOCK
from ..runtime.torch_tensors import torch
from ..torch_ops import register
from ..torch_ops.dtensor import is_dtensor

register()
torch_ = torch()
gemmgen = torch_.ops.gemmgen

SCALE = "_scale"  # follows the name of a weight; what else a checkpoint may call it:
ALIASES = ("_scale_inv",)
FP8 = torch_.float8_e4m3fn
WIDE = (torch_.bfloat16, torch_.float16, torch_.float32)


class Kept(torch_.nn.Module):  # type: ignore[misc, name-defined]
    """A module with buffers that `model.half()` and `model.to(dtype)` would round as they do weights; here they are only moved."""

    @property
    def kept(self) -> tuple[Any, ...]:
        """The buffers that no change of dtype may touch."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        kept = {id(x) for x in self.kept}

        def moved(x: Any) -> Any:
            """As bytes, which `fn` has no reason to round."""
            return fn(x.view(torch_.uint8)).view(x.dtype) if id(x) in kept else fn(x)

        return super()._apply(moved, recurse)

    def prepared(self, prefix: str, state: dict[str, Any]) -> list[str]:
        """`state` as the buffers take it, in place, or what is wrong with it."""
        raise NotImplementedError

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        state = dict(state_dict)  # the caller's stays as it is; other modules read it too
        wrong = self.prepared(prefix, state)
        if wrong:
            error_msgs += wrong  # and nothing of it is taken
            return
        super()._load_from_state_dict(
            state, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class Frozen(Kept):
    """A module with FP8 buffers, each with its scales behind it."""

    def freeze(self, name: str, *shape: int, device: Any) -> None:
        """Make the buffers `name`, float8_e4m3fn [..., N, K], and `name`_scale, float32 [..., ceil(N/128),
        ceil(K/128)]; zeros."""
        self.register_buffer(name, torch_.zeros(shape, dtype=FP8, device=device))
        scales = torch_.ones(scale_shape(shape), dtype=torch_.float32, device=device)
        self.register_buffer(name + SCALE, scales)

    @property
    def frozen(self) -> tuple[str, ...]:
        """The names of the FP8 buffers."""
        return tuple(n.removesuffix(SCALE) for n in self._buffers if n.endswith(SCALE))

    def put(self, name: str, weight: Any) -> None:
        """Quantise `weight` [..., N, K], bfloat16, float16 or float32, into the buffers of `name`, where they are. Of buffers that
        ranks divide, it is this rank's part."""
        made = gemmgen.quantise_blocks(weight.detach())
        for to, x in zip(self.frozen_weight(name), made, strict=True):
            own(to).copy_(own(x))

    def frozen_weight(self, name: str) -> tuple[Any, Any]:
        return getattr(self, name), getattr(self, name + SCALE)

    @property
    def kept(self) -> tuple[Any, ...]:
        return tuple(x for name in self.frozen for x in self.frozen_weight(name))

    def prepared(self, prefix: str, state: dict[str, Any]) -> list[str]:
        return [x for n in self.frozen for x in self._prepared(n, prefix + n, state)]

    def _prepared(self, name: str, key: str, state: dict[str, Any]) -> list[str]:
        """`state` with the weight `key` in FP8 and with its scales, or what is wrong with it."""
        weight = state.get(key)
        if weight is None:
            return []
        rename_scales(key, state)
        expected = tuple(getattr(self, name).shape)
        if tuple(weight.shape) != expected:
            return []  # torch says so
        if weight.dtype == FP8 and key + SCALE not in state:
            return [f"{key}: is {FP8} and has no {key}{SCALE}"]
        if weight.dtype in WIDE:
            state[key], state[key + SCALE] = gemmgen.quantise_blocks(weight.detach())
        elif weight.dtype != FP8:
            allowed = " or ".join(map(str, (*WIDE, FP8)))
            return [f"{key}: dtype is {weight.dtype}, must be {allowed}"]
        return []


def rename_scales(key: str, state: dict[str, Any]) -> None:
    """In `state`, in place, those of the weight `key`, as modules here call them."""
    for alias in ALIASES:
        if key + alias in state:
            state[key + SCALE] = state.pop(key + alias)


def scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    *lead, n, k = shape
    return (*lead, -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))


def own(x: Any) -> Any:
    """This rank's part of a DTensor; anything else as it is."""
    return x.to_local() if is_dtensor(x) else x
