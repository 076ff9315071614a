"""A lowered kernel and an instance -> what each agent of a cluster does, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ..ir import nodes as ir
from ..ir.rewrite import statements
from .arrivals_meaning import copies
from .arrivals_meaning import names as row_names
from .meaning import Walk, walk
from .memory import Memory, plan_memory
from .ops import Agent, Instance, Program
from .parcels_meaning import pushes
from .ranks_meaning import ended, slot_number, slots_of, started

WARPS = ((0,), (1,), (2,), (3,))  # every warp by itself
PAIR = ((0,), (1, 2, 3))  # the leader's warp, and the others as if they walked in step
Split = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Unroller:
    """What all instances of a kernel share: its agents and the bytes they touch."""

    kernel: ir.Kernel
    agents: tuple[Agent, ...]
    memory: Memory
    accumulators: frozenset[str]  # registers that some Mma works on

    def program(self, instance: Instance) -> Program:
        """Every agent that does anything after the start, with its operations."""
        size, launches = self.kernel.cluster.size, range(len(instance.epochs))
        launched = [
            (launch, rank, cluster)
            for launch in launches
            for rank in range(instance.ranks)
            for cluster in range(instance.ctas)
        ]
        ctas = range(size * len(launched))
        walks = [w for i, of in enumerate(launched) for w in self._walks(instance, i * size, *of)]
        busy = [w for w in walks if len(w.ops) > w.start]
        for w in busy:
            ended(w)
        names, slots = self.memory.names, range(size * slots_of(self.kernel, instance))
        rows = self._row_cells(len(ctas))
        copied = list(copies(self.kernel, instance, len(ctas), rows))
        copied += pushes(self.kernel, instance, len(ctas), partial(self._sums, instance))
        return Program(
            kernel=self.kernel,
            instance=instance,
            agents=(*(w.agent for w in busy), *(a for a, _ in copied)),
            ops=(*(tuple(w.ops) for w in busy), *(tuple(todo) for _, todo in copied)),
            stamps=(*(tuple(w.stamps) for w in busy), *((),) * len(copied)),
            cells=(
                *(_of(name, c, len(ctas)) for c in ctas for name in names),
                *(f"{name}, the {s}-th" for s in slots for name in names),
                *row_names(self.kernel, instance),
            ),
        )

    def _row_cells(self, ctas: int) -> int:
        """The first cell of rows that ranks send each other: they have no slots, so behind those of all CTAs."""
        return ctas * len(self.memory.names)

    def _sums(
        self, instance: Instance, launch: int, of: tuple[int, bool], place: int, slot: int
    ) -> tuple[int, ...]:
        """The cells of that slot."""
        first = slot_number(self.kernel, instance, launch, of, place, slot) * len(self.memory.names)
        return tuple(first + c for c in self.memory.sums)

    def _walks(
        self, instance: Instance, first: int, launch: int, rank: int, cluster: int
    ) -> list[Walk]:
        """Of the agents of one cluster, whose CTAs are numbered from `first` on."""
        several = instance.ranks > 1
        agents = (
            replace(a, cta=first + a.cta, rank=rank, launch=launch, of_ranks=several)
            for a in self.agents
        )
        return [self._walk(i, a, instance, cluster) for i, a in enumerate(agents)]

    def _walk(self, index: int, agent: Agent, instance: Instance, cluster: int) -> Walk:
        w = Walk(
            kernel=self.kernel,
            memory=self.memory,
            accumulators=self.accumulators,
            index=index,
            agent=agent,
            instance=instance,
            cluster=cluster,
            row_cells=self._row_cells(
                self.kernel.cluster.size * len(instance.epochs) * instance.ranks * instance.ctas
            ),
        )
        started(w)
        walk(w, self.kernel.prologue)
        w.start = len(w.ops)
        walk(w, next(r for r in self.kernel.roles if r.name == w.agent.role).body)
        return w


def unroller(kernel: ir.Kernel, split: Split = WARPS) -> Unroller:
    """Raises IRError for a statement without meaning or a kernel that is not lowered."""
    ctas = kernel.cluster.size
    agents = tuple(
        Agent(
            cta=cta,
            role=role.name,
            warpgroup=w,
            warps=warps,
            turns=role.turns,
            slices=role.slices,
            of_cluster=ctas > 1 or kernel.scheduler.streams,
        )
        for cta in range(ctas)
        for role in kernel.roles
        for w in range(*role.warpgroups)
        for warps in split
    )
    multiplied = [s for s in statements(kernel) if isinstance(s, ir.Mma)]
    accumulators = frozenset(s.dst for s in multiplied)
    accumulators |= {s.decoded for s in multiplied if isinstance(s, ir.MmaDecoded)}
    memory = plan_memory(kernel, agents)
    return Unroller(kernel=kernel, agents=agents, memory=memory, accumulators=accumulators)


def _of(name: str, cta: int, size: int) -> str:
    return f"{name} of CTA {cta}" if size > 1 else name
