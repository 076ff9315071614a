"""Linear layers: y = x @ weight^T + bias."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..torch_ops import fp8_linear, linear
from ..torch_ops.dtensor import is_dtensor, scale_layout
from .across import Across
from .frozen import FP8, Frozen, gemmgen, torch_

BF16 = torch_.bfloat16


class Linear(torch_.nn.Linear):  # type: ignore[misc]
    """`torch.nn.Linear` whose three GEMMs are gemmgen's: see `gemmgen.torch_ops.linear`.

    in_features, out_features: multiples of 8. dtype: bfloat16 or float16. x: that dtype, [..., in_features].
    Raises ArgumentError.
    """

    step = 8  # of features

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = BF16,
    ) -> None:
        check_features(in_features, out_features, self.step)
        super().__init__(in_features, out_features, bias, device, dtype)

    across: Across | None = None  # by `gemmgen.nn.parallel`

    def forward(self, x: Any) -> Any:
        if self.across is None or is_dtensor(x):
            return linear(x, self.weight, self.bias)
        return self.across.linear(x, self.weight, self.bias)

    @classmethod
    def of(cls, layer: Any) -> Linear:
        """One with the very parameters of `layer`, a torch.nn.Linear."""
        made = cls(
            layer.in_features,
            layer.out_features,
            layer.bias is not None,
            "meta",
            layer.weight.dtype,
        )
        made.weight, made.bias = layer.weight, layer.bias
        made.train(layer.training)
        return made


class Fp8Linear(Frozen):
    """A linear layer of FP8 E4M3: the weight is quantised 128 x 128 once, x 1 x 128 by every call.

    in_features, out_features: multiples of 16. x: bfloat16 [..., in_features]; y: bfloat16 [..., out_features].
    master: False: `weight` is a buffer in FP8 with `weight_scale`, and there are no gradients: an x that asks for
    one is an error. True: `weight` is a bfloat16 parameter, quantised by every call, with the gradients
    of `gemmgen.torch_ops.fp8_linear`; both compute the same, to the bit.
    bias: a bfloat16 parameter. Raises ArgumentError.

    A `state_dict` may hold `weight` in bfloat16, float16 or float32, which is quantised (rounded, for a master), or
    in FP8 with `weight_scale` or `weight_scale_inv`, float32 [ceil(out/128), ceil(in/128)], what to multiply with.
    """

    step = 16  # of features

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        *,
        master: bool = False,
    ) -> None:
        check_features(in_features, out_features, self.step)
        super().__init__()
        self.in_features, self.out_features, self.master = in_features, out_features, master
        made = torch_.nn.Linear(in_features, out_features, bias, device, BF16)
        self.bias = made.bias
        if master:
            self.weight = made.weight
            return
        self.freeze("weight", out_features, in_features, device=device)
        if not made.weight.is_meta:
            self.put("weight", made.weight)

    @classmethod
    def of(cls, layer: Any, *, master: bool = False) -> Fp8Linear:
        """One with the weight of `layer`, a torch.nn.Linear: the parameter itself for a master, else quantised
        where it is."""
        made = cls(layer.in_features, layer.out_features, False, "meta", master=master)
        if master:
            made.weight = layer.weight
        else:
            made.weight, made.weight_scale = gemmgen.quantise_blocks(layer.weight.detach())
        made.bias = layer.bias
        made.train(layer.training)
        return made

    across: Across | None = None  # by `gemmgen.nn.parallel`

    def forward(self, x: Any) -> Any:
        across = None if is_dtensor(x) else self.across
        if self.master and across is not None:
            return across.linear(x, self.weight, self.bias, "fp8_")
        if self.master:
            return fp8_linear(x, self.weight, self.bias)
        if across is not None:
            _check_input(x, x.shape[-1])
            with torch_.no_grad():
                return across.frozen(x, self.frozen_weight("weight"), self.bias)
        _check_input(x, self.in_features)
        q, scale = gemmgen.quantise_rows(x.reshape(-1, self.in_features).contiguous())
        given = {} if self.bias is None else {"epilogue": "bias", "bias": self.bias.float()}
        with torch_.no_grad():
            weight = self.frozen_weight("weight")
            layout = scale_layout(scale)
            y = gemmgen.fp8_block_gemm(q, scale, *weight, scale_a_layout=layout, **given)
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        sides = f"in_features={self.in_features}, out_features={self.out_features}"
        kept = "bf16, quantised by every call" if self.master else "e4m3 128x128"
        return f"{sides}, bias={self.bias is not None}, weight={kept}, x=e4m3 1x128"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        key = prefix + "weight"
        if self.master and getattr(state_dict.get(key), "dtype", None) == FP8:
            *_, errors = rest
            errors.append(f"{key}: is {FP8}; a layer with master=True needs it wide")
        super()._load_from_state_dict(state_dict, prefix, *rest)


def check_features(in_features: int, out_features: int, step: int) -> None:
    for name, side in (("in_features", in_features), ("out_features", out_features)):
        if side < 1 or side % step:
            raise ArgumentError(name, side, f"must be a positive multiple of {step}")


def _check_input(x: Any, features: int) -> None:
    if x.dtype != BF16:
        raise ArgumentError("x dtype", x.dtype, f"must be {BF16}")
    if not x.dim() or x.shape[-1] != features:
        raise ArgumentError("x shape", tuple(x.shape), f"must be [..., {features}]")
    if x.requires_grad and torch_.is_grad_enabled():
        raise ArgumentError("x", "requires a gradient", "needs a layer with master=True")
