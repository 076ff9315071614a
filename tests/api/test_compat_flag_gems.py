"""`gemmgen.compat.flag_gems`: its keywords, what its calls launch, what it refuses."""

from __future__ import annotations

import inspect

import pytest
from fake_torch import Placed, codes, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.compat import flag_gems
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.ir.expr import ACC
from gemmgen.target import H200

GROUPS, M, N, K = 3, 48, 384, 512
BLOCKS_N, BLOCKS_K = 3, 4


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    config = Config(block_n=64, stages=2)
    monkeypatch.setattr(ops.building, "chosen", lambda *asked: config)
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: H200.device_name)


def given(**changes):
    right = {
        "x": codes(GROUPS, M, K),
        "y": codes(GROUPS, N, K),
        "xs": Placed(GROUPS, M, BLOCKS_K),
        "ys": Placed(GROUPS, BLOCKS_N, BLOCKS_K),
    }
    return right | changes


def by_head(**changes):
    right = {
        "equation": "bhr,hdr->bhd",
        "x": codes(M, GROUPS, K),
        "xs": Placed(M, GROUPS, BLOCKS_K),
        "y": codes(GROUPS, N, K),
        "ys": Placed(GROUPS, BLOCKS_N, BLOCKS_K),
    }
    return right | changes


@pytest.mark.parametrize(
    ("name", "signature"),
    (
        ("w8a8_block_fp8_bmm", "x y xs ys block_size z output_dtype"),
        ("fp8_einsum", "equation x xs y ys block_size output_dtype"),
    ),
)
def test_keywords(name, signature):
    parameters = inspect.signature(getattr(flag_gems, name)).parameters
    assert " ".join(parameters) == signature
    assert parameters["block_size"].default == (128, 128)
    assert parameters["output_dtype"].default is None


@pytest.mark.parametrize(
    ("dtype", "d"), ((None, BF16), ("bfloat16", BF16), ("float16", F16), ("float32", F32))
)
@pytest.mark.parametrize("block_size", ([128, 128], (128, 128)))
def test_launches(dtype, d, block_size, launches):
    right = given()
    z = flag_gems.w8a8_block_fp8_bmm(**right, block_size=block_size, output_dtype=dtype)
    (found,) = launches
    p = found.problem
    assert (p.family, p.grouping, p.d, p.epilogue) == ("fp8_block", "batched", d, ACC)
    assert found.shape == (M, N, K) and z.shape == (GROUPS, M, N)
    assert found.matrices["a"].pointer == right["x"].address
    assert found.values["scale_b"] == right["ys"].address


def test_permuted_views_are_read_and_written_in_place(launches):
    x = codes(M, GROUPS, K).transpose(0, 1)
    z = Placed(M, GROUPS, N, dtype="bfloat16").transpose(0, 1)
    assert flag_gems.w8a8_block_fp8_bmm(**given(x=x), z=z) is z
    (found,) = launches
    a, d = found.matrices["a"], found.matrices["d"]
    assert (a.pointer, a.stride, a.group_stride) == (x.address, GROUPS * K, K)
    assert (d.pointer, d.stride, d.group_stride) == (z.address, GROUPS * N, N)


@pytest.mark.parametrize(
    ("stride", "mapped"),
    (
        ((BLOCKS_K * M, 1, M), True),
        ((BLOCKS_K * M + 8, 1, M), True),
        ((M * BLOCKS_K, BLOCKS_K, 1), False),
        ((BLOCKS_K, GROUPS * BLOCKS_K, 1), False),
        ((0, 1, M), False),
    ),
)
def test_scales_are_read_where_they_lie(stride, mapped, launches):
    """By a tensor map if that can, else by lanes."""
    xs = Placed(GROUPS, M, BLOCKS_K, stride=stride)
    flag_gems.w8a8_block_fp8_bmm(**given(xs=xs))
    (found,) = launches
    assert found.values["scale_a"] == xs.address and found.config.lane_scales != mapped
    assert not mapped or found.matrices["scale_a"].pointer == xs.address


def test_einsum_writes_a_dense_output(launches):
    right = by_head()
    z = flag_gems.fp8_einsum(**right, output_dtype="float32")
    (found,) = launches
    assert (z.shape, z.dtype) == ((M, GROUPS, N), "float32") and z.is_contiguous()
    assert found.shape == (M, N, K) and found.matrices["d"].pointer == z.address
    assert found.matrices["d"].stride == GROUPS * N


@pytest.mark.parametrize(
    ("argument", "changes", "allowed"),
    (
        ("block_size", {"block_size": [64, 128]}, "[128, 128]"),
        ("output_dtype", {"output_dtype": "int8"}, "bfloat16, float16, float32"),
        ("x dtype", {"x": Placed(GROUPS, M, K, dtype="float8_e5m2")}, "float8_e4m3fn"),
        ("x shape", {"x": codes(M, K)}, "[any, any, any]"),
        ("x last stride", {"x": codes(GROUPS, K, M).mT}, "must be 1"),
        ("x row stride", {"x": codes(GROUPS, M, K, stride=(M * K, K + 8, 1))}, "16"),
        ("y shape", {"y": codes(GROUPS, N, K + 128)}, f"{K}"),
        ("y groups", {"y": codes(2, N, K)}, "3"),
        ("y last stride", {"y": codes(GROUPS, K, N).mT}, "must be 1"),
        ("xs shape", {"xs": Placed(GROUPS, M, 3)}, f"[3, {M}, 4]"),
        ("xs dtype", {"xs": Placed(GROUPS, M, 4, dtype="bfloat16")}, "float32"),
        ("ys shape", {"ys": Placed(GROUPS, 1, 1)}, "[3, 3, 4]"),
        ("z shape", {"z": Placed(GROUPS, M, K, dtype="bfloat16")}, f"[3, {M}, {N}]"),
        ("z dtype", {"z": Placed(GROUPS, M, N)}, "bfloat16"),
        ("z last stride", {"z": Placed(GROUPS, N, M, dtype="bfloat16").mT}, "must be 1"),
    ),
)
def test_refusals_name_their_argument(argument, changes, allowed, launches):
    with pytest.raises(ArgumentError) as e:
        flag_gems.w8a8_block_fp8_bmm(**given(**changes))
    assert e.value.argument == argument and allowed in str(e.value) and not launches


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("x shape", {"x": codes(M, K)}),
        ("x dtype", {"x": Placed(M, GROUPS, K)}),
        ("xs shape", {"xs": Placed(GROUPS, M, BLOCKS_K)}),
        ("y shape", {"y": codes(2, N, K)}),
        ("output_dtype", {"output_dtype": "int8"}),
        ("block_size", {"block_size": [128, 64]}),
    ),
)
def test_einsum_refusals(argument, changes, launches):
    with pytest.raises(ArgumentError) as e:
        flag_gems.fp8_einsum(**by_head(**changes))
    assert e.value.argument == argument and not launches


def test_other_sums():
    with pytest.raises(UnsupportedProblem, match=r"bhd,hdr..bhr"):
        flag_gems.fp8_einsum(**by_head(equation="bhd,hdr->bhr"))
