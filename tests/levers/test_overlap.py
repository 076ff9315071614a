"""Launches that begin while the one before them ends: the proof, the emulator, the launch attribute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_museum import without
from kernels import DENSE, FP8
from mutation.host import Driver
from test_emulator import run

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emulator import Race
from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.runtime import launch

OVERLAPPING = Config(pdl=True, multicast="a")


def test_only_a_kernel_that_overlaps_waits():
    kinds = ir.LaunchDependents, ir.WaitForGrids
    assert not [s for s in lower(FP8, Config(multicast="a")).prologue if isinstance(s, kinds)]
    last = lower(FP8, OVERLAPPING).prologue[-2:]
    assert tuple(map(type, last)) == kinds


def too_early(kernel: ir.Kernel) -> ir.Kernel:
    """The ring's first load before the wait."""
    (load, *_) = (s for s in statements(kernel) if isinstance(s, ir.TmaLoad))
    *before, wait = kernel.prologue
    return replace(kernel, prologue=(*before, load, wait))


def led(kernel: ir.Kernel) -> ir.Kernel:
    *before, wait = kernel.prologue
    return replace(kernel, prologue=(*before, ir.If(when="cta_leader", body=(wait,))))


@pytest.mark.parametrize("broken", (without(ir.WaitForGrids), too_early, led))
def test_what_the_proof_refuses(broken):
    kernel = lower(FP8, OVERLAPPING)
    assert check(kernel).properties[-1] == "P15"
    with pytest.raises(ProtocolViolation, match="P15"):
        check(broken(kernel))


def test_the_proof_says_what_it_proved():
    assert str(check(lower(DENSE, Config(pdl=True)))).startswith("P1 to P13, P15 proved")
    assert str(check(lower(DENSE, Config()))).startswith("P1 to P13 proved")


STORE = "st.global.u32 [%d31], %r60;"
WAIT = "griddepcontrol.wait;"
LAUNCH = "griddepcontrol.launch_dependents;"


@pytest.mark.parametrize(
    "body", (WAIT + STORE, LAUNCH + WAIT + STORE, f"{WAIT} bar.sync 0; {STORE}")
)
def test_global_memory_after_the_wait(body):
    assert run(body, threads=64, overlaps=True)[:, 0].tolist() == list(range(64))


@pytest.mark.parametrize(
    "body",
    (
        STORE,
        STORE + WAIT,
        LAUNCH + STORE,
        "ld.global.u32 %r1, [%d31];" + WAIT,
        "red.global.add.u32 [%d31], 1;" + WAIT,
        f"setp.lt.u32 %p1, %r60, 40; @%p1 {WAIT} {STORE}",
    ),
)
def test_global_memory_before_the_wait(body):
    run(body, threads=64)  # the launch before is over
    with pytest.raises(Race, match="griddepcontrol"):
        run(body, threads=64, overlaps=True)


def test_the_launch_attribute(monkeypatch):
    monkeypatch.setattr(launch.driver, "driver", Driver)
    assert launch._attributes(lower(DENSE, Config())) == []
    (attribute,) = launch._attributes(lower(DENSE, Config(pdl=True)))
    assert attribute.id.endswith("PROGRAMMATIC_STREAM_SERIALIZATION")
    assert attribute.value.programmaticStreamSerializationAllowed == 1
