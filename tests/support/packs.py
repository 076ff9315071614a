"""Packs on disk, built with a C compiler, and called beside a driver that writes down what it is asked."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import gemmgen.pack
from gemmgen.cli.ours import SECTION
from gemmgen.config import Config
from gemmgen.ir.dtypes import BF16
from gemmgen.pack import files, pack
from gemmgen.pack.render import DATA_TYPES, SWIZZLES
from gemmgen.problem import Problem
from gemmgen.runtime import launch
from gemmgen.runtime.tensor_map import describe

HERE = Path(__file__).parents[1] / "pack"
CC = shutil.which("cc") or shutil.which("gcc")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c11")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")

OK, ARGUMENT, NO_KERNEL, NO_DRIVER, WRONG_GPU, FILE, FORMAT, CHECKSUM, DRIVER = range(9)
SMS, STREAM = 132, 4711
DENSE = Problem(family="dense", a=BF16, b=BF16)
SHAPES = ((1, 264, 200), (77, 264, 200), (4096, 264, 200))


def elf(*names):
    """A file of 64 bits with sections of these names."""
    table = b"\0" + b"".join(x.encode() + b"\0" for x in (*names, ".shstrtab"))
    at = [table.index(x.encode() + b"\0") for x in (*names, ".shstrtab")]
    rows = [SECTION.pack(x, 1, 0, 0, 64, len(table), 0, 0, 1, 0) for x in at]
    head = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", 64 + len(table)) + bytes(10)
    return head + struct.pack("<3H", 64, len(rows), len(rows) - 1) + table + b"".join(rows)


@pytest.fixture(name="compiles_nothing")
def compiles_nothing_fixture(monkeypatch):
    """Cubins that are a text with the kernel's name in it."""

    def fake(source, name):
        return type("Cubin", (), {"image": f"cubin of {name}".encode()})()

    monkeypatch.setattr(gemmgen.pack, "cached_cubin", fake)


def made(p=DENSE, chosen=None, prefix="gemmgen_x"):
    chosen = chosen or {shape: Config() for shape in SHAPES}
    return pack(p, chosen, prefix=prefix, device="NVIDIA H200")


@dataclass
class Built:
    """A pack on disk, its code built as a shared library, and a driver of our own."""

    pack: gemmgen.pack.Pack
    folder: Path
    driver: Path

    def call(self, *calls, threads=1, device=0, sized=(), **fake):
        """[status, text] of loading, of each of `calls` and of the workspace's size for each of `sized`, then also
        the bytes; and the driver's log."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        members = self.pack.interface.members
        asked = {
            "library": str(self.folder / "pack.so"),
            "prefix": self.pack.prefix,
            "folder": str(self.folder),
            "device": device,
            "members": [(x, "int64_t") for x in "mnk"] + [(x.name, x.ctype) for x in members],
            "calls": calls,
            "sized": sized,
            "threads": threads,
        }
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.driver), "FAKE_LOG": str(log)}
        env |= {"FAKE_SIZES": ",".join(map(str, self.sizes)), "FAKE_SMS": str(SMS)}
        env |= {f"FAKE_{name.upper()}": str(value) for name, value in fake.items()}
        run = subprocess.run(
            [sys.executable, str(HERE / "caller.py")],
            input=json.dumps(asked),
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        lines = log.read_text().splitlines() if log.exists() else []
        said = json.loads(run.stdout)
        assert said["text_here"] == said["results"][0][1], "another thread's error"
        return said["results"], [line.split() for line in lines]

    @property
    def sizes(self):
        """Bytes of each argument: of a tensor map those that say whose it is."""
        c = {"int32_t": 4, "int64_t": 8, "float": 4, "CUdeviceptr": 8}
        face = self.pack.interface
        return [8] * len(face.tensors) + [c[x.ctype] for x in face.parameters]


@pytest.fixture(name="driver", scope="module")
def driver_fixture(tmp_path_factory):
    """The folder of the fake libcuda.so.1."""
    if CC is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    out = folder / "libcuda.so.1"
    subprocess.run([CC, "-shared", "-fPIC", str(HERE / "fake_cuda.c"), "-o", str(out)], check=True)
    return folder


@pytest.fixture(name="build")
def build_fixture(tmp_path, driver, compiles_nothing):
    def built(p=DENSE, chosen=None):
        found = made(p, chosen)
        for name, data in files(found).items():
            (tmp_path / name).write_bytes(data)
        source, library = tmp_path / f"{found.prefix}.c", tmp_path / "pack.so"
        command = [CC, *STRICT, "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
        subprocess.run(command, check=True)
        return Built(found, tmp_path, driver)

    return built


def arguments(found, shape):
    """Some arguments of `shape`: every stride longer than it must be, every address its own."""
    call = dict(zip("mnk", shape, strict=True), stream=STREAM)
    for i, x in enumerate(found.interface.members, 1):
        match x.ctype:
            case "CUdeviceptr":
                call[x.name] = i << 32
            case "float":
                call[x.name] = 0.5 * i
            case _:
                call[x.name] = 4352 + 32 * i
    return call


def encoded_as(d):
    """The line of the log for a tensor map that is `d`: one of each element, no interleave, the swizzle, 256 bytes
    of L2 promotion, zeros outside."""
    rank = len(d.dims)
    sides = [*d.dims, *d.strides, *d.box, *(1,) * rank]
    modes = [0, SWIZZLES[d.swizzle], 3, 0]
    return [DATA_TYPES[d.dtype.tensor_map], rank, d.address, *sides, *modes]


def logged(log, function):
    return [line[1:] for line in log if line[0] == function]


def hexed(value):
    return bytes(value).hex()


def sizes(x, sides):
    """Of an array for JAX, whose sides are in C."""
    return tuple(eval(side.replace("/", "//"), dict(sides)) for side in x.sides)


def launched_as(kernel, shape, matrices, values):
    """The lines of the log for the tensor maps, and for the launch, that Python makes."""
    maps = [describe(kernel, m, matrices[m.tensor]) for m in kernel.maps]
    values = {**values, **launch.lying(matrices)} if kernel.pointed else values
    ctas = launch.grid(kernel, shape, SMS, values.get("groups", 1))
    head = [ctas, 1, 1, kernel.threads, 1, 1, kernel.smem_bytes, STREAM, 0, 6, 1, 0]
    scalars = [launch.packed(x.ctype, x.name, values) for x in kernel.params]
    pointers = [ctypes.c_uint64(d.address) for d in maps]
    line = [kernel.name, *map(str, head), *map(hexed, (*pointers, *scalars))]
    return list(map(encoded_as, maps)), line
