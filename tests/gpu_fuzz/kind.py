"""What is fuzzed of a kernel: a public function and how it is called, and the configs that kinds share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmgen.config import Config
from gemmgen.ir.heads import NO_GAPS, Heads, heads_of


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A function of `gemmgen.ops` and how it is called.

    a, b, out: names of torch's dtypes. scales: "" (none), "number", "tensor" or "vector" (of the whole sum),
    "block" (of 1 x 128 of A, 128 x 128 of B), "a" (of 1 x 128 of A alone) or "rows" (of 1 x 128 of both). packing: of groups along K.
    weights: what B is packed from, weights of 4 bits. scored: heads of a query whose scores are summed, in windows (0: none are);
    page: keys of a page (0: they lie in a row); compact: D's rows begin with their windows. config: None: chosen. given: further
    arguments.
    """

    function: str
    config: Config | None
    a: str = "bfloat16"
    b: str = ""
    out: str = "bfloat16"
    grouping: str = "none"
    layout: str = "nt"
    scales: str = ""
    accumulate: bool = False
    packing: str = ""
    weights: str = ""
    scored: int = 0
    page: int = 0
    compact: bool = False
    given: tuple[tuple[str, object], ...] = ()

    @property
    def heads(self) -> Heads:
        """Where D has gaps."""
        given = dict(self.given).get("heads")
        return NO_GAPS if given is None else heads_of(given)

    @property
    def top(self) -> int:
        """Of how many copies a row of A is where rows come by index; else 0."""
        return int(dict(self.given).get("top", 0))  # type: ignore[call-overload]

    @property
    def squares(self) -> bool:
        """Whether D's last column is the sum of squares of A's row, and B pairs of rows of which the last is zeros."""
        return self.function == "prenorm_gemm"

    @property
    def turned(self) -> tuple[bool, bool]:
        """Whether A is stored [K, M], and B [K, N]."""
        return self.layout[0] == "t", self.layout[1] == "n"

    @property
    def b_dtype(self) -> str:
        return self.b or self.a


PLAIN = Config()
SMALL = Config(block_m=64, block_n=64, consumers=1)
SWAPPED = Config(swap_ab=True, block_m=16)
SHARED_A, SHARED_B = Config(multicast="a", stages=3), Config(multicast="b", stages=3)
DIVIDED = replace(SMALL, split_k=2)
DIVIDED_SWAPPED = Config(split_k=4, swap_ab=True, block_m=16, block_n=64, consumers=1, stages=2)
EARLY = replace(SMALL, stages=6, pdl=True)
WAVES = Config(block_m=256, block_n=64, stages=3)
PEEKING = Config(block_m=256, stages=3, multicast="a", peek=True)
IN_TURNS = Config(ping_pong=True, in_flight=1, multicast="b", stages=3)

F16, F32, S8, S32 = "float16", "float32", "int8", "int32"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def dtype_name(torch_name: str) -> str:
    """As functions of `gemmgen.ops` call an output dtype."""
    return {"bfloat16": "bf16", F16: "f16", F32: "f32", S32: "s32"}[torch_name]
