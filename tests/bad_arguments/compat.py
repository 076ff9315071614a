"""The functions of `gemmgen.compat`: errors speak of the arguments by the names that their callers gave."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fake_torch import Placed, bf16, codes

from gemmgen.compat import deep_gemm, flag_gems
from gemmgen.errors import UnsupportedProblem

from .gemms import BF16, BLOCKS_K, BLOCKS_N, FP8, K, M, N, overlapping
from .heads import MID, SIDE, splits
from .heads import SPLITS as SPLIT_AT
from .model import Function, Given, Output, Wrong, wrong
from .tensors import tensor

G = 3
OPERAND = "none dtype device rank last pitch address"
OUT = "none dtype device rank side rows last pitch address"
COPIED = "none dtype device rank side"  # scales that are copied if they lie otherwise


def by_column(*shape: int) -> Placed:
    """Scales contiguous along their rows."""
    *lead, rows, blocks = shape
    return Placed(*shape, stride=(*(rows * blocks,) * len(lead), 1, rows))


def _fp8(rows: tuple[int, ...] = (), groups: tuple[int, ...] = ()) -> Given:
    """rows: the leading sides of A and D; groups: of B."""
    return {
        "a": (codes(*rows, M, K), by_column(*rows, M, BLOCKS_K)),
        "b": (codes(*groups, N, K), Placed(*groups, BLOCKS_N, BLOCKS_K)),
        "d": Output(*rows, M, N),
    }


def _bf16(rows: tuple[int, ...] = (), groups: tuple[int, ...] = ()) -> Given:
    return {"a": bf16(*rows, M, K), "b": bf16(*groups, N, K), "d": Output(*rows, M, N)}


def _turned(given: Given, *names: str) -> Given:
    pairs = {n: given[n] for n in names}
    return given | {
        n: tuple(t.mT for t in x) if isinstance(x, tuple) else x.mT for n, x in pairs.items()
    }


FP8_PAIR = (
    *tensor("a[0]", OPERAND), *tensor("b[0]", OPERAND + " side"), *tensor("d", OUT),
    *tensor("a[1]", COPIED), *tensor("b[1]", COPIED),
    wrong("no pair", "a", a=codes(M, K)),
    wrong("three tensors", "b", b=(1, 2, 3)),
    wrong("a number for D", "d", d=1.0),
    wrong("letters that name no side", "compiled_dims", compiled_dims="nx"),
    wrong("a number for letters", "compiled_dims", compiled_dims=5),
)  # fmt: skip
RECIPES = (
    wrong("scales of 32", "recipe", recipe=(1, 128, 32)),
    wrong("a number for a recipe", "recipe", recipe=128),
    wrong("half of a recipe", "recipe_a, recipe_b", recipe_a=(1, 128)),
    wrong("a number for half of a recipe", "recipe_a", recipe_a=1, recipe_b=(128, 128)),
    wrong("two recipes", "recipe", recipe=(1, 128, 128), recipe_a=(1, 128), recipe_b=(128, 128)),
)
ADDED = (
    wrong("a number to add", "c", c=1.0),
    wrong("a matrix of another dtype to add", "c dtype", c=Placed(M, N)),
    wrong("a matrix of another shape to add", "c shape", c=bf16(M, N + 8)),
)
DENSE = (*FP8_PAIR, *RECIPES, *ADDED)
SPLITS = (
    *FP8_PAIR, *RECIPES[:2],
    *splits("head_splits"), wrong("no heads", "head_splits", head_splits=None),
    wrong("no whole heads", "b[0] rows", head_splits=(64, 8, 64)),
    wrong("no whole heads, and nothing between", "b[0] rows", head_splits=(64, 0, 64)),
    wrong("D without gaps", "d shape", d=Output(M, SIDE)),
)  # fmt: skip


def _split() -> Given:
    """Of one head."""
    b, d = (codes(SIDE, K), Placed(2, BLOCKS_K)), Output(M, SIDE + MID)
    return _fp8() | {"b": b, "d": d, "head_splits": SPLIT_AT}


PLAIN = (
    *tensor("a", "none dtype device pitch address"),
    *tensor("b", "none dtype device side pitch address"),
    *tensor("d", OUT),
    wrong("letters that name no side", "compiled_dims", compiled_dims="nx"),
)
TABLE = tensor("grouped_layout", "none dtype device rank side last")
MASKED = (
    *tensor("masked_m", "none dtype device rank side last"),
    wrong("no row expected", "expected_m", expected_m=0),
    wrong("text for a number of rows", "expected_m", expected_m="8"),
)
PSUM = wrong("a hint for another layout", "expected_m_for_psum_layout", expected_m_for_psum_layout=5)  # fmt: skip
TURNED = tuple(w for w in FP8_PAIR if w.says[:4] not in ("a[0]", "b[0]", "a[1]", "b[1]"))
DEPTHS = (
    wrong("no depths", "ks_cpu", ks_cpu=None),
    wrong("depths of other groups", "ks_cpu", ks_cpu=[K]),
    wrong("a number for depths", "ks_cpu", ks_cpu=5),
    wrong("text for depths", "ks_cpu", ks_cpu="abc"),
    wrong("a negative depth", "ks_cpu", ks_cpu=[-128, 256, 128]),
    wrong("gaps between groups", "use_psum_layout", use_psum_layout=True),
    wrong("a number to add", "c", c=1.0),
    *tensor("grouped_layout", "none dtype rank side"),
    *tensor("d", "none dtype rank last pitch address"),
)


def _rows(given: Given) -> Given:
    return given | {"grouped_layout": Placed(M, dtype="int32")}


def _masked(given: Given) -> Given:
    return given | {"masked_m": Placed(G, dtype="int32"), "expected_m": 100}


def _depths(kind: str) -> Given:
    given = {
        "d": Output(G, M, N, dtype="float32"),
        "ks_cpu": [128, 0, 128],
        "grouped_layout": Placed(G, dtype="int32"),
    }
    if kind == "bf16":
        return given | {"a": bf16(K, M), "b": bf16(K, N)}
    scales = {"a": (codes(K * M), by_column(M, BLOCKS_K)), "b": (codes(K * N), by_column(N, BLOCKS_K))}  # fmt: skip
    return given | scales


def _by_head(kind: str) -> Given:
    heads, b, r, d = 4, 56, 256, 144
    x, y = (Placed(b, heads, r, dtype=kind), Placed(heads, d, r, dtype=kind))
    given = {"expr": "bhr,hdr->bhd", "a": x, "b": y, "d": Output(b, heads, d)}
    if kind == BF16:
        return given
    return given | {"a": (x, Placed(b, heads, 2)), "b": (y, Placed(heads, 2, 2))}


def _made(name: str, right, cases: tuple[Wrong, ...]) -> Function:
    return Function(
        name=f"deep_gemm.{name}", call=getattr(deep_gemm, name), right=right, wrong=cases
    )


def _sums() -> tuple[Wrong, ...]:
    others = ("bmk,bnk->bmn", "ij,jk->ik", "", "bhr,hdr->bhd ")
    return tuple(wrong(f"the sum {x!r}", "einsum", UnsupportedProblem, expr=x) for x in others)


def _squares() -> Given:
    """A batch of one, and D where A is."""
    a = bf16(1, 64, 64)
    return {"a": a, "b": bf16(1, 64, 64), "d": a.seen((64, 64))}


HEADS = (
    *_sums(),
    wrong("text for D", "d", d="d"),
    wrong("D of two dimensions", "d shape", d=Output(56, 144)),
    wrong("D of another shape", "d shape", d=Output(56, 4, 136)),
)
DEEP_GEMM = (
    _made("fp8_gemm_nt", _fp8, DENSE),
    _made("fp8_gemm_nn", lambda: _turned(_fp8(), "b"), (*TURNED, *RECIPES, *ADDED)),
    _made("fp8_gemm_tn", lambda: _turned(_fp8(), "a", "b"), (*TURNED, *RECIPES, *ADDED)),
    _made("fp8_gemm_tt", lambda: _turned(_fp8(), "a"), (*TURNED, *RECIPES, *ADDED)),
    _made("fp8_gemm_nt_skip_head_mid", _split, SPLITS),
    _made("bf16_gemm_nt", _bf16, (*PLAIN, *ADDED)),
    _made("bf16_gemm_nn", lambda: _turned(_bf16(), "b"), (*PLAIN[:3], *tensor("d", OUT), *ADDED)),
    _made("bf16_gemm_tn", lambda: _turned(_bf16(), "a", "b"), (*tensor("d", OUT), *ADDED)),
    _made("bf16_gemm_tt", lambda: _turned(_bf16(), "a"), (*tensor("d", OUT), *ADDED)),
    *(_made(f"cublaslt_gemm_{x}", lambda turned=turned: _turned(_bf16(), *turned), (*tensor("d", OUT), wrong("a number to add", "c", c=1.0)))
      for x, turned in (("nt", ()), ("nn", ("b",)), ("tn", ("a", "b")), ("tt", ("a",)))),
    _made("m_grouped_fp8_gemm_nt_contiguous", lambda: _rows(_fp8((), (G,))), (*FP8_PAIR, *RECIPES, *TABLE, PSUM)),
    _made("m_grouped_fp8_gemm_nn_contiguous", lambda: _turned(_rows(_fp8((), (G,))), "b"), (*TURNED, *RECIPES, *TABLE)),
    _made("m_grouped_fp8_gemm_nt_masked", lambda: _masked(_fp8((G,), (G,))), (*FP8_PAIR, *RECIPES, *MASKED)),
    _made("m_grouped_bf16_gemm_nt_contiguous", lambda: _rows(_bf16((), (G,))), (*PLAIN, *TABLE, PSUM)),
    _made("m_grouped_bf16_gemm_nn_contiguous", lambda: _turned(_rows(_bf16((), (G,))), "b"), (*tensor("d", OUT), *TABLE)),
    _made("m_grouped_bf16_gemm_nt_masked", lambda: _masked(_bf16((G,), (G,))), (*PLAIN, *MASKED)),
    _made("k_grouped_fp8_gemm_nt_contiguous", partial(_depths, "fp8"), (
        *DEPTHS, wrong("depths that no scale ends at", "ks_cpu", ks_cpu=[100, 28, 128]),
        wrong("depths of more K", "a[0] elements", ks_cpu=[128, 128, 128]),
        wrong("a number for a recipe", "recipe", recipe=1), wrong("another recipe", "recipe", recipe=(1, 128, 128)))),
    _made("k_grouped_bf16_gemm_tn_contiguous", partial(_depths, "bf16"), (
        *DEPTHS, *tensor("a", "none dtype"), wrong("depths of more K", "a rows", ks_cpu=[128, 128, 128]))),
    Function(name="deep_gemm.k_grouped_fp8_gemm_tn_contiguous", call=deep_gemm.k_grouped_fp8_gemm_tn_contiguous,
             right=partial(_depths, "fp8"), runs=False, wrong=(wrong("FP8 along M", "Hopper", UnsupportedProblem),)),
    _made("einsum", partial(_by_head, BF16), (
        *HEADS, *tensor("a", "none dtype rank"), *tensor("b", "none dtype device rank last"),
        wrong("a library asked for", "use_cublaslt", use_cublaslt=True), wrong("a number to add", "c", c=1.0),
        wrong("operands of two batches", "b groups", expr="bmk,bnk->mn"),
        wrong("D of the batch", "d shape", expr="bmk,bnk->mn", b=bf16(56, 9, 256)),
        wrong("D in A's memory", "d", expr="bmk,bnk->mn", **_squares()))),
    _made("fp8_einsum", partial(_by_head, FP8), (
        *HEADS, *tensor("a[0]", "none dtype rank"), *tensor("b[1]", COPIED), *tensor("a[1]", "none"),
        wrong("a number for a recipe", "recipe", recipe=1), wrong("another recipe", "recipe", recipe=(1, 1, 128)))),
)  # fmt: skip


def _layout() -> Given:
    return {"sf": by_column(M, 2), "mn": M, "k": K, "recipe": (1, 128)}


def _x() -> Given:
    return {"x": bf16(M, K), "use_ue8m0": False}


def _scales_along_k() -> Given:
    given = {"sf": Placed(8, M), "grouped_layout": Placed(G, dtype="int32")}
    return given | {"ks_cpu": [512, *[0] * (G - 2), 512], "gran_k": 128, "k_alignment": 128}


def _made_of(name: str, right, cases: tuple[Wrong, ...]) -> Function:
    """Of torch code, which stand-ins do not run."""
    return replace(_made(name, right, cases), runs=False)


CAST = (
    *tensor("x", "none dtype"),
    wrong("one dimension", "x shape", x=bf16(K)),
    wrong("scales of 32", "gran_k", gran_k=32),
)
HOST = (
    _made("transform_sf_into_required_layout", _layout, (
        *tensor("sf", "none dtype side rows"), wrong("another K", "sf shape", k=3 * K), wrong("groups", "sf shape", num_groups=2),
        wrong("a recipe of no kernel", "recipe", recipe=(1, 32)), wrong("a number for a recipe", "recipe", recipe=1),
        wrong("whose scales", "is_sfa", recipe=(1, 128, 128)))),
    _made("get_mn_major_tma_aligned_tensor", lambda: {"sf": by_column(M, 2)}, (
        *tensor("sf", "none dtype"), wrong("one dimension", "sf shape", sf=Placed(M)))),
    _made("get_tma_aligned_size", lambda: {"x": 5, "element_size": 4}, tuple(
        wrong(f"elements of {x!r} bytes", "element_size", element_size=x) for x in (0, 3, 32, "4", None))),
    _made("set_mk_alignment_for_contiguous_layout", lambda: {"new_value": 128}, tuple(
        wrong(f"{x!r}", "new_value", new_value=x) for x in (32, 96, 0, -64, "64", None, True))),
    _made("set_tc_util", lambda: {"new_tc_util": 100}, tuple(
        wrong(f"{x!r}", "new_tc_util", new_tc_util=x) for x in (101, -1, "80", None))),
    _made("set_pdl", lambda: {"new_enable_pdl": False}, tuple(
        wrong(f"{x!r}", "new_enable_pdl", new_enable_pdl=x) for x in (1, 0, "True", None))),
    _made("use_deterministic_algorithms", lambda: {"enable": False}, tuple(
        wrong(f"{x!r}", "enable", enable=x) for x in (1, 0, "True", None))),
    _made("set_ignore_compile_dims", lambda: {"new_value": True}, (wrong("text", "new_value", new_value="n"),)),
    _made("set_block_size_multiple_of", lambda: {"new_value": 1}, tuple(
        wrong(f"{x!r}", "new_value", new_value=x) for x in (0, -16, (1, 64, 1), (1, 0), [1, 1], 1.5, "1", None, True))),
    *(Function(name=f"deep_gemm.{name}", call=getattr(deep_gemm, name), right=_x, runs=False, wrong=(*CAST, *more))
      for name, more in (
          ("per_token_cast_to_fp8", (wrong("packed scales", "use_packed_ue8m0", use_packed_ue8m0=True),
                                     wrong("a part of a word", "x shape", use_ue8m0=True, use_packed_ue8m0=True))),
          ("per_channel_cast_to_fp8", (wrong("rows that no scale ends at", "x rows", x=bf16(M + 1, K)),)),
          ("per_block_cast_to_fp8", ()))),
    _made_of("per_custom_dims_cast_to_fp8", lambda: {"x": bf16(M, K), "dims": (0,), "use_ue8m0": False}, (
        *CAST[:-2], *(wrong(f"dimensions {x!r}", "dims", dims=x) for x in ((0, 1), (2,), (-1,), 0, "0", (0.0,), None)))),
    _made_of("ceil_to_ue8m0", lambda: {"x": bf16(M, K)}, tensor("x", "none dtype")),
    _made_of("pack_ue8m0_to_int", lambda: {"x": Placed(M, 8)}, (
        *tensor("x", "none dtype"), wrong("a part of a word", "x shape", x=Placed(M, 6)), wrong("a number", "x shape", x=Placed()))),
    _made_of("unpack_ue8m0_from_int", lambda: {"packed_sf": Placed(M, 2, dtype="int32")}, (
        *tensor("packed_sf", "none dtype"), wrong("a number", "packed_sf shape", packed_sf=Placed(dtype="int32")))),
    _made_of("get_mn_major_tma_aligned_packed_ue8m0_tensor", lambda: {"sf": Placed(M, 8)}, (
        *tensor("sf", "none dtype"), wrong("one dimension", "sf shape", sf=Placed(M)),
        wrong("groups beside ends", "sf shape", sf=Placed(G, M, 8), psum_layout=Placed(G, dtype="int32")),
        wrong("ends in float32", "psum_layout dtype", psum_layout=Placed(G)),
        wrong("ends of two dimensions", "psum_layout shape", psum_layout=Placed(G, 1, dtype="int32")))),
    _made_of("get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", _scales_along_k, (
        *tensor("sf", "none dtype"), wrong("blocks of others", "sf shape", sf=Placed(9, M)),
        wrong("one dimension", "sf shape", sf=Placed(8)),
        wrong("a table in float32", "grouped_layout dtype", grouped_layout=Placed(G)),
        wrong("a table of others", "grouped_layout shape", grouped_layout=Placed(G + 1, dtype="int32")),
        *(wrong(f"depths {x!r}", "ks_cpu", ks_cpu=x) for x in (None, 5, "abc", [-128, 256], [128.0])),
        wrong("too many groups", "groups", ks_cpu=[0] * 129),
        *(wrong(f"scales of {x!r}", "gran_k", gran_k=x) for x in (64, 0, "128", None)),
        *(wrong(f"depths aligned to {x!r}", "k_alignment", k_alignment=x) for x in (0, 100, "128", None)),
        wrong("gaps between groups", "use_psum_layout", use_psum_layout=True))),
)  # fmt: skip
REFUSED = tuple(
    Function(name="deep_gemm, what it has beyond", call=getattr(deep_gemm, name), right=dict, runs=False,
             wrong=(wrong(name, name, UnsupportedProblem),))
    for name in deep_gemm.REASONS
)  # fmt: skip


def _bmm() -> Given:
    return {
        "x": codes(G, M, K),
        "y": codes(G, N, K),
        "xs": by_column(G, M, BLOCKS_K),
        "ys": Placed(G, BLOCKS_N, BLOCKS_K),
        "z": Output(G, M, N),
    }


def _heads() -> Given:
    return {
        "equation": "bhr,hdr->bhd",
        "x": codes(M, G, K),
        "xs": Placed(M, G, BLOCKS_K),
        "y": codes(G, N, K),
        "ys": Placed(G, BLOCKS_N, BLOCKS_K),
    }


OTHER = (
    wrong("blocks of 64", "block_size", block_size=[64, 128]),
    wrong("a number for blocks", "block_size", block_size=128),
    wrong("an INT8 output", "output_dtype", output_dtype="int8"),
)
FLAG_GEMS = (
    Function(name="flag_gems.w8a8_block_fp8_bmm", call=flag_gems.w8a8_block_fp8_bmm, right=_bmm, wrong=(
        *tensor("x", OPERAND), *tensor("y", OPERAND + " side groups"), *tensor("z", OUT),
        *tensor("xs", COPIED), *tensor("ys", COPIED), overlapping("z", "x"), *OTHER)),
    Function(name="flag_gems.fp8_einsum", call=flag_gems.fp8_einsum, right=_heads, wrong=(
        *tensor("x", "none dtype device rank last address"), *tensor("y", "none dtype device rank last pitch address"),
        *tensor("xs", COPIED), *tensor("ys", COPIED), *OTHER,
        *(wrong(f"the sum {x!r}", "fp8_einsum", UnsupportedProblem, equation=x) for x in ("bmk,bnk->mn", None)))),
)  # fmt: skip
FUNCTIONS = (*DEEP_GEMM, *HOST, *REFUSED, *FLAG_GEMS)
