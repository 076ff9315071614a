"""The nets, in the order a fault meets them. Each returns what it says of a kernel, or None."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from kernels import fitting
from scattering import Slow

from gemmgen.check import ProtocolViolation, check
from gemmgen.check.audit import agreement
from gemmgen.emulator import Eager, Late, Schedule, load
from gemmgen.emulator import Random as RandomSchedule
from gemmgen.errors import GemmgenError, IllegalConfig, IRError
from gemmgen.ir.nodes import ForChunks, Kernel
from gemmgen.ir.rewrite import statements
from gemmgen.ir.verify import verify
from gemmgen.link import TextDiffers, link
from gemmgen.passes.check_complete import check_complete
from gemmgen.passes.check_ring import check_ring
from gemmgen.passes.check_tile import check_tile
from gemmgen.runtime import emulated
from gemmgen.runtime.emulated_ranks import EmulatedRanks
from gemmgen.runtime.nvrtc import compile_cubin, compile_ptx
from gemmgen.schedulers import order
from gemmgen.target import H200
from gemmgen.verification import ranked
from gemmgen.verification.guarded import POISONS
from gemmgen.verification.inputs import Operands, exact_integers, random_normal
from gemmgen.verification.parts import parts
from gemmgen.verification.quantised import Result
from gemmgen.verification.trial import judge, pitches, run, share_of

from . import bits
from .far import far_rows
from .mutant import Built

NAMES = {
    "G": "the generator itself stops with an unexpected error",
    "S": "static rules: the passes' rules, IR well-formedness, completeness",
    "P": "the protocol proof",
    "A": "the schedule audit, and the device's scheduler held against its Python twin",
    "C": "the compiler: NVRTC refuses the source, or the kernel spills or is serialised",
    "E": "the emulator: exact integers, bounds, guard bands, repeats, races, deadlocks",
    "N": "the bit model, on random data",
    "X": "the link: the text, wrappers included, is what the IR says",
    "H": "the host's own checks",
}


def static(b: Built) -> str | None:
    try:
        for rule in (check_complete, check_ring, check_tile):
            rule(verify(b.kernel), H200)
    except (IRError, IllegalConfig) as e:
        return str(e)
    return None


def proof(b: Built) -> str | None:
    try:
        check(b.kernel)
    except ProtocolViolation as e:
        return None if e.property.id == "P13" else str(e)
    except IRError as e:
        return str(e)
    return None


def audit(b: Built) -> str | None:
    found = next(agreement(b.kernel), None)
    return found.message if found else _device_walk(b)


def compiles(b: Built) -> str | None:
    try:
        compile_ptx(b.source, b.meant.name)
    except GemmgenError as e:
        return str(e)
    return None


def cubin(b: Built) -> str | None:
    """Seconds per kernel, so only for what nothing else finds."""
    try:
        compile_cubin(b.source, b.meant.name)
    except GemmgenError as e:
        return str(e)
    return None


def extractor(b: Built) -> str | None:
    try:
        link(b.meant, b.source)
    except TextDiffers as e:
        return str(e)
    return None


# ---- the emulator -----------------------------------------------------------------------------------

Shape = tuple[int, int, int]
FAR_K = 33 * 128 + 16  # more than one chunk of B's scales, and a tail


@dataclass(frozen=True, kw_only=True)
class Case:
    shape: Shape
    sms: int
    pad: int = 0
    schedule: Callable[[], Schedule] | None = None


def cases() -> Iterator[Case]:
    """Tails on every side, several tiles per CTA, fewer K blocks than stages, more than two turns of
    the ring, one K block, rows that end within 16 bytes, 14 blocks of B's scales and a
    whole number of them, other schedules."""
    yield Case(shape=(130, 261, 272), sms=2)
    yield Case(shape=(200, 330, 629), sms=4, pad=1, schedule=Late)
    yield Case(shape=(72, 200, 1040), sms=2, schedule=lambda: RandomSchedule(seed=5))
    yield Case(shape=(5, 3, 17), sms=2, schedule=Eager)
    yield Case(shape=(24, 1768, 128), sms=4)
    yield Case(shape=(64, 256, 64), sms=4)


def past(k: Kernel) -> Case:
    """A few elements more than whole tiles and K blocks of this kernel: the tail's columns are the
    first of a tile."""
    b, c = k.block, k.cluster
    return Case(shape=(b.m * c.m + 1, b.n * c.n + 3, b.k + 1), sms=2)


def panels(k: Kernel) -> Case:
    """Enough tiles for a second panel, which turns back."""
    b, c, s = k.block, k.cluster, k.scheduler
    sides = {"m": b.m * c.m, "n": b.n * c.n}
    tiles = {s.fast: min(s.panel, 8) + 1, s.slow: 2}
    shape = sides["m"] * tiles["m"] - 3, sides["n"] * tiles["n"] - 5, b.k
    return Case(shape=shape, sms=3 * c.size)


def divided(k: Kernel) -> Case:
    """K blocks for every CTA that divides them, and tiles enough for each cluster to have several."""
    b, c = k.block, k.cluster
    return Case(shape=(2 * b.m + 3, 2 * b.n - 3, 2 * c.k * b.k - 5), sms=2 * c.size)


def chunked(k: Kernel) -> bool:
    """Whether it reads B's scales 32 K blocks at a time."""
    return any(isinstance(s, ForChunks) for s in statements(k))


DEEP = Case(shape=(5, 24, FAR_K), sms=1)


def emulates(b: Built) -> str | None:
    """A trial per case, then rows of D more than 2^31 elements apart."""
    if b.meant.peers.slot:
        return _by_ranks(b)
    moved = walker(b.source) != walker(_emitted(b.meant))
    try:
        program = _program(b)
        divides = b.meant.cluster.k > 1
        own = [*[divided(b.meant)] * divides, past(b.meant), *[panels(b.meant)] * moved]
        own += [DEEP] * chunked(b.meant)
        for case in (*cases(), *own):
            gpu = emulated.EmulatedGpu(sms=case.sms, schedule=case.schedule and case.schedule())
            shape = fitting(b.problem, case.shape, b.kernel)
            judge(gpu, program, b.kernel, b.problem, shape, pad=case.pad)
        far_rows(program, b)
    except GemmgenError as e:
        return f"{type(e).__name__}: {e}"
    return None


def _by_ranks(b: Built) -> str | None:
    """Three launches that follow each other on two GPUs, either of which is slow."""
    block, late = b.meant.block, (None, Slow(rank=0, every=50), Slow(rank=1, every=50))
    shape = 4 * block.m, 3 * block.n - 8, 4 * block.k
    wholes = [exact_integers(b.problem.alone, *shape, seed) for seed in range(3)]
    try:
        for chunks, schedule in product((2, 1), late):
            machines = EmulatedRanks(ranks=2, sms=2, chunks=chunks, schedule=schedule)
            got = ranked.run(machines, _program(b), b.kernel, b.problem, wholes)
            for whole, results in zip(wholes, got, strict=True):
                ranked.check_exact(machines, b.problem, whole, results)
    except GemmgenError as e:
        return f"{type(e).__name__}: {e}"
    return None


def bit_model(b: Built) -> str | None:
    """Of every GEMM that a launch stands for; nothing where no bits are known. What it raises is its own
    fault: what the emulator finds on the way is said."""
    if b.meant.peers.slot or not bits.known(b.problem):
        return None
    for shape in ((130, 261, 272), (70, 150, 1040), *[(5, 24, FAR_K)] * chunked(b.meant)):
        shape = fitting(b.problem, shape, b.kernel)
        operands, strides = random_normal(b.problem, *shape, 7), pitches(b.kernel, shape)
        try:
            machine = emulated.EmulatedGpu(sms=2)
            got = run(machine, _program(b), b.problem, operands, strides, POISONS[0])
        except GemmgenError as e:
            return f"{type(e).__name__}: {e}"
        if found := _other_bits(b, got, operands, strides.gap):
            return f"{found}, at {shape}"
    return None


def _other_bits(b: Built, got: Result, operands: Operands, gap: int) -> str | None:
    share = share_of(b.meant, operands.shape[2], operands.layout)
    for part in parts(b.problem, operands, gap, b.meant.block.k):
        mine, want = got.rows(part.rows), bits.wanted(part.problem, part.operands, share)
        for what, x, y in (
            ("elements", mine.codes, want.codes),
            ("scales", mine.scales, want.scales),
        ):
            if x is not None and (wrong := int((x != y).sum())):
                return f"{wrong} of {y.size} {what} have other bits than the model"
    return None


def _program(b: Built) -> emulated.EmulatedKernel:
    module = load(compile_ptx(b.source, b.meant.name))
    return emulated.EmulatedKernel(kernel=b.kernel, entry=module.entries[b.meant.name])


# ---- the device's scheduler and ring ----------------------------------------------------------------


def _device_walk(b: Built) -> str | None:
    """The emitted Scheduler and Ring, compiled for the host, on random shapes. Needs g++."""
    if b.meant.scheduler.params:
        return None  # it reads tables: tests/ir/test_groupings.py walks it
    source = walker(b.source)
    if not source or source == walker(_emitted(b.meant)):
        return None
    return walks(b, source)


def walks(b: Built, source: str) -> str | None:
    if not shutil.which("g++"):
        return None
    asked, wanted = _questions(b.meant)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "walk.cpp"
        program.write_text(source)
        made = _command("g++", "-std=c++17", "-O1", "-o", f"{folder}/walk", str(program))
        if made.returncode:
            return None  # the compiler net says so
        run = _command("sh", "-c", f"ulimit -f 20000; timeout 5 {folder}/walk", asked=asked)
    return None if run.stdout.splitlines() == wanted else "the device walks otherwise than Python"


RING = """case 1: {
    Ring ring;
    for (int k = 0; k < m; ++k, ring.advance())
        std::printf("%d %u %d\\n", ring.stage, ring.phase, ring.previous());
    break;
}"""


def walker(source: str) -> str:
    """A host program that walks; "" if the text has no whole Scheduler, Tile and Ring."""
    from test_scheduler import MAIN, SHIM, device_code

    case = "case 0: walk<Scheduler, Tile>(m, n, k); break;"
    try:
        return "\n".join([SHIM, device_code(source), MAIN.replace("CASES", f"{case}\n{RING}")])
    except TypeError:  # a struct was not found
        return ""


def _emitted(kernel: Kernel) -> str:
    from gemmgen.emit import emit

    return emit(kernel)


def _questions(kernel: Kernel) -> tuple[str, list[str]]:
    random = Random(1)
    asked, wanted = [], []
    for shape in (*_edges(kernel), *_anywhere(random)):
        ctas = kernel.cluster.size * random.randint(1, 66)
        asked.append(f"0 {shape[0]} {shape[1]} {shape[2]} {ctas}\n")
        for cta in range(ctas):
            for t in order(kernel.scheduler, kernel.block, kernel.cluster, shape, ctas, cta):
                wanted.append(f"{cta} {t.a_row} {t.b_row} {t.d_row} {t.d_col} {t.k_blocks}")
        wanted.append("end")
    s = kernel.stages
    asked.append("1 50 1 1 1\n")
    wanted += [f"{k % s} {k // s % 2} {(k - 1) % s}" for k in range(50)]
    return "".join(asked), wanted


def _edges(kernel: Kernel) -> Iterator[Shape]:
    """A whole number of tiles and K blocks, one more and one less than that, each with each."""
    b, c = kernel.block, kernel.cluster
    for dm, dn, dk in product((-1, 0, 1), repeat=3):
        yield 3 * b.m * c.m + dm, 2 * b.n * c.n + dn, 2 * b.k + dk


def _anywhere(random: Random) -> Iterator[Shape]:
    for _ in range(20):
        yield random.randint(1, 3000), random.randint(1, 2500), random.randint(1, 700)


def _command(*words: str, asked: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=asked, capture_output=True, text=True, check=False)


# ---- equivalence ------------------------------------------------------------------------------------


def normal(ptx: str) -> str:
    """PTX with registers and labels renumbered in order of appearance, and without prefetches of
    tensor maps, which are hints."""
    seen: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        old = found[0]
        kind = re.match(r"%?\$?[A-Za-z_]+", old)[0]  # type: ignore[index]
        return seen.setdefault(old, f"{kind}#{len(seen)}")

    body = re.sub(r"^\s*(//.*|\.reg .*|\.loc .*|prefetch\.tensormap .*)\n", "", ptx, flags=re.M)
    return re.sub(r"%(?:rd|rs|p|f|fd|r)\d+\b|\$L_\w+", name, body)


def same_code(b: Built, original: Built) -> str | None:
    """A proof that a fault changes nothing: the same PTX, or the same machine code."""
    name = original.kernel.name
    if normal(compile_ptx(b.source, name)) == normal(compile_ptx(original.source, name)):
        return "the same PTX"
    try:
        if compile_cubin(b.source, name).image == compile_cubin(original.source, name).image:
            return "the same machine code"
    except GemmgenError:
        pass
    return None
