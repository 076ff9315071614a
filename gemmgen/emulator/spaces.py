"""Where the state spaces lie in the generic address space, and how a cluster address names its CTA."""

SHARED_BASE = 1024  # the first KiB of shared memory belongs to the system on Hopper
GLOBALS = 0x7E00_0000_0000  # variables of the module
SHARED_WINDOW = 0x7F10_0000_0000
PARAM_WINDOW = 0x7F20_0000_0000
HEAP = 0x7F40_0000_0000  # allocations
WINDOW = 1 << 32

RANK_SHIFT = (
    24  # of a shared address: the rank of its CTA, also in addresses of the CTA's own variables
)
OFFSET_MASK = (1 << RANK_SHIFT) - 1

Spans = tuple[tuple[int, int], ...]  # of addresses: first, end
