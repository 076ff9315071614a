"""GEMMs that the ranks of a process group compute together, as operators of torch: `torch.ops.gemmgen.gemm_reduce_scatter` and others.

An operator is one launch of each rank (docs/adr/0049-reduce-scatter.md, 0051-all-gather.md) where that is possible and pays; elsewhere it is the plain
GEMM and torch's own collective, and the result lies in memory as it does else (docs/adr/0054-collective-operators.md). `explain` says which, and why.

The functions here are the operators, by their names. All ranks of the group call the same operators, of the same shapes, dtypes
and arguments that are no tensors, in the same order. What torch's collectives do is theirs: process groups, rendezvous, timeouts, failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import Parameter
from typing import Any

from .. import recipes
from ..errors import ArgumentError
from ..ir.collectives import ALL_GATHER, REDUCE_SCATTER
from ..ir.collectives import COLLECTIVES as TOGETHER
from ..ir.dtypes import E4M3
from ..ir.expr import Scalar
from ..problem import Problem
from ..runtime.torch_tensors import torch
from .agreement import require
from .operators import HALVES, Operator, Overload, declaration

torch_ = torch()  # a constant to a compiler, which would trace the function's imports
GROUP = "group_name"


def gemm_reduce_scatter(
    a: Any,
    b: Any,
    group_name: str,
    *,
    layout: str = Problem.layout,
    epilogue: str = "none",
    out_dtype: str | None = None,
    wire: str | None = None,
    fuse: bool | None = None,
    config: str = "",
    **arguments: Any,
) -> Any:
    """`epilogue(sum over ranks of A @ B)`, of which rank r gets the rows r * M on: [M, N], a new tensor.

    a: bfloat16 or float16 [ranks * M, K], b: the same dtype [N, K], of this rank's own K; layout: how they are stored, as of `gemmgen.ops.gemm`.
    group_name: of a torch.distributed process group, `group.group_name`. epilogue: the name of one in `gemmgen.epilogues`, which is applied once, to the whole sum;
    arguments: what it reads, by name, of this rank's M rows. out_dtype: "bf16", "f16" or "f32"; None: a's.
    wire: "bf16" or "f16": what sums are rounded to before they travel; None: they travel in float32. One launch rounds those of other ranks
    only, torch's collective all of them.
    fuse: None: one launch where it pays; True: wherever it can be; False: never. config: of that launch, the JSON text of a `Config`.
    Gradients: of a [.., K] stored as "n", and the epilogues "none" and "bias": the gradient of a is an all-gather of the result's, and a GEMM, in one launch where that is
    possible. The gradient of `bias` is of this rank's rows: their sum over ranks is the whole.
    Raises ArgumentError; also where two ranks of the group are on one GPU.
    """
    return torch_.ops.gemmgen.gemm_reduce_scatter(
        a,
        b,
        group_name,
        layout=layout,
        epilogue=epilogue,
        out_dtype=out_dtype,
        wire=wire,
        fuse=fuse,
        config=config,
        **arguments,
    )


def all_gather_gemm(
    a: Any,
    b: Any,
    group_name: str,
    *,
    layout: str = Problem.layout,
    epilogue: str = "none",
    out_dtype: str | None = None,
    fuse: bool | None = None,
    config: str = "",
    **arguments: Any,
) -> Any:
    """`epilogue(A of all ranks @ B)`: [ranks * M, N], a new tensor, the rows of rank 0 first.

    a: bfloat16 or float16 [M, K], this rank's rows, b: the same dtype [N, K], its own columns of the result; layout: how they are stored. arguments: what the epilogue
    reads, of all ranks' rows. The rest is as of `gemm_reduce_scatter`. Gradients: of a [M, K], the reverse: that of a is `gemm_reduce_scatter` of the result's, whose sums travel in a's
    dtype. b's asks for A of all ranks, which is gathered again, not kept.
    The overload `gathered` returns (the result, A of all ranks).
    """
    return torch_.ops.gemmgen.all_gather_gemm(
        a,
        b,
        group_name,
        layout=layout,
        epilogue=epilogue,
        out_dtype=out_dtype,
        fuse=fuse,
        config=config,
        **arguments,
    )


def fp8_block_gemm_reduce_scatter(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    group_name: str,
    *,
    scale_a_layout: str,
    epilogue: str = "none",
    out_dtype: str = "bf16",
    wire: str | None = None,
    fuse: bool | None = None,
    config: str = "",
    **arguments: Any,
) -> Any:
    """`gemm_reduce_scatter` of FP8 with block scales, without gradients.

    a: float8_e4m3fn [ranks * M, K], scale_a: float32 [ranks * M, ceil(K/128)]; b [N, K], scale_b [ceil(N/128), ceil(K/128)], of this rank's
    own K; scale_a_layout: "mn" or "row", as of `gemmgen.ops.fp8_block_gemm`; one launch copies "row". M: a multiple of 4, or it is not one launch.
    """
    return torch_.ops.gemmgen.fp8_block_gemm_reduce_scatter(
        a,
        scale_a,
        b,
        scale_b,
        group_name,
        scale_a_layout=scale_a_layout,
        epilogue=epilogue,
        out_dtype=out_dtype,
        wire=wire,
        fuse=fuse,
        config=config,
        **arguments,
    )


def fp8_block_all_gather_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    group_name: str,
    *,
    scale_a_layout: str,
    epilogue: str = "none",
    out_dtype: str = "bf16",
    fuse: bool | None = None,
    config: str = "",
    **arguments: Any,
) -> Any:
    """`all_gather_gemm` of FP8 with block scales, without gradients: codes and scales travel.

    a: float8_e4m3fn [M, K], scale_a: float32 [M, ceil(K/128)], this rank's rows; b [N, K], scale_b [ceil(N/128), ceil(K/128)], its own
    columns. The rest is as of the others.
    """
    return torch_.ops.gemmgen.fp8_block_all_gather_gemm(
        a,
        scale_a,
        b,
        scale_b,
        group_name,
        scale_a_layout=scale_a_layout,
        epilogue=epilogue,
        out_dtype=out_dtype,
        fuse=fuse,
        config=config,
        **arguments,
    )


@dataclass(frozen=True, kw_only=True)
class Collective(Operator):
    """An operator of a process group. collective: as of a `Problem`. plain: the operator that computes the same on one GPU. Tensors come before
    what is said by keyword only, for torch gives no gradients of others."""

    collective: str
    plain: str

    @property
    def overloads(self) -> tuple[Overload, ...]:
        """Whoever needs A of all ranks besides wants numbers, no codes."""
        gathers = self.collective == ALL_GATHER and self.operands == HALVES
        return ("", "gathered") if gathers else ("",)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """By name, the tensors that named epilogues read."""
        return tuple(n for n, x in self.epilogue_arguments.items() if not isinstance(x, Scalar))

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The operands, with their scales, as the plain operator takes them by position."""
        return tuple(x for x in self.positional("") if x != GROUP)

    def schema(self, overload: Overload) -> str:
        results = "(Tensor, Tensor)" if overload else "Tensor"
        return f"{self.qualified(overload)}({', '.join(self._all())}) -> {results}"

    def _all(self) -> Iterator[str]:
        yield from (declaration(self.parameters[n]) for n in self.positional(""))
        yield from (f"Tensor? {name}=None" for name in self.read)
        yield "*"
        said = (p for p in self.parameters.values() if p.kind is Parameter.KEYWORD_ONLY)
        yield from map(declaration, said)
        yield from (f"float? {x}=None" for x in self.epilogue_arguments if x not in self.read)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """What is taken by position."""
        return *self.positional(""), *self.read

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        own = super().bind((), {})
        return {**own, **dict(zip(self.order, args, strict=False)), **kwargs}

    def meant(self, p: Problem, given: dict[str, Any]) -> Problem:
        return replace(p, collective=self.collective, wire=given.get("wire"))

    def rows(self, m: Any, given: dict[str, Any]) -> Any:
        ranks = size_of(given[GROUP])
        if self.collective == ALL_GATHER:
            return m * ranks
        if TOGETHER[self.collective].whole:
            return m
        require(m % ranks == 0, "rows of a", m, f"must be a multiple of {ranks}, the ranks")
        return m // ranks


def group_of(name: Any) -> Any:
    """The process group of that name. Raises ArgumentError."""
    try:
        return torch_.distributed.distributed_c10d._resolve_process_group(name)
    except (RuntimeError, TypeError) as e:
        allowed = "must be the name of a process group: group.group_name"
        raise ArgumentError(GROUP, name, allowed) from e


def size_of(name: Any) -> int:
    """Its ranks. Raises ArgumentError."""
    return int(group_of(name).size())


# Of which each rank has a part of what is multiplied, or of the result.
SHARING = (
    Collective(
        function=gemm_reduce_scatter, operands=HALVES, collective=REDUCE_SCATTER, plain="gemm"
    ),
    Collective(function=all_gather_gemm, operands=HALVES, collective=ALL_GATHER, plain="gemm"),
    Collective(
        function=fp8_block_gemm_reduce_scatter,
        family=recipes.FP8_BLOCK,
        operands=(E4M3,),
        collective=REDUCE_SCATTER,
        plain="fp8_block_gemm",
    ),
    Collective(
        function=fp8_block_all_gather_gemm,
        family=recipes.FP8_BLOCK,
        operands=(E4M3,),
        collective=ALL_GATHER,
        plain="fp8_block_gemm",
    ),
)
