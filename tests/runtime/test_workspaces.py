"""Whose the workspace is by which a launch's CTAs hand sums over: a stream's, or a capture's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_calls import dense
from fake_torch import fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.ops import calls
from gemmgen.runtime import workspaces
from gemmgen.runtime.torch_tensors import on_stream, torch

CONFIG = Config(block_m=64, block_n=48, consumers=1, stages=2, stream=True)
WIDER = Config(block_m=64, block_n=96, consumers=1, stages=2, stream=True)


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    monkeypatch.setattr(calls, "WORKSPACES", workspaces.Workspaces())


@pytest.fixture
def capture(monkeypatch):
    """Has the number of the capture that the current stream is in; 0: none."""
    state = SimpleNamespace(number=0)
    told = SimpleNamespace(CUstream=lambda handle: handle)
    monkeypatch.setattr(torch().cuda, "is_current_stream_capturing", lambda: state.number > 0)
    monkeypatch.setattr(workspaces.driver, "driver", lambda: told)
    monkeypatch.setattr(workspaces.driver, "call", lambda *a: (1, state.number, None))
    return state


def place(launches, stream: int = 0, config: Config = CONFIG) -> int:
    """Where a call on a stream has its workspace."""
    with on_stream(stream, 0):
        ops.gemm(**dense(config=config))
    plan = launches[-1]
    return plan.moved.get("partials", plan.values["partials"])


def test_launches_on_a_stream_share_one(launches):
    assert place(launches) == place(launches)
    assert place(launches, 9) == place(launches, 9) != place(launches)


def test_each_layout_has_one(launches):
    assert place(launches, config=WIDER) != place(launches)


def test_a_call_that_was_made_before_finds_its_stream_s(launches):
    given = dense(config=CONFIG)
    ops.gemm(**given)
    with on_stream(9, 0):
        ops.gemm(**given)
    ops.gemm(**given)
    first, there, again = (x.moved.get("partials", x.values["partials"]) for x in launches)
    assert again == first != there == place(launches, 9)


def test_each_capture_has_its_own(launches, capture):
    """Graphs may be replayed beside each other and beside launches."""
    outside, found = place(launches), []
    for number in (1, 2):
        capture.number = number
        found.append({place(launches), place(launches)})
    capture.number = 0
    assert [len(x) for x in found] == [1, 1] and not found[0] & found[1]
    assert outside not in found[0] | found[1] and place(launches) == outside
