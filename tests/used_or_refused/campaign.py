"""Draw, judge, count: all at once for the command, or to the first that is wrong, made small, for a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from . import calls, gemm_calls, judging, lines
from .model import Ignored, Tally
from .running import alone

Judge = Callable[[Any, Tally], None]
Run = Callable[[int, int], Tally]


def drawn(
    strategy: st.SearchStrategy[Any], judge: Judge, draws: int, number: int, *, stop: bool
) -> Tally:
    """stop: raise at the first that is wrong, shrunk; else note it and go on."""
    tally = Tally()

    @seed(number)
    @settings(
        max_examples=draws,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate, Phase.shrink] if stop else [Phase.generate],
    )
    @given(strategy)
    def each(draw: Any) -> None:
        try:
            judge(draw, tally)
        except Ignored as e:
            if stop:
                raise
            tally.wrong.setdefault(str(e), str(draw))

    each()
    return tally


def of_lines(draws: int, number: int, *, stop: bool = False) -> Tally:
    """Command lines."""
    with alone():
        return drawn(lines.lines(), judging.judge, draws, number, stop=stop)


def of_calls(draws: int, number: int, *, stop: bool = False) -> Tally:
    """Calls in Python."""
    with alone(), ExitStack() as stack:
        gemm_calls.without_gpu(stack)
        return drawn(calls.calls(), calls.judge, draws, number, stop=stop)
