"""`gemmgen compile`: cubins, registers, spills, shared memory. Needs no GPU."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..gallery import GALLERY, artifact, path_of
from ..ir.text import smem_map
from ..pipeline import Artifact, compile_to_source
from ..problem import Problem
from ..runtime.nvrtc import Cubin, compile_cubin
from . import files, given, options
from .progress import Bar

THREADS = 4  # NVRTC releases the GIL


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser, required=False)
    options.add_shape(parser)
    parser.add_argument("--all", action="store_true", help="the whole gallery")
    parser.add_argument(
        "-o", metavar="FOLDER", type=given.path, help="write KERNEL_NAME.cubin here"
    )


def main(args: argparse.Namespace) -> int:
    named, cubins, source = _compiled(args)
    if args.o:
        for cubin in cubins:
            files.write(args.o, f"{cubin.name}.cubin", cubin.image)
    rows = [describe(n, a, c, source) for (n, a), c in zip(named.items(), cubins, strict=True)]
    if args.json:
        print(json.dumps(rows, indent=2))
    elif args.all:
        print(table(rows))
    else:
        print(detail(next(iter(named.values())), rows[0]))
    return 0


def _compiled(args: argparse.Namespace) -> tuple[dict[str, Artifact], list[Cubin], str]:
    """By label, the cubin of each, and where their configs come from."""
    if args.all:
        given.refuse(args, given.ALL, "cannot be given with --all")
        with ThreadPoolExecutor(THREADS) as pool, Bar() as bar:
            named = {path_of(e): artifact(e) for e in bar.counted("emitting", GALLERY)}
            made = [pool.submit(compile_cubin, a.source, a.name) for a in named.values()]
            return named, [f.result() for f in bar.counted("compiling", made)], "gallery"
    if args.kernel is None:
        raise ArgumentError("KERNEL", None, "is required without --all")
    (a, cubin), source = options.built(args, _built)
    return {args.kernel: a}, [cubin], source


def cubin_of(a: Artifact) -> Cubin:
    """Compiled as what was given."""
    from ..ops.refused import as_given

    return as_given(a.problem, a.config, lambda: compile_cubin(a.source, a.name))


def _built(p: Problem, c: Config) -> tuple[Artifact, Cubin]:
    a = compile_to_source(p, c)
    return a, compile_cubin(a.source, a.name)


def describe(label: str, a: Artifact, c: Cubin, source: str) -> dict[str, Any]:
    """One kernel's resources. Registers are per thread: at launch, and of each role after setmaxnreg."""
    return {
        "kernel": label,
        "name": a.name,
        "config": a.config.to_json(),
        "config_from": source,
        "threads": a.kernel.threads,
        "registers": c.registers,
        "role_registers": {r.name: r.registers for r in a.kernel.roles},
        "spill_bytes": c.spill_bytes,
        "stack_bytes": c.stack_bytes,
        "smem_bytes": a.kernel.smem_bytes,
        "cubin_bytes": len(c.image),
        "seconds": round(c.seconds, 3),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'kernel':<30} threads registers spills  smem B  compile s"]
    for r in rows:
        roles = "/".join(str(v) for v in reversed(r["role_registers"].values()))
        lines.append(
            f"{r['kernel']:<30} {r['threads']:>7} {roles:>9} {r['spill_bytes']:>6} {r['smem_bytes']:>7} {r['seconds']:>10.2f}"
        )
    return "\n".join(lines)


def detail(a: Artifact, row: dict[str, Any]) -> str:
    """One kernel's resources and its shared-memory map."""
    roles = ", ".join(f"{name} {count}" for name, count in row["role_registers"].items())
    lines = [
        f"{row['name']}",
        f"  config from: {row['config_from']}",
        f"  compiled to {row['cubin_bytes']} bytes of sm_90a in {row['seconds']:.2f} s",
        f"  {row['threads']} threads; registers per thread: {row['registers']} at launch; {roles}",
        f"  spills {row['spill_bytes']} bytes, stack {row['stack_bytes']} bytes",
        f"  shared memory {row['smem_bytes']} bytes:",
    ]
    lines += [f"    {first:>6} .. {end:>6}  {what}" for first, end, what in smem_map(a.kernel)]
    return "\n".join(lines)
