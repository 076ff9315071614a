"""GEMMs of several GPUs of which each stores the sum of all, for few rows (docs/adr/0057-all-reduce.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from ..ir.collectives import ALL_REDUCE
from ..runtime.peers import all_reduce_bytes as all_reduce_bytes
from .collective import InProcess as InProcess
from .ranked import Mailbox as Mailbox
from .ranked import ReduceScatter


class AllReduce(ReduceScatter):
    """`out[M, N] = epilogue(sum over ranks of A @ B)` on every rank, with the same bits, in one launch of each, which `launch` starts
    as often as one likes.

    a [M, K], b [N, K]: of this rank's own K. out: [M, N], allocated if None. arguments: what the epilogue reads, of all M rows, the same on all
    ranks. memory: a `Mailbox` with `all_reduce_bytes(m, n, ranks)`, in which launches of a `ReduceScatter` may alternate with these. The sums of all ranks are added in
    FP32 (INT32), rank 0's first. wire: all of them, this rank's too, are rounded to it. The rest is as of `gemmgen.ops.ranked.ReduceScatter`.
    """

    _collective: ClassVar[str] = ALL_REDUCE


def all_reduce(*args: Any, **kwargs: Any) -> Any:
    """Plan an `AllReduce` of these arguments and launch it once. Returns `out`. Raises as both."""
    return AllReduce(*args, **kwargs).launch()
