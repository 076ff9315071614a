"""Emit the gallery and random legal configs here and at another revision, and compare their machine code; exits with 1
if one differs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gemmgen.errors import CompileError
from gemmgen.gallery import GALLERY, path_of
from gemmgen.runtime import nvrtc

from ..link_configs.draw import kernels
from .machine_code import Code, machine_code

ROOT = Path(__file__).parents[2]

# Runs at either revision: sources of the cases on standard input, or why there is none.
EMIT = """
import json, sys
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

def source(problem, config, stamps):
    try:
        return emit(lower(Problem.from_json(problem), Config.from_json(config), stamps=stamps))
    except Exception as e:
        return f"{type(e).__name__}: {e}"

json.dump([source(*case) for _, *case in json.load(sys.stdin)], sys.stdout)
"""

Case = tuple[
    str, dict[str, object], dict[str, object], int
]  # what it is called, problem, config, stamps


def cases(count: int, seed: int) -> list[Case]:
    """The gallery's, and `count` drawn at random."""
    gallery = [(path_of(e), e.problem.to_json(), e.config.to_json(), 0) for e in GALLERY]
    drawn = [
        (f"drawn {i}: {k.name}", p.to_json(), c.to_json(), k.stamps)
        for i, (p, c, k) in enumerate(kernels(count, seed))
    ]
    return gallery + drawn


def emitted(root: Path, of: list[Case]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", EMIT],
        input=json.dumps(of),
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )
    return list(json.loads(done.stdout))


def at_revision(revision: str, of: list[Case]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", revision, "gemmgen", "templates"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        return emitted(Path(folder), of)


def compiled(sources: Iterable[tuple[str, str]], jobs: int) -> list[Code]:
    def one(of: tuple[str, str]) -> Code:
        _, source = of
        if not source.startswith("// "):
            return Code(source, 0)
        try:
            return machine_code(nvrtc.compile_cubin(source, source.split(maxsplit=2)[1]).image)
        except CompileError:
            return Code("refused by the build", 0)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, sources))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.same_code", description=__doc__)
    parser.add_argument("revision", help="a commit to compare with")
    parser.add_argument("--count", type=int, default=300, help="configs at random (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the configs (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at once (default 2)")
    args = parser.parse_args()
    nvrtc.bindings()  # raises where there are none
    start, of = time.perf_counter(), cases(args.count, args.seed)
    names = [name for name, *_ in of]
    there, here = at_revision(args.revision, of), emitted(ROOT, of)
    texts = [i for i in range(len(of)) if there[i] != here[i]]
    one, other = (
        compiled(((names[i], text[i]) for i in texts), args.jobs) for text in (there, here)
    )
    differ = [(i, a, b) for i, a, b in zip(texts, one, other, strict=True) if a != b]
    for i, a, b in differ:
        kinds = f"{a.instructions} instructions, {b.instructions} here"
        how = "in registers or order" if a.kinds == b.kinds else kinds
        print(f"{names[i]}: {how}; {json.dumps(of[i][1:])}")
    others = sum(a.kinds != b.kinds for _, a, b in differ)
    print(
        f"{len(of)} kernels, {len(texts)} with another text than at {args.revision}; {len(differ)} with other machine"
        f" code, {others} of them with other instructions; NVRTC {nvrtc.version()}, {time.perf_counter() - start:.0f} s"
    )
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
