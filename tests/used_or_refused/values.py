"""What calls in Python are drawn from: values right and wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gemmgen.config import Config

JUNK = st.sampled_from(
    [None, True, False, 0, -1, 3, 1.5, float("nan"), 10**30, "", "zz", "²", b"x", (), [], {}, [1], (1, 2, 3), object, np.int64(64), np.float32(2)]
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """function: its name. given: its arguments."""

    function: str
    given: dict[str, Any]


def mostly(right: st.SearchStrategy[Any], odd: int = 6) -> st.SearchStrategy[Any]:
    return st.integers(0, odd).flatmap(lambda n: right if n else JUNK)


def some(fields: dict[str, st.SearchStrategy[Any]], **always: st.SearchStrategy[Any]) -> Any:
    return st.fixed_dictionaries(always, optional=fields)


CONFIG = st.sampled_from(
    [
        Config(),
        Config(stages=2),
        Config(block_m=64, consumers=1),
        Config(stages=16),
        Config(block_n=256, stages=3),
    ]
)
