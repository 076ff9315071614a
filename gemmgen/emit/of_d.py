"""Numbers of D, and how threads that store some spell them."""

from __future__ import annotations

from typing import Any

from ..ir.dtypes import BF16, F16
from ..ir.nodes import Kernel
from ..ir.spelling import MINUS_INFINITY, folded
from ..ir.stores import E4M3_MAX, LEAST_AMAX

# A float as one number of D.
NARROWED = {
    BF16: "uint16_t(ptx::pack_bf16({}, 0))",
    F16: "uint16_t(ptx::pack_f16({}, 0))",
}


def numbers_of_d(kernel: Kernel) -> dict[str, Any]:
    """What templates may name."""
    of = NARROWED.get(kernel.buffer("smem_d").dtype, "{}")
    return {
        "of_d": of.format,
        "minus_infinity": MINUS_INFINITY,
        "e4m3_max": E4M3_MAX,
        "least_amax": LEAST_AMAX,
        "d_columns": folded(kernel, "shape_n"),
        "d_col": folded(kernel, "col"),
    }
