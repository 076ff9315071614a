"""The experts of a mixture whose weights have 4 bits: two grouped GEMMs, and an activation in the first's epilogue, or between them in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import quant
from ..errors import ArgumentError
from ..ir.packed import BY_BLOCK, ROWS
from ..ops.mixture import GAPS, expected_of, multiplied, results
from ..ops.mixture_checks import MOST_EXPERTS, ORDERS
from ..ops.mixture_packed import features
from ..ops.mixture_weights import SCALED_ROWS, paired_name
from ..ops.mixture_weights import Experts as Weights
from ..ops.names import ArgumentNames
from ..quant.quantised import in_turn
from ..torch_ops.dtensor import is_dtensor
from ..torch_ops.gates import GATES, clamped, gated
from .coded import Coded, activations_of, check_packed, dtype_for, packed_alike
from .experts import CALLS, as_ids, check_choices
from .frozen import gemmgen, own, torch_

if TYPE_CHECKING:
    from .expert_ranks import ExpertRanks

OF_GATE_UP = ArgumentNames(names={"weights": "gate_up"})
ACTIVATIONS: dict[str, Callable[[Any, str], Any]] = {
    **{name: partial(gated, epilogue=name) for name in GATES},
    "swiglu_clamped": clamped,
}


class Experts4bit(Coded):
    """`experts` gated MLPs of INT4, MXFP4 or NVFP4: down(activation(gate(x), up(x))) of each token's experts, and the sum of these times their weights.

    hidden, intermediate: features, multiples of the columns that share a scale. weights, activations: as of `Linear4bit`. order: of the rows of gate_up: "alternating" between gate and up, as gpt-oss has
    them, or "halves", gate's before up's. activation: "swiglu", "geglu", "geglu_tanh", "reglu", or "swiglu_clamped", gpt-oss's (`gemmgen.epilogues.swiglu_clamped`, limit 7, alpha 1.702). bias: whether both projections add one,
    in epilogues. Buffers: uint8 blocks `gate_up` of [experts, 2 * intermediate, hidden] and `down` of [experts, hidden, intermediate]; of NVFP4, and of MXFP4 for float16 and E4M3, their rows' factors, float32 `gate_up_factors` and `down_factors`; float32 `gate_up_bias` [experts, 2 * intermediate] and `down_bias`
    [experts, hidden]. For inference, as `Linear4bit`, whose words on dtypes and a `state_dict` of its own hold here. Raises ArgumentError.

    Ranks may divide the experts: `gemmgen.nn.parallel.ExpertParallel`. Then `contiguous` and `masked` take rows of this rank's experts alone, a `state_dict` has DTensors, and one that is loaded may have them too, or all experts.

    Of alternating rows the activation is the first GEMM's epilogue, in FP32, rounded once. Of halves, which a GEMM's epilogue does not pair, what gate and up give is rounded to the dtype, and the activation is torch's, in FP32, rounded once, over as many rows as any choice may need: slower, so `from_quantised` makes alternating rows of them.
    """

    across: ExpertRanks | None = None  # by `gemmgen.nn.parallel`

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        device: Any = None,
        *,
        weights: str = "e2m1_32_e8m0",
        order: str = "alternating",
        activation: str = "swiglu",
        activations: str | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(weights, activations)
        if not 1 <= experts <= MOST_EXPERTS:
            raise ArgumentError("experts", experts, f"must be from 1 to {MOST_EXPERTS}")
        step = features(self.form)
        for name, side in (("hidden", hidden), ("intermediate", intermediate)):
            if side < 1 or side % step:
                allowed = f"must be a positive multiple of {step}, for {weights}"
                raise ArgumentError(name, side, allowed)
        for name, said, known in (
            ("order", order, ORDERS),
            ("activation", activation, [*ACTIVATIONS]),
        ):
            if said not in known:
                raise ArgumentError(name, said, f"must be one of {', '.join(known)}")
        self.experts, self.hidden, self.intermediate = experts, hidden, intermediate
        self.order, self.activation = order, activation
        for name, *sides in (("gate_up", 2 * intermediate, hidden), ("down", hidden, intermediate)):
            beside = (f"{name}_factors", f"{name}_bias")
            self.hold(name, experts, *sides, beside=beside, biased=bias, device=device)

    @classmethod
    def from_packed(
        cls,
        gate_up: quant.Packed,
        down: quant.Packed,
        *,
        gate_up_bias: Any = None,
        down_bias: Any = None,
        order: str = "alternating",
        activation: str = "swiglu",
        activations: str | None = None,
    ) -> Experts4bit:
        """One over the memory of gate_up [experts, 2 * intermediate, hidden] and down [experts, hidden, intermediate], of one format. Biases: both or none,
        bfloat16, float16 or float32 [experts, 2 * intermediate] and [experts, hidden]. activations: as of `Linear4bit.from_packed`. Raises ArgumentError."""
        check_packed("gate_up", gate_up, 3)
        check_packed("down", down, 3)
        experts, both, hidden = gate_up.shape
        if both % 2:
            allowed = "must be [experts, 2 * intermediate, hidden]"
            raise ArgumentError("gate_up shape", gate_up.shape, allowed)
        if down.shape != (experts, hidden, both // 2):
            allowed = f"must be {[experts, hidden, both // 2]}, as gate_up's"
            raise ArgumentError("down shape", down.shape, allowed)
        of = [
            {"weights": x.weights, "activations": activations_of(x, activations)}
            for x in (gate_up, down)
        ]
        if of[0] != of[1]:
            allowed = f"must be {gate_up.weights} for {gate_up.dtype}, as gate_up's"
            raise ArgumentError("down format", f"{down.weights} for {down.dtype}", allowed)
        if (gate_up_bias is None) is not (down_bias is None):
            name = "gate_up_bias" if gate_up_bias is None else "down_bias"
            raise ArgumentError(name, None, "must be given: both projections have a bias, or none")
        said: dict[str, Any] = {"order": order, "activation": activation, **of[0]}
        said |= {"bias": down_bias is not None}
        made = cls(experts, hidden, both // 2, "meta", **said)
        made.take("gate_up", gate_up, "gate_up_factors", "gate_up_bias", gate_up_bias)
        made.take("down", down, "down_factors", "down_bias", down_bias)
        return made

    @classmethod
    def from_quantised(
        cls, gate_up: quant.Quantised, down: quant.Quantised, dtype: Any = None, **given: Any
    ) -> Experts4bit:
        """`from_packed` of weights as `gemmgen.quant` reads them, packed on the CPU; scales of whole rows as those of the widest groups that divide hidden and intermediate. dtype: of what is multiplied, as of `Linear4bit.from_quantised`. given: what else `from_packed` takes; of order
        "halves" the rows of gate_up, and of its bias, are put in turn first, so that the layer's order is "alternating". Raises ArgumentError."""
        if given.get("order") == "halves":
            with OF_GATE_UP:
                given, gate_up = _in_turn(given), quant.alternating(gate_up)
        to = dtype_for(given.get("activations"), dtype)
        packed = packed_alike({"gate_up": gate_up, "down": down}, to)
        return cls.from_packed(*packed, **given)

    def forward(self, x: Any, chosen: Any, weights: Any) -> Any:
        """x's dtype, [tokens, hidden]: of each token, the sum of its experts' results times their weights, in FP32.

        x: [tokens, hidden]. chosen: integers [tokens, top], experts; one that is none, as -1, adds nothing. weights: float32, bfloat16 or float16 [tokens, top]. The host waits for nothing, and
        a CUDA graph may hold it; the sum is in the order of `chosen`, product and sum each rounded (`gemmgen.ops.combine`). Raises ArgumentError.
        """
        for name, t in (("x", x), ("chosen", chosen), ("weights", weights)):
            if is_dtensor(t):
                allowed = f"must be of this rank's own tokens: {name}.to_local()"
                raise ArgumentError(name, "a DTensor", allowed)
        self.check_rows(x, self.hidden, 2)
        if self.across is not None:
            return self.across.forward(self, x, chosen, weights)
        check_choices(x, chosen, weights)
        way = self._whole if self.fused else self._apart
        with torch_.no_grad():
            y, slots = way(x, as_ids(chosen))
        return gemmgen.combine(y, slots, weights)

    @property
    def fused(self) -> bool:
        """Whether the layer is `gemmgen.ops.moe`'s: rows alternate, and those of gate and up are whole blocks."""
        return self.order == "alternating" and 2 * self.intermediate % ROWS == 0

    def _whole(self, x: Any, chosen: Any) -> tuple[Any, Any]:
        """(y, slots), by what `gemmgen.ops.moe` launches."""
        return results(CALLS, self._weights(), x, chosen, experts=self.experts)

    def _weights(self) -> Weights:
        """This rank's."""
        return Weights(
            w1=own(self.gate_up),
            w2=own(self.down),
            scale_w1=own(self.gate_up_factors),
            scale_w2=own(self.down_factors),
            bias_w1=own(self.gate_up_bias),
            bias_w2=own(self.down_bias),
            epilogue=self.activation,
            packed=self.weights,
            activations=self.activations,
        )

    def leaving(self, x: Any) -> tuple[Any, Any]:
        """What copies of tokens [tokens, hidden] are made of, where ranks divide the experts: rows, and their scales [tokens, 1] or [tokens, ceil(hidden / 128)] if they are quantised before they are copied."""
        if self.activations is None or not self.fused:
            return x, None
        return self.quantised_rows(x)

    def multiply(
        self,
        rows: Any,
        scale: Any,
        ends: Any,
        expected_rows: int | None = None,
        expected_groups: int | None = None,
        *,
        alignment: int = GAPS,
    ) -> Any:
        """`contiguous` of rows and scales as `leaving` gives them. alignment: of the rows where an expert's begin: 128, 64, 8, 4 or 1."""
        with torch_.no_grad():
            expected = expected_rows, expected_groups
            if self.fused:
                w = self._weights()
                return multiplied(CALLS, w, [rows, scale], ends, *expected, alignment=alignment)
            names = ("expected_rows", "expected_groups")
            said = {"group_ends": ends, "alignment": alignment}
            said |= dict(zip(names, expected, strict=True))
            return self._multiplied(partial(self.product, "grouped_gemm", **said), rows)

    def _apart(self, x: Any, chosen: Any) -> tuple[Any, Any]:
        """(y, slots), by operators; of halves the activation is torch's."""
        step = SCALED_ROWS if self.activations == BY_BLOCK else 1
        slots, copies, ends = gemmgen.route(chosen, self.experts, alignment=step)
        rows, _ = gemmgen.spread(x, None, slots, copies.shape[0])
        expected = expected_of(chosen.numel(), self.experts, self.experts)
        y = self.multiply(rows, None, ends, *expected, alignment=step)
        return y, slots

    def contiguous(
        self,
        x: Any,
        ends: Any,
        expected_rows: int | None = None,
        expected_groups: int | None = None,
    ) -> Any:
        """x's dtype, [M, hidden], of rows that are sorted already; those of no expert hold anything.

        x: [M, hidden]. ends: int32 [experts], the row after each expert's last; each expert's rows begin at the first multiple of 128 from the end of the one before. expected_rows: of an expert that has any,
        expected_groups: how many have any, for the choice of a config.
        """
        self.check_rows(x, self.hidden, 2)
        with torch_.no_grad():
            return self.multiply(*self.leaving(x), ends, expected_rows, expected_groups)

    def masked(
        self,
        x: Any,
        counts: Any,
        expected_rows: int | None = None,
        expected_groups: int | None = None,
    ) -> Any:
        """x's dtype, [experts, most, hidden], of each expert's first `counts` rows; the others hold anything.

        x: [experts, most, hidden]. counts: int32 [experts]. expected_rows, expected_groups: as of `contiguous`.
        """
        self.check_rows(x, self.hidden, 3)
        said = {"expected_rows": expected_rows, "expected_groups": expected_groups}

        def product(a: Any, b: Any, **given: Any) -> Any:
            return self.product("masked_gemm", a, b, counts, **said, **given)

        return self._multiplied(product, x)

    def _multiplied(self, product: Callable[..., Any], x: Any) -> Any:
        with torch_.no_grad():
            first = self._said("gate_up", 2 * self.intermediate)
            if self.order == "alternating":
                biased = self.gate_up_bias is not None
                h = product(
                    x,
                    own(self.gate_up),
                    **first | {"epilogue": paired_name(self.activation, biased)},
                )
            else:
                h = ACTIVATIONS[self.activation](product(x, own(self.gate_up), **first), self.order)
            return product(h, own(self.down), **self._said("down", self.hidden))

    def _said(self, name: str, columns: int) -> dict[str, Any]:
        said, bias = {"columns": columns}, own(getattr(self, f"{name}_bias"))
        said |= {"scale_b": own(getattr(self, f"{name}_factors"))}
        return said if bias is None else {**said, "epilogue": "bias", "bias": bias}

    @property
    def mine(self) -> range:
        """The experts that this rank has."""
        return range(self.experts) if self.across is None else self.across.mine

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if self.across is not None:
            state_dict = self.across.divided(self, prefix, state_dict)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def facts(self) -> str:
        sides = f"{self.experts}x{self.hidden}x{self.intermediate}"
        return f"{self.said} {sides} {self.order} {self.activation}"

    def extra_repr(self) -> str:
        sides = f"hidden={self.hidden}, intermediate={self.intermediate}"
        how = f"order={self.order}, activation={self.activation}, bias={self.down_bias is not None}"
        return f"experts={self.experts}, {sides}, {how}, weight={self.by}, x={self.dtype}"


def _in_turn(given: dict[str, Any]) -> dict[str, Any]:
    """What `from_packed` takes, of halves, for rows that alternate. A bias that is none is refused there."""
    found, bias = {**given, "order": "alternating"}, given.get("gate_up_bias")
    if isinstance(bias, torch_.Tensor) and bias.dim() and bias.shape[-1] % 2 == 0:
        found["gate_up_bias"] = in_turn(bias, -1)
    return found
