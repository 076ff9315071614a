"""Other libraries, where they are installed: thin adapters. Each is imported when its call is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..ir.dtypes import BF16, E4M3, F16, F32
from ..problem import Problem
from ..recipes import recipe
from ..runtime.torch_tensors import torch_dtype
from .cases import Case
from .providers import Call, Provider


def _blocks(p: Problem) -> bool:
    return recipe(p.family).scales_blocks and p.a == p.b == E4M3 and not p.quantised


def _vectors(p: Problem) -> bool:
    return recipe(p.family).scales_columns and p.a == p.b == E4M3 and not p.accumulate


def _half(p: Problem) -> bool:
    """BF16 or FP16 that stays so, and is not added to anything; of weights that are not packed."""
    plain = not (recipe(p.family).promotes or p.form or p.accumulate)
    return plain and p.a in (BF16, F16) and p.d == p.a


def _triton(c: Case, fresh: bool) -> Call:
    """Its kernel reads scales of A in any strides, so nothing is converted."""
    kernel = import_module(".triton_kernel", __package__)
    scale_a = c.scale_a.contiguous() if fresh else c.scale_a
    out = None if fresh else c.out()

    def call() -> Any:
        return kernel.block_scaled(c.a, scale_a, c.b, c.scale_b, c.out() if out is None else out)

    return call


def _tilelang(c: Case, fresh: bool) -> Call:
    kernel = import_module(".tilelang_kernel", __package__)
    name = str(torch_dtype(c.problem.a)).removeprefix("torch.")
    program, out = kernel.gemm(*c.shape, name), None if fresh else c.out()

    def call() -> Any:
        d = c.out() if out is None else out
        program(c.a, c.b, d)
        return d

    return call


def _deep_gemm_fp8(c: Case, fresh: bool) -> Call:
    """It copies scales of A that lie row by row itself."""
    library = import_module("deep_gemm")
    scale_a = c.scale_a.contiguous() if fresh else c.scale_a
    out = None if fresh else c.out()

    def call() -> Any:
        d = c.out() if out is None else out
        library.fp8_gemm_nt((c.a, scale_a), (c.b, c.scale_b), d)
        return d

    return call


def _deep_gemm_wgrad(c: Case, fresh: bool) -> Call:
    """Adds to D, fresh or not, as gemmgen's does."""
    library = import_module("deep_gemm")
    scales = [s.contiguous() if fresh else s for s in (c.scale_a, c.scale_b)]
    d = c.out().zero_()

    def call() -> Any:
        library.fp8_gemm_nt((c.a, scales[0]), (c.b, scales[1]), d, c=d, recipe=(1, 1, 128))
        return d

    return call


def _deep_gemm_bf16(c: Case, fresh: bool) -> Call:
    library, out = import_module("deep_gemm"), None if fresh else c.out()

    def call() -> Any:
        d = c.out() if out is None else out
        library.bf16_gemm_nt(c.a, c.b, d)
        return d

    return call


def _flag_gems_mm(c: Case, fresh: bool) -> Call:
    """Allocates D itself, always."""
    library = import_module("flag_gems")
    return lambda: library.mm(c.left, c.right)


def _flag_gems_blocks(c: Case, fresh: bool) -> Call:
    """Allocates D itself, always; reads scales of A row by row."""
    library, dtype = import_module("flag_gems"), torch_dtype(c.problem.d)
    scale_a = c.scale_a.contiguous()
    return lambda: library.w8a8_block_fp8_matmul(
        c.a, c.b, scale_a, c.scale_b, [128, 128], output_dtype=dtype
    )


def _quack(c: Case, fresh: bool) -> Call:
    interface = import_module("quack.gemm_interface")
    if fresh:
        return lambda: interface.gemm(c.left, c.right)
    out = c.out()

    def call() -> Any:
        interface.gemm(c.left, c.right, out=out)
        return out

    return call


PEERS = (
    Provider(
        name="triton blocks",
        library="triton",
        takes=lambda p: _blocks(p) or _vectors(p),
        make=_triton,
    ),
    Provider(
        name="tilelang",
        library="tilelang",
        takes=lambda p: _half(p) and p.layout == "nt",
        make=_tilelang,
    ),
    Provider(
        name="deep_gemm",
        library="deep_gemm",
        takes=lambda p: _blocks(p) and p.d == BF16,
        make=_deep_gemm_fp8,
    ),
    Provider(
        name="deep_gemm wgrad",
        library="deep_gemm",
        takes=lambda p: recipe(p.family).scales_columns and p.accumulate and p.d == F32,
        make=_deep_gemm_wgrad,
    ),
    Provider(
        name="deep_gemm bf16",
        library="deep_gemm",
        takes=lambda p: _half(p) and p.a == BF16 and p.layout == "nt",
        make=_deep_gemm_bf16,
    ),
    Provider(name="flag_gems", library="flag_gems", takes=_half, make=_flag_gems_mm),
    Provider(name="flag_gems blocks", library="flag_gems", takes=_blocks, make=_flag_gems_blocks),
    Provider(name="quack", library="quack", takes=_half, make=_quack),
)
