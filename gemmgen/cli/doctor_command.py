"""`gemmgen doctor`: what is installed, what is missing, and the one command that fixes it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

from ..errors import GemmgenError, RuntimeUnavailable
from ..runtime import driver, nvrtc
from ..runtime.devices import target_of


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at. `needed_for` says what does not work without it."""

    what: str
    found: str
    ok: bool
    needed_for: str
    fix: str = ""


def add(parser: argparse.ArgumentParser) -> None:
    del parser


def main(args: argparse.Namespace) -> int:
    findings = examine()
    if args.json:
        print(json.dumps([vars(f) for f in findings], indent=2))
    else:
        for f in findings:
            print(f"{'ok     ' if f.ok else 'missing'}  {f.what:<14} {f.found}")
            if not f.ok:
                print(f"         without it: no {f.needed_for}.  {f.fix}")
    return 0 if all(f.ok for f in findings) else 3


def examine() -> list[Finding]:
    return [
        Finding(what="python", found=python_version(), ok=True, needed_for="anything"),
        _package("jinja2", "emit", "pip install jinja2"),
        _package("numpy", "verification", "pip install numpy"),
        _package("cuda-bindings", "compile, run, bench", nvrtc.INSTALL),
        _probe(
            "nvrtc",
            lambda: ".".join(map(str, nvrtc.version())),
            "compile, run, bench",
            nvrtc.INSTALL,
        ),
        _package("torch", "run, bench, gemmgen.ops", "pip install torch"),
        _probe("driver", _driver_version, "run, bench", "Install NVIDIA driver 580 or newer."),
        _probe(
            "gpu",
            _gpu,
            "run, bench",
            "Use a machine with an H100 or H200.",
        ),
    ]


def _package(name: str, needed_for: str, fix: str) -> Finding:
    try:
        return Finding(what=name, found=version(name), ok=True, needed_for=needed_for)
    except PackageNotFoundError:
        fix = f"Run: {fix}"
        return Finding(what=name, found="not installed", ok=False, needed_for=needed_for, fix=fix)


def _probe(what: str, probe: Callable[[], str], needed_for: str, fix: str) -> Finding:
    try:
        return Finding(what=what, found=probe(), ok=True, needed_for=needed_for)
    except GemmgenError as e:
        return Finding(what=what, found=str(e), ok=False, needed_for=needed_for, fix=fix)


def _gpu() -> str:
    """Its name, and what configs are priced for."""
    name = driver.require_hopper(0)
    t = target_of(0, name)
    return f"{name}, priced as {t.name}: {t.rates}"


def _driver_version() -> str:
    """The newest CUDA the driver runs. Cubins of a newer major version would not load."""
    major, minor = driver.version()
    text = f"CUDA {major}.{minor}"
    if major < nvrtc.version()[0]:
        raise RuntimeUnavailable(f"the driver runs {text}, NVRTC is of CUDA {nvrtc.version()[0]}")
    return text
