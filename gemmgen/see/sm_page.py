"""What a kernel takes of an SM, drawn: its shared memory and its registers, another kernel's below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..ir.nodes import Kernel
from ..ir.text import smem_map
from ..target import Target
from .kernel_page import registers, shared_memory
from .page import Bar, Lane, Lanes, Page, count

Part = tuple[int, int, str, str]  # first, end, of what, in more words
Named = tuple[str, Kernel]
MARKS = "abcdefghijklmnopqrstuvwxyz"


def page(kernels: Sequence[Named], target: Target) -> Page:
    """kernels: lowered, with what a reader calls them. The tables are of the first."""
    (_, first), *_ = kernels
    return Page(
        title=f"What {first.name} takes of an SM",
        blocks=(
            _map("Map of shared memory", "bytes", kernels, target, target.smem_bytes, _memory),
            shared_memory(first, target),
            _map(
                *("Register file", "registers", kernels, target),
                *(target.registers_per_sm, _registers),
            ),
            registers(first, target),
        ),
    )


def _memory(kernel: Kernel, target: Target) -> Iterator[Part]:
    for first, end, what in smem_map(kernel):
        yield first, end, what.split()[0], f"{what}, from {count(first)} on"


def _registers(kernel: Kernel, target: Target) -> Iterator[Part]:
    """Once setmaxnreg has shared them out."""
    first = 0
    for r in kernel.roles:
        threads = r.count * target.warpgroup
        end = first + threads * (r.registers or 0)
        yield first, end, r.name, f"{r.name}: {threads} threads of {r.registers}"
        first = end


def _map(
    title: str,
    unit: str,
    kernels: Sequence[Named],
    target: Target,
    size: int,
    parts: Callable[[Kernel, Target], Iterator[Part]],
) -> Lanes:
    found = [(name, tuple(parts(kernel, target))) for name, kernel in kernels]
    kinds = {what: i for i, what in enumerate(dict.fromkeys(p[2] for _, ps in found for p in ps))}
    lanes = tuple(
        Lane(name=name, bars=tuple(_bar(p, kinds[p[2]]) for p in of)) for name, of in found
    )
    free = "; ".join(f"{name}: {count(size - max(p[1] for p in of))} free" for name, of in found)
    legend = tuple((MARKS[i % len(MARKS)], i, what) for what, i in kinds.items())
    return Lanes(
        title=title, start=0, end=size, unit=unit, lanes=lanes, legend=legend, note=f"{free}."
    )


def _bar(part: Part, kind: int) -> Bar:
    first, end, what, tip = part
    return Bar(start=first, end=end, mark=MARKS[kind % len(MARKS)], hue=kind, label=what, tip=tip)
