"""What the emulator reports: each error names the instruction and where it stands."""

from __future__ import annotations

from ..errors import GemmgenError


class EmulatorError(GemmgenError):
    """Base class: the program did something wrong, or something the emulator cannot execute."""


class PtxSyntaxError(EmulatorError):
    """The text is not PTX that the parser understands; names the line."""


class UnsupportedInstruction(EmulatorError):
    """An instruction, or one of its forms, is not implemented. Never skipped."""


class Deadlock(EmulatorError):
    """Nothing can run any more; the text lists what every group of threads waits for."""


class Race(EmulatorError):
    """Two conflicting accesses that nothing orders, or a missing proxy fence."""


class UninitializedRead(EmulatorError):
    """A read of memory that nothing wrote."""


class IllegalAccess(EmulatorError):
    """An address outside every allocation, or misaligned for the access."""


class ProtocolError(EmulatorError):
    """Synchronisation or copy engine used against its rules (PTX ISA), barrier overflow included."""


class Trap(EmulatorError):
    """The program executed `trap`."""
