"""The providers of one shape: their calls over every copy of the inputs, each verified first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import Config
from ..errors import GemmgenError, VerificationError
from ..ir.dtypes import DTYPES, DType
from ..ir.expr import ACC
from ..ir.groupings import GROUPINGS, OF_SIZES
from ..problem import Problem
from ..runtime.torch_tensors import torch, torch_dtype
from ..verification.groups import owned
from . import cases
from .agree import FAST, SUMMED, check_exact, check_near
from .data import EXACT, Data
from .grouped import ALONE
from .grouped import calls as grouped_calls
from .modes import Call, Method, Step, captured, nothing
from .providers import Provider, scaling_of
from .read import Reading
from .select import FLOOR
from .shapes import Shape, depths_of, rows_of
from .work import work


@dataclass(kw_only=True)
class Contest:
    """turns: by provider, its call over each copy of the inputs. left_out: by provider, why not."""

    turns: dict[str, list[Call]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def single(
    p: Problem,
    shape: Shape,
    providers: Sequence[Provider],
    method: Method,
    data: Data,
    *,
    verify: bool,
    step: Step = nothing,
) -> Contest:
    """Of one GEMM. A provider that fails is left out with its error, but for gemmgen, whose error is raised. step: called
    after each."""
    count = copies(p, shape, method, len(providers))
    drawn = [cases.make(p, shape, data) for _ in range(count)]
    contest, exact = Contest(), cases.make(p, shape, Data(kind=EXACT)) if verify else None
    for provider in providers:
        try:
            if exact is not None:
                check(provider, exact, method.fresh, exact=True)
                check(provider, drawn[0], method.fresh, exact=False)
            calls = [provider.make(c, method.fresh) for c in drawn]
            _try(method, calls[0])
            contest.turns[provider.name] = calls
        except Exception as e:  # whatever a foreign library raises
            if provider.library == "gemmgen":
                raise
            contest.left_out[provider.name] = reason(e)
        step()
    return contest


def _try(method: Method, call: Call) -> None:
    """Once, and captured where that is what will be timed, so that what fails fails now."""
    call()
    torch().cuda.synchronize()
    if method.mode == "cudagraph":
        captured(call, 1)


def copies(p: Problem, shape: Shape, method: Method, providers: int) -> int:
    """Sets of inputs that the providers share."""
    if method.cold != "rotate":
        return 1
    l2 = torch().cuda.get_device_properties(0).L2_cache_size
    return cases.copies(work(p, shape).inputs, l2, providers)


def reason(e: Exception) -> str:
    """What a table says of a provider that failed."""
    if isinstance(e, VerificationError):
        return f"wrong result: {e}"
    text = str(e).strip().splitlines()
    kind = "" if isinstance(e, GemmgenError) else f"{type(e).__name__}: "
    return f"fails: {kind}{text[0] if text else ''}"


def check(provider: Provider, case: cases.Case, fresh: bool, *, exact: bool) -> None:
    """Call once and compare with the product in float64. Raises VerificationError. An FP8 output with
    scales, which only gemmgen has, is not compared here; of the floor the sum of what it reads is."""
    call = provider.make(case, fresh)
    if isinstance(call, Reading):
        return call.check()
    got = call()
    torch().cuda.synchronize()
    if isinstance(got, tuple):
        return
    want = cases.product(case, scaling_of(provider, case.problem))
    want = cases.finished(case, want) if provider.whole else want
    rounds = provider.whole and not cases.exactly(case.problem.epilogue)
    if exact and not rounds:
        check_exact(got.double(), want, dtype_of(got))
    else:
        check_near(got.double(), want, FAST if provider.fast(case.problem) else SUMMED)


def dtype_of(tensor: Any) -> DType:
    return next(t for t in DTYPES.values() if torch_dtype(t) == tensor.dtype)


def grouped(
    p: Problem,
    shape: Shape,
    config: Config,
    names: Sequence[str],
    method: Method,
    data: Data,
    *,
    verify: bool,
    step: Step = nothing,
) -> Contest:
    """Of a grouped launch: those of `names`, verified where they compute the same. step: called after each."""
    contest = Contest()
    drawn = [
        grouped_calls(p, shape, config, data, method.fresh, floor=FLOOR in names)
        for _ in range(copies(p, shape, method, len(names)))
    ]
    for name in names:
        try:
            same = p.epilogue == ACC and name != "gemmgen" and not name.endswith(ALONE)
            if isinstance(reading := drawn[0][name], Reading):
                reading.check()
            elif verify and same:
                _same(p, shape, drawn[0]["gemmgen"](), drawn[0][name]())
            _try(method, drawn[0][name])
            contest.turns[name] = [calls[name] for calls in drawn]
        except Exception as e:  # whatever torch raises
            if name == "gemmgen":
                raise
            contest.left_out[name] = reason(e)
        step()
    return contest


def _same(p: Problem, shape: Shape, ours: Any, theirs: Any) -> None:
    """Compares what belongs to a group. Raises VerificationError. An FP8 output with scales is not compared."""
    if isinstance(ours, tuple):
        return
    m, split = ours.shape[-2], bool(GROUPINGS[p.grouping].depths)
    sizes = depths_of(shape[0], shape[3]) if split else rows_of(p, shape[0], shape[1])
    layout = OF_SIZES[p.grouping](sum(sizes) if split else m, list(sizes), p.alignment)
    mine = owned(p, m, layout, 0)
    rows = torch().from_numpy(mine).to(ours.device)
    got, want = (x.reshape(-1, x.shape[-1])[rows].float() for x in (theirs, ours))
    check_near(got, want, SUMMED)
