"""A setting of the whole process: SMs that GEMMs leave to others."""

from __future__ import annotations

from ..runtime import sms
from ..target import H200
from .building import kept_choice


def limit_sms(count: int | None) -> None:
    """Let every GEMM that is launched from now on, by any thread, take at most `count` SMs, None for all.

    The rest is free for kernels of other streams, communication for instance. Kernels are persistent: one
    CTA runs per SM, and fewer CTAs walk the same tiles. Configs are chosen for so many SMs. The result does
    not depend on the limit where the config does not. What a CUDA graph has captured, or `bind` has bound,
    keeps its own.
    count: at least 8, the SMs of the largest cluster; more than the GPU has are all. Raises ArgumentError.
    """
    sms.limit(count, H200)
    kept_choice.cache_clear()


def sm_limit() -> int | None:
    """What `limit_sms` was last given, None if nothing."""
    return sms.most
