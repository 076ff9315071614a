"""A kernel from problem to CUDA source, and how to read it. Needs neither a GPU nor NVRTC."""

from __future__ import annotations

from gemmgen import Artifact, Config, Problem, compile_to_source
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.nodes import Kernel
from gemmgen.ir.text import dump, smem_map


def main() -> None:
    problem = Problem(family="fp8_block", a=E4M3, b=E4M3)
    dumps: dict[str, str] = {}

    def observe(step: str, kernel: Kernel) -> None:
        dumps[step] = dump(kernel)

    show(compile_to_source(problem, Config(stages=5), observer=observe))
    print(f"\nThe IR was dumped after each of {len(dumps)} steps: {', '.join(dumps)}")


def show(artifact: Artifact) -> None:
    """What the lowered kernel holds, and where the parts of its source begin."""
    kernel = artifact.kernel
    print(artifact.name)
    print(artifact.proof)
    for role in kernel.roles:
        print(f"role {role.name}: {role.registers} registers per thread")
    for first, end, what in smem_map(kernel):
        print(f"shared memory {first:>6} .. {end:>6}: {what}")
    lines = artifact.source.splitlines()
    print(f"{len(lines)} lines of CUDA; the kernel itself:")
    start = next(i for i, line in enumerate(lines) if "__global__" in line)
    print("\n".join(lines[start : start + 30]))


if __name__ == "__main__":
    main()
