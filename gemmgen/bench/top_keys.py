"""The keys with an indexer's largest scores, timed beside scores and torch's topk: `python -m gemmgen.bench.top_keys` on a Hopper GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from .. import ops
from ..errors import GemmgenError
from ..runtime.torch_tensors import torch
from . import logits
from .timing import interleave

OURS, SCORES, SELECTED, THEIRS, PEER = (
    "fp8_mqa_top_k",
    "fp8_mqa_logits",
    "logits, top_k",
    "logits, torch.topk",
    "deep_gemm, torch.topk",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape by one way: the median of its calls, and their interquartile range over it. memory: bytes that a call allocates at most."""

    queries: int
    keys: int
    heads: int
    depth: int
    count: int
    windows: str
    way: str
    microseconds: float
    spread: float
    memory: int


def measure(
    shapes: Sequence[tuple[int, int, int, int, int]], windows: str, repeats: int
) -> Iterator[Row]:
    """Of shapes (S, N, H, D, count): device time after a flush of the L2. What both of ours find is compared, and with torch's sort of the same scores. DeepGEMM takes
    part where it can be imported. Needs a GPU; raises GemmgenError where a result is wrong."""
    for queries, keys, heads, depth, count in shapes:
        given, _ = logits.drawn(queries, keys, heads, depth, windows)
        calls = _calls(given, count)
        verify(given, count, calls)
        memory = {name: _allocated(call) for name, call in calls.items()}
        for name, samples in interleave(calls, repeats).items():
            yield Row(
                queries=queries,
                keys=keys,
                heads=heads,
                depth=depth,
                count=count,
                windows=windows,
                way=name,
                microseconds=samples.median * 1e6,
                spread=samples.spread,
                memory=memory[name],
            )


def _calls(given: tuple[Any, ...], count: int) -> dict[str, Callable[[], Any]]:
    q, kv, scale, weights, first, end = given
    scores = partial(ops.fp8_mqa_logits, *given)
    most = min(count, kv.shape[0])
    found: dict[str, Callable[[], Any]] = {
        OURS: lambda: ops.fp8_mqa_top_k(q, kv, scale, weights, first, end, count),
        SCORES: scores,
        SELECTED: lambda: ops.top_k(scores(), count, first=first, end=end),
        THEIRS: lambda: scores().topk(most).indices,
    }
    deep_gemm = logits.peer()
    if deep_gemm is not None:
        theirs = partial(deep_gemm.fp8_mqa_logits, q, (kv, scale), weights, first, end)
        found[PEER] = lambda: theirs().topk(most).indices
    return found


def verify(given: tuple[Any, ...], count: int, calls: dict[str, Callable[[], Any]]) -> None:
    """Raises GemmgenError unless both of ours find what a stable sort does, each time."""
    t = torch()
    first, end = given[4:]
    scores, one, other = (calls[name]() for name in (SCORES, OURS, SELECTED))
    if not t.equal(one, other) or not t.equal(one, calls[OURS]()):
        raise GemmgenError("what is found in two ways, or twice, differs")
    some = t.linspace(0, len(scores) - 1, min(len(scores), logits.CHECKED), device="cuda").long()
    order = scores[some].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    sizes = (end - first).clamp(0, count)[some, None]
    nth = t.arange(order.shape[1], device="cuda")
    want = t.where(nth < sizes, order, t.iinfo(t.int64).max).sort(-1).values
    want = t.where(nth < sizes, want, -1)
    if not t.equal(one[some, : order.shape[1]].long(), want):
        raise GemmgenError("other keys are found than by a sort of the scores")


def _allocated(call: Callable[[], Any]) -> int:
    cuda = torch().cuda
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    call()
    return int(cuda.max_memory_allocated() - before)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per shape and way, with --json an object per line."""
    parser = argparse.ArgumentParser(prog="python -m gemmgen.bench.top_keys", description=__doc__)
    for name, default in (
        ("queries", [2048]),
        ("heads", [64]),
        ("depth", [128]),
        ("count", [2048]),
    ):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--keys", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--windows", choices=logits.WINDOWS, default="parallel")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    shapes = [
        (s, n, h, d, c)
        for h in args.heads
        for d in args.depth
        for s in args.queries
        for n in args.keys
        for c in args.count
    ]
    for row in measure(shapes, args.windows, args.repeats):
        text = f"{row.queries} {row.keys} {row.heads} {row.depth} {row.count} {row.windows}"
        timed = f"{row.microseconds:9.1f} us  spread {row.spread:.3f}  {row.memory / 1e6:8.1f} MB"
        print(json.dumps(asdict(row)) if args.json else f"{text:>34}  {row.way:<22} {timed}")


if __name__ == "__main__":
    main()
