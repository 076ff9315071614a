"""What a mutant is, and how it becomes a kernel to put on trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from exhibits import exhibit
from kernels import DENSE, FP8, VARIETY

from gemmgen import passes
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.families import build
from gemmgen.ir.nodes import Kernel
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.tensor_map import Description
from gemmgen.target import H200

Change = Callable[[Kernel], Kernel]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault. Exactly one of the changes is set.

    family: before the passes, which then work on the fault. ir: in the lowered kernel, which is
    proved and emitted. text: in the emitted source; the IR, and so the proof, stay right. describe:
    in the tensor map of the tensor named. host: (module, old, new) in the runtime's own text.
    expected: the nets that should find it, by letter. reason: what the first of them should say of it, a
    regular expression ("": what mutation/reasons.py has). hangs: running out of time finds it.
    """

    id: str
    kernel: str
    says: str
    expected: str = ""
    reason: str = ""
    hangs: bool = False
    family: Change | None = None
    ir: Change | None = None
    text: Callable[[str], str] | None = None
    describe: tuple[str, Callable[[Description], Description]] | None = None
    host: tuple[str, str, str] | None = None

    @property
    def layer(self) -> str:
        return next(x for x in ("family", "ir", "text", "describe", "host") if getattr(self, x))


@dataclass(frozen=True, kw_only=True)
class Built:
    """A kernel on trial: `meant` is the right one, `kernel` and `source` what the fault made of it."""

    problem: Problem
    meant: Kernel
    kernel: Kernel
    source: str


def original(name: str) -> Built:
    """A kernel without a fault, of the gallery or of VARIETY. The source's header is left out: it names the IR's hash."""
    return _original(name)


@cache
def _original(name: str) -> Built:
    problem, config = asked(name)
    kernel = lower(problem, config)
    return Built(problem=problem, meant=kernel, kernel=kernel, source=emit(kernel))


# Which several GPUs launch together.
OF_RANKS = {
    "dense-outbox": (
        replace(DENSE, collective="reduce_scatter"),
        Config(block_m=64, block_n=32, consumers=1, stages=3, outbox=True),
    ),
}


BY_INDEX = {
    "fp8-indexed": (
        replace(FP8, grouping="ends", indexed=True),
        Config(block_m=64, block_n=32, consumers=1, stages=4),
    ),
}


def asked(name: str) -> tuple[Problem, Config]:
    e = exhibit(name)
    return (e.problem, e.config) if e else (OF_RANKS | BY_INDEX | VARIETY)[name]


def mutated_kernel(m: Mutant) -> Kernel:
    """The lowered kernel with the fault in it, if it is one of the IR. Raises what the passes raise."""
    if m.family:
        problem, config = asked(m.kernel)
        values = {**vars(config), "stamps": 0}
        return passes.run(m.family(build(problem, config)), H200, values)
    kernel = original(m.kernel).kernel
    return m.ir(kernel) if m.ir else kernel


def mutated_source(m: Mutant, kernel: Kernel) -> str:
    if m.family or m.ir:
        return emit(kernel)
    source = original(m.kernel).source
    if not m.text:
        return source
    changed = m.text(source)
    assert changed != source, f"{m.id} changes nothing"
    return changed


def edit(*pairs: tuple[str, str], count: int = 1, after: str = "") -> Callable[[str], str]:
    """Replace the first `count` (0: all) occurrences of each text after the marker `after`."""

    def change(source: str) -> str:
        for old, new in pairs:
            start = source.index(after) if after else 0
            head, tail = source[:start], source[start:]
            assert old in tail, f"not in the source: {old!r}"
            source = head + (tail.replace(old, new, count) if count else tail.replace(old, new))
        return source

    return change


def launch_facts(kernel: Kernel) -> tuple[Any, ...]:
    """What a launch takes from the IR besides the code."""
    buffers = tuple((s.name, s.dtype, s.swizzle) for s in kernel.smem)
    given = (kernel.maps, kernel.pointed, kernel.params, buffers)
    return *given, kernel.smem_bytes, kernel.threads, kernel.per_sm, kernel.cluster
