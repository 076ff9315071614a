"""Place every buffer and barrier in shared memory, and check that they fit."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Barrier, Kernel, Smem
from ..target import Target

BARRIER_SIZE = 8  # bytes of one mbarrier

SMEM_CAPACITY = Rule(
    id="smem-capacity",
    says="stages, D tile, partial sums and barriers must fit the shared memory of one CTA",
    because="A Hopper CTA may use at most 227 KiB.",
)
RULES = (SMEM_CAPACITY,)


def layout_smem(kernel: Kernel, target: Target) -> Kernel:
    """Buffers by falling alignment, then barriers, without gaps. Sets every offset and
    Kernel.smem_bytes."""
    at = 0
    placed: dict[str, int] = {}
    for s in sorted(kernel.smem, key=lambda s: -s.alignment):
        at = _align(at, s.alignment)
        placed[s.name] = at
        at += s.bytes
    smem: tuple[Smem, ...] = tuple(replace(s, offset=placed[s.name]) for s in kernel.smem)
    barriers: list[Barrier] = []
    for b in kernel.barriers:
        barriers.append(replace(b, offset=at))
        at += BARRIER_SIZE * b.stages
    if at > target.smem_bytes:
        values = {"bytes": at, "capacity": target.smem_bytes, "stages": kernel.stages}
        raise IllegalConfig(
            SMEM_CAPACITY, values, f"Use {_advice(_stages_beside(kernel, at, target))}."
        )
    return replace(kernel, smem=smem, barriers=tuple(barriers), smem_bytes=at)


def most_stages(kernel: Kernel, target: Target) -> int:
    """The most stages the ring of a lowered kernel could have beside everything else."""
    assert kernel.smem_bytes is not None
    return _stages_beside(kernel, kernel.smem_bytes, target)


def stages_at_most(kernel: Kernel, target: Target) -> int:
    """The same of a kernel that is not lowered: no fewer, for passes add to what it places, unless D is to be
    cut into pieces."""
    places = (s.bytes for s in kernel.smem)
    barriers = BARRIER_SIZE * sum(b.stages for b in kernel.barriers)
    return _stages_beside(kernel, sum(places) + barriers, target)


def _stages_beside(kernel: Kernel, total: int, target: Target) -> int:
    ring = [s for s in kernel.smem if s.ring]
    per_stage = sum(s.stage_bytes for s in ring) + BARRIER_SIZE * sum(
        b.per == "stage" for b in kernel.barriers
    )
    if not per_stage:
        return kernel.stages
    fixed = total - per_stage * kernel.stages
    return max(0, (target.smem_bytes - fixed) // per_stage)


def _advice(most: int) -> str:
    return f"at most {most} stages" if most else "a smaller tile: no stage fits beside D"


def _align(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment
