"""Configs side by side for one shape: which are legal, what they take, what the models say. Needs no GPU.

The times are the cost model's, for an H200; nothing is timed. `gemmgen tune` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen import Config, Problem, lower
from gemmgen.cost import cost
from gemmgen.errors import IllegalConfig
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import E4M3
from gemmgen.problem import Shape
from gemmgen.target import H200

PROBLEM = Problem(family="fp8_block", a=E4M3, b=E4M3)
SHAPE: Shape = (4096, 7168, 2048)
CONFIGS = {
    "base": Config(stages=5),
    "wide": Config(block_n=192, stages=4, multicast="b", raster="n"),
    "three consumers": Config(block_m=192, consumers=3, stages=4, multicast="a", unroll=4),
    "too deep": Config(stages=9),
    "the model's": choose(PROBLEM, SHAPE, H200),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """seconds: modelled; None: refused, and why."""

    name: str
    seconds: float | None
    smem_bytes: int
    why: str


def compare() -> tuple[Row, ...]:
    """The configs, cheapest first; refused ones last."""
    rows = [row(name, config) for name, config in CONFIGS.items()]
    return tuple(sorted(rows, key=lambda r: (r.seconds is None, r.seconds or 0.0)))


def row(name: str, config: Config) -> Row:
    try:
        kernel = lower(PROBLEM, config)
    except IllegalConfig as refusal:
        why = f"{refusal.rule.id}: {refusal.fix}"
        return Row(name=name, seconds=None, smem_bytes=0, why=why)
    seconds = cost(PROBLEM, config, SHAPE, H200).seconds
    return Row(name=name, seconds=seconds, smem_bytes=kernel.smem_bytes or 0, why="")


def main() -> None:
    for r in compare():
        time = "refused" if r.seconds is None else f"{r.seconds * 1e6:6.1f} us"
        print(f"{r.name:<16} {time:>10} {r.smem_bytes:>8} bytes  {r.why}")


if __name__ == "__main__":
    main()
