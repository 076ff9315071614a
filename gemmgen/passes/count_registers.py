"""What a role needs registers for, as far as it is known: its arrays, and what ptxas was seen to need beside them.

The numbers are measured, of the compilers NVRTC 12.9, 13.0 and 13.5 as far as they differ: the most that one of them
spilled without. No pass: `split_registers` asks.
"""

from __future__ import annotations

from ..ir.expr import (
    ACC,
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
from ..ir.nodes import (
    Evaluate,
    ForK,
    Kernel,
    Mma,
    Normalise,
    PerSplit,
    Role,
    ShareScales,
    StageTile,
)
from ..ir.promotion import PROMOTION, Accumulate, promotes
from ..ir.rewrite import walk
from ..ir.stores import reads

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
# the accumulators' places: with less spare, largest tiles spilled up to 88 bytes. Tiles that no ring fills are small.
DIVIDING = 72
# The same of sums that other GPUs send, where nothing is promoted and a D of 16 bits leaves in pieces: 43 kernels that 16 lets through compiled with
# NVRTC 13.0, 128x192 in turns among them, and none spilled.
# A D of 32 bits spilled up to 304 bytes, one that leaves whole 48 (128x176 in turns), promoted tiles 48.
DIVIDING_PIECES = 19
CONVERTING = 56  # more where a lone consumer promotes integers: 64x128 spilled 4 bytes
OWN_COLUMNS = (
    36  # where a copied loop's INT8 has them, each row its group's: 128x160 spilled 16 bytes
)
COPYING = 8  # more for INT8's sums where the K loop is copied: 256x160 in parts spilled 48 bytes
# In two waves whose D leaves in more than two pieces, of a cluster whose sums go to other GPUs: 128x128 of FP32 in four spilled up to
# 128 bytes, in two none; 117 other kernels of such did not.
OF_PEERS = 16
# For each piece of a wave's D whose rows have 32 bytes, beside another wave's accumulators: ptxas works their places out
# ahead. 160 columns of FP32 in 20 pieces compile, 168 in 21 spilled 68 bytes, 192 in 24 1052.
NARROW, NARROW_PIECE = 32, 2.4
# Of each accumulator, what ptxas loads ahead for each tensor that an epilogue reads where a quantised wave's values are
# all held, and beside a function: 64x256 of one tensor compiled, of two, or with SiLU, spilled up to 128 bytes.
HELD, HELD_CALLS = 0.55, 40
# Where each row has its group, for values per column of it, in one wave: beside a function (144 columns compiled, 160
# spilled), beside other values (160, 176), of pairs (176, 192, each of two consumers). Of a bias alone ptxas takes none.
OWN_CALLS, OWN_MORE, OWN_PAIRS = 142, 128, 120
# Less scales' registers, beside one other value after promotion (128x152 compiled with 240 registers, not with 232), and
# beside more (128x136, not 128x144).
OWN_PROMOTED, OWN_THIRD = 62, 10
OWN_PAIRED = 8  # of pairs in two waves: 128x128 compiled, 128x144 spilled 8 bytes
# Of two waves whose D leaves whole, in pieces: 128x128 spilled up to 144 and 56 bytes.
OWN_WHOLE, OWN_PIECES = 52, 28
# In two waves whose values are held for their scales: 128x128 of FP16 into FP8 compiled beside three consumers, with a
# value per row 64 bytes spilled.
HELD_VALUES = 16
# Copies of a K loop that adds unscaled sums up multiply ahead, each into sums of its own: without room for one more
# 24 of 159 spilled up to 2 KiB, but none of 43 with a loop of AS_TUNED copies that no watchdog watches. More copies that
# it watches spilled as much where sums are scaled: 128x144 with 56 to spare, 128x128 with 74 not.
AS_TUNED = 4
# Where columns are scaled: 128x128 of one consumer spilled 8 bytes with 1 to spare.
COPIED_PROMOTED = 8
# Of two waves that one CTA sums in shares, where an epilogue reads a tensor: 256x104 and 128x112 of one consumer spilled up to 16 bytes.
TOTAL_PAIRS = 8
PLACE_OF_ROW = 4  # of sums that are stored from registers
LANE_COLUMNS = 4  # a lane holds every fourth of the accumulator's columns, in pairs


def arrays(role: Role) -> int:
    """Scales that lanes share stand where a load of them had its address: no cubin spilled sooner."""
    shared = {s.dst for s in walk(role.body) if isinstance(s, ShareScales)}
    return sum(r.count for r in role.locals if not r.transient and r.name not in shared)


def beside(kernel: Kernel, role: Role) -> int:
    """Registers a role needs beside its arrays: its epilogue's, and what dividing K adds."""
    transient = sum(r.count for r in role.locals if r.transient)
    dividing = max(DIVIDING_PIECES if _of_peers_pieces(kernel, role) else DIVIDING, transient)
    floats = any(not r.dtype.integer for r in role.locals)
    if kernel.consumers == 1 and kernel.instr.d.integer and floats:
        dividing += CONVERTING
    copied = any(isinstance(x, PerSplit) for x in walk(role.body))
    copies = (COPYING + _own_columns(role)) * (kernel.instr.d.integer and copied)
    divides = kernel.cluster.k > 1 or kernel.scheduler.streams or kernel.peers.slot > 0
    sums = any(isinstance(s, Mma) for s in walk(role.body))
    divided = dividing * (divides and kernel.ring and sums)
    more = _of_copies(kernel, role) + _of_held(role) + _of_sums(kernel, role)
    return _epilogue(kernel, role) + copies + divided + _of_pieces(kernel, role) + more


def _of_peers_pieces(kernel: Kernel, role: Role) -> bool:
    """Whether it adds sums of other GPUs, promotes nothing, and its D has 16 bits and leaves in pieces."""
    if not kernel.peers.slot or any(isinstance(s, PROMOTION) for s in walk(role.body)):
        return False
    staged = [s for s in walk(role.body) if isinstance(s, StageTile)]
    narrow = bool(staged) and kernel.buffer("smem_d").dtype.bytes == 2
    return narrow and len(staged) > len({s.wave for s in staged})


def _of_copies(kernel: Kernel, role: Role) -> int:
    """What an unrolled K loop needs that promotes."""
    loops = [s for s in walk(role.body) if isinstance(s, ForK) and s.unroll > 1]
    promoted = [(x, s.unroll) for s in loops for x in walk(s.body) if isinstance(x, PROMOTION)]
    ahead = {
        x.src
        for x, copies in promoted
        if (isinstance(x, Accumulate) and (copies != AS_TUNED or kernel.watchdog))
        or (kernel.watchdog and copies > AS_TUNED)
    }
    partial = sum(r.count for r in role.locals if r.name in ahead)
    columns = any(promotes(x, "columns") for x, _ in promoted)
    return partial + COPIED_PROMOTED * columns


def _of_held(role: Role) -> int:
    """What the values of a second wave need that are scaled before they are staged."""
    evaluated = [s for s in walk(role.body) if isinstance(s, Evaluate)]
    scaled = any(isinstance(s, Normalise) for s in walk(role.body))
    waves = len({s.wave for s in evaluated})
    promotes = any(isinstance(s, PROMOTION) for s in walk(role.body))
    computed = any(s.value != ACC for s in evaluated)
    return HELD_VALUES * (scaled and computed and waves > 1 and not promotes)


def _of_sums(kernel: Kernel, role: Role) -> int:
    """Sums of rows, of each wave, for ptxas computes some beside others, and where the rows of D lie that they are stored to. As if they took
    accumulators' place 2 of 70 random configs spilled 88 and 232 bytes, without the rows' places 3 of 220 up to 120: of 8 and 16 rows of D. So
    counted 7 of 440 spill up to 72, which 16 registers more do not mend; the build refuses those."""
    waves = {s.wave for s in walk(role.body) if isinstance(s, Evaluate) and s.of == "sums"}
    return kernel.block.d_m * (2 * len(waves) + PLACE_OF_ROW * bool(waves))


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
    far = kernel.peers.slot > 0 and kernel.cluster.size > 1 and pieces > 2
    return OWN_ROWS * own + round(NARROW_PIECE * pieces * narrow) + OF_PEERS * far


def _epilogue(kernel: Kernel, role: Role) -> int:
    """Registers an epilogue needs beside the role's arrays. In one wave each value takes the place of an
    accumulator that is already stored; a second wave's accumulators are all still there. Before erf,
    ptxas turns all integers into floats."""
    evaluated = [s for s in walk(role.body) if isinstance(s, Evaluate) and s.of != "argument"]
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
        if promotes:
            erf -= min(erf, arrays(role) - sum(r.count for r in sources)) * (times > 1)
        floats *= not (evaluated and kernel.block.fold > 1)
        return floats + erf + max(held, _of_parts(kernel, role, waves[0].value))
    found, lane = reads(waves[0]), 2 * sources[0].count // LANE_COLUMNS
    of_columns = {"m": PerColumn, "n": PerRow}[kernel.buffer("smem_d").along]
    columns = sum(isinstance(x, of_columns) for x in found)
    rows = sum(isinstance(x, PerColumn | PerRow) for x in found) - columns
    both = (COLUMN_VALUES + MORE_ROWS * max(0, rows - 1)) * (columns > 0)
    # Promotion's, which the epilogue may take.
    spare = arrays(role) - sum(r.count for r in sources)
    tensors = sum(isinstance(x, PerElement) for x in found)
    pairs = max(0, lane * tensors - spare) + TOTAL_PAIRS * (tensors > 0 and kernel.shares > 1)
    integer = kernel.instr.d.integer
    approximates = (
        (columns > 0 or (integer and rows > 0)) and spare > 0 and not APPROXIMATE.isdisjoint(called)
    )
    approximate = APPROXIMATION if approximates else 0
    floats += max(approximate, erf)
    return floats + columns * lane + both + pairs + held


def _held(kernel: Kernel, role: Role, value: Expr) -> int:
    """Registers of what is read ahead of values that a wave holds, as far as promotion's do not take them: those are
    free in the first wave."""
    staged = [s for s in walk(role.body) if isinstance(s, StageTile | Evaluate) and s.src]
    accumulators = max((r.count for r in role.locals if r.name == staged[0].src), default=0)
    read = arguments(value)
    tensors = sum(isinstance(x, PerElement) for x in read)
    ahead = 0.0
    if any(isinstance(s, Evaluate) for s in staged):
        ahead += HELD * tensors * accumulators
        ahead += HELD_CALLS * (tensors > 0 and bool(functions(value)))
    waves = len({s.wave for s in staged})
    spare = arrays(role) - accumulators if waves == 1 else 0
    columns = isinstance(value, InGroup) and any(isinstance(x, PerColumn) for x in read)
    own = _own(kernel, role, value, accumulators) if columns else 0
    return max(0, round(ahead) - spare) + own


def _own(kernel: Kernel, role: Role, value: Expr, accumulators: int) -> int:
    """For values per column of each row's own group."""
    products = [s for s in walk(role.body) if isinstance(s, Mma)]
    staged = [s for s in walk(role.body) if isinstance(s, StageTile)]
    called, pairs = bool(functions(value)), kernel.block.fold > 1
    more = called or len(arguments(value)) > 1
    if any(s.part for s in products):
        return 0  # `_of_parts`
    if any(s.wave for s in products):
        whole = len(staged) == len({s.wave for s in staged})
        waved = OWN_WHOLE if whole else OWN_PIECES
        return OWN_PAIRED if pairs else waved * more
    if any(isinstance(s, PROMOTION) for s in walk(role.body)):
        scales = arrays(role) - 2 * accumulators  # beside sums and partial sums
        values = len(arguments(value))
        own = OWN_PROMOTED + OWN_THIRD * (values > 2)
        return max(0, own - scales) * (values > 1 and not pairs)
    beside_call = OWN_CALLS if called else OWN_MORE * more
    return OWN_PAIRS if pairs else beside_call


def _of_parts(kernel: Kernel, role: Role, value: Expr) -> int:
    if not any(isinstance(s, Mma) and s.part for s in walk(role.body)):
        return 0
    converts = kernel.instr.d.integer and kernel.consumers == 1
    kinds = {type(x) for x in arguments(value)}
    columns = isinstance(value, InGroup) and PerColumn in kinds and PerRow not in kinds
    held = any(isinstance(s, Evaluate) for s in walk(role.body))
    more = converts or (columns and not held)
    return OF_PARTS * (PerElement in kinds or (columns and held)) + MORE_OF_PARTS * more
