"""Tensors of a checkpoint on their way into a model's layers, one layer at a time, as Transformers' loader hands them over."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ArgumentError, GemmgenError
from ...formats.format import alike
from ...nn.coded import EXTRA, packed_of
from ...nn.frozen import ALIASES, FP8, SCALE, rename_scales, torch_
from ...nn.kinds import Kind, coded_tensors
from ...nn.linear4bit import BLOCKS, FACTORS, WEIGHT
from ...quant.loading import METHODS
from ...quant.quantised import with_zeros
from .library import loading

Tensors = dict[str, Any]
# Of FP8; exponents alone have a dtype from torch 2.7 on.
SCALES = tuple(getattr(torch_, x) for x in ("float32", "float8_e8m0fnu") if hasattr(torch_, x))
METHOD_TENSORS = ("qweight", "qzeros", "scales", "g_idx")


class Reading(loading.ConversionOps):  # type: ignore[misc]
    """What a layer holds, made of its tensors in a checkpoint. read: the names of layers so far. wrong: the first error; the loader
    would write it to a log and raise one without it, so it is kept until the model is loaded."""

    def __init__(self, quantizer: Any) -> None:
        self.hf_quantizer = quantizer  # by this name the loader knows not to change dtypes
        self.kind: Kind = quantizer.kind
        self.read: set[str] = set()
        self.wrong: GemmgenError | None = None

    def convert(
        self, input_dict: Mapping[str, Any], *, model: Any, full_layer_name: str, **rest: Any
    ) -> Tensors:
        """Of a layer's tensors by pattern or name, those that it holds by name."""
        given = {last(key): only(x) for key, x in input_dict.items()}
        return self.held(model, full_layer_name.rpartition(".")[0], given)

    def held(self, model: Any, layer: str, given: Tensors) -> Tensors:
        """By its name in the model, each tensor that `layer` holds."""
        module = model.get_submodule(layer)
        self.read.add(layer)
        try:
            made = self.made(layer, module, given)
        except GemmgenError as e:
            self.wrong = self.wrong or e
            return {}
        if self.kind.coded:
            made[EXTRA] = module.get_extra_state()
        return {f"{layer}.{name}": x for name, x in made.items()}

    def made(self, layer: str, module: Any, given: Tensors) -> Tensors:
        raise NotImplementedError

    def __deepcopy__(self, memo: Any) -> Reading:
        """The loader copies a converter for each layer; all of them tell this one."""
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """What tensors of a layer that is quantised already are called."""
        raise NotImplementedError

    def converters(self, layers: str) -> list[Any]:
        """What the loader brings a layer's tensors together by, in the place of its weight. layers: a pattern of one group, their names."""
        patterns = [rf"{layers}\.{source}" for source in self.sources]
        return [OneWayConverter(patterns, rf"\1.{self.kind.held}", [self])]


class Quantising(Reading):
    """Of wide weights."""

    def convert(self, input_dict: Mapping[str, Any], *, model: Any, **rest: Any) -> Tensors:
        """Of weights by name: a model may have several of one tensor. Those of other layers stay as they are."""
        found: Tensors = {}
        for name, x in input_dict.items():
            layer, _, tensor = name.rpartition(".")
            if layer in self.hf_quantizer.layers and tensor == self.kind.held:
                found |= self.held(model, layer, {tensor: only(x)})
            else:
                found[name] = x
        return found

    def made(self, layer: str, module: Any, given: Tensors) -> Tensors:
        (weight,) = given.values()
        try:
            return self.kind.quantised(weight)
        except ArgumentError as e:
            raise ArgumentError(f"{layer}.{WEIGHT}", e.value, f"{e.argument} {e.allowed}") from e

    def converters(self, layers: str) -> list[Any]:
        if self.kind.held == WEIGHT:
            return []
        return [OneWayRenaming(rf"{layers}\.{WEIGHT}", rf"\1.{self.kind.held}")]


class Ours(Reading):
    """Of what these layers' `state_dict` has, and of FP8 with its scales by another name."""

    @property
    def sources(self) -> tuple[str, ...]:
        if self.kind.coded:
            return (BLOCKS, FACTORS, EXTRA)
        return (WEIGHT, WEIGHT + SCALE, *(WEIGHT + alias for alias in ALIASES))

    def made(self, layer: str, module: Any, given: Tensors) -> Tensors:
        if self.kind.coded:
            return self._coded(layer, module, given)
        rename_scales(WEIGHT, given)
        for name, dtypes in ((WEIGHT, (FP8,)), (WEIGHT + SCALE, SCALES)):
            self._check(layer, module, given, name, dtypes)
        return {WEIGHT: given[WEIGHT], WEIGHT + SCALE: given[WEIGHT + SCALE].float()}

    def _coded(self, layer: str, module: Any, given: Tensors) -> Tensors:
        if EXTRA not in given:
            raise ArgumentError(f"{layer}.{EXTRA}", None, "must be among the tensors")
        try:
            module.set_extra_state(given.pop(EXTRA))
        except ArgumentError as e:
            raise ArgumentError(f"{layer}.{EXTRA}", e.value, e.allowed) from e
        names = [n for n in (BLOCKS, FACTORS) if getattr(module, n) is not None]
        for name in names:
            self._check(layer, module, given, name, (getattr(module, name).dtype,))
        return {name: given[name] for name in names}

    def _check(
        self, layer: str, module: Any, given: Tensors, name: str, dtypes: tuple[Any, ...]
    ) -> None:
        x, shape = given.get(name), tuple(getattr(module, name).shape)
        if x is None:
            raise ArgumentError(f"{layer}.{name}", None, "must be among the tensors")
        if x.dtype not in dtypes:
            allowed = f"must be {' or '.join(map(str, dtypes))}, or the layer in modules_to_not_convert"  # fmt: skip
            raise ArgumentError(f"{layer}.{name} dtype", x.dtype, allowed)
        if tuple(x.shape) != shape:
            raise ArgumentError(f"{layer}.{name} shape", tuple(x.shape), f"must be {list(shape)}")


class ByMethod(Reading):
    """Of what `gemmgen.quant` reads: scales rounded to the dtype of activations, packed."""

    @property
    def sources(self) -> tuple[str, ...]:
        return METHOD_TENSORS

    def made(self, layer: str, module: Any, given: Tensors) -> Tensors:
        _, read = METHODS[self.hf_quantizer.quantization_config.stored]
        form = self.kind.format
        found = read({f"{layer}.{name}": x for name, x in given.items()}, layer)
        found = found.rescaled(self.kind.dtypes[0])
        found = with_zeros(found) if form.zeros else found
        wanted = (module.out_features, module.in_features)
        if found.shape != wanted:
            raise ArgumentError(f"{layer} shape", found.shape, f"must be {list(wanted)}")
        if not alike(found.format, form, module.in_features):
            allowed = f"must be {form.name}, as the checkpoint's config says"
            raise ArgumentError(f"{layer} format", found.format.name, allowed)
        return coded_tensors(packed_of(layer, found))


OURS = "gemmgen"
# By how a checkpoint has the layers: as `state_dict` of gemmgen.nn (FP8 also with `weight_scale_inv`), or as gemmgen.quant reads them.
READINGS: dict[str, type[Reading]] = {
    OURS: Ours,
    "awq": ByMethod,
    "gptq": ByMethod,
    "gptq_v2": ByMethod,
}


class OneWayConverter(loading.WeightConverter):  # type: ignore[misc]
    """For loading: a model is saved by the names that its layers have."""

    __slots__ = ()

    def reverse_transform(self) -> Any:
        return nothing()


class OneWayRenaming(loading.WeightRenaming):  # type: ignore[misc]
    """As `OneWayConverter`."""

    __slots__ = ()

    def reverse_transform(self) -> Any:
        return nothing()


def nothing() -> Any:
    """Renames no tensor."""
    return loading.WeightRenaming(r"\Z.", "")


def pattern_of(layers: Sequence[str], base: str) -> str:
    """One group: a layer's name, with or without the prefix of the base model, with which checkpoints are saved or not."""
    before = f"{base}." if base else ""
    names = "|".join(re.escape(name.removeprefix(before)) for name in layers)
    return rf"^((?:{re.escape(before)})?(?:{names}))"


def last(key: str) -> str:
    """Of a tensor's name, or of a pattern of such names."""
    return key.rpartition(".")[2]


def only(x: Any) -> Any:
    """The loader hands a list over where it has read one."""
    return x[0] if isinstance(x, list) else x
