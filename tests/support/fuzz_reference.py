"""What a kernel leaves in memory, computed slowly from a plan's addresses and strides."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from gemmgen.epilogues import mqa_logits
from gemmgen.formats import Packed, multiplied, named, sum_scales, unpack
from gemmgen.ir.argument_names import group_stride, parameter
from gemmgen.ir.dtypes import DTYPES
from gemmgen.ir.expr import DeviceScalar, PerColumn, PerRow, Scalar, arguments
from gemmgen.ir.groupings import GROUPINGS, Layout, depths, segments
from gemmgen.ir.pages import COUNT, PAGES, PITCH
from gemmgen.ir.row_sums import ROOM, fold_rows, windows
from gemmgen.runtime.torch_tensors import torch_dtype


def memory(address, dtype, shape, strides):
    """A tensor over raw memory; strides in elements."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    last = sum((s - 1) * d for s, d in zip(shape, strides, strict=True))
    size = (last + 1) * dtype.itemsize
    raw = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    return raw.view(dtype).as_strided(shape, strides)


def execute(p, plan):
    """D as the kernel leaves it."""
    if windows(p.epilogue):
        scores(p, plan)
        return
    g, values = GROUPINGS[p.grouping], plan.values
    m, n, k = plan.shape
    count = values["groups"]
    views = {name: view(p, name, x) for name, x in plan.matrices.items()}
    if p.form:
        views["b"] = numbers(p, views["b"], n, k)
    a, b = (views[s].mT if turned else views[s] for s, turned in zip("ab", p.mn_major, strict=True))
    if p.indexed:
        a = taken(a, values, m)
    d = view(p, "d", plan.matrices["d"])
    layout = Layout(groups=count, table=table(p, m, count, values))
    if p.grouping == "rows":
        d.copy_(torch.zeros_like(d))
    for s, ks in whose(p, m, k, layout):
        rows, own = slice(s.first, s.end), s.group if g.outputs else 0
        if g.summed:
            x, y = (t.movedim(0, 1).flatten(1) for t in (a, b))
        else:
            x = part(p, a, plan.matrices["a"], s.group if g.rows else 0, ks)[rows]
            y = part(p, b, plan.matrices["b"], s.group if g.columns else 0, ks)
        acc = product(p, views, values, x.double(), y.double(), (s, ks, n, k))
        acc = scaled(p, values, acc, s, (m, n), count)
        out = d[own, rows]
        if p.squares:
            acc = acc[..., 0::2] + acc[..., 1::2]
            acc[..., -1] += x.double().square().sum(-1)
            squares(values, own, m).copy_(acc[..., -1].float())
            acc = acc[..., :-1]
        acc = acc + (out.double() if p.accumulate else 0.0)
        acc = acc if d.dtype == torch.int32 else acc.float()
        first = 0
        for columns in p.gaps.stored(acc.shape[-1]):
            here = out[..., columns.start : columns.stop]
            here.copy_(acc[..., first : first + len(columns)].to(d.dtype))
            first += len(columns)


def scores(p, plan):
    """An indexer's, of which D has one for several of A's rows, minus infinity outside of a row's window."""
    (m, n, _), values, heads = plan.shape, plan.values, fold_rows(p.epilogue)
    assert p.epilogue == mqa_logits(heads, from_first=bool(p.paged))
    count, rows, columns = values["groups"], m // heads, torch.arange(n)
    a, b = (view(p, s, plan.matrices[s]) for s in "ab")
    weights = memory(values[parameter("weights")], torch.float32, (count, m), (m, 1))
    *firsts, ends = (
        memory(values[parameter(x.name)], torch.int32, (count, rows, 1), (rows, 1, 1))
        for x in windows(p.epilogue)
    )
    steps = (values["d_stride_g"], values["d_stride"], 1)
    d = memory(
        values["d"], torch_dtype(p.d), (count, rows, values[ROOM] if p.compact else n), steps
    )
    for group in range(count):
        keys, scale = by_page(p, b, values, group, n) if p.paged else in_a_row(b, values, n)
        terms = (a[group].double() @ keys.double().mT).relu() * weights[group, :, None]
        sums = terms.view(rows, heads, n).sum(1) * scale
        seen = columns < ends[group]
        if firsts:
            seen = seen & (columns >= firsts[0][group])
        if p.compact:
            at = firsts[0][group] + torch.arange(values[ROOM])
            there, at = (at < ends[group]) & (at < n), at.clamp(max=n - 1)
            d[group] = torch.where(there, sums.gather(1, at).float().to(d.dtype), d[group])
        else:
            d[group] = torch.where(seen, sums, -torch.inf).float().to(d.dtype)


def in_a_row(b, values, n):
    """Keys and their scales."""
    return b[0], memory(values[parameter("column_scale")], torch.float32, (n,), (1,))


def by_page(p, b, values, group, n):
    """The same of a group's pages; zeros of what is none."""
    at, count = values[PAGES] + 4 * group * values[PITCH], values[COUNT]
    numbers = memory(at, torch.int32, (-(-n // p.paged),), (1,)).long()
    there = (numbers >= 0) & (numbers < count)
    steps = (values[group_stride("column_scale")], 1)
    scale = memory(values[parameter("column_scale")], torch.float32, (count, p.paged), steps)
    mine = torch.where(there, numbers, 0)
    keys, scale = b[mine].float(), scale[mine]
    keys[~there], scale[~there] = 0, 0
    return keys.flatten(0, 1)[:n], scale.flatten()[:n]


def taken(a, values, m):
    """The row of a that each of m rows is a copy of; zeros for what is none."""
    copies = memory(values["rows"], torch.int32, (m,), (1,)).long()
    there = (copies >= 0) & (copies < values["top"] * values["sources"])
    return torch.where(
        there[:, None], a[:, torch.where(there, copies, 0) // values["top"]].float(), 0.0
    )


def squares(values, group, rows):
    """Where a group's sums of squares go."""
    step = values["squares_stride"]
    at = values["squares"] + 4 * group * values["squares_stride_g"]
    return memory(at, torch.float32, (rows,), (step,))


def numbers(p, rows, n, k):
    """Of packed weights [groups, rows of blocks, bytes]."""
    blocks = rows.reshape(*rows.shape[:-1], -1, p.form.block_bytes)
    found = Packed(format=named(p.form.format), to=p.b, blocks=blocks.numpy(), rows=64 * blocks.shape[-3], columns=128 * blocks.shape[-2])  # fmt: skip
    weights = unpack(found)
    values, scales = multiplied(weights, p.b), sum_scales(weights, p.b)
    if scales is not None:
        values = values * np.repeat(scales.astype(float), 128, -1)
    return torch.from_numpy(values[..., :n, :k])


def whose(p, m, k, layout):
    """Each segment with its K; the groups of `depths` have all rows."""
    spans = depths(p.grouping, k, layout)
    for s in segments(p.grouping, m, layout, p.alignment):
        yield s, spans[s.group if GROUPINGS[p.grouping].depths else 0]


def part(p, x, matrix, group, ks):
    """[rows, K of the group]."""
    if GROUPINGS[p.grouping].depths != "flat":
        return x[group, :, ks.first : ks.end]
    deep, rows = ks.end - ks.first, x.shape[-2]
    at = matrix.pointer + rows * ks.first * x.element_size()
    return memory(at, x.dtype, (rows, deep), (deep, 1))


def view(p, name, x):
    dtypes = {"a": p.a, "b": p.b, "d": p.d}
    packed = p.form and name == "b"
    dtype = torch.uint8 if packed else torch_dtype(dtypes.get(name, DTYPES["f32"]))
    shape, strides = (x.groups, x.outer, x.inner), (x.group_stride, x.stride, 1)
    return memory(x.pointer, dtype, shape, strides)


def table(p, m, count, values):
    name = {"masked": "group_rows", "ends": "group_ends", "rows": "row_groups"}.get(p.grouping)
    name = "group_depths" if GROUPINGS[p.grouping].depths else name
    entries = m if p.grouping == "rows" else count
    return (
        () if name is None else tuple(memory(values[name], torch.int32, (entries,), (1,)).tolist())
    )


def product(p, views, values, x, y, where):
    """Scaled by blocks of 128 of K, where there are such scales."""
    s, ks, n, k = where
    known = {*views, *values}
    if "scale_a" not in known:
        return x @ y.mT
    g, total = GROUPINGS[p.grouping], x.new_zeros(x.shape[0], n)
    rows = row_scales(views, values, s.group if g.rows else 0, s.end, k)[:, s.first :].double()
    for i in range(-(-x.shape[1] // 128)):
        block, cut = ks.first // 128 + i, slice(128 * i, 128 * i + 128)
        if "scale_b" not in known:
            columns = x.new_ones(n)
        elif "scale_b" in views:
            columns = views["scale_b"][0, block].double()
        else:
            many, steps = -(-n // 128), (values["scale_b_stride_n"], values["scale_b_stride_k"])
            at = values["scale_b"] + 4 * s.group * values["scale_b_stride_g"] * g.columns
            every = memory(at, torch.float32, (many, -(-k // 128)), steps)
            columns = every[:, block].double().repeat_interleave(128)[:n]
        total += (x[:, cut] @ y[:, cut].mT) * (rows[block][:, None] * columns)
    return total


def row_scales(views, values, group, m, k):
    """A's scales [blocks of K, m]: through a map, or where the kernel's lanes read them themselves."""
    if "scale_a" in views:
        return views["scale_a"][group][:, :m]
    steps = (values["scale_a_stride_k"], values["scale_a_stride_m"])
    at = values["scale_a"] + 4 * group * values.get("scale_a_stride_g", 0)
    return memory(at, torch.float32, (-(-k // 128), m), steps)


def scaled(p, values, acc, s, shape, count):
    """Times every argument of the epilogue."""
    g, (m, n) = GROUPINGS[p.grouping], shape
    for x in arguments(p.epilogue):
        at = values[parameter(x.name)]
        match x:
            case Scalar():
                acc = acc * at
            case DeviceScalar():
                acc = acc * memory(at, torch.float32, (1,), (1,)).double()
            case PerRow():
                first = (s.group if g.outputs else 0) * m
                vector = memory(at, torch.float32, (count * m if g.outputs else m,), (1,))
                acc = acc * vector[first + s.first : first + s.end, None].double()
            case PerColumn():
                acc = acc * memory(at + 4 * n * s.group * g.vectors, torch.float32, (n,), (1,))
            case _:
                raise AssertionError(x)
    return acc
