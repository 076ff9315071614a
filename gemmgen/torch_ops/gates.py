"""What is between the GEMMs of an expert, and its derivative: torch's operators, in FP32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..epilogues import ALPHA, LIMIT
from ..runtime.torch_tensors import torch

torch_ = torch()  # a constant to a compiler, which would trace the function's imports
aten = torch_.ops.aten


@dataclass(frozen=True, kw_only=True)
class Gate:
    """f: of what gate's rows give. back: (d, z) to d * f'(z)."""

    f: Callable[[Any], Any]
    back: Callable[[Any, Any], Any]


TANH = "tanh"


def _back_of_relu(d: Any, z: Any) -> Any:
    return aten.threshold_backward(d, z, 0)


GATES = {  # by the epilogues that compute them, once their sums are known
    "swiglu": Gate(f=torch_.nn.functional.silu, back=aten.silu_backward.default),
    "geglu": Gate(f=torch_.nn.functional.gelu, back=aten.gelu_backward.default),
    "geglu_tanh": Gate(
        f=partial(torch_.nn.functional.gelu, approximate=TANH),
        back=partial(aten.gelu_backward.default, approximate=TANH),
    ),
    "reglu": Gate(f=torch_.nn.functional.relu, back=_back_of_relu),
}


def gated(both: Any, order: str, epilogue: str) -> Any:
    """f(gate) * up, rounded once: [..., I] of both [..., 2 * I], its dtype; gate and up in `order`."""
    gate, up = _parts(both, order)
    return (GATES[epilogue].f(gate.float()) * up).to(both.dtype)


def clamped(both: Any, order: str, alpha: float = ALPHA, limit: float = LIMIT) -> Any:
    """g * sigmoid(alpha * g) * (u + 1) in FP32, rounded once, g = gate where it is below limit, u = up within +-limit: `gemmgen.epilogues.swiglu_clamped` of both [..., 2 * I]."""
    gate, up = _parts(both, order)
    g, u = gate.float().clamp(max=limit), up.float().clamp(-limit, limit)
    return (g * torch_.sigmoid(alpha * g) * (u + 1)).to(both.dtype)


def derivative(both: Any, dh: Any, weights: Any, order: str, epilogue: str) -> tuple[Any, Any, Any]:
    """Of a loss that has the sum over R of weights * (h @ w), h = `gated(both)`: (its derivative by `both`, weights * h, its derivative by weights).

    both: bfloat16 [R, 2 * I]. dh: bfloat16 [R, I], the derivative by h where weights are 1. weights: float32 [R]. Results are bfloat16 [R, 2 * I] and [R, I], float32 [R]; computed
    in FP32, each rounded once; the last is a sum over I.
    """
    gate, up = _parts(both, order)
    of, wide, column = GATES[epilogue], gate.float(), weights.unsqueeze(-1)
    active = of.f(wide)
    h = active * up
    of_weights = (h * dh).sum(-1)
    weighed = (h * column).to(both.dtype)
    d = dh * column
    of_gate, of_up = of.back(d * up, wide).to(both.dtype), (d * active).to(both.dtype)
    return _joined(of_gate, of_up, order), weighed, of_weights


def _parts(both: Any, order: str) -> tuple[Any, Any]:
    if order == "alternating":
        return both[..., ::2], both[..., 1::2]
    gate, up = both.chunk(2, -1)
    return gate, up


def _joined(gate: Any, up: Any, order: str) -> Any:
    if order == "alternating":
        return torch_.stack((gate, up), -1).flatten(1)
    return torch_.cat((gate, up), -1)
