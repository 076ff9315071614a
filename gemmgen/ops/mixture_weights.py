"""The weights of a layer of experts, and what its GEMMs' epilogues are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..activations import ALPHA as ALPHA
from ..activations import LIMIT as LIMIT
from ..epilogues import gated_name
from ..epilogues import paired_name as paired_name
from ..ir.dtypes import E4M3, F32
from ..ir.packed import BY_BLOCK, ROWS, Form, named_for
from ..problem_checks import BOX_BYTES
from .calls import SCALE_BLOCK

SCALED_ROWS = BOX_BYTES // F32.bytes  # whose scales lie side by side from where a box begins
TENSORS = ("w1", "w2", "scale_", "bias_")  # how names of fields begin that have one


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
    packed: str | None = None
    activations: str | None = None

    @property
    def tensors(self) -> dict[str, Any]:
        """By name; None of what there is none of."""
        return {name: x for name, x in vars(self).items() if name.startswith(TENSORS)}

    @property
    def biased(self) -> bool:
        return self.bias_w1 is not None

    @property
    def scaled(self) -> bool:
        return self.scale_w1 is not None

    @property
    def form(self) -> Form | None:
        """Of packed weights."""
        if self.packed is None:
            return None
        return named_for(self.activations)[self.packed]

    @property
    def by_row(self) -> bool:
        """Whether rows of tokens are quantised, with one scale each, and those of weights have one each."""
        if self.packed is not None:
            return self.activations == E4M3.name
        return self.scaled and len(self.scale_w1.shape) == 2

    @property
    def by_block(self) -> bool:
        """Whether blocks of weights have a scale each."""
        return self.scaled and self.packed is None and not self.by_row

    @property
    def coded_by_block(self) -> bool:
        """Whether weights are packed, and rows of tokens have a scale for each 128 columns."""
        return self.packed is not None and self.activations == BY_BLOCK

    @property
    def alignment(self) -> int:
        """Of the rows where an expert's begin: few lie between two experts, or none."""
        return SCALED_ROWS if self.by_block or self.coded_by_block else 1

    @property
    def inner(self) -> int:
        """I. Of packed weights a multiple of 32: two rows of each in blocks of 64."""
        return int(self.w1.shape[1]) * (1 if self.packed is None else ROWS) // 2

    def first(self, start: int = 0, rows: int | None = None) -> tuple[Any, ...]:
        """w1, or so many of its rows, with their scales if blocks have them."""
        if rows is None:
            return (self.w1, self.scale_w1) if self.by_block else (self.w1,)
        part = self.w1.narrow(1, start, rows)
        if not self.by_block:
            return (part,)
        blocks = start // SCALE_BLOCK, rows // SCALE_BLOCK
        return part, self.scale_w1.narrow(1, *blocks)

    def second(self) -> tuple[Any, ...]:
        return (self.w2, self.scale_w2) if self.by_block else (self.w2,)

    def activation(self) -> dict[str, Any]:
        """The first GEMM's epilogue and what that reads, of alternating rows."""
        given = {"bias": self.bias_w1} if self.biased else {}
        given |= self._of_rows(self.scale_w1, 2 * self.inner)
        return {"epilogue": paired_name(self.epilogue, self.biased), **given}

    def halves(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same of gate's GEMM and of up's, which also reads the result of gate's, `c`."""
        last = {"epilogue": gated_name(self.epilogue, self.biased)}
        if not self.biased:
            return {}, last
        of_gate, of_up = halves_of(self.bias_w1)
        return {"epilogue": "bias", "bias": of_gate}, {**last, "bias": of_up}

    def after(self, hidden: int) -> dict[str, Any]:
        """The second GEMM's epilogue and what that reads. hidden: H."""
        given = {"epilogue": "bias", "bias": self.bias_w2} if self.biased else {}
        return given | self._of_rows(self.scale_w2, hidden)

    def _of_rows(self, scale: Any, columns: int) -> dict[str, Any]:
        """What a GEMM is told of weights whose rows have a scale each, or that are packed."""
        found = {} if scale is None or self.by_block else {"scale_b": scale}
        if self.packed is None:
            return found
        return found | {"weights": self.packed, "columns": columns}


def halves_of(x: Any) -> tuple[Any, Any]:
    """What [E, 2 * I] has for gate's rows and for up's, in one copy: an epilogue reads all experts' one after the other."""
    gate, up = x.unflatten(1, (2, -1)).transpose(0, 1).contiguous()
    return gate, up
