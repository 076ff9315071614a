"""Every call of vLLM's and SGLang's DeepGEMM wrappers, with what it passes: launched, or refused by name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from engine_calls import CALLS, REFUSED, SERVED, G, K, M, N, T
from fake_torch import bf16, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.compat import deep_gemm
from gemmgen.compat.deep_gemm import settings
from gemmgen.config import Config
from gemmgen.epilogues import mqa_logits
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.ops import invariance
from gemmgen.target import H200

PAGE = Path(__file__).parents[2] / "docs/deep-gemm-in-engines.md"
CONFIG = Config(block_m=64, block_n=64, consumers=1, stages=2)
RETURNS = {"transform_sf_into_required_layout", "get_mn_major_tma_aligned_tensor"}
SHAPES = {"contiguous": (M, N, K), "masked": (T, N, K), "nt": (M, N, K), "nn": (M, N, K)}
SCORES = Config(swap_ab=True, block_m=64, block_n=64, consumers=1, stages=2)
LAUNCHING = [c for c in CALLS if c.answer == SERVED and re.search("gemm_n[nt]|einsum", c.name)]
PRENORM = [c for c in CALLS if "prenorm" in c.name]
SCORING = [c for c in CALLS if c.answer == SERVED and c.name.endswith("_mqa_logits")]


def named(call) -> str:
    return f"{call.engine}, {call.site}"


@pytest.fixture(autouse=True)
def chosen(fake_torch, monkeypatch):
    monkeypatch.setattr(ops.building, "chosen", lambda *asked: CONFIG)
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: H200.device_name)
    monkeypatch.setattr(settings, "_settings", settings.Settings())
    monkeypatch.setattr(settings.driver, "sm_count", lambda device: 132)
    monkeypatch.setattr(sys.modules["torch"].cuda, "current_device", int, raising=False)
    monkeypatch.setattr(invariance, "asked", False)
    yield
    ops.set_pdl(False)
    ops.limit_sms(None)


@pytest.mark.parametrize("call", LAUNCHING, ids=named)
def test_what_is_launched(call, launches):
    args, kwargs = call.given()
    assert getattr(deep_gemm, call.name)(*args, **kwargs) is None
    (found,) = launches
    if "einsum" in call.name:
        assert found.problem.grouping == "batched" and found.shape == (M, 128, 512)
    else:
        assert found.shape == SHAPES[call.name.rpartition("_")[2]]
    groups = G if re.search("group", call.name) else 8 if "einsum" in call.name else 1
    assert found.values.get("groups", 1) == groups
    if "use_psum_layout" in kwargs:
        assert found.values["group_ends"] == args[3].address


@pytest.mark.parametrize("call", SCORING, ids=named)
def test_scores_are_launched(call, launches, monkeypatch):
    monkeypatch.setattr(ops.building, "chosen", lambda *asked: SCORES)
    args, kwargs = call.given()
    assert getattr(deep_gemm, call.name)(*args, **kwargs) is not None
    (found,) = launches
    if "paged" in call.name:
        assert found.problem.epilogue == mqa_logits(32, from_first=True) and found.problem.paged
        assert found.shape == (32, 512, 128) and found.values["groups"] == G
        return
    assert found.problem.epilogue == mqa_logits(32) and found.shape == (M * 32, 1024, 128)
    room = {*args[5:], *kwargs.values()} - {True, False}
    assert found.problem.compact == bool(room) and {found.values.get("d_room")} - {None} == room


def test_windows_by_sglangs_names(launches, monkeypatch):
    monkeypatch.setattr(ops.building, "chosen", lambda *asked: SCORES)
    call = next(c for c in SCORING if named(c) == "SGLang, logits of the indexer")
    (*args, start, end), kwargs = call.given()
    deep_gemm.fp8_mqa_logits(*args, start, end, **kwargs)
    deep_gemm.fp8_mqa_logits(*args, ke=end, ks=start, **kwargs)
    one, other = ({**found.values, "d": None} for found in launches)
    assert one == other and {start.address, end.address} <= {*one.values()}


@pytest.mark.parametrize("call", PRENORM, ids=named)
def test_hyper_connections_are_launched(call, launches, monkeypatch):
    """In one launch, behind that of the pairs, of as many products as there are splits."""
    made = []

    def pairs(b, **asked):
        made.append((b.shape, asked))
        return bf16(2 * (b.shape[0] + 1), b.shape[1])

    monkeypatch.setattr(deep_gemm.prenorm, "paired", pairs)
    args, kwargs = call.given()
    assert deep_gemm.tf32_hc_prenorm_gemm(*args, **kwargs) is None
    (found,) = launches
    assert made == [((24, K), {"squares": True, "tf32": True})]
    splits = 16 if args[2].dim() == 3 else 1
    assert found.problem.squares and found.shape == (M, 50, K // splits)
    assert found.values.get("groups", 1) == splits
    assert found.values["squares"] == args[3].data_ptr()


@pytest.mark.parametrize("call", [c for c in CALLS if c.answer == REFUSED], ids=named)
def test_what_is_refused_says_what(call, launches):
    args, kwargs = call.given()
    with pytest.raises(ArgumentError if call.argument else UnsupportedProblem) as e:
        getattr(deep_gemm, call.name)(*args, **kwargs)
    if call.argument:
        assert e.value.argument == call.argument
    else:
        assert str(e.value).find(call.name) >= 0
    assert not launches


@pytest.mark.parametrize(
    "call",
    [c for c in CALLS if c.answer == SERVED and c not in (*LAUNCHING, *SCORING, *PRENORM)],
    ids=named,
)
def test_what_answers_at_once(call, launches):
    args, kwargs = call.given()
    found = getattr(deep_gemm, call.name)(*args, **kwargs)
    if call.name in RETURNS:
        assert found is (args[0] if args else kwargs["sf"])  # it lies right
    elif "metadata" in call.name:
        assert found.shape == (133, 2)
    elif call.name.startswith("get_"):
        assert found == 128
    else:
        assert found is None
    assert not launches


def test_how_engines_ask_what_there_is():
    """By these, before they call anything."""
    absent = "get_compile_mode set_compile_mode mega_mhc fp8_mega_moe mega_moe_pre_dispatch_sm90"
    for name in absent.split():  # of other releases
        assert not hasattr(deep_gemm, name) and getattr(deep_gemm, name, None) is None
    assert deep_gemm.get_deterministic_algorithms() is False
    for call in CALLS:
        assert callable(getattr(deep_gemm, call.name, None))


@pytest.mark.parametrize("name", ("enable_overlap", "max_block_n", "signal"))
def test_overlap_of_a_single_batch_is_no_argument(name):
    call = next(c for c in CALLS if named(c) == "SGLang, masked experts")
    args, _ = call.given()
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        deep_gemm.fp8_m_grouped_gemm_nt_masked(*args, **{name: 1})


def test_the_page_lists_them():
    rows = re.findall(
        r"^\| (vLLM|SGLang) \| ([^|]+) \| `(\w+)` \|.*\| ([^|]+) \|$", PAGE.read_text(), re.M
    )
    said = {
        (engine, site, name, here.partition(" ")[0].rstrip(":,"))
        for engine, site, name, here in rows
    }
    assert said == {(c.engine, c.site, c.name, c.answer) for c in CALLS} and len(rows) == len(CALLS)
