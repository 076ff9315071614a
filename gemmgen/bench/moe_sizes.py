"""What `gemmgen moe` may be asked: sizes of layers of experts, named ones among them, who chooses experts, and whom to time."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import ArgumentError
from ..ir import codings
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import BF16, E4M3
from ..ir.packed import GROUPS, OF_8_BITS, Form
from ..routing import MOST_EXPERTS
from .select import FLOOR

STEP = 16  # what features are multiples of: 16 bytes of FP8
MATRICES = 3  # of an expert: gate, up and down
WIDE_BYTES = 2  # of a weight for torch
MOST_TOKENS = (INT_LIMIT - 1) // MOST_EXPERTS  # whose copies have numbers of 32 bits
ROUTERS = ("even", "zipf")
# Of weights, by the name of the dtype of their codes and what shares a scale, and what that is called.
KINDS = {
    "fp8-blocks": "FP8 with block scales",
    "fp8-rows": "FP8 with a scale per token and channel",
    "int8-rows": "INT8 with a scale per token and channel",
    "bf16": "BF16",
    "int4": "INT4 with a scale per 128 of a row, by BF16",
    "mxfp4": "MXFP4 by BF16",
    "mxfp4-fp8": "MXFP4 by FP8 with a scale per token",
    "mxfp4-fp8-blocks": "MXFP4 by FP8 with a scale per token and 128 features",
    "int4-fp8-blocks": "INT4 with a scale per 128 of a row, by FP8 with a scale per token and 128 features",
    "int8-bf16": "INT8 with a scale per channel, by BF16",
    "fp8-bf16": "FP8 with a scale per channel, by BF16",
}
BLOCKS, FP8_ROWS, INT8_ROWS, WIDE, INT4, MXFP4, MXFP4_FP8, MXFP4_BLOCKS, INT4_BLOCKS, *OCTETS = (
    KINDS
)
FORMS = {
    INT4: Form(element=codings.INT4, to=BF16, group=GROUPS[-1]),
    MXFP4: Form(element=codings.E2M1, to=BF16, group=GROUPS[0]),
    **dict.fromkeys(
        (MXFP4_FP8, MXFP4_BLOCKS), Form(element=codings.E2M1, to=E4M3, group=GROUPS[0])
    ),
    INT4_BLOCKS: Form(element=codings.INT4, to=E4M3, group=GROUPS[-1]),
    **dict(zip(OCTETS, OF_8_BITS[BF16].values(), strict=True)),
}  # of packed weights, of whose groups features are multiples
BITS = {
    **dict.fromkeys((BLOCKS, FP8_ROWS, INT8_ROWS), 8),
    WIDE: 16,
    **{kind: form.bits for kind, form in FORMS.items()},
}  # of a weight
OURS, THEIRS, DEEP_GEMM = "gemmgen", "torch", "deep_gemm"
REPEATS = 15
DEFAULT = (OURS, THEIRS, FLOOR)
PROVIDERS = (*DEFAULT, DEEP_GEMM)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a layer: its experts, how many of them a token goes to, and features. Raises ArgumentError, with names of
    the command's options."""

    experts: int
    top: int
    hidden: int
    intermediate: int

    def __post_init__(self) -> None:
        _check("--experts", self.experts, MOST_EXPERTS)
        _check("--top", self.top, self.experts)
        for name in ("hidden", "intermediate"):
            side = getattr(self, name)
            if side < STEP or side % STEP:
                raise ArgumentError(f"--{name}", side, f"must be a positive multiple of {STEP}")

    @property
    def weights(self) -> int:
        """Of an expert."""
        return MATRICES * self.hidden * self.intermediate

    def bytes(self, wide: bool, halves: bool = False, kind: str = BLOCKS) -> int:
        """Of all experts of a kind, with BF16 ones beside them if `wide`, and with another gate and up in FP8 if `halves`; without
        scales."""
        again = 2 * self.hidden * self.intermediate * halves
        each = self.weights * BITS[kind] // 8 + self.weights * WIDE_BYTES * wide
        return self.experts * (each + again)


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ArgumentError(name, value, f"must be from 1 to {most}")


MODELS = {
    "v3": Sizes(experts=256, top=8, hidden=7168, intermediate=2048),
    # Of eight ranks one, which has an eighth of the experts.
    "v3-local": Sizes(experts=32, top=8, hidden=7168, intermediate=2048),
    "qwen3": Sizes(experts=128, top=8, hidden=4096, intermediate=1536),
    "gpt-oss": Sizes(experts=128, top=4, hidden=2880, intermediate=2880),
    "mixtral": Sizes(experts=8, top=2, hidden=4096, intermediate=14336),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """providers: of PROVIDERS. router: of `ROUTERS`. kind: of `KINDS`. repeats: rounds of each number of tokens."""

    sizes: Sizes
    providers: tuple[str, ...] = DEFAULT
    router: str = ROUTERS[0]
    kind: str = BLOCKS
    repeats: int = REPEATS
    seed: int = 0
    device: str = field(default="cuda", repr=False)  # another, for tests

    def __post_init__(self) -> None:
        given = ",".join(self.providers)
        if not {OURS} <= {*self.providers} <= {*PROVIDERS}:
            allowed = f"must be of {', '.join(PROVIDERS)}, and {OURS} among them"
            raise ArgumentError("--providers", given, allowed)
        if DEEP_GEMM in self.providers and self.kind != BLOCKS:
            allowed = f"must be {BLOCKS} for provider {DEEP_GEMM}"
            raise ArgumentError("--kind", self.kind, allowed)
        step = max(STEP, FORMS[self.kind].group) if self.kind in FORMS else STEP
        for name in ("hidden", "intermediate"):
            if getattr(self.sizes, name) % step:
                allowed = f"must be a multiple of {step} for --kind {self.kind}"
                raise ArgumentError(f"--{name}", getattr(self.sizes, name), allowed)
