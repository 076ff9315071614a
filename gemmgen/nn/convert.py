"""Replacing the linear layers of a model, in place, and saying which and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from .frozen import torch_
from .kinds import IN_FP8, STEPS, Kind
from .linear import Linear

Where = Callable[[str, Any], bool]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What `convert_` did. converted: the names of the layers replaced. skipped: of the other linear layers,
    the reason by name."""

    converted: tuple[str, ...]
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.converted)} layers converted, {len(self.skipped)} left"]
        return "\n".join([*lines, *(f"  {name}: {why}" for name, why in self.skipped.items())])


def convert_(
    module: Any,
    to: str = IN_FP8,
    *,
    where: Where = lambda name, layer: True,
    master: bool = False,
) -> Conversion:
    """Replace each `torch.nn.Linear` in `module` by an `Fp8Linear` (to="fp8") or a `Linear` ("bf16").

    where: called with a layer's name and the layer; False leaves it as it is (an output head, a router). master: as of
    `Fp8Linear`. Left, with a reason, are layers whose features or dtype the kernels do not take, whose weight
    another layer has too, that are subclasses or have hooks: what these add would be lost. A layer that occurs
    twice is replaced twice by one. Raises ArgumentError for `to`, or if `module` is itself a linear layer.
    """
    if to not in STEPS:
        raise ArgumentError("to", to, f"must be one of {', '.join(STEPS)}")
    if master and to != IN_FP8:
        raise ArgumentError("master", master, f"is for to={IN_FP8!r}: others have one weight only")
    if isinstance(module, torch_.nn.Linear):
        allowed = "must hold linear layers; use Fp8Linear.of or Linear.of for one"
        raise ArgumentError("module", type(module).__name__, allowed)
    kind = Kind(weights=to, master=bool(master))
    uses = Counter(id(p) for m in module.modules() for p in m.parameters(recurse=False))
    converted, skipped = [], {}
    for name, layer in [*module.named_modules()]:
        if not isinstance(layer, torch_.nn.Linear) or isinstance(layer, Linear):
            continue
        why = _obstacle(name, layer, kind, where, uses)
        if why:
            skipped[name] = why
            continue
        _replace(module, layer, kind.of(layer))
        converted.append(name)
    return Conversion(converted=tuple(converted), skipped=skipped)


def _obstacle(name: str, layer: Any, kind: Kind, where: Where, uses: Counter[int]) -> str:
    """Why `layer` stays; '' if it does not."""
    why = kind.obstacle(layer)
    if not why and uses[id(layer.weight)] > 1:
        return "shares its weight with another layer"
    return why or ("" if where(name, layer) else "left out by `where`")


def _replace(module: Any, layer: Any, made: Any) -> None:
    """Wherever it occurs."""
    for parent in module.modules():
        for name, child in [*parent._modules.items()]:  # named_children() names each child once
            if child is layer:
                setattr(parent, name, made)
