"""CUDA source -> sm_90a cubin through NVRTC. Needs neither a driver nor a GPU.

A kernel that spills, whose wgmma were serialised or whose setmaxnreg was ignored is refused: it
would run, slowly and silently. So is one whose K loop lost a number of trips when it was unrolled: it would hang.
Where a config was given rather than chosen, what spills is built once more, `sparing` of registers.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import CompileError, RuntimeUnavailable
from ..target import H200, Target
from .trips import lost_trips

# The extra cu13 of pyproject.toml: by its packages, which can be had however gemmgen itself was.
INSTALL = 'pip install "cuda-bindings>=13.0.3,<14" "nvidia-cuda-nvrtc>=13.0.88,<14"'
LIBRARY_HEAD = 4096  # bytes of libnvrtc: ELF header, program headers, build ID

MUST_NOT_RUN = "must not run"  # what the build says of a kernel that compiles, but spills, say
# ptxas diagnostics that mean the kernel is not the one that was asked for.
FATAL = {
    "C7508": "setmaxnreg was ignored",
    "C7510": "wgmma was serialised: a function call crosses the pipeline",
    "C7511": "wgmma was serialised",
    "C7512": "wgmma was serialised for lack of registers",
    "C7514": "wgmma was serialised: its accumulator is read while in flight",
    "C7515": "wgmma was serialised: its accumulator is written while in flight",
}
# Less is under way at once, and fewer registers are in use: of 44 random kernels that spilled, 43 then did not (NVRTC
# 13.0). docs/reliability.md says what it costs.
SPARING = "--ptxas-options=-O1"
_sparing: ContextVar[bool] = ContextVar("sparing", default=False)


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """One compiled kernel and what ptxas says of it."""

    name: str
    image: bytes
    registers: int  # per thread at launch
    spill_bytes: int
    stack_bytes: int
    barriers: int  # named barriers in use
    seconds: float  # NVRTC's time
    log: str


@cache
def bindings() -> Any:
    """The cuda-python NVRTC bindings. Raises RuntimeUnavailable naming the one command that helps."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as e:
        raise RuntimeUnavailable(f"cuda-python is not installed ({e}). Run: {INSTALL}") from e
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as e:
        raise RuntimeUnavailable(f"the NVRTC library was not found ({e}). Run: {INSTALL}") from e
    return nvrtc


def version() -> tuple[int, int]:
    """NVRTC's (major, minor)."""
    _, major, minor = bindings().nvrtcVersion()
    return major, minor


@cache
def build() -> str:
    """Which NVRTC this is: its version and, of the library's file, a digest of the first bytes.

    They hold the linker's build ID and the sizes of all segments: two builds of one version differ there.
    Where the file cannot be read, the version alone. Raises RuntimeUnavailable if NVRTC is missing.
    """
    return build_of(".".join(map(str, version())), library())


@cache
def library() -> str:
    """The path of the library's file, "" if it is not known."""
    from cuda import pathfinder

    return pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path or ""


def build_of(text: str, path: str) -> str:
    """`build` of the library at `path`, of version `text`; it is not loaded."""
    try:
        with Path(path).open("rb") as f:
            return f"{text} {hashlib.sha256(f.read(LIBRARY_HEAD)).hexdigest()[:16]}"
    except OSError:
        return text


def options(target: Target) -> tuple[str, ...]:
    """What NVRTC is told besides the source. The cubin depends on nothing else."""
    architecture = f"--gpu-architecture={target.arch}"
    said = (architecture, "--std=c++17", "--ptxas-options=-v", "--no-cache")
    return (*said, SPARING) if _sparing.get() else said


@contextmanager
def sparing() -> Iterator[None]:
    """Within it, in this thread, kernels are compiled with ptxas at -O1, and kept apart from others."""
    token = _sparing.set(True)
    try:
        yield
    finally:
        _sparing.reset(token)


def starved(error: CompileError) -> bool:
    """Whether the build refused for lack of registers, so that it is worth another try, `sparing` of them."""
    first = str(error).partition(" NVRTC said:")[0]
    return MUST_NOT_RUN in first and ("bytes of spills" in first or "C7512" in first)


def compile_cubin(source: str, name: str, target: Target = H200) -> Cubin:
    """Compile `source`, which defines the kernel `name`.

    Raises CompileError with NVRTC's log if the source is refused, spills, or runs serialised wgmma, or if a K loop
    cannot run every number of times; RuntimeUnavailable if NVRTC is missing.
    """
    program = _program(source, name)
    given = [o.encode() for o in options(target)]
    started = time.perf_counter()
    (status,) = bindings().nvrtcCompileProgram(program, len(given), given)
    seconds = time.perf_counter() - started
    log = _text(program, "ProgramLog")
    if status != bindings().nvrtcResult.NVRTC_SUCCESS:
        lasting = status == bindings().nvrtcResult.NVRTC_ERROR_COMPILATION
        raise CompileError(f"NVRTC refused {name}:\n{log}", lasting=lasting)
    image, ptx = _bytes(program, "CUBIN"), _text(program, "PTX")
    bindings().nvrtcDestroyProgram(program)
    check_trips(name, source, ptx)
    return checked(name, image, seconds, log)


def compile_ptx(source: str, name: str, target: Target = H200) -> str:
    """The PTX of `source` for the target's virtual architecture, with line information."""
    program = _program(source, name)
    architecture = f"--gpu-architecture={target.virtual_arch}"
    given = [architecture, "--std=c++17", "--no-cache", "--generate-line-info"]
    (status,) = bindings().nvrtcCompileProgram(program, len(given), [o.encode() for o in given])
    if status != bindings().nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC refused {name}:\n{_text(program, 'ProgramLog')}")
    ptx = _text(program, "PTX")
    bindings().nvrtcDestroyProgram(program)
    return ptx


def _program(source: str, name: str) -> Any:
    nvrtc = bindings()
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC could not take {name}: {status}", lasting=False)
    return program


def _bytes(program: Any, what: str) -> bytes:
    nvrtc = bindings()
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    buffer = bytes(size)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer


def _text(program: Any, what: str) -> str:
    return _bytes(program, what).decode(errors="replace").rstrip("\0").strip()


def check_trips(name: str, source: str, ptx: str) -> None:
    """Raises CompileError if a K loop of `source` cannot run every number of times in `ptx`, made of it."""
    for line, numbers in lost_trips(source, ptx).items():
        raise CompileError(
            f"{name} {MUST_NOT_RUN}: its K loop in line {line} cannot run {', '.join(map(str, numbers))} times, as the "
            "compiler unrolled it. Use another unroll, and report this: it is a defect of gemmgen or of NVRTC"
        )


def checked(name: str, image: bytes, seconds: float, log: str) -> Cubin:
    """The cubin `image` of kernel `name`, with what NVRTC's log says of it.

    Raises CompileError if the log says that it spills, or that ptxas changed the kernel (`FATAL`).
    """
    found = [f"{code} ({FATAL[code]})" for code in FATAL if code in log]
    spills = _number(r"(\d+) bytes spill stores", log) + _number(r"(\d+) bytes spill loads", log)
    if spills:
        found.append(f"{spills} bytes of spills")
    if found:
        raise CompileError(f"{name} {MUST_NOT_RUN}: {'; '.join(found)}. NVRTC said:\n{log}")
    return Cubin(
        name=name,
        image=image,
        registers=_number(r"Used (\d+) registers", log),
        spill_bytes=spills,
        stack_bytes=_number(r"(\d+) bytes stack frame", log),
        barriers=_number(r"used (\d+) barriers", log),
        seconds=seconds,
        log=log,
    )


def _number(pattern: str, log: str) -> int:
    return sum(int(n) for n in re.findall(pattern, log))
