"""`gemmgen.nn.parallel.ExpertParallel` on ranks of this machine, with float64 in the kernels' place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor.parallel", exc_type=ImportError)

import divided_experts  # noqa: E402
from ranks import ranks  # noqa: E402, F401

from gemmgen.nn.expert_ranks import room, slots  # noqa: E402


@pytest.mark.parametrize("count", (2, 4))
@pytest.mark.parametrize("case", ("two", "few", "one", "many", "all", "twice", "none"))
def test_bits_are_those_of_one_rank(ranks, case, count):  # noqa: F811
    """With experts that get nothing, one that gets all, and more choices than a rank has experts."""
    ranks.run(divided_experts.same_bits, count, case)


@pytest.mark.parametrize("tokens", (0, 1, 150))
def test_numbers_of_tokens(ranks, tokens):  # noqa: F811
    ranks.run(divided_experts.same_bits, 4, "two", tokens)


@pytest.mark.parametrize("kind", divided_experts.CODED)
def test_bits_of_weights_of_4_bits(ranks, kind):  # noqa: F811
    for count, case in ((2, "none"), (4, "two"), (4, "many")):
        ranks.run(divided_experts.same_bits, count, case, 21, kind)
    ranks.run(divided_experts.own_rows, kind)


def test_what_travels_to_weights_of_4_bits(ranks):  # noqa: F811
    """Rows of 16 bits, or codes with one scale, or one for each 128 columns."""
    ranks.run(divided_experts.what_travels, 4, 2, "mxfp4", None)
    ranks.run(divided_experts.what_travels, 2, 7, "mxfp4 by fp8", 4)
    ranks.run(divided_experts.what_travels, 2, 7, "int4 by fp8 blocks", 2 * 4)
    ranks.run(divided_experts.without_a_value, "mxfp4 by fp8")
    ranks.run(divided_experts.without_a_value, "int4 by fp8 blocks")


def test_states_of_weights_of_4_bits(ranks):  # noqa: F811
    for count in (2, 4):
        said = ranks.run(divided_experts.coded_states, count)
        assert "blocks are of e2m1_16_e4m3_f16" in said


@pytest.mark.parametrize(("kind", "bound"), (("bf16", 0.015), ("fp8", 0.1)))
@pytest.mark.parametrize("recompute", (False, True))
def test_experts_that_train(ranks, recompute, kind, bound):  # noqa: F811
    for count, case in ((2, "two"), (4, "none"), (4, "few"), (2, "many"), (2, "twice")):
        ranks.run(divided_experts.trains, count, case, kind, recompute, bound)


def test_a_mixture_that_trains(ranks):  # noqa: F811
    for count in (2, 4):
        ranks.run(divided_experts.trained_module, count)


@pytest.mark.parametrize("top", (1, 2, 7))
def test_rows_that_training_tells(ranks, top):  # noqa: F811
    ranks.run(divided_experts.rows_told, 4, top)


def test_what_training_refuses(ranks):  # noqa: F811
    assert ranks.run(divided_experts.training_refused) == [
        ("x dtype", "torch.float32"),
        ("w1 shape", "(2, 192, 160)"),
        ("chosen shape", "(3, 2)"),
        ("weights shape", "(1, 2)"),
        ("add dtype", "torch.float32"),
        ("x", "a DTensor"),
        ("add", "a DTensor"),
    ]


def test_one_rank_is_left_alone(ranks):  # noqa: F811
    ranks.run(divided_experts.one_rank)


def test_a_router_trains(ranks):  # noqa: F811
    ranks.run(divided_experts.routers_gradient)


@pytest.mark.parametrize(("count", "top"), ((2, 2), (2, 7), (4, 1)))
def test_what_travels(ranks, count, top):  # noqa: F811
    ranks.run(divided_experts.what_travels, count, top)


def test_the_host_asks_for_no_value(ranks):  # noqa: F811
    ranks.run(divided_experts.without_a_value)


def test_rows_of_a_ranks_own_experts(ranks):  # noqa: F811
    ranks.run(divided_experts.own_rows)


@pytest.mark.parametrize("source", (0, None))
def test_a_rank_keeps_its_own_experts(ranks, source):  # noqa: F811
    for count in (2, 4):
        ranks.run(divided_experts.kept, count, source)


KINDS = ("divided", "whole", "wide", "aliases", "projections", "own projections")


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_are_loaded(ranks, kind):  # noqa: F811
    for count in (2, 4):
        ranks.run(divided_experts.loaded, kind, count)


def test_made_empty(ranks):  # noqa: F811
    ranks.run(divided_experts.made_empty)


def test_states_that_are_refused(ranks):  # noqa: F811
    few, others, no_scales = ranks.run(divided_experts.states_refused)
    assert "size mismatch for gate_up" in few
    assert "Missing key" in others and "0.gate_proj.weight" in others
    assert "down: is torch.float8_e4m3fn and has no down_scale" in no_scales


def test_what_is_refused(ranks):  # noqa: F811
    assert ranks.run(divided_experts.refused) == [
        ("experts", "6"),
        ("module", "Linear"),
        ("module", "Linear"),
        ("module", "divided"),
        ("x", "requires a gradient"),
        ("x dtype", "torch.float32"),
        ("chosen shape", "(3, 2)"),
        ("chosen shape", "(8,)"),
        ("weights shape", "(1, 2)"),
        ("x", "a DTensor"),
        ("chosen dtype", "torch.float32"),
        ("weights dtype", "torch.float64"),
    ]


@pytest.mark.parametrize("top", (1, 2, 5, 8))
@pytest.mark.parametrize("held", (1, 2, 4, 8))
@pytest.mark.parametrize("distinct", (False, True))
def test_every_copy_has_a_row_of_its_own(top, held, distinct):
    """But copies of a token for one expert, which share theirs; inside the room of its token and its rank."""
    torch.manual_seed(top * held)
    tokens, rows = 40, room(top, held)
    chosen = (
        torch.rand(tokens, 8).topk(top).indices if distinct else torch.randint(8, (tokens, top))
    )
    found = {}
    for token, (experts, places) in enumerate(
        zip(chosen.tolist(), slots(chosen, held, 8 // held).tolist(), strict=True)
    ):
        for expert, place in zip(experts, places, strict=True):
            assert found.setdefault(place, (token, expert)) == (token, expert)
            assert place // rows == expert // held * tokens + token
    assert len(found) == len({*found.values()})
