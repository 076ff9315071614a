"""Linear layers of a process group whose ranks divide K and all get the sum, without gradients: of a decode step."""

from __future__ import annotations

from typing import Any

from ..ir.dtypes import BF16
from ..runtime.torch_tensors import dtype_of
from .all_reduces import gemm_all_reduce
from .linear import HALVES, bias_of, check, gemmgen
from .operators import HALVES as TYPES


def reduced_linear(
    x: Any, weight: Any, bias: Any, group_name: str, *, fuse: bool | None = None
) -> Any:
    """The sum over ranks of `linear` of their parts of K, on every rank.

    x: bfloat16 or float16 [..., K], weight: [N, K], of this rank's own K; bias: None or [N], whole on every rank and added once. y: [..., N]. fuse: as of
    `gemm_all_reduce`, which computes it. Sums travel in x's dtype. Raises ArgumentError.
    """
    check(x, weight, bias, HALVES, element=2)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    wire, weight = dtype_of("x", x, TYPES).name, weight.contiguous()
    y = gemm_all_reduce(rows, weight, group_name, wire=wire, fuse=fuse, **bias_of(bias))
    return y.view(*x.shape[:-1], y.shape[-1])


def fp8_reduced_linear(
    x: Any, weight: Any, bias: Any, group_name: str, *, fuse: bool | None = None
) -> Any:
    """`reduced_linear` whose GEMM is that of `fp8_linear`. weight: bfloat16. Sums travel in bfloat16. Raises ArgumentError."""
    check(x, weight, bias, HALVES[:1], element=1)
    return frozen_reduced(x, gemmgen.quantise_blocks(weight), bias, group_name, fuse=fuse)


def frozen_reduced(
    x: Any, weight: tuple[Any, Any], bias: Any, group_name: str, *, fuse: bool | None = None
) -> Any:
    """`fp8_reduced_linear` with weight: (float8_e4m3fn [N, K], its scales)."""
    codes, scale_x = gemmgen.quantise_rows(x.reshape(-1, x.shape[-1]).contiguous())
    said = {"scale_a_layout": "mn", "wire": BF16.name, "fuse": fuse}
    given = (codes, scale_x, *weight, group_name)
    y = gemmgen.fp8_block_gemm_all_reduce(*given, **said, **bias_of(bias))
    return y.view(*x.shape[:-1], y.shape[-1])
