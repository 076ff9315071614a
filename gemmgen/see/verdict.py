"""What an explanation comes to: what the launch waits for, how far it is from the floor, and what to try.

All from the cost model's terms: nothing here is timed, and no number is this module's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..cost_direct import HBM_RATE
from ..cost_fit import FIT
from ..cost_launch import promotes
from ..cost_terms import Terms, Wave
from ..target import Target
from .explain import Explanation, RunnerUp
from .spelling import spelled
from .verdict_words import BOUND as BOUND
from .verdict_words import LOSSES as LOSSES
from .verdict_words import TERMS as TERMS

LEAST = 5e-9  # seconds: a difference that shows

MAIN = ("tensor", "shared", "l2")  # resources that a main loop may wait for, besides its own steps

Part = tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """waits: seconds by what is waited for (keys of BOUND), which add up to `seconds`. losses: seconds by what
    they are lost to (keys of LOSSES), which add up to `seconds` less `floor`; the greatest first, both. next_bound: what the
    main loop would wait for if `bound` were nothing, if it waits for `bound`, and which share of its time that takes."""

    seconds: float
    tensor_floor: float
    hbm_floor: float
    waits: tuple[Part, ...]
    losses: tuple[Part, ...]
    next_bound: Part | None
    advice: str

    @property
    def floor(self) -> float:
        return max(self.tensor_floor, self.hbm_floor)

    @property
    def times_the_floor(self) -> float:
        return self.seconds / self.floor

    @property
    def bound(self) -> str:
        return self.waits[0][0]

    @property
    def share(self) -> float:
        """Of the time, what is waited for `bound`."""
        return self.waits[0][1] / self.seconds


def verdict(e: Explanation) -> Verdict:
    losses = summed(_losses(e))
    waited = summed(waits(e.terms, e.config.waves, e.target, _streaming(e)))
    return Verdict(
        seconds=e.terms.seconds,
        tensor_floor=e.floor.tensor,
        hbm_floor=e.floor.hbm,
        waits=waited,
        losses=losses,
        next_bound=_next(e, waited[0][0]),
        advice=_advice(e, losses[0][0]),
    )


def summed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """By name, the greatest first; what is nothing is left out."""
    found: dict[str, float] = {}
    for name, seconds in parts:
        found[name] = found.get(name, 0.0) + seconds
    return tuple(sorted(((n, s) for n, s in found.items() if s), key=lambda x: -x[1]))


def waits(t: Terms, consumer_waves: int, target: Target, streaming: float) -> Iterator[Part]:
    """The modelled seconds by what is waited for. consumer_waves: `Config.waves`. streaming: seconds that HBM takes
    if enough SMs draw from it."""
    yield "launch", t.launch
    yield from t.of_link.items()
    if t.hbm > t.loading:
        yield "drain", t.after
        beside = t.alone - t.launch - t.after
        if t.adding >= t.hbm:
            yield "adding", beside
        else:  # a few SMs draw less than HBM gives
            drawn = (streaming + t.again) / t.hbm
            yield from (("hbm", beside * drawn), ("idle", beside * (1 - drawn)))
        return
    yield from (("hbm", t.added["hbm"]), ("drain", t.tail / t.clock_hz))
    chain = _chain(t, consumer_waves)
    for wave, seconds in _waves(t):
        busy = wave.busy / target.sms
        yield chain if wave.bound == "chain" else wave.bound, seconds * wave.main * busy
        yield "idle", seconds * wave.main * (1 - busy)
        yield "l2", seconds * wave.l2_exposed
        yield "zeros", seconds * wave.zeros
        yield "cluster", seconds * wave.cluster
        yield "drain", seconds * wave.epilogue
        yield "promotion", seconds * wave.promotion


def _streaming(e: Explanation) -> float:
    return e.floor.hbm / (HBM_RATE if e.config.direct else FIT.hbm_rate)


def _next(e: Explanation, bound: str) -> Part | None:
    """Of a full wave's main loop, if `bound` is what that waits for."""
    wave, chain = e.terms.full, _chain(e.terms, e.config.waves)
    names = {**{n: n for n in MAIN}, "chain": chain}
    if names[wave.bound] != bound:
        return None
    others = {n: float(getattr(wave, n)) for n in names if n != wave.bound}
    name = max(others, key=lambda n: others[n])
    return names[name], others[name] / wave.main


def _waves(t: Terms) -> tuple[tuple[Wave, float], ...]:
    """Each kind of wave, and seconds that one of its cycles takes in all waves of that kind."""
    return (t.full, (t.waves - 1) / t.clock_hz), (t.last, 1 / t.clock_hz)


def _chain(t: Terms, consumer_waves: int) -> str:
    """What makes one warpgroup's steps long, where they are: arithmetic on CUDA cores, or waiting for wgmma."""
    drains = t.work.steps * consumer_waves * FIT.drain
    return "promotion" if t.work.promotion + t.work.scales - drains > drains else "latency"


def _losses(e: Explanation) -> Iterator[Part]:
    """What lies between the floor and the modelled time."""
    t, added = e.terms, e.terms.added
    yield "launch", t.launch
    yield from t.of_link.items()
    if e.floor.hbm > e.floor.tensor:
        yield "hbm_rate", _streaming(e) - e.floor.hbm
        if t.adding >= t.hbm:
            yield "adding", t.hbm - _streaming(e)
        else:
            yield from (("again", t.again), ("few", t.hbm - t.again - _streaming(e)))
        yield "sm", t.alone - t.launch - t.hbm
        return
    plain = ("l2_exposed", "zeros", "cluster", "epilogue", "tail", "hbm")
    yield from ((n, added[n]) for n in plain)
    yield "shown", added["promotion"]
    chain = _chain(t, e.config.waves)
    for wave, seconds in _waves(t):
        if wave.bound != "tensor":
            name = chain if wave.bound == "chain" else wave.bound
            yield name, seconds * (wave.main - wave.tensor)
    spent, tile = t.waves / t.clock_hz * t.work.tensor, t.work.tensor / t.clock_hz
    shared = e.cost.tiles * tile / e.target.sms  # as if all SMs were busy
    needed = e.floor.tensor / FIT.wgmma_rate
    yield from (("idle", spent - shared), ("edges", shared - needed))
    yield "rate", needed - e.floor.tensor


def _advice(e: Explanation, loss: str) -> str:
    """One sentence: the cheaper config, or what lowers the greatest loss, and which runner-up has least of it."""
    term, lowers = LOSSES[loss][1], _lowers(e, loss)
    cheapest = min(e.runners_up, key=lambda r: r.choice.cost.seconds, default=None)
    if cheapest and not e.measured and cheapest.choice.cost.seconds < e.cost.seconds - LEAST:
        less = 1 - cheapest.choice.cost.seconds / e.cost.seconds
        return f"{spelled(cheapest.choice.config)}: the model expects {less:.1%} less time."
    named = min(e.runners_up, key=lambda r: _of(r, term), default=None)
    if not term or named is None or _of(named, term) > -LEAST:
        return f"{lowers}{'; no runner-up has less of it' * bool(term)}."
    more = named.choice.cost.seconds - e.cost.seconds
    words = f"{spelled(named.choice.config)} saves {-_of(named, term) * 1e6:.2f} us of the {TERMS[term]}"
    return f"{lowers}; {words}, and takes {more * 1e6:+.2f} us in all."


def _lowers(e: Explanation, loss: str) -> str:
    turns = loss == "epilogue" and not (promotes(e.problem) or e.config.ping_pong)
    return "ping_pong, or " * turns + LOSSES[loss][2]


def _of(r: RunnerUp, term: str) -> float:
    return dict(r.differences).get(term, 0.0)
