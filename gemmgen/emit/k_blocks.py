"""From K block to K block, and which of them a lane loads scales of, in C."""

from __future__ import annotations

from ..ir.nodes import ForChunks, ForK, Kernel, LoadBlockScales
from ..ir.promotion import HELD_BLOCKS, LANES, OF_A
from ..ir.rewrite import statements

# Of 128 of K, a lane's. A group without any, after all others, has none of its own to read.
K_BLOCKS = {
    "first": "min({lane}, tile.k_blocks - 1)",
    "next": "min(chunk + {blocks} + {lane}, tile.k_blocks - 1)",
    "first of group": "min(tile.k_first / 128 + {lane}, (shape_k - 1) / 128)",
    "next of group": "min(tile.k_first / 128 + chunk + {blocks} + {lane}, (shape_k - 1) / 128)",
}


def k_block(kernel: Kernel, s: LoadBlockScales) -> str:
    """The K block whose scales a lane loads: of B's as many lanes as a chunk has K blocks, and so the lanes after them."""
    (blocks,) = {x.blocks for x in statements(kernel) if isinstance(x, ForChunks)}
    each = HELD_BLOCKS if s.of in OF_A else blocks
    lane = "lane" if each == LANES else f"lane % {each}"
    return K_BLOCKS[s.block].format(blocks=blocks, lane=lane)


def steps(kernel: Kernel, s: ForK) -> tuple[str, ...]:
    """From a K block to the next."""
    return ("++k", *[f"++{s.ahead}[0]"] * bool(s.ahead), *["ring.advance()"] * kernel.ring)
