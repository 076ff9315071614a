"""Divide the register file between the producer and the consumers."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Kernel, Role, SetRegisters, TmaLoad
from ..ir.rewrite import walk
from ..levers.direct import BESIDE, CTAS, of_each, sharing
from ..target import Target
from .count_registers import arrays, beside

SETMAXNREG_VALUE = Rule(
    id="setmaxnreg-value",
    says="setmaxnreg takes multiples of 8 from 24 to 256",
    because="PTX ISA, setmaxnreg.",
)
SETMAXNREG_DIRECTION = Rule(
    id="setmaxnreg-direction",
    says="the producer may only give registers up, the consumers only take them",
    because="setmaxnreg.dec above and setmaxnreg.inc below what a thread has at launch are undefined.",
)
REGISTER_FILE = Rule(
    id="register-file",
    says="all warpgroups' registers must fit what the launch reserved",
    because="setmaxnreg moves registers within the CTA's pool of floor(65536 / threads) per thread; "
    "an increase beyond it waits for ever.",
)
REGISTER_BUDGET = Rule(
    id="register-budget",
    says="a role's register arrays, its epilogue's values and its working set must fit its registers",
    because="What does not fit is spilled to local memory, and the build refuses spills.",
)
LAUNCH_REGISTERS = Rule(
    id="launch-registers",
    says="a wgmma's accumulators and 28 registers beside them must fit what a thread has at launch",
    because="ptxas allots one instruction's registers from those of the launch, whatever setmaxnreg adds: with 128, as "
    "beside three consumers, NVRTC 12.9, 13.0 and 13.5 compile 200 columns and refuse 208 (C7602).",
)
RULES = (SETMAXNREG_VALUE, SETMAXNREG_DIRECTION, REGISTER_FILE, LAUNCH_REGISTERS, REGISTER_BUDGET)

BESIDE_WGMMA = 28  # of LAUNCH_REGISTERS
LARGE_PRODUCER, SMALL_PRODUCER = 40, 24  # what a producer is left with
# Where a watchdog watches it issue more than MANY loads a stage: 16 of a transposed A's spilled 144 bytes beside 40;
# beside 32, without a watchdog, 16.
WATCHED_PRODUCER, MANY = 56, 8
# What a kernel that loads its operands into registers needs more where they are of 8 bits, which it converts: of three K blocks of FP8 with
# block scales in 128 registers NVRTC 13.0 spilled 68 bytes.
HALVES = 8
WORKING_SET = 26  # addresses, loop state and scales; ptxas spills when less is left
DERIVING = 32  # what a producer needs that derives tensor maps: 24 spill
# Less than this is left to a watched producer only where consumers need the rest: of 77 with 24 five spilled.
WATCHED = 32
# More is left, where it is there, to a walk that looks for where groups begin: 128x192 spilled up to 124 bytes with 232
# registers, none with 240.
LOOKING = 12


def split_registers(kernel: Kernel, target: Target) -> Kernel:
    """Two consumers: 40/232, or 24/240 where the accumulators need it. One consumer: the launch
    already gives every thread the most it can have, and nothing moves. Sets Role.registers and
    inserts SetRegisters. Without a producer: as many CTAs share an SM as its registers and shared memory take; sets Kernel.per_sm."""
    if not kernel.ring:
        return _share_sm(kernel, target)
    launch = _launch(kernel, target)
    _check_launch(kernel, launch, target)
    asked = tuple(r.registers for r in kernel.roles)
    if None in asked:
        if launch >= target.registers_per_thread:
            return _check_budget(
                _with(
                    kernel, {r.name: target.registers_per_thread for r in kernel.roles}, move=False
                )
            )
        kernel = _with(kernel, _split(kernel, launch), move=True)
    else:
        kernel = _with(kernel, {r.name: r.registers or 0 for r in kernel.roles}, move=True)
        _check_named(kernel)
    _check_pool(kernel, launch, target)
    return _check_budget(kernel)


def _share_sm(kernel: Kernel, target: Target) -> Kernel:
    (role,) = kernel.roles
    need = arrays(role) + beside(kernel, role) + BESIDE + HALVES * (kernel.instr.a.bits == 8)
    smem = (kernel.smem_bytes or 0) + target.smem_system
    most = min(target.smem_per_sm // smem, target.threads_per_sm // kernel.threads, CTAS)
    per_sm = sharing(need, kernel.threads, target, most)
    each = of_each(per_sm, kernel.threads, target)
    kernel = _with(kernel, {role.name: each}, move=False)
    return _check_budget(replace(kernel, per_sm=per_sm))


def fit_at_most(kernel: Kernel, target: Target) -> bool:
    """Whether the arrays of a kernel that is not lowered may fit. Where not even they do, nothing does: passes
    add to them, and a producer is left with no less than SMALL_PRODUCER."""
    launch = _launch(kernel, target)
    if None not in (r.registers for r in kernel.roles):
        return True
    most = target.registers_per_thread
    if launch < most:
        most = _consumer(kernel, launch, SMALL_PRODUCER)
    return all(arrays(r) + WORKING_SET <= most for r in kernel.roles if r.locals)


def _launch(kernel: Kernel, target: Target) -> int:
    """Registers per thread before any are moved."""
    return target.registers_per_sm // kernel.threads // 8 * 8


def _consumer(kernel: Kernel, launch: int, producer: int) -> int:
    """Registers per thread of a consumer where a producer's has so many."""
    pool = launch * len(range(0, kernel.threads, 128))
    return (pool - producer) // kernel.consumer.count // 8 * 8


def _split(kernel: Kernel, launch: int) -> dict[str, int]:
    need = max(arrays(r) + beside(kernel, r) + WORKING_SET for r in kernel.roles)
    need += LOOKING * (kernel.groups.ragged and kernel.groups.step > 0)
    watched = (WATCHED_PRODUCER,) * (kernel.watchdog and _loads(kernel) > MANY)
    for producer in (*watched, LARGE_PRODUCER, *(SMALL_PRODUCER,) * (not _derives(kernel))):
        consumer = _consumer(kernel, launch, producer)
        if consumer >= need:
            break
    return {"producer": producer, "consumer": consumer}


def _derives(kernel: Kernel) -> bool:
    return any(m.derived for m in kernel.maps)


def _loads(kernel: Kernel) -> int:
    """Of one pipeline stage."""
    return sum(isinstance(s, TmaLoad) for r in kernel.roles for s in walk(r.body))


def _with(kernel: Kernel, registers: dict[str, int], *, move: bool) -> Kernel:
    launch_gives_less = {"producer": "dec", "consumer": "inc"}

    def role(r: Role) -> Role:
        count = registers[r.name]
        first = SetRegisters(direction=launch_gives_less[r.name], count=count)  # type: ignore[arg-type]
        return replace(r, registers=count, body=(first, *r.body) if move else r.body)

    return replace(kernel, roles=tuple(map(role, kernel.roles)))


def _check_launch(kernel: Kernel, launch: int, target: Target) -> None:
    accumulators = target.wgmma_m * kernel.instr.n // target.warpgroup
    if accumulators + BESIDE_WGMMA > launch:
        values = {"accumulators": accumulators, "beside": BESIDE_WGMMA, "launch": launch}
        raise IllegalConfig(
            LAUNCH_REGISTERS, values, "Use fewer columns, parts=2 or two consumers."
        )


def _check_pool(kernel: Kernel, launch: int, target: Target) -> None:
    for r in kernel.roles:
        count = r.registers or 0
        legal = target.setmaxnreg_min <= count <= target.setmaxnreg_max
        if not legal or count % target.setmaxnreg_step:
            values = {"role": r.name, "registers": count}
            raise IllegalConfig(SETMAXNREG_VALUE, values, "Use registers=null to choose.")
    producer, consumer = (
        next(r.registers or 0 for r in kernel.roles if r.name == name)
        for name in ("producer", "consumer")
    )
    if not producer <= launch <= consumer:
        values = {"producer": producer, "launch": launch, "consumer": consumer}
        raise IllegalConfig(SETMAXNREG_DIRECTION, values, "Use registers=null to choose.")
    pool = launch * kernel.threads
    used = sum(target.warpgroup * r.count * (r.registers or 0) for r in kernel.roles)
    if used > pool:
        values = {"registers": used, "pool": pool}
        raise IllegalConfig(REGISTER_FILE, values, "Use registers=null to choose.")


def _check_named(kernel: Kernel) -> None:
    role = next(r for r in kernel.roles if r.name == "producer")
    many = _loads(kernel) > MANY
    watched = WATCHED_PRODUCER if many else WATCHED
    need = watched if kernel.watchdog else LARGE_PRODUCER if many else 0
    if (role.registers or 0) < need:
        values = {"role": role.name, "working": need, "registers": role.registers or 0}
        raise IllegalConfig(REGISTER_BUDGET, values, "Use registers=null to choose.")


def _check_budget(kernel: Kernel) -> Kernel:
    for r in kernel.roles:
        held, epilogue, have = arrays(r), beside(kernel, r), r.registers or 0
        if not held and _derives(kernel) and have < DERIVING:
            values = {"role": r.name, "working": DERIVING, "registers": have}
            raise IllegalConfig(REGISTER_BUDGET, values, "Use registers=null to choose.")
        if held and held + epilogue + WORKING_SET > have:
            values = {"role": r.name, "arrays": held, "epilogue": epilogue}
            values |= {"working": WORKING_SET, "registers": have}
            raise IllegalConfig(REGISTER_BUDGET, values, "Use a smaller tile or more consumers.")
    return kernel
