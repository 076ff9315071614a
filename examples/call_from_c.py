"""Kernels and C code in a folder (`gemmgen pack`), built with a C compiler. To run the result needs a Hopper GPU.

On a machine with one: `FOLDER/example FOLDER 16 512 1024 d.bin` multiplies and writes D. Needs NVRTC.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from gemmgen import Config, Problem
from gemmgen.ir.dtypes import BF16
from gemmgen.pack import files, pack

PREFIX = "ffn"
CHOSEN = {  # by (M, N, K): which config serves M up to there
    (16, 512, 1024): Config(swap_ab=True, block_m=16, block_n=64, consumers=1, stages=8),
    (256, 512, 1024): Config(block_m=64, block_n=64, consumers=1),
}


def write(folder: Path) -> tuple[Path, ...]:
    """Compile both kernels and write the pack to `folder`."""
    problem = Problem(family="dense", a=BF16, b=BF16)
    made = pack(problem, CHOSEN, prefix=PREFIX, device="NVIDIA H200")
    found = tuple(folder / name for name in files(made))
    for path, data in zip(found, files(made).values(), strict=True):
        path.write_bytes(data)
    return found


def build(folder: Path, compiler: str) -> Path:
    """Compile the pack's own example; it finds the driver when it runs."""
    program = folder / "example"
    sources = [str(folder / f"{PREFIX}.c"), str(folder / "example.c")]
    subprocess.run([compiler, "-std=c11", "-O2", *sources, "-ldl", "-o", str(program)], check=True)
    return program


def main() -> int:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path in write(folder):
            print(f"{path.stat().st_size:>8} bytes  {path.name}")
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            print("no C compiler here")
            return 3
        print(f"built {build(folder, compiler).name}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
