"""D = epilogue(A @ B^T), A BF16 or FP16, B INT8 or FP8, which becomes numbers of 16 bits in the registers of wgmma's A, exactly: as `w4a16`, of blocks that
have codes alone. A row's scale is the epilogue's."""

from .w4a16 import build as build
