"""How sums are spelled that another GPU adds up: as they are, or two of them rounded to 16 bits each in a word."""

from __future__ import annotations

from typing import NamedTuple

from ..ir import mailboxes
from ..ir.dtypes import BF16, F16, DType
from ..ir.nodes import Kernel
from .numbers import Number

# By the dtype of both: what makes a word of them, and what each is in FP32.
PAIRS = {
    BF16: ("ptx::pack_bf16", "ptx::low_bf16", "ptx::high_bf16"),
    F16: ("ptx::pack_f16", "ptx::low_f16", "ptx::high_f16"),
}


class Wire(NamedTuple):
    """words: of a thread, each of C type `word`."""

    acc: str
    dtype: DType | None
    words: int
    word: str

    def sent(self, i: Number, count: int) -> str:
        """Words i on, as many as `count`, of the registers."""
        return ", ".join(self._sent(i + j) for j in range(count))

    def added(self, i: Number, names: str) -> str:
        """To the registers, words i on, which have these names."""
        return ", ".join(self._added(i + j, name) for j, name in enumerate(names))

    def _sent(self, i: Number) -> str:
        if self.dtype is None:
            return f"{self.acc}[{i}]"
        return f"{PAIRS[self.dtype][0]}({self.acc}[{2 * i}], {self.acc}[{2 * i + 1}])"

    def _added(self, i: Number, name: str) -> str:
        if self.dtype is None:
            return f"{self.acc}[{i}] += {name}"
        _, low, high = PAIRS[self.dtype]
        first, second = f"{self.acc}[{2 * i}]", f"{self.acc}[{2 * i + 1}]"
        return f"{first} += {low}({name}), {second} += {high}({name})"


def wire(kernel: Kernel, acc: str) -> Wire:
    """Of the sums that `acc` holds."""
    return Wire(
        acc=acc,
        dtype=kernel.peers.wire,
        words=mailboxes.words(kernel, acc),
        word=mailboxes.word(kernel, acc),
    )
