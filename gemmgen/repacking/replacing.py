"""Layers of packed weights that take the place of a model's: what they must have in common."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ..errors import ArgumentError
from ..ir.packed import BY_BLOCK
from ..nn import Experts4bit, Linear4bit, Linear8bit
from ..nn.linear8bit import linear_of
from ..runtime.torch_tensors import torch

BIASES = ("gate_up_bias", "down_bias")
# What a module of experts may call each side: Transformers' names, and the layer's own.
SIDES = {
    "experts": ("num_experts", "experts"),
    "hidden": ("hidden_size", "hidden"),
    "intermediate": ("intermediate_size", "intermediate", "expert_dim"),
}
# And a bias, which is None where it has none.
BIASED = ("gate_up_proj_bias", "gate_up_bias")


def replacement(
    model: Any, layer: str, facts: str, tensors: Container[str], activations: str
) -> Any:
    """What comes in place of the model's module `layer`, on the device meta, for blocks of these facts; None: it has them already. tensors: names that the files have. activations: what
    rows become for blocks that are packed for E4M3.
    Raises ArgumentError for a module that is missing, or of another type or other sides."""
    try:
        there = model.get_submodule(layer)
    except AttributeError as e:
        allowed = f"must be a module of the model, for weights of {facts}"
        raise ArgumentError("layer", layer, allowed) from e
    made = _empty(layer, facts, activations)
    linear = isinstance(made, Linear4bit)
    if (type(there) in (torch().nn.Linear, Linear4bit, Linear8bit)) != linear:
        allowed = f"must be {'a torch.nn.Linear' if linear else 'experts'}, for weights of {facts}"
        raise ArgumentError(layer, type(there).__name__, allowed)
    _check_sides(layer, there, made, facts)
    if getattr(there, "facts", None) == facts:
        return None
    made = _of(facts, _is_biased(layer, there, linear, tensors), activations)
    if linear and there.bias is not None:
        made.bias = there.bias.detach().float()
    return made.train(there.training)


def _check_sides(layer: str, there: Any, made: Linear4bit | Experts4bit, facts: str) -> None:
    linear = ("in_features", "out_features")
    sides = {x: (x,) for x in linear} if isinstance(made, Linear4bit) else SIDES
    for name, called in sides.items():
        wanted = getattr(made, name)
        for found in (getattr(there, x, wanted) for x in called):
            if isinstance(found, int) and found != wanted:
                allowed = f"must be {wanted}, as of weights of {facts}"
                raise ArgumentError(f"{layer} {name}", found, allowed)


def _is_biased(layer: str, there: Any, linear: bool, tensors: Container[str]) -> bool:
    """As the module was; as the files have it of experts that do not say it."""
    if linear:
        return there.bias is not None
    said = [getattr(there, x) for x in BIASED if hasattr(there, x)]
    if said:
        return said[0] is not None
    return any(f"{layer}.{x}" in tensors for x in BIASES)


def _empty(layer: str, facts: str, activations: str) -> Linear4bit | Experts4bit:
    """Without a bias. Raises ArgumentError for facts of no layer."""
    try:
        made = _of(facts, False, activations)
        if made.facts == facts:
            return made
    except (ValueError, IndexError, TypeError):
        pass
    allowed = "must be what a layer of gemmgen says of its weights"
    raise ArgumentError(f"{layer}._extra_state", facts, allowed)


def _of(facts: str, biased: bool, activations: str) -> Linear4bit | Experts4bit:
    """What has these facts, on the device meta. Raises ValueError, IndexError or TypeError for others."""
    weights, *words = facts.split(" ")
    by = None
    if words[:1] == ["by"]:
        _, by, *words = words
        by = activations if activations == BY_BLOCK else by
    sides = [int(x) for x in words[0].split("x")]
    of: Any = {"weights": weights, "activations": by, "bias": biased, "device": "meta"}
    if len(words) == 1:
        n, k = sides
        return linear_of(weights)(k, n, **of)
    order, activation = words[1:]
    return Experts4bit(*sides, order=order, activation=activation, **of)
