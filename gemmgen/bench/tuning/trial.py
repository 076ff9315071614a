"""The GPU's side of tuning: one process that verifies a candidate, and times candidates by turns.

Whatever goes wrong here may have left the CUDA context unusable, so the process ends with it (`fragile`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import ops
from ...config import Config
from ...ir.indices import SOURCES
from ...ir.launchable import Launchable
from ...pipeline import lower
from ...problem import Problem
from ...runtime import driver
from ...runtime.gpu import Uploaded, plan_over, upload
from ...runtime.launch import LoadedKernel
from ...runtime.nvrtc import Cubin
from ...runtime.torch_engine import TorchEngine
from ...runtime.torch_tensors import torch
from ...verification.guarded import POISONS, Buffer, Guarded
from ...verification.inputs import Operands, exact_integers
from ...verification.trial import Pitches, check_launch, output, pitches
from .. import read, sources
from ..timing import Samples, interleave
from .jobs import Job, launch, verified
from .operands import draw, draw_codes, one_column

HANDLER = "gemmgen.bench.tuning.trial:Trial"
LAUNCHES = 2  # to verify: whatever comes and goes shows as two results
DEVICE = 0


@dataclass(frozen=True, kw_only=True)
class Verify:
    """A request: launch this kernel and compare every bit. Answered by None."""

    job: Job
    config: Config
    cubin: Path
    sms: int | None = None  # that the launch takes at most


@dataclass(frozen=True, kw_only=True)
class Time:
    """A request: these kernels by turns, `repeats` rounds, cold L2. Answered by a `Timing`."""

    job: Job
    kernels: tuple[tuple[Config, Path], ...]
    repeats: int
    reference: bool = False  # the benchmark's too, if it has one for the problem
    sms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A request: of one GEMM of the job's N and K these M, the largest of which is the job's, by turns over the same
    operands, cold L2. Answered by the device seconds of every round, by M."""

    job: Job
    kernels: tuple[tuple[int, Config, Path], ...]
    repeats: int
    sms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reads:
    """A request: read so many bytes of memory, each of `sizes` by turns, `repeats` rounds, cold L2. Answered by the device
    seconds of every round, by size."""

    sizes: tuple[int, ...]
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Device seconds of every round. skipped: why there is no reference."""

    seconds: dict[Config, tuple[float, ...]]
    reference: tuple[str, tuple[float, ...]] | None = None
    skipped: str = ""


class Trial:
    """Handler of Verify, Time, Sweep and Reads. Holds the kernels of one problem, and the tensors of one job."""

    fragile = True

    def __init__(self) -> None:
        driver.require_hopper(DEVICE)
        torch().cuda.init()
        driver.use(DEVICE)
        self._problem: Problem | None = None
        self._programs: dict[Config, LoadedKernel] = {}
        self._bench: Bench | None = None
        self._stage: Stage | None = None

    def __call__(self, request: Verify | Time | Sweep | Reads) -> Any:
        if isinstance(request, Reads):
            return reads(request)
        ops.limit_sms(request.sms)
        if self._problem != request.job.problem:
            self._problem, self._programs = request.job.problem, {}
        if isinstance(request, Sweep):
            return self._sweep(request)
        return self._verify(request) if isinstance(request, Verify) else self._time(request)

    def _verify(self, request: Verify) -> None:
        program = self._program(request.job, request.config, request.cubin)
        job = verified(request.job)
        if self._bench is None or self._bench.job != job:
            self._bench = None  # before the next one's tensors are made
            self._bench = Bench(program.kernel, job)
        self._bench.check(program)

    def _time(self, request: Time) -> Timing:
        programs = {c: self._program(request.job, c, path) for c, path in request.kernels}
        on = self._operands(next(iter(programs.values())).kernel, request.job)
        names = {config: f"candidate {i}" for i, config in enumerate(programs)}
        launches = {names[config]: (program, on) for config, program in programs.items()}
        theirs, skipped = _reference(request) if request.reference else (None, "")
        samples = by_turns(launches, request.repeats, dict([theirs] if theirs else []))
        return Timing(
            seconds={config: samples[name].seconds for config, name in names.items()},
            reference=(theirs[0], samples[theirs[0]].seconds) if theirs else None,
            skipped=skipped,
        )

    def _sweep(self, request: Sweep) -> dict[int, tuple[float, ...]]:
        programs = {m: self._program(request.job, c, path) for m, c, path in request.kernels}
        on = self._operands(next(iter(programs.values())).kernel, request.job)
        p = request.job.problem
        launches = {str(m): (program, first_rows(on, m, p)) for m, program in programs.items()}
        samples = by_turns(launches, request.repeats)
        return {m: samples[str(m)].seconds for m in programs}

    def _operands(self, kernel: Launchable, job: Job) -> Uploaded:
        if self._stage is None or self._stage.job != job:
            self._stage = None
            torch().cuda.empty_cache()
            self._stage = Stage(kernel, job)
        return self._stage.operands

    def _program(self, job: Job, config: Config, path: Path) -> LoadedKernel:
        if config not in self._programs:
            kernel = lower(job.problem, config)
            self._programs[config] = LoadedKernel(kernel, _cubin(kernel, path), DEVICE)
        return self._programs[config]


class Bench:
    """Exact integers in device memory, and the bits that every right kernel leaves."""

    repeats = False

    def __init__(self, kernel: Launchable, job: Job) -> None:
        shape, layout = launch(job)
        self.job = job
        self.engine = TorchEngine()
        self._operands = exact_integers(job.problem, *shape, 0, layout)
        self._strides = pitches(kernel, shape)
        self._output = output(job.problem, self._operands, self._strides)
        where = torch().device("cuda", DEVICE)
        self._before = torch().from_numpy(self._output.poison(POISONS[0])).to(where)
        self._after = self._before.clone()
        at = self._after.data_ptr()
        out = at + self._output.offset, at + self._output.beside_offset
        self._uploaded = upload(self._operands, self._strides, out, where)
        self._right: Any = None

    def check(self, program: LoadedKernel) -> None:
        """Raise VerificationError or LaunchError. A result with the bits of one that was judged is right."""
        workspace, plan = plan_over(program, self._uploaded)
        for _ in range(LAUNCHES):
            self._after.copy_(self._before)
            program.launch(plan)
            program.wait(plan)
            if self._right is None or not torch().equal(self._after, self._right):
                operands = self._operands, self._strides
                check_launch(self, program, program.kernel, self.job.problem, *operands)
                self._right = self._after.clone()
        del workspace

    def execute(
        self, program: Any, operands: Operands, pitches: Pitches, output: Guarded, fill: int
    ) -> Buffer:
        """What the launch in `check` left, as `gemmgen.verification.trial.Machine` has it."""
        after: Buffer = self._after.cpu().numpy().copy()
        return after


class Stage:
    """Operands of a job in device memory: A and B N(0, 1), of packed weights any codes, drawn there. Verification's take the host minutes
    where groups are many."""

    def __init__(self, kernel: Launchable, job: Job) -> None:
        p, shape = job.problem, launch(job)[0]
        self.job = job
        where = torch().device("cuda", DEVICE)
        host, strides = one_column(job), pitches(kernel, shape)
        guarded = output(p, host, strides)
        self._out = torch().zeros(guarded.size, dtype=torch().uint8, device=where)
        at = self._out.data_ptr()
        out = at + guarded.offset, at + guarded.beside_offset
        self.operands = upload(host, strides, out, where)
        draw(self.operands, "a", p.a)
        if p.form:
            draw_codes(self.operands, p.form)
        else:
            draw(self.operands, "b", p.b)


def by_turns(
    launches: Mapping[str, tuple[LoadedKernel, Uploaded]],
    repeats: int,
    others: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, Samples]:
    """Each kernel over its operands, by name, and the other calls, `repeats` rounds, cold L2."""
    calls, workspaces = {}, []
    for name, (program, on) in launches.items():
        workspace, plan = plan_over(program, on)
        workspaces.append(workspace)  # as long as launches need it
        calls[name] = _launching(program, plan)
    return interleave({**calls, **(others or {})}, repeats)


def first_rows(on: Uploaded, m: int, p: Problem) -> Uploaded:
    """The first `m` rows of one GEMM's A and D, and A's scales of them; the rest is shared. sides: whether M is the contiguous one."""
    found, sides = dict(on.bound.matrices), {"a": p.mn_major[0], "d": False, "scale_a": True}
    for name in found.keys() & sides.keys():
        found[name] = replace(found[name], **{"inner" if sides[name] else "outer": m})
    values = {**on.bound.values, "shape_m": m, SOURCES: found["a"].outer}
    bound = replace(on.bound, matrices=found, values=values)
    return replace(on, bound=bound, shape=(m, *on.shape[1:]))


def reads(request: Reads) -> dict[int, tuple[float, ...]]:
    """Beginnings of one tensor. Raises VerificationError if a sum of what was read is wrong."""
    where = torch().device("cuda", DEVICE)
    held = torch().empty(max(request.sizes) // 4, dtype=torch().int32, device=where).random_()
    calls = {str(size): read.over(((held, size),)) for size in request.sizes}
    for call in calls.values():
        call.check()
    samples = interleave(calls, request.repeats)
    return {size: samples[str(size)].seconds for size in request.sizes}


def _reference(request: Time) -> tuple[tuple[str, Callable[[], Any]] | None, str]:
    """torch's GEMM, by name, or why there is none."""
    p, shape = request.job.problem, request.job.shape
    place = shape if p.grouping == "none" else (request.job.groups, *shape)
    try:
        found = sources.torch_call(p, place, request.kernels[0][0])
        return (sources.torch_reference(p), found), ""
    except Exception as e:  # a reference is welcome, not needed
        return None, f"{type(e).__name__}: {e}"


def _launching(program: LoadedKernel, plan: Any) -> Callable[[], Any]:
    return lambda: program.launch(plan)


def _cubin(kernel: Launchable, path: Path) -> Cubin:
    return Cubin(
        name=kernel.name, image=path.read_bytes(), registers=0, spill_bytes=0, stack_bytes=0, barriers=0, seconds=0.0, log=""
    )  # fmt: skip
