"""What a layer of experts launches: functions, or torch's operators of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Calls:
    """What a layer launches, in this order: functions of `gemmgen.ops`, or torch's operators of them. plain: of 16
    bits. blocks, quantised: of FP8, with a wide result and with one in FP8. by_row, integers: of FP8 and of INT8, with a scale per row
    and per column. coded, coded_by_row, coded_by_block: of packed weights of 4 bits, by 16 bits and by FP8 with a scale per row, and per row and 128 columns. octets: of 8 bits, by 16 bits."""

    route: Callable[..., Any]
    quantise_rows: Callable[..., Any]
    spread: Callable[..., Any]
    plain: Callable[..., Any]
    blocks: Callable[..., Any]
    quantised: Callable[..., Any]
    by_row: Callable[..., Any]
    integers: Callable[..., Any]
    coded: Callable[..., Any]
    coded_by_row: Callable[..., Any]
    coded_by_block: Callable[..., Any]
    octets: Callable[..., Any]
