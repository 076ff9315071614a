"""Who is measured: gemmgen, and torch's cuBLAS paths, over the same device tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..config import Config
from ..ir.dtypes import FP8
from ..problem import Problem
from ..runtime.torch_tensors import torch, torch_dtype
from .shapes import Shape

Call = Callable[[], Any]

MAKERS: dict[str, Callable[[Problem, Shape, Config], dict[str, Call]]]  # by family, below


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    if p.a.integer:
        return "torch._int_mm"
    return "torch._scaled_mm" if p.a in FP8 else "torch.mm"


def calls(p: Problem, shape: Shape, config: Config) -> dict[str, Call]:
    """One call per provider over N(0, 1) inputs made once; each has its own output.

    fp8_block is held against `torch._scaled_mm` with per-tensor scales and fast accumulation, which
    does no block scaling: the least any FP8 GEMM of cuBLAS does.
    """
    return MAKERS[p.family](p, shape, config)


def _normal(rows: int, cols: int, dtype: Any) -> Any:
    return torch().randn(rows, cols, device="cuda").to(dtype)


def row_scales(*shape: int) -> Any:
    """FP32 [..., rows, blocks], contiguous along the rows, columns at multiples of 16 bytes."""
    *lead, rows, blocks = shape
    pitch = -(-rows // 4) * 4
    return (torch().rand(*lead, blocks, pitch, device="cuda") + 0.5)[..., :rows].mT


def _fp8_block(p: Problem, shape: Shape, config: Config) -> dict[str, Call]:
    m, n, k = shape
    a, b = _normal(m, k, torch_dtype(p.a)), _normal(n, k, torch_dtype(p.b))
    blocks = -(-k // ops.SCALE_BLOCK)
    scale_a = row_scales(m, blocks)
    scale_b = torch().rand(-(-n // ops.SCALE_BLOCK), blocks, device="cuda") + 0.5
    one = torch().ones((), device="cuda")
    dtype = torch_dtype(p.d)
    ours, theirs = (torch().empty(m, n, dtype=dtype, device="cuda") for _ in range(2))
    return {
        "gemmgen": lambda: ops.fp8_block_gemm(
            a, scale_a, b, scale_b, ours, scale_a_layout="mn", out_dtype=p.d.name, config=config
        ),
        "torch._scaled_mm": lambda: torch()._scaled_mm(
            a, b.T, one, one, out_dtype=dtype, use_fast_accum=True, out=theirs
        ),
    }


def _fp8_1d1d(p: Problem, shape: Shape, config: Config) -> dict[str, Call]:
    """Added to D in place if the problem says so, as weight gradients are; theirs is not scaled and writes
    BF16."""
    m, n, k = shape
    a, b = _normal(m, k, torch_dtype(p.a)), _normal(n, k, torch_dtype(p.b))
    blocks = -(-k // ops.SCALE_BLOCK)
    scale_a, scale_b = (row_scales(side, blocks) for side in (m, n))
    one = torch().ones((), device="cuda")
    ours = torch().zeros(m, n, dtype=torch_dtype(p.d), device="cuda")
    theirs = torch().empty(m, n, dtype=torch().bfloat16, device="cuda")
    return {
        "gemmgen": lambda: ops.fp8_wgrad_gemm(
            a,
            scale_a,
            b,
            scale_b,
            ours,
            c=ours if p.accumulate else None,
            scale_layout="mn",
            out_dtype=p.d.name,
            config=config,
        ),
        "torch._scaled_mm": lambda: torch()._scaled_mm(
            a, b.T, one, one, out_dtype=torch().bfloat16, use_fast_accum=True, out=theirs
        ),
    }


def _fp8(p: Problem, shape: Shape, config: Config) -> dict[str, Call]:
    """Per-tensor scales on the device for both, and the same accuracy asked of both."""
    m, n, k = shape
    a, b = _normal(m, k, torch_dtype(p.a)), _normal(n, k, torch_dtype(p.b))
    one = torch().ones((), device="cuda")
    dtype, fast = torch_dtype(p.d), p.family == "dense"
    ours, theirs = (torch().empty(m, n, dtype=dtype, device="cuda") for _ in range(2))
    return {
        "gemmgen": lambda: ops.fp8_gemm(
            a,
            b,
            ours,
            scale_a=one,
            scale_b=one,
            accurate=not fast,
            out_dtype=p.d.name,
            config=config,
        ),
        "torch._scaled_mm": lambda: torch()._scaled_mm(
            a, b.T, one, one, out_dtype=dtype, use_fast_accum=fast, out=theirs
        ),
    }


def _int8(p: Problem, shape: Shape, config: Config) -> dict[str, Call]:
    """Ours with the output asked for, dequantised per row and column unless INT32; theirs is INT32."""
    m, n, k = shape
    a, b = (torch().randint(-128, 128, (s, k), device="cuda").to(torch().int8) for s in (m, n))
    rows, columns = (torch().rand(s, device="cuda") + 0.5 for s in (m, n))
    scales = {} if p.d.integer else {"scale_a": rows, "scale_b": columns}
    ours = torch().empty(m, n, dtype=torch_dtype(p.d), device="cuda")
    theirs = torch().empty(m, n, dtype=torch().int32, device="cuda")
    return {
        "gemmgen": lambda: ops.int8_gemm(a, b, ours, out_dtype=p.d.name, config=config, **scales),
        "torch._int_mm": lambda: torch()._int_mm(a, b.T, out=theirs),
    }


def _dense(p: Problem, shape: Shape, config: Config) -> dict[str, Call]:
    if p.a in FP8:
        return _fp8(p, shape, config)
    if p.a.integer:
        return _int8(p, shape, config)
    m, n, k = shape
    dtype = torch_dtype(p.a)
    a_turned, b_turned = p.mn_major
    a = _normal(k, m, dtype) if a_turned else _normal(m, k, dtype)
    b = _normal(k, n, dtype) if b_turned else _normal(n, k, dtype)
    their_a, their_b = a.T if a_turned else a, b if b_turned else b.T
    ours = torch().empty(m, n, dtype=torch_dtype(p.d), device="cuda")
    theirs = torch().empty(m, n, dtype=dtype, device="cuda")
    return {
        "gemmgen": lambda: ops.gemm(a, b, ours, layout=p.layout, out_dtype=p.d.name, config=config),
        "torch.mm": lambda: torch().mm(their_a, their_b, out=theirs),
    }


MAKERS = {"fp8_block": _fp8_block, "fp8_1d1d": _fp8_1d1d, "fp8": _fp8, "dense": _dense}
