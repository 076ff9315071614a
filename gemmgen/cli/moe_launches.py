"""What `ops.moe` launches at a number of tokens, from sizes alone: for `gemmgen moe --explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from .. import cost_stream
from ..bench.moe_sizes import Sizes
from ..casts import Cast
from ..combining import Combination, at_once
from ..cost import cost
from ..ir.dtypes import BF16, E4M3, F32, S32
from ..ops.building import picked_for
from ..ops.grouped import fp8_block_problem
from ..ops.mixture import MOST_TAKEN, expected_of
from ..ops.mixture_weights import SCALED_ROWS
from ..ops.routing import rows_of
from ..pipeline import lower
from ..problem import Problem
from ..recipes import SCALE_BLOCK
from ..routing import Routing
from ..runtime.launch import grid
from ..runtime.loaded_cast import Plain
from ..see.layer import Held, Launched, Layer
from ..see.spelling import spelled
from ..spreading import Spread
from ..target import Target

LAUNCHES = range(6)
ROUTE, CAST, SPREAD, FIRST, SECOND, COMBINE = LAUNCHES  # in order
READ = "by the bytes, as fitted on an H100"  # by what launches without a GEMM are priced


def layer(name: str, s: Sizes, tokens: int, target: Target) -> Layer:
    """Of FP8 weights with block scales, w1's rows alternating, and router weights in FP32."""
    return _Sides(name=name, s=s, tokens=tokens, target=target).layer()


def _blocks(n: int) -> int:
    return -(-n // SCALE_BLOCK)


@dataclass(frozen=True, kw_only=True)
class _Sides:
    name: str
    s: Sizes
    tokens: int
    target: Target
    alignment: int = SCALED_ROWS  # of the rows where an expert's begin

    @property
    def copies(self) -> int:
        return self.tokens * self.s.top

    @property
    def rows(self) -> int:
        """That copies have room for."""
        return int(rows_of(self.copies, self.s.experts, self.alignment))

    @property
    def expected(self) -> tuple[int, int]:
        return expected_of(self.copies, self.s.experts, self.s.experts)

    @property
    def taken(self) -> bool:
        """Whether the first GEMM takes tokens by index."""
        return self.expected[0] <= MOST_TAKEN

    def quantised(self, rows: int, columns: int) -> dict[str, int]:
        return {"codes": rows * columns * E4M3.bytes, "scales": rows * _blocks(columns) * F32.bytes}

    def weights(self, experts: int, n: int, k: int) -> int:
        return experts * (n * k * E4M3.bytes + _blocks(n) * _blocks(k) * F32.bytes)

    @property
    def wide(self) -> int:
        """Bytes of tokens in 16 bits."""
        return self.tokens * self.s.hidden * BF16.bytes

    @property
    def ids(self) -> int:
        """Bytes of an integer for each copy."""
        return self.copies * S32.bytes

    def layer(self) -> Layer:
        s = self.s
        return Layer(
            name=self.name,
            tokens=self.tokens,
            sizes=asdict(s),
            target=self.target,
            rows=self.rows,
            expected_rows=self.expected[0],
            expected_groups=self.expected[1],
            weights=sum(self.weights(s.experts, *sides) for sides in self.sides),
            output=self.wide,
            launches=self.launches(),
            held=self.held(),
            least=self.least(),
        )

    @property
    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """N and K of both GEMMs."""
        s = self.s
        return (2 * s.intermediate, s.hidden), (s.hidden, s.intermediate)

    def launches(self) -> tuple[Launched, ...]:
        s, tokens, copies = self.s, self.tokens, self.copies
        q, of_copies = self.quantised(tokens, s.hidden), self.quantised(copies, s.hidden)
        tables = {"slots": self.ids, "copies": self.rows * S32.bytes, "ends": s.experts * S32.bytes}
        slots, parts = {"slots": self.ids}, 0 if self.taken else s.hidden
        kernels = Cast(x=BF16, q=E4M3, per="columns"), Spread(), self.combination
        tiles = (
            kernels[0].tiles(tokens, s.hidden, tokens),
            kernels[1].tiles(tokens, parts // kernels[1].unit, _blocks(s.hidden)),
            kernels[2].tiles(tokens, s.hidden),
        )
        if self.taken:  # scales alone are copied
            del q["codes"], of_copies["codes"]
        route = self.streaming("route", Routing(bits=32), Routing(bits=32).ctas, slots, tables)
        cast = self.streaming(
            "cast", kernels[0], tiles[0], {"x": self.wide}, self.quantised(tokens, s.hidden)
        )
        spread = self.streaming("spread", kernels[1], tiles[1], {**q, **slots}, of_copies)
        y = copies * s.hidden * BF16.bytes
        read = {"y": y, **slots, "weights": copies * F32.bytes}
        combine = self.streaming("combine", kernels[2], tiles[2], read, {"result": self.wide})
        return route, cast, spread, self.gemm(0), self.gemm(1), combine

    @property
    def combination(self) -> Combination:
        return Combination(y=BF16, weights=F32, at_once=at_once(self.s.top))

    def streaming(
        self,
        does: str,
        kernel: Plain,
        tiles: int,
        reads: Mapping[str, int],
        writes: Mapping[str, int],
    ) -> Launched:
        size = sum(reads.values()) + sum(writes.values())
        return Launched(
            does=does,
            kernel=kernel.name,
            ctas=min(tiles, self.target.sms * kernel.ctas_per_sm),
            threads=kernel.threads,
            reads=reads,
            writes=writes,
            seconds=cost_stream.seconds(does, size, self.target, self.copies),
            source=READ,
            config={},
        )

    def problem(self, number: int) -> Problem:
        """Of the first GEMM, or the second."""
        p = fp8_block_problem("ends", *(("bf16", "none") if number else ("e4m3", "swiglu")))
        return replace(p, alignment=self.alignment, indexed=self.taken and not number)

    def gemm(self, number: int) -> Launched:
        (n, k), p, (rows, groups) = self.sides[number], self.problem(number), self.expected
        shape = rows, n, k
        picked = picked_for(p, shape, groups, self.target.device_name, self.target)
        kernel = lower(p, picked.config)
        a = self.quantised(self.copies, k)
        if p.indexed:
            a |= {"codes": self.tokens * k * E4M3.bytes, "copies": self.ids}
        d = (
            self.quantised(self.copies, n // 2)
            if p.quantised
            else {"y": self.copies * n * BF16.bytes}
        )
        says = {
            "shape": f"{groups} x M={rows} N={n} K={k}",
            "config": spelled(picked.config),
            "config from": picked.source(shape),
        }
        return Launched(
            does=f"GEMM {number + 1}",
            kernel=kernel.name,
            ctas=grid(kernel, (self.rows, n, k), self.target.sms, self.s.experts),
            threads=kernel.threads,
            reads=a
            | {f"w{number + 1}": self.weights(groups, n, k), "ends": self.s.experts * S32.bytes},
            writes=d,
            seconds=cost(p, picked.config, shape, self.target, groups).seconds,
            source="by the cost model",
            config=says,
        )

    def least(self) -> int:
        """As `Layer.least`."""
        held = replace(self, alignment=1).held()
        return max(sum(x.bytes for x in held if x.first <= i <= x.read) for i in LAUNCHES)

    def held(self) -> tuple[Held, ...]:
        """As `ops.mixture.results` holds them."""
        s, rows = self.s, self.rows
        q, a, h = (
            self.quantised(*sides)
            for sides in ((self.tokens, s.hidden), (rows, s.hidden), (rows, s.intermediate))
        )
        codes = FIRST if self.taken else SPREAD
        tables = (
            ("slots", self.ids, ROUTE, COMBINE, COMBINE),
            ("copies", rows * S32.bytes, ROUTE, FIRST if self.taken else ROUTE, SECOND),
            ("ends", s.experts * S32.bytes, ROUTE, SECOND, SECOND),
            ("codes of tokens", q["codes"], CAST, codes, codes),
            ("scales of tokens", q["scales"], CAST, SPREAD, SPREAD),
            *(() if self.taken else (("codes of copies", a["codes"], SPREAD, FIRST, FIRST),)),
            ("scales of copies", a["scales"], SPREAD, FIRST, FIRST),
            ("codes of hidden rows", h["codes"], FIRST, SECOND, SECOND),
            ("scales of hidden rows", h["scales"], FIRST, SECOND, SECOND),
            ("experts' results", rows * s.hidden * BF16.bytes, SECOND, COMBINE, COMBINE),
        )
        return tuple(
            Held(name=name, bytes=size, first=first, read=read, last=last)
            for name, size, first, read, last in tables
        )
