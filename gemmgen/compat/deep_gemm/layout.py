"""Layouts of scales that DeepGEMM's callers prepare by hand, and what they align groups to."""

from __future__ import annotations

from typing import Any

from ...errors import ArgumentError
from ...runtime.torch_tensors import mn_major
from ..scales import TMA_BYTES, check_scales
from .operands import sides

Recipe = tuple[int, ...]
BY_ROW, BY_BLOCK = (1, 128), (128, 128)


def ceil_div(x: int, y: int) -> int:
    """The least integer that is at least x / y."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of `y` that is at least `x`."""
    return ceil_div(x, y) * y


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """The least multiple of 16 bytes that holds `x` elements, in elements."""
    if element_size not in (1, 2, 4, 8, 16):
        raise ArgumentError("element_size", element_size, f"must divide {TMA_BYTES}")
    return align(x, TMA_BYTES // element_size)


def get_mn_major_tma_aligned_tensor(sf: Any) -> Any:
    """`sf`, float32 [rows, blocks] or [groups, rows, blocks], contiguous along the rows, with columns that
    begin at multiples of 16 bytes and groups that follow each other.

    It is `sf` itself if it lies like that, else a copy. Raises ArgumentError.
    """
    check_scales("sf", sf)
    *lead, rows, blocks = sf.shape
    pitch = get_tma_aligned_size(rows, 4)
    wanted = (*(pitch * blocks,) * len(lead), 1, pitch)
    whole = tuple(sf.stride()) == wanted and sf.data_ptr() % TMA_BYTES == 0
    return sf if whole else mn_major(sf)


def transform_sf_into_required_layout(
    sf: Any,
    mn: int,
    k: int,
    recipe: Recipe,
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Any = None,
) -> Any:
    """Scales of [mn, k] operands (of `num_groups`) as the kernels read them.

    recipe: (rows, K) that share a scale, `is_sfa` None; or (rows of A, rows of B, K), and `is_sfa` says
    whose. One per row: as `get_mn_major_tma_aligned_tensor`. One per 128 rows: `sf` itself, any strides.
    disable_ue8m0_cast, psum_layout: of no effect on Hopper. Raises ArgumentError.
    """
    shared = _granularity(sides("recipe", recipe), is_sfa)
    check_scales("sf", sf)
    lead = () if num_groups is None else (num_groups,)
    wanted = (*lead, ceil_div(mn, shared[0]), ceil_div(k, shared[1]))
    if tuple(sf.shape) != wanted:
        raise ArgumentError("sf shape", tuple(sf.shape), f"must be {[*wanted]}")
    return get_mn_major_tma_aligned_tensor(sf) if shared == BY_ROW else sf


def _granularity(recipe: Recipe, is_sfa: bool | None) -> Recipe:
    if (len(recipe) == 3) != (is_sfa is not None):
        raise ArgumentError("is_sfa", is_sfa, "goes with a recipe of three, and with no other")
    shared = recipe if is_sfa is None else (recipe[not is_sfa], recipe[2])
    if shared not in (BY_ROW, BY_BLOCK):
        allowed = f"rows and K that share a scale must be {BY_ROW} or {BY_BLOCK}"
        raise ArgumentError("recipe", recipe, allowed)
    return shared
