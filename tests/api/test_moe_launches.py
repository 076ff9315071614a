"""The GEMMs of `ops.moe`: which problems are launched, over which part of the weights."""

from __future__ import annotations

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.argument_names import parameter
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.ops import building
from gemmgen.ops.mixture import CALLS, multiplied
from gemmgen.ops.mixture_weights import Experts
from gemmgen.target import H200

E, HIDDEN, INNER, ROWS, MEAN = 16, 1024, 512, 2560, 3


@pytest.fixture
def asked(monkeypatch):
    """What configs are chosen for: the rows of a group, as far as the host knows."""
    found, choice = [], building.loaded_choice

    def noted(p, shape, *rest):
        found.append(shape[0])
        return choice(p, shape, *rest)

    monkeypatch.setattr(building, "loaded_choice", noted)
    monkeypatch.setattr(building, "priced_for", lambda device: (H200.device_name, H200))
    return found


def placed(kind, order):
    dtype = {"fp8": "float8_e4m3fn", "bf16": "bfloat16"}[kind]
    w1, w2 = (Placed(E, *s, dtype=dtype) for s in ((2 * INNER, HIDDEN), (HIDDEN, INNER)))
    rows, ends = Placed(ROWS, HIDDEN, dtype=dtype), Placed(E, dtype="int32")
    if kind == "bf16":
        return Experts(w1=w1, w2=w2, order=order), rows, None, ends
    blocks = Placed(E, 2 * INNER // 128, HIDDEN // 128), Placed(E, HIDDEN // 128, INNER // 128)
    scale = Placed(HIDDEN // 128, ROWS).mT
    w = Experts(w1=w1, w2=w2, scale_w1=blocks[0], scale_w2=blocks[1], order=order)
    return w, rows, scale, ends


@pytest.mark.parametrize("order", ("alternating", "halves"))
@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_gemms(kind, order, launches, asked):
    w, rows, scale, ends = placed(kind, order)
    y = multiplied(CALLS, w, [rows, scale], ends, MEAN)
    assert (y.shape, y.dtype) == ((ROWS, HIDDEN), "bfloat16")
    hidden, last = E4M3 if kind == "fp8" else BF16, launches[-1]
    assert asked == [MEAN] * len(launches)
    assert all(
        x.problem.grouping == "ends" and x.values["group_ends"] == ends.address for x in launches
    )
    ends_of = [(x.problem.epilogue, x.problem.d) for x in launches]
    gates = {"alternating": ["swiglu"], "halves": ["none", "gated"]}[order]
    dtypes = [*[BF16] * (len(gates) - 1), hidden, BF16]
    assert ends_of == list(zip([EPILOGUES[x] for x in (*gates, "none")], dtypes, strict=True))
    size, pointers = w.w1.element_size(), [x.matrices["b"].pointer for x in launches]
    up = w.w1.address + INNER * HIDDEN * size
    assert pointers == [*[w.w1.address, up][: len(gates)], w.w2.address]
    assert last.matrices["a"].pointer == launches[-2].matrices["d"].pointer
    if order == "halves":
        assert launches[1].values[parameter("c")] == launches[0].matrices["d"].pointer
    assert {x.matrices["b"].group_stride for x in launches[:-1]} == {2 * INNER * HIDDEN}
    if kind == "fp8":
        scales = [x.values["scale_b"] for x in launches]
        up = w.scale_w1.address + INNER // 128 * (HIDDEN // 128) * 4
        assert scales == [*[w.scale_w1.address, up][: len(gates)], w.scale_w2.address]
