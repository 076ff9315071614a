"""The operators: one row per function of `gemmgen.ops`. Schemas follow from the functions' signatures.

An operator has up to three overloads:
default: returns D, a new tensor. quantised: returns (D, its scales), D FP8; where the function takes `scale_out`.
out: writes to `out`, whose dtype says D's, and returns nothing: torch functionalises no operator that
returns what it was given. An FP8 `out` comes with `scale_out`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any, Literal

from .. import ops, recipes
from ..epilogues import EPILOGUES
from ..errors import ArgumentError
from ..ir.dtypes import BF16, E4M3, F16, FP8, S8, DType
from ..ir.expr import Argument, Expr, Scalar, arguments
from ..problem import Problem

Overload = Literal["", "quantised", "out", "gathered"]

FLOATS = ("bf16", "f16", "f32")
INTEGERS = ("s32", *FLOATS)
HALVES = (BF16, F16)

# Of a parameter of `ops`, by its annotation: the type in a schema, without and with a default.
TYPES = {
    "Any": ("Tensor", "Tensor?"),
    "str": ("str", "str"),
    "str | None": ("str?", "str?"),
    "int": ("int", "int"),
    "int | None": ("SymInt?", "SymInt?"),  # may follow from sizes that a compiler leaves open
    "bool": ("bool", "bool"),
    "bool | None": ("bool?", "bool?"),
    "Config | None": ("str", "str"),
    "Expr | str": ("str", "str"),
    "tuple[int, int, int] | None": ("int[]?", "int[]?"),
}
# What a schema says instead of a default that is no number, text or None.
DEFAULTS = {"Config | None": "", "Expr | str": "none"}
OF_ONE = ("rows", "top", "heads")  # of no DTensor
# Parameters that an overload does without.
LEFT_OUT: dict[Overload, tuple[str, ...]] = {
    "": ("out", "scale_out", "accumulate"),
    "quantised": ("out", "scale_out", "accumulate", "out_dtype", "heads"),
    "out": ("out_dtype", "out", "scale_out"),
    "gathered": (),
}


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One function of `ops` as an operator.

    operands: the dtypes that a may have; b has the same one, or of two FP8 dtypes either, unless it is packed. None: a function
    that quantises, with two results. family, grouping: as of a `Problem`; of groups that share A's rows,
    "ends" stands for both tables. outputs: D's dtypes by name, without the FP8 of the overload `quantised`.
    """

    function: Callable[..., Any]
    family: str = recipes.DENSE
    operands: tuple[DType, ...] = ()
    grouping: str = "none"
    outputs: tuple[str, ...] = FLOATS

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Those of the function that have names."""
        found = inspect.signature(self.function).parameters
        return {n: p for n, p in found.items() if p.kind is not Parameter.VAR_KEYWORD}

    @property
    def overloads(self) -> tuple[Overload, ...]:
        if not self.operands:
            return ("",)
        return ("", "quantised", "out") if "scale_out" in self.parameters else ("", "out")

    @cached_property
    def epilogue_arguments(self) -> dict[str, Argument]:
        """By name, what the named epilogues read, unless a parameter of the function is called that."""
        if "epilogue" not in self.parameters:
            return {}
        known = (x for e in EPILOGUES.values() for x in arguments(e))
        return {x.name: x for x in known if x.name not in self.parameters}

    @cached_property
    def epilogues(self) -> dict[str, Expr]:
        """By name, those that read nothing that is a parameter of the function."""
        own = self.epilogue_arguments
        return {n: e for n, e in EPILOGUES.items() if all(x.name in own for x in arguments(e))}

    def epilogue(self, name: str) -> Expr:
        """The epilogue called `name`. Raises ArgumentError."""
        if name not in self.epilogues:
            raise ArgumentError("epilogue", name, f"must be one of {', '.join(self.epilogues)}")
        return self.epilogues[name]

    @property
    def coded(self) -> bool:
        """Whether b is packed weights, uint8, whatever a is."""
        return "weights" in self.parameters

    @property
    def scaling(self) -> Literal["none", "block", "vector", "rows", "whole"]:
        """Of A and B, per 128 of K: 1x128 and 128x128 (block), 1x128 both (vector), of A alone (rows); of their sum (whole), with `rows` by column too."""
        if "scale_a_layout" in self.parameters:
            return "rows" if self.coded else "block"
        if "scale_layout" in self.parameters:
            return "vector"
        return "whole" if "scale_b" in self.parameters else "none"

    def meant(self, p: Problem, given: dict[str, Any]) -> Problem:
        """What is computed by launches of `p`, with these arguments. Raises ArgumentError."""
        return p

    def rows(self, m: Any, given: dict[str, Any]) -> Any:
        """Of D, of m rows of A, numbers or torch.SymInt. Raises ArgumentError."""
        return m

    def check_output(self, name: str) -> None:
        """Raise ArgumentError unless the default overload can return the dtype called `name`."""
        if name not in self.outputs:
            fp8 = "; the overload quantised returns e4m3" if "quantised" in self.overloads else ""
            raise ArgumentError("out_dtype", name, f"must be one of {', '.join(self.outputs)}{fp8}")

    def qualified(self, overload: Overload) -> str:
        return f"{self.name}.{overload}" if overload else self.name

    def schema(self, overload: Overload) -> str:
        """As `torch.library` takes it."""
        results = "(Tensor, Tensor)" if overload == "quantised" or not self.operands else "Tensor"
        results = "()" if overload == "out" else results
        return f"{self.qualified(overload)}({', '.join(self._declared(overload))}) -> {results}"

    def positional(self, overload: Overload) -> tuple[str, ...]:
        """The parameters that a schema does not ask for by name."""
        own = (p for n, p in self.parameters.items() if n not in LEFT_OUT[overload])
        return tuple(p.name for p in own if p.kind is not Parameter.KEYWORD_ONLY)

    def _declared(self, overload: Overload) -> Iterator[str]:
        own = [p for n, p in self.parameters.items() if n not in LEFT_OUT[overload]]
        yield from (declaration(self.parameters[n]) for n in self.positional(overload))
        yield "*"
        if overload == "out":
            yield "Tensor(a!) out"
            if "scale_out" in self.parameters:
                yield "Tensor(b!)? scale_out=None"
        yield from (declaration(p) for p in own if p.kind is Parameter.KEYWORD_ONLY)
        for name, x in self.epilogue_arguments.items():
            yield f"{'float' if isinstance(x, Scalar) else 'Tensor'}? {name}=None"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Every argument by name: torch leaves those out that have their defaults."""
        own = {n: _default(p) for n, p in self.parameters.items()}
        return {**own, **dict(zip(own, args, strict=False)), **kwargs}


def _default(p: Parameter) -> Any:
    return None if p.default is Parameter.empty else DEFAULTS.get(p.annotation, p.default)


def declaration(p: Parameter) -> str:
    required, optional = TYPES[p.annotation]
    if p.default is Parameter.empty:
        return f"{required} {p.name}"
    default = _default(p)
    return f"{optional} {p.name}={_quoted(default) if isinstance(default, str) else default}"


def _quoted(text: str) -> str:
    return f'"{text}"'


OPERATORS = (
    Operator(function=ops.gemm, operands=HALVES),
    Operator(function=ops.batched_gemm, operands=HALVES, grouping="batched"),
    Operator(function=ops.masked_gemm, operands=HALVES, grouping="masked"),
    Operator(function=ops.grouped_gemm, operands=HALVES, grouping="ends"),
    Operator(function=ops.k_grouped_gemm, operands=HALVES, grouping="k_columns"),
    Operator(function=ops.summed_gemm, operands=HALVES, grouping="summed"),
    Operator(function=ops.fp8_block_gemm, family=recipes.FP8_BLOCK, operands=(E4M3,)),
    Operator(
        function=ops.fp8_block_batched_gemm,
        family=recipes.FP8_BLOCK,
        operands=(E4M3,),
        grouping="batched",
    ),
    Operator(
        function=ops.fp8_block_masked_gemm,
        family=recipes.FP8_BLOCK,
        operands=(E4M3,),
        grouping="masked",
    ),
    Operator(
        function=ops.fp8_block_grouped_gemm,
        family=recipes.FP8_BLOCK,
        operands=(E4M3,),
        grouping="ends",
    ),
    Operator(function=ops.int8_block_gemm, family=recipes.FP8_BLOCK, operands=(S8,)),
    Operator(function=ops.fp8_wgrad_gemm, family=recipes.FP8_1D1D, operands=(E4M3,)),
    Operator(
        function=ops.fp8_k_grouped_gemm,
        family=recipes.FP8_1D1D,
        operands=(E4M3,),
        grouping="k_columns",
    ),
    Operator(function=ops.fp8_gemm, family=recipes.FP8, operands=FP8),
    Operator(function=ops.fp8_batched_gemm, family=recipes.FP8, operands=FP8, grouping="batched"),
    Operator(function=ops.fp8_masked_gemm, family=recipes.FP8, operands=FP8, grouping="masked"),
    Operator(function=ops.fp8_grouped_gemm, family=recipes.FP8, operands=FP8, grouping="ends"),
    Operator(function=ops.int8_gemm, operands=(S8,), outputs=INTEGERS),
    Operator(function=ops.int8_batched_gemm, operands=(S8,), grouping="batched", outputs=INTEGERS),
    Operator(function=ops.int8_masked_gemm, operands=(S8,), grouping="masked", outputs=INTEGERS),
    Operator(function=ops.int8_grouped_gemm, operands=(S8,), grouping="ends", outputs=INTEGERS),
    Operator(function=ops.w4a16_gemm, family=recipes.W4A16, operands=HALVES),
    Operator(
        function=ops.w4a16_batched_gemm, family=recipes.W4A16, operands=HALVES, grouping="batched"
    ),
    Operator(
        function=ops.w4a16_masked_gemm, family=recipes.W4A16, operands=HALVES, grouping="masked"
    ),
    Operator(
        function=ops.w4a16_grouped_gemm, family=recipes.W4A16, operands=HALVES, grouping="ends"
    ),
    Operator(function=ops.w4a8_gemm, family=recipes.W4A8, operands=(E4M3,)),
    Operator(
        function=ops.w4a8_batched_gemm, family=recipes.W4A8, operands=(E4M3,), grouping="batched"
    ),
    Operator(
        function=ops.w4a8_masked_gemm, family=recipes.W4A8, operands=(E4M3,), grouping="masked"
    ),
    Operator(
        function=ops.w4a8_grouped_gemm, family=recipes.W4A8, operands=(E4M3,), grouping="ends"
    ),
    Operator(function=ops.w4a8_block_gemm, family=recipes.W4A8_BLOCK, operands=(E4M3,)),
    Operator(
        function=ops.w4a8_block_batched_gemm,
        family=recipes.W4A8_BLOCK,
        operands=(E4M3,),
        grouping="batched",
    ),
    Operator(
        function=ops.w4a8_block_masked_gemm,
        family=recipes.W4A8_BLOCK,
        operands=(E4M3,),
        grouping="masked",
    ),
    Operator(
        function=ops.w4a8_block_grouped_gemm,
        family=recipes.W4A8_BLOCK,
        operands=(E4M3,),
        grouping="ends",
    ),
    Operator(function=ops.w8a16_gemm, family=recipes.W8A16, operands=HALVES),
    Operator(
        function=ops.w8a16_batched_gemm, family=recipes.W8A16, operands=HALVES, grouping="batched"
    ),
    Operator(
        function=ops.w8a16_masked_gemm, family=recipes.W8A16, operands=HALVES, grouping="masked"
    ),
    Operator(
        function=ops.w8a16_grouped_gemm, family=recipes.W8A16, operands=HALVES, grouping="ends"
    ),
    Operator(function=ops.quantise_rows),
    Operator(function=ops.quantise_blocks),
)
