"""Which of this package's linear layers takes the place of a `torch.nn.Linear`, by the name of its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .. import formats, quant
from ..errors import ArgumentError
from ..formats import Format
from ..ir.dtypes import DTYPES, DType
from ..ir.packed import COLUMN, GROUPS, OF_16_BITS, PAIR, named_for
from ..runtime.torch_tensors import torch_dtype
from .coded import quantised
from .frozen import SCALE, gemmgen, torch_
from .linear import Fp8Linear, Linear
from .linear4bit import BLOCKS, FACTORS, WEIGHT, Linear4bit
from .linear8bit import linear_of

IN_FP8, IN_BF16 = "fp8", "bf16"
STEPS = {IN_FP8: Fp8Linear.step, IN_BF16: Linear.step}  # what both features must be multiples of
WHOLE = [formats.int4(COLUMN, t.name, zeros=z) for t in OF_16_BITS for z in (False, True)]
# Packed, by name: the format, and what is multiplied with it.
CODED: dict[str, tuple[Format, DType]] = {
    **{name: (formats.named(form.format), form.to) for name, form in named_for(None).items()},
    **{form.name: (form, DTYPES[form.scale]) for form in WHOLE},
}
KINDS = (*STEPS, *CODED)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of linear layer. weights: "fp8": `Fp8Linear`; "bf16": `Linear`; the name of a form of 4 bits, or of INT4 with scales for whole rows,
    "int4_column_bf16" and others, of which each layer is packed in the widest groups that divide its columns: `Linear4bit`; of a form of 8 bits: `Linear8bit`. master: as of `Fp8Linear`. Raises ArgumentError."""

    weights: str
    master: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.weights, str) or self.weights not in KINDS:
            raise ArgumentError("weights", self.weights, f"must be one of {', '.join(KINDS)}")
        if not isinstance(self.master, bool):
            raise ArgumentError("master", self.master, "must be true or false")
        if self.master and self.weights != IN_FP8:
            allowed = f"is for weights={IN_FP8!r}: others have one weight only"
            raise ArgumentError("master", self.master, allowed)

    @property
    def coded(self) -> bool:
        """Whether weights have 4 or 8 bits, packed."""
        return self.weights in CODED

    @property
    def format(self) -> Format:
        """Of packed weights, as they are quantised."""
        form, _ = CODED[self.weights]
        return form

    @property
    def group(self) -> int:
        """Of packed weights: what in_features must be a multiple of."""
        return PAIR if self.format.bits == 8 else self.format.group or GROUPS[0]

    @property
    def layer(self) -> type[Linear4bit]:
        """Of packed weights."""
        return linear_of(self.weights)

    def packed_as(self, columns: int) -> str:
        """What a layer of so many columns calls its packed weights."""
        if self.format.group or self.format.bits == 8:
            return self.weights
        return replace(self.format, group=formats.widest_group(columns)).name

    @property
    def quantises(self) -> bool:
        """Whether layers hold something else than the wide weight."""
        return self.coded or (self.weights == IN_FP8 and not self.master)

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """Of activations, and of the layers whose place is taken."""
        if self.coded:
            _, to = CODED[self.weights]
            return (torch_dtype(to),)
        return tuple(map(torch_dtype, OF_16_BITS[:1] if self.weights == IN_FP8 else OF_16_BITS))

    @property
    def held(self) -> str:
        """The name of the weight in what takes a layer's place."""
        return BLOCKS if self.coded else WEIGHT

    def obstacle(self, layer: Any) -> str:
        """Why `layer` cannot be replaced; '' if it can."""
        if type(layer) is not torch_.nn.Linear:
            return f"is a {type(layer).__name__}, whose forward may differ"
        if layer.weight.dtype not in self.dtypes:
            return f"weight is {layer.weight.dtype}, must be {' or '.join(map(str, self.dtypes))}"
        sides = (layer.in_features, layer.out_features)
        if self.coded:
            if layer.in_features % self.group or not all(sides):
                return f"in_features is {layer.in_features}, must be a multiple of {self.group}"
        elif any(side % STEPS[self.weights] or not side for side in sides):
            return f"features are {sides}, must be multiples of {STEPS[self.weights]}"
        if any(getattr(layer, hooks, None) for hooks in HOOKS):
            return "has hooks"
        return ""

    def has(self, layer: Any) -> bool:
        """Whether `layer` is one of this kind already."""
        match layer:
            case Linear4bit():
                columns = layer.in_features
                if not self.coded or columns % self.group or layer.activations:
                    return False
                return bool(layer.weights == self.packed_as(columns))
            case Fp8Linear():
                return self.weights == IN_FP8 and layer.master == self.master
            case Linear():
                return self.weights == IN_BF16
        return False

    def of(self, layer: Any) -> Any:
        """What takes the place of `layer`, with its weight, quantised where it is (packed ones: on the CPU)."""
        if self.coded:
            return self.layer.from_linear(layer, self.format, *self.dtypes)
        return (
            Fp8Linear.of(layer, master=self.master) if self.weights == IN_FP8 else Linear.of(layer)
        )

    def empty(self, layer: Any) -> Any:
        """What takes the place of `layer`, on the device meta, for tensors of a checkpoint."""
        sides = (layer.in_features, layer.out_features, layer.bias is not None, "meta")
        made: Any
        if self.coded:
            made = self.layer(*sides, weights=self.packed_as(layer.in_features))
        elif self.weights == IN_FP8:
            made = Fp8Linear(*sides, master=self.master)
        else:
            made = Linear(*sides, layer.weight.dtype)
        return made

    def quantised(self, weight: Any) -> dict[str, Any]:
        """The tensors by name that a layer of this kind, one that `quantises`, holds of a wide weight, on its device."""
        if not self.coded:
            codes, scale = gemmgen.quantise_blocks(weight.detach())
            return {WEIGHT: codes, WEIGHT + SCALE: scale}
        return coded_tensors(quantised(weight, self.format, *self.dtypes))


def coded_tensors(packed: quant.Packed) -> dict[str, Any]:
    """By name, what `Linear4bit` holds of them."""
    factors = {} if packed.factors is None else {FACTORS: packed.factors}
    return {BLOCKS: packed.blocks, **factors}
