"""Cubin -> SASS through nvdisasm, a program of NVIDIA's. Needs neither a driver nor a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from ..errors import CompileError, RuntimeUnavailable

PACKAGE = "nvidia-cuda-nvdisasm"
INSTALL = f"pip install {PACKAGE}"
PROGRAM = "nvdisasm"
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)", re.M)


def sass(image: bytes) -> str:
    """The code of a cubin, an instruction a line, with labels.

    Raises RuntimeUnavailable if nvdisasm is missing, CompileError with what it says if it refuses the image.
    """
    program = find()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(image)
        run = subprocess.run([program, "-c", file], capture_output=True, text=True)
    if run.returncode:
        raise CompileError(f"{PROGRAM} refused the cubin: {run.stderr.strip()}")
    return run.stdout


def mnemonics(code: str) -> Counter[str]:
    """How often each instruction stands in what `sass` returns, without its modifiers: HGMMA, FFMA, ..."""
    return Counter(INSTRUCTION.findall(code))


def find() -> Path:
    """Its place: of the Python package if that is installed, else on PATH."""
    try:
        packaged = [Path(str(f.locate())) for f in files(PACKAGE) or () if f.name == PROGRAM]
    except PackageNotFoundError:
        packaged = []
    on_path = shutil.which(PROGRAM)
    found = [p for p in packaged if p.is_file()] + [Path(p) for p in (on_path,) if p]
    if not found:
        text = f"{PROGRAM} is neither an installed package nor on PATH. Run: {INSTALL}"
        raise RuntimeUnavailable(text)
    return found[0]
