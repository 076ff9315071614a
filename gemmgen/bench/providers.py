"""Who is measured: gemmgen, and torch's own GEMMs, over the same device tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..config import Config
from ..errors import UnsupportedProblem
from ..ir.dtypes import BF16, E4M3, F16, FP8, S32, DType
from ..problem import Problem
from ..runtime.torch_tensors import empty, torch, torch_dtype
from .cases import Case, scaling
from .select import Offer

Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Provider(Offer):
    """One row of a table.

    make: its call; `fresh` for what a user writes: scales as a quantiser leaves them (row by row), a new
    output. scaling: how it scales, of `cases.SCALINGS` ("" as gemmgen does). fast: whether it sums FP8 in
    14 bits beyond 128 of K.
    """

    make: Callable[[Case, bool], Call]
    scaling: str = ""
    fast: Callable[[Problem], bool] = lambda p: False


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    if p.a.integer:
        return "torch._int_mm"
    return "torch._scaled_mm" if p.a in FP8 else "torch.mm"


def fast(p: Problem) -> bool:
    """Whether gemmgen's call of `p` leaves FP8 sums in the tensor core, and the reference's does."""
    return p.a in FP8 and p.family == "dense"


def gemmgen(config: Config) -> Provider:
    return Provider(
        name="gemmgen",
        library="gemmgen",
        takes=lambda p: True,
        make=lambda case, fresh: ours(case, config, fresh),
        fast=fast,
    )


def ours(case: Case, config: Config, fresh: bool) -> Call:
    """One call of `gemmgen.ops`, whose result it returns."""
    return MAKERS[case.problem.family](case, config, fresh)


def _aligned(c: Case) -> Any:
    """A new D whose rows begin at multiples of 16 bytes."""
    return empty(c.shape[:2], c.problem.d, c.a.device)


def _as_left(scale: Any, fresh: bool) -> tuple[Any, str]:
    """Scales [rows, blocks], and the name of how they lie."""
    return (scale.contiguous(), "row") if fresh else (scale, "mn")


def _fp8_block(c: Case, config: Config, fresh: bool) -> Call:
    function = ops.int8_block_gemm if c.problem.a.integer else ops.fp8_block_gemm
    out = None if fresh else _aligned(c)
    scale_a, layout = _as_left(c.scale_a, fresh)
    return lambda: function(
        c.a,
        scale_a,
        c.b,
        c.scale_b,
        out,
        scale_a_layout=layout,
        out_dtype=c.problem.d.name,
        config=config,
    )


def _fp8_1d1d(c: Case, config: Config, fresh: bool) -> Call:
    """Added to D in place if the problem says so, as weight gradients are, then fresh or not."""
    out = None if fresh and not c.problem.accumulate else _aligned(c).zero_()
    (scale_a, layout), (scale_b, _) = _as_left(c.scale_a, fresh), _as_left(c.scale_b, fresh)
    return lambda: ops.fp8_wgrad_gemm(
        c.a,
        scale_a,
        c.b,
        scale_b,
        out,
        c=out if c.problem.accumulate else None,
        scale_layout=layout,
        out_dtype=c.problem.d.name,
        config=config,
    )


def _fp8(c: Case, config: Config, fresh: bool) -> Call:
    """Per-tensor scales on the device."""
    one = torch().ones((), device=c.a.device)
    out = None if fresh else _aligned(c)
    return lambda: ops.fp8_gemm(
        c.a,
        c.b,
        out,
        scale_a=one,
        scale_b=one,
        accurate=not fast(c.problem),
        out_dtype=c.problem.d.name,
        config=config,
    )


def _int8(c: Case, config: Config, fresh: bool) -> Call:
    """With the output asked for, dequantised per row and column unless INT32."""
    scales = {} if c.problem.d.integer else {"scale_a": c.rows, "scale_b": c.columns}
    out = None if fresh else _aligned(c)
    return lambda: ops.int8_gemm(c.a, c.b, out, out_dtype=c.problem.d.name, config=config, **scales)


def _dense(c: Case, config: Config, fresh: bool) -> Call:
    p = c.problem
    if p.a in FP8:
        return _fp8(c, config, fresh)
    if p.a.integer:
        return _int8(c, config, fresh)
    out = _aligned(c).zero_() if p.accumulate else None if fresh else _aligned(c)
    return lambda: ops.gemm(
        c.a,
        c.b,
        out,
        layout=p.layout,
        out_dtype=p.d.name,
        accumulate=p.accumulate,
        config=config,
    )


MAKERS: dict[str, Callable[[Case, Config, bool], Call]] = {
    "fp8_block": _fp8_block,
    "fp8_1d1d": _fp8_1d1d,
    "fp8": _fp8,
    "dense": _dense,
}


def _out_dtype(p: Problem) -> DType:
    """What `torch._scaled_mm` writes: the problem's dtype, BF16 beside weight gradients and FP8."""
    return BF16 if p.family == "fp8_1d1d" or p.quantised else p.d


def _scaled(case: Case, fresh: bool, scale_a: Any, scale_b: Any, quick: bool) -> Call:
    """`torch._scaled_mm` with these scales."""
    written = _out_dtype(case.problem)
    dtype, out = torch_dtype(written), None if fresh else case.out(written)
    return lambda: torch()._scaled_mm(
        case.left, case.right, scale_a, scale_b, out_dtype=dtype, use_fast_accum=quick, out=out
    )


def _scaled_tensor(case: Case, fresh: bool) -> Call:
    """Per-tensor scales of 1: the least that any FP8 GEMM of cuBLAS does."""
    one = torch().ones((), device=case.a.device)
    return _scaled(case, fresh, one, one, quick(case.problem))


def quick(p: Problem) -> bool:
    """Whether torch is asked for fast accumulation: unless gemmgen promotes without any block scales."""
    return p.family != "fp8"


def _scaled_rows(case: Case, fresh: bool) -> Call:
    columns = case.columns[None, :]
    return _scaled(case, fresh, case.rows[:, None], columns, quick(case.problem))


def _scaled_blocks(case: Case, fresh: bool) -> Call:
    """1 x 128 scales of A, contiguous along M without padding; 128 x 128 ones of B, contiguous along K in
    columns of K / 128 or, as later versions of torch ask, of that rounded up to 4: the first it takes."""
    n_blocks, blocks = case.scale_b.shape
    pitch = -(-blocks // 4) * 4
    padded = torch().zeros(n_blocks, pitch, device=case.a.device)
    padded[:, :blocks] = case.scale_b
    tight = case.scale_a.mT.contiguous().mT
    refusals = []
    for scale_b in (padded[:, :blocks].mT, case.scale_b.contiguous().mT):
        try:
            _scaled(case, True, tight, scale_b, False)()
        except (RuntimeError, ValueError) as e:
            refusals.append(str(e).splitlines()[0])
            continue
        if not fresh:
            return _scaled(case, False, tight, scale_b, False)
        # A quantiser's scales lie row by row; B's are a weight's, and prepared once.
        rows = case.scale_a.contiguous()
        dtype = torch_dtype(_out_dtype(case.problem))
        return lambda: torch()._scaled_mm(
            case.left,
            case.right,
            rows.mT.contiguous().mT,
            scale_b,
            out_dtype=dtype,
            use_fast_accum=False,
        )
    raise UnsupportedProblem(f"this torch takes no such scales: {'; '.join(refusals)}")


def _int_mm(case: Case, fresh: bool) -> Call:
    if fresh:
        return lambda: torch()._int_mm(case.left, case.right)
    out = case.out(S32)
    return lambda: torch()._int_mm(case.left, case.right, out=out)


def _mm(case: Case, fresh: bool) -> Call:
    if fresh:
        return lambda: torch().mm(case.left, case.right)
    out = case.out(case.problem.a)
    return lambda: torch().mm(case.left, case.right, out=out)


def _fp8_pair(p: Problem) -> bool:
    return p.a in FP8 and p.b in FP8


TORCH = (
    Provider(
        name="torch.mm",
        library="torch",
        takes=lambda p: p.a in (BF16, F16),
        make=_mm,
        scaling="plain",
    ),
    Provider(
        name="torch._scaled_mm",
        library="torch",
        takes=_fp8_pair,
        make=_scaled_tensor,
        scaling="plain",
        fast=quick,
    ),
    Provider(
        name="torch._scaled_mm rows",
        library="torch",
        takes=lambda p: _fp8_pair(p) and _out_dtype(p) == BF16,
        make=_scaled_rows,
        scaling="rows",
        fast=quick,
    ),
    Provider(
        name="torch._scaled_mm blocks",
        library="torch",
        takes=lambda p: p.family == "fp8_block" and p.a == p.b == E4M3,
        make=_scaled_blocks,
        scaling="blocks",
    ),
    Provider(
        name="torch._int_mm",
        library="torch",
        takes=lambda p: p.a.integer,
        make=_int_mm,
        scaling="plain",
    ),
)


def torch_reference(p: Problem) -> Provider:
    """The provider that `reference` names."""
    return next(x for x in TORCH if x.name == reference(p))


def scaling_of(provider: Provider, p: Problem) -> str:
    """How `provider` scales the operands of `p`."""
    return provider.scaling or scaling(p)
