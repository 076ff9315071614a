"""A lowered kernel and an instance -> what each agent of a cluster does, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import nodes as ir
from ..ir.rewrite import statements
from .meaning import Walk, walk
from .memory import Memory, plan_memory
from .ops import Agent, Instance, Program

WARPS = ((0,), (1,), (2,), (3,))  # every warp by itself
PAIR = ((0,), (1, 2, 3))  # the leader's warp, and the others as if they walked in step
# CTAs that take stretches, in any instance: one can have a tile's middle, and two its ends.
STREAMING = 3
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
        ctas = range(self.kernel.cluster.size * instance.ctas)
        walks = [self._walk(i, instance) for i, a in enumerate(self.agents) if a.cta in ctas]
        busy = [w for w in walks if len(w.ops) > w.start]
        return Program(
            kernel=self.kernel,
            instance=instance,
            agents=tuple(w.agent for w in busy),
            ops=tuple(tuple(w.ops) for w in busy),
            stamps=tuple(tuple(w.stamps) for w in busy),
            cells=tuple(_of(name, c, len(ctas)) for c in ctas for name in self.memory.names),
        )

    def _walk(self, index: int, instance: Instance) -> Walk:
        w = Walk(
            kernel=self.kernel,
            memory=self.memory,
            accumulators=self.accumulators,
            index=index,
            agent=self.agents[index],
            instance=instance,
        )
        walk(w, self.kernel.prologue)
        w.start = len(w.ops)
        walk(w, next(r for r in self.kernel.roles if r.name == w.agent.role).body)
        return w


def unroller(kernel: ir.Kernel, split: Split = WARPS) -> Unroller:
    """Raises IRError for a statement without meaning or a kernel that is not lowered."""
    ctas = STREAMING if kernel.scheduler.streams else kernel.cluster.size
    agents = tuple(
        Agent(
            cta=cta,
            role=role.name,
            warpgroup=w,
            warps=warps,
            turns=role.turns,
            of_cluster=ctas > 1,
        )
        for cta in range(ctas)
        for role in kernel.roles
        for w in range(*role.warpgroups)
        for warps in split
    )
    accumulators = frozenset(s.dst for s in statements(kernel) if isinstance(s, ir.Mma))
    memory = plan_memory(kernel, agents)
    return Unroller(kernel=kernel, agents=agents, memory=memory, accumulators=accumulators)


def _of(name: str, cta: int, size: int) -> str:
    return f"{name} of CTA {cta}" if size > 1 else name
