"""`gemmgen.compat.deep_gemm`: its names and keywords, what its calls launch, what it refuses and how."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from fake_torch import Placed, bf16, codes, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.compat import deep_gemm
from gemmgen.compat.deep_gemm import refused, settings
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.heuristics.invariant import split_of
from gemmgen.heuristics.tuned import adds_up
from gemmgen.ir.argument_names import parameter, row_stride
from gemmgen.ir.dtypes import BF16, F32
from gemmgen.ir.expr import ACC, PerElement
from gemmgen.ops import invariance
from gemmgen.summation import summation
from gemmgen.target import H200

CONFIG = Config(block_m=64, block_n=64, consumers=1, stages=2)
CHOSEN = ops.building.chosen
GROUPS, M, N, K = 3, 256, 200, 400
BLOCKS_N, BLOCKS_K = 2, 4

# ---- names --------------------------------------------------------------------------------

DENSE_FP8 = "a b d c=None recipe=None recipe_a=None recipe_b=None compiled_dims='{}' disable_ue8m0_cast=False"
DENSE_BF16 = "a b d c=None compiled_dims='{}'"
RECIPES = "recipe=None recipe_a=None recipe_b=None compiled_dims='nk' disable_ue8m0_cast=False"
PSUM = "use_psum_layout=False ensure_zero_padding=True"
EXPECTED = "expected_m_for_psum_layout=None"
K_GROUPED = "a b d ks_cpu grouped_layout c=None{} compiled_dims='mn' use_psum_layout=False"
ONE_BY_ONE = " recipe=(1, 1, 128)"

SIGNATURES = {
    "fp8_gemm_nt": DENSE_FP8.format("nk"),
    "fp8_gemm_nn": DENSE_FP8.format("nk"),
    "fp8_gemm_tn": DENSE_FP8.format("mn"),
    "fp8_gemm_tt": DENSE_FP8.format("mn"),
    "fp8_gemm_nt_skip_head_mid": "a b d head_splits recipe=None compiled_dims='nk' disable_ue8m0_cast=False",
    "bf16_gemm_nt": DENSE_BF16.format("nk"),
    "bf16_gemm_nn": DENSE_BF16.format("nk"),
    "bf16_gemm_tn": DENSE_BF16.format("mn"),
    "bf16_gemm_tt": DENSE_BF16.format("mn"),
    **{f"cublaslt_gemm_{x}": "a b d c=None" for x in ("nt", "nn", "tn", "tt")},
    "m_grouped_fp8_gemm_nt_contiguous": f"a b d grouped_layout {RECIPES} {PSUM} {EXPECTED}",
    "m_grouped_fp8_gemm_nn_contiguous": f"a b d grouped_layout {RECIPES} {PSUM}",
    "m_grouped_fp8_gemm_nt_masked": f"a b d masked_m expected_m {RECIPES}",
    "m_grouped_bf16_gemm_nt_contiguous": f"a b d grouped_layout compiled_dims='nk' {PSUM} {EXPECTED}",
    "m_grouped_bf16_gemm_nn_contiguous": f"a b d grouped_layout compiled_dims='nk' {PSUM}",
    "m_grouped_bf16_gemm_nt_masked": "a b d masked_m expected_m compiled_dims='nk'",
    "k_grouped_fp8_gemm_nt_contiguous": K_GROUPED.format(ONE_BY_ONE),
    "k_grouped_fp8_gemm_tn_contiguous": K_GROUPED.format(ONE_BY_ONE),
    "k_grouped_bf16_gemm_tn_contiguous": K_GROUPED.format(""),
    "einsum": "expr a b d c=None use_cublaslt=False",
    "fp8_einsum": "expr a b d c=None recipe=(1, 128, 128)",
    "transform_sf_into_required_layout": "sf mn k recipe num_groups=None is_sfa=None "
    "disable_ue8m0_cast=False psum_layout=None",
    "get_tma_aligned_size": "x element_size",
    "get_mn_major_tma_aligned_tensor": "sf",
    "set_mk_alignment_for_contiguous_layout": "new_value",
    "get_mk_alignment_for_contiguous_layout": "",
    "get_theoretical_mk_alignment_for_contiguous_layout": "expected_m=None num_groups=None",
    "set_num_sms": "new_num_sms",
    "get_num_sms": "",
    "set_tc_util": "new_tc_util",
    "get_tc_util": "",
    "set_pdl": "new_enable_pdl",
    "get_pdl": "",
    "use_deterministic_algorithms": "enable",
    "get_deterministic_algorithms": "",
    "set_ignore_compile_dims": "new_value",
    "set_block_size_multiple_of": "new_value",
    "per_token_cast_to_fp8": "x use_ue8m0 gran_k=128 use_packed_ue8m0=False",
    "per_channel_cast_to_fp8": "x use_ue8m0 gran_k=128",
    "per_block_cast_to_fp8": "x use_ue8m0 gran_k=128",
    "per_custom_dims_cast_to_fp8": "x dims use_ue8m0",
    "ceil_to_ue8m0": "x",
    "pack_ue8m0_to_int": "x",
    "unpack_ue8m0_from_int": "packed_sf",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": "sf psum_layout=None",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": "sf grouped_layout ks_cpu gran_k k_alignment "
    "use_psum_layout=False",
    "tf32_hc_prenorm_gemm": "a b d sqr_sum num_splits=None",
    "fp8_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits=True max_seqlen_k=0 schedule_meta=None",
    "fp8_fp4_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits=True max_seqlen_k=0 logits_dtype=None schedule_meta=None",
    "fp8_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta max_context_len clean_logits=False "
    "indices=None",
    "fp8_fp4_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta max_context_len "
    "clean_logits=False logits_dtype=None indices=None",
    "get_paged_mqa_logits_metadata": "context_lens block_kv num_sms indices=None",
    "ceil_div": "x y",
    "align": "x y",
}
OF_OTHERS = (
    *((x, "m_indices", "grouped_layout") for x in SIGNATURES if re.match("m_.*contiguous", x)),
    *((x, "ks", "ks_cpu") for x in SIGNATURES if "k_grouped" in x),
    *((x, "ks", "cu_seq_len_k_start") for x in ("fp8_mqa_logits", "fp8_fp4_mqa_logits")),
    *((x, "ke", "cu_seq_len_k_end") for x in ("fp8_mqa_logits", "fp8_fp4_mqa_logits")),
    ("set_mk_alignment_for_contiguous_layout", "value", "new_value"),
    ("set_block_size_multiple_of", "value", "new_value"),
)
ALIASES = {
    "fp8_fp4_gemm_nt": "fp8_gemm_nt",
    "fp8_fp4_gemm_nn": "fp8_gemm_nn",
    "fp8_fp4_gemm_tn": "fp8_gemm_tn",
    "fp8_fp4_gemm_tt": "fp8_gemm_tt",
    "m_grouped_fp8_fp4_gemm_nt_contiguous": "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nn_contiguous": "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "fp8_m_grouped_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "bf16_m_grouped_gemm_nt_masked": "m_grouped_bf16_gemm_nt_masked",
    "get_m_alignment_for_contiguous_layout": "get_mk_alignment_for_contiguous_layout",
    "get_k_alignment_for_contiguous_layout": "get_mk_alignment_for_contiguous_layout",
}
REFUSED = (
    "SymmBuffer",
    "get_symm_buffer_for_mega_moe",
    "transform_weights_for_mega_moe",
    "fp8_fp4_mega_moe",
    "bf16_mega_moe",
    "per_token_cast_to_fp4",
    "transpose_packed_fp4",
    "cast_back_from_fp4",
    "init_dist",
    "uneven_all_gather",
    "dist_print",
)


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_take_their_keywords(name):
    parameters = inspect.signature(getattr(deep_gemm, name)).parameters.values()
    got = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
    assert " ".join(got) == SIGNATURES[name]


@pytest.mark.parametrize(("name", "other", "ours"), OF_OTHERS)
def test_names_of_other_releases(name, other, ours):
    """Each is the argument that it stands for, once."""
    assert ours in SIGNATURES[name].split() and other not in SIGNATURES[name].split()
    with pytest.raises(TypeError, match=f"'{other}' and '{ours}'"):
        getattr(deep_gemm, name)(**{other: 1, ours: 1})


@pytest.mark.parametrize("name", ALIASES)
def test_aliases(name):
    assert getattr(deep_gemm, name) is getattr(deep_gemm, ALIASES[name])


def test_nothing_else_is_there():
    assert {*SIGNATURES, *ALIASES} == {*deep_gemm.__all__}
    assert {*REFUSED} == {*refused.REASONS} and not {*REFUSED} & {*deep_gemm.__all__}
    assert {*deep_gemm.__all__, *REFUSED} <= {*dir(deep_gemm)}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_names_can_be_imported_and_say_why(name):
    function = getattr(importlib.import_module("gemmgen.compat.deep_gemm"), name)
    assert function is getattr(deep_gemm, name) and function.__name__ == name
    with pytest.raises(UnsupportedProblem, match=name) as e:
        function(1, two=2)
    assert refused.REASONS[name] in str(e.value)


@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
def test_what_asks_for_a_library_is_computed_here(layout, launches):
    """As the BF16 function of that layout."""
    a = bf16(M, K) if layout[0] == "n" else bf16(K, M)
    b = bf16(N, K) if layout[1] == "t" else bf16(K, N)
    for name in ("bf16", "cublaslt"):
        getattr(deep_gemm, f"{name}_gemm_{layout}")(a, b, Output(M, N))
    one, other = launches
    assert one.problem == other.problem and one.shape == other.shape


def test_unknown_names():
    from gemmgen.compat.deep_gemm import utils

    for module in (deep_gemm, utils):
        assert not hasattr(module, "fp8_gemm_xx")
        with pytest.raises(AttributeError, match="fp8_gemm_xx"):
            module.fp8_gemm_xx  # noqa: B018


def test_utils_are_the_same_functions():
    utils = importlib.import_module("gemmgen.compat.deep_gemm.utils")
    assert all(getattr(utils, name) is getattr(deep_gemm, name) for name in utils.__all__)
    assert utils.init_dist is deep_gemm.init_dist


# ---- operands -----------------------------------------------------------------------------


class Output(Placed):
    """A Placed that says what was written to it."""

    def __init__(self, *shape: int, dtype: str = "bfloat16", stride: tuple[int, ...] | None = None):
        super().__init__(*shape, dtype=dtype, stride=stride)
        self.written: list[object] = []

    def zero_(self):
        self.written.append(0)

    def copy_(self, other):
        self.written.append(other)


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setattr(ops.building, "chosen", lambda *asked: CONFIG)
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: H200.device_name)
    monkeypatch.setattr(settings, "_settings", settings.Settings())


def by_column(*shape: int) -> Placed:
    """Scales contiguous along their rows, columns 16-byte aligned."""
    *lead, rows, blocks = shape
    pitch = -(-rows // 4) * 4
    return Placed(*shape, stride=(*(pitch * blocks,) * len(lead), 1, pitch))


def dense_fp8(**changes):
    right = {
        "a": (codes(M, K), by_column(M, BLOCKS_K)),
        "b": (codes(N, K), Placed(BLOCKS_N, BLOCKS_K)),
        "d": Output(M, N),
    }
    return right | changes


# ---- dense --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_fp8_with_scales_of_blocks(dtype, launches):
    given = dense_fp8(d=Output(M, N, dtype=dtype))
    assert deep_gemm.fp8_gemm_nt(**given) is None
    (found,) = launches
    p, (a, scale_a), (b, scale_b) = found.problem, given["a"], given["b"]
    assert (p.family, p.grouping, p.epilogue) == ("fp8_block", "none", ACC)
    assert p.d == (BF16 if dtype == "bfloat16" else F32)
    assert found.shape == (M, N, K)
    tensors = {"a": a, "b": b, "d": given["d"], "scale_a": scale_a}
    assert {name: x.pointer for name, x in found.matrices.items()} == {
        name: t.address for name, t in tensors.items()
    }
    assert found.values["scale_b"] == scale_b.address


BY_VECTOR = ({"recipe": (1, 1, 128)}, {"recipe_a": (1, 128), "recipe_b": (1, 128)})


@pytest.mark.parametrize("recipe", BY_VECTOR)
def test_fp8_with_scales_of_rows(recipe, launches):
    given = dense_fp8(b=(codes(N, K), by_column(N, BLOCKS_K)), d=Output(M, N, dtype="float32"))
    deep_gemm.fp8_gemm_nt(**given, **recipe, c=given["d"])
    (found,) = launches
    assert (found.problem.family, found.problem.accumulate) == ("fp8_1d1d", True)
    assert found.matrices["scale_b"].pointer == given["b"][1].address


@pytest.mark.parametrize(
    "recipe",
    (
        {"recipe": (1, 128, 128)},
        {"recipe": [1, 128, 128]},
        {"recipe_a": (1, 128), "recipe_b": (128, 128)},
    ),
)
def test_recipes_of_blocks(recipe, launches):
    deep_gemm.fp8_gemm_nt(**dense_fp8(), **recipe, disable_ue8m0_cast=True)
    assert launches[0].problem.family == "fp8_block"


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
@pytest.mark.parametrize(
    ("dtype", "where"), (("bfloat16", "d"), ("bfloat16", "apart"), ("float32", "apart"))
)
def test_adding_c(kind, dtype, where, launches):
    given = dense_fp8(d=Output(M, N, dtype=dtype))
    if kind == "bf16":
        given |= {"a": bf16(M, K), "b": bf16(N, K)}
    c = given["d"] if where == "d" else Output(M, N, dtype=dtype)
    getattr(deep_gemm, f"{kind}_gemm_nt")(**given, c=c)
    (found,) = launches
    assert found.problem.epilogue == ACC + PerElement("c", found.problem.d)
    assert found.values[parameter("c")] == c.address and found.values[row_stride("c")] == N
    assert not given["d"].written


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
@pytest.mark.parametrize(("m", "n", "k"), ((0, N, K), (M, 0, K), (M, N, 0)))
@pytest.mark.parametrize("added", ("nothing", "c", "d"))
def test_empty_products(kind, m, n, k, added, launches):
    """K = 0 leaves c, or 0."""
    d, c = Output(m, n), Output(m, n)
    c = {"nothing": None, "c": c, "d": d}[added]
    a, b = bf16(m, k), bf16(n, k)
    if kind == "fp8":
        a, b = (codes(m, k), Placed(m, 0)), (codes(n, k), Placed(0, 0))
    getattr(deep_gemm, f"{kind}_gemm_nt")(a, b, d, c)
    assert d.written == {"nothing": [0], "c": [c], "d": []}[added] and not launches


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_heads_of_which_the_middle_is_left_out(dtype, launches):
    b, d = (codes(512, K), Placed(4, BLOCKS_K)), Output(M, 640, dtype=dtype)
    given = dense_fp8(b=b, d=d, head_splits=(128, 64, 128))
    assert deep_gemm.fp8_gemm_nt_skip_head_mid(**given) is None
    (found,) = launches
    assert found.problem.heads.numbers == (128, 64, 128) and found.shape == (M, 512, K)
    assert (found.matrices["d"].pointer, found.matrices["d"].inner) == (d.address, 640)
    deep_gemm.fp8_gemm_nt_skip_head_mid(**given | {"head_splits": [0, 32, 128]})
    assert launches[1].problem.heads.numbers == (0, 32, 128)


def test_heads_without_a_middle_are_a_product(launches):
    b = (codes(512, K), Placed(4, BLOCKS_K))
    given = dense_fp8(b=b, d=Output(M, 512), recipe=(1, 128, 128), disable_ue8m0_cast=True)
    deep_gemm.fp8_gemm_nt_skip_head_mid(**given, head_splits=(128, 0, 128))
    assert launches[0].problem.heads is None
    with pytest.raises(ArgumentError, match=r"^b\[0\] rows=512: must be a multiple of 224"):
        deep_gemm.fp8_gemm_nt_skip_head_mid(**given, head_splits=(128, 0, 96))


def test_heads_of_no_rows_of_a(launches):
    a, b = (codes(0, K), Placed(0, BLOCKS_K)), (codes(512, K), Placed(4, BLOCKS_K))
    deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, Output(0, 640), (128, 64, 128))
    assert not launches


@pytest.mark.parametrize("turned", ("nt", "nn", "tn", "tt"))
def test_fp8_layouts_are_views_of_nt(turned, launches):
    given = dense_fp8()
    for name, letter, straight in (("a", turned[0], "n"), ("b", turned[1], "t")):
        if letter != straight:
            given[name] = tuple(t.mT for t in given[name])
    getattr(deep_gemm, f"fp8_gemm_{turned}")(**given)
    (found,) = launches
    assert found.shape == (M, N, K) and found.problem.layout == "nt"
    assert found.matrices["a"].pointer == given["a"][0].address


@pytest.mark.parametrize("function", ("nt", "nn", "tn", "tt"))
@pytest.mark.parametrize("lying", ("nt", "nn", "tn", "tt"))
def test_bf16_layouts_follow_the_strides(function, lying, launches):
    """The function says which side is which, the strides say how it lies."""
    a = bf16(M, K) if lying[0] == "n" else bf16(K, M).mT
    b = bf16(N, K) if lying[1] == "t" else bf16(K, N).mT
    a = a if function[0] == "n" else a.mT
    b = b if function[1] == "t" else b.mT
    getattr(deep_gemm, f"bf16_gemm_{function}")(a, b, Output(M, N))
    (found,) = launches
    assert (found.problem.layout, found.shape) == (lying, (M, N, K))
    assert (found.matrices["a"].pointer, found.matrices["b"].pointer) == (a.address, b.address)


@pytest.mark.parametrize("recipe", ((1, 128, 128), (1, 1, 128)))
def test_padded_rows_are_read_with_their_stride(recipe, launches):
    """DeepGEMM takes K for the stride by recipe (1, 1, 128)."""

    def padded(rows):
        return Placed(rows, K, dtype="float8_e4m3fn", stride=(K + 112, 1))

    scales = Placed(BLOCKS_N, BLOCKS_K) if recipe[1] == 128 else by_column(N, BLOCKS_K)
    given = dense_fp8(a=(padded(M), by_column(M, BLOCKS_K)), b=(padded(N), scales))
    deep_gemm.fp8_gemm_nt(**given, recipe=recipe)
    assert {launches[0].matrices[x].stride for x in "ab"} == {K + 112}


def test_a_row_is_not_turned(launches):
    """Where both strides are 1 there is one way to read it."""
    deep_gemm.bf16_gemm_nt(bf16(1, K), bf16(N, K), Output(1, N))
    assert launches[0].problem.layout == "nt"


def test_adding_in_place_by_the_copy_engine(launches):
    d = Output(M, N, dtype="float32")
    deep_gemm.bf16_gemm_nt(bf16(M, K), bf16(N, K), d, c=d.seen(d.shape, d.strides))
    assert launches[0].problem.accumulate and launches[0].problem.epilogue == ACC


# ---- scales -------------------------------------------------------------------------------

BY_COLUMN = {
    "aligned": (1, M),
    "columns padded": (1, M + 8),
}
BY_ROW = {
    "by row": (BLOCKS_K, 1),
    "by row, padded": (BLOCKS_K + 4, 1),
    "columns not aligned": (1, M + 2),
    "one column for all": (1, 0),
    "columns that overlap": (1, 8),
    "every other": (2, 2 * M),
}


@pytest.mark.parametrize("way", BY_COLUMN)
def test_scales_that_a_tensor_map_reads(way, launches):
    scales = Placed(M, BLOCKS_K, stride=BY_COLUMN[way])
    deep_gemm.fp8_gemm_nt(**dense_fp8(a=(codes(M, K), scales)))
    read = launches[0].matrices["scale_a"]
    assert read.pointer == scales.address and not launches[0].config.lane_scales
    assert (read.outer, read.inner) == (BLOCKS_K, M) and read.stride % 4 == 0


@pytest.mark.parametrize("way", BY_ROW)
def test_scales_that_lanes_read(way, launches):
    """Whatever their strides are, where they lie."""
    scales = Placed(M, BLOCKS_K, stride=BY_ROW[way])
    deep_gemm.fp8_gemm_nt(**dense_fp8(a=(codes(M, K), scales)))
    (found,) = launches
    assert "scale_a" not in found.matrices and found.values["scale_a"] == scales.address
    strides = tuple(found.values[f"scale_a_stride_{axis}"] for axis in "mk")
    assert strides == BY_ROW[way]


def test_scales_at_an_odd_address_are_read_by_lanes(launches):
    scales = by_column(M, BLOCKS_K)
    scales.address += 4
    deep_gemm.fp8_gemm_nt(**dense_fp8(a=(codes(M, K), scales)))
    assert launches[0].values["scale_a"] == scales.address and launches[0].config.lane_scales


def test_vector_scales_of_both_are_copied(launches):
    """Where columns have scales of their own, tensor maps read both."""
    scales = Placed(M, BLOCKS_K), Placed(N, BLOCKS_K)
    given = dense_fp8(a=(codes(M, K), scales[0]), b=(codes(N, K), scales[1]), recipe=(1, 1, 128))
    deep_gemm.fp8_gemm_nt(**given)
    for name, lying in zip(("scale_a", "scale_b"), scales, strict=True):
        read = launches[0].matrices[name]
        assert read.pointer != lying.address and read.stride % 4 == 0


# ---- groups -------------------------------------------------------------------------------


def contiguous(kind: str, psum: bool = False, **changes):
    table = Placed(GROUPS if psum else M, dtype="int32")
    right = {"a": bf16(M, K), "b": bf16(GROUPS, N, K), "d": Output(M, N), "grouped_layout": table}
    if kind == "fp8":
        right["a"] = codes(M, K), by_column(M, BLOCKS_K)
        right["b"] = codes(GROUPS, N, K), Placed(GROUPS, BLOCKS_N, BLOCKS_K)
    return right | changes


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
@pytest.mark.parametrize("psum", (False, True))
@pytest.mark.parametrize("alignment", (128, 64))
def test_contiguous_groups(kind, psum, alignment, launches):
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    given = contiguous(kind, psum)
    more = {"expected_m_for_psum_layout": 64} if psum else {}
    function = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")
    assert function(**given, use_psum_layout=psum, **more) is None
    (found,) = launches
    p = found.problem
    assert (p.grouping, p.alignment) == ("ends" if psum else "rows", alignment)
    assert p.family == ("fp8_block" if kind == "fp8" else "dense")
    assert found.values["group_ends" if psum else "row_groups"] == given["grouped_layout"].address
    assert found.shape == (M, N, K) and found.values["groups"] == GROUPS


@pytest.mark.parametrize("layout", ("nt", "nn"))
def test_legacy_names(layout, launches):
    given = contiguous("bf16")
    given["b"] = given["b"] if layout == "nt" else given["b"].mT
    function = getattr(deep_gemm.legacy, f"m_grouped_bf16_gemm_{layout}_contiguous_tl")
    assert " ".join(inspect.signature(function).parameters) == "a b d m_indices"
    assert function(*given.values()) is None
    (found,) = launches
    assert found.problem.grouping == "rows" and found.shape == (M, N, K)
    assert found.values["row_groups"] == given["grouped_layout"].address


@pytest.mark.parametrize("name", refused.LEGACY)
def test_legacy_names_that_gather(name, launches):
    tables = (Placed(M, dtype="int32"),) * 2
    with pytest.raises(UnsupportedProblem, match=f"{name}: .*(grouped_gemm|k_grouped)"):
        getattr(deep_gemm.legacy, name)(bf16(M, K), bf16(GROUPS, N, K), Output(M, N), tables)
    assert not launches and not hasattr(deep_gemm, name)


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
@pytest.mark.parametrize("layout", ("nt", "nn"))
def test_groups_by_the_name_that_engines_still_say(kind, layout, launches):
    given = contiguous(kind)
    if layout == "nn":
        b = given["b"]
        given["b"] = tuple(t.mT for t in b) if kind == "fp8" else b.mT
    table = given.pop("grouped_layout")
    function = getattr(deep_gemm, f"m_grouped_{kind}_gemm_{layout}_contiguous")
    function(**given, m_indices=table)
    assert launches[-1].values["row_groups"] == table.address
    with pytest.raises(TypeError, match="multiple values for argument 'grouped_layout'"):
        function(*given.values(), table, m_indices=table)


@pytest.mark.parametrize("kind, rows", (("fp8", 5), ("bf16", 6)))
def test_the_cost_model_hears_how_many_rows_a_group_has(kind, rows, launches, monkeypatch):
    """Where the tensor has room for more."""
    asked = []
    monkeypatch.setattr(ops.building, "chosen", lambda p, s, *of: asked.append(s) or CONFIG)
    function = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")
    function(**contiguous(kind, True), use_psum_layout=True, expected_m_for_psum_layout=6)
    function(**contiguous(kind, True), use_psum_layout=True)
    assert asked == [(rows, N, K), (-(-M // GROUPS), N, K)]


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_contiguous_groups_of_turned_b(kind, launches):
    given = contiguous(kind)
    straight = given["b"]
    given["b"] = tuple(t.mT for t in straight) if kind == "fp8" else straight.mT
    getattr(deep_gemm, f"m_grouped_{kind}_gemm_nn_contiguous")(**given)
    (found,) = launches
    assert found.problem.layout == "nt" and found.shape == (M, N, K)


def test_contiguous_groups_of_b_along_n(launches):
    deep_gemm.m_grouped_bf16_gemm_nn_contiguous(**contiguous("bf16", b=bf16(GROUPS, K, N)))
    (found,) = launches
    assert found.problem.layout == "nn" and found.shape == (M, N, K)


def masked(kind: str, **changes):
    right = {
        "a": bf16(GROUPS, M, K),
        "b": bf16(GROUPS, N, K),
        "d": Output(GROUPS, M, N),
        "masked_m": Placed(GROUPS, dtype="int32"),
        "expected_m": 100,
    }
    if kind == "fp8":
        right["a"] = codes(GROUPS, M, K), by_column(GROUPS, M, BLOCKS_K)
        right["b"] = codes(GROUPS, N, K), Placed(GROUPS, BLOCKS_N, BLOCKS_K)
    return right | changes


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_masked_groups(kind, launches, monkeypatch):
    asked = []

    def recorded(p, shape, *of):
        asked.append(shape)
        return CONFIG

    monkeypatch.setattr(ops.building, "chosen", recorded)
    given = masked(kind, expected_m=np.int64(100))
    getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked")(**given)
    (found,) = launches
    expected = {"fp8": 83, "bf16": 100}  # of FP8, DeepGEMM's callers say 1.2 times the mean
    assert found.problem.grouping == "masked" and asked == [(expected[kind], N, K)]
    assert found.values["group_rows"] == given["masked_m"].address
    assert found.matrices["a"].groups == found.matrices["d"].groups == GROUPS


KS = (128, 0, 256)


def k_grouped(kind: str, **changes):
    total = sum(KS)
    right = {
        "a": bf16(total, M),
        "b": bf16(total, N),
        "d": Output(len(KS), M, N, dtype="float32"),
        "ks_cpu": [*KS],
        "grouped_layout": Placed(len(KS), dtype="int32"),
    }
    if kind == "fp8":
        right["a"] = codes(total * M), by_column(M, total // 128)
        right["b"] = codes(total * N), by_column(N, total // 128)
    return right | changes


K_GROUPED_NAMES = {
    "fp8": "k_grouped_fp8_gemm_nt_contiguous",
    "bf16": "k_grouped_bf16_gemm_tn_contiguous",
}


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
@pytest.mark.parametrize("added", ("nothing", "c", "d"))
def test_groups_that_split_k(kind, added, launches):
    given = k_grouped(kind)
    d = given["d"]
    c = {"nothing": None, "c": Output(len(KS), M, N, dtype="float32"), "d": d}[added]
    assert getattr(deep_gemm, K_GROUPED_NAMES[kind])(**given, c=c) is None
    (found,) = launches
    p = found.problem
    assert p.grouping == ("k_flat" if kind == "fp8" else "k_columns")
    assert (p.accumulate, p.epilogue != ACC) == (added == "d", added == "c")
    assert found.shape == (M, N, sum(KS)) and found.values["groups"] == len(KS)
    assert found.values["group_depths"] == given["grouped_layout"].address
    if kind == "fp8":
        assert (found.values["a"], found.values["b"]) == (
            given["a"][0].address,
            given["b"][0].address,
        )


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_depths_by_sglangs_name(kind, launches):
    given = k_grouped(kind)
    depths = given.pop("ks_cpu")
    getattr(deep_gemm, K_GROUPED_NAMES[kind])(**given, ks=depths)
    assert launches[0].shape == (M, N, sum(KS))


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_groups_without_any_k(kind, launches):
    changes = {"ks_cpu": [0, 0, 0], "a": bf16(0, M), "b": bf16(0, N)}
    if kind == "fp8":
        changes |= {"a": (codes(0), Placed(M, 0)), "b": (codes(0), Placed(N, 0))}
    given = k_grouped(kind, **changes)
    getattr(deep_gemm, K_GROUPED_NAMES[kind])(**given)
    assert given["d"].written == [0] and not launches


def test_flat_operands_may_have_any_shape(launches):
    total = sum(KS)
    scales = by_column(M, total // 128)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(**k_grouped("fp8", a=(codes(total, M), scales)))
    assert launches[0].shape == (M, N, total)


# ---- einsum -------------------------------------------------------------------------------


@pytest.mark.parametrize("expr", ("bhr,hdr->bhd", "bhd,hdr->bhr"))
@pytest.mark.parametrize("added", (False, True))
def test_einsum(expr, added, launches):
    heads, b, r, d = 4, 56, 64, 80
    inner, outer = (r, d) if expr == "bhr,hdr->bhd" else (d, r)
    x, y, z = bf16(b, heads, inner), bf16(heads, d, r), Output(b, heads, outer)
    assert deep_gemm.einsum(expr, x, y, z, z if added else None) is None
    (found,) = launches
    assert found.shape == (b, outer, inner) and found.problem.grouping == "batched"
    assert found.problem.layout == ("nt" if expr == "bhr,hdr->bhd" else "nn")
    here = found.matrices["a"]
    assert (here.groups, here.group_stride, here.stride) == (heads, inner, heads * inner)
    assert found.matrices["d"].stride == heads * outer
    if added:
        assert found.values[row_stride("c")] == heads * outer


# Few rows of long K, where the tiles leave SMs idle: h, b, r, d.
FEW_ROWS = (
    ("bf16", (2, 8, 4096, 1024)),
    ("bf16", (1, 128, 4096, 1024)),
    ("bf16", (1, 64, 8192, 512)),
    ("fp8", (1, 64, 8192, 512)),
)


@pytest.mark.parametrize(("kind", "sides"), FEW_ROWS)
def test_sums_of_few_rows_are_in_the_order_of_k(kind, sides, launches, monkeypatch):
    """Where `ops` divides K: partial sums round otherwise, and a comparison to 1e-10 notices."""
    monkeypatch.setattr(ops.building, "chosen", CHOSEN)
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: H200.device_name)
    heads, b, r, d = sides
    if kind == "fp8":
        x = codes(b, heads, r), Placed(b, heads, r // 128)
        y = codes(heads, d, r), Placed(heads, d // 128, r // 128)
        deep_gemm.fp8_einsum("bhr,hdr->bhd", x, y, Output(b, heads, d))
        views = x[0].transpose(0, 1), by_column(heads, b, r // 128), *y
        ops.fp8_block_batched_gemm(*views, Output(heads, b, d), scale_a_layout="mn")
    else:
        x, y = bf16(b, heads, r), bf16(heads, d, r)
        deep_gemm.einsum("bhr,hdr->bhd", x, y, Output(b, heads, d))
        ops.batched_gemm(x.transpose(0, 1), y, Output(heads, b, d))
    assert [found.config.split_k > 1 for found in launches] == [False, True]


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("added", ("nothing", "c", "d"))
@pytest.mark.parametrize("batch", (1, 129))
def test_einsum_over_the_batch(dtype, added, batch, launches):
    """One launch, in place where the FP32 `d` is `c`, as DeepGEMM asks."""
    m, n, k = 72, 200, 48
    a, b, d = bf16(batch, m, k), bf16(batch, n, k), Output(m, n, dtype=dtype)
    c = {"nothing": None, "c": Output(m, n, dtype=dtype), "d": d}[added]
    assert deep_gemm.einsum("bmk,bnk->mn", a, b, d, c) is None
    (found,) = launches
    p = found.problem
    assert (p.grouping, p.layout, found.shape) == ("summed", "nt", (m, n, k))
    assert found.values["groups"] == batch == found.matrices["a"].groups
    assert found.matrices["a"].pointer == a.address and found.matrices["d"].pointer == d.address
    in_place = dtype == "float32" and added == "d"
    assert p.accumulate == in_place
    read = found.values.get(parameter("c"))
    assert read == (None if in_place or c is None else c.address)


@pytest.mark.parametrize("added", ("nothing", "c"))
def test_einsum_over_no_batch(added, launches):
    d, c = Output(72, 200), Output(72, 200)
    deep_gemm.einsum("bmk,bnk->mn", bf16(0, 72, 48), bf16(0, 200, 48), d, {"c": c}.get(added))
    assert not launches and d.written == {"nothing": [0], "c": [c]}[added]


def test_fp8_einsum(launches):
    heads, b, r, d = 4, 56, 256, 144
    x = codes(b, heads, r), Placed(b, heads, 2)
    y = codes(heads, d, r), Placed(heads, 2, 2)
    z = Output(b, heads, d)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", x, y, z)
    (found,) = launches
    assert found.shape == (b, d, r) and found.problem.family == "fp8_block"
    assert found.values["scale_a"] == x[1].address and "scale_a" not in found.matrices
    strides = tuple(found.values[f"scale_a_stride_{axis}"] for axis in "gmk")
    assert strides == (2, 2 * heads, 1)


# ---- refusals -----------------------------------------------------------------------------


def wrong(name, argument, changes, allowed):
    return pytest.param(name, argument, changes, allowed, id=f"{name}-{argument}-{allowed[:20]}")


def elsewhere(t: Placed) -> Placed:
    t.device = type(t.device)(type="cpu", index=None)
    return t


RIGHT = {
    **{f"fp8_gemm_{x}": dense_fp8 for x in ("nt", "nn", "tn", "tt")},
    "bf16_gemm_nt": lambda: {"a": bf16(M, K), "b": bf16(N, K), "d": Output(M, N)},
    "bf16_gemm_nn": lambda: {"a": bf16(M, K), "b": bf16(K, N), "d": Output(M, N)},
    "m_grouped_fp8_gemm_nt_contiguous": lambda: contiguous("fp8"),
    "m_grouped_fp8_gemm_nn_contiguous": lambda: contiguous("fp8"),
    "m_grouped_bf16_gemm_nt_contiguous": lambda: contiguous("bf16"),
    "m_grouped_fp8_gemm_nt_masked": lambda: masked("fp8"),
    "m_grouped_bf16_gemm_nt_masked": lambda: masked("bf16"),
    "k_grouped_fp8_gemm_nt_contiguous": lambda: k_grouped("fp8"),
    "k_grouped_bf16_gemm_tn_contiguous": lambda: k_grouped("bf16"),
    "einsum": lambda: {
        "expr": "bhr,hdr->bhd",
        "a": bf16(8, 4, 64),
        "b": bf16(4, 72, 64),
        "d": Output(8, 4, 72),
    },
    "fp8_einsum": lambda: {
        "expr": "bhr,hdr->bhd",
        "a": (codes(8, 4, 128), Placed(8, 4, 1)),
        "b": (codes(4, 72, 128), Placed(4, 1, 1)),
        "d": Output(8, 4, 72),
    },
}
FP8_NT, BF16_NT, GROUPED = "fp8_gemm_nt", "bf16_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous"
MASKED, FLAT = "m_grouped_fp8_gemm_nt_masked", "k_grouped_fp8_gemm_nt_contiguous"
ROWS = "k_grouped_bf16_gemm_tn_contiguous"

OVER_BATCH = {"expr": "bmk,bnk->mn", "a": bf16(3, 8, 64), "b": bf16(3, 72, 64), "d": Output(8, 72)}

WRONG = (
    wrong(FP8_NT, "a", lambda t: {"a": t["a"][0]}, "pair"),
    wrong(FP8_NT, "b", lambda t: {"b": (1, 2, 3)}, "pair"),
    wrong(FP8_NT, "a[0]", lambda t: {"a": ("x", t["a"][1])}, "torch tensor"),
    wrong(FP8_NT, "a[0] dtype", lambda t: {"a": (bf16(M, K), t["a"][1])}, "float8_e4m3fn"),
    wrong(FP8_NT, "b[0] dtype", lambda t: {"b": (Placed(N, K // 2, dtype="int8"), t["b"][1])}, "float8_e4m3fn"),
    wrong(FP8_NT, "a[1] dtype", lambda t: {"a": (t["a"][0], Placed(M, 1, dtype="int32"))}, "float32"),
    wrong(FP8_NT, "a[1] shape", lambda t: {"a": (t["a"][0], Placed(M, 3))}, f"[{M}, 4]"),
    wrong(FP8_NT, "a[1] shape", lambda t: {"a": (t["a"][0], Placed(M))}, "2 or 3"),
    wrong(FP8_NT, "b[1] shape", lambda t: {"b": (t["b"][0], Placed(N, 4))}, "[2, 4]"),
    wrong(FP8_NT, "b[1] shape", lambda t: {"recipe": (1, 1, 128)}, f"[{N}, 4]"),
    wrong(FP8_NT, "b[0] shape", lambda t: {"b": (codes(N, K - 16), t["b"][1])}, f"{K}"),
    wrong(FP8_NT, "a[0] last stride", lambda t: {"a": (codes(K, M).mT, t["a"][1])}, "1"),
    wrong("fp8_gemm_nn", "b[0] last stride", lambda t: {"b": (codes(K, N), Placed(4, 2))}, "1"),
    wrong("fp8_gemm_tn", "a[0] last stride", lambda t: {"a": (codes(K, M), Placed(4, M)), "b": tuple(x.mT for x in t["b"])}, "1"),
    wrong("fp8_gemm_tt", "a[0] shape", lambda t: {"a": (codes(K), Placed(4, M))}, "two dimensions"),
    wrong(FP8_NT, "a[0] row stride", lambda t: {"a": (Placed(M, K, dtype="float8_e4m3fn", stride=(K + 8, 1)), t["a"][1])}, "16"),
    wrong(FP8_NT, "d shape", lambda t: {"d": Output(M, N + 8)}, f"[{M}, {N}]"),
    wrong(FP8_NT, "d dtype", lambda t: {"d": Output(M, N, dtype="float16")}, "bfloat16 or float32"),
    wrong(FP8_NT, "d last stride", lambda t: {"d": Output(N, M).mT}, "1"),
    wrong(FP8_NT, "d", lambda t: {"d": "d"}, "torch tensor"),
    wrong(FP8_NT, "c", lambda t: {"c": 1.0}, "torch tensor"),
    wrong(FP8_NT, "c dtype", lambda t: {"c": Output(M, N, dtype="float32")}, "bfloat16"),
    wrong(FP8_NT, "c shape", lambda t: {"c": Output(M, N + 8)}, f"[{M}, {N}]"),
    wrong(FP8_NT, "c", lambda t: {"c": t["d"].seen((M // 2, N), (2 * N, 1))}, "overlap d"),
    wrong(FP8_NT, "c", lambda t: {"c": t["d"].seen((M // 2, N), (2 * N, 1)), "recipe": (1, 1, 128)}, "overlap d"),
    wrong(FLAT, "c", lambda t: {"c": t["d"].seen((3, M, N), (M * N, 2 * N, 1))}, "overlap d"),
    wrong(ROWS, "c", lambda t: {"c": t["d"].seen((3, M, N), (M * N, 2 * N, 1))}, "overlap d"),
    wrong("einsum", "c", lambda t: {"c": t["d"].seen((8, 4, 72), (288, 144, 1))}, "overlap d"),
    wrong(FP8_NT, "recipe", lambda t: {"recipe": (1, 128, 32)}, "(1, 128, 128)"),
    wrong(FP8_NT, "recipe", lambda t: {"recipe": (1, 128, 128), "recipe_a": (1, 128), "recipe_b": (1, 128)}, "None"),
    wrong(FP8_NT, "recipe_a, recipe_b", lambda t: {"recipe_a": (1, 128)}, "together"),
    wrong(FP8_NT, "recipe_a, recipe_b", lambda t: {"recipe_a": (128, 128), "recipe_b": (128, 128)}, "(1, 128)"),
    wrong(FP8_NT, "compiled_dims", lambda t: {"compiled_dims": "nx"}, "mnk"),
    wrong(FP8_NT, "a[0] device", lambda t: {"a": (elsewhere(t["a"][0]), t["a"][1])}, "CUDA"),
    wrong(BF16_NT, "a dtype", lambda t: {"a": Placed(M, K, dtype="float16")}, "bfloat16"),
    wrong(BF16_NT, "b dtype", lambda t: {"b": codes(N, K)}, "bfloat16"),
    wrong(BF16_NT, "a last stride", lambda t: {"a": Placed(M, K, dtype="bfloat16", stride=(2 * K, 2))}, "1"),
    wrong(BF16_NT, "a shape", lambda t: {"a": bf16(K)}, "two dimensions"),
    wrong(BF16_NT, "b shape", lambda t: {"b": bf16(N, K + 8)}, f"{K}"),
    wrong(BF16_NT, "c dtype", lambda t: {"c": Output(M, N, dtype="float32")}, "bfloat16"),
    wrong(BF16_NT, "d dtype", lambda t: {"d": Output(M, N, dtype="int32")}, "bfloat16 or float32"),
    wrong("bf16_gemm_nn", "b shape", lambda t: {"b": bf16(N, K)}, f"must be [{K}, any]"),
    wrong(GROUPED, "recipe", lambda t: {"recipe": (1, 1, 128)}, "(1, 128, 128)"),
    wrong(GROUPED, "grouped_layout shape", lambda t: {"grouped_layout": Placed(GROUPS, dtype="int32")}, f"[{M}]"),
    wrong(GROUPED, "grouped_layout shape", lambda t: {"use_psum_layout": True}, f"[{GROUPS}]"),
    wrong(GROUPED, "grouped_layout", lambda t: {"grouped_layout": None}, "torch tensor"),
    wrong(MASKED, "masked_m", lambda t: {"masked_m": None}, "torch tensor"),
    wrong(FLAT, "grouped_layout", lambda t: {"grouped_layout": None}, "torch tensor"),
    wrong(GROUPED, "grouped_layout dtype", lambda t: {"grouped_layout": Placed(M, dtype="int8")}, "int32"),
    wrong(GROUPED, "expected_m_for_psum_layout", lambda t: {"expected_m_for_psum_layout": 5}, "use_psum_layout"),
    wrong(GROUPED, "expected_m_for_psum_layout", lambda t: {"expected_m_for_psum_layout": 0, "use_psum_layout": True}, "positive"),
    wrong(GROUPED, "b[0] shape", lambda t: {"b": (codes(N, K), t["b"][1])}, "[any, any"),
    wrong(GROUPED, "b[1] shape", lambda t: {"b": (t["b"][0], Placed(2, BLOCKS_N, BLOCKS_K))}, f"[{GROUPS}"),
    wrong("m_grouped_fp8_gemm_nn_contiguous", "b[0] last stride", lambda t: {"b": (codes(GROUPS, K, N), Placed(GROUPS, 4, 2))}, "1"),
    wrong("m_grouped_bf16_gemm_nt_contiguous", "a last stride", lambda t: {"a": bf16(K, M).mT}, "1"),
    wrong(MASKED, "masked_m shape", lambda t: {"masked_m": Placed(2, dtype="int32")}, f"[{GROUPS}]"),
    wrong(MASKED, "masked_m dtype", lambda t: {"masked_m": Placed(GROUPS)}, "int32"),
    wrong(MASKED, "expected_m", lambda t: {"expected_m": 0}, "positive"),
    wrong(MASKED, "expected_m", lambda t: {"expected_m": None}, "positive"),
    wrong(MASKED, "recipe", lambda t: {"recipe_a": (1, 128), "recipe_b": (1, 128)}, "(1, 128, 128)"),
    wrong("m_grouped_bf16_gemm_nt_masked", "a last stride", lambda t: {"a": bf16(GROUPS, K, M).mT}, "1"),
    wrong(FLAT, "ks_cpu", lambda t: {"ks_cpu": None}, "3 groups"),
    wrong(FLAT, "ks_cpu", lambda t: {"ks_cpu": [384]}, "3 groups"),
    wrong(FLAT, "ks_cpu", lambda t: {"ks_cpu": [100, 28, 256]}, "128"),
    wrong(FLAT, "ks_cpu", lambda t: {"ks_cpu": [-128, 256, 256]}, "128"),
    wrong(FLAT, "a[0] elements", lambda t: {"ks_cpu": [128, 128, 256]}, f"{512 * M}"),
    wrong(FLAT, "b[0] elements", lambda t: {"b": (codes(128 * N), t["b"][1])}, f"{384 * N}"),
    wrong(FLAT, "a[0] strides", lambda t: {"a": (codes(M, 384).mT, t["a"][1])}, "contiguous"),
    wrong(FLAT, "a[0] shape", lambda t: {"a": (t["a"][0], by_column(M, 2))}, f"{256 * M}"),
    wrong(FLAT, "recipe", lambda t: {"recipe": (1, 128, 128)}, "(1, 1, 128)"),
    wrong(FLAT, "use_psum_layout", lambda t: {"use_psum_layout": True}, "False"),
    wrong(FLAT, "grouped_layout shape", lambda t: {"grouped_layout": Placed(4, dtype="int32")}, "[3]"),
    wrong(FLAT, "grouped_layout dtype", lambda t: {"grouped_layout": Placed(3)}, "int32"),
    wrong(FLAT, "c dtype", lambda t: {"c": Output(3, M, N)}, "float32"),
    wrong(FLAT, "d shape", lambda t: {"d": Output(M, N)}, "[any, any, any]"),
    wrong(ROWS, "a rows", lambda t: {"ks_cpu": [128, 128, 256]}, "512"),
    wrong(ROWS, "b rows", lambda t: {"b": bf16(128, N)}, "384"),
    wrong(ROWS, "a dtype", lambda t: {"a": codes(384, M)}, "bfloat16"),
    wrong(ROWS, "a shape", lambda t: {"a": bf16(384)}, "[any, any]"),
    wrong(ROWS, "use_psum_layout", lambda t: {"use_psum_layout": True}, "False"),
    wrong("einsum", "use_cublaslt", lambda t: {"use_cublaslt": True}, "False"),
    wrong("einsum", "a dtype", lambda t: {"a": Placed(8, 4, 64)}, "bfloat16"),
    wrong("einsum", "a shape", lambda t: {"a": bf16(8, 64)}, "three"),
    wrong("einsum", "c shape", lambda t: {"c": Output(4, 8, 72)}, "[8, 4, 72]"),
    wrong("einsum", "d shape", lambda t: {"d": Output(8, 4, 64)}, "[4, 8, 72]"),
    wrong("einsum", "b groups", lambda t: OVER_BATCH | {"b": bf16(2, 72, 64)}, "3, as of a"),
    wrong("einsum", "b shape", lambda t: OVER_BATCH | {"b": bf16(3, 72, 56)}, "[any, any, 64]"),
    wrong("einsum", "a shape", lambda t: OVER_BATCH | {"a": bf16(8, 64)}, "[any, any, any]"),
    wrong("einsum", "a dtype", lambda t: OVER_BATCH | {"a": Placed(3, 8, 64)}, "bfloat16"),
    wrong("einsum", "d shape", lambda t: OVER_BATCH | {"d": Output(3, 8, 72)}, "[8, 72]"),
    wrong("einsum", "d dtype", lambda t: OVER_BATCH | {"d": Output(8, 72, dtype="int32")}, "bfloat16 or float32"),
    wrong("einsum", "c shape", lambda t: OVER_BATCH | {"c": Output(8, 64)}, "[8, 72]"),
    wrong("einsum", "c dtype", lambda t: OVER_BATCH | {"c": Output(8, 72, dtype="float32")}, "bfloat16"),
    wrong("einsum", "d", lambda t: OVER_BATCH | {"d": OVER_BATCH["a"].seen((8, 72))}, "overlap a"),
    wrong("einsum", "a last stride", lambda t: OVER_BATCH | {"a": bf16(3, 64, 8).mT}, "1"),
    wrong("fp8_einsum", "recipe", lambda t: {"recipe": (1, 1, 128)}, "(1, 128, 128)"),
    wrong("fp8_einsum", "a[1] shape", lambda t: {"a": (t["a"][0], Placed(8, 1))}, "three"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "argument", "changes", "allowed"), WRONG)
def test_refusals_name_their_argument(name, argument, changes, allowed, launches):
    given = RIGHT[name]()
    with pytest.raises(ArgumentError) as e:
        getattr(deep_gemm, name)(**given | changes(given))
    assert e.value.argument == argument and allowed in str(e.value) and not launches


TURNED = ("fp8_gemm_nn", "fp8_gemm_tn", "fp8_gemm_tt", "m_grouped_fp8_gemm_nn_contiguous")


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in TURNED])
def test_what_is_refused_was_right_but_for_one_thing(name, launches):
    getattr(deep_gemm, name)(**RIGHT[name]())
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("name", "expr"),
    (
        ("einsum", "bmk,bnk->bmn"),
        ("einsum", "ij,jk->ik"),
        ("fp8_einsum", "bhd,hdr->bhr"),
        ("fp8_einsum", "bmk,bnk->mn"),
    ),
)
def test_other_sums(name, expr):
    given = RIGHT[name]() | {"expr": expr}
    with pytest.raises(UnsupportedProblem, match=expr.replace("->", "..")):
        getattr(deep_gemm, name)(**given)


def test_what_hopper_has_not():
    with pytest.raises(UnsupportedProblem, match="k_grouped_fp8_gemm_nt_contiguous"):
        deep_gemm.k_grouped_fp8_gemm_tn_contiguous(None, None, None, [], None)


# ---- settings -----------------------------------------------------------------------------


def test_settings_and_what_they_were():
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    assert deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(3, 2) == 128
    deep_gemm.set_mk_alignment_for_contiguous_layout(value=64)
    assert deep_gemm.get_m_alignment_for_contiguous_layout() == 64
    assert deep_gemm.get_tc_util() == 100
    deep_gemm.set_tc_util(80)
    assert deep_gemm.get_tc_util() == 80
    deep_gemm.set_tc_util(0)
    assert deep_gemm.get_tc_util() == 100
    assert deep_gemm.get_pdl() is False
    deep_gemm.set_ignore_compile_dims(True)
    deep_gemm.set_block_size_multiple_of((1, 1))
    deep_gemm.set_block_size_multiple_of((64, 32))
    deep_gemm.set_block_size_multiple_of(value=16)


@pytest.mark.parametrize(
    ("said", "aligned"), ((64, 64), (128, 128), (192, 64), (256, 128), (640, 128))
)
def test_groups_that_begin_at_larger_multiples(said, aligned, launches):
    """They begin at multiples of what a kernel is compiled for, too."""
    deep_gemm.set_mk_alignment_for_contiguous_layout(said)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == said
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(**contiguous("bf16"))
    assert launches[-1].problem.alignment == aligned


@pytest.mark.parametrize("on", (True, False))
def test_launches_that_begin_early(on):
    deep_gemm.set_pdl(on)
    found = deep_gemm.get_pdl(), ops.is_pdl()
    ops.set_pdl(False)
    assert found == (on, on)


@pytest.mark.parametrize("kind", ("bf16", "fp8"))
def test_sums_of_any_number_of_rows(kind, launches, monkeypatch):
    """Of the configs that are chosen for them: they add up alike where that is asked for, and else as is quickest."""
    monkeypatch.setattr(ops.building, "chosen", CHOSEN)
    monkeypatch.setattr(invariance, "asked", False)
    ops.building.kept_choice.cache_clear()
    n, k = 576, 7168
    for on in (False, True):
        deep_gemm.use_deterministic_algorithms(enable=on)
        assert deep_gemm.get_deterministic_algorithms() is ops.is_invariant() is on
        for m in (1, 16, 128, 1024, 4096):
            if kind == "bf16":
                deep_gemm.bf16_gemm_nn(bf16(m, k), bf16(n, k).T, Output(m, n))
            else:
                a, b = (codes(m, k), by_column(m, 56)), (codes(n, k), Placed(5, 56))
                deep_gemm.fp8_gemm_nt(a, b, Output(m, n))
    found = [summation(x.problem, x.config, k) for x in launches]
    assert len({*found[:5]}) > 1 == len({*found[5:]})
    want = split_of(launches[-1].problem, n, k)
    assert all(adds_up(x.problem, x.config, k, want) for x in launches[5:])


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    (
        ("set_mk_alignment_for_contiguous_layout", "new_value", 32),
        ("set_tc_util", "new_tc_util", 101),
        ("set_mk_alignment_for_contiguous_layout", "new_value", 224),
        ("set_mk_alignment_for_contiguous_layout", "new_value", 0),
        ("set_mk_alignment_for_contiguous_layout", "new_value", 128.0),
        ("set_pdl", "new_enable_pdl", 1),
        ("use_deterministic_algorithms", "enable", 1),
        ("use_deterministic_algorithms", "enable", None),
        ("set_ignore_compile_dims", "new_value", "n"),
        ("set_block_size_multiple_of", "new_value", 0),
        ("set_block_size_multiple_of", "new_value", (1, 64, 1)),
        ("set_block_size_multiple_of", "new_value", (1, -64)),
        ("set_num_sms", "new_num_sms", 133),
        ("set_num_sms", "new_num_sms", -2),
        ("set_num_sms", "new_num_sms", 4),
    ),
)
def test_settings_that_nothing_can_have(name, argument, value, gpu):
    with pytest.raises(ArgumentError) as e:
        getattr(deep_gemm, name)(value)
    assert e.value.argument == argument and e.value.value == value


@pytest.fixture
def gpu(fake_torch, monkeypatch):
    """One with 132 SMs."""
    import sys
    from types import SimpleNamespace

    sys.modules["torch"].cuda = SimpleNamespace(current_device=lambda: 0)
    monkeypatch.setattr(settings.driver, "sm_count", lambda device: 132)
    yield
    ops.limit_sms(None)


def test_sms(gpu):
    assert deep_gemm.get_num_sms() == 132
    deep_gemm.set_num_sms(100)
    assert deep_gemm.get_num_sms() == ops.sm_limit() == 100
    deep_gemm.set_num_sms(0)
    assert deep_gemm.get_num_sms() == 132 and ops.sm_limit() is None


# ---- layouts of scales ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "size", "aligned"), ((1, 4, 4), (4, 4, 4), (5, 4, 8), (5, 1, 16), (0, 2, 0), (9, 16, 9))
)
def test_aligned_sizes(x, size, aligned):
    assert deep_gemm.get_tma_aligned_size(x, size) == aligned


@pytest.mark.parametrize("size", (0, 3, 32))
def test_sizes_that_do_not_divide_16_bytes(size):
    with pytest.raises(ArgumentError) as e:
        deep_gemm.get_tma_aligned_size(5, size)
    assert e.value.argument == "element_size"


def test_scales_that_lie_right_are_returned():
    for scales in (by_column(M, 4), by_column(GROUPS, 257, 4)):
        assert deep_gemm.get_mn_major_tma_aligned_tensor(scales) is scales
    for scales in (Placed(M, 4), Placed(M, 4, stride=(1, M + 4)), Placed(GROUPS, M, 4)):
        copy = deep_gemm.get_mn_major_tma_aligned_tensor(scales)
        assert copy.address != scales.address and copy.shape == scales.shape
        assert copy.strides[-2:] == (1, M)


def transformed(**changes):
    right = {"sf": by_column(M, 4), "mn": M, "k": 400, "recipe": (1, 128)}
    return deep_gemm.transform_sf_into_required_layout(**right | changes)


def test_scales_as_the_kernels_read_them():
    blocks = Placed(2, 4)
    for recipe in ({"recipe": (128, 128)}, {"recipe": (1, 128, 128), "is_sfa": False}):
        assert transformed(sf=blocks, mn=N, **recipe) is blocks
    rows = by_column(GROUPS, M, 4)
    for recipe in (
        {"recipe": (1, 128)},
        {"recipe": (1, 128, 128), "is_sfa": True},
        {"recipe": (1, 1, 128), "is_sfa": False},
    ):
        assert transformed(sf=rows, num_groups=GROUPS, **recipe) is rows
    assert transformed(sf=Placed(M, 4)).strides == (1, M)


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("sf shape", {"k": 600}),
        ("sf shape", {"mn": M + 1}),
        ("sf shape", {"num_groups": 1}),
        ("sf shape", {"recipe": (128, 128)}),
        ("sf dtype", {"sf": "int32"}),
        ("recipe", {"recipe": (1, 32)}),
        ("recipe", {"recipe": (64, 128, 128), "is_sfa": True}),
        ("is_sfa", {"recipe": (1, 128, 128)}),
        ("is_sfa", {"is_sfa": True}),
    ),
)
def test_layouts_that_no_kernel_reads(argument, changes):
    changes = dict(changes)
    if changes.get("sf") == "int32":
        changes["sf"] = Placed(M, 1, dtype="int32")
    with pytest.raises(ArgumentError) as e:
        transformed(**changes)
    assert e.value.argument == argument


def test_every_name_is_documented():
    """In the table of what is offered, or in that of what is refused."""
    text = (Path(__file__).parents[2] / "docs/coming-from-deep-gemm.md").read_text()
    offered, _, rest = text.partition("\n## Refused\n")
    legacy = [x for x in deep_gemm.legacy.__all__ if x not in refused.LEGACY]
    named = ([*deep_gemm.__all__, *legacy], [*REFUSED, *refused.LEGACY])
    for part, names in zip((offered, rest), named, strict=True):
        rows = "\n".join(line for line in part.splitlines() if line.startswith("|"))
        assert not [name for name in names if f"`{name}`" not in rows]
