"""`gemmgen.ops.summed_gemm`: what it checks, and what reaches the kernel."""

from __future__ import annotations

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose
from gemmgen.heuristics.invariant import split_of
from gemmgen.ir.argument_names import parameter
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.ir.expr import ACC, PerElement
from gemmgen.problem import Problem
from gemmgen.target import H200

G, M, N, K = 5, 72, 200, 48


class Output(Placed):
    """BF16 if nothing is said. written: what was, to all of it."""

    def __init__(self, *shape, dtype="bfloat16", **more):
        super().__init__(*shape, dtype=dtype, **more)
        self.written = []

    def zero_(self):
        return self.copy_(0)

    def copy_(self, other):
        self.written.append(other)
        return self


SMALL = Config(block_m=64, block_n=64, consumers=1, stages=3)
CHOSEN = ops.building.chosen
STORED = {
    "nt": ((M, K), (N, K)),
    "nn": ((M, K), (K, N)),
    "tn": ((K, M), (K, N)),
    "tt": ((K, M), (N, K)),
}


def operands(layout="nt", dtype="bfloat16", groups=G):
    return tuple(Placed(groups, *sides, dtype=dtype) for sides in STORED[layout])


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("layout", STORED)
def test_one_launch(layout, dtype, launches):
    a, b = operands(layout, dtype)
    out = Output(M, N, dtype=dtype)
    assert ops.summed_gemm(a, b, out, layout=layout, config=SMALL) is out
    (found,) = launches
    kind = {"bfloat16": BF16, "float16": F16}[dtype]
    wanted = Problem(family="dense", a=kind, b=kind, d=kind, layout=layout, grouping="summed")
    assert (found.problem, found.shape, found.config) == (wanted, (M, N, K), SMALL)
    assert found.values["groups"] == G
    for name, x in (("a", a), ("b", b)):
        m = found.matrices[name]
        assert (m.pointer, m.groups, m.group_stride) == (x.address, G, x.strides[0])
    assert found.matrices["d"].groups == 1 and found.values["d_stride"] == N


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_what_is_added(dtype, launches):
    name = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    (a, b), c, out = operands(), Output(M, N, dtype=dtype), Output(M, N, dtype=dtype)
    for given in (c, out):
        ops.summed_gemm(a, b, out, c=given, out_dtype=name, config=SMALL)
    apart, in_place = launches
    read = ACC + PerElement("c", apart.problem.d)
    assert apart.problem.epilogue == read and apart.values[parameter("c")] == c.address
    if dtype == "float32":  # the copy engine adds
        assert in_place.problem.accumulate and in_place.problem.epilogue == ACC
    else:
        assert in_place.values[parameter("c")] == out.address


def test_batches_that_are_padded_or_permuted(launches):
    a = Placed(G, M, K, dtype="bfloat16", stride=(K, G * K, 1))
    b = Placed(G, N, K, dtype="bfloat16", stride=(N * 64 + 8, 64, 1))
    ops.summed_gemm(a, b, config=SMALL, out=Output(M, N))
    (found,) = launches
    assert (found.matrices["a"].stride, found.matrices["a"].group_stride) == (G * K, K)
    assert (found.matrices["b"].stride, found.matrices["b"].group_stride) == (64, N * 64 + 8)


@pytest.mark.parametrize("given", (None, "c", "out"))
def test_no_batch(given, launches):
    """Nothing is launched; out is what is added, or 0."""
    a, b = operands(groups=0)
    out, c = Output(M, N, dtype="float32"), Output(M, N, dtype="float32")
    more = {None: None, "c": c, "out": out}[given]
    assert ops.summed_gemm(a, b, out, c=more, out_dtype="f32") is out
    assert not launches and out.written == {None: [0], "c": [c], "out": []}[given]


def test_no_batch_of_another_epilogue(launches):
    p = Problem(family="dense", a=BF16, b=BF16, grouping="summed", epilogue=ACC + 1.0)
    with pytest.raises(ArgumentError, match="at least one group"):
        ops.multiply(p, *operands(groups=0), Output(M, N))
    assert not launches


def test_no_rows(launches):
    a, out = Placed(G, 0, K, dtype="bfloat16"), Output(0, N)
    assert ops.summed_gemm(a, operands()[1], out) is out and not launches


def test_int8_sums_that_could_overflow(launches):
    p = Problem(family="dense", a="s8", b="s8", d="s32", grouping="summed")
    most = (2**31 - 1) // 2**14

    def call(groups, k):
        a, b = (Placed(groups, 64, k, dtype="int8") for _ in range(2))
        ops.multiply(p, a, b, Output(64, 64, dtype="int32"), config=SMALL)

    call(16, most // 16 // 16 * 16)
    with pytest.raises(ArgumentError, match="INT32 may overflow") as e:
        call(16, most // 16 // 16 * 16 + 16)
    assert e.value.argument == "a columns" and len(launches) == 1


def test_the_chosen_config_shares_the_sum(launches, monkeypatch):
    """As the cost model chooses it, for so many groups; an invariant one by N, K and their number."""
    monkeypatch.setattr(ops.building, "chosen", CHOSEN)
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: H200.device_name)
    m, n, k, groups = 128, 384, 128, 4096
    a, b = (Placed(groups, side, k, dtype="bfloat16") for side in (m, n))
    out = Output(m, n, dtype="float32")
    p = Problem(family="dense", a=BF16, b=BF16, d=F32, grouping="summed")
    ops.summed_gemm(a, b, out, out_dtype="f32")
    assert launches[-1].config == choose(p, (m, n, k), H200, groups) and launches[-1].config.stream
    ops.summed_gemm(a, b, out, out_dtype="f32", invariant=True)
    c = launches[-1].config
    assert not c.stream and max(c.split_k, c.shares) == split_of(p, n, k * groups) > 1
    with pytest.raises(ArgumentError, match="config"):
        ops.summed_gemm(a, b, out, out_dtype="f32", invariant=True, config=SMALL)


def test_a_workspace_is_bound(launches):
    """Of a launch whose CTAs hand sums over: its own."""
    c = Config(block_m=64, block_n=64, consumers=1, stages=3, stream=True)
    a, b = operands()
    launch = ops.bind(ops.summed_gemm, a, b, Output(M, N), config=c)
    assert launch() is launch.tensors["out"] and "partials" in launch.makers
