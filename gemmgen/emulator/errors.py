"""What the emulator reports: each error names the instruction and where it stands."""

from __future__ import annotations

from ..errors import GemmgenError


class EmulatorError(GemmgenError):
    """Base class: the program did something wrong, or something the emulator cannot execute."""

    id = "GG-E001"


class PtxSyntaxError(EmulatorError):
    """The text is not PTX that the parser understands; names the line."""

    id = "GG-E002"


class UnsupportedInstruction(EmulatorError):
    """An instruction, or one of its forms, is not implemented. Never skipped."""

    id = "GG-E003"


class Deadlock(EmulatorError):
    """Nothing can run any more; the text lists what every group of threads waits for."""

    id = "GG-E004"


class Race(EmulatorError):
    """Two conflicting accesses that nothing orders, or a missing proxy fence."""

    id = "GG-E005"


class UninitializedRead(EmulatorError):
    """A read of memory that nothing wrote."""

    id = "GG-E006"


class IllegalAccess(EmulatorError):
    """An address outside every allocation, or misaligned for the access."""

    id = "GG-E007"


class ProtocolError(EmulatorError):
    """Synchronisation or copy engine used against its rules (PTX ISA), barrier overflow included."""

    id = "GG-E008"


class Trap(EmulatorError):
    """The program executed `trap`."""

    id = "GG-E009"
