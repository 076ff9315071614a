"""The environment variables that are read, and a warning for those that only look like one."""

from __future__ import annotations

import os
import warnings
from difflib import get_close_matches
from functools import lru_cache

PREFIX = "GEMMGEN_"
CACHE, CACHE_PATH, CACHE_BYTES = "GEMMGEN_CACHE", "GEMMGEN_CACHE_PATH", "GEMMGEN_CACHE_BYTES"
TUNED, INVARIANT = "GEMMGEN_TUNED", "GEMMGEN_INVARIANT"
CALIBRATED, PROGRESS = "GEMMGEN_CALIBRATED", "GEMMGEN_PROGRESS"
AS_DEEP_GEMM = "GEMMGEN_AS_DEEP_GEMM"
# Not ours: torchrun's, for the processes that it starts.
RANK, WORLD_SIZE = "RANK", "WORLD_SIZE"
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
KNOWN = (CACHE, CACHE_PATH, CACHE_BYTES, TUNED, CALIBRATED, INVARIANT, PROGRESS, AS_DEEP_GEMM)


def unknown() -> dict[str, str]:
    """Variables of ours by their names' beginning that nothing reads, and the nearest that something does."""
    names = sorted(x for x in os.environ if x.upper().startswith(PREFIX) and x not in KNOWN)
    return {x: get_close_matches(x.upper(), KNOWN, n=1, cutoff=0.0)[0] for x in names}


@lru_cache(maxsize=1)
def warn_of_unknown() -> None:
    """One warning of each, once a process: a name misspelt would otherwise be passed over in silence."""
    for name, nearest in unknown().items():
        text = f"{name} is not read; the nearest that is: {nearest} (all: {', '.join(KNOWN)})"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
