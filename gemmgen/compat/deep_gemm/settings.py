"""DeepGEMM's process-wide settings. What a setting would change and cannot is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ... import ops
from ...errors import ArgumentError
from ...problem import ALIGNMENTS
from ...runtime import driver, sms
from ...runtime.torch_tensors import torch
from ..names import ArgumentNames

HOPPER_ALIGNMENT = 128


@dataclass(frozen=True, kw_only=True)
class Settings:
    """alignment: of the rows where groups begin. tc_util: percent, of no effect on Hopper."""

    alignment: int = HOPPER_ALIGNMENT
    tc_util: int = 100


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


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """The rows to whose multiples groups are aligned: 128 or 64. Raises ArgumentError."""
    global _settings
    if new_value not in ALIGNMENTS:
        raise ArgumentError("new_value", new_value, f"must be one of {ALIGNMENTS}")
    _settings = replace(_settings, alignment=new_value)


def get_mk_alignment_for_contiguous_layout() -> int:
    """What was set, 128 if nothing was."""
    return _settings.alignment


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """What a GPU would like best: 128 on Hopper, whatever `expected_m` is."""
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
    """Programmatic dependent launch: off. Raises ArgumentError for True."""
    if new_enable_pdl:
        allowed = "must be False: gemmgen.ops takes Config(pdl=True) for a call, there is no switch for all"
        raise ArgumentError("new_enable_pdl", new_enable_pdl, allowed)


def get_pdl() -> bool:
    """False."""
    return False


def set_ignore_compile_dims(new_value: bool) -> None:
    """Of no effect: kernels here never have a size compiled in, which is what True asks for."""
    if not isinstance(new_value, bool):
        raise ArgumentError("new_value", new_value, "must be a bool")


def set_block_size_multiple_of(new_value: int | tuple[int, int]) -> None:
    """Restricts tiles in DeepGEMM; here 1 or (1, 1) only. Raises ArgumentError for others."""
    if new_value not in (1, (1, 1)):
        raise ArgumentError("new_value", new_value, "must be 1 or (1, 1): tiles are chosen freely")
