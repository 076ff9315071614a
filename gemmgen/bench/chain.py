"""A chain of GEMMs, one after the other in one CUDA graph: as a step of decoding runs them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ir.dtypes import BF16, F16
from ..problem import Problem
from ..runtime.torch_tensors import torch
from . import cases
from .agree import SUMMED, check_near
from .clocks import Log
from .contest import check, reason
from .data import EXACT, Data
from .modes import Call, Method, Step, captured, event, nothing, with_clocks
from .providers import Provider
from .select import FLOOR
from .shapes import Shape
from .timing import FLUSH_BYTES, MARK_BYTES, WARMUP, Samples


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One provider's calls, in order; `linked` of them read what the one before wrote, the others activations of
    their own."""

    calls: tuple[Call, ...]
    linked: int

    def __call__(self) -> Any:
        """All calls, once; what the last returns."""
        return [call() for call in self.calls][-1]


@dataclass(kw_only=True)
class Chains:
    """By provider, its chain, or why it has none."""

    found: dict[str, Chain] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def chains(
    p: Problem,
    shapes: Sequence[Shape],
    entered: Sequence[Sequence[Provider]],
    data: Data,
    *,
    verify: bool,
    step: Step = nothing,
) -> Chains:
    """Of the GEMMs of `shapes`, each with weights of its own. entered: the providers at each shape, everywhere the same
    names. Each is verified at each shape first. One that fails is left out with its error, but for gemmgen, whose
    error is raised. step: called after each."""
    drawn, made = [_case(p, shape, data) for shape in shapes], Chains()
    for each in zip(*entered, strict=True):
        name = each[0].name
        try:
            if verify:
                _verify(p, shapes, each, drawn)
            made.found[name] = chain(each, drawn)
        except Exception as e:  # whatever a foreign library raises
            if each[0].library == "gemmgen":
                raise
            made.left_out[name] = reason(e)
        step()
    return made


def _case(p: Problem, shape: Shape, data: Data) -> cases.Case:
    """Whose product is about as large as its A, where the next may read it."""
    case = cases.make(p, shape, data)
    if p.d == p.a and p.a in (BF16, F16) and not p.form:
        case.b.mul_(shape[-1] ** -0.5)
    return case


def _verify(
    p: Problem, shapes: Sequence[Shape], each: Sequence[Provider], drawn: Sequence[cases.Case]
) -> None:
    for provider, shape, case in zip(each, shapes, drawn, strict=True):
        check(provider, cases.make(p, shape, Data(kind=EXACT)), False, exact=True)
        check(provider, case, False, exact=False)


def chain(each: Sequence[Provider], drawn: Sequence[cases.Case]) -> Chain:
    """Of providers, one to a GEMM: where what the one before writes is what A of this one could be, it is."""
    calls: list[Call] = []
    linked, before = 0, None
    for provider, case in zip(each, drawn, strict=True):
        if before is not None and _fits(before, case):
            case, linked = replace(case, a=before), linked + 1
        calls.append(provider.make(case, False))
        before = _lasting(calls[-1])
    return Chain(calls=tuple(calls), linked=linked)


def _lasting(call: Call) -> Any:
    """The tensor that every call writes, None if each has one of its own."""
    one, other = call(), call()
    lasting = isinstance(one, torch().Tensor) and one.data_ptr() == other.data_ptr()
    return one if lasting else None


def _fits(d: Any, case: cases.Case) -> bool:
    a = case.a
    same = d.dtype == a.dtype and tuple(d.shape) == tuple(a.shape) and d.is_contiguous()
    return same and not case.problem.mn_major[0]


def graphs(found: Mapping[str, Chain], *, verify: bool, step: Step = nothing) -> dict[str, Call]:
    """Each chain captured in a graph, and replayed once: with the result that its calls had by themselves. step: called
    after each. Raises VerificationError."""
    made: dict[str, Call] = {}
    for name, each in found.items():
        last = _lasting(each.calls[-1])
        checked = verify and name != FLOOR and last is not None
        want = _once(each, last) if checked else None
        made[name] = captured(each, 1)
        if checked:
            last.zero_()  # to which the problem may add
            made[name]()
            torch().cuda.synchronize()
            check_near(last.double(), want, SUMMED)
        step()
    return made


def _once(each: Chain, last: Any) -> Any:
    last.zero_()
    return each().double()


def measure(method: Method, replays: Mapping[str, Call], log: Log) -> dict[str, Samples]:
    """Seconds of every replay, between two events; by turns, before each the L2 is overwritten."""
    size = FLUSH_BYTES if method.cold == "flush" else MARK_BYTES
    flush = torch().empty(size // 4, dtype=torch().int32, device="cuda")
    seconds: dict[str, list[float]] = {name: [] for name in replays}
    began = time.monotonic()
    for turn in range(WARMUP + method.repeats):
        for name, replay in replays.items():
            torch().cuda.synchronize()
            flush.bitwise_not_()  # the host queues what follows meanwhile
            start = event()
            replay()
            end = event()
            end.synchronize()
            if turn >= WARMUP:
                seconds[name].append(float(start.elapsed_time(end)) * 1e-3)
    window = ((began, time.monotonic()),)
    samples = {name: Samples(seconds=tuple(s), kernels=()) for name, s in seconds.items()}
    return with_clocks(samples, dict.fromkeys(samples, window), log)
