"""What `from_pretrained` calls, before and after it loads a model."""

from __future__ import annotations

from typing import Any

from ...errors import ArgumentError, UnsupportedProblem
from ...nn.frozen import torch_
from ...nn.kinds import Kind
from .library import names, quantizers
from .reading import READINGS, Quantising, Reading, pattern_of


class GemmgenQuantizer(quantizers.HfQuantizer):  # type: ignore[misc]
    """Replaces each `torch.nn.Linear` of a model that is not filled yet, and fills what takes its place, layer by layer. Subclasses of
    `torch.nn.Linear` stay as they are, whose forward may differ. layers: the names of those replaced. Raises ArgumentError."""

    def __init__(self, quantization_config: Any, **given: Any) -> None:
        super().__init__(quantization_config, **given)
        quantization_config.check()  # attributes may have been set
        self.kind: Kind = quantization_config.kind()
        self.layers: tuple[str, ...] = ()
        stored = READINGS[quantization_config.stored]
        self.reading: Reading = (stored if self.pre_quantized else Quantising)(self)

    def validate_environment(self, *, device_map: Any = None, **rest: Any) -> None:
        check_places(device_map)

    def update_dtype(self, dtype: Any) -> Any:
        if dtype not in self.kind.dtypes:
            allowed = f"must be {' or '.join(map(str, self.kind.dtypes))}: weights are {self.kind.weights}"
            raise ArgumentError("dtype", dtype, allowed)
        return dtype

    def _process_model_before_weight_loading(self, model: Any, **rest: Any) -> None:
        left = self.get_modules_to_not_convert(
            model, self.quantization_config.modules_to_not_convert, model._keep_in_fp32_modules
        )
        found = linear_layers(model, left)
        wrong = {
            name: why
            for name, layer in found.items()
            if (why := self._obstacle(model, name, layer))
        }
        if wrong:
            said = "; ".join(f"{name} {why}" for name, why in wrong.items())
            allowed = f"must name what weights={self.kind.weights!r} cannot replace: {said}"
            given = self.quantization_config.modules_to_not_convert
            raise ArgumentError("modules_to_not_convert", given, allowed)
        if not found:
            allowed = "must leave a torch.nn.Linear of the model to convert"
            raise ArgumentError("modules_to_not_convert", left, allowed)
        for name, layer in found.items():
            model.set_submodule(name, self.kind.empty(layer))
        self.layers = (*found,)

    def _obstacle(self, model: Any, name: str, layer: Any) -> str:
        if f"{name}.weight" in model.all_tied_weights_keys:
            return "shares its weight with another layer"
        return self.kind.obstacle(layer)

    def param_needs_quantization(self, model: Any, param_name: str, **rest: Any) -> bool:
        layer, _, tensor = param_name.rpartition(".")
        return self.kind.quantises and tensor == self.kind.held and layer in self.layers

    def get_quantize_ops(self) -> Reading:
        return self.reading

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        if not self.kind.quantises:
            return weight_conversions
        layers = pattern_of(self.layers, model.base_model_prefix)
        return [*weight_conversions, *self.reading.converters(layers)]

    def _process_model_after_weight_loading(self, model: Any, **rest: Any) -> None:
        if (model.tp_size or 1) > 1:
            allowed = "must be 1: layers of gemmgen are not divided by Transformers' plans"
            raise ArgumentError("tp_size", model.tp_size, allowed)
        if self.reading.wrong is not None:
            raise self.reading.wrong
        check_places(getattr(model, "hf_device_map", None))
        missing = [x for x in self.layers if x not in self.reading.read]
        if self.kind.quantises and missing:
            allowed = "must have the weights of these layers, or modules_to_not_convert name them"
            raise ArgumentError("checkpoint", missing, allowed)
        model.config.quantization_config = self.quantization_config.as_saved()

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        raise UnsupportedProblem("dequantize: load the checkpoint of wide weights instead")

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return not self.kind.quantises

    @property
    def is_compileable(self) -> bool:
        return True


def linear_layers(model: Any, left: list[str]) -> dict[str, Any]:
    """By name, those that no name of `left` matches."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is torch_.nn.Linear and names.should_convert_module(name, left)
    }


def check_places(device_map: Any) -> None:
    """Raise ArgumentError if parts of a model are where they wait to be moved."""
    places = {str(x) for x in device_map.values()} if isinstance(device_map, dict) else {device_map}
    if "disk" in places or ("cpu" in places and len(places) > 1):
        allowed = "must have no 'disk', and 'cpu' only alone: layers of gemmgen are not offloaded"
        raise ArgumentError("device_map", device_map, allowed)
