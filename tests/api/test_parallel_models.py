"""`gemmgen.nn` under `parallelize_module` and `fully_shard`, on ranks of this machine, with float64 in the kernels' place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor.parallel", exc_type=ImportError)

import parallel_models  # noqa: E402
from ranks import ranks  # noqa: E402, F401

MODELS = ("mlp", "attention")
# What FP8 rounds differently: sums of K that ranks add up, each rounded, before they are quantised.
ALLOWED = {"linear": 0.01, "master": 0.04, "frozen": 0.04}


@pytest.mark.parametrize("sequence", (False, True))
@pytest.mark.parametrize("layer", ("linear", "master", "frozen"))
@pytest.mark.parametrize("model", MODELS)
def test_divided_model(ranks, model, layer, sequence):  # noqa: F811
    for count in (2, 4):
        ranks.run(parallel_models.divided_model, model, layer, sequence, count, ALLOWED[layer])


@pytest.mark.parametrize("model", MODELS)
def test_torchs_own_styles(ranks, model):  # noqa: F811
    for sequence in (False, True):
        given = (model, "linear", sequence, 2, ALLOWED["linear"], False)
        ranks.run(parallel_models.divided_model, *given)


@pytest.mark.parametrize(("fuse", "tokens"), ((False, 16), (None, 18)))
@pytest.mark.parametrize("layer", ("linear", "master", "frozen"))
def test_by_torchs_collectives(ranks, layer, fuse, tokens):  # noqa: F811
    """Where that is asked for, and where tokens do not divide."""
    given = ("mlp", layer, True, 4, 1.5 * ALLOWED[layer], True, fuse, tokens)
    ranks.run(parallel_models.divided_model, *given)


@pytest.mark.parametrize("fuse", (None, False))
@pytest.mark.parametrize("layer", ("linear", "master"))
@pytest.mark.parametrize("model", MODELS)
def test_a_decode_step(ranks, model, layer, fuse):  # noqa: F811
    ranks.run(parallel_models.decoded, model, layer, 4, 1.5 * ALLOWED[layer], fuse)


@pytest.mark.parametrize("layer", ("linear", "master", "frozen"))
def test_along_the_first_side(ranks, layer):  # noqa: F811
    ranks.run(parallel_models.along_the_first_side, layer)


@pytest.mark.parametrize("tensor_parallel", (False, True))
@pytest.mark.parametrize("layer", ("linear", "master"))
@pytest.mark.parametrize("model", MODELS)
def test_fully_sharded(ranks, model, layer, tensor_parallel):  # noqa: F811
    ranks.run(parallel_models.fully_sharded, model, layer, tensor_parallel)
    if tensor_parallel:
        ranks.run(parallel_models.fully_sharded, model, layer, True, True)


@pytest.mark.parametrize("layer", ("linear", "master", "frozen"))
@pytest.mark.parametrize("model", MODELS)
def test_states(ranks, model, layer):  # noqa: F811
    ranks.run(parallel_models.states, model, layer)


def test_a_wide_state_is_quantised_by_its_parts(ranks):  # noqa: F811
    ranks.run(parallel_models.wide_states)


def test_features_that_do_not_divide(ranks):  # noqa: F811
    found = ranks.run(parallel_models.features_that_do_not_divide)
    assert found == [("out_features", 256), ("in_features", 256)]


def test_experts(ranks):  # noqa: F811
    ranks.run(parallel_models.experts)


def test_between_torchs_own_styles(ranks):  # noqa: F811
    ranks.run(parallel_models.prepared)
