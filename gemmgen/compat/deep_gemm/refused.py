"""DeepGEMM's names that have no function here, and why: calling one raises UnsupportedProblem."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache
from typing import Any, NoReturn

from ...errors import UnsupportedProblem

MEGA = "a kernel of Blackwell GPUs (SM100) over symmetric memory; gemmgen generates for Hopper"
FP4 = "FP4 operands need Blackwell (SM100); Hopper's wgmma has FP8 and INT8"
DISTRIBUTED = "set up torch.distributed yourself: gemmgen starts no processes"

REASONS = {
    **dict.fromkeys(
        (
            "SymmBuffer",
            "get_symm_buffer_for_mega_moe",
            "transform_weights_for_mega_moe",
            "fp8_fp4_mega_moe",
            "bf16_mega_moe",
        ),
        MEGA,
    ),
    **dict.fromkeys(("per_token_cast_to_fp4", "transpose_packed_fp4", "cast_back_from_fp4"), FP4),
    **dict.fromkeys(("init_dist", "uneven_all_gather", "dist_print"), DISTRIBUTED),
}

OF_ROWS = (
    "the table tells each row's group, and gathering asks where groups end, in their order: "
    "gemmgen.ops.grouped_gemm(rows=, group_ends=)"
)
ALONG_K = "no kernel gathers along K: select the rows, then call k_grouped_bf16_gemm_tn_contiguous"
LEGACY = {
    **{f"a_fused_m_grouped_bf16_gemm_{x}_contiguous_tl": OF_ROWS for x in ("nt", "nn")},
    **{f"{x}_fused_k_grouped_bf16_gemm_tn_contiguous_tl": ALONG_K for x in ("a", "b")},
}


@cache
def refusal(name: str) -> Callable[..., NoReturn]:
    """What stands for `name`, one of REASONS or LEGACY: it can be imported, so that programs which never call it run."""
    why = f"{name}: {(REASONS | LEGACY)[name]}"

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedProblem(why)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"{why}. Raises UnsupportedProblem."
    return refuse


def refusals(module: str, names: Container[str] = REASONS) -> Callable[[str], Any]:
    """A module's `__getattr__`: the refusal of a name that DeepGEMM has there, AttributeError for others."""

    def found(name: str) -> Any:
        if name in names:
            return refusal(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return found
