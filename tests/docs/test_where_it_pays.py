"""docs/where-it-pays.md is what the cost model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools import where_it_pays
from docs.tools.where_it_pays import KINDS, PLACES, SHAPES, Kind
from gemmgen.cost_link import Hosts, Payoff

TEXT = (Path(__file__).parents[2] / "docs/where-it-pays.md").read_text()


def test_the_page_is_current():
    assert where_it_pays.page() == TEXT


def test_it_says_first_that_nothing_is_measured():
    assert TEXT.splitlines()[2].startswith("**Nothing on this page is measured")


def test_every_table_has_every_shape_and_place():
    for kind in KINDS:
        part = TEXT.partition(f"### {kind.title}\n")[2].partition("\n###")[0]
        assert all(f"\n| {', '.join(map(str, shape))} |" in part for shape in SHAPES)
        assert all(place in part for place in PLACES)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_all_ranks_have_the_work_of_one_gemm(shape, ranks):
    m, n, k = shape
    for kind in KINDS:
        mine = kind.of_rank(shape, ranks)
        parts = (ranks * mine[0], mine[1], ranks * mine[2])
        if kind.collective == "all_gather":
            parts = (ranks * mine[0], ranks * mine[1], mine[2])
        assert parts == (m, n, k)


def test_what_pays_is_bold(monkeypatch):
    def priced(kind, shape, ranks, hosts):
        sooner = shape[0] == 64 and hosts == Hosts()
        return Payoff(pays=sooner, reason="", seconds=2e-6, serial=3e-6, alone=1e-6)

    monkeypatch.setattr(where_it_pays, "_priced", priced)
    rows = where_it_pays.table(Kind(operands="BF16", collective="all_gather")).splitlines()
    assert rows[2] == "| 8192, 8192, 8192 | 1 / 2 / 3 | 1 / 2 / 3 | 1 / 2 / 3 | 1 / 2 / 3 | none |"
    assert rows[-1].count("1 / **2** / 3") == 3
    assert "| 1 | 1 | 1 | 0 |" in where_it_pays.summary()
    assert "| 64 | 64 | 64 | 64 |" in where_it_pays.crossovers()
