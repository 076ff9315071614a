"""What configs are priced for: the GPU that is there, by its name or by its attributes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from kernels import DENSE, FP8

from gemmgen.cli import _parser, main, options
from gemmgen.cost import cost
from gemmgen.heuristics import choose, tuned
from gemmgen.ops import building, limits
from gemmgen.runtime import calibrated, devices, driver
from gemmgen.target import BY_DEVICE, H100, H200, TARGETS, named

H20, PCIE = named("NVIDIA H20"), named("NVIDIA H100 PCIe")
ROW = (4096, 2112, 7168)  # that an H200 was tuned at
# Attributes as the driver has them: kHz, bits.
SXM = {
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 2619000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    "L2_CACHE_SIZE": 50 << 20,
}


@pytest.fixture
def gpu(monkeypatch):
    """One whose name and attributes are as told."""
    told = SimpleNamespace(name="NVIDIA H200", sms=132, attributes=dict(SXM))

    def attribute(device, name):
        return told.sms if name == "MULTIPROCESSOR_COUNT" else told.attributes[name]

    def forget():
        for kept in (driver.sm_count, devices.target_of, building.kept_choice):
            kept.cache_clear()

    monkeypatch.setattr(driver, "attribute", attribute)
    monkeypatch.setattr(building.driver, "require_hopper", lambda device: told.name)
    monkeypatch.setenv(tuned.VARIABLE, tuned.NONE)
    forget()
    yield told
    forget()


def test_the_table():
    assert len(BY_DEVICE) == len({t.name for t in TARGETS}) == len(TARGETS)
    assert named("NVIDIA H200") is H200 and named("NVIDIA H100 80GB HBM3") is H100
    assert named("NVIDIA A100") is None and (H20.sms, PCIE.sms) == (78, 114)
    peak = H20.sms * H20.fp8_flops_per_clock * H20.clock_hz
    assert peak == pytest.approx(296e12, rel=0.01), "its data sheet's"


def test_a_device_of_no_known_name_has_its_attributes(gpu):
    gpu.name, gpu.sms = "NVIDIA H99", 100
    found = devices.target_of(0, gpu.name)
    assert (found.name, found.sms) == ("NVIDIA H99", 100)
    assert found.hbm_bytes_per_second == pytest.approx(3.35e12, rel=0.01)
    assert found.clock_hz == pytest.approx(H200.clock_hz)
    assert found == replace(H200, name=found.name, device_name=found.name, sms=100, figures="assumed",
                            hbm_bytes_per_second=found.hbm_bytes_per_second, clock_hz=found.clock_hz,
                            link_bytes_per_second=None)  # fmt: skip


def test_what_the_driver_does_not_tell_is_an_h200s(gpu):
    gpu.attributes = dict.fromkeys(SXM, 0)
    found = devices.target_of(0, "NVIDIA H98")
    assert found.hbm_bytes_per_second == H200.hbm_bytes_per_second
    assert found.clock_hz == H200.clock_hz


SHAPES = [
    (m, n, k) for m in (16, 128, 1024, 4096) for n, k in ((2112, 7168), (7168, 2048), (4096, 4096))
]
# Which have other SMs or tensor cores than an H200, a problem and a shape where that shows, and by how much its choice then loses there.
OTHERS = {
    "H100 PCIe": (DENSE, (2048, 2112, 7168), 1.5),
    "H800 PCIe": (DENSE, (2048, 2112, 7168), 1.5),
    "H20": (FP8, (128, 2112, 7168), 1.4),
}
MEMORY = 1.08  # times the time that an H200's choice takes at most, where memory alone is slower


@pytest.mark.parametrize("t", TARGETS, ids=lambda t: t.name)
def test_each_is_priced_as_itself(gpu, t):
    """Where fewer SMs have fewer waves, or the tensor core is a quarter as fast, an H200's choice loses; where memory alone
    is slower it hardly does, for every config reads nearly the same."""
    gpu.name = t.device_name
    here = [ops_choice(FP8, s) for s in SHAPES]
    assert here == [choose(FP8, s, t) for s in SHAPES]
    if t.name not in OTHERS:
        for mine, s in zip(here, SHAPES, strict=True):
            theirs = choose(FP8, s, H200)
            assert cost(FP8, theirs, s, t).seconds < MEMORY * cost(FP8, mine, s, t).seconds
    else:
        p, shape, loss = OTHERS[t.name]
        mine, theirs = ops_choice(p, shape), choose(p, shape, H200)
        prices = [cost(p, c, shape, t).seconds for c in (theirs, mine)]
        assert prices[0] > loss * prices[1], "an H200's choice is priced so much higher there"


@pytest.mark.parametrize("t", TARGETS, ids=lambda t: t.name)
def test_attributes_alone_make_the_same_choices(gpu, monkeypatch, tmp_path, t):
    """Under a name that nobody knows. Of the tensor cores they tell nothing: an H20's choices need a calibration."""
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path))
    want = [choose(FP8, s, t) for s in SHAPES]
    told_by_attributes(gpu, t)
    found = devices.target_of(0, gpu.name)
    assert found.sms == t.sms and found.figures == "assumed"
    assert found.hbm_bytes_per_second == pytest.approx(t.hbm_bytes_per_second, rel=1e-3)
    assert ([ops_choice(FP8, s) for s in SHAPES] == want) == (t.name != "H20")
    share = t.flops_per_clock(1) / H200.flops_per_clock(1) * t.sms / H200.sms
    calibrated.keep(
        calibrated.Calibration(
            device=gpu.name,
            attributes=calibrated.attributes(0),
            read=calibrated.H200_READ * t.hbm_bytes_per_second / H200.hbm_bytes_per_second,
            launch=t.launch_seconds,
            flops=tuple((size, share * flops) for size, flops in calibrated.H200_FLOPS.items()),
        ),
        found,
    )
    devices.forget()
    building.kept_choice.cache_clear()
    assert devices.target_of(0, gpu.name).figures == "calibrated"
    assert [ops_choice(FP8, s) for s in SHAPES] == want


# Of few rows each CTA reads much, and a tile's K is worth halving while memory keeps up; of many rows waves of tiles decide.
FEW_ROWS, WAVES = (16, 4096, 4096), (1024, 2112, 7168)


@pytest.mark.parametrize("t", TARGETS, ids=lambda t: t.name)
def test_the_choice_differs_where_attributes_do(gpu, t):
    """Slower memory leaves K whole, another number of SMs takes another tile; what is neither chooses as an H200."""
    told_by_attributes(gpu, t)
    slower, others = t.hbm_bytes_per_second < H200.hbm_bytes_per_second, t.sms != H200.sms
    assert ops_choice(FP8, FEW_ROWS).split_k == (1 if slower else 2)
    assert (ops_choice(FP8, FEW_ROWS) != choose(FP8, FEW_ROWS, H200)) == slower
    here, there = ops_choice(FP8, WAVES), choose(FP8, WAVES, H200)
    tiles = [(c.block_m, c.block_n) for c in (here, there)]
    assert (tiles[0] != tiles[1]) == (here != there) == others


def told_by_attributes(gpu, t):
    """It has `t`'s, and a name that nobody knows."""
    gpu.name, gpu.sms = f"{t.device_name} of another name", t.sms
    gpu.attributes["MEMORY_CLOCK_RATE"] = round(t.hbm_bytes_per_second * 8 / 5120 / 2 / 1e3)


def ops_choice(p, shape):
    return building.chosen(p, shape)


def test_fewer_sms_may_still_be_allowed(gpu):
    gpu.name = H20.device_name
    try:
        limits.limit_sms(40)
        assert ops_choice(DENSE, (512, 4096, 4096)) == choose(
            DENSE, (512, 4096, 4096), replace(H20, sms=40)
        )
        limits.limit_sms(100)
        assert ops_choice(DENSE, (512, 4096, 4096)) == choose(DENSE, (512, 4096, 4096), H20)
    finally:
        limits.limit_sms(None)


def test_a_name_alone_says_which():
    assert (
        building.config_for(FP8, (1024, 7168, 2048), 1, PCIE.device_name)
        == building.picked_for(FP8, (1024, 7168, 2048), 1, PCIE.device_name, PCIE).config
    )


# ---- rows of an H200 ------------------------------------------------------------------------


@pytest.fixture
def shipped(monkeypatch):
    monkeypatch.delenv(tuned.VARIABLE, raising=False)


def test_a_row_serves_where_both_wait_for_the_same(shipped):
    """An H100 has the same SMs; an H20's tensor cores are what it waits for, and in other waves."""
    there = tuned.pick(FP8, ROW)
    assert there.row and there.source(ROW) == "tuned"
    here = tuned.pick(FP8, ROW, H100)
    assert here.config == there.config and here.source(ROW) == "tuned on NVIDIA H200"
    other = tuned.pick(FP8, ROW, H20)
    assert other.row is None and other.config == choose(FP8, ROW, H20)


def test_a_row_by_a_ring_gives_way_to_loads_into_registers_elsewhere(shipped):
    """No tuner tried those on an H200 with FP8; on an H100 they were quicker than such a row (tests/data/direct_fp8.csv)."""
    shape = (1, 24576, 1536)
    there, here = tuned.pick(FP8, shape), tuned.pick(FP8, shape, H100)
    assert there.row and not there.config.direct
    assert here.row is None and here.config.direct and here.source(shape) == "cost model"
    for given in ({"pointers": False}, {"split_k": 1}):
        kept = tuned.pick(FP8, shape, H100, **given)
        assert kept.config == there.config and kept.moved
    near = tuned.pick(FP8, (64, 24576, 1536), H100)
    assert near.moved and not near.config.direct


def test_what_an_h200_is_given_is_as_it_was(shipped):
    for shape in (ROW, (16, 576, 7168), (4096, 4096, 4096), (100, 3000, 1000)):
        found = tuned.pick(FP8, shape)
        assert not found.moved
        assert building.config_for(FP8, shape, 1, H200.device_name) == found.config


def test_explain_says_for_which(shipped, capsys):
    """On an H20 another config is the best, and its page says so."""
    sides = ("-m", "4096", "-n", "2112", "-k", "7168")
    texts = []
    for device in (H200.device_name, H20.device_name):
        assert main(["explain", "fp8_block", *sides, "--device", device]) == 0
        texts.append(capsys.readouterr().out)
    assert " on H200: " in texts[0] and " on H20: " in texts[1] and "of 78 SMs" in texts[1]
    assert main(["explain", "fp8_block", *sides, "--device", "NVIDIA A100"]) == 2
    assert "must be one of NVIDIA H200" in capsys.readouterr().err


def test_what_processes_choose_by_is_told_apart(gpu, monkeypatch, tmp_path):
    """Ranks of a group launch the same kernels only where it is the same: the figures, the databases, the compiler, whether bits depend on the batch."""
    monkeypatch.setattr(building.nvrtc, "build", lambda: "13.0 one")
    assert building.chosen_by(0) == building.chosen_by(0)
    found = {building.chosen_by(0)}  # no database
    database = tmp_path / "mine.jsonl"
    database.write_text("a row")
    monkeypatch.setenv(tuned.VARIABLE, str(database))
    found.add(building.chosen_by(0))
    monkeypatch.delenv(tuned.VARIABLE)
    found.add(building.chosen_by(0))
    monkeypatch.setattr(building.invariance, "asked", True)
    found.add(building.chosen_by(0))
    monkeypatch.setattr(building.invariance, "asked", False)
    monkeypatch.setattr(building.nvrtc, "build", lambda: "13.0 other")
    found.add(building.chosen_by(0))
    gpu.name = "NVIDIA H100 80GB HBM3"
    devices.target_of.cache_clear()
    found.add(building.chosen_by(0))
    assert len(found) == 6


def test_what_a_command_builds_is_chosen_for_its_gpu(monkeypatch):
    argv = ["run", "dense", "--grouping", "masked", "-m", "512", "-n", "1024", "-k", "1024"]
    real, asked = building.picked_for, []

    def picked(*given):
        asked.append(given[1:4])
        return real(*given)

    monkeypatch.setattr(building, "picked_for", picked)
    args = _parser(argv[:1]).parse_args(argv)
    config, source = options.built(args, lambda p, c: c, (512, 1024, 1024), PCIE.device_name, 3)
    assert asked == [((512, 1024, 1024), 3, PCIE.device_name)] and source == "cost model"
    options.built(args, lambda p, c: config, (512, 1024, 1024))
    assert asked[1:] == [((512, 1024, 1024), 1, H200.device_name)]
