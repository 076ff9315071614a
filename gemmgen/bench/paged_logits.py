"""An indexer's scores of keys in pages, timed by several configs and beside DeepGEMM: `python -m gemmgen.bench.paged_logits` on a Hopper GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from .. import ops
from ..config import Config
from ..errors import GemmgenError
from ..ir.pages import ROWS
from ..runtime.torch_tensors import torch
from .agree import FAST, check_near
from .logits import CHOSEN, PEER, compiling, k_bytes, peer
from .timing import Samples, interleave

CHECKED = 16  # sequences that are compared with float64
PAGE = ROWS[0]
SPREAD = 0.3  # of contexts, around the mean
SWAP = Config(swap_ab=True, block_m=64, block_n=256, stages=4)
CONFIGS: dict[str, Config | None] = {
    CHOSEN: None,
    "256": SWAP,
    "128": SWAP.having(block_n=128, stages=7),
    "64": SWAP.having(block_n=64, consumers=1, stages=9),
    "128 in turns": SWAP.having(block_n=128, ping_pong=True, stages=7),
    "64 in turns": SWAP.having(block_n=64, ping_pong=True, stages=9),
    "64 by three": SWAP.having(block_n=64, consumers=3, ping_pong=True, stages=9),
    "192 by three": SWAP.having(block_n=192, consumers=3, stages=5),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape by one kernel: the median of its calls, their interquartile range over it, and the bytes of the contexts' keys and scales
    in that time."""

    sequences: int
    queries: int
    mean: int
    heads: int
    depth: int
    config: str
    microseconds: float
    spread: float
    terabytes: float  # a second


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of B sequences, Q queries each, contexts that are within SPREAD of `mean` keys."""

    sequences: int
    queries: int
    mean: int
    heads: int
    depth: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    q: Any
    cache: Any
    weights: Any
    lengths: Any
    table: Any
    longest: int
    read: int  # bytes of keys and scales that contexts have


def measure(shapes: Sequence[Shape], repeats: int) -> Iterator[Row]:
    """Device time after a flush of the L2. Every result of ours is compared with the first, bit by bit, that one and DeepGEMM's with float64.
    DeepGEMM takes part where it can be imported. Needs a GPU; raises GemmgenError where a result is wrong."""
    for shape in shapes:
        given = drawn(shape)
        calls = calls_of(given)
        verify(given, calls)
        for name, samples in interleave(calls, repeats).items():
            yield _row(shape, name, samples, given.read)


def drawn(shape: Shape, device: str = "cuda") -> Given:
    """Pages in any order; what no context reaches is no page's number."""
    t = torch()
    t.manual_seed(0)
    b, queries, depth = shape.sequences, shape.queries, shape.depth
    low, high = int(shape.mean * (1 - SPREAD)), int(shape.mean * (1 + SPREAD))
    last = t.randint(max(low, queries), high + 1, (b, 1), device=device)
    lengths = (last - t.arange(queries - 1, -1, -1, device=device)).int()
    pages = (last[:, 0] + PAGE - 1) // PAGE
    most, total = int(pages.max()), int(pages.sum())
    table = t.full((b, most), -1, dtype=t.int32, device=device)
    order = t.randperm(total, device=device).int()
    table[t.arange(most, device=device) < pages[:, None]] = order
    cache = t.empty((total, PAGE, 1, depth + 4), dtype=t.uint8, device=device)
    kv, scale = ops.paged_cache(cache)
    for part in range(0, total, 4096):
        some = kv[part : part + 4096]
        some.copy_(t.randn(some.shape, device=device).to(t.float8_e4m3fn))
    scale.copy_(t.rand(scale.shape, device=device) + 0.5)
    q = t.randn(b, queries, shape.heads, depth, device=device).to(t.float8_e4m3fn)
    return Given(
        q=q,
        cache=cache,
        weights=t.randn(b, queries, shape.heads, device=device),
        lengths=lengths,
        table=table,
        longest=int(last.max()),
        read=int(last.sum()) * (depth + 4),
    )


def calls_of(x: Given) -> dict[str, Callable[[], Any]]:
    """Each into a result of its own kind."""
    rows, depth = x.q.shape[1] * x.q.shape[2], x.q.shape[3]
    given = (x.q, *ops.paged_cache(x.cache), x.weights, x.lengths, x.table, x.longest)
    function = partial(ops.fp8_paged_mqa_logits, *given)
    found = compiling(
        {x: partial(function, config=c and sized(c, rows, depth)) for x, c in CONFIGS.items()}
    )
    deep_gemm = peer()
    if deep_gemm is None:
        return found
    sms = torch().cuda.get_device_properties(x.q.device).multi_processor_count

    def theirs() -> Any:
        meta = deep_gemm.get_paged_mqa_logits_metadata(x.lengths, PAGE, sms)
        of = (x.q, x.cache, x.weights.flatten(0, 1), x.lengths, x.table, meta, x.longest)
        return deep_gemm.fp8_paged_mqa_logits(*of, clean_logits=False)

    return {**found, PEER: theirs}


def sized(c: Config, rows: int, depth: int) -> Config:
    """`c` for so many rows of the product in a sequence, queries times heads, and so many features of a head."""
    return c.having(block_m=min(rows, 128), block_k_bytes=k_bytes(depth))


def verify(x: Given, calls: dict[str, Callable[[], Any]]) -> None:
    """Raises GemmgenError where a result of ours differs in a bit from the first, or that or DeepGEMM's, within contexts, from float64."""
    t = torch()
    first = calls[CHOSEN]()
    for name, call in calls.items():
        if name != PEER and not t.equal(call().view(t.int32), first.view(t.int32)):
            raise GemmgenError(f"{name} differs from the chosen config in a bit")
    columns = t.arange(x.longest, device=first.device)
    if not t.equal(t.isneginf(first), columns >= x.lengths[..., None]):
        raise GemmgenError("scores have other contexts")
    found = [first, calls[PEER]().view(first.shape)] if PEER in calls else [first]
    kv, scale = ops.paged_cache(x.cache)
    for s in range(0, len(x.q), -(-len(x.q) // CHECKED)):
        pages = x.table[s][x.table[s] >= 0].long()
        keys, scales = kv[pages].double().flatten(0, 1), scale[pages].double().flatten()
        products = t.einsum("ihd,jd->ihj", x.q[s].double(), keys).relu()
        want = t.einsum("ihj,ih,j->ij", products, x.weights[s].double(), scales)
        for got in found:
            for i, end in enumerate(x.lengths[s].tolist()):
                check_near(got[s, i, :end].double(), want[i, :end], FAST)


def _row(shape: Shape, name: str, samples: Samples, read: int) -> Row:
    return Row(
        **asdict(shape),
        config=name,
        microseconds=samples.median * 1e6,
        spread=samples.spread,
        terabytes=read / samples.median * 1e-12,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per shape and config, with --json an object per line."""
    parser = argparse.ArgumentParser(
        prog="python -m gemmgen.bench.paged_logits", description=__doc__
    )
    sides = {"sequences": [64, 256], "queries": [1, 2], "mean": [8192, 65536]}
    for name, default in {**sides, "heads": [64], "depth": [128]}.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    shapes = [
        Shape(sequences=b, queries=i, mean=n, heads=h, depth=d)
        for b in args.sequences
        for i in args.queries
        for n in args.mean
        for h in args.heads
        for d in args.depth
    ]
    for row in measure(shapes, args.repeats):
        text = f"{row.sequences} {row.queries} {row.mean} {row.heads} {row.depth}"
        timed = f"{row.microseconds:9.1f} us {row.terabytes:6.2f} TB/s  spread {row.spread:.3f}"
        print(json.dumps(asdict(row)) if args.json else f"{text:>28}  {row.config:<18} {timed}")


if __name__ == "__main__":
    main()
