"""The experts of a mixture: for each row, down(silu(gate(x)) * up(x)) of its expert, FP8 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..ops.mixture import GAPS, multiplied, results
from ..ops.mixture_weights import Experts
from ..torch_ops.dtensor import is_dtensor
from ..torch_ops.of_experts import calls
from .frozen import WIDE, Frozen, gemmgen, own, torch_
from .linear import check_features

if TYPE_CHECKING:
    from .expert_ranks import ExpertRanks

CALLS = calls()
NARROW = (torch_.uint8, torch_.int8, torch_.int16)  # integers that no router has
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")  # as checkpoints call them


def as_ids(chosen: Any) -> Any:
    """Integers in a width that a router's ids may have; what are none as they are, which is refused."""
    return chosen.long() if chosen.dtype in NARROW else chosen


class GroupedExperts(Frozen):
    """`experts` gated MLPs. Two GEMMs in two launches: the first's epilogue is SwiGLU and quantises for the second.

    hidden, intermediate: features, multiples of 16. Buffers, float8_e4m3fn with `_scale` behind the name:
    gate_up [experts, 2 * intermediate, hidden], whose rows alternate between gate and up; down [experts, hidden,
    intermediate]. For inference: there are no gradients. Raises ArgumentError.

    A `state_dict` may hold these, wide or in FP8, or instead of both `N.gate_proj.weight`, `N.up_proj.weight` and
    `N.down_proj.weight` of each expert N, wide.

    Ranks may divide the experts: `gemmgen.nn.parallel.ExpertParallel`. Then `contiguous` and `masked` take rows of this rank's
    experts alone, a `state_dict` has DTensors, and one that is loaded may have them too, or all experts, or this rank's N.
    """

    across: ExpertRanks | None = None  # by `gemmgen.nn.parallel`

    def __init__(self, experts: int, hidden: int, intermediate: int, device: Any = None) -> None:
        if experts < 1:
            raise ArgumentError("experts", experts, "must be at least 1")
        check_features(hidden, intermediate, 16)
        super().__init__()
        self.experts, self.hidden, self.intermediate = experts, hidden, intermediate
        self.freeze("gate_up", experts, 2 * intermediate, hidden, device=device)
        self.freeze("down", experts, hidden, intermediate, device=device)

    def forward(self, x: Any, chosen: Any, weights: Any) -> Any:
        """bfloat16 [tokens, hidden]: of each token, the sum of its experts' results times their weights, in FP32.

        x: bfloat16 [tokens, hidden]. chosen: integers [tokens, top], experts, of which a rank has at most 512; one that is none, as -1, adds nothing. weights: float32,
        bfloat16 or float16 [tokens, top]. The host waits for nothing; the sum is in the order of `chosen`, product and
        sum each rounded (`gemmgen.ops.combine`). Raises ArgumentError.
        """
        self._check(x, 2)
        if self.across is not None:
            return self.across.forward(self, x, chosen, weights)
        check_choices(x, chosen, weights)
        with torch_.no_grad():
            y, slots = results(CALLS, self._weights(x), x, as_ids(chosen), experts=self.experts)
        return gemmgen.combine(y, slots, weights)

    def contiguous(self, x: Any, ends: Any) -> Any:
        """bfloat16 [M, hidden], of rows that are sorted already; those of no expert are not written.

        x: bfloat16 [M, hidden]. ends: int32 [experts], the row after each expert's last; each expert's rows begin
        at the first multiple of 128 from the end of the one before.
        """
        self._check(x, 2)
        q, scale = gemmgen.quantise_rows(x)
        return self.multiply(q, scale, ends)

    def masked(
        self,
        x: Any,
        counts: Any,
        expected_rows: int | None = None,
        expected_groups: int | None = None,
    ) -> Any:
        """bfloat16 [experts, most, hidden], of each expert's first `counts` rows; the others are not written.

        x: bfloat16 [experts, most, hidden]. counts: int32 [experts]. expected_rows: of an expert that has any, expected_groups:
        how many have any, for the choice of a config. Shapes do not depend on the counts, so a CUDA graph may hold it.
        """
        self._check(x, 3)
        expected = {"expected_rows": expected_rows, "expected_groups": expected_groups}
        said = {"scale_a_layout": "mn", **expected}
        with torch_.no_grad():
            rows = gemmgen.quantise_rows(x)
            first = (*rows, *self._weight("gate_up", x), counts)
            h = gemmgen.fp8_block_masked_gemm.quantised(*first, epilogue="swiglu", **said)
            return gemmgen.fp8_block_masked_gemm(*h, *self._weight("down", x), counts, **said)

    def extra_repr(self) -> str:
        sides = f"hidden={self.hidden}, intermediate={self.intermediate}"
        return f"experts={self.experts}, {sides}, weight=e4m3 128x128, x=e4m3 1x128"

    def put_projections(self, gate: Any, up: Any, down: Any) -> None:
        """Quantise wide weights: gate and up [experts, intermediate, hidden], down [experts, hidden, intermediate]; of experts that
        ranks divide, this rank's."""
        self.put("gate_up", alternating(gate, up))
        self.put("down", down)

    def leaving(self, x: Any) -> tuple[Any, Any]:
        """What copies of tokens [tokens, hidden] are made of, where ranks divide the experts: codes and scales."""
        codes, scale = gemmgen.quantise_rows(x)
        return codes, scale

    def multiply(
        self,
        q: Any,
        scale: Any,
        ends: Any,
        expected_rows: int | None = None,
        expected_groups: int | None = None,
        *,
        alignment: int = GAPS,
    ) -> Any:
        """`contiguous` of rows that are quantised already, float8_e4m3fn [M, hidden]; those of no expert may hold anything.

        scale: float32 [M, ceil(hidden / 128)], as `quantise_rows` returns it. expected_rows, expected_groups: as of `masked`.
        alignment: of the rows where an expert's begin: 128, 64, 8 or 4.
        """
        with torch_.no_grad():
            w = self._weights(q)
            expected = expected_rows, expected_groups
            return multiplied(CALLS, w, [q, scale], ends, *expected, alignment=alignment)

    def _weights(self, x: Any) -> Experts:
        (w1, scale_w1), (w2, scale_w2) = (self._weight(n, x) for n in ("gate_up", "down"))
        return Experts(w1=w1, w2=w2, scale_w1=scale_w1, scale_w2=scale_w2)

    def _weight(self, name: str, x: Any) -> tuple[Any, Any]:
        """All of it for a DTensor, this rank's part for rows of its own."""
        codes, scale = self.frozen_weight(name)
        return (codes, scale) if is_dtensor(x) else (own(codes), own(scale))

    def _check(self, x: Any, sides: int) -> None:
        if x.dtype != torch_.bfloat16:
            raise ArgumentError("x dtype", x.dtype, f"must be {torch_.bfloat16}")
        if x.dim() != sides or x.shape[-1] != self.hidden:
            lead = "experts, rows" if sides == 3 else "rows"
            raise ArgumentError("x shape", tuple(x.shape), f"must be [{lead}, {self.hidden}]")
        if x.requires_grad and torch_.is_grad_enabled():
            raise ArgumentError("x", "requires a gradient", "must not: experts have none")

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *rest: Any
    ) -> None:
        missing, unexpected, errors = rest
        known = {f"{prefix}{n}.{p}.weight" for n in range(self.experts) for p in PROJECTIONS}
        if not known & state_dict.keys():
            if self.across is not None:
                state_dict = self.across.divided(self, prefix, state_dict)
            super()._load_from_state_dict(state_dict, prefix, metadata, strict, *rest)
            return
        keys = {(n, p): f"{prefix}{n}.{p}.weight" for n, p in self._projections()}
        absent = [key for key in keys.values() if key not in state_dict]
        missing += absent
        if not absent:
            errors += self._stack({at: state_dict[key] for at, key in keys.items()}, prefix)
        if strict:
            unexpected += [k for k in state_dict if k.startswith(prefix) and k not in known]

    @property
    def mine(self) -> range:
        """The experts that this rank has."""
        return range(self.experts) if self.across is None else self.across.mine

    def _projections(self) -> Iterator[tuple[int, str]]:
        return ((n, p) for n in self.mine for p in PROJECTIONS)

    def _stack(self, found: dict[tuple[int, str], Any], prefix: str) -> list[str]:
        """Take the weights of all experts, or say what is wrong with them."""
        inward, outward = (self.intermediate, self.hidden), (self.hidden, self.intermediate)
        sides = dict(zip(PROJECTIONS, (inward, inward, outward), strict=True))
        wrong = [
            f"{prefix}{n}.{p}.weight: shape is {tuple(x.shape)}, must be {sides[p]}"
            for (n, p), x in found.items()
            if tuple(x.shape) != sides[p]
        ]
        allowed = " or ".join(
            map(str, WIDE)
        )  # scales of gate's blocks and of up's cannot be merged
        wrong += [
            f"{prefix}{n}.{p}.weight: dtype is {x.dtype}, must be {allowed}"
            for (n, p), x in found.items()
            if x.dtype not in WIDE
        ]
        if not wrong:
            stacked = (
                torch_.stack([found[n, p] for n in self.mine]).to(self.down.device)
                for p in PROJECTIONS
            )
            self.put_projections(*stacked)
        return wrong


def check_choices(x: Any, chosen: Any, weights: Any) -> None:
    """Raise ArgumentError unless chosen is [tokens, top] of x [tokens, hidden], and weights too."""
    tokens = x.shape[0]
    if chosen.dim() != 2 or chosen.shape[0] != tokens:
        raise ArgumentError("chosen shape", tuple(chosen.shape), f"must be [{tokens}, top]")
    if weights.shape != chosen.shape:
        allowed = f"must be {tuple(chosen.shape)}, as chosen's"
        raise ArgumentError("weights shape", tuple(weights.shape), allowed)


def alternating(gate: Any, up: Any) -> Any:
    """[..., 2 * I, K] of gate and up [..., I, K]: rows in turn, as the epilogue `swiglu` pairs columns."""
    return torch_.stack((gate, up), -2).flatten(-3, -2)
