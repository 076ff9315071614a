"""What the GEMMs of `gemmgen.torch_ops` compute, by torch on the CPU: a reference for programs, slow and without a kernel.

Sums are taken in float64 and rounded once to FP32, or are exact integers; what follows a sum is in FP32, rounded operation by
operation, as in a kernel; D is rounded once. So a result lies in the same bounds around the exact one as a kernel's, and is not
its bits: a kernel adds up in another order, in FP32. Rows that a launch leaves untouched are 0 in a new tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .. import formats, quant
from ..errors import ArgumentError
from ..ir.dtypes import S32
from ..ir.expr import Argument, PerColumn, PerElement, PerRow, arguments, fold
from ..ir.groupings import GROUPINGS
from ..ops import SCALE_BLOCK, quantise_rows
from ..problem import Problem
from ..runtime.torch_tensors import torch
from .applied import value_of
from .fakes import Given, Shape, check_out, checked
from .made import column_scales, empty
from .operators import Operator, Overload
from .registration import config_of

Index = tuple[Any, ...]


def implementation(op: Operator, overload: Overload) -> Callable[..., Any]:
    """What an overload does with tensors of the CPU. Raises ArgumentError as its fake does."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = op.bind(args, kwargs)
        p, shape = checked(op, overload, given)
        config_of(given["config"])
        if overload == "out":
            check_out(p, shape, given)
        call = Product(op=op, p=p, shape=shape, given=given)
        return _stored(call, overload)

    return run


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of D that one B makes. place: of them in D, and in what is read by row or element. group: of B, and of what is read
    by column. a [rows, K], b [N, K]: of the sum, wide."""

    place: Index
    group: int
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class Product:
    """One call. given: its arguments by name."""

    op: Operator
    p: Problem
    shape: Shape
    given: Given

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """D's sides but the last."""
        groups, m, *_ = self.shape
        return (*(groups,) * GROUPINGS[self.p.grouping].outputs, m)

    @cached_property
    def computed(self) -> tuple[Any, Any]:
        """D before it is rounded, float32 or int32, and which of its rows a launch writes."""
        columns = self.shape[2] // fold(self.p.epilogue)
        whole = self.p.d is S32
        dtype = torch().int32 if whole else torch().float32
        d = torch().zeros((*self.rows, columns), dtype=dtype)
        written = torch().zeros(self.rows, dtype=torch().bool)
        written |= self.given.get("row_groups") is not None  # rows of no group are written: 0
        for part in self.parts():
            sums = part.a @ part.b.mT
            d[part.place] = sums.to(dtype) if whole else self._finished(part, sums.float())
            written[part.place] = True
        return d, written

    def _finished(self, part: Part, sums: Any) -> Any:
        """Of sums in FP32: times what scales them as a whole, then the epilogue."""
        if self.op.scaling in ("whole", "rows"):
            of_rows = (("scale_a", PerRow),) * (self.op.scaling == "whole")
            for name, kind in (*of_rows, ("scale_b", PerColumn)):
                scale = self.given.get(name)
                if scale is not None:
                    x = kind(name) if scale.numel() != 1 else Argument(name)
                    sums = sums * self._read(x, part)
        read = {x.name: self._read(x, part) for x in arguments(self.p.epilogue)}
        found = value_of(self.p.epilogue, sums, read)
        c = None if "c" in read else self.given.get("c")
        return found if c is None else found + c[part.place].float()

    def _read(self, x: Argument, part: Part) -> Any:
        """As it stands beside the part's rows and columns."""
        value = torch().as_tensor(self.given[x.name])
        match x:
            case PerRow():
                return value.reshape(self.rows)[part.place].unsqueeze(-1)
            case PerColumn():
                return value.reshape(-1, self.shape[2])[part.group]
            case PerElement():
                return value[part.place].float()
        return value.float().reshape(())

    def parts(self) -> Iterator[Part]:
        grouping, given = GROUPINGS[self.p.grouping], self.given
        if grouping.depths:
            yield from self._depths()
            return
        a, b = self._operands()
        if grouping.summed:  # one GEMM over the K of all
            a, b = (x.movedim(0, 1).flatten(1) for x in (a, b))
            yield Part(place=(slice(None),), group=0, a=a, b=b)
        elif not grouping.columns:
            yield Part(place=(slice(None),), group=0, a=a, b=b)
        elif grouping.rows:
            counts = given.get("group_rows")
            for g in range(len(b)):
                rows = slice(None if counts is None else max(0, int(counts[g])))
                yield Part(place=(g, rows), group=g, a=a[g, rows], b=b[g])
        else:
            for g, rows in enumerate(self._members(len(a), len(b))):
                yield Part(place=(rows,), group=g, a=a[rows], b=b[g])

    def _taken(self, a: Any) -> Any:
        """Its rows by index, of which one that is not there is 0."""
        rows = self.given.get("rows")
        if rows is None:
            return a
        places = torch().div(rows.long(), self.given["top"], rounding_mode="floor")
        there = (places >= 0) & (places < len(a))
        return (
            a[places.where(there, 0)] * there[:, None]
            if len(a)
            else a.new_zeros(len(rows), a.shape[1])
        )

    def _members(self, rows: int, groups: int) -> Iterator[Any]:
        """The rows of each group."""
        if self.given.get("row_groups") is not None:
            of = self.given["row_groups"]
            yield from (of == g for g in range(groups))
            return
        end, step = 0, self.given["alignment"]
        for stop in self.given["group_ends"].tolist():
            first = -(-end // step) * step
            end = min(max(first, stop), rows)
            yield slice(min(first, rows), end)

    def _depths(self) -> Iterator[Part]:
        """Groups that follow each other along K."""
        depths = self.given["group_depths"].tolist()
        _, m, n, k = self.shape
        if sum(depths) > k or min(depths, default=0) < 0:
            raise ArgumentError("group_depths", depths, f"must be 0 or more, {k} together at most")
        flat = self.given.get("packing") == "flat"
        a, b = self._operands() if not flat else (self.given["a"], self.given["b"])
        end = 0
        for g, depth in enumerate(depths):
            at = slice(end, end + depth)
            end = at.stop
            if flat:
                sides = (("a", m), ("b", n))
                x, y = (self._flat(name, side, at) for name, side in sides)
            else:
                x, y = a[:, at], b[:, at]
            yield Part(place=(g,), group=g, a=x, b=y)

    def _flat(self, name: str, side: int, at: slice) -> Any:
        depth = at.stop - at.start
        x = self.given[name][side * at.start : side * at.stop].view(side, depth).double()
        blocks = slice(at.start // SCALE_BLOCK, -(-at.stop // SCALE_BLOCK))
        return x * _wide(self.given[f"scale_{name}"][:, blocks], depth)

    def _operands(self) -> tuple[Any, Any]:
        """a [..., M, K] and b [..., N, K], wide, times what scales their blocks."""
        if self.op.coded:
            a = self.given["a"].double()
            if self.op.scaling == "rows":
                a = a * _wide(self.given["scale_a"], a.shape[-1])
            return a, self._unpacked()
        a_turned, b_turned = self.p.mn_major
        a, b = (self.given[name].double() for name in "ab")
        a, b = self._taken(a.mT if a_turned else a), b.mT if b_turned else b
        k = a.shape[-1]
        if self.op.scaling in ("block", "vector"):
            a = a * _wide(self.given["scale_a"], k)
            scale = self.given["scale_b"]
            if self.op.scaling == "block":
                rows = scale.repeat_interleave(SCALE_BLOCK, -2)
                scale = rows[..., : b.shape[-2], :]
            b = b * _wide(scale, k)
        return a, b

    def _unpacked(self) -> Any:
        """What a kernel multiplies by of packed weights, [..., N, K], wide, times what scales its sums; a row's factor is the epilogue's."""
        assert self.p.form is not None
        form, blocks = formats.named(self.p.form.format), self.given["b"]
        *_, n, k = self.shape
        step = self.p.form.k_step
        whole = -(-k // step) * step  # a launch takes an a that ends inside a group
        shape = *blocks.shape[:-3], n, whole
        if not blocks.numel():
            return torch().zeros(shape, dtype=torch().float64)
        packed = quant.Packed(format=form, dtype=self.p.b, blocks=blocks, shape=shape)
        return packed.wide()[..., :k]


def _wide(scale: Any, k: int) -> Any:
    """[..., blocks] as [..., k]."""
    return scale.double().repeat_interleave(SCALE_BLOCK, -1)[..., :k]


def _stored(call: Product, overload: Overload) -> Any:
    """D as the overload returns it, or written to `out`."""
    d, written = call.computed
    device = call.given["a"].device
    if overload == "out":
        return _written(call, d, written)
    if overload == "quantised":
        q, scale = quantise_rows(d)
        out = empty(tuple(d.shape), call.p.d, device), column_scales(tuple(scale.shape), device)
        return out[0].copy_(q), out[1].copy_(scale)
    made = empty((*d.shape[:-1], call.p.gaps.columns(d.shape[-1])), call.p.d, device).zero_()
    _placed(call.p, made, d)
    return made


def _placed(p: Problem, out: Any, d: Any) -> None:
    """d in out, whose columns may have gaps."""
    end = 0
    for columns in p.gaps.stored(d.shape[-1]):
        out[..., columns.start : columns.stop] = d[..., end : end + len(columns)]
        end += len(columns)


def _written(call: Product, d: Any, written: Any) -> None:
    """The rows that a launch writes, and no others, to `out`."""
    out = call.given["out"]
    if call.p.quantised:
        q, scale = quantise_rows(d)
        byte = torch().uint8  # torch selects no rows of FP8
        out.view(byte)[written] = q.view(byte)[written]
        call.given["scale_out"][written] = scale[written]
        return
    before = out[written] if call.p.accumulate else 0.0
    after = out[written]
    _placed(call.p, after, (d[written] + before).to(out.dtype))
    out[written] = after
