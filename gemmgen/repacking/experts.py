"""gpt-oss's experts by what `gemmgen.nn.Experts4bit` holds of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .. import quant
from ..errors import ArgumentError
from ..formats import MXFP4
from ..nn import Experts4bit
from ..nn.coded import EXTRA, packed_of
from ..quant.checkpoint import FLOATS, Place
from .layers import Wanted, naming, there
from .pieces import Copy, Made, Packing, copied, of_tensor
from .source import reading

MATRICES = ("gate_up", "down")  # as layers call them; `_proj` follows in checkpoints
STORED = ("blocks", "scales")
MODEL, ACTIVATION, LIMIT = "gpt_oss", "swiglu_clamped", 7.0  # the limit is the activation's
SIDES = {"gate_up": "[experts, 2 * intermediate, hidden / 32, 16]", "down": "[experts, hidden, intermediate / 32, 16]"}  # fmt: skip


def check_model(config: Mapping[str, Any] | None) -> None:
    """Raise ArgumentError for a model whose experts have another activation, or other rows."""
    if config is None:
        return
    if config.get("model_type") != MODEL:
        allowed = f"must be {MODEL!r}: of mxfp4, gpt-oss's experts are packed"
        raise ArgumentError("model_type", config.get("model_type"), allowed)
    if config.get("swiglu_limit", LIMIT) != LIMIT:
        raise ArgumentError("swiglu_limit", config["swiglu_limit"], f"must be {LIMIT}")


def of_matrices(matrices: list[str]) -> list[str]:
    """The experts whose matrices these are. Raises ArgumentError for a matrix of others."""
    found: dict[str, None] = {}
    for matrix in matrices:
        layer, _, name = matrix.rpartition(".")
        if name.removesuffix("_proj") not in MATRICES or not name.endswith("_proj"):
            allowed = "must be *.gate_up_proj_blocks or *.down_proj_blocks, as of gpt-oss's experts"
            raise ArgumentError("source", f"{matrix}_blocks", allowed)
        found[layer] = None
    return [*found]


def experts(
    tensors: quant.Checkpoint, layer: str, wanted: Wanted
) -> tuple[list[Packing | Copy], set[str]]:
    """The experts of a layer: two matrices, and biases if they have them; and the tensors that are not copied then. Raises ArgumentError."""
    places = tensors.places
    stored = {m: [f"{layer}.{m}_proj_{x}" for x in STORED] for m in MATRICES}
    count, hidden, intermediate = _sides(places, stored)
    with naming(layer):
        empty = Experts4bit(
            count,
            hidden,
            intermediate,
            "meta",
            weights=wanted.packed_as(hidden),
            activation=ACTIVATION,
            activations=wanted.activations,
        )
    found: list[Packing | Copy] = [
        _matrix(tensors, layer, m, empty, wanted, stored[m]) for m in MATRICES
    ]
    biases = {m: f"{layer}.{m}_proj_bias" for m in MATRICES}
    if any(name in places for name in biases.values()):
        rows = {"gate_up": (count, 2 * intermediate), "down": (count, hidden)}
        found += [_bias(places, f"{layer}.{m}_bias", name, rows[m]) for m, name in biases.items()]
    return found, {*biases.values(), *(name for x in stored.values() for name in x)}


def _sides(places: Mapping[str, Place], stored: Mapping[str, list[str]]) -> tuple[int, int, int]:
    """experts, hidden, intermediate"""
    shapes = {}
    for m, names in stored.items():
        shape, _ = (there(places, name).shape for name in names)
        odd = m == MATRICES[0] and len(shape) > 1 and shape[1] % 2
        if len(shape) != 4 or 0 in shape or odd:
            raise ArgumentError(f"{names[0]} shape", shape, f"must be {SIDES[m]}")
        shapes[m] = shape
    count, both, groups = shapes["gate_up"][:3]
    hidden = groups * MXFP4.group
    across = shapes["down"]
    wanted = (count, hidden, both // 2)
    if (*across[:2], across[2] * MXFP4.group) != wanted:
        allowed = f"must be {SIDES['down']} of {list(wanted)}, as of gate_up"
        raise ArgumentError(f"{stored['down'][0]} shape", across, allowed)
    return wanted


def _bias(places: Mapping[str, Place], held: str, name: str, shape: tuple[int, int]) -> Copy:
    """The tensor `name`, by the name of the layer's."""
    place = there(places, name)
    if place.shape != shape:
        raise ArgumentError(f"{name} shape", place.shape, f"must be {list(shape)}")
    if place.dtype not in FLOATS:
        raise ArgumentError(f"{name} dtype", place.dtype, f"must be {', '.join(FLOATS)}")
    return copied(held, place)


def _matrix(
    tensors: quant.Checkpoint,
    layer: str,
    matrix: str,
    empty: Experts4bit,
    wanted: Wanted,
    stored: list[str],
) -> Packing:
    """Facts, which are of both, are written with the first."""
    state = empty.state_dict()
    facts = state.pop(EXTRA)
    held = {name: x for name, x in state.items() if name.startswith(matrix)}
    if matrix == MATRICES[0]:
        held[EXTRA] = facts
    return Packing(
        holds=tuple(of_tensor(f"{layer}.{name}", x) for name, x in held.items()),
        size=sum(tensors.places[name].size for name in stored),
        make=partial(_made, tensors, layer, matrix, held, wanted),
    )


def _made(
    tensors: quant.Checkpoint,
    layer: str,
    matrix: str,
    held: Mapping[str, Any],
    wanted: Wanted,
    said: Callable[[int, int], object],
) -> Made:
    name = f"{layer}.{matrix}_proj"
    with reading(tensors.places[f"{name}_{STORED[0]}"].path):
        found = quant.mxfp4(tensors, name)
    with naming(name):
        packed = packed_of("weights", found, wanted.dtype, progress=said)
    made = {matrix: packed.blocks, f"{matrix}_factors": packed.factors}
    return {f"{layer}.{name}": made.get(name, x) for name, x in held.items()}
