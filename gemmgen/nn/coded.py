"""What modules keep in 4 and 8 bits: packed blocks, what they are blocks of, their rows' factors, and biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import formats, quant
from ..errors import ArgumentError
from ..ir.codings import INT4
from ..ir.dtypes import BF16, E4M3, F16
from ..ir.packed import BY_BLOCK, COLUMNS, ROWS, Form, named_for
from ..ops.mixture_packed import check_activations
from ..runtime.torch_tensors import torch_dtype
from .frozen import WIDE, Kept, gemmgen, torch_

EXTRA = "_extra_state"  # what torch calls it in a state_dict


class Coded(Kept):
    """A module with buffers of packed weights, uint8, and of factors and biases, float32, which no change of a model's dtype touches. No gradients.

    weights: the name of their form, which says the dtype of activations too. activations: None: that dtype; "e4m3": bfloat16, quantised per row to FP8, by blocks for that; "e4m3_128": the same with a scale for each 128 columns of a row. A `state_dict` holds `facts` of the blocks, and a layer takes none of other blocks.
    """

    bits = 4  # of a code

    def __init__(self, weights: str, activations: str | None = None) -> None:
        check_activations(activations)
        known = named_for(activations, self.bits)
        if not known:
            allowed = f"must be None: weights of {self.bits} bits are multiplied by 16 bits"
            raise ArgumentError("activations", activations, allowed)
        if not isinstance(weights, str) or weights not in known:
            raise ArgumentError("weights", weights, f"must be one of {', '.join(known)}")
        super().__init__()
        self.weights, self.activations = weights, activations
        self.dtype = torch_dtype(BF16 if activations else known[weights].to)

    @property
    def form(self) -> Form:
        return named_for(self.activations, self.bits)[self.weights]

    @property
    def said(self) -> str:
        """What blocks are packed from, and for, in facts."""
        return self.weights if self.activations is None else f"{self.weights} by {self.form.to}"

    @property
    def by(self) -> str:
        """The same, and how rows are quantised, for a reader."""
        return self.weights if self.activations is None else f"{self.weights} by {self.activations}"

    def quantised_rows(self, x: Any) -> tuple[Any, Any]:
        """x [..., K] in FP8, and its scales, [..., 1] or [..., ceil(K/128)]."""
        if self.activations == BY_BLOCK:
            codes, scale = gemmgen.quantise_rows(x)
            return codes, scale
        codes, scale = gemmgen.quantise_rows(x, None)
        return codes, scale.unsqueeze(-1)

    def product(self, name: str, x: Any, *operands: Any, **given: Any) -> Any:
        """What the operator of packed weights gives that is called so, "gemm" or another, of rows in the layer's dtype: quantised first if activations are."""
        given["weights"] = self.weights
        if self.activations is None:
            return getattr(gemmgen, f"w{self.bits}a16_{name}")(x, *operands, **given)
        codes, scale = self.quantised_rows(x)
        if self.activations == BY_BLOCK:
            by_block = getattr(gemmgen, f"w4a8_block_{name}")
            return by_block(codes, scale, *operands, scale_a_layout="mn", **given)
        of_rows = {"scale_a": scale.squeeze(-1), **given}
        return getattr(gemmgen, f"w4a8_{name}")(codes, *operands, **of_rows)

    @property
    def facts(self) -> str:
        """What blocks are of that have the same shape."""
        raise NotImplementedError

    @property
    def kept(self) -> tuple[Any, ...]:
        return tuple(x for x in self._buffers.values() if x is not None)

    def hold(
        self, name: str, *sides: int, beside: tuple[str, str], biased: bool, device: Any
    ) -> None:
        """Make the buffer `name` of weights [..., N, K], which are 0, and those `beside` it: their factors [..., N], None unless they have some, and
        biases [..., N], None unless biased."""
        *lead, n, k = sides
        shape = (*lead, -(-n // ROWS), -(-k // COLUMNS), self.form.block_bytes)
        self.register_buffer(name, torch_.zeros(shape, dtype=torch_.uint8, device=device))
        for named, there in zip(beside, (self.form.factors, biased), strict=True):
            zeros = torch_.zeros((*lead, n), dtype=torch_.float32, device=device) if there else None
            self.register_buffer(named, zeros)

    def take(
        self, name: str, packed: quant.Packed, factors: str, bias_name: str, bias: Any
    ) -> None:
        """Put them in the place of the buffers, which need no memory then. Raises ArgumentError."""
        setattr(self, name, packed.blocks)
        setattr(self, factors, packed.factors)
        if bias is not None:
            wanted = tuple(getattr(self, bias_name).shape)
            setattr(self, bias_name, _wide_bias(bias_name, bias, wanted, packed.blocks.device))

    def get_extra_state(self) -> Any:
        return torch_.tensor([*self.facts.encode()], dtype=torch_.uint8, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """`load_state_dict` has looked at it before it loaded anything; others that hand tensors over are told here. Raises ArgumentError."""
        if facts_of(state) != self.facts:
            raise ArgumentError(EXTRA, facts_of(state), f"must be {self.facts}")

    def prepared(self, prefix: str, state: dict[str, Any]) -> list[str]:
        """`state` with biases in float32, or what is wrong with it."""
        said = state.get(prefix + EXTRA)
        if said is not None and facts_of(said) != self.facts:
            return [f"{prefix}{EXTRA}: blocks are of {facts_of(said)}, must be of {self.facts}"]
        for name, buffer in self._buffers.items():
            given = state.get(prefix + name)
            if given is None or buffer is None:
                continue
            if buffer.dtype == torch_.uint8 and given.dtype != torch_.uint8:
                return [f"{prefix}{name}: dtype is {given.dtype}, must be {torch_.uint8}"]
            if given.dtype in WIDE:
                state[prefix + name] = given.float()
        return []

    def check_rows(self, x: Any, features: int, sides: int | None = None) -> None:
        """Raise ArgumentError unless x is [..., features] of the layer's dtype, of so many sides, and asks for no gradient."""
        if x.dtype != self.dtype:
            allowed = f"must be {self.dtype}: weights are {self.weights}"
            raise ArgumentError("x dtype", x.dtype, allowed)
        lead = {None: "...", 2: "rows", 3: "experts, rows"}[sides]
        if not x.dim() or x.dim() != (sides or x.dim()) or x.shape[-1] != features:
            raise ArgumentError("x shape", tuple(x.shape), f"must be [{lead}, {features}]")
        if x.requires_grad and torch_.is_grad_enabled():
            allowed = (
                f"must not: weights of {self.bits} bits have no gradients; say torch.no_grad()"
            )
            raise ArgumentError("x", "requires a gradient", allowed)


def activations_of(packed: quant.Packed, activations: str | None) -> str | None:
    """What a layer over `packed` is told, where `activations` are asked for or, None, as blocks say. Raises ArgumentError."""
    check_activations(activations)
    if activations is not None and packed.activations is None:
        allowed = f"must be None: blocks are packed for {packed.dtype}"
        raise ArgumentError("activations", activations, allowed)
    if activations is not None and packed.form.scales_sums and activations != BY_BLOCK:
        allowed = f"must be {BY_BLOCK}: scales are of sums of {COLUMNS} columns"
        raise ArgumentError("activations", activations, allowed)
    return activations or packed.activations


def dtype_for(activations: str | None, dtype: Any) -> Any:
    """What weights are packed for, where a caller asks for `activations`, or for `dtype`. Raises ArgumentError."""
    check_activations(activations)
    fp8 = torch_dtype(E4M3)
    if activations is not None and dtype not in (None, fp8):
        allowed = f"must be None or {fp8}, for activations={activations!r}"
        raise ArgumentError("dtype", dtype, allowed)
    return dtype if activations is None else fp8


def check_packed(name: str, packed: Any, sides: int) -> None:
    """Raise ArgumentError unless it is `gemmgen.quant.Packed`, of so many sides."""
    if not isinstance(packed, quant.Packed):
        allowed = "must be a gemmgen.quant.Packed"
        raise ArgumentError(name, type(packed).__name__, allowed)
    if len(packed.shape) != sides:
        allowed = f"must be [{'experts, ' * (sides - 2)}N, K]"
        raise ArgumentError(f"{name} shape", packed.shape, allowed)


def packed_of(
    name: str,
    weights: Any,
    dtype: Any = None,
    group: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> quant.Packed:
    """`weights`, packed for activations of `dtype`; None: that of INT4's scales, or bfloat16. group, progress: as of `quant.pack`. Raises ArgumentError."""
    check_quantised(name, weights)
    half = weights.format.scale == F16.name
    to = dtype or (torch_.float16 if half else torch_.bfloat16)
    return quant.pack(weights, to, group=group, progress=progress)


def packed_alike(weights: Mapping[str, Any], dtype: Any = None) -> list[quant.Packed]:
    """`packed_of` each by its name; of INT4 in one group, where scales of some are of whole rows. Raises ArgumentError."""
    for name, x in weights.items():
        check_quantised(name, x)
    held, group = [x.format for x in weights.values()], None
    if all(f.element == INT4 for f in held) and not all(f.group for f in held):
        shared = (x.format.group_of(x.shape[-1]) for x in weights.values())
        group = formats.widest_group(*shared)
    return [packed_of(name, x, dtype, group) for name, x in weights.items()]


def check_quantised(name: str, weights: Any) -> None:
    """Raise ArgumentError unless it is `gemmgen.quant.Quantised`."""
    if not isinstance(weights, quant.Quantised):
        allowed = "must be a gemmgen.quant.Quantised"
        raise ArgumentError(name, type(weights).__name__, allowed)


def quantised(weight: Any, form: formats.Format, dtype: Any) -> quant.Packed:
    """A wide weight [..., N, K], quantised to `form` and packed for activations of `dtype`."""
    return packed_of("weight", quant.of(weight, form), dtype)


def _wide_bias(name: str, bias: Any, shape: tuple[int, ...], device: Any) -> Any:
    """As epilogues read it."""
    if not isinstance(bias, torch_.Tensor):
        raise ArgumentError(name, type(bias).__name__, "must be a torch tensor or None")
    if bias.dtype not in WIDE:
        allowed = f"must be {' or '.join(map(str, WIDE))}"
        raise ArgumentError(f"{name} dtype", bias.dtype, allowed)
    if tuple(bias.shape) != shape:
        raise ArgumentError(f"{name} shape", tuple(bias.shape), f"must be {list(shape)}")
    return bias.detach().to(device, torch_.float32).contiguous()


def facts_of(said: Any) -> str:
    """What a `state_dict` says of a layer's weights, of what may be anything."""
    if not isinstance(said, torch_.Tensor) or said.dtype != torch_.uint8:
        return f"no known format ({type(said).__name__})"
    return bytes(said.flatten().tolist()).decode(errors="replace")
