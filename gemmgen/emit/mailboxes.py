"""What templates name of the memory by which GPUs hand sums over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..ir.mailboxes import (
    counted,
    epoch_flag,
    last_of_parcel,
    of_rank,
    over,
    owed_flag,
    parcel_flag,
    passed,
)
from ..ir.nodes import Kernel


def mailboxes(kernel: Kernel) -> dict[str, Callable[..., str]]:
    """By name, what spells it."""
    of_kernel = (epoch_flag, owed_flag, of_rank, over, passed, counted, last_of_parcel)
    return {
        **{f.__name__: partial(f, kernel) for f in of_kernel},
        parcel_flag.__name__: parcel_flag,
    }
