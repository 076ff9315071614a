"""The weights of a layer of experts, and what its GEMMs' epilogues are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..activations import ALPHA as ALPHA
from ..activations import LIMIT as LIMIT
from ..epilogues import gated_name
from ..epilogues import paired_name as paired_name
from .calls import SCALE_BLOCK


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Their weights, as `moe` takes them."""

    w1: Any
    w2: Any
    scale_w1: Any = None
    scale_w2: Any = None
    bias_w1: Any = None
    bias_w2: Any = None
    order: str = "alternating"
    epilogue: str = "swiglu"

    @property
    def biased(self) -> bool:
        return self.bias_w1 is not None

    @property
    def scaled(self) -> bool:
        return self.scale_w1 is not None

    @property
    def by_row(self) -> bool:
        """Whether rows of weights have one scale each, not their blocks."""
        return self.scaled and len(self.scale_w1.shape) == 2

    def first(self, start: int = 0, rows: int | None = None) -> tuple[Any, ...]:
        """w1, or so many of its rows, with their scales if it has any."""
        if rows is None:
            return (self.w1, self.scale_w1) if self.scaled else (self.w1,)
        part = self.w1.narrow(1, start, rows)
        if not self.scaled:
            return (part,)
        blocks = start // SCALE_BLOCK, rows // SCALE_BLOCK
        return part, self.scale_w1.narrow(1, *blocks)

    def second(self) -> tuple[Any, ...]:
        return (self.w2, self.scale_w2) if self.scaled else (self.w2,)

    def activation(self) -> dict[str, Any]:
        """The first GEMM's epilogue and what that reads, of alternating rows."""
        given = {"bias": self.bias_w1} if self.biased else {}
        return {"epilogue": paired_name(self.epilogue, self.biased), **given}

    def halves(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same of gate's GEMM and of up's, which also reads the result of gate's, `c`."""
        last = {"epilogue": gated_name(self.epilogue, self.biased)}
        if not self.biased:
            return {}, last
        of_gate, of_up = halves_of(self.bias_w1)
        return {"epilogue": "bias", "bias": of_gate}, {**last, "bias": of_up}

    def after(self) -> dict[str, Any]:
        """The second GEMM's epilogue and what that reads."""
        return {"epilogue": "bias", "bias": self.bias_w2} if self.biased else {}


def halves_of(x: Any) -> tuple[Any, Any]:
    """What [E, 2 * I] has for gate's rows and for up's, in one copy: an epilogue reads all experts' one after the other."""
    gate, up = x.unflatten(1, (2, -1)).transpose(0, 1).contiguous()
    return gate, up
