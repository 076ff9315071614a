"""Layers of packed weights into a model, from files that `repack` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..nn import Experts4bit, Linear4bit
from ..nn.coded import facts_of
from ..quant import Checkpoint
from ..quant.stated import PLACE
from ..runtime.torch_tensors import torch
from .source import CONFIG, FACTS, OURS, object_in

VERSION = 1  # of what `packed` says in a config
BIAS, BIASES = "bias", ("gate_up_bias", "down_bias")


def load(model: Any, folder: str | Path, *, device: Any = None, strict: bool = True) -> Any:
    """Fill `model` with the tensors of `folder`, one that `repack` wrote: in place of each `torch.nn.Linear` whose weight is packed comes a `gemmgen.nn.Linear4bit`, in place of what holds gpt-oss's experts an `Experts4bit`.

    model: a torch.nn.Module by whose names the tensors go; it may be on the device meta, and its parameters and buffers become those of the files. device: where they go, each as soon as it is read; None: the CPU. strict: as of `load_state_dict`, whose
    result this returns. Raises ArgumentError for a folder that another version wrote or that is not packed, and for a layer that the model does not have; RuntimeError as `load_state_dict`.
    """
    place = Path(folder)
    check_packed(object_in(place / CONFIG))
    tensors = Checkpoint(place)
    for name in tensors:
        if name.endswith(FACTS):
            _replace(model, name.removesuffix(FACTS), tensors)
    return model.load_state_dict(OnDevice(tensors, device), strict=strict, assign=True)


def check_packed(config: Mapping[str, Any] | None) -> None:
    """Raise ArgumentError unless a config says that weights are packed, and by this version."""
    said = None if config is None else config.get(PLACE)
    method = said.get("quant_method") if isinstance(said, dict) else None
    if not isinstance(said, dict) or method != OURS:
        allowed = f"must be {OURS!r}, in {CONFIG} of a folder that gemmgen repack wrote"
        raise ArgumentError(f"{PLACE}.quant_method", method, allowed)
    check_record(said.get("packed"))


def check_record(packed: Any) -> None:
    """Raise ArgumentError unless `packed` of a `quantization_config` is what this version writes."""
    version = packed.get("version") if isinstance(packed, Mapping) else None
    if version != VERSION:
        raise ArgumentError(f"{PLACE}.packed.version", version, f"must be {VERSION}")


class OnDevice(Mapping[str, Any]):
    """Tensors of files, each moved to a device when it is read."""

    def __init__(self, tensors: Checkpoint, device: Any) -> None:
        self._tensors, self._device = tensors, device

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name].to(self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _replace(model: Any, layer: str, tensors: Checkpoint) -> None:
    text = facts_of(tensors[layer + FACTS])
    try:
        there = model.get_submodule(layer)
    except AttributeError as e:
        allowed = f"must be a module of the model, for weights of {text}"
        raise ArgumentError("layer", layer, allowed) from e
    if getattr(there, "facts", None) == text:
        return
    made = _empty(layer, text, tensors)
    if isinstance(made, Linear4bit) and not isinstance(there, torch().nn.Linear):
        allowed = f"must be a torch.nn.Linear, for weights of {text}"
        raise ArgumentError(layer, type(there).__name__, allowed)
    model.set_submodule(layer, made.train(there.training))


def _empty(layer: str, text: str, tensors: Checkpoint) -> Linear4bit | Experts4bit:
    """What has these facts, on the device meta."""
    weights, *words = text.split(" ")
    activations = None
    if words[:1] == ["by"]:
        _, activations, *words = words
    try:
        sides = [int(x) for x in words[0].split("x")]
        if len(words) == 1:
            n, k = sides
            biased = f"{layer}.{BIAS}" in tensors
            made: Any = Linear4bit(k, n, biased, "meta", weights=weights, activations=activations)
        else:
            order, activation = words[1:]
            biased = all(f"{layer}.{x}" in tensors for x in BIASES)
            of = {"weights": weights, "activations": activations, "bias": biased}
            made = Experts4bit(*sides, "meta", order=order, activation=activation, **of)  # type: ignore[call-arg, arg-type]
        if made.facts == text:
            return made  # type: ignore[no-any-return]
    except (ValueError, IndexError, TypeError):
        pass
    raise ArgumentError(layer + FACTS, text, "must be what a layer of gemmgen says of its weights")
