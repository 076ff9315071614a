"""`python -m gemmgen.compat.deep_gemm program.py`: run a program in which `import deep_gemm` finds gemmgen's."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from .stand_in import HERE, install

USAGE = """usage: python -m gemmgen.compat.deep_gemm program.py [argument ...]
       python -m gemmgen.compat.deep_gemm -m module [argument ...]
       python -m gemmgen.compat.deep_gemm --path

Runs a Python program, or a module as `python -m` does, in which `import deep_gemm` finds gemmgen's, as it does in all
processes that the program starts. --path prints the folder that does so at the front of PYTHONPATH."""
FOLDER = HERE / "on_path"
PYTHONPATH = "PYTHONPATH"


def main(arguments: list[str]) -> int:
    """Exit status: 2, with the usage, if `arguments` say nothing to run. A program that exits raises SystemExit."""
    match arguments:
        case ["--path"]:
            print(FOLDER)
        case ["--help" | "-h"]:
            print(USAGE)
        case ["-m", module, *_]:
            _prepare(arguments[1:])
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *_] if not program.startswith("-"):
            _prepare(arguments)
            if not getattr(sys.flags, "safe_path", False):  # Python 3.11
                sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0


def _prepare(argv: list[str]) -> None:
    """This process, and those that it starts: by PYTHONPATH, and by its path, which multiprocessing hands on."""
    install()
    sys.path.insert(1, str(FOLDER))
    held = os.environ.get(PYTHONPATH)
    os.environ[PYTHONPATH] = os.pathsep.join((str(FOLDER), *([held] if held else [])))
    sys.argv = argv


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
