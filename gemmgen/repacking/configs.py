"""What config.json says that is not of one tensor: the model's dtype, and how weights are quantised, also in the configs within it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..quant.stated import PLACE

DTYPE = ("dtype", "torch_dtype")
INNER, TEXT = "_config", "text_config"  # how names of configs within one end; the decoder's


def inner(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Configs within one by their places, a decoder's first."""
    for name in sorted(filter(_is_inner, config), key=lambda x: x != TEXT):
        if isinstance(config[name], dict):
            yield f"{above}{name}", config[name]
            yield from inner(config[name], f"{above}{name}.")


def dtype_of(config: Mapping[str, Any]) -> str:
    """The model's, of the outermost config that says one; "" for none."""
    for one in (config, *(x for _, x in inner(config))):
        for name in DTYPE:
            if isinstance(one.get(name), str):
                return str(one[name]).removeprefix("torch.")
    return ""


def quantised(config: Mapping[str, Any]) -> tuple[str, Any]:
    """The one object that says how weights are quantised, and its place; None where nothing does. Raises ArgumentError for two that differ."""
    place, said = PLACE, config.get(PLACE)
    for name, one in inner(config):
        found = one.get(PLACE)
        if found is None:
            continue
        if said is not None and found != said:
            raise ArgumentError(f"{name}.{PLACE}", found, f"must be what {place} says")
        if said is None:
            place, said = f"{name}.{PLACE}", found
    return place, said


def rewritten(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A copy with that dtype wherever one is said, and without `quantization_config`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name in DTYPE:
            found[name] = dtype
        elif _is_inner(name) and isinstance(value, dict):
            found[name] = rewritten(value, dtype)
        elif name != PLACE:
            found[name] = value
    return found


def left_out(layers: Sequence[str], packed: Sequence[str]) -> list[str]:
    """`layers` as `modules_to_not_convert` names them, by each of which Transformers finds layers that begin or end so, too: the whole name, anchored, where one of `packed` does."""
    text = "".join(f"{x}\n" for x in packed)
    found = []
    for name in dict.fromkeys(layers):
        pattern = re.escape(name)
        begins = re.search("^" + pattern.replace(r"\.", "."), text, re.MULTILINE)
        found.append(f"^{pattern}$" if begins or f"{name}\n" in text else name)
    return found


def _is_inner(name: str) -> bool:
    return name.endswith(INNER) and name != PLACE
