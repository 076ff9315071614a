"""What the sums of a family are, which every layer above the IR may ask; how its kernels are built is in `families`."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ArgumentError, GemmgenError
from .ir.dtypes import BF16, E4M3, E5M2, F16, S8, DType
from .ir.packed import Form, forms
from .ir.promotion import SCALE_BLOCK as SCALE_BLOCK


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Facts about a family. All are asked of each: none has a default.

    operands: the (a, b) it multiplies; the first is what the command line takes where none is given.
    promotes: whether CUDA cores add each K block's sums in FP32, so that the tensor core drains every time; else
    one chain of wgmma goes over all of K.
    scale_depth: K that shares a scale, of A's rows one each; 0 where operands have no scales.
    scale_rows: rows of B that share one; 0 where B has none.
    unroll: K blocks per trip of the consumers' loop that the choice takes: worth 3 % to 10 % where they are promoted
    (docs/findings.md).
    coded: bits of B's codes, packed weights, which become numbers in registers; 0 where B is numbers.
    """

    operands: tuple[tuple[DType, DType], ...]
    promotes: bool
    scale_rows: int
    scale_depth: int
    unroll: int
    coded: int

    def __post_init__(self) -> None:
        if not self.operands:
            raise GemmgenError("operands=(): must be pairs of dtypes")
        rows = (0, 1, SCALE_BLOCK) if self.scale_depth else (0,)
        if self.scale_rows not in rows or self.scale_depth not in (0, SCALE_BLOCK):
            raise GemmgenError(
                f"scale_rows={self.scale_rows}, scale_depth={self.scale_depth}: must be both 0, or scale_depth "
                f"{SCALE_BLOCK} and scale_rows 0, 1 or {SCALE_BLOCK}"
            )

    @property
    def scaled(self) -> bool:
        """Whether operands come with scales: A, and unless it has none B."""
        return self.scale_depth > 0

    @property
    def scales_b(self) -> bool:
        """Whether B comes with scales."""
        return self.scale_rows > 0

    @property
    def scales_blocks(self) -> bool:
        """Whether so many rows of B have a scale that a tile's columns share a few."""
        return self.scale_rows > 1

    @property
    def scales_columns(self) -> bool:
        """Whether each column of a tile has a scale of its own in every K block."""
        return self.scale_rows == 1

    def scaled_by_b(self, form: Form | None) -> bool:
        """Whether sums are scaled by B's: by scales that come beside it, or that lie in weights packed so."""
        return self.scales_b or (form is not None and form.scales_sums)

    def weights(self, b: DType) -> tuple[str, ...]:
        """Names of what B may be packed from where it is multiplied as `b`; "" where it is numbers. Scales of sums over 128 of K are for sums that are promoted."""
        found = forms(self.coded, b) if self.coded else {}
        return tuple(n for n, f in found.items() if self.promotes or not f.scales_sums) or ("",)


# How the families are called: what is made for one of them says so by these, and asks recipes for the rest.
FP8_BLOCK, FP8_1D1D, FP8, DENSE = "fp8_block", "fp8_1d1d", "fp8", "dense"
W4A16, W4A8, W4A8_BLOCK, W8A16 = "w4a16", "w4a8", "w4a8_block", "w8a16"
FP8_PAIRS = tuple((a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2))

RECIPES = {
    FP8_BLOCK: Recipe(
        operands=((E4M3, E4M3), (S8, S8)),
        promotes=True,
        scale_rows=SCALE_BLOCK,
        scale_depth=SCALE_BLOCK,
        unroll=4,
        coded=0,
    ),
    # A register per four columns: with the loop unrolled ptxas spills the largest tiles.
    FP8_1D1D: Recipe(
        operands=((E4M3, E4M3),),
        promotes=True,
        scale_rows=1,
        scale_depth=SCALE_BLOCK,
        unroll=1,
        coded=0,
    ),
    FP8: Recipe(operands=FP8_PAIRS, promotes=True, scale_rows=0, scale_depth=0, unroll=4, coded=0),
    DENSE: Recipe(
        operands=((BF16, BF16), (F16, F16), *FP8_PAIRS, (S8, S8)),
        promotes=False,
        scale_rows=0,
        scale_depth=0,
        unroll=1,
        coded=0,
    ),
    W4A16: Recipe(
        operands=((BF16, BF16), (F16, F16)),
        promotes=False,
        scale_rows=0,
        scale_depth=0,
        unroll=1,
        coded=4,
    ),
    W4A8: Recipe(
        operands=((E4M3, E4M3),),
        promotes=False,
        scale_rows=0,
        scale_depth=0,
        unroll=1,
        coded=4,
    ),
    W4A8_BLOCK: Recipe(
        operands=((E4M3, E4M3),),
        promotes=True,
        scale_rows=0,
        scale_depth=SCALE_BLOCK,
        unroll=1,
        coded=4,
    ),
    W8A16: Recipe(
        operands=((BF16, BF16), (F16, F16)),
        promotes=False,
        scale_rows=0,
        scale_depth=0,
        unroll=1,
        coded=8,
    ),
}


def recipe(family: str) -> Recipe:
    """Raises ArgumentError for one that there is not."""
    if not isinstance(family, str) or family not in RECIPES:
        raise ArgumentError("family", family, f"must be one of {', '.join(RECIPES)}")
    return RECIPES[family]
