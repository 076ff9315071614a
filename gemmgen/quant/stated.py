"""What a checkpoint's `quantization_config` says of its weights of 4 and 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..ir.packed import COLUMN, GROUPS

WHOLE = -1  # a `group_size`: all columns share a scale
WORDS = "pack-quantized"  # a `format` of compressed-tensors
OCTETS = (
    "int-quantized",
    "float-quantized",
    "naive-quantized",
)  # and those of 8 bits, a code a byte
PLACE = "quantization_config"


@dataclass(frozen=True, kw_only=True)
class Stated:
    """method: one of `METHODS`. group: of INT4, the columns that share a scale, 0 for all of a row; None: the format's, or one that tensors say. zeros: whether
    groups of INT4 have zeros of their own. reordered: whether inputs may be in another order, which `g_idx` says then (desc_act)."""

    method: str
    group: int | None = None
    zeros: bool = False
    reordered: bool = False


def stated(said: Any, place: str = PLACE) -> Stated:
    """What `said`, the object `quantization_config` of a checkpoint's config.json, says. place: what errors call it. Raises ArgumentError naming the field: one of another method,
    version, number of bits or group."""
    if not isinstance(said, Mapping):
        raise ArgumentError(place, type(said).__name__, "must be an object of JSON")
    method = said.get("quant_method")
    if not isinstance(method, str) or method not in TAKEN:
        raise ArgumentError(f"{place}.quant_method", method, f"must be one of {', '.join(TAKEN)}")
    return TAKEN[method](Fields(said=said, place=place))


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Of an object of JSON from outside. place: what errors call it."""

    said: Mapping[str, Any]
    place: str

    def one_of(self, name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
        """`value`, of the field `name`. Raises ArgumentError."""
        if value not in allowed:
            text = f"must be {' or '.join(map(repr, allowed))}"
            raise ArgumentError(f"{self.place}.{name}", value, text)
        return value

    def group(self) -> int:
        """Of 4 bits, the columns that share a scale."""
        self.one_of("bits", self.said.get("bits"), (4,))
        size: int = self.one_of("group_size", self.said.get("group_size"), (*GROUPS, WHOLE))
        return COLUMN if size == WHOLE else size


def _awq(fields: Fields) -> Stated:
    version = fields.said.get("version", fields.said.get("format"))
    fields.one_of("version", str(version).lower(), ("gemm",))
    fields.one_of("zero_point", fields.said.get("zero_point", True), (True,))
    return Stated(method="awq", group=fields.group(), zeros=True)


def _gptq(fields: Fields) -> Stated:
    said = fields.said
    stored = said.get("checkpoint_format") or said.get("format") or "gptq"
    method = fields.one_of("checkpoint_format", stored, ("gptq", "gptq_v2"))
    zeros = not said.get("sym", True)
    return Stated(
        method=method, group=fields.group(), zeros=zeros, reordered=bool(said.get("desc_act"))
    )


def _mxfp4(fields: Fields) -> Stated:
    return Stated(method="mxfp4")


def _modelopt(fields: Fields) -> Stated:
    fields.one_of("quant_algo", fields.said.get("quant_algo"), ("NVFP4",))
    return Stated(method="nvfp4")


def _compressed(fields: Fields) -> Stated:
    formats = ("nvfp4-pack-quantized", WORDS, *OCTETS)
    form = fields.one_of("format", fields.said.get("format"), formats)
    if form == formats[0]:
        return Stated(method="nvfp4_packed")
    groups, said = fields.said.get("config_groups"), _of_words if form == WORDS else _of_octets
    found = [said(x) for x in _groups(fields, groups)]
    if len({*found}) > 1:
        allowed = "must say the same of all weights"
        raise ArgumentError(f"{fields.place}.config_groups", list(groups or ()), allowed)
    return found[0]


def _groups(fields: Fields, groups: Any) -> Iterator[Fields]:
    """What is said of the weights of each of compressed-tensors' `config_groups`."""
    if not isinstance(groups, Mapping) or not groups:
        kind = type(groups).__name__
        raise ArgumentError(f"{fields.place}.config_groups", kind, "must be an object of groups")
    for name, group in groups.items():
        place = f"{fields.place}.config_groups.{name}.weights"
        said = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(said, Mapping):
            raise ArgumentError(place, type(said).__name__, "must be an object of JSON")
        yield Fields(said=said, place=place)


def _of_words(fields: Fields) -> Stated:
    said = fields.said
    fields.one_of("type", said.get("type"), ("int",))
    if fields.one_of("num_bits", said.get("num_bits"), (4, 8)) == 8:
        return _of_rows(fields, "channels_packed")
    by_row = fields.one_of("strategy", said.get("strategy"), ("group", "channel")) == "channel"
    size = WHOLE if by_row else said.get("group_size")
    fields.one_of("group_size", size, (*GROUPS, WHOLE))
    zeros = not fields.one_of("symmetric", said.get("symmetric", True), (True, False))
    return Stated(
        method="int4_packed",
        group=COLUMN if size == WHOLE else size,
        zeros=zeros,
        reordered=bool(said.get("actorder")),
    )


def _of_octets(fields: Fields) -> Stated:
    fields.one_of("num_bits", fields.said.get("num_bits"), (8,))
    fields.one_of("type", fields.said.get("type"), ("int", "float"))
    return _of_rows(fields, "channels")


def _of_rows(fields: Fields, method: str) -> Stated:
    """Of 8 bits: a scale for each row, or one for all of them, and no zeros."""
    fields.one_of("strategy", fields.said.get("strategy"), ("channel", "tensor"))
    fields.one_of("symmetric", fields.said.get("symmetric", True), (True,))
    fields.one_of("actorder", fields.said.get("actorder") or None, (None,))
    return Stated(method=method)


TAKEN: dict[str, Callable[[Fields], Stated]] = {
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
}
