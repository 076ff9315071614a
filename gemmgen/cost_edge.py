"""What tiles take that reach past A's or B's last row: TMA fills those rows with zeros, slower than it loads others."""

from __future__ import annotations

from dataclasses import replace

from .config import Config
from .cost_fit import FIT
from .cost_launch import Workload, ceil, cluster_of
from .cost_terms import Wave
from .ir.groupings import GROUPINGS


def at_edge(of: Workload, c: Config, wave: Wave, steps: int, waits: bool) -> Wave:
    """`wave` of `steps` K blocks, with what of it TMA's filling takes. It loads a tile's other rows besides, and what both take
    together shows where the main loop is done before. waits: for the slowest tile, as the last of one or two waves does; else each SM
    has such tiles as often as they are."""
    below, beside = _past(of, c)
    if not (below or beside):
        return wave
    high, wide = ceil(of.height, c.block_m), ceil(of.shape[1], c.block_n)
    if waits:
        return replace(wave, zeros=_late(of, c, wave, steps, below + beside))
    often = ((below, high), (beside, wide))
    return replace(wave, zeros=sum(_late(of, c, wave, steps, rows) / n for rows, n in often))


def _late(of: Workload, c: Config, wave: Wave, steps: int, rows: int) -> float:
    """SM cycles that a tile is later of which TMA fills so many rows."""
    rate = FIT.l2_rate * of.target.l2_bytes_per_clock / wave.busy
    filled = steps * FIT.zero_row * max(0, rows - FIT.zeros_free) * c.block_k_bytes / rate
    whole = min(c.block_m, of.height) + min(c.block_n, of.shape[1])
    loaded = min(whole, c.block_m + c.block_n - rows) / whole
    return max(0.0, wave.l2 * loaded + filled - wave.main) if filled else 0.0


def _past(of: Workload, c: Config) -> tuple[int, int]:
    """Rows past A's last and past B's, of the tile that has most. Below a group's last row lies another's, or room for more."""
    g, cluster = GROUPINGS[of.problem.grouping], cluster_of(c)
    below = 0 if g.ragged or g.again else -of.height % (c.block_m * cluster.m)
    beside = -of.shape[1] % (c.block_n * cluster.n)
    return min(c.block_m, below), min(c.block_n, beside)
