"""Whether a GEMM pays that has its collective inside, beside the plain GEMM and a library's collective, one after the other.

All of it is the model's: what the launch takes `cost_ranks` says, what NCCL takes is below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from .cost_launch import Workload, grids, launch
from .cost_ranks import sent_bytes
from .errors import ArgumentError
from .heuristics import rank
from .ir.collectives import COLLECTIVES, check_ranks
from .ir.dtypes import F32
from .ir.expr import ACC
from .problem import Problem, Shape
from .target import Target

# Of NCCL's reduce-scatters and all-gathers over two H200s, BF16, 0.46 to 67 MB sent by each (tests/data/nccl.csv): seconds until bytes flow, and the
# share that they reach of what stores reach on the link. Behind a GEMM they give its time within 5.4 %, rms 2.8 %. More ranks were not measured.
NCCL_BEGINS, NCCL_SHARE = 14e-6, 0.58
# By how much the launch must be modelled as the quicker one, for by so much the model may be off: of two H100s, BF16 of 64, 7168, 16384 took 62 us in one launch, 57 one after the other.
UNSURE = 0.1


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Among which ranks are shared out evenly. network: bytes per second of each GPU's, one way, at its peak."""

    hosts: int = 1
    network: float = 0.0

    def direct(self, target: Target, ranks: int) -> float:
        """Bytes per second that reach all other ranks, of what is sent to each as it is: those of other hosts over the
        network, those of this one over NVLink meanwhile."""
        rate, here = _rate(target), ranks // self.hosts
        if self.hosts == 1:
            return rate
        return (ranks - 1) / max((ranks - here) / self.network, (here - 1) / rate)

    def library(self, target: Target, ranks: int) -> float:
        """The same of rings, one for each GPU of a host, which leave it once: so the network carries a share."""
        rate, here = NCCL_SHARE * _rate(target), ranks // self.hosts
        return rate if self.hosts == 1 else min(rate, here * self.network)


@dataclass(frozen=True, kw_only=True)
class Payoff:
    """True if the launch with the collective inside is modelled as the quicker one, by a tenth. reason: one sentence. seconds: of that launch, and
    serial: of the plain GEMM and then NCCL's collective; alone: of that GEMM. None where the two cannot be compared."""

    pays: bool
    reason: str
    seconds: float | None = None
    serial: float | None = None
    alone: float | None = None

    def __bool__(self) -> bool:
        return self.pays


def pays(problem: Problem, shape: Shape, ranks: int, target: Target) -> Payoff:
    """Whether `problem`, which has a collective, is better launched as it is than as a plain GEMM and NCCL's collective.

    shape: (M, N, K) of one rank, as the functions take them: "reduce_scatter" M of its rows of D and its own K, "all_gather" M of its
    own rows of A and its own N, "all_reduce" all M and its own K. ranks: 1 to 8 GPUs of one host. Both alternatives are priced with the config that the model
    likes best, no measured one, each launched alone. The library's moves as many bytes: sums in FP32 or the problem's wire, or A
    and its scales. Kept for next time. Raises ArgumentError.
    """
    if not isinstance(problem, Problem) or not problem.together:
        allowed = "must be a gemmgen.Problem with a collective"
        raise ArgumentError("problem", problem, allowed)
    check_ranks(ranks)
    of = launch(problem, shape, target, ranks)
    if ranks == 1:
        return Payoff(pays=False, reason="one rank: nothing travels")
    return _payoff(of, Hosts())


@lru_cache(maxsize=4096)
def _payoff(of: Workload, hosts: Hosts) -> Payoff:
    target = of.target
    if target.link_bytes_per_second is None:
        return Payoff(pays=False, reason=f"no NVLink is known of {target.name}")
    if of.ranks > target.linked:
        joined = f"NVLink joins at most {target.linked} GPUs that are {target.name}, not {of.ranks}"
        return Payoff(pays=False, reason=joined)
    return compared(of, hosts)


def compared(of: Workload, hosts: Hosts) -> Payoff:
    """Of a launch of several ranks on these hosts."""
    rate = hosts.direct(of.target, of.ranks)
    linked = replace(of.target, link_bytes_per_second=rate)
    seconds = _cheapest(replace(of, target=linked))
    alone = _cheapest(plain(of))
    serial = alone + nccl(of, hosts)
    sooner = seconds < (1 - UNSURE) * serial
    reason = (
        f"modelled {seconds * 1e6:.1f} us in one launch, {serial * 1e6:.1f} us one after the other, "
        f"of which {alone * 1e6:.1f} us are the GEMM"
    ) + ", not a tenth quicker" * (not sooner and seconds < serial)
    return Payoff(pays=sooner, reason=reason, seconds=seconds, serial=serial, alone=alone)


def _cheapest(of: Workload) -> float:
    """Seconds of the config that the model chooses."""
    return rank(of.problem, of.shape, of.target, 1, of.groups)[0].cost.seconds


def plain(of: Workload) -> Workload:
    """The GEMM of this GPU without the collective, all rows of A together. Where its sums go to a collective it stores those."""
    (m, n, k), p = of.shape, of.problem
    if COLLECTIVES[p.collective].sums:
        p = replace(p, d=p.wire or F32, epilogue=ACC, accumulate=False)
    return launch(p.alone, (grids(of.problem, of.ranks) * m, n, k), of.target)


def nccl(of: Workload, hosts: Hosts) -> float:
    """Seconds of its collective, which moves as many bytes; a ring's all-reduce, which scatters and gathers, 2 / ranks of what is sent to all as it is. That
    one counts as the others, to whose times this was fitted."""
    whole = COLLECTIVES[of.problem.collective].whole
    size = sent_bytes(of) * (2 / of.ranks if whole else 1)
    return NCCL_BEGINS + size / hosts.library(of.target, of.ranks)


def _rate(target: Target) -> float:
    rate = target.link_bytes_per_second
    assert rate is not None
    return rate
