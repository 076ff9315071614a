"""D^T = B A^T, for few rows (docs/adr/0009-swap-ab.md)."""

from __future__ import annotations

from .lever import flag

SWAP_AB = flag("swap_ab", tag="swap", word="swapped", reads="computes D^T = B A^T", sums=False)
