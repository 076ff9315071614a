"""`deep_gemm`'s scales of a byte each: packed, unpacked, laid out, against numbers computed one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gemmgen import ops  # noqa: E402
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

SPECIAL = [0.0, 1.0, -1.0, 1e-45, 2.0**-126, 1.5 * 2.0**-126, 2.0**127, 1.9 * 2.0**127, 448.0, -3.0]


def powers(*shape: int, seed: int = 0):
    """Powers of two from 2^-126 to 2^127."""
    exponents = np.random.default_rng(seed).integers(-126, 128, shape)
    return torch.from_numpy(np.ldexp(np.float32(1), exponents.astype(np.int32)))


def exponent(x: float) -> int:
    """Of a power of two, as IEEE 754 stores it."""
    return 0 if x == 0 else int(math.log2(x)) + 127


def word(scales: list[float]) -> int:
    """At most four of them, as an int32."""
    return int.from_bytes(
        bytes(exponent(x) for x in [*scales, 0, 0, 0, 0][:4]), "little", signed=True
    )


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_rounded_up_to_powers_of_two(dtype):
    x = torch.tensor([*SPECIAL, *np.random.default_rng(1).lognormal(0, 9, 300)]).to(dtype)
    x = x[x.isfinite()]
    found = deep_gemm.ceil_to_ue8m0(x)
    assert found.dtype == torch.float32 and found.shape == x.shape
    for of, got in zip(x.double().tolist(), found.tolist(), strict=True):
        least = 2.0**-126 if abs(of) <= 2.0**-126 else 2.0 ** math.ceil(math.log2(abs(of)))
        assert got == min(least, 2.0**127), of


@pytest.mark.parametrize("shape", ((4,), (3, 8), (2, 3, 4), (0, 4), (5, 0)))
def test_packed_four_by_four_and_back(shape):
    x = powers(*shape)
    packed = deep_gemm.pack_ue8m0_to_int(x)
    assert packed.dtype == torch.int32 and packed.shape == (*shape[:-1], shape[-1] // 4)
    wanted = [word(four) for four in x.reshape(-1, 4).tolist()]
    assert packed.flatten().tolist() == wanted
    assert torch.equal(deep_gemm.unpack_ue8m0_from_int(packed), x)


def test_scales_that_lie_by_column_are_packed_by_row():
    x = powers(8, 12).mT.contiguous().mT
    assert torch.equal(deep_gemm.pack_ue8m0_to_int(x), deep_gemm.pack_ue8m0_to_int(x.contiguous()))


@pytest.mark.parametrize(
    "shape", ((1, 1), (5, 3), (64, 8), (130, 9), (3, 5, 7), (2, 4, 4), (1, 6, 1), (7, 0))
)
@pytest.mark.parametrize("turned", (False, True))
def test_packed_layouts(shape, turned):
    sf = powers(*shape, seed=2)
    sf = sf.mT.contiguous().mT if turned else sf
    found = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    *lead, rows, blocks = shape
    columns, pitch = -(-blocks // 4), -(-rows // 4) * 4
    assert found.dtype == torch.int32 and found.shape == (*lead, rows, columns)
    assert found.stride() == (*(pitch * columns,) * len(lead), 1, pitch)
    wanted = [
        [word(row[at : at + 4]) for at in range(0, blocks, 4)]
        for row in (sf.reshape(-1, blocks).tolist() if blocks else [])
    ]
    assert (found.reshape(-1, columns).tolist() if columns else []) == wanted


def test_signs_and_mantissas_are_left_out():
    sf = torch.tensor([[1.5, -2.0, 3.9, -0.0]])
    found = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    assert found.tolist() == [[word([1.0, 2.0, 2.0, 0.0])]]


def test_rows_between_groups_are_packed_too():
    sf, ends = powers(64, 4), torch.tensor([10, 40], dtype=torch.int32)
    found = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, psum_layout=ends)
    assert torch.equal(found, deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf))


@pytest.mark.parametrize("gran", (32, 128))
@pytest.mark.parametrize("ks", ([128], [256, 0, 640, 128], [1024, 4096], [0], []))
@pytest.mark.parametrize("columns", (4, 20))
def test_groups_that_split_k(gran, ks, columns):
    """Each is packed as if it were alone."""
    blocks = [k // gran for k in ks]
    sf = powers(sum(blocks), columns, seed=3)
    table = torch.tensor(ks, dtype=torch.int32)
    function = deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
    found = function(sf, table, ks, gran, 128)
    wanted = [
        [word(part[at : at + 4, c].tolist()) for c in range(columns)]
        for part in sf.split(blocks)
        for at in range(0, len(part), 4)
    ]
    assert found.dtype == torch.int32 and found.is_contiguous()
    assert found.shape == (sum(-(-k // (4 * gran)) for k in ks), columns)
    assert found.tolist() == wanted


def test_operands_with_packed_scales():
    x = torch.randn(5, 1024)
    q, packed = deep_gemm.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True)
    same, scales = ops.quantise_rows(x, power_of_two=True)
    assert torch.equal(q.view(torch.uint8), same.view(torch.uint8)) and packed.shape == (5, 2)
    assert torch.equal(deep_gemm.unpack_ue8m0_from_int(packed), scales)


@pytest.mark.parametrize("dims", ((0,), (1,), (0, 1), (0, 2), [2], (1, 2), (2, 0), ()))
@pytest.mark.parametrize("powers_of_two", (False, True))
def test_scales_of_chosen_dimensions(dims, powers_of_two):
    x = torch.randn(3, 5, 130, generator=torch.Generator().manual_seed(4)).bfloat16()
    q, scales = deep_gemm.per_custom_dims_cast_to_fp8(x, dims, powers_of_two)
    others = [i for i in range(3) if i not in dims]
    amax = x.float().abs().amax(others, keepdim=True)
    wanted = amax / torch.full_like(amax, 448)
    wanted = deep_gemm.ceil_to_ue8m0(wanted) if powers_of_two else wanted
    assert scales.dtype == torch.float32 and torch.equal(scales, wanted.squeeze())
    assert q.dtype == torch.float8_e4m3fn and q.shape == x.shape and q.is_contiguous()
    far = (q.float() * wanted - x.float()).abs() / amax
    assert far.max() <= 2.0**-4  # half a step of the largest


def test_sides_of_one_are_left_out_of_scales():
    q, scales = deep_gemm.per_custom_dims_cast_to_fp8(torch.ones(1, 4, 8), (0, 1), False)
    assert scales.shape == (4,) and q.shape == (1, 4, 8)


CAST, PACK = "per_custom_dims_cast_to_fp8", "pack_ue8m0_to_int"
LAYOUT, GROUPED = (
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
)
TABLE = torch.tensor([128, 256], dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "given", "argument"),
    (
        (PACK, (powers(3, 6),), "x shape"),
        (PACK, (powers(3, 4) * 1.5,), "x"),
        (PACK, (-powers(3, 4),), "x"),
        (PACK, (powers(3, 4).bfloat16(),), "x dtype"),
        ("unpack_ue8m0_from_int", (powers(3, 4),), "packed_sf dtype"),
        (LAYOUT, (powers(4),), "sf shape"),
        (LAYOUT, (powers(4, 4).int(),), "sf dtype"),
        (LAYOUT, (powers(2, 4, 4), TABLE), "sf shape"),
        (LAYOUT, (powers(4, 4), TABLE.float()), "psum_layout dtype"),
        (GROUPED, (powers(4, 4), TABLE, [128, 256], 128, 128), "sf shape"),
        (GROUPED, (powers(3, 4), TABLE, None, 128, 128), "ks_cpu"),
        (GROUPED, (powers(3, 4), TABLE, [128, -256], 128, 128), "ks_cpu"),
        (GROUPED, (powers(3, 4), TABLE, [128, 256], 64, 128), "gran_k"),
        (GROUPED, (powers(3, 4), TABLE, [128, 256], 128, 100), "k_alignment"),
        (GROUPED, (powers(3, 4), TABLE[:1], [128, 256], 128, 128), "grouped_layout shape"),
        (GROUPED, (powers(3, 4), TABLE, [128, 256], 128, 128, True), "use_psum_layout"),
        (CAST, (torch.ones(2, 3), (0, 1), False), "dims"),
        (CAST, (torch.ones(2, 3), (2,), False), "dims"),
        (CAST, (torch.ones(2, 3), 0, False), "dims"),
        (CAST, (torch.ones(2, 3).int(), (0,), False), "x dtype"),
        ("per_token_cast_to_fp8", (torch.ones(2, 384), True, 128, True), "x shape"),
        ("per_token_cast_to_fp8", (torch.ones(2, 512), False, 128, True), "use_packed_ue8m0"),
    ),
)  # fmt: skip
def test_refusals_name_their_argument(name, given, argument):
    with pytest.raises(ArgumentError) as e:
        getattr(deep_gemm, name)(*given)
    assert e.value.argument == argument
