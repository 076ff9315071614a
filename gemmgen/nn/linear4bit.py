"""A linear layer whose weight has 4 bits: y = x @ weight^T + bias."""

from __future__ import annotations

from typing import Any

from .. import formats, quant
from ..errors import ArgumentError
from ..formats import Format
from ..runtime.torch_tensors import torch_dtype
from ..torch_ops.dtensor import is_dtensor
from .coded import EXTRA, Coded, activations_of, check_packed, dtype_for, packed_of, quantised
from .frozen import WIDE, torch_

WEIGHT = "weight"  # of an ordinary state_dict
BLOCKS, FACTORS = "blocks", "factors"  # of its own


class Linear4bit(Coded):
    """A linear layer of INT4, MXFP4 or NVFP4, in one launch: `gemmgen.ops.w4a16_gemm`, the bias in its epilogue. Or of MXFP4 in two, with
    activations "e4m3": x is quantised per row, for `gemmgen.ops.w4a8_gemm`; "e4m3_128": per row and 128 columns, for `gemmgen.ops.w4a8_block_gemm`.

    weights: their name, as `gemmgen.quant.Packed.weights`: "int4_128_bf16", "int4_64_f16_zeros", "e2m1_32_e8m0", "e2m1_16_e4m3_f16" and others; it says the dtype of
    activations, bfloat16 where MXFP4 and NVFP4 are said without one. activations: None: x's own; "e4m3" and "e4m3_128": x is bfloat16, and blocks are packed for E4M3, the same for both. in_features: a multiple of the columns that share a scale; out_features: any. x: that dtype, [..., in_features], any number of rows; y: the same dtype, [..., out_features].
    Buffers: `blocks`, uint8, as `gemmgen.quant.pack` lays them out, `factors`, float32 [out_features], of NVFP4 and of MXFP4 for float16 and E4M3, else None, and `bias`, float32 [out_features] or None. `model.half()` and `model.to(dtype)` move them and change neither: a layer for bfloat16
    stays one, and refuses other x; for float16 weights are packed again (`gemmgen.quant.Quantised.rescaled`). For inference: an x that asks for a gradient is an error. Raises ArgumentError.

    Made `from_packed`, `from_quantised`, `from_linear`, or empty, for a `state_dict`: one of its own, whose facts (format and sides) must be the same, or one with `weight` in
    bfloat16, float16 or float32, which is quantised on the CPU.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        *,
        weights: str = "int4_128_bf16",
        activations: str | None = None,
    ) -> None:
        super().__init__(weights, activations)
        step = self.form.k_step
        if in_features < 1 or in_features % step:
            allowed = f"must be a positive multiple of {step}, for {weights}"
            raise ArgumentError("in_features", in_features, allowed)
        if out_features < 1:
            raise ArgumentError("out_features", out_features, "must be at least 1")
        self.in_features, self.out_features = in_features, out_features
        beside = (FACTORS, "bias")
        self.hold(BLOCKS, out_features, in_features, beside=beside, biased=bias, device=device)

    @classmethod
    def from_packed(
        cls, packed: quant.Packed, bias: Any = None, activations: str | None = None
    ) -> Linear4bit:
        """One over the memory of `packed` [out_features, in_features]. bias: bfloat16, float16 or float32 [out_features]. activations: of blocks for E4M3; None: "e4m3", of INT4 "e4m3_128", the only one that it has.
        Raises ArgumentError."""
        check_packed("packed", packed, 2)
        n, k = packed.shape
        of: dict[str, Any] = {"weights": packed.weights}
        of |= {"activations": activations_of(packed, activations)}
        made = cls(k, n, bias is not None, "meta", **of)
        made.take(BLOCKS, packed, FACTORS, "bias", bias)
        return made

    @classmethod
    def from_quantised(
        cls,
        weights: quant.Quantised,
        bias: Any = None,
        dtype: Any = None,
        activations: str | None = None,
    ) -> Linear4bit:
        """One of `weights` [out_features, in_features], as `gemmgen.quant` reads them; packed on the CPU, on the device of `weights`. Scales of whole rows are packed as those of
        the widest groups that divide in_features, by whose name the layer's weights go: "int4_128_bf16". dtype: of what is multiplied: torch.bfloat16 or torch.float16, x's, or of MXFP4, and of INT4 without zeros in groups of 128 or whole rows, torch.float8_e4m3fn, to which x is quantised;
        None: that of INT4's scales, bfloat16 of MXFP4 and NVFP4. activations: "e4m3" and "e4m3_128" mean torch.float8_e4m3fn. Raises ArgumentError."""
        packed = packed_of("weights", weights, dtype_for(activations, dtype))
        return cls.from_packed(packed, bias, activations)

    @classmethod
    def from_linear(
        cls, layer: Any, form: Format, dtype: Any = None, activations: str | None = None
    ) -> Linear4bit:
        """One with the weight of `layer`, a torch.nn.Linear, quantised to the nearest in `form`, and its bias. dtype, activations: as of `from_quantised`, whatever the layer's is. Raises
        ArgumentError."""
        if not isinstance(layer, torch_.nn.Linear):
            raise ArgumentError("layer", type(layer).__name__, "must be a torch.nn.Linear")
        made = cls.from_quantised(quant.of(layer.weight, form), layer.bias, dtype, activations)
        made.train(layer.training)
        return made

    def forward(self, x: Any) -> Any:
        if is_dtensor(x):
            raise ArgumentError("x", "a DTensor", "must be this rank's own: x.to_local()")
        self.check_rows(x, self.in_features)
        rows = x.reshape(-1, self.in_features).contiguous()
        given = {} if self.bias is None else {"epilogue": "bias", "bias": self.bias}
        given |= {"columns": self.out_features, "scale_b": self.factors}
        with torch_.no_grad():
            y = self.product("gemm", rows, self.blocks, **given)
        return y.view(*x.shape[:-1], self.out_features)

    @property
    def facts(self) -> str:
        return f"{self.said} {self.out_features}x{self.in_features}"

    def extra_repr(self) -> str:
        sides = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sides}, bias={self.bias is not None}, weight={self.by}, x={self.dtype}"

    def prepared(self, prefix: str, state: dict[str, Any]) -> list[str]:
        key, own = prefix + WEIGHT, prefix + BLOCKS
        weight = state.get(key)
        if weight is None or own in state:
            return super().prepared(prefix, state)
        wanted = (self.out_features, self.in_features)
        if weight.dtype not in WIDE or tuple(weight.shape) != wanted:
            allowed = f"must be {list(wanted)} of {' or '.join(map(str, WIDE))}"
            return [f"{key}: is {list(weight.shape)} of {weight.dtype}, {allowed}"]
        del state[key]
        made = quantised(weight, formats.named(self.form.format), torch_dtype(self.form.to))
        state[own] = made.blocks
        if made.factors is not None:
            state[prefix + FACTORS] = made.factors
        state[prefix + EXTRA] = self.get_extra_state()
        return super().prepared(prefix, state)
