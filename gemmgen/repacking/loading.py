"""Layers of packed weights into a model, from files that `repack` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import BF16, E4M3
from ..nn.coded import facts_of
from ..quant import Checkpoint
from ..quant.checkpoint import FLOATS
from ..quant.stated import PLACE
from ..runtime.torch_tensors import torch_dtype
from .layers import ACTIVATIONS
from .replacing import replacement
from .source import CONFIG, FACTS, OURS, object_in

VERSION = 1  # of what `packed` says in a config


def load(
    model: Any,
    folder: str | Path,
    *,
    device: Any = None,
    strict: bool = True,
    cast: bool = True,
) -> Any:
    """Fill `model` with the tensors of `folder`, one that `repack` wrote: in place of each `torch.nn.Linear` whose weight is packed comes a `gemmgen.nn.Linear4bit` or `Linear8bit`, in place of what holds gpt-oss's experts an `Experts4bit`.

    model: a torch.nn.Module by whose names the tensors go; it may be on the device meta, and its parameters and buffers become those of the files. A layer must have the sides that the files say, and has a bias if the one before it had. device: where tensors go, each as soon as it is read; None: the
    CPU. strict: as of `load_state_dict`, whose result this returns: a bias that only the model or only the files have is an error. cast: whether floating tensors of layers that are not packed, such as embeddings and norms, become the dtype of activations that the folder is for (bfloat16 where these are E4M3), as packed
    layers take no other; False: they keep the files' dtype, and the program sees to what layers get. Raises ArgumentError for a folder that another version wrote or that is not packed, for a layer that the model does not have, and for one of another type or other sides, before the model is changed; RuntimeError as
    `load_state_dict`.
    """
    place = Path(folder)
    config = object_in(place / CONFIG)
    check_packed(config)
    tensors = Checkpoint(place)
    layers = [name.removesuffix(FACTS) for name in tensors if name.endswith(FACTS)]
    said = _activations(config)
    made = [(x, replacement(model, x, facts_of(tensors[x + FACTS]), tensors, said)) for x in layers]
    to = ACTIVATIONS[said]
    dtype = torch_dtype(BF16 if to == E4M3 else to) if cast else None
    for name, layer in made:
        if layer is not None:
            model.set_submodule(name, layer)
    read = Moved(tensors, device, dtype, frozenset(layers))
    return model.load_state_dict(read, strict=strict, assign=True)


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


def _activations(config: Any) -> str:
    """What packed weights are multiplied with, by name."""
    said = config[PLACE]["packed"].get("activations")
    if not isinstance(said, str) or said not in ACTIVATIONS:
        allowed = f"must be one of {', '.join(ACTIVATIONS)}"
        raise ArgumentError(f"{PLACE}.packed.activations", said, allowed)
    return said


class Moved(Mapping[str, Any]):
    """Tensors of files, each moved to a device when it is read; floating ones become `dtype`, if there is one, but for those of `layers`, which are packed."""

    def __init__(
        self, tensors: Checkpoint, device: Any, dtype: Any, layers: frozenset[str]
    ) -> None:
        self._tensors, self._device, self._dtype, self._layers = tensors, device, dtype, layers

    def __getitem__(self, name: str) -> Any:
        found = self._tensors[name]
        kept = name.rpartition(".")[0] in self._layers
        floating = self._tensors.places[name].dtype in FLOATS
        return found.to(self._device, None if kept or not floating else self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
