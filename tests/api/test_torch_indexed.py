"""Rows by index in torch's dispatcher: on the CPU, traced, counted, emulated, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import (  # noqa: E402
    Memory,
    computed_on_cpu,  # noqa: F401
    emulated,
    real_torch,  # noqa: F401
)
from torch.utils.flop_counter import flop_registry  # noqa: E402
from torch_reference import faked  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.torch_ops import compute_on_cpu  # noqa: E402

REGISTERED = torch.ops.gemmgen
T, TOP, M, N, K = 6, 2, 384, 32, 256
ENDS = torch.tensor([5, 128, 259], dtype=torch.int32)
PLACES = {0: slice(0, 5), 2: slice(256, 259)}  # of groups that have rows


def rows():
    """Of no row of a too: -1, and one past its last."""
    found = torch.full((M,), -1, dtype=torch.int32)
    found[0:5] = torch.tensor([11, 0, -1, 3, T * TOP])
    found[256:259] = torch.tensor([4, 4, 7])
    return found


def copies(x):
    found = torch.div(rows().long(), TOP, rounding_mode="floor")
    there = (found >= 0) & (found < len(x))
    return x[found.where(there, 0)] * there[:, None]


def halves():
    return torch.randn(T, K).bfloat16(), torch.randn(3, N, K).bfloat16()


SAID = {"group_ends": ENDS, "top": TOP}


def test_they_are_those_of_copies():
    a, b = halves()
    found = REGISTERED.grouped_gemm(a, b, rows=rows(), out_dtype="f32", **SAID)
    wanted = REGISTERED.grouped_gemm(copies(a), b, group_ends=ENDS, out_dtype="f32")
    out = torch.empty_like(found)
    REGISTERED.grouped_gemm.out(a, b, out=out, rows=rows(), **SAID)
    for place in PLACES.values():
        assert torch.equal(found[place], wanted[place]) and torch.equal(out[place], wanted[place])


@pytest.mark.parametrize("overload", ("default", "quantised"))
def test_scales_are_of_the_products_rows(overload):
    q, _ = ops.quantise_rows(torch.randn(T, K))
    scale = torch.rand(M, 2) + 0.5
    b, scale_b = torch.randn(3, N, K).to(torch.float8_e4m3fn), torch.rand(3, 1, 2) + 0.5
    run = getattr(REGISTERED.fp8_block_grouped_gemm, overload)
    given = {"scale_a_layout": "mn", "group_ends": ENDS}
    found = run(q, scale, b, scale_b, rows=rows(), top=TOP, **given)
    wanted = run(copies(q.float()).to(q.dtype), scale, b, scale_b, **given)
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, wanted)), strict=True):  # fmt: skip
        for place in PLACES.values():
            assert torch.equal(one[place].float(), other[place].float())


def test_a_tracer_knows_the_shape():
    a, b = halves()
    given = {**SAID, "rows": rows()}
    found, fake = REGISTERED.grouped_gemm(a, b, **given), faked(REGISTERED.grouped_gemm, (a, b), given)  # fmt: skip
    assert fake.shape == found.shape == (M, N) and fake.stride() == found.stride()
    assert torch.library.opcheck(REGISTERED.grouped_gemm.default, (a, b), given, test_utils=("test_schema", "test_faketensor"))  # fmt: skip


def test_operations_are_of_the_products_rows():
    a, b = torch.randn(T, K, device="meta"), torch.randn(3, N, K, device="meta")
    given = {"rows": torch.empty(M, device="meta"), "group_ends": torch.empty(3, device="meta")}
    out = torch.empty(M, N, device="meta")
    assert flop_registry[REGISTERED.grouped_gemm](a, b, **given, out_val=out) == 2 * M * N * K


def test_a_launch_takes_them(monkeypatch):
    """By the same function of `ops`, which is emulated."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    compute_on_cpu(False)
    from gemmgen.torch_ops.operators import OPERATORS
    from gemmgen.torch_ops.registration import implementation

    op = next(x for x in OPERATORS if x.name == "grouped_gemm")
    a, b = halves()
    memory = Memory(a, b, ENDS, index := rows())
    emulated(monkeypatch, memory)
    with memory:
        found = implementation(op, "")(a, b, rows=index, **SAID)
    wanted = copies(a).double()
    for g, place in PLACES.items():
        exact = wanted[place] @ b[g].double().T
        assert torch.allclose(found[place].double(), exact, rtol=2.0**-8, atol=2.0**-12)


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("rows dtype", {"rows": rows().long()}),
        ("rows", {"rows": rows()[None]}),
        ("rows", {"group_ends": None, "row_groups": torch.zeros(M, dtype=torch.int32)}),
        ("top", {"top": 0}),
        ("top", {"rows": None}),
    ),
)
def test_what_is_refused(argument, changes):
    a, b = halves()
    with pytest.raises(ArgumentError) as e:
        REGISTERED.grouped_gemm(a, b, **{**SAID, "rows": rows(), **changes})
    assert e.value.argument.startswith(argument)
