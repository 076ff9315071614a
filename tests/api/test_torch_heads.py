"""Gaps between heads' parts in torch's dispatcher: on the CPU, traced, counted, emulated, and what is refused."""

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
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.torch_ops import compute_on_cpu  # noqa: E402
from gemmgen.torch_ops.operators import OPERATORS  # noqa: E402
from gemmgen.torch_ops.registration import implementation  # noqa: E402

GEMM = torch.ops.gemmgen.fp8_block_gemm
M, N, K, COLUMNS = 24, 512, 256, 640
HEADS = [128, 64, 128]
SAID = {"scale_a_layout": "mn", "heads": HEADS}


def operands():
    """Small integers by powers of two: every sum is exact."""
    a, b = (torch.randint(-2, 3, (rows, K)).float() for rows in (M, N))
    scale_a = torch.exp2(torch.randint(-1, 2, (2, M)).float()).mT
    scale_b = torch.exp2(torch.randint(-1, 2, (4, 2)).float())
    return a.to(torch.float8_e4m3fn), scale_a, b.to(torch.float8_e4m3fn), scale_b


def with_gaps(x, fill=0.0):
    """As DeepGEMM's tests put it together."""
    left, mid, right = HEADS
    heads = x.view(len(x), -1, left + right)
    gap = torch.full((len(x), heads.shape[1], mid), fill, dtype=x.dtype)
    return torch.cat([heads[..., :left], gap, heads[..., -right:]], 2).view(len(x), -1)


def test_they_are_those_of_the_product():
    given = operands()
    plain = GEMM(*given, scale_a_layout="mn", out_dtype="f32")
    assert torch.equal(GEMM(*given, out_dtype="f32", **SAID), with_gaps(plain))
    out = torch.full((M, COLUMNS), 7.0)
    GEMM.out(*given, out=out, **SAID)
    assert torch.equal(out, with_gaps(plain, 7.0))


def test_a_tracer_knows_the_shape():
    given = operands()
    found, fake = GEMM(*given, **SAID), faked(GEMM, given, SAID)
    assert fake.shape == found.shape == (M, COLUMNS) and fake.stride() == found.stride()
    assert torch.library.opcheck(GEMM.default, given, SAID, test_utils=("test_faketensor",))


def test_an_exported_program_takes_any_rows():
    class Projection(torch.nn.Module):
        def forward(self, a, scale_a, b, scale_b):
            return GEMM(a, scale_a, b, scale_b, scale_a_layout="row", heads=HEADS)

    given, rows = operands(), torch.export.Dim("rows")
    shapes = {"a": {0: rows}, "scale_a": {0: rows}, "b": None, "scale_b": None}
    program = torch.export.export(Projection(), given, dynamic_shapes=shapes)
    fewer = (given[0][:3], given[1][:3].contiguous(), *given[2:])
    assert torch.equal(program.module()(*fewer), GEMM(*fewer, scale_a_layout="row", heads=HEADS))


def test_operations_are_the_products():
    shapes = (torch.empty(s, device="meta") for s in ((M, K), (M, 2), (N, K), (4, 2)))
    out = torch.empty(M, COLUMNS, device="meta")
    assert flop_registry[GEMM](*shapes, **SAID, out_val=out) == 2 * M * N * K


def test_a_batch_is_one_by_one():
    given = operands()
    a = torch.stack([given[0], given[0].flip(0)])
    found = torch.vmap(lambda x: GEMM(x, *given[1:], **SAID))(a)
    assert torch.equal(found, torch.stack([GEMM(x, *given[1:], **SAID) for x in a]))


@pytest.fixture
def launched(monkeypatch):
    """The same functions of `ops`, on the emulator."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    compute_on_cpu(False)
    given = operands()
    memory = Memory(*given)
    emulated(monkeypatch, memory)
    exact = (_wide(*given[:2], 1) @ _wide(*given[2:], 128).T).bfloat16()
    with memory:
        yield memory, given, exact


def _wide(x, scale, rows):
    scales = scale.double().repeat_interleave(128, 1).repeat_interleave(rows, 0)
    return x.double() * scales[: len(x)]


def parts(d):
    """What is no gap's, and the gaps."""
    heads = d.view(len(d), -1, sum(HEADS))
    left, mid, _ = HEADS
    whole = torch.cat([heads[..., :left], heads[..., left + mid :]], 2)
    return whole.reshape(len(d), -1), heads[..., left : left + mid]


def test_a_launch_leaves_gaps(launched):
    memory, given, exact = launched
    op = next(x for x in OPERATORS if x.name == "fp8_block_gemm")
    found = implementation(op, "")(*given, **SAID)
    whole, gaps = parts(found)
    assert torch.equal(whole, exact) and gaps.isnan().all()  # as new memory is here
    out = torch.full((M, COLUMNS), 7.0, dtype=torch.bfloat16)
    memory.keep(out)
    implementation(op, "out")(*given, out=out, **SAID)
    assert torch.equal(parts(out)[0], exact) and (parts(out)[1] == 7.0).all()


def test_as_deep_gemm(launched):
    memory, (a, scale_a, b, scale_b), exact = launched
    d = with_gaps(torch.zeros_like(exact), 3.0)
    memory.keep(d)
    deep_gemm.fp8_gemm_nt_skip_head_mid((a, scale_a), (b, scale_b), d, (128, 64, 128))
    assert torch.equal(d, with_gaps(exact, 3.0))


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("heads", {"heads": [128, 64]}),
        ("heads mid", {"heads": [128, 0, 128]}),
        ("columns of the product", {"heads": [128, 64, 32]}),
        ("epilogue", {"epilogue": "swiglu"}),
        ("out side 1", {"out": torch.zeros(M, N, dtype=torch.bfloat16)}),
    ),
    ids=str,
)
def test_what_is_refused(argument, changes):
    run = GEMM.out if "out" in changes else GEMM
    with pytest.raises(ArgumentError) as e:
        run(*operands(), **SAID | changes)
    assert e.value.argument == argument


def test_quantised_results_have_no_gaps():
    with pytest.raises(RuntimeError, match="heads"):
        GEMM.quantised(*operands(), **SAID)
    with pytest.raises(ArgumentError) as e:
        ops.fp8_block_gemm(*operands(), out_dtype="e4m3", **SAID)
    assert e.value.argument == "d"
