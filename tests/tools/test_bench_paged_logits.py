"""What the benchmark of an indexer's scores of keys in pages asks for, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import PAGED

from gemmgen.bench import paged_logits as bench
from gemmgen.epilogues import mqa_logits
from gemmgen.errors import GemmgenError
from gemmgen.pipeline import lower


@pytest.mark.parametrize("heads", (32, 64))
@pytest.mark.parametrize("name", [name for name, config in bench.CONFIGS.items() if config])
def test_every_config_is_legal(name, heads):
    """Of one query, two and three."""
    p = replace(PAGED, epilogue=mqa_logits(heads, from_first=True))
    for queries, depth in ((1, 128), (2, 128), (3, 32)):
        config = bench.sized(bench.CONFIGS[name], queries * heads, depth)
        assert lower(p, config).block.m == min(queries * heads, 128)


@pytest.fixture
def scores():
    """Drawn operands, and right scores of them."""
    torch = pytest.importorskip("torch")
    from gemmgen import ops
    from gemmgen.torch_ops.paged_logits import on_cpu

    shape = bench.Shape(sequences=5, queries=2, mean=200, heads=32, depth=64)
    x = bench.drawn(shape, "cpu")
    views = ops.paged_cache(x.cache)
    given = (x.q, *views, x.weights, x.lengths, x.table, x.longest)
    return torch, x, on_cpu(*given)


def test_contexts_lie_around_the_mean_and_have_pages_of_their_own(scores):
    _, x, _ = scores
    last, less, more = x.lengths[:, 1], 1 - bench.SPREAD, 1 + bench.SPREAD
    assert ((last >= 200 * less) & (last <= 200 * more)).all()
    assert (x.lengths[:, 0] + 1 == x.lengths[:, 1]).all()
    named = x.table[x.table >= 0]
    assert sorted(named.tolist()) == list(range(len(x.cache)))
    assert (((x.table >= 0).sum(1) - 1) * 64 < x.lengths[:, 1]).all()
    assert x.read == int(x.lengths[:, 1].sum()) * 68


def test_right_scores_pass(scores):
    _, x, got = scores
    bench.verify(x, {bench.CHOSEN: lambda: got, bench.PEER: lambda: got.flatten(0, 1).clone()})


def test_wrong_ones_do_not(scores):
    torch, x, got = scores
    beside, longer, page = got.clone(), got.clone(), got.clone()
    beside[1, 1, 3] *= 1.0 + 2.0**-20
    with pytest.raises(GemmgenError, match="other differs from the chosen config in a bit"):
        bench.verify(x, {bench.CHOSEN: lambda: got, "other": lambda: beside})
    longer[0, 0, int(x.lengths[0, 0]) - 1] = -torch.inf
    with pytest.raises(GemmgenError, match="contexts"):
        bench.verify(x, {bench.CHOSEN: lambda: longer})
    page[2, 0, :64], page[2, 0, 64:128] = got[2, 0, 64:128], got[2, 0, :64]
    with pytest.raises(GemmgenError, match="differs from the product"):
        bench.verify(x, {bench.CHOSEN: lambda: page})
