"""Where a GEMM pays that has its collective inside, as the cost model has it.

`python -m docs.tools.where_it_pays` writes docs/where-it-pays.md (some fifteen seconds).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.cost_launch import launch
from gemmgen.cost_link import NCCL_SHARE, Hosts, Payoff, compared
from gemmgen.problem import Problem, Shape
from gemmgen.target import H200

FILE = Path(__file__).parent.parent / "where-it-pays.md"
SHAPES = (
    (8192, 8192, 8192),
    (4096, 7168, 16384),
    (4096, 4096, 7168),
    (4096, 7168, 2048),
    (512, 7168, 16384),
    (64, 7168, 16384),
)
GBIT = 1e9 / 8  # bytes per second
NETWORK = 400  # Gbit/s of each GPU
FASTER = (400, 800, 1600, 3200)
Place = tuple[int, Hosts]
PLACES: dict[str, Place] = {
    "2 GPUs": (2, Hosts()),
    "4 GPUs": (4, Hosts()),
    "8 GPUs": (8, Hosts()),
    "8 GPUs of two hosts": (8, Hosts(hosts=2, network=NETWORK * GBIT)),
}
ROWS = (64, 256, 1024, 4096, 16384)
EIGHT = 8


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A table's problem."""

    operands: str
    collective: str
    wire: str | None = None

    @property
    def problem(self) -> Problem:
        family, dtype = ("dense", "bf16") if self.operands == "BF16" else ("fp8_block", "e4m3")
        return Problem(family=family, a=dtype, b=dtype, collective=self.collective, wire=self.wire)

    @property
    def title(self) -> str:
        sums = {None: "sums in FP32", "bf16": "sums rounded to BF16 on their way"}[self.wire]
        scatter = self.collective == "reduce_scatter"
        what = f"reduce-scatter, {sums}" if scatter else "all-gather"
        return f"{self.operands}, {what}"

    def of_rank(self, shape: Shape, ranks: int) -> Shape:
        """Of the GEMM of all ranks together, what each has."""
        m, n, k = shape
        if self.collective == "reduce_scatter":
            return m // ranks, n, k // ranks
        return m // ranks, n // ranks, k

    def priced(self, shape: Shape, ranks: int, hosts: Hosts) -> Payoff:
        return _priced(self, shape, ranks, hosts)


@cache
def _priced(kind: Kind, shape: Shape, ranks: int, hosts: Hosts) -> Payoff:
    return compared(launch(kind.problem, kind.of_rank(shape, ranks), H200, ranks), hosts)


KINDS = tuple(
    Kind(operands=operands, collective=collective, wire=wire)
    for operands in ("BF16", "FP8 with block scales")
    for collective, wire in (
        ("reduce_scatter", "bf16"),
        ("reduce_scatter", None),
        ("all_gather", None),
    )
)

HEAD = f"""# Where a collective in the GEMM pays

**Nothing on this page is measured on the machines that it is about: all times are the cost model's, of H200s.** `python -m docs.tools.where_it_pays` writes it. For a
launch of yours `gemmgen explain --collective` says the same, and `gemmgen.cost_link.pays` ([reference](reference.md)).

What was measured is less. Reduce-scatters on two H100s of one host, 60 times (`tests/data/reduce_scatter.csv`): the time of the GEMM alone, as measured, and what the model says that the other rank adds are together off by 4.7 %
(root mean square), at most by 10.1 %. NCCL's collectives on two H200s, 12 times (`tests/data/nccl.csv`): behind or before a GEMM off by 2.8 %, at most by 5.4 %. All-gathers inside of the launch on two H100s, at five shapes, took
2 % to 29 % longer than the model says of them ([performance](performance.md#two-gpus)). More than two GPUs, more than one host, and FP8 with a collective have not been timed.

- **A cell** has three times in microseconds: the GEMM of one GPU alone; the launch that has the collective inside; the GEMM and NCCL's collective one after the other. The second is bold where it is less than the third: there it pays.
- **M, N, K** are those of the GEMM of all R GPUs together. In a reduce-scatter each has K / R, in an all-gather N / R, and in both M / R rows.
- **On one host** each GPU has its whole link to all others: {(H200.link_bytes_per_second or 0) * 1e-9:.0f} GB/s one way, what stores reached between two H200s.
- **Two hosts** have four of the GPUs each, and a network of {NETWORK} Gbit/s per GPU, one way, at its peak. *gemmgen has no kernel that sends between hosts*: the column says what its design would take. Each GPU sends to each of the four on the other host, where NCCL's rings
  leave a host once for each of its GPUs, with less than half as many bytes. The last column is the least of {", ".join(map(str, FASTER))} Gbit/s at which it would pay.
- **NCCL** is taken to begin as soon, and to reach the same share of the link, {NCCL_SHARE:.0%}, with more GPUs as with two. Where it reaches more, the third time is less, and margins of a few percent are none.

## At how many of the {len(SHAPES)} shapes it pays

"""
WHY = f"""
- *The link.* Where sums or rows take longer than the GEMM, nothing hides them all. The GEMM of one of R GPUs takes an R-th, the bytes hardly less: so on 8 GPUs most launches wait for the link, and what is left of the gain is that
  stores reach more of it than NCCL, and begin sooner.
- *Sums in FP32* are twice the bytes, for a library too: it moves what the launch moves. Beside a library that rounds the sums first, the second time is to be held against the third of the table of rounded ones: most of the gain is
  gone, and with FP8, whose GEMM is over sooner, all of it where M is large.
- *Few rows.* Each rank's rows are tiles of their own: of 64 rows on 8 GPUs eight tiles of 8 rows are multiplied where the plain GEMM has one.
- *A network* of {NETWORK} Gbit/s gives an eighth of NVLink. What each GPU sends to the other host takes longer there than nearly all of these GEMMs.

## From how many rows on

Of M = {", ".join(map(str, ROWS))} on {EIGHT} GPUs of one host, at which it pays:

"""


def page() -> str:
    """The file."""
    tables = (f"### {kind.title}\n\n{table(kind)}" for kind in KINDS)
    parts = (HEAD, summary(), WHY, crossovers(), "\n## Shape by shape\n\n", "\n".join(tables))
    return "".join(parts)


def summary() -> str:
    """Of each kind and place."""
    found = [
        (kind.title, *(str(_paying(kind, place)) for place in PLACES.values())) for kind in KINDS
    ]
    return _table(("", *PLACES), found)


def _paying(kind: Kind, place: Place) -> int:
    return sum(bool(kind.priced(shape, *place)) for shape in SHAPES)


def crossovers() -> str:
    """Of each kind, at which M it pays."""
    pairs = tuple(dict.fromkeys(s[1:] for s in SHAPES))
    found = [(kind.title, *(_rows(kind, n, k) for n, k in pairs)) for kind in KINDS]
    return _table(("", *(f"N, K = {n}, {k}" for n, k in pairs)), found)


def _rows(kind: Kind, n: int, k: int) -> str:
    found = [m for m in ROWS if kind.priced((m, n, k), EIGHT, Hosts())]
    if len(found) in (0, len(ROWS)):
        return "all" if found else "none"
    return ", ".join(map(str, found))


def table(kind: Kind) -> str:
    """Of the shapes, at each of PLACES."""
    rows = []
    for shape in SHAPES:
        cells = (_cell(kind.priced(shape, *place)) for place in PLACES.values())
        rows.append((", ".join(map(str, shape)), *cells, _network(kind, shape)))
    return _table(("M, N, K", *PLACES, "two hosts pay from, Gbit/s"), rows)


def _cell(p: Payoff) -> str:
    assert p.alone and p.seconds and p.serial
    alone, inside, serial = (f"{s * 1e6:.0f}" for s in (p.alone, p.seconds, p.serial))
    return f"{alone} / {f'**{inside}**' if p else inside} / {serial}"


def _network(kind: Kind, shape: Shape) -> str:
    rates = (x for x in FASTER if kind.priced(shape, EIGHT, Hosts(hosts=2, network=x * GBIT)))
    return str(next(rates, "none"))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = ("---", *("---:" for _ in head[1:]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


if __name__ == "__main__":
    FILE.write_text(page())
