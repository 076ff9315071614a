"""Packed weights as `gemmgen bench` draws them, and its calls of them, emulated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401

from gemmgen import formats  # noqa: E402
from gemmgen.bench import cases, coded, grouped, providers, work  # noqa: E402
from gemmgen.bench.agree import FAST, SUMMED, check_exact, check_near  # noqa: E402
from gemmgen.bench.data import EXACT, Data  # noqa: E402
from gemmgen.cli import bench_chain  # noqa: E402
from gemmgen.config import Config  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32  # noqa: E402
from gemmgen.ir.expr import arguments  # noqa: E402
from gemmgen.ir.packed import FORMS, OF_8_BITS  # noqa: E402
from gemmgen.problem import Problem  # noqa: E402

ALL = [(to, name) for to in FORMS for name in FORMS[to]]
E2M1 = {s * x for s in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)}
EACH = pytest.mark.parametrize(("to", "name"), ALL, ids=[f"{name}-{to}" for to, name in ALL])
OCTETS = [(to, name) for to in OF_8_BITS for name in OF_8_BITS[to]]
ANY = pytest.mark.parametrize(
    ("to", "name"), ALL + OCTETS, ids=[f"{name}-{to}" for to, name in ALL + OCTETS]
)


def problem(to, name, **more):
    if (to, name) in OCTETS:
        return Problem(family="w8a16", a=to, b=to, weights=name, **more)
    of_fp8 = "w4a8_block" if FORMS[to][name].scales_sums else "w4a8"
    family = of_fp8 if to == E4M3 else "w4a16"
    return Problem(family=family, a=to, b=to, weights=name, **more)


def config(p, stages=2):
    """Kernels of one config are kept, with the memory that they run in."""
    return Config(
        swap_ab=True, block_m=16, block_n=64, consumers=1, stages=stages, in_flight=int(p.family != "w4a8_block"), block_k_bytes=p.form.k_bytes
    )  # fmt: skip


@EACH
@pytest.mark.parametrize("kind", ["normal", EXACT])
def test_drawn_blocks_stand_for_numbers_of_some_size(to, name, kind):
    form = FORMS[to][name]
    packed = coded.drawn(form, (3, 70, 256), Data(kind=kind, device="cpu"))
    assert packed.blocks.shape == (3, 2, 2, form.block_bytes)
    numbers, sums = packed.numbers().float(), coded.sum_scales(form, packed.blocks, (3, 70, 256))
    assert numbers.shape == (3, 70, 256) and numbers.isfinite().all()
    if sums is not None:
        numbers = numbers * sums.repeat_interleave(128, -1)
    # The mean size of codes is 2.25 of E2M1, at most 8 of others; scales are from 1/2 to 2, of NVFP4, whose rows have factors, 2^-7 of that.
    least = 2.25 / 2 * 2.0**-form.left
    assert least < numbers.abs().mean() < 8 * 2 and len(numbers.unique()) >= len(E2M1)
    held = formats.Packed(
        format=packed.format, to=to, blocks=packed.blocks[0].numpy(), rows=70, columns=256
    )
    scales = formats.unpack(held).scales
    assert len(set(scales.reshape(-1).tolist())) > 1


@pytest.mark.parametrize(("to", "name"), OCTETS, ids=[name for _, name in OCTETS])
@pytest.mark.parametrize("kind", ["normal", EXACT])
def test_drawn_codes_of_8_bits_are_numbers(to, name, kind):
    form = OF_8_BITS[to][name]
    packed = coded.drawn(form, (3, 70, 256), Data(kind=kind, device="cpu"))
    assert packed.blocks.shape == (3, 2, 2, 8192) and packed.factors.shape == (3, 70)
    numbers = packed.numbers().float() * 2.0**form.left
    assert numbers.isfinite().all() and len(numbers.unique()) > 60
    if kind == EXACT and form.element == "e4m3":
        assert {*(numbers.abs() * 4).unique().tolist()} <= {*map(float, range(8, 121))}


@ANY
@pytest.mark.parametrize("kind", ["normal", EXACT])
def test_calls_are_exact_where_data_are(to, name, kind, monkeypatch):
    """A of -1, 0 and 1 by any codes; random ones nearly."""
    p = work.launched(problem(to, name, d=F32))
    c = cases.make(p, (5, 70, 256), Data(kind=kind, device="cpu"))
    memory = Memory(c.a, c.b, c.scale_a, *(x for x in c.given.values() if hasattr(x, "data_ptr")))
    emulated(monkeypatch, memory)
    with memory:
        got = providers.ours(c, config(p, 3 if kind == EXACT else 4), True)()
    want = cases.finished(c, cases.product(c, cases.scaling(p)))
    if kind == EXACT:
        check_exact(got.double(), want, F32)
    else:
        check_near(got.double(), want, FAST if providers.fast(p) else SUMMED)


@pytest.mark.parametrize("kind", ["normal", EXACT])
def test_calls_of_mxfp4_that_are_promoted(kind, monkeypatch):
    """A's scales are the operand's, the rows' factors the epilogue's."""
    of = Problem(family="w4a8_block", a=E4M3, b=E4M3, d=F32, weights="e2m1_32_e8m0")
    p = work.launched(of)
    assert [x.name for x in arguments(p.epilogue)] == ["scale_b"]
    c = cases.make(p, (5, 70, 256), Data(kind=kind, device="cpu"))
    memory = Memory(c.a, c.b, c.scale_a, *c.given.values())
    emulated(monkeypatch, memory)
    with memory:
        got = providers.ours(c, config(p, 3 if kind == EXACT else 4), True)()
    want = cases.finished(c, cases.product(c, cases.scaling(p)))
    if kind == EXACT:
        check_exact(got.double(), want, F32)
    else:
        check_near(got.double(), want, SUMMED)


def test_groups_have_weights_of_their_own(monkeypatch):
    p = problem(BF16, "int4_128_bf16", d=F32, grouping="masked")
    t = grouped._tensors(p, (3, 20, 70, 128), Data(kind=EXACT, device="cpu"), True)
    assert t.b.shape == (3, 2, 1, p.form.block_bytes) and t.wide.shape == (3, 70, 128)
    memory = Memory(t.a, t.b, t.out, t.given["table"])
    emulated(monkeypatch, memory)
    with memory:
        got = grouped._ours(p, t, config(p), True)()
    for g, rows in enumerate(t.sizes):
        check_exact(got[g, :rows].double(), t.a[g, :rows].double() @ t.wide[g].double().mT, F32)


def test_bytes_are_those_of_blocks():
    p = problem(BF16, "int4_128_bf16")
    blocks = 2 * 2 * p.form.block_bytes
    assert work.work(p, (5, 70, 200)).inputs == 5 * 200 * 2 + blocks
    several = problem(BF16, "int4_128_bf16", grouping="batched")
    assert work.work(several, (3, 5, 70, 200)).inputs == 3 * (5 * 200 * 2 + blocks)


def test_k_is_of_whole_groups():
    with pytest.raises(ArgumentError, match=r"^K=200"):
        coded.drawn(FORMS[BF16]["int4_128_bf16"], (70, 200), Data(device="cpu"))


def test_a_chain_of_fp16_overflows():
    p = problem(F16, "int4_128_f16")
    with pytest.raises(ArgumentError, match=r"^--mode='chain'.*BF16"):
        bench_chain.run(None, p, [], SimpleNamespace(mode="chain"), None)
