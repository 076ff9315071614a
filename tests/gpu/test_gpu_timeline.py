"""On a Hopper GPU: kernels with stamps compute what they compute without, and their stamps are complete, in order
and monotone. What stamps cost is printed (`-s` shows it) and never judged."""

from __future__ import annotations

import json

import pytest
from test_measured_timeline import Case, of

from gemmgen.check.unroll import unroller
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.gallery import exhibit
from gemmgen.pipeline import compile_to_source
from gemmgen.see.instance import instance
from gemmgen.see.measured import measured
from gemmgen.see.rings import rings
from gemmgen.see.simulate import WHOLE

pytestmark = pytest.mark.gpu

STAMPS = 4096
CASES = {
    "dense": of("dense", (4096, 4096, 1024)),
    "dense in flight": of("dense-in-flight-multicast", (2050, 1000, 777)),
    "fp8": of("fp8_block/base", (4096, 7168, 2048)),
    "cluster": of("fp8_block/two_wave_multicast_a", (2048, 4096, 1024)),
    "loop per split": of("fp8_block/n144", (1024, 576, 1024)),
    "split": of("fp8_block/split_k", (64, 512, 4096)),
    "swapped": of("fp8-swap-waves", (100, 4096, 1024)),
    "overlapping": Case(
        problem=exhibit("dense/n256").problem, config=Config(pdl=True), shape=(512, 512, 512)
    ),
    "ragged": of("fp8-masked-multicast", (512, 1024, 512), sizes=(300, 0, 512, 65, 129)),
    "depths": of("fp8-1d1d-k_flat", (512, 512, 4096), sizes=(1024, 0, 2560, 512)),
}


def loaded(case: Case, stamps: int):
    from gemmgen.runtime.cache import cached_cubin
    from gemmgen.runtime.launch import LoadedKernel

    a = compile_to_source(case.problem, case.config, stamps=stamps)
    return LoadedKernel(a.kernel, cached_cubin(a.source, a.name), 0, a.source)


def launched(case: Case, stamps: int):
    """D's elements, and the rings of one launch over random data."""
    from gemmgen.runtime.gpu import Gpu
    from gemmgen.verification import random_normal
    from gemmgen.verification.trial import output, pitches

    program, machine = loaded(case, stamps), Gpu()
    operands = random_normal(case.problem, *case.shape, 5, case.layout)
    strides = pitches(program.kernel, case.shape)
    d = output(case.problem, operands, strides)
    after = machine.execute(program, operands, strides, d, 0xFF)
    found = rings(program.kernel, machine.stamps[0].tobytes()) if stamps else ()
    return program.kernel, after, found


def program_of(case: Case, kernel):
    from gemmgen.runtime import sms
    from gemmgen.runtime.launch import grid

    ctas = grid(kernel, case.shape, sms.usable(0), case.layout.groups)
    return unroller(kernel, WHOLE).program(instance(kernel, case.shape, ctas, case.layout)), ctas


@pytest.mark.parametrize("name", CASES)
def test_d_is_right(name):
    from gemmgen.runtime.gpu import Gpu
    from gemmgen.verification.trial import judge

    case = CASES[name]
    program = loaded(case, STAMPS)
    judge(Gpu(), program, program.kernel, case.problem, case.shape, 1, 0, case.layout)


@pytest.mark.parametrize("name", CASES)
def test_stamps_change_no_bit_of_d(name):
    case = CASES[name]
    (_, stamped, _), (_, plain, _) = launched(case, STAMPS), launched(case, 0)
    assert (stamped == plain).all()


@pytest.mark.parametrize("name", CASES)
def test_stamps_are_complete_in_order_and_monotone(name):
    """`measured` raises where a stamp is missing or is not the one that the kernel's IR says."""
    from test_timeline import ROUND

    kernel, _, found = launched(CASES[name], STAMPS)
    program, ctas = program_of(CASES[name], kernel)
    assert len(found) == ctas * kernel.threads // 128
    for ring in found:
        at = [ring.opened, *(s.at for s in ring.newest), ring.closed]
        assert at == sorted(at) and ring.opened_ns <= ring.closed_ns
        assert at[-1] - at[0] < 1 << 30, "half a second"
    m = measured(program, ROUND, found)
    assert not any(m.lost) and m.timeline.end > 0
    print(
        f"{name}: {m.timeline.end:,} cycles, {m.clock_hz / 1e9:.3f} GHz, CTAs start in {m.starts} ns"
    )


def test_a_full_ring_keeps_the_newest():
    case = CASES["fp8"]
    _, _, whole = launched(case, STAMPS)
    _, _, short = launched(case, 64)
    for few, every in zip(short, whole, strict=True):
        assert few.count == every.count and few.lost == every.count - 64
        assert [(s.event, s.tile, s.k) for s in few.newest] == [
            (s.event, s.tile, s.k) for s in every.newest[-64:]
        ]


@pytest.mark.parametrize(
    ("name", "shape"),
    (
        ("fp8_block/base", (4096, 7168, 2048)),
        ("dense/n256", (4096, 4096, 4096)),
        ("fp8_block/two_wave_multicast_a", (4096, 4096, 4096)),
        ("fp8_block/split_k", (64, 512, 4096)),
    ),
)
def test_the_command(name, shape, tmp_path, capsys):
    page, trace = tmp_path / "t.html", tmp_path / "t.json"
    sides = [
        x for letter, side in zip("mnk", shape, strict=True) for x in (f"-{letter}", str(side))
    ]
    argv = ["timeline", name, *sides, "--device", "gpu", "--json"]
    assert main([*argv, "--html", str(page), "--trace", str(trace)]) == 0
    found = json.loads(capsys.readouterr().out)
    own = found["measured"]
    assert own["cycles"] > 0 and 0.2e9 < own["clock_hz"] < 2.2e9
    for w in own["warpgroups"]:
        spent = sum(w["work"].values()) + sum(w["waits"].values())
        assert w["begins"] + spent + w["over"] == own["cycles"]
    processes = {
        e["args"]["name"]
        for e in json.loads(trace.read_text())["traceEvents"]
        if e["name"] == "process_name"
    }
    assert {"simulated CTA 0", "measured CTA 0"} <= processes
    assert ", measured" in page.read_text()
    with capsys.disabled():
        share = found["cycles"] / own["cycles"]
        print(
            f"\n{name} {shape}: {found['facts']['stamps cost']}; simulated {share:.1%} of the measured cycles"
        )
