"""The floor: a kernel of ours that reads the operands of a problem once, and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..emit import environment, without_trailing_spaces
from ..errors import VerificationError
from ..ir.resources import Param
from ..runtime import loaded_cast, sms
from ..runtime.loaded_cast import LoadedCast
from ..runtime.torch_tensors import current_stream, torch
from .cases import Case
from .providers import Provider
from .select import FLOOR
from .timing import interleave

VECTOR_BYTES = 16  # the widest load
WARP = 32
WORDS = 1 << 32
ROUNDS = 5  # in which the grids are compared
# Threads of a CTA, CTAs of an SM, loads that a thread has under way: from 64 to 128 KiB of an SM. Which of them is the
# quickest depends on how much there is to read.
GRIDS = ((512, 1, 8), (512, 2, 8), (512, 4, 4))

Span = tuple[Any, int]  # a tensor, and how many bytes are read from where it begins


@dataclass(frozen=True, kw_only=True)
class Read:
    """A kernel that reads `spans` spans of memory, each once, as many CTAs on each SM of so many threads."""

    spans: int
    threads: int
    ctas_per_sm: int
    slots: int

    @property
    def name(self) -> str:
        return f"read_{self.spans}_by_{self.ctas_per_sm}x{self.threads}x{self.slots}"

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        each = range(self.spans)
        return (
            *(Param(name=f"x{i}", ctype="const uint4* __restrict__") for i in each),
            *(Param(name=f"vectors{i}", ctype="int") for i in each),
            Param(name="sums", ctype="uint32_t* __restrict__"),
        )


def source(read: Read) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same kernel, same bytes."""
    return without_trailing_spaces(environment().get_template("bench/read.cu.j2").render(read=read))


loaded = partial(loaded_cast.loaded, source)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Launches over these spans; `sums` holds what each warp found. The tensors are held."""

    kernel: LoadedCast
    spans: tuple[Span, ...]
    sums: Any
    ctas: int

    def __call__(self) -> Any:
        values: dict[str, int] = {"sums": self.sums.data_ptr()}
        for i, (tensor, size) in enumerate(self.spans):
            values |= {f"x{i}": tensor.data_ptr(), f"vectors{i}": size // VECTOR_BYTES}
        self.kernel.launch(values, self.ctas, current_stream(self.sums.device))
        return self.sums

    def check(self) -> None:
        """Launch once, and compare the sum with torch's. Raises VerificationError."""
        self.sums.fill_(-1)
        got = int(self().long().sum()) % WORDS
        want = sum(_sum(*span) for span in self.spans) % WORDS
        if got != want:
            raise VerificationError(f"the words that were read add up to {got}, not {want}")


def _sum(tensor: Any, size: int) -> int:
    """Of the 32-bit words of all whole vectors, as a kernel reads them."""
    whole = size // VECTOR_BYTES * VECTOR_BYTES
    words = tensor.view(torch().uint8).view(-1)[:whole].view(torch().int32)
    return int(words.sum(dtype=torch().int64))


def over(spans: Sequence[Span]) -> Reading:
    """Over contiguous tensors that begin at multiples of 16 bytes, by the grid of GRIDS that is the quickest: device
    times, cold L2. What is less than a vector at the end of a span is not read. Needs a GPU."""
    found = {grid: reading(spans, grid) for grid in GRIDS}
    times = interleave({str(grid): call for grid, call in found.items()}, ROUNDS)
    return min(found.items(), key=lambda x: times[str(x[0])].median)[1]


def reading(spans: Sequence[Span], grid: tuple[int, int, int]) -> Reading:
    """Over `spans`, by that grid."""
    device = spans[0][0].device
    threads, per_sm, slots = grid
    read = Read(spans=len(spans), threads=threads, ctas_per_sm=per_sm, slots=slots)
    vectors = sum(size // VECTOR_BYTES for _, size in spans)
    ctas = min(-(-vectors // threads), sms.usable(device.index) * per_sm)
    sums = torch().empty(ctas * threads // WARP, dtype=torch().int32, device=device)
    kernel = loaded(read, device.index)
    return Reading(kernel=kernel, spans=tuple(spans), sums=sums, ctas=ctas)


def operands(case: Case) -> tuple[Span, ...]:
    """The whole of A and B."""
    return tuple((t, t.numel() * t.element_size()) for t in (case.a, case.b))


PROVIDER = Provider(
    name=FLOOR,
    library=FLOOR,
    takes=lambda p: True,
    make=lambda case, fresh: over(operands(case)),
)
