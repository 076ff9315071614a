"""The GEMMs of `gemmgen.torch_ops` on the CPU, in float64, and arguments for each of them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from gemmgen import Problem, formats, ops, quant
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import DTYPES
from gemmgen.ir.expr import (
    Acc,
    Argument,
    BinOp,
    Call,
    Const,
    OfPair,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
    arguments,
)
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.recipes import recipe
from gemmgen.runtime import torch_tensors
from gemmgen.runtime.torch_tensors import dtype_of, empty, torch_dtype

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_operands import operands  # noqa: E402

from gemmgen.torch_ops import OPERATORS  # noqa: E402

GEMMS = tuple(op for op in OPERATORS if op.operands)
BY_NAME = {op.name: op for op in OPERATORS}
BINARY = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}
FUNCTIONS = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "divide": torch.div,
    "max": torch.maximum,
    "min": torch.minimum,
}


@contextmanager
def referring_on_cpu():
    """Inside, the reference for every operator is under the dispatcher's key CPU; after it nothing is, for other tests."""
    library = torch.library.Library("gemmgen", "IMPL")
    try:
        for op in GEMMS:
            for overload in op.overloads:
                library.impl(op.qualified(overload), reference(op, overload), "CPU")
        yield
    finally:
        library._destroy()


def reference(op, overload):
    def run(*args, **kwargs):
        given = op.bind(args, kwargs)
        check_places(given)
        check_groups(op, given)
        d, written = product(op, given)
        if overload == "quantised":
            return stored(d, torch.float8_e4m3fn)
        if overload == "":
            name = given["out_dtype"]
            return stored(d, torch_dtype(DTYPES[name]) if name else given["a"].dtype)
        before = given["out"].double() if given.get("accumulate") else 0.0
        results = (given["out"], given.get("scale_out"))
        found = stored(d + before, given["out"].dtype)
        for to, x in zip(results, found if isinstance(found, tuple) else (found,), strict=False):
            to.copy_(torch.where(written, x.float(), to.float()).to(to.dtype))

    return run


def check_places(given):
    """What the copy engine asks of operands: a launch refuses others."""
    for x in (given["a"], given["b"]):
        sides = zip(x.shape[:-1], x.stride()[:-1], strict=True)
        assert x.stride(-1) == 1 or x.shape[-1] == 1
        assert all(side == 1 or step * x.itemsize % 16 == 0 for side, step in sides)
        assert x.data_ptr() % 16 == 0
    k = -2 if given.get("layout", "nt")[0] == "t" else -1
    assert given["b"].dtype != torch.uint8 or given["b"].is_contiguous()
    assert given["a"].shape[k] > 0 and given["b"].numel()
    by_row = {"scale_a": given.get("scale_a_layout", given.get("scale_layout"))}
    by_row["scale_b"] = given.get("scale_layout")
    for scale in (given[name] for name, layout in by_row.items() if layout == "mn"):
        m, blocks = scale.shape[-2:]
        assert m <= 1 or scale.stride(-2) == 1
        assert not m or blocks == 1 or scale.stride(-1) % 4 == 0


def check_groups(op, given):
    """What a problem asks of where groups begin: an ArgumentError, as a launch's."""
    if op.grouping != "ends" or given["group_ends"] is None:
        return
    a = dtype_of("a", given["a"], op.operands)
    b = a if op.coded else dtype_of("b", given["b"], op.operands)
    said = {name: given[name] for name in ("layout", "alignment", "weights") if name in given}
    Problem(family=op.family, a=a, b=b, grouping="ends", **said)


def stored(d, dtype):
    """d as a launch leaves it in new tensors."""
    name = next(t for t in DTYPES.values() if torch_dtype(t) == dtype)
    out = empty(tuple(d.shape), name, d.device)
    if dtype != torch.float8_e4m3fn:
        return out.copy_(d.float() if dtype.is_floating_point else d)
    q, scale = ops.quantise_rows(d.float())
    columns = empty((*scale.shape[:-2], scale.shape[-1], scale.shape[-2]), DTYPES["f32"], d.device)
    return out.copy_(q), columns.mT.copy_(scale)


def product(op, given):
    """D in float64, and where a launch writes it."""
    a, b = operands(op, given)
    grouping, inside, written = GROUPINGS[op.grouping], torch.ones(1, 1).bool(), None
    if grouping.depths:
        ends = given["group_depths"].cumsum(0).tolist()
        acc = torch.stack(
            [a[:, i:j] @ b[:, i:j].mT for i, j in zip([0, *ends], ends, strict=False)]
        )
    elif op.grouping == "ends":
        groups = row_groups(a, given)
        inside = (groups >= 0).unsqueeze(-1)
        written = torch.ones_like(inside) if given["group_ends"] is None else inside
        acc = sum((groups == g).unsqueeze(-1) * (a @ x.mT) for g, x in enumerate(b))
    else:
        acc = a @ b.mT
    if grouping.summed:
        acc = acc.sum(0)
    if op.grouping == "masked":
        inside = torch.arange(acc.shape[1]).unsqueeze(-1) < given["group_rows"].view(-1, 1, 1)
    for name, side in (("scale_a", -1), ("scale_b", -2)):
        if of_sums(op, name) and given.get(name) is not None:
            acc = acc * scale_of_sum(op, given, name, side, acc)
    epilogue = op.epilogue(given.get("epilogue", "none"))
    d = value(epilogue, acc, values(epilogue, given, acc, op))
    if "epilogue" not in op.parameters and given["c"] is not None:
        d = d + given["c"].double()
    return torch.where(inside, d, 0.0), inside if written is None else written


def of_sums(op, name):
    """Whether what is given by this name scales sums over K as a whole."""
    return op.scaling == "whole" or (op.scaling == "rows" and name == "scale_b")


def scale_of_sum(op, given, name, side, acc):
    scale = given[name].double()
    if name == "scale_b" and scale.dim() == 2:
        return per_column(op, given, scale, acc)
    return scale.unsqueeze(side) if scale.numel() != 1 else scale


def per_column(op, given, x, acc):
    """x [N] or [G, N] as the accumulators have it."""
    if op.grouping == "ends":
        return x.view(-1, acc.shape[-1])[row_groups(acc, given).clamp(min=0)]
    return x.view(*acc.shape[:-2], 1, -1)


def row_groups(a, given):
    if given["row_groups"] is not None:
        return given["row_groups"].long()
    found, end = torch.full((a.shape[0],), -1), 0
    for group, stop in enumerate(given["group_ends"].tolist()):
        first = -(-end // given["alignment"]) * given["alignment"]
        found[first:stop] = group
        end = max(first, stop)
    return found


def values(epilogue, given, acc, op):
    """What the epilogue reads, as the accumulators have it."""
    found = {}
    for x in arguments(epilogue):
        t = torch.as_tensor(given[x.name], dtype=torch.float64)
        match x:
            case PerRow():
                t = t.view(*acc.shape[:-1], 1)
            case PerColumn():
                t = per_column(op, given, t, acc)
        found[x.name] = t
    return found


def value(e, acc, given):
    match e:
        case Acc():
            return acc
        case Const(x):
            return torch.tensor(x, dtype=torch.float64)
        case BinOp(op, x, y):
            return BINARY[op](value(x, acc, given), value(y, acc, given))
        case Call(function, args):
            return FUNCTIONS[function](*(value(x, acc, given) for x in args))
        case OfPair(x, which):
            return value(x, acc, given)[..., which::2]
        case Argument(name):
            return given[name]
    raise AssertionError(e)


def draw(dtype, *shape):
    x = torch.randn(*shape)
    return (x * 10).to(dtype) if dtype == torch.int8 else x.to(dtype)


PLAIN = {4: formats.int4(128, "bf16"), 8: formats.INT8_ROWS}  # by the bits of a code


def arguments_of(op, epilogue="none", device="cpu", shape=None):
    """Positional and keyword arguments of the default overload: of three groups, numbers drawn at random. shape: (M, N, K)."""
    grouping, dtype = GROUPINGS[op.grouping], torch_dtype(op.operands[0])
    rows, columns = (3,) * grouping.rows, (3,) * grouping.columns
    m, n, k = shape = shape or (384 if op.grouping == "ends" else 20, 48, 256)
    tables = {"group_rows": [0, m, m // 2], "group_depths": [128, 0, k - 128]}
    tables["row_groups"] = [0] * 128 + [-1] * 128 + [2] * 128 + [1] * (m - 384)
    given = {"a": draw(dtype, *rows, m, k), "b": draw(dtype, *columns, n, k)}
    if op.coded:
        form = formats.MXFP4 if dtype == torch.float8_e4m3fn else PLAIN[recipe(op.family).coded]
        packed = quant.pack(quant.of(torch.randn(*columns, n, k), form), dtype)
        given |= {"b": packed.blocks, "weights": packed.weights, "columns": n}
    given |= {x: torch.tensor(t).int() for x, t in tables.items() if x in op.parameters}
    given |= scales_of(op, shape, rows, columns)
    given |= {"layout": "nt"} if "layout" in op.parameters else {}
    given |= {"epilogue": epilogue} if epilogue != "none" else {}
    for x in arguments(EPILOGUES[epilogue]):
        given[x.name] = argument_of(x, rows, columns, shape)
    given = {x: t.to(device) if isinstance(t, torch.Tensor) else t for x, t in given.items()}
    names = [
        x for x, p in op.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD and x != "out"
    ]
    return tuple(given.pop(x) for x in names), given


def scales_of(op, shape, rows, columns):
    m, n, k = shape
    blocks, sides = -(-k // 128), {}
    match op.scaling:
        case "block":
            sides = {"scale_a": (*rows, m, blocks), "scale_b": (*columns, -(-n // 128), blocks)}
        case "vector":
            sides = {"scale_a": (m, blocks), "scale_b": (n, blocks)}
        case "rows":
            sides = {"scale_a": (*rows, m, blocks), "scale_b": (*columns, n)}
        case "whole" if "s32" not in op.outputs:
            sides = {"scale_a": (*rows, m), "scale_b": (*columns, n)}
            sides = {x: side for x, side in sides.items() if x in op.parameters}
    said = {"scale_a_layout": "row", "scale_layout": "row", "packing": "columns"}
    said = {x: text for x, text in said.items() if x in op.parameters}
    return {x: torch.rand(s) + 0.5 for x, s in sides.items()} | said


def argument_of(x, rows, columns, shape):
    m, n, _ = shape
    match x:
        case Scalar():
            return 0.5
        case PerElement(_, dtype):
            return draw(torch_dtype(dtype), *rows, m, n)
        case PerRow():
            return torch.rand(*rows, m)
        case PerColumn():
            return torch.rand(*columns, n)
    return torch.rand(1)


def overload(op, name):
    return getattr(getattr(torch.ops.gemmgen, op.name), name or "default")


def described(result):
    results = result if isinstance(result, tuple) else (result,)
    return [(tuple(x.shape), x.stride(), x.dtype) for x in results]


def faked(run, args, given):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def of(x):
            return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

        return run(*map(of, args), **{name: of(x) for name, x in given.items()})


def every(*names):
    """GEMMs that have all these overloads."""
    return [op for op in GEMMS if {*names} <= {*op.overloads}]


def by_name(op):
    return op.name


@pytest.fixture(autouse=True)
def on_cpu():
    """The operators run on the CPU, on the real torch, from one seed."""
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)
    torch._dynamo.reset()
    with referring_on_cpu():
        yield
