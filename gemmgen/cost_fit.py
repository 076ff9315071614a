"""The cost model's constants that no data sheet gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What measurement says and no data sheet does, of plain configs: a lever's constants are in its file. Refit there and
    nowhere else.

    "rows" are DeepGEMM's times
    on an H200 with the tiles it picks, at Target.clock_hz: 256x128 takes 1250 (FP8) and 1147 (BF16) cycles per 128
    bytes of K and 1700 per tile besides. "gradients" are what was timed to tune the FP8 weight gradients of
    gemmgen/data/h200.jsonl, 176 tiles at 16 shapes.
    """

    # Of the peak, on random data: rows (published micro-benchmarks: 0.88 to 0.96).
    wgmma_rate: float = 0.95
    # Share of TMA's writes into shared memory that compete with wgmma's reads: rows.
    smem_writes: float = 0.75
    # Of Target's figure, and bytes per clock into one SM: rows of M = 128 and of BF16 N = 576
    # (which ran above Target.clock_hz).
    l2_rate: float = 1.15
    l2_port: float = 64.0
    # How many times as long L2 takes to give rows of B narrower than a line of 128 bytes, as an MN-major B has where block_n is no
    # multiple of 64: others.csv.
    narrow: float = 2.5
    # Share of L2 time that shows although hidden: multicast is worth 2-4 % where published.
    l2_exposed: float = 0.1
    # Cycles per K block of lockstep with the peer: it eats what 64 shared rows save. Not measured.
    cluster: float = 8.0
    # More of them with a scale per column: of 78 pairs of gradients the one that shares A took 1.8 % longer.
    cluster_of_columns: float = 24.0
    # Cycles a warp spends on one promoted element, scales included; 1 is the issue limit.
    ffma: float = 2.0
    # Promotion of a tile with two block scales against one: as selects, in copies of the loop (an estimate).
    select: float = 2.2
    copies: float = 1.3
    # The same with a scale per column: a multiplication more for every multiply-add; gradients say as much.
    per_column: float = 2.0
    # Cycles of the shared-memory port per warp and register of column scales: profiles (docs/findings.md),
    # gradients.
    column_load: float = 1.0
    # How many times as long as L2 takes to give a row of a tile TMA takes to fill one past A's or B's last with zeros, and of how many nothing
    # shows: tests/data/edges.csv, M = 65 to 511 on an H100, and tests/data/others.csv.
    zero_row: float = 2.4
    zeros_free: int = 8
    # Cycles to drain a wgmma group and start the next: rows of M = 64 and N = 576 or 2112.
    drain: float = 120.0
    # Share of promotion that shows under the other consumer warpgroups' MMAs, with two and with three of
    # them: rows; 8192 x 8192 x 8192 with 192x128 against 256x128.
    promotion_exposed: tuple[float, float] = (0.2, 0.1)
    # Cycles per tile in which nothing multiplies, and D bytes staged per cycle: rows, K <= 2048.
    epilogue: float = 700.0
    staging: float = 64.0
    # Bytes per cycle and warpgroup that an epilogue reads per element of D, and cycles more of each piece of D, which waits for its own:
    # others.csv.
    reading: float = 4.0
    reading_piece: float = 440.0
    # Cycles of each piece of D, if a warpgroup stages it in pieces: gradients with 256x96 and 256x112.
    piece: float = 200.0
    # Of HBM's peak that weight streaming reaches: BF16 rows of M = 1 and K = 16384.
    hbm_rate: float = 0.75
    # Most that one SM draws, in fair shares of all SMs' bandwidth: "few", FP8 with block scales and BF16 at M = 1, 16, 32,
    # 64 and 128 and twelve N and K, 120 shapes with 7 to 70 tiles each on an H200. 64 of 132 SMs draw nearly all.
    hbm_share: float = 2.0
    # Of B's bytes, what HBM gives again where many tiles along M read B's rows at once; of two tiles half of it: few, of
    # M = 128, tiles of 64 rows against tiles of 128.
    hbm_again: float = 0.6
    # Bytes of D per second that L2 adds to, in boxes of whole 128-byte lines, and how much longer boxes of half
    # a line and narrower ones take: 32768 x 4096 x 512, with 112 against 96 columns, and 24576 x 4096 x 1536
    # with 152 against 128.
    add_rate: float = 1.24e12
    add_half: float = 1.15
    add_narrow: float = 1.7
    # Cycles of a K block of 128 bytes that a row takes which threads copy: it is written as registers are, through the port by which wgmma reads. FP8
    # with block scales, 128x256, on an H100: 115 to 146 for 128 rows at four shapes of 4096 and 16384 tokens.
    copied_row: float = 0.95
    # Cycles in which a warpgroup decodes 64 x 128 weights of 4 bits and sends their products off, to 16 bits and to bytes, and how many times as
    # much each of the others adds, which share the issue slots: INT4 and MXFP4 by BF16 at five N and K with 1 to 128 rows, FP8 by MXFP4 at four
    # with 16 to 128, one H200: choices take 1.014 and 1.012 of the quickest in the mean (docs/findings.md).
    decoding: float = 550.0
    decoding_bytes: float = 350.0
    decoding_beside: float = 0.4
    # Where nothing is promoted, what a main loop needs of tensor cores, shared memory and L2 overlaps as the norm of this order:
    # others.csv, where an operand that no cluster shares costs up to 12 % though tensor cores are busy longer.
    resources: float = 12.0
    # SM and HBM time overlap as the norm of this order: rows of M = 64 and of K = 512.
    overlap: float = 4.0


FIT = Fit()
