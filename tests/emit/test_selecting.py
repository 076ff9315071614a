"""Generated selections: the PTX that NVRTC makes of them, emulated, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from select_reference import ROUNDING, SIGMOID, UNIT, emulate, reference

from gemmgen.codes import decode, encode
from gemmgen.emulator import IllegalAccess
from gemmgen.errors import IRError
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, FLOATS
from gemmgen.runtime.nvrtc import compile_cubin
from gemmgen.selecting import MOST_EXPERTS, SCORES, Selection, per_lane, source

nvrtc = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def compiler(request):
    if request.node.get_closest_marker("nvrtc"):
        pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def drawn(tokens, experts, dtype=F32, seed=0):
    """Logits that differ by so much that rounded scores are in the order of exact ones."""
    rng = np.random.default_rng(seed)
    places = np.argsort(rng.random((tokens, experts)), axis=1)
    return decode(encode((places - experts / 2) * (8 / experts), dtype), dtype)


def agree(logits, top, **said):
    options = {n: said.pop(n) for n in ("dtype", "pitch", "grid") if n in said}
    chosen, weights = emulate(logits, top, **said, **options)
    ids, wanted = reference(logits, top, **said)
    assert np.array_equal(chosen, ids)
    assert np.allclose(weights, wanted, rtol=ROUNDING, atol=0)
    return chosen, weights


@nvrtc
@pytest.mark.parametrize("renormalise", (False, True))
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scores(dtype, score, renormalise):
    """Of 16 bits some are equal: the first is taken."""
    agree(drawn(9, 60, dtype), 6, score=score, renormalise=renormalise, scale=2.5, dtype=dtype)


@nvrtc
@pytest.mark.parametrize("experts", (1, 7, 32, 33, 64, 100, 128, 200, 256, 384, 512))
def test_numbers_of_experts(experts):
    agree(drawn(5, experts, seed=experts), min(experts, 8), score="sigmoid")


@nvrtc
@pytest.mark.parametrize(("top", "shared"), ((1, 0), (1, 1), (8, 1), (8, 2), (31, 1), (32, 0)))
def test_numbers_of_choices(top, shared):
    agree(drawn(6, 64, seed=top), top, shared=shared, scale=2.5)


@nvrtc
@pytest.mark.parametrize("tokens", (1, 3, 4, 5, 29))
def test_numbers_of_tokens(tokens):
    """More than there are warps, among other numbers."""
    agree(drawn(tokens, 40, seed=tokens), 4, pitch=56)


@nvrtc
@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize(
    ("experts", "groups", "kept"),
    ((64, 4, 2), (64, 8, 4), (64, 8, 8), (64, 64, 12), (256, 8, 4), (512, 512, 9), (96, 3, 1)),
)
def test_groups(experts, groups, kept, biased):
    """With a bias a group is as large as its two largest scores; groups of one expert have but one."""
    rng = np.random.default_rng(groups)
    bias = rng.permutation(experts) / experts - 0.5 if biased else None
    said = {"bias": None if bias is None else bias.astype(np.float32).astype(np.float64)}
    agree(drawn(7, experts, seed=groups), 8, score="sigmoid", groups=groups, kept=kept, **said)


@nvrtc
def test_a_bias_chooses_and_does_not_weigh():
    bias = np.zeros(8)
    bias[5] = 10.0
    chosen, weights = emulate(np.zeros((3, 8)), 2, score="sigmoid", bias=bias)
    assert chosen.tolist() == [[5, 0]] * 3 and weights.tolist() == [[0.5, 0.5]] * 3


@nvrtc
def test_of_equals_the_first():
    assert emulate(np.zeros((5, 512)), 8)[0].tolist() == [[*range(8)]] * 5
    assert emulate(np.zeros((2, 64)), 4, groups=8, kept=2)[0].tolist() == [[0, 1, 2, 3]] * 2


@nvrtc
def test_scores_that_vanish():
    """Of logits of minus infinity, in kept groups; weights of nothing are 0."""
    logits = np.full((2, 64), -np.inf)
    logits[:, 63] = 0.0
    chosen, weights = emulate(logits, 4, groups=8, kept=1)
    assert chosen.tolist() == [[63, 56, 57, 58]] * 2 and weights.tolist() == [[1.0, 0, 0, 0]] * 2
    chosen, weights = emulate(np.full((1, 64), -np.inf), 3, score="sigmoid", groups=4, kept=2)
    assert chosen.tolist() == [[0, 1, 2]] and weights.tolist() == [[0.0] * 3]


@nvrtc
def test_what_is_no_number_is_the_largest():
    logits = np.zeros((1, 40))
    logits[0, 17], logits[0, 30] = np.nan, np.inf
    chosen, weights = emulate(logits, 3, score="sigmoid", renormalise=False)
    assert chosen.tolist() == [[17, 30, 0]]
    assert np.isnan(weights[0, 0]) and weights[0, 1:].tolist() == [1.0, 0.5]


def worst(edit=lambda text: text):
    """Relative error of sigmoids of logits down to where they are the least normal numbers: a sum, a division and an exponential are rounded, no more."""
    logits = np.linspace(-85.0, 20.0, 256, dtype=np.float32).astype(np.float64)[None]
    said = {"score": "sigmoid", "renormalise": False, "bias": -logits[0]}  # the least first
    chosen, weights = emulate(logits, 32, edit=edit, **said)
    wanted = 1 / (1 + np.exp(-logits[0][chosen[0]]))
    assert logits[0][chosen[0]].max() < -70
    return (np.abs(weights[0] - wanted) / wanted).max()


@nvrtc
def test_exponentials_are_right_to_their_last_bits():
    assert worst() <= SIGMOID * UNIT < worst(lambda text: text.replace("rest * LN_2", "0.0f"))


BREAKS = {
    "equal ones": ("if (keys[i] > own)", "if (keys[i] >= own)"),
    "the first": ("own == most ? at : 0xFFFFFFFF", "own == most ? at : 0"),
    "taken": ("if (first == i * 32 + lane) keys[i] = 0;", ""),
    "a bias": ("score[i] + __ldg(bias + expert)", "score[i]"),
    "two of a group": ("best > 1 && count > 1", "false"),
    "groups": ("all[(i * 32 + lane) / count] > 0.0f", "true"),
    "a weight": ("all[warp][i * 32 + lane] = score[i]", "all[warp][i * 32 + lane] = by[i]"),
    "a sum": ("sum += x;", "sum = x;"),
    "a factor": (" : weight, scale)", " : weight, 1.0f)"),
    "logits of nobody": ("expert < experts ? Logit::value(__ldg(from + expert)) : lowest()", "Logit::value(__ldg(from + expert))"),
    "keys of nobody": ("i * 32 + lane < experts ? key_of(by[i]) : 0", "key_of(by[i])"),
    "those that all have": ("experts + lane - top", "experts + lane"),
}  # fmt: skip


@nvrtc
@pytest.mark.parametrize("name", BREAKS)
def test_breaks_are_found(name):
    """By a mixture, by zeros, by scores that vanish, or by a bias below them."""

    def edit(text):
        found = text.replace(*BREAKS[name])
        assert found != text
        return found

    rng = np.random.default_rng(1)
    bias = (rng.integers(-4, 5, 60) / 8).astype(np.float64)
    grouped = {"score": "sigmoid", "bias": bias, "groups": 4, "kept": 2, "shared": 1}
    for logits, said in (
        (drawn(23, 60, seed=3), grouped | {"scale": 2.5}),
        (np.zeros((2, 60)), {}),
        (np.full((2, 60), -np.inf), {"score": "sigmoid"}),
        (np.zeros((2, 60)), {"score": "sigmoid", "bias": -np.ones(60)}),
    ):
        right = emulate(logits, 5, pitch=64, **said)
        try:
            found = emulate(logits, 5, pitch=64, edit=edit, **said)
        except IllegalAccess:
            return
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, right, strict=True)):
            return
    raise AssertionError("not found")


@pytest.mark.parametrize(
    "wrong",
    ({"logits": E4M3}, {"score": "tanh"}, {"per_lane": 3}, {"per_lane": 32}),
    ids=str,
)
def test_errors(wrong):
    with pytest.raises(IRError):
        Selection(**{"logits": F32, "score": "softmax", "per_lane": 1, **wrong})


@nvrtc
@pytest.mark.parametrize("n", (1, 2, 4, 8, 16))
@pytest.mark.parametrize("score", SCORES)
def test_it_compiles_without_spills(score, n):
    for logits in (BF16, F16, F32):
        kernel = Selection(logits=logits, score=score, per_lane=n)
        assert kernel.name in source(kernel) and source(kernel) == source(kernel)
        compile_cubin(source(kernel), kernel.name)
    assert per_lane(32 * n) == n and MOST_EXPERTS == 512
