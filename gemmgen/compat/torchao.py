"""torchao's `quantize_` with the layers of `gemmgen.nn`: `quantize_(model, GemmgenConfig("fp8"))`.

Importing this module imports torchao, which gemmgen does not depend on: RuntimeUnavailable, where it is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..nn.kinds import IN_FP8, Kind
from .needed import needed

REQUIREMENT = "torchao>=0.18"
quantization = needed("torchao.quantization", REQUIREMENT)
core = needed("torchao.core.config", REQUIREMENT)


@dataclass
class GemmgenConfig(core.AOBaseConfig):  # type: ignore[misc, name-defined]
    """What `quantize_` makes of each `torch.nn.Linear` that its `filter_fn` names.

    weights: "fp8" (`gemmgen.nn.Fp8Linear`), "bf16" (`gemmgen.nn.Linear`: nothing is quantised), or a format of 4 or 8 bits, as
    "int4_128_bf16" (`gemmgen.nn.Linear4bit`) or "int8_column_f32" (`Linear8bit`), to whose nearest numbers weights are rounded. master: as of `Fp8Linear`.
    Making one tells torchao of its handler. Raises ArgumentError.
    """

    weights: str = IN_FP8
    master: bool = False

    def __post_init__(self) -> None:
        self.kind()
        quantization.register_quantize_module_handler(GemmgenConfig)(replaced)

    def kind(self) -> Kind:
        return Kind(weights=self.weights, master=self.master)


def replaced(layer: Any, config: GemmgenConfig) -> Any:
    """`layer`, which has become one of gemmgen's, in place: `quantize_` drops what is returned for the module that it was called
    with, and for a second name of a layer. Raises ArgumentError for a layer that stays as it is."""
    kind = config.kind()
    if kind.has(layer):
        return layer  # was met before, by another name
    why = kind.obstacle(layer)
    if why:
        allowed = f"{why}, for weights={kind.weights!r}; leave the layer out by filter_fn"
        raise ArgumentError("model", layer, allowed)
    made = kind.of(layer)
    layer.__class__, layer.__dict__ = type(made), made.__dict__
    return layer
