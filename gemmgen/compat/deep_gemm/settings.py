"""DeepGEMM's process-wide settings. What a setting would change and cannot is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ... import ops
from ...errors import ArgumentError
from ...ir.groupings import ALIGNMENTS
from ...ops.names import ArgumentNames
from ...runtime import driver, sms
from ...runtime.torch_tensors import torch
from .renamed import renamed

HOPPER_ALIGNMENT = 128


@dataclass(frozen=True, kw_only=True)
class Settings:
    """alignment: of the rows where groups begin. tc_util: percent, block_multiples: of tiles' rows and columns; both of no
    effect here."""

    alignment: int = HOPPER_ALIGNMENT
    tc_util: int = 100
    block_multiples: tuple[int, int] = (1, 1)


_settings = Settings()


def set_num_sms(new_num_sms: int) -> None:
    """SMs that launches take from now on, 0 for all: `gemmgen.ops.limit_sms`, so at least 8. Raises
    ArgumentError, also for more than torch's current device has."""
    there = driver.sm_count(torch().cuda.current_device())
    if not isinstance(new_num_sms, int) or not 0 <= new_num_sms <= there:
        raise ArgumentError("new_num_sms", new_num_sms, f"must be from 0 to {there}")
    with ArgumentNames(names={"count": "new_num_sms"}):
        ops.limit_sms(new_num_sms or None)


def get_num_sms() -> int:
    """SMs that a launch takes on torch's current device: what was set, else all."""
    return sms.usable(torch().cuda.current_device())


@renamed(value="new_value")
def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """The rows to whose multiples groups are aligned: a multiple of 64, which is what a tile of Hopper's has. Raises
    ArgumentError."""
    global _settings
    if not _is_positive(new_value) or new_value % min(ALIGNMENTS):
        raise ArgumentError("new_value", new_value, f"must be a multiple of {min(ALIGNMENTS)}")
    _settings = replace(_settings, alignment=new_value)


def alignment() -> int:
    """As `gemmgen.ops` takes it: the largest that divides what was set, so that groups which begin at multiples of that
    begin at multiples of this."""
    return next(x for x in ALIGNMENTS if _settings.alignment % x == 0)


def get_mk_alignment_for_contiguous_layout() -> int:
    """What was set, 128 if nothing was."""
    return _settings.alignment


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """What a GPU would like best: 128 on Hopper, whatever `expected_m` and `num_groups` are."""
    return HOPPER_ALIGNMENT


def set_tc_util(new_tc_util: int) -> None:
    """Percent of the tensor cores' time, 0 for all: kept, of no effect on Hopper, as in DeepGEMM."""
    global _settings
    if not isinstance(new_tc_util, int) or not 0 <= new_tc_util <= 100:
        raise ArgumentError("new_tc_util", new_tc_util, "must be from 0 to 100")
    _settings = replace(_settings, tc_util=new_tc_util or 100)


def get_tc_util() -> int:
    """What was set, 100 if nothing was."""
    return _settings.tc_util


def set_pdl(new_enable_pdl: bool) -> None:
    """Whether launches begin while the ones before them end, of all of gemmgen: `gemmgen.ops.set_pdl`. Raises ArgumentError."""
    with ArgumentNames(names={"on": "new_enable_pdl"}):
        ops.set_pdl(new_enable_pdl)


def get_pdl() -> bool:
    """What was set, at first False: `gemmgen.ops.is_pdl`."""
    return ops.is_pdl()


def use_deterministic_algorithms(enable: bool) -> None:
    """Whether products are added up in an order that N, K, dtypes and the family alone decide, in all of gemmgen:
    `gemmgen.ops.set_invariant`. Raises ArgumentError.

    DeepGEMM 2.8.1 leaves BF16 products to cuBLASLt unless this is True, for repeatable bits. Here no library is called, and a call's
    bits are the same every time, whatever was set; True makes a row's bits independent of M too, of BF16 and of FP8.
    """
    with ArgumentNames(names={"on": "enable"}):
        ops.set_invariant(enable)


def get_deterministic_algorithms() -> bool:
    """What was set, at first what the environment variable GEMMGEN_INVARIANT says: `gemmgen.ops.is_invariant`. Raises ArgumentError."""
    return ops.is_invariant()


def set_ignore_compile_dims(new_value: bool) -> None:
    """Of no effect: kernels here never have a size compiled in, which is what True asks for."""
    if not isinstance(new_value, bool):
        raise ArgumentError("new_value", new_value, "must be a bool")


@renamed(value="new_value")
def set_block_size_multiple_of(new_value: int | tuple[int, int]) -> None:
    """What tiles' rows and columns are multiples of, one number or two: kept, of no effect. It limits which kernels DeepGEMM
    takes; no result, and nothing that a caller may read, depends on tiles here. Raises ArgumentError."""
    global _settings
    pair = (new_value, new_value) if isinstance(new_value, int) else new_value
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_positive, pair)):
        raise ArgumentError("new_value", new_value, "must be a positive integer or two in a tuple")
    _settings = replace(_settings, block_multiples=pair)


def _is_positive(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x > 0
