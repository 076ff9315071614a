"""Which K blocks a loop runs over, a lane loads scales of, and a share has, in C."""

from __future__ import annotations

from typing import Any

from ..ir.nodes import ForChunks, ForK, Kernel, LoadBlockScales, Zero
from ..ir.promotion import HELD_BLOCKS, LANES, OF_A
from ..ir.rewrite import statements

# The K blocks of a ForK.
SPANS = {
    "tile": {"first": "0", "end": "tile.k_blocks"},
    "chunk": {"first": "chunk", "end": "chunk_end"},
    "ahead": {"first": "0", "end": "min(STAGES, tile.k_blocks)"},
    "slice": {"first": "worker", "end": "tile.k_blocks"},
}

# Of 128 of K, a lane's. A group without any, after all others, has none of its own to read.
K_BLOCKS = {
    "first": "min({lane}, tile.k_blocks - 1)",
    "next": "min(chunk + {blocks} + {lane}, tile.k_blocks - 1)",
    "first of group": "min(tile.k_first / 128 + {lane}, (shape_k - 1) / 128)",
    "next of group": "min(tile.k_first / 128 + chunk + {blocks} + {lane}, (shape_k - 1) / 128)",
}


def counting(kernel: Kernel) -> dict[str, Any]:
    """What templates may name of K blocks."""
    return {
        "span": lambda s: SPANS[s.of],
        "next_stage": lambda: "ring.advance();" * kernel.ring,
        "steps": lambda s: ", ".join(steps(kernel, s)),
        "enter": enter,
        "k_block": lambda s: k_block(kernel, s),
        "each_share": each_share(kernel),
        "nothing": lambda s: nothing(kernel, s),
    }


def k_block(kernel: Kernel, s: LoadBlockScales) -> str:
    """The K block whose scales a lane loads: of B's as many lanes as a chunk has K blocks, and so the lanes after them."""
    (blocks,) = {x.blocks for x in statements(kernel) if isinstance(x, ForChunks)}
    each = HELD_BLOCKS if s.of in OF_A else blocks
    lane = "lane" if each == LANES else f"lane % {each}"
    return K_BLOCKS[s.block].format(blocks=blocks, lane=lane)


def steps(kernel: Kernel, s: ForK) -> tuple[str, ...]:
    """From a K block to the next."""
    if s.of == "slice":
        each = kernel.consumer.slices
        return f"k += {each}", f"ring.skip({each})"
    return ("++k", *[f"++{s.ahead}[0]"] * bool(s.ahead), *["ring.advance()"] * kernel.ring)


def enter(s: ForK) -> str:
    """What stands before the loop: the ring at the first K block."""
    own = "// This warpgroup's K blocks: the others' go by in the ring.\nring.skip(worker);\n"
    return own * (s.of == "slice")


def first_block(kernel: Kernel) -> str:
    """The K block that a consumer warpgroup begins a tile with."""
    return "worker" if kernel.consumer.slices > 1 else "0"


def each_share(kernel: Kernel) -> str:
    """K blocks of each of a tile's shares, but for the last."""
    return f"(tile.k_blocks + {kernel.shares - 1}) / {kernel.shares}"


def nothing(kernel: Kernel, s: Zero) -> str:
    """What a total of shares starts from."""
    (of,) = (r.dtype for role in kernel.roles for r in role.locals if r.name == s.dst)
    full = f"{each_share(kernel)} * {kernel.shares - 1} < tile.k_blocks"
    return "0" if of.integer else f"{full} ? -0.0f : 0.0f"
