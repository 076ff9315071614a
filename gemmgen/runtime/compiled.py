"""A compiled kernel to look into: its source, PTX, cubin and SASS, and what it uses. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from ..errors import RuntimeUnavailable
from ..ir.launchable import Launchable
from ..notebook import table
from .disassemble import sass
from .nvrtc import Cubin, compile_ptx

SPILL_BYTES = 4  # of one spilt register


class Compiled:
    """A kernel, its cubin, and the CUDA source they came from, None where only the cubin is at hand.

    `n_regs`, `n_spills`, `asm`, `get_kernel_source` and `show_sass` are what users of other kernel languages
    know these things by. Nothing is computed before it is asked for.
    """

    def __init__(self, kernel: Launchable, cubin: Cubin, source: str | None = None) -> None:
        self.kernel = kernel
        self.cubin = cubin
        self.source = source

    @property
    def n_regs(self) -> int:
        """Registers per thread at launch; `setmaxnreg` moves them between the roles then."""
        return self.cubin.registers

    @property
    def n_spills(self) -> int:
        """Registers that are spilt: none, for `compile_cubin` refuses a kernel that spills."""
        return self.cubin.spill_bytes // SPILL_BYTES

    @cached_property
    def asm(self) -> Mapping[str, str | bytes]:
        """By stage: "ptx" and "sass" as text, "cubin" as bytes. Looking one up raises RuntimeUnavailable
        if what makes it is missing: NVRTC or the source for "ptx", nvdisasm for "sass"."""
        return Stages(
            {
                "ptx": lambda: compile_ptx(self.get_kernel_source(), self.kernel.name),
                "cubin": lambda: self.cubin.image,
                "sass": lambda: sass(self.cubin.image),
            }
        )

    def get_kernel_source(self) -> str:
        """The CUDA source. Raises RuntimeUnavailable if the kernel came without."""
        if self.source is None:
            raise RuntimeUnavailable(
                f"{self.kernel.name} was loaded from a cubin, without its source. "
                "gemmgen.compile_to_source makes it of the problem and the config"
            )
        return self.source

    def show_sass(self) -> None:
        """Print the instructions. Raises RuntimeUnavailable if nvdisasm is missing."""
        print(self.asm["sass"])

    def _repr_html_(self) -> str:
        return table(
            self.kernel.name,
            {
                "threads": self.kernel.threads,
                "registers per thread": self.n_regs,
                "spilt registers": self.n_spills,
                "bytes of shared memory": self.kernel.smem_bytes,
                "bytes of cubin": len(self.cubin.image),
            },
        )


class Stages(Mapping[str, str | bytes]):
    """What a kernel becomes, each made when it is first looked up, and kept."""

    def __init__(self, makers: Mapping[str, Callable[[], str | bytes]]) -> None:
        self._makers = makers
        self._made: dict[str, str | bytes] = {}

    def __getitem__(self, stage: str) -> str | bytes:
        if stage not in self._makers:
            raise KeyError(f"{stage!r}: must be one of {', '.join(self._makers)}")
        if stage not in self._made:
            self._made[stage] = self._makers[stage]()
        return self._made[stage]

    def __contains__(self, stage: object) -> bool:
        return stage in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)
