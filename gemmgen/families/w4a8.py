"""D = epilogue(A @ B^T), A FP8, B MXFP4, which becomes FP8 in the registers of wgmma's A: as `w4a16`, of steps of 32 of K, by the sizes of
each row and group. A row's own exponent is the epilogue's."""

from .w4a16 import build as build
