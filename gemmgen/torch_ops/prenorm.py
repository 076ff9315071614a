"""`gemmgen.ops.paired` and `prenorm_gemm` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import BF16, F32
from ..ir.squares import check_pairs
from ..ops import pairing, prenorm
from . import of_experts
from .agreement import check, check_dims, equal
from .made import empty
from .registration import config_of

PAIRED = "paired(Tensor weights, *, bool squares=False, bool tf32=False) -> Tensor"
PRENORM = 'prenorm_gemm(Tensor a, Tensor pairs, *, str config="") -> (Tensor, Tensor)'
Shape = tuple[int, ...]


@cache
def register_prenorm(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, PAIRED, pairing.paired, _fake_paired, "weights")
    of_experts.register(library, PRENORM, _implementation, _fake, "a")


def _fake_paired(weights: Any, *, squares: bool = False, tf32: bool = False) -> Any:
    """Of symbolic sizes too."""
    check_dims("weights", weights, 2)
    check("weights", weights, F32, tuple(weights.shape))
    rows, columns = weights.shape
    return empty((2 * (rows + squares), columns), BF16, weights.device)


def _implementation(a: Any, pairs: Any, *, config: str = "") -> Any:
    return prenorm.prenorm_gemm(a, pairs, config=config_of(config))


def _fake(a: Any, pairs: Any, *, config: str = "") -> Any:
    """Of symbolic sizes too."""
    config_of(config)
    if a.dim() not in (2, 3):
        raise ArgumentError("a shape", tuple(a.shape), "must have 2 or 3 dimensions")
    check_dims("pairs", pairs, a.dim())
    *lead, rows, depth = a.shape
    check("a", a, BF16, (*lead, rows, depth))
    check("pairs", pairs, BF16, (*lead, pairs.shape[-2], depth))
    both = pairs.shape[-2]
    if isinstance(both, int):
        check_pairs(both)
    else:
        equal("pairs rows, less 2, in eights", (both - 2) % 8, 0)
    d = empty((*lead, rows, both // 2 - 1), F32, a.device)
    return d, empty((*lead, rows), F32, a.device)


def on_cpu(a: Any, pairs: Any, *, config: str = "") -> Any:
    """Both of tensors of the CPU, by torch: sums in float64, rounded once."""
    d, squares = _fake(a, pairs, config=config)
    x, both = a.double(), pairs.double()
    weights = both[..., 0::2, :] + both[..., 1::2, :]
    product = x @ weights.mT
    d.copy_(product[..., :-1])
    squares.copy_(product[..., -1] + x.square().sum(-1))
    return d, squares


def operations(a: Shape, pairs: Shape, *rest: Any, **kwargs: Any) -> int:
    """Two for each product, of both rows of a pair, and of a's row with itself."""
    return int(2 * prod(a) * (pairs[-2] - 1))
