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
from ..recipes import recipe
from ..runtime.torch_tensors import torch, torch_dtype
from .cases import Case, columns, laid, output, scaling
from .select import Offer

Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Provider(Offer):
    """One row of a table.

    make: its call; `fresh` for what a user writes: scales as a quantiser leaves them (row by row), a new
    output. scaling: how it scales, of `cases.SCALINGS` ("" as gemmgen does). fast: whether it sums FP8 in
    14 bits beyond 128 of K. whole: whether it computes the problem's epilogue too; others give the product.
    """

    make: Callable[[Case, bool], Call]
    scaling: str = ""
    fast: Callable[[Problem], bool] = lambda p: False
    whole: bool = False


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    if p.a.integer:
        return "torch._int_mm"
    return "torch._scaled_mm" if p.a in FP8 else "torch.mm"


def fast(p: Problem) -> bool:
    """Whether gemmgen's call of `p` leaves FP8 sums in the tensor core, and the reference's does."""
    return p.a in FP8 and not recipe(p.family).promotes


def gemmgen(config: Config) -> Provider:
    return Provider(
        name="gemmgen",
        library="gemmgen",
        takes=lambda p: True,
        make=lambda case, fresh: ours(case, config, fresh),
        fast=fast,
        whole=True,
    )


def ours(c: Case, config: Config, fresh: bool) -> Call:
    """One call of `ops.multiply`, whose result it returns; added to D in place if the problem says so."""
    p, given = c.problem, dict(c.given)
    if recipe(p.family).scaled:
        given |= laid(c.scale_a, None if p.form else c.scale_b, fresh)
    m, n, _ = c.shape
    given |= {} if fresh and not p.accumulate else {"out": output(p, (m,), n, c.a.device)}
    given |= columns(p, n)
    return lambda: ops.multiply(p, c.a, c.b, config=config, **given)


def out_dtype(p: Problem) -> DType:
    """What `torch._scaled_mm` writes: the problem's dtype, BF16 beside weight gradients and FP8."""
    return BF16 if recipe(p.family).scales_columns or p.quantised else p.d


def _scaled(case: Case, fresh: bool, scale_a: Any, scale_b: Any, quick: bool) -> Call:
    """`torch._scaled_mm` with these scales."""
    written = out_dtype(case.problem)
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
    r = recipe(p.family)
    return r.scaled or not r.promotes


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
        dtype = torch_dtype(out_dtype(case.problem))
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
        takes=lambda p: _fp8_pair(p) and out_dtype(p) == BF16,
        make=_scaled_rows,
        scaling="rows",
        fast=quick,
    ),
    Provider(
        name="torch._scaled_mm blocks",
        library="torch",
        takes=lambda p: recipe(p.family).scales_blocks and p.a == p.b == E4M3,
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
