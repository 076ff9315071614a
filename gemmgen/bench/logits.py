"""An indexer's scores, timed by several configs and beside DeepGEMM: `python -m gemmgen.bench.logits` on a Hopper GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

from .. import ops
from ..config import Config
from ..errors import GemmgenError
from ..runtime.torch_tensors import torch
from .agree import FAST, check_near
from .timing import Samples, interleave

WINDOWS = ("full", "causal", "parallel")
CHOSEN, PEER = "chosen", "deep_gemm"
CHECKED = 64  # queries that are compared with float64, a few at a time: of all heads and keys together they are large
AT_ONCE = 4
BITS = {"f32": "int32", "bf16": "int16"}  # of results, by dtype: integers to compare them by
SWAP = Config(swap_ab=True, block_m=128, block_n=256, stages=4)
CONFIGS: dict[str, Config | None] = {
    CHOSEN: None,
    "128x256": SWAP,
    "128x256 a": SWAP.having(multicast="a"),
    "128x256 b": SWAP.having(multicast="b"),
    "128x256 b panel": SWAP.having(multicast="b", raster="n", panel=2),
    "128x256 peek": SWAP.having(multicast="b", in_flight=1, peek=True),
    "128x192": SWAP.having(block_n=192, consumers=3, multicast="b"),
    "128x128 in turns": SWAP.having(block_n=128, ping_pong=True, multicast="b"),
    "128x64 in turns": SWAP.having(block_n=64, ping_pong=True, stages=6, multicast="a"),
    "128x64 by three": SWAP.having(
        block_n=64, consumers=3, ping_pong=True, stages=6, multicast="a"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape by one kernel: the median of its calls, their interquartile range over it, and the products of the windows' keys
    alone in that time."""

    queries: int
    keys: int
    heads: int
    depth: int
    windows: str
    config: str
    microseconds: float
    spread: float
    teraflops: float


def bounds(queries: int, keys: int, windows: str) -> tuple[list[int], list[int]]:
    """Where each query's window begins and ends. full: all keys. causal: up to its own, the queries being the last ones. parallel: as
    of one of keys / queries ranks that share a sequence, an early and a late stretch of it; half of the keys in the mean."""
    if windows == "full":
        return [0] * queries, [keys] * queries
    if windows == "causal":
        return [0] * queries, [max(0, keys - queries + i + 1) for i in range(queries)]
    half, ranks = queries // 2, max(1, keys // queries)
    early, late = ranks // 3 * half, (2 * ranks - 1 - ranks // 3) * half
    return [0] * queries, [at + i for at in (early, late) for i in range(half)]


def measure(
    shapes: Sequence[tuple[int, int, int, int]], windows: str, dtype: str, repeats: int
) -> Iterator[Row]:
    """Of shapes (S, N, H, D): device time after a flush of the L2. Every result of ours is compared with the first, bit by bit, that one and
    DeepGEMM's with float64. DeepGEMM takes part where it can be imported. Needs a GPU; raises GemmgenError where a result is wrong."""
    for queries, keys, heads, depth in shapes:
        given, worked = drawn(queries, keys, heads, depth, windows)
        calls = _calls(given, dtype)
        _verify(given, calls, dtype)
        timed = interleave(calls, repeats)
        for name, samples in timed.items():
            yield _row((queries, keys, heads, depth), windows, name, samples, worked)


def drawn(
    queries: int, keys: int, heads: int, depth: int, windows: str
) -> tuple[tuple[Any, ...], float]:
    """q, kv, its scales, weights, windows; and the operations that these ask for."""
    t = torch()
    t.manual_seed(0)
    first, end = bounds(queries, keys, windows)
    one, other = (t.tensor(x, dtype=t.int32, device="cuda") for x in (first, end))
    q, kv = (
        t.randn(*sides, device="cuda").to(t.float8_e4m3fn)
        for sides in ((queries, heads, depth), (keys, depth))
    )
    scale, weights = t.rand(keys, device="cuda") + 0.5, t.randn(queries, heads, device="cuda")
    worked = 2.0 * heads * depth * sum(b - a for a, b in zip(first, end, strict=True))
    return (q, kv, scale, weights, one, other), worked


def _calls(given: tuple[Any, ...], dtype: str) -> dict[str, Callable[[], Any]]:
    """Each into a result of its own kind."""
    q, kv, scale, weights, first, end = given
    block_k = {"block_k_bytes": k_bytes(q.shape[2])}
    function = partial(ops.fp8_mqa_logits, *given, out_dtype=dtype)
    found = compiling(
        {x: partial(function, config=c and c.having(**block_k)) for x, c in CONFIGS.items()}
    )
    deep_gemm = peer()
    if deep_gemm is None:
        return found
    if dtype == "f32":
        found[PEER] = partial(deep_gemm.fp8_mqa_logits, q, (kv, scale), weights, first, end)
    else:
        of = ((q, None), (kv, scale), weights, first, end)
        found[PEER] = partial(deep_gemm.fp8_fp4_mqa_logits, *of, logits_dtype=torch().bfloat16)
    return found


def k_bytes(depth: int) -> int:
    """Of a K block that has all of a head's depth, if one does."""
    return min((x for x in (32, 64) if x >= depth), default=Config.block_k_bytes)


def compiling(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Those of `calls` that compile; of the others it prints why not."""
    found = {}
    for name, call in calls.items():
        try:
            call()
        except GemmgenError as e:
            print(f"{name}: {str(e).splitlines()[0]}")
        else:
            found[name] = call
    return found


def peer() -> Any:
    """DeepGEMM, or None where it cannot be imported."""
    try:
        return import_module(PEER)
    except ImportError:
        return None


def _verify(given: tuple[Any, ...], calls: dict[str, Callable[[], Any]], dtype: str) -> None:
    """Raises GemmgenError where a result of ours differs in a bit from the first, or a call from itself, or that or DeepGEMM's from float64."""
    t = torch()
    bits = getattr(t, BITS[dtype])
    first = calls[CHOSEN]()
    for name, call in calls.items():
        if name != PEER and not t.equal(call().view(bits), first.view(bits)):
            raise GemmgenError(f"{name} differs from the chosen config in a bit")
    queries = given[0].shape[0]
    some = t.linspace(0, queries - 1, min(queries, CHECKED), device="cuda").long()
    found = [first, calls[PEER]()] if PEER in calls else [first]
    for got in found:
        for rows in some.split(AT_ONCE):
            _check(given, got, rows)


def _check(given: tuple[Any, ...], got: Any, rows: Any) -> None:
    """Raises GemmgenError. A head that is lost is 2^-3 of the root mean square of the scores of 64, 2^-3.5 of 128."""
    q, kv, scale, weights, first, end = given
    t = torch()
    products = t.einsum("ihd,jd->ihj", q[rows].double(), kv.double()).relu()
    want = t.einsum("ihj,ih,j->ij", products, weights[rows].double(), scale.double())
    columns = t.arange(kv.shape[0], device=kv.device)
    inside = (columns >= first[rows, None]) & (columns < end[rows, None])
    mine = got[rows].double()
    if not t.equal(t.isneginf(mine), ~inside):
        raise GemmgenError(f"scores of queries {rows.tolist()} have other windows")
    if inside.any():
        check_near(mine[inside], want[inside], FAST)


def _row(
    shape: tuple[int, int, int, int], windows: str, name: str, samples: Samples, worked: float
) -> Row:
    queries, keys, heads, depth = shape
    return Row(
        queries=queries,
        keys=keys,
        heads=heads,
        depth=depth,
        windows=windows,
        config=name,
        microseconds=samples.median * 1e6,
        spread=samples.spread,
        teraflops=worked / samples.median * 1e-12,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per shape and config, with --json an object per line."""
    parser = argparse.ArgumentParser(prog="python -m gemmgen.bench.logits", description=__doc__)
    for name, default in (("queries", [2048]), ("heads", [64]), ("depth", [128])):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    keys = [4096, 8192, 16384, 32768, 65536]
    parser.add_argument("--keys", type=int, nargs="+", default=keys)
    parser.add_argument("--windows", choices=WINDOWS, default="parallel")
    parser.add_argument("--dtype", choices=[*BITS], default="f32")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    shapes = [
        (s, n, h, d)
        for h in args.heads
        for d in args.depth
        for s in args.queries
        for n in args.keys
    ]
    for row in measure(shapes, args.windows, args.dtype, args.repeats):
        text = f"{row.queries} {row.keys} {row.heads} {row.depth} {row.windows}"
        timed = f"{row.microseconds:9.1f} us {row.teraflops:7.0f} TFLOP/s  spread {row.spread:.3f}"
        print(json.dumps(asdict(row)) if args.json else f"{text:>28}  {row.config:<18} {timed}")


if __name__ == "__main__":
    main()
