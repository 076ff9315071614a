"""Layers of a checkpoint by what `gemmgen.nn` holds of them: which tensors are read for each, and which are written."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import formats, quant
from ..errors import ArgumentError
from ..formats import FP8_ROWS, INT8_ROWS, MXFP4, NVFP4, Format
from ..formats.format import alike
from ..ir.codings import INT4
from ..ir.dtypes import BF16, DTYPES, E4M3, F16, F32, DType
from ..ir.packed import BY_BLOCK, COLUMN, COLUMNS, GROUPS, Form
from ..nn import Linear4bit
from ..nn.coded import packed_of
from ..nn.linear4bit import BLOCKS, FACTORS
from ..nn.linear8bit import linear_of
from ..quant import METHODS
from ..quant.checkpoint import FLOATS, Place
from ..quant.quantised import with_zeros
from ..quant.stated import PLACE, Stated
from ..runtime.torch_tensors import torch_dtype
from .pieces import Made, Packing, of_tensor
from .source import reading
from .stored import CODES, LINEAR, OWN, REORDERED, WEIGHT

ACTIVATIONS = {**{t.name: t for t in (BF16, F16, E4M3)}, BY_BLOCK: E4M3}
OCTETS = {"I8": INT8_ROWS, "F8_E4M3": FP8_ROWS}  # by how a file calls a weight's dtype


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What all layers are packed from, and for. format: of INT4 with scales of the dtype of activations, which are called `said`, of E4M3 in float32."""

    stated: Stated
    format: Format
    said: str

    @property
    def to(self) -> DType:
        return ACTIVATIONS[self.said]

    @property
    def dtype(self) -> Any:
        """torch's, of what is multiplied."""
        return torch_dtype(self.to)

    @property
    def activations(self) -> str | None:
        """What layers are told of them."""
        return self.said if self.to == E4M3 else None

    def packed_as(self, columns: int) -> str:
        """What a layer of so many columns calls its weights. Raises ArgumentError for columns that no group divides."""
        f = self.format
        group = f.group
        if self.by_layer:
            group = COLUMNS if self.to == E4M3 else formats.widest_group(columns)
        return Form(element=f.element, to=self.to, group=group, zeros=f.zeros).name

    @property
    def weights(self) -> str:
        """What all layers' weights are called; of scales for whole rows, whose groups depend on the layer, the format's name."""
        return self.format.name if self.by_layer else self.packed_as(0)

    @property
    def by_layer(self) -> bool:
        """Whether the groups that weights are packed in depend on a layer's columns: of 4 bits with a scale for each row."""
        return not self.format.group and self.format.bits == 4


def format_of(stated: Stated, said: str, group: int) -> Format:
    """What is packed of 4 bits for products with activations that are called `said`. group: of INT4 the columns that share a scale. Raises ArgumentError naming `activations`."""
    to, integers = ACTIVATIONS[said], stated.method not in ("nvfp4", "nvfp4_packed")
    if stated.method == "mxfp4":
        return MXFP4
    if to != E4M3:
        return formats.int4(group, to.name, zeros=stated.zeros) if integers else NVFP4
    if not integers or said != BY_BLOCK or stated.zeros or group not in (COLUMN, COLUMNS):
        of = (
            f", or {BY_BLOCK} where it has no zeros and a scale for each {COLUMNS} columns or a row"
        )
        allowed = f"must be bf16 or f16 for {stated.method}{of * integers}: E4M3 is multiplied by no others"
        raise ArgumentError("activations", said, allowed)
    return formats.int4(group, F32.name)


def names(tensors: Mapping[str, Any], method: str) -> list[str]:
    """Of the layers that are quantised by `method`. Raises ArgumentError where there is none, and for one of which only other tensors are there."""
    suffix, _ = METHODS[method]
    for name, own in ((name, own) for name in tensors for own in OWN[method]):
        layer = name.removesuffix(own)
        if layer != name and layer + suffix not in tensors:
            raise ArgumentError(layer + suffix, None, f"must be among the tensors, as {name} is")
    found = [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]
    if not found:
        raise ArgumentError("source", method, f"must have a tensor *{suffix}, as {method} does")
    return found


def group_of(places: Mapping[str, Place], layers: list[str], stated: Stated) -> int:
    """The columns of INT4 that share a scale, 0 for all of a row: what the config says, else what the layers have in common. Raises ArgumentError for a layer of others."""
    groups = {layer: _group(places, layer, stated.method) for layer in layers}
    common = [g for g, whole in groups.values() if not whole]
    wanted = common[0] if common else COLUMN
    because = "other layers have"
    if stated.group is not None:
        wanted, because = stated.group, f"{PLACE} says"
    for layer, (group, whole) in groups.items():
        if group != wanted and not (whole and wanted == COLUMN):
            allowed = f"must be of groups of {wanted or 'all'} columns, as {because}"
            at = f"{layer}.{LINEAR[stated.method].scales}"
            raise ArgumentError(f"{at} shape", places[at].shape, allowed)
    return wanted


def octets_of(places: Mapping[str, Place], layers: list[str], method: str, said: str) -> Format:
    """The same of 8 bits: INT8 or FP8, whichever the weights are, all alike. Raises ArgumentError for one that is not, and naming `activations`."""
    if ACTIVATIONS[said] == E4M3:
        allowed = f"must be bf16 or f16 for {method}: weights of 8 bits are multiplied by 16 bits"
        raise ArgumentError("activations", said, allowed)
    if method != "channels":
        return INT8_ROWS
    first = there(places, f"{layers[0]}{WEIGHT}").dtype
    for name in (f"{layer}{WEIGHT}" for layer in layers):
        dtype = there(places, name).dtype
        if dtype not in OCTETS or dtype != first:
            taken = f"{first}, as other layers' are" if first in OCTETS else " or ".join(OCTETS)
            raise ArgumentError(f"{name} dtype", dtype, f"must be {taken}")
    return OCTETS[first]


def left_wide(places: Mapping[str, Place], read: Container[str]) -> list[str]:
    """Layers whose weight of two sides stays as it is. read: tensors of layers that are packed. Raises ArgumentError for a weight that is quantised otherwise."""
    found = []
    for name, place in places.items():
        if name in read or len(place.shape) != 2 or not name.endswith((WEIGHT, *CODES)):
            continue
        if not name.endswith(WEIGHT):
            allowed = "must not be there: only layers of another method have it"
            raise ArgumentError(name, place.dtype, allowed)
        if place.dtype not in FLOATS:
            allowed = f"must be {', '.join(FLOATS)}: of a layer that is not packed"
            raise ArgumentError(f"{name} dtype", place.dtype, allowed)
        found.append(name.removesuffix(WEIGHT))
    return found


def _group(places: Mapping[str, Place], layer: str, method: str) -> tuple[int, bool]:
    """Of a layer: the columns that share a scale, and whether these are all. Raises ArgumentError for groups that are not taken."""
    _, k = sides(places, layer, method)
    stored = LINEAR[method]
    at = f"{layer}.{stored.scales}"
    shape = places[at].shape
    groups = shape[stored.along] if len(shape) == 2 else 0
    if not groups or k % groups or (groups > 1 and k // groups not in GROUPS):
        taken = ", ".join(map(str, GROUPS))
        order = "[N, groups]" if stored.along else "[groups, N]"
        allowed = f"must be {order}, of groups of {taken} or all of {k} columns"
        raise ArgumentError(f"{at} shape", shape, allowed)
    return k // groups, groups == 1


def sides(places: Mapping[str, Place], layer: str, method: str) -> tuple[int, int]:
    """N and K of a linear layer; all its tensors are there, and the first has two sides. Raises ArgumentError."""
    stored = LINEAR[method]
    for name in stored.tensors:
        there(places, f"{layer}.{name}")
    shapes = {name: places[f"{layer}.{name}"].shape for name in stored.tensors}
    first = stored.tensors[0]
    if len(shapes[first]) != 2 or 0 in shapes[first]:
        allowed = "must be two sides, none of them 0: of linear layers"
        raise ArgumentError(f"{layer}.{first} shape", shapes[first], allowed)
    return stored.sides(shapes)


def there(places: Mapping[str, Place], name: str) -> Place:
    if name not in places:
        raise ArgumentError(name, None, "must be among the tensors")
    return places[name]


def linear(tensors: quant.Checkpoint, layer: str, wanted: Wanted) -> tuple[Packing, set[str]]:
    """A linear layer, and the tensors of the checkpoint that are not copied then. Raises ArgumentError."""
    places, stored = tensors.places, LINEAR[wanted.stated.method]
    n, k = sides(places, layer, wanted.stated.method)
    if wanted.stated.reordered:
        there(places, f"{layer}.{REORDERED[wanted.stated.method]}")
    with naming(layer):
        weights = wanted.packed_as(k)
        layer_of, by = linear_of(weights), wanted.activations
        empty = layer_of(k, n, False, "meta", weights=weights, activations=by)
    state = empty.state_dict()
    piece = Packing(
        holds=tuple(of_tensor(f"{layer}.{name}", x) for name, x in state.items()),
        size=sum(places[f"{layer}.{name}"].size for name in stored.tensors),
        make=partial(_made, tensors, layer, empty, wanted),
    )
    return piece, {f"{layer}.{name}" for name in (*stored.tensors, *stored.beside)}


def _made(
    tensors: quant.Checkpoint,
    layer: str,
    empty: Linear4bit,
    wanted: Wanted,
    said: Callable[[int, int], object],
) -> Made:
    suffix, read = METHODS[wanted.stated.method]
    with reading(tensors.places[f"{layer}{suffix}"].path):
        found = read(tensors, layer)
    with naming(layer):
        found = fitted(found, wanted)
        sides = (empty.out_features, empty.in_features)
        if found.shape != sides:
            allowed = f"must be {list(sides)}, as its words have"
            raise ArgumentError("weight_shape", found.shape, allowed)
        packed = packed_of("weights", found, wanted.dtype, progress=said)
    made = {BLOCKS: packed.blocks, FACTORS: packed.factors}
    state = {name: made.get(name, x) for name, x in empty.state_dict().items()}
    return {f"{layer}.{name}": x for name, x in state.items()}


def fitted(found: quant.Quantised, wanted: Wanted) -> quant.Quantised:
    """Weights with scales and zeros as all layers have them. Raises ArgumentError for what the config does not say."""
    form = wanted.format
    if form.element == INT4:
        found = found.rescaled(torch_dtype(DTYPES[form.scale]))
        found = with_zeros(found) if form.zeros else found
    if not alike(found.format, form, found.shape[-1]):
        allowed = f"must be {form.name}, as {PLACE} says"
        raise ArgumentError("format", found.format.name, allowed)
    return found


class naming:
    """`with` it, an ArgumentError about an argument names the layer too."""

    def __init__(self, layer: str) -> None:
        self._layer = layer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ArgumentError):
            said = f"{self._layer} {error.argument}"
            raise ArgumentError(said, error.value, error.allowed) from error
