"""What a program says of a model's linear layers, and what `config.json` then has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ArgumentError
from ...ir.packed import OF_16_BITS
from ...nn.kinds import IN_FP8, Kind
from ...repacking.loading import check_record
from .library import auto, configs
from .quantizer import GemmgenQuantizer
from .reading import OURS, READINGS

NAME = "gemmgen"  # the `quant_method`
LOADED = tuple(t.name for t in OF_16_BITS)


class GemmgenConfig(configs.QuantizationConfigMixin):  # type: ignore[misc]
    """Which of gemmgen's layers take the place of each `torch.nn.Linear` of a model that `from_pretrained` loads.

    weights: "fp8" (`gemmgen.nn.Fp8Linear`), "bf16" (`gemmgen.nn.Linear`: nothing is quantised), or a format of 4 or 8 bits, as
    "int4_128_bf16" (`gemmgen.nn.Linear4bit`) or "int8_column_f32" (`Linear8bit`), to whose nearest numbers weights are rounded on the CPU; of "int4_column_bf16", a scale for each row, the layers' own `weights`
    have the widest groups that divide their columns. master: as of `Fp8Linear`. The
    model's dtype must be that of the layers' activations.
    modules_to_not_convert: names of layers that stay, as Transformers matches them (a name, its beginning, its end, or a regular
    expression of its beginning); None: the output head, and what shares its weight. stored: how a checkpoint that is quantised already
    has the layers; `with_gemmgen` says it.
    packed: what `gemmgen.repacking.repack` says of a folder that it wrote; of experts, or of weights for FP8, it is refused: Transformers' models have no such layers.
    Making one calls `install`. Raises ArgumentError.
    """

    def __init__(
        self,
        weights: str = IN_FP8,
        *,
        master: bool = False,
        modules_to_not_convert: list[str] | None = None,
        stored: str = OURS,
        quant_method: str = NAME,
        packed: Mapping[str, Any] | None = None,
    ) -> None:
        self.quant_method = quant_method
        self.weights, self.master, self.stored = weights, master, stored
        left = modules_to_not_convert
        self.modules_to_not_convert = left if left is None or isinstance(left, str) else [*left]
        if packed is not None:
            _check_packed(packed)
        self.check()
        install()

    def check(self) -> None:
        """Raise ArgumentError for what is no such config: attributes may be set."""
        if self.quant_method != NAME:
            raise ArgumentError("quant_method", self.quant_method, f"must be {NAME!r}")
        kind, left = self.kind(), self.modules_to_not_convert
        if left is not None and not (
            isinstance(left, list) and all(isinstance(x, str) and x for x in left)
        ):
            allowed = "must be a list of layers' names, or None"
            raise ArgumentError("modules_to_not_convert", left, allowed)
        if self.stored not in READINGS:
            raise ArgumentError("stored", self.stored, f"must be one of {', '.join(READINGS)}")
        if self.stored != OURS and not (kind.coded and kind.format.bits == 4):
            allowed = f"must be {OURS!r} for weights={self.weights!r}: these methods have 4 bits"
            raise ArgumentError("stored", self.stored, allowed)

    def kind(self) -> Kind:
        return Kind(weights=self.weights, master=self.master)

    def as_saved(self) -> GemmgenConfig:
        """Of the model that was loaded: what `save_pretrained` writes."""
        left = self.modules_to_not_convert
        return GemmgenConfig(self.weights, master=self.master, modules_to_not_convert=left)


def _check_packed(packed: Mapping[str, Any]) -> None:
    check_record(packed)
    for name, allowed in (("layers", ("linear",)), ("activations", LOADED)):
        if packed.get(name) not in allowed:
            text = f"must be {' or '.join(allowed)}: gemmgen.repacking.load takes others"
            raise ArgumentError(f"packed.{name}", packed.get(name), text)


def install() -> None:
    """From now on, in the whole process, Transformers knows the `quant_method` "gemmgen": `from_pretrained` takes a `GemmgenConfig` and loads
    what was saved with one. A second call changes nothing. Raises ArgumentError if somebody else has that name."""
    for table, ours, register in (
        (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, GemmgenConfig, auto.register_quantization_config),
        (auto.AUTO_QUANTIZER_MAPPING, GemmgenQuantizer, auto.register_quantizer),
    ):
        there = table.get(NAME)
        if there not in (None, ours):
            raise ArgumentError("quant_method", NAME, f"must be free: {there} has it")
        if there is None:
            register(NAME)(ours)
