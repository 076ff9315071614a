"""Problem: what to multiply. Never a tile size, never a shape: M, N and K are run-time arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .epilogues import check_arguments, from_json, named, to_json
from .errors import ArgumentError
from .ir.collectives import COLLECTIVES, check_ranks
from .ir.counts import INT_LIMIT
from .ir.dtypes import BF16, DTYPES, E4M3, F16, F32, S32, DType
from .ir.expr import ACC, BEFORE, Expr
from .ir.groupings import GROUPINGS, Grouping
from .ir.heads import NO_GAPS, Heads, heads_of
from .ir.packed import Form, forms
from .notebook import table
from .problem_checks import (
    check_accumulate,
    check_alignment,
    check_collective,
    check_compact,
    check_heads,
    check_indexed,
    check_operands,
    check_paged,
    check_promise,
    check_rows,
    check_squares,
    check_summed,
    check_weights,
    check_wire,
)
from .problem_checks import check_shape as check_shape
from .problem_checks import check_sums as check_sums
from .problem_checks import depth_step as depth_step
from .recipes import recipe

OUTPUTS = (BF16, F16, F32, S32, E4M3)
# Left out of the JSON where they have their defaults.
OPTIONAL = (
    *("grouping", "alignment", "accumulate", "weights", "weights_ready", "indexed", "paged"),
    *("squares", "heads", "compact", "collective", "wire"),
)
Shape = tuple[int, int, int]  # M, N, K
MOST_GROUPS = 1 << 20
LAYOUTS = ("nt", "nn", "tn", "tt")
INT8_K = (INT_LIMIT - 1) // 2**14  # of sums in INT32: products of at most 2**14 each


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`D[M, N] = epilogue(A[M, K] @ B[N, K]^T)` in one family's recipe.

    family: one of `gemmgen.families.FAMILIES`: "fp8_block", "fp8_1d1d", "fp8", "dense".
    a, b: operand dtypes, of `gemmgen.BF16` and the like, or their names. d: output dtype; e4m3 comes with a scale per row and 128 columns.
    layout: how A, then B, is stored, as BLAS says it: A "n" [M, K] or "t" [K, M]; B "n" [K, N] or
    "t" [N, K]. So "nt" is both contiguous along K, the only one for 8-bit operands.
    grouping: one of `gemmgen.ir.groupings.GROUPINGS`: which GEMMs one launch computes. alignment: of the
    rows where groups begin, 128 or 64, of "ends" also 8, 4 or 1 (`row_step`); used where they share A's rows.
    weights: of a family that multiplies by packed weights, what they are packed from, a `gemmgen.formats.Format.name` with scales as `b`, such as
    "int4_128_bf16_zeros", "e2m1_32_e8m0" or, of 8 bits, "int8_column_f32"; b is then what codes become. Else "" (docs/adr/0065-weights-of-4-bits.md).
    epilogue: an expression of `gemmgen.epilogues`, or the name of one there, applied to every FP32 element before rounding.
    accumulate: add the result to what D holds, an FP32 D.
    weights_ready: a promise of the caller: no launch on the stream that may still run when this one begins writes B, or its
    scales. Not of groups along K, whose B is no weight (docs/adr/0048-weights-ahead.md).
    indexed: A is [T, K], and its rows come by index: row r of the product is of A's row `rows[r] / top`, rows an array on the device. Of
    groups that end where the device says ("ends"), and of an A contiguous along K; A's scales are of the product's rows
    (docs/adr/0063-rows-by-index.md).
    paged: of 64 (True) or 32, rows of a page: B is [pages, 64, K], and a group's rows come by page: row n of group g is row n % 64 of page `pages[g, n / 64]`,
    pages an array on the device; what the epilogue reads per column is [pages, 64] too. Of GEMMs of one shape ("batched"), and of a B contiguous
    along K (docs/adr/0078-pages.md).
    squares: the sum of the squares of A's row is added to the product's last column, where the epilogue pairs columns to the first of the
    last pair: with a B whose last row is zeros, D's last column is what its epilogue makes of that sum. That column lies apart, in an FP32
    array of M; D has the others, a multiple of four. Of 16-bit operands, A contiguous
    along K, one GEMM or several of one shape, into an FP32 D (docs/adr/0082-squares-of-rows.md).
    heads: (left, mid, right): D has N + N / (left + right) * mid columns, in each head mid that are left as they were between left and
    right ones of the product's (docs/adr/0075-gaps-in-heads.md). None: it has the product's.
    compact: D's row has its window's columns alone, from its first column on: column j of D is column window's first + j of the product. What lies
    behind a window in D, or is more than D has columns for, is not written. Of one GEMM whose windows have both bounds (docs/adr/0086-compact-windows.md).
    collective: one of `gemmgen.ir.collectives.COLLECTIVES`: what several GPUs make together of their products. "reduce_scatter":
    A [ranks * M, K], B [N, K] of each rank's own K; each stores its M rows of the sum of all (docs/adr/0049-reduce-scatter.md).
    "all_gather": A [M, K] of its own rows, which travel to all others, B [N, K] of its own columns; each stores all rows of those,
    D [ranks * M, N] (docs/adr/0051-all-gather.md). "all_reduce": A [M, K], B [N, K] of its own K; each stores D [M, N], the sum of
    all, with the same bits (docs/adr/0057-all-reduce.md).
    wire: where FP32 sums travel, BF16 or F16: other ranks' (of an all-reduce all) are rounded to it once, to nearest even, before
    they do. None: sums travel in the 32 bits that they have (docs/adr/0053-wire.md).

    Raises ArgumentError naming the argument for what no config could compute.
    """

    family: str
    a: DType
    b: DType
    d: DType = BF16
    layout: str = "nt"
    epilogue: Expr = ACC
    grouping: str = "none"
    alignment: int = 128
    accumulate: bool = False
    weights: str = ""
    weights_ready: bool = False
    indexed: bool = False
    paged: int = 0
    squares: bool = False
    heads: Heads | None = None
    compact: bool = False
    collective: str = "none"
    wire: DType | None = None

    if TYPE_CHECKING:  # what is made of these: names become what they name

        def __init__(
            self,
            *,
            family: str,
            a: DType | str,
            b: DType | str,
            d: DType | str = ...,
            layout: str = ...,
            epilogue: Expr | str = ...,
            grouping: str = ...,
            alignment: int = ...,
            accumulate: bool = ...,
            weights: str = ...,
            weights_ready: bool = ...,
            indexed: bool = ...,
            paged: int = ...,
            squares: bool = ...,
            heads: Heads | tuple[int, int, int] | None = ...,
            compact: bool = ...,
            collective: str = ...,
            wire: DType | str | None = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        sums = recipe(self.family)
        if isinstance(self.epilogue, str):
            object.__setattr__(self, "epilogue", named(self.epilogue))
        for name in ("a", "b", "d", "wire"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, _lookup(name, getattr(self, name), DTYPES))
        for name in ("a", "b", "d"):
            if not isinstance(getattr(self, name), DType):
                raise ArgumentError(name, getattr(self, name), f"must be one of {_names(DTYPES)}")
        check_operands(self, sums)
        if self.d not in OUTPUTS:
            raise ArgumentError(
                "d", self.d.name, f"must be one of {_names(t.name for t in OUTPUTS)}"
            )
        check_sums("d", self.a, self.d, self.epilogue)
        if self.layout not in LAYOUTS:
            raise ArgumentError("layout", self.layout, f"must be one of {', '.join(LAYOUTS)}")
        if self.layout != "nt" and not self.a.transposes:
            allowed = f"must be nt for {self.a}: wgmma reads 8-bit operands contiguous along K only"
            raise ArgumentError("layout", self.layout, allowed)
        if not isinstance(self.grouping, str) or self.grouping not in GROUPINGS:
            raise ArgumentError("grouping", self.grouping, f"must be one of {_names(GROUPINGS)}")
        check_alignment(self)
        if not isinstance(self.epilogue, Expr):
            raise ArgumentError("epilogue", self.epilogue, "must be a gemmgen.ir.expr.Expr")
        check_arguments(self.epilogue)
        check_accumulate(self)
        check_weights(self, sums)
        check_summed(self, sums)
        check_promise(self)
        check_indexed(self)
        object.__setattr__(self, "paged", check_paged(self))
        check_squares(self)
        if self.heads is not None:
            object.__setattr__(self, "heads", heads_of(self.heads))
            check_heads(self)
        check_collective(self)
        check_wire(self, sums)
        check_rows(self)
        check_compact(self)

    @property
    def value(self) -> Expr:
        """What an element of D is after a launch; `BEFORE` is what it was before."""
        return self.epilogue + BEFORE if self.accumulate else self.epilogue

    @property
    def quantised(self) -> bool:
        """Whether D is FP8, with FP32 scales written beside it."""
        return self.d == E4M3

    @property
    def form(self) -> Form | None:
        """How B is packed, if it is of codes."""
        coded = recipe(self.family).coded
        return forms(coded, self.b)[self.weights] if coded else None

    @property
    def gaps(self) -> Heads:
        """Where in D the product's columns lie."""
        return self.heads or NO_GAPS

    @property
    def together(self) -> bool:
        """Whether several GPUs launch it, as ranks of a collective."""
        return self.collective != "none"

    @property
    def alone(self) -> Problem:
        """That of one GPU that has all of it."""
        return replace(self, collective="none", wire=None)

    @property
    def grouped(self) -> Grouping:
        """Which tensors have groups: those of the grouping, or ranks."""
        grouping = GROUPINGS[self.grouping]
        return replace(grouping, rows=True) if COLLECTIVES[self.collective].rows else grouping

    @property
    def mn_major(self) -> tuple[bool, bool]:
        """Whether A is stored [K, M], and B [K, N]: contiguous along M and N instead of K."""
        return self.layout[0] == "t", self.layout[1] == "n"

    @property
    def stored(self) -> tuple[str, str]:
        """The sides of A and of B in memory, the contiguous one last."""
        a_mn, b_mn = self.mn_major
        rows = "T" if self.indexed else "M"
        return f"[K, {rows}]" if a_mn else f"[{rows}, K]", "[K, N]" if b_mn else "[N, K]"

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the epilogue by its name in `gemmgen.epilogues`, or as nested lists."""
        dtypes = {name: getattr(self, name).name for name in ("a", "b", "d")}
        return {
            "family": self.family,
            **dtypes,
            "layout": self.layout,
            "epilogue": to_json(self.epilogue),
            **{name: _plain(getattr(self, name)) for name in OPTIONAL if _differs(self, name)},
        }

    def _repr_html_(self) -> str:
        """In a notebook."""
        return table("Problem", self.to_json())

    @classmethod
    def from_json(cls, data: object) -> Problem:
        """The inverse of `to_json`; missing fields take their defaults.

        Raises ArgumentError naming the field for an unknown field, dtype or epilogue.
        """
        if not isinstance(data, dict):
            raise ArgumentError("problem", data, "must be a JSON object")
        known = {"family", "a", "b", "d", "layout", "epilogue", *OPTIONAL}
        for name in data:
            if name not in known:
                raise ArgumentError(
                    str(name), data[name], f"unknown field; known are {_names(known)}"
                )
        for name in ("family", "a", "b"):
            if name not in data:
                raise ArgumentError(name, None, "is required")
        values: dict[str, Any] = dict(data)
        for name in (n for n in ("a", "b", "d", "wire") if values.get(n) is not None):
            values[name] = _lookup(name, values[name], DTYPES)
        if "epilogue" in values:
            values["epilogue"] = from_json(values["epilogue"])
        return cls(**values)


def _plain(value: object) -> object:
    """In JSON."""
    if isinstance(value, Heads):
        return [*value.numbers]
    return value.name if isinstance(value, DType) else value


def _differs(p: Problem, name: str) -> bool:
    return bool(getattr(p, name) != getattr(Problem, name))


def _names(names: object) -> str:
    return ", ".join(sorted(names))  # type: ignore[call-overload]


def _lookup(argument: str, key: object, table: dict[str, Any]) -> Any:
    if not isinstance(key, str) or key not in table:
        raise ArgumentError(argument, key, f"must be one of {_names(table)}")
    return table[key]


def check_groups(p: Problem, groups: int) -> None:
    """Raise ArgumentError unless so many GEMMs can be in one launch of `p`, or so many ranks launch it."""
    if p.together:
        return check_ranks(groups, name="groups")
    if (
        isinstance(groups, bool)
        or not hasattr(groups, "__index__")
        or not 1 <= groups <= MOST_GROUPS
    ):
        raise ArgumentError("groups", groups, f"must be an integer from 1 to {MOST_GROUPS}")
    if groups > 1 and p.grouping == "none":
        raise ArgumentError("groups", groups, "must be 1 for a problem without a grouping")
