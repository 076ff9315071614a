"""`gemmgen tune --calibrate`: what this GPU does, measured, and kept for every choice from then on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..bench.tuning import calibrate
from ..errors import ArgumentError, GemmgenError
from ..ops import limits
from ..ops.building import forget_figures
from ..runtime import calibrated, devices, driver
from ..runtime.calibrated import Calibration
from ..target import Target
from . import given
from .tune_steps import check_effort, compiled, cubins_in, say, settings

USED = ("calibrate", "cubins", "timeout", "processes")


def main(args: argparse.Namespace) -> int:
    """Raises GemmgenError for figures that no such GPU has; then nothing is written."""
    given.refuse(args, given.others(args, *USED), "cannot be given with --calibrate")
    check_effort(args)
    device = driver.require_hopper(0)
    _check_whole()
    assumed = devices.assumed_of(0, device)
    with cubins_in(args) as folder:
        found = _measured(args, device, folder)
    try:
        calibrated.check(found, assumed)
    except ArgumentError as e:
        asked = "Nothing was written; is something else running on this GPU?"
        raise GemmgenError(f"{device}: {e}. {asked}") from e
    path = _kept(found, assumed)
    forget_figures()
    print(_json(found, assumed, path) if args.json else text(found, assumed, path))
    return 0


def _check_whole() -> None:
    """Raise ArgumentError where kernels may not take the whole GPU, or there is nowhere to write."""
    most, there = limits.sm_limit(), driver.sm_count(0)
    if most is not None and most < there:
        raise ArgumentError("sms", most, f"must be all {there} of the GPU to calibrate it")
    calibrated.own_folder()


def _measured(args: argparse.Namespace, device: str, folder: Path) -> Calibration:
    from ..bench.tuning.trial import HANDLER
    from ..bench.tuning.worker import Worker

    built = compiled(args, [*calibrate.KERNELS], folder)
    say("reading memory and multiplying for about half a minute")
    of = settings(args, device, reference=False)
    with Worker(HANDLER) as worker:
        return calibrate.measure(device, calibrated.attributes(0), built, worker, of)


def _kept(found: Calibration, assumed: Target) -> Path:
    try:
        return calibrated.keep(found, assumed)
    except OSError as e:
        raise GemmgenError(f"{e.filename or calibrated.own_folder()}: {e.strerror or e}") from e


def text(found: Calibration, assumed: Target, path: Path) -> str:
    rates = ", ".join(
        f"{flops * 1e-12:.0f} TFLOP/s of {8 * size} bits" for size, flops in found.flops
    )
    measured = f"{found.read * 1e-12:.3f} TB/s read, {rates}, {found.launch * 1e6:.1f} us besides"
    return "\n".join(
        (
            f"{found.device}",
            f"measured:    {measured}",
            f"before:      {assumed.rates}",
            f"from now on: {found.target(assumed).rates}",
            f"kept in      {path}",
        )
    )


def _json(found: Calibration, assumed: Target, path: Path) -> str:
    data = {
        "device": found.device,
        **found.to_json(),
        "assumed": vars(assumed),
        "target": vars(found.target(assumed)),
        "file": str(path),
    }
    return json.dumps(data, indent=2)
