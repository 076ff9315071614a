"""One launch of a stamped kernel, on a GPU or the emulator: the rings that it leaves, and what to say of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..errors import ArgumentError, CompileError
from ..ir.groupings import Layout
from ..pipeline import Artifact
from ..runtime import driver, emulated, sms
from ..untrusted import whole
from ..verification.inputs import Operands, random_normal
from ..verification.trial import output, pitches
from . import progress
from .options import Shape

LAUNCHES = 8  # one after the other, so that clocks and caches are those of a kernel at work
REPEATS = 20  # timed launches, each with and without stamps
POISON = 0xFF


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """rings: as templates/stamps.j2 lays them out. facts: names and what they are."""

    rings: bytes
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Device:
    """A CUDA device, or the emulator if `number` is None. sms: that a launch takes at most."""

    number: int | None
    sms: int


def device(asked: str, given_sms: int | None) -> Device:
    """Raises ArgumentError, and RuntimeUnavailable where there is no such Hopper GPU."""
    if asked == "emulator":
        return Device(number=None, sms=given_sms or emulated.SMS)
    number = 0 if asked == "gpu" else whole(asked)
    if number is None:
        allowed = "must be gpu, a CUDA device's number or emulator"
        raise ArgumentError("--device", asked, allowed)
    if given_sms is not None:
        raise ArgumentError("--sms", given_sms, "must not be given with a GPU, which has its own")
    driver.require_hopper(number)
    return Device(number=number, sms=sms.usable(number))


def record(on: Device, a: Artifact, plain: Artifact, shape: Shape, layout: Layout) -> Recorded:
    """Launch `a`, which has stamps, on random operands; `plain` is the same kernel without."""
    operands = random_normal(a.problem, *shape, 0, layout)
    return (
        _emulated(on, a, operands) if on.number is None else _on_gpu(on.number, a, plain, operands)
    )


def _emulated(on: Device, a: Artifact, operands: Operands) -> Recorded:
    with progress.Bar() as bar:
        machine = emulated.EmulatedGpu(sms=on.sms, on_progress=partial(bar.update, "emulating"))
        strides = pitches(a.kernel, operands.shape)
        guarded = output(a.problem, operands, strides)
        program = emulated.prepare(a.kernel, a.source)
        machine.execute(program, operands, strides, guarded, POISON)
    what = (
        "the emulator: its clock counts turns of its schedule, 1000 cycles each, and times nothing"
    )
    return Recorded(rings=machine.stamps[0].tobytes(), facts=(("device", what),))


def _on_gpu(number: int, a: Artifact, plain: Artifact, operands: Operands) -> Recorded:
    from ..bench.timing import interleave
    from ..runtime.cache import cached_cubin
    from ..runtime.gpu import plan_over, prepare, rings
    from ..runtime.launch import LoadedKernel

    bare = LoadedKernel(plain.kernel, cached_cubin(plain.source, a.name), number, plain.source)
    try:
        cubin = cached_cubin(a.source, a.name)
    except CompileError as e:  # which says that registers are spilt, but not for what
        allowed = "needs registers that this config does not leave; unroll=1 or a smaller tile does"
        raise CompileError(f"a build with stamps {allowed}. {e}") from e
    program = LoadedKernel(a.kernel, cubin, number, a.source)
    held, plan = prepare(program, operands, pitches(a.kernel, operands.shape), a.problem.d)
    uploaded, workspace = held[:2]
    for _ in range(LAUNCHES):
        program.launch(plan)
    program.wait(plan)
    found = rings(program, workspace, plan).tobytes()
    beside, without = plan_over(bare, uploaded)
    calls = {"with": lambda: program.launch(plan), "without": lambda: bare.launch(without)}
    times = {name: s.median * 1e6 for name, s in interleave(calls, REPEATS).items()}
    del held, beside
    last = f"the last of {LAUNCHES} launches in a row, over the same operands"
    cost = f"{times['with']:.2f} us with, {times['without']:.2f} us without: medians of {REPEATS} launches, cold L2"
    registers = f"{program.n_regs} at launch with stamps, {bare.n_regs} without; neither spills"
    return Recorded(
        rings=found,
        facts=(
            ("device", driver.require_hopper(number)),
            ("launch", last),
            ("stamps cost", cost),
            ("registers", registers),
        ),
    )
