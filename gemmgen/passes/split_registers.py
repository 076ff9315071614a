"""Divide the register file between the producer and the consumers."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.expr import (
    APPROXIMATE,
    Expr,
    InGroup,
    PerColumn,
    PerElement,
    PerRow,
    arguments,
    calls,
    functions,
)
from ..ir.nodes import Evaluate, Kernel, Mma, PerSplit, Role, SetRegisters, ShareScales, StageTile
from ..ir.promotion import PROMOTION
from ..ir.rewrite import walk
from ..target import Target

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
WORKING_SET = 26  # addresses, loop state and scales; ptxas spills when less is left
DERIVING = 32  # what a producer needs that derives tensor maps: 24 spill
# Beside a second wave's accumulators, measured: cubins with less spill. erff's constants, and another
# approximation of column values after promotion.
ERF, APPROXIMATION = 60, 25
# The same where tiles are promoted in parts: tensors that an epilogue reads; a group's own columns where each row
# has its group, and integers that a lone consumer converts.
OF_PARTS, MORE_OF_PARTS = 16, 48
PROMOTED_ERF = 8  # in one wave, after promotion: 128x200 and 128x208 spilled up to 48 bytes with NVRTC 13.0, 128x192 none
# Of erf of erf: in one wave 3 compiled in 128x128, not in 128x144; 6 in 128x64, not in 128x96.
OF_ERF, EACH_ERF = 116, 9
# Beside a second wave's, for values per column, and where one per row is not alone: of 16-bit outputs 168 columns
# spilled, 160 did not; of a second value per row 144 spilled, 136 did not.
COLUMN_VALUES, MORE_ROWS = 5, 28
OWN_ROWS = 14  # where rows have groups, and D of tiles taken in turns leaves in pieces: 128x192 spilled with 232, not 240
# Where CTAs divide K and one goes on with the sum of all, ptxas overlaps more, and the epilogue's values do not take
# the accumulators' places: with less spare, largest tiles spilled up to 88 bytes.
DIVIDING = 72
CONVERTING = 56  # more where a lone consumer promotes integers: 64x128 spilled 4 bytes
OWN_COLUMNS = (
    36  # where a copied loop's INT8 has them, each row its group's: 128x160 spilled 16 bytes
)
COPYING = 8  # more for INT8's sums where the K loop is copied: 256x160 in parts spilled 48 bytes
# For each piece of a wave's D whose rows have 32 bytes, beside another wave's accumulators: ptxas works their places out
# ahead. 160 columns of FP32 in 20 pieces compile, 168 in 21 spilled 68 bytes, 192 in 24 1052.
NARROW, NARROW_PIECE = 32, 2.4
# Of each accumulator, what ptxas loads ahead for each tensor that an epilogue reads where a quantised wave's values are
# all held, and beside a function: 64x256 of one tensor compiled, of two, or with SiLU, spilled up to 128 bytes.
HELD, HELD_CALLS = 0.55, 40
# Of pairs of columns of a row's own group: a lone consumer's 224 compiled, 240 spilled 64 bytes with NVRTC 13.0.
HELD_PAIRS = 0.93
LANE_COLUMNS = 4  # a lane holds every fourth of the accumulator's columns, in pairs


def split_registers(kernel: Kernel, target: Target) -> Kernel:
    """Two consumers: 40/232, or 24/240 where the accumulators need it. One consumer: the launch
    already gives every thread the most it can have, and nothing moves. Sets Role.registers and
    inserts SetRegisters."""
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
    _check_pool(kernel, launch, target)
    return _check_budget(kernel)


def fit_at_most(kernel: Kernel, target: Target) -> bool:
    """Whether the arrays of a kernel that is not lowered may fit. Where not even they do, nothing does: passes
    add to them, and a producer is left with no less than SMALL_PRODUCER."""
    launch = _launch(kernel, target)
    if None not in (r.registers for r in kernel.roles):
        return True
    most = target.registers_per_thread
    if launch < most:
        most = _consumer(kernel, launch, SMALL_PRODUCER)
    return all(_arrays(r) + WORKING_SET <= most for r in kernel.roles if r.locals)


def _launch(kernel: Kernel, target: Target) -> int:
    """Registers per thread before any are moved."""
    return target.registers_per_sm // kernel.threads // 8 * 8


def _consumer(kernel: Kernel, launch: int, producer: int) -> int:
    """Registers per thread of a consumer where a producer's has so many."""
    pool = launch * len(range(0, kernel.threads, 128))
    return (pool - producer) // kernel.consumer.count // 8 * 8


def _split(kernel: Kernel, launch: int) -> dict[str, int]:
    need = max(_arrays(r) + _beside(kernel, r) + WORKING_SET for r in kernel.roles)
    for producer in (LARGE_PRODUCER, *(SMALL_PRODUCER,) * (not _derives(kernel))):
        consumer = _consumer(kernel, launch, producer)
        if consumer >= need:
            break
    return {"producer": producer, "consumer": consumer}


def _derives(kernel: Kernel) -> bool:
    return any(m.derived for m in kernel.maps)


def _with(kernel: Kernel, registers: dict[str, int], *, move: bool) -> Kernel:
    launch_gives_less = {"producer": "dec", "consumer": "inc"}

    def role(r: Role) -> Role:
        count = registers[r.name]
        first = SetRegisters(direction=launch_gives_less[r.name], count=count)  # type: ignore[arg-type]
        return replace(r, registers=count, body=(first, *r.body) if move else r.body)

    return replace(kernel, roles=tuple(map(role, kernel.roles)))


def _arrays(role: Role) -> int:
    """Scales that lanes share stand where a load of them had its address: no cubin spilled sooner."""
    shared = {s.dst for s in walk(role.body) if isinstance(s, ShareScales)}
    return sum(r.count for r in role.locals if not r.transient and r.name not in shared)


def _beside(kernel: Kernel, role: Role) -> int:
    """Registers a role needs beside its arrays: its epilogue's, and what dividing K adds."""
    transient = sum(r.count for r in role.locals if r.transient)
    dividing = max(DIVIDING, transient)
    floats = any(not r.dtype.integer for r in role.locals)
    if kernel.consumers == 1 and kernel.instr.d.integer and floats:
        dividing += CONVERTING
    copied = any(isinstance(x, PerSplit) for x in walk(role.body))
    copies = (COPYING + _own_columns(role)) * (kernel.instr.d.integer and copied)
    divided = dividing * (kernel.cluster.k > 1 and bool(role.locals))
    return _epilogue(kernel, role) + copies + divided + _of_pieces(kernel, role)


def _own_columns(role: Role) -> int:
    values = [s.value for s in walk(role.body) if isinstance(s, StageTile | Evaluate)]
    own = [v for v in values if isinstance(v, InGroup)]
    return OWN_COLUMNS * any(isinstance(x, PerColumn) for v in own for x in arguments(v))


def _of_pieces(kernel: Kernel, role: Role) -> int:
    staged = [s for s in walk(role.body) if isinstance(s, StageTile)]
    waves = len({s.wave for s in staged})
    pieces = len(staged) // max(1, waves)
    if waves < 2 or pieces < 2:
        return 0
    own = role.turns > 1 and any(isinstance(s.value, InGroup) for s in staged)
    narrow = kernel.buffer("smem_d").slab_bytes <= NARROW
    return OWN_ROWS * own + round(NARROW_PIECE * pieces * narrow)


def _epilogue(kernel: Kernel, role: Role) -> int:
    """Registers an epilogue needs beside the role's arrays. In one wave each value takes the place of an
    accumulator that is already stored; a second wave's accumulators are all still there. Before erf,
    ptxas turns all integers into floats."""
    evaluated = [s for s in walk(role.body) if isinstance(s, Evaluate)]
    staged = [s for s in walk(role.body) if isinstance(s, StageTile)]
    waves = tuple(
        {s.wave: s for s in evaluated or staged}.values()
    )  # a wave may be staged in pieces
    if not waves:
        return 0
    called = functions(waves[0].value)
    sources = [r for r in role.locals if r.name in {s.src for s in waves}]
    floats = sum(r.count for r in sources if r.dtype.integer and "erf" in called)
    held = _held(kernel, role, waves[0].value)
    times = calls(waves[0].value, "erf")
    erf = OF_ERF + EACH_ERF * times if times > 1 else ERF * times
    if len(waves) == 1:
        # Of one erf alone accumulators that are stored make room, and of the gates of values that are all held.
        promotes = any(isinstance(s, PROMOTION) for s in walk(role.body))
        erf = erf if times > 1 or floats else PROMOTED_ERF * (times * promotes)
        floats *= not (evaluated and kernel.block.fold > 1)
        return floats + erf + max(held, _of_parts(kernel, role, waves[0].value))
    read, lane = arguments(waves[0].value), 2 * sources[0].count // LANE_COLUMNS
    of_columns = {"m": PerColumn, "n": PerRow}[kernel.buffer("smem_d").along]
    columns = sum(isinstance(x, of_columns) for x in read)
    rows = sum(isinstance(x, PerColumn | PerRow) for x in read) - columns
    both = (COLUMN_VALUES + MORE_ROWS * max(0, rows - 1)) * (columns > 0)
    # Promotion's, which the epilogue may take.
    spare = _arrays(role) - sum(r.count for r in sources)
    pairs = max(0, lane * sum(isinstance(x, PerElement) for x in read) - spare)
    approximates = columns > 0 and spare > 0 and not APPROXIMATE.isdisjoint(called)
    approximate = APPROXIMATION if approximates else 0
    floats += max(approximate, erf)
    return floats + columns * lane + both + pairs + held


def _held(kernel: Kernel, role: Role, value: Expr) -> int:
    """Registers of what is read ahead of values that a wave holds, as far as promotion's do not take them: those are
    free in the first wave."""
    staged = [s for s in walk(role.body) if isinstance(s, StageTile | Evaluate)]
    accumulators = max((r.count for r in role.locals if r.name == staged[0].src), default=0)
    read = arguments(value)
    tensors = sum(isinstance(x, PerElement) for x in read)
    ahead = 0.0
    if any(isinstance(s, Evaluate) for s in staged):
        ahead += HELD * tensors * accumulators
        ahead += HELD_CALLS * (tensors > 0 and bool(functions(value)))
    promotes = any(isinstance(s, PROMOTION) for s in walk(role.body))
    if isinstance(value, InGroup) and any(isinstance(x, PerColumn) for x in read):
        ahead += HELD_PAIRS * accumulators * (kernel.block.fold > 1 and not promotes)
    waves = len({s.wave for s in staged})
    spare = _arrays(role) - accumulators if waves == 1 else 0
    return max(0, round(ahead) - spare)


def _of_parts(kernel: Kernel, role: Role, value: Expr) -> int:
    if not any(isinstance(s, Mma) and s.part for s in walk(role.body)):
        return 0
    converts = kernel.instr.d.integer and kernel.consumers == 1
    kinds = {type(x) for x in arguments(value)}
    columns = isinstance(value, InGroup) and PerColumn in kinds and PerRow not in kinds
    held = any(isinstance(s, Evaluate) for s in walk(role.body))
    more = converts or (columns and not held)
    return OF_PARTS * (PerElement in kinds or (columns and held)) + MORE_OF_PARTS * more


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


def _check_budget(kernel: Kernel) -> Kernel:
    for r in kernel.roles:
        arrays, epilogue, have = _arrays(r), _beside(kernel, r), r.registers or 0
        if not arrays and _derives(kernel) and have < DERIVING:
            values = {"role": r.name, "working": DERIVING, "registers": have}
            raise IllegalConfig(REGISTER_BUDGET, values, "Use registers=null to choose.")
        if arrays and arrays + epilogue + WORKING_SET > have:
            values = {"role": r.name, "arrays": arrays, "epilogue": epilogue}
            values |= {"working": WORKING_SET, "registers": have}
            raise IllegalConfig(REGISTER_BUDGET, values, "Use a smaller tile or more consumers.")
    return kernel
