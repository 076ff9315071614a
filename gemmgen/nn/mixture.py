"""Layers of experts that train: a router, its experts, an expert that all tokens share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..ops.mixture_checks import MOST_EXPERTS
from ..ops.selecting import How, check
from ..torch_ops import moe_train
from ..torch_ops.linear import ROW
from ..torch_ops.moe_checks import FP8, KINDS
from .experts import alternating, as_ids
from .frozen import Kept, gemmgen, own, torch_
from .linear import BF16, Fp8Linear, Linear, check_features

if TYPE_CHECKING:
    from .expert_ranks import ExpertRanks

STEPS = {kind: ROW // size for kind, size in KINDS.items()}  # what features are multiples of


class Experts(torch_.nn.Module):  # type: ignore[misc]
    """`experts` gated MLPs that train: `gemmgen.torch_ops.moe_train`.

    hidden, intermediate: features, multiples of 8, in FP8 of 16. kind: "bf16", or "fp8": parameters are quantised by every call. recompute: as of `moe_train`. Parameters, bfloat16: gate_up
    [experts, 2 * intermediate, hidden], whose rows alternate between gate and up; down [experts, hidden, intermediate]. Raises ArgumentError.

    `GroupedExperts` loads its `state_dict`, and quantises it for inference.

    Ranks may divide the experts: `gemmgen.nn.parallel.ExpertParallel`. Then each rank's tokens go to all of them, gradients of a rank's experts are the sum over all ranks' tokens, all ranks run the backward pass, and parameters are DTensors, as in a `state_dict`; one that is loaded may have all experts.
    """

    across: ExpertRanks | None = None  # by `gemmgen.nn.parallel`

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        *,
        kind: str = "bf16",
        recompute: bool = False,
        device: Any = None,
    ) -> None:
        if kind not in KINDS:
            raise ArgumentError("kind", kind, f"must be one of {', '.join(KINDS)}")
        if not 1 <= experts <= MOST_EXPERTS:
            raise ArgumentError("experts", experts, f"must be from 1 to {MOST_EXPERTS}")
        check_features(hidden, intermediate, STEPS[kind])
        super().__init__()
        self.experts, self.hidden, self.intermediate = experts, hidden, intermediate
        self.kind, self.recompute = kind, recompute
        given: dict[str, Any] = {"dtype": BF16, "device": device}
        inward = torch_.empty(experts, 2 * intermediate, hidden, **given)
        outward = torch_.empty(experts, hidden, intermediate, **given)
        self.gate_up, self.down = map(torch_.nn.Parameter, (inward, outward))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Linear: uniform within 1 / sqrt(the features that come in)."""
        for weight in (self.gate_up, self.down):
            bound = weight.shape[-1] ** -0.5
            torch_.nn.init.uniform_(weight, -bound, bound)

    def put_projections(self, gate: Any, up: Any, down: Any) -> None:
        """Round wide weights into the parameters: gate and up [experts, intermediate, hidden], down [experts, hidden, intermediate]; of experts that ranks divide, this rank's."""
        with torch_.no_grad():
            own(self.gate_up).copy_(alternating(gate, up))
            own(self.down).copy_(down)

    def forward(self, x: Any, chosen: Any, weights: Any, add: Any = None) -> Any:
        """bfloat16 [tokens, hidden]: of each token, after add's, the sum of its experts' results times their weights, in FP32.

        x: bfloat16 [tokens, hidden]. chosen: integers [tokens, top]; one that is no expert, as -1, adds nothing. weights: float32, bfloat16 or float16 [tokens, top]. add: bfloat16 [tokens, hidden]. All but
        chosen get gradients. The host waits for nothing. Raises ArgumentError.
        """
        how: dict[str, Any] = {"kind": self.kind, "recompute": self.recompute}
        run = moe_train if self.across is None else self.across.train
        return run(x, own(self.gate_up), own(self.down), as_ids(chosen), weights, add, **how)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if self.across is not None:
            state_dict = self.across.divided(self, prefix, state_dict)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        sides = f"hidden={self.hidden}, intermediate={self.intermediate}"
        return f"experts={self.experts}, {sides}, kind={self.kind}, recompute={self.recompute}"


class SharedExpert(torch_.nn.Module):  # type: ignore[misc]
    """down_proj(silu(gate_proj(x)) * up_proj(x)): `Linear`, or in FP8 `Fp8Linear` with masters."""

    def __init__(self, hidden: int, intermediate: int, kind: str, device: Any = None) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden, intermediate, kind, device)
        self.up_proj = _linear(hidden, intermediate, kind, device)
        self.down_proj = _linear(intermediate, hidden, kind, device)

    def forward(self, x: Any) -> Any:
        return self.down_proj(torch_.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def _linear(inward: int, outward: int, kind: str, device: Any) -> Any:
    if kind == FP8:
        return Fp8Linear(inward, outward, False, device, master=True)
    return Linear(inward, outward, False, device)


class MoE(Kept):
    """A mixture of experts that trains: router, `torch.ops.gemmgen.select`, which takes no DTensors, `Experts`, and what all tokens share, added by the last launch.

    hidden, intermediate, kind, recompute: as of `Experts`. experts: 1 to 512, of which each token has its `top` best. score, groups, kept_groups, renormalise, scale: as of `select`. biased: whether a bias of scores chooses, `router_bias`, a float32 buffer [experts] of zeros at first, which no change of a model's dtype touches, and nothing here changes: what balances experts without a loss does. shared: the intermediate features of an expert that every
    token has; None: there is none. Modules: `router`, a torch.nn.Linear in float32, in whose dtype logits are computed, without bias; `experts`; `shared`. Raises ArgumentError.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        top: int,
        *,
        kind: str = "bf16",
        shared: int | None = None,
        score: str = "softmax",
        biased: bool = False,
        groups: int = 1,
        kept_groups: int = 1,
        renormalise: bool = True,
        scale: float = 1.0,
        recompute: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        given: dict[str, Any] = {"kind": kind, "recompute": recompute, "device": device}
        self.experts = Experts(experts, hidden, intermediate, **given)
        self.top = top
        self.how: dict[str, Any] = {"score": score, "groups": groups, "kept_groups": kept_groups}
        self.how |= {"renormalise": renormalise, "scale": scale}
        logits = torch_.empty(0, experts, device="meta")
        check(logits, How(top=top, bias=None, shared=0, **self.how))
        bias = torch_.zeros(experts, dtype=torch_.float32, device=device) if biased else None
        self.register_buffer("router_bias", bias)
        self.router = torch_.nn.Linear(hidden, experts, False, device, torch_.float32)
        self.shared = None
        if shared is not None:
            check_features(hidden, shared, STEPS[kind])
            self.shared = SharedExpert(hidden, shared, kind, device)

    @property
    def kept(self) -> tuple[Any, ...]:
        return () if self.router_bias is None else (self.router_bias,)

    def prepared(self, prefix: str, state: dict[str, Any]) -> list[str]:
        return []

    def forward(self, x: Any) -> Any:
        """x's shape, bfloat16: x is bfloat16 [..., hidden]."""
        if not x.dim() or x.shape[-1] != self.experts.hidden:
            allowed = f"must be [..., {self.experts.hidden}]"
            raise ArgumentError("x shape", tuple(x.shape), allowed)
        tokens = x.reshape(-1, x.shape[-1])
        logits = self.router(tokens.to(self.router.weight.dtype))
        chosen, weights = gemmgen.select(logits, self.top, bias=self.router_bias, **self.how)
        add = None if self.shared is None else self.shared(tokens)
        return self.experts(tokens, chosen, weights, add).view(x.shape)

    def extra_repr(self) -> str:
        return ", ".join(f"{n}={x}" for n, x in {"top": self.top, **self.how}.items())
