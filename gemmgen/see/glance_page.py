"""What an explanation comes to, at a glance: the verdict, where the time goes, waves on SMs, and who comes next."""

from __future__ import annotations

from .explain import Explanation
from .page import Block, Headline, Run, Strips, Table, microseconds
from .spelling import spelled
from .verdict import BOUND, LEAST, LOSSES, TERMS, Verdict, verdict

RESOURCES = {
    "l2": ("producer", "TMA: bytes from L2"),
    "tensor": ("consumer", "wgmma on the tensor cores"),
    "shared": ("both", "shared-memory port"),
    "promotion": ("consumer", "promotion on the CUDA cores"),
    "chain": ("consumer", "one warpgroup: scales, wgmma, drain, promote"),
    "epilogue": ("consumer", "epilogue: stage and store D"),
}
LOADED = {**RESOURCES, "chain": ("consumer", "one CTA: its loads into registers, and mma.sync")}
MANY, FIRST = 8, 3  # waves that are all drawn; of more, the first ones that are
WORKS, IDLE = "#", "."


def blocks(e: Explanation) -> tuple[Block, ...]:
    v = verdict(e)
    return (headline(v), _terms(e), _losses(v), waves(e), _runners_up(e))


def headline(v: Verdict) -> Headline:
    bound = BOUND[v.bound].partition(":")[0]
    says = (
        f"Bound by {bound}, {v.share:.0%} of the time: {microseconds(v.seconds)} us modelled, "
        f"{v.times_the_floor:.2f} times the floor."
    )
    more = (*_beside(v), _floor(v), _greatest(v), f"Try: {v.advice}")
    return Headline(title="Verdict", says=says, more=more)


def _beside(v: Verdict) -> tuple[str, ...]:
    """What a few words leave open."""
    meant = BOUND[v.bound].partition(": ")[2]
    found = [f"{meant[0].upper()}{meant[1:]}."] if meant else []
    if v.next_bound:
        name, share = v.next_bound
        found.append(
            f"Next in the main loop: {BOUND[name].partition(':')[0]}, {share:.0%} as long."
        )
    return (" ".join(found),) if found else ()


def _floor(v: Verdict) -> str:
    of = "products" if v.tensor_floor >= v.hbm_floor else "bytes"
    return (
        f"The floor is {microseconds(v.floor)} us, of the {of}: {microseconds(v.tensor_floor)} us for the products at "
        f"the tensor cores' peak, {microseconds(v.hbm_floor)} us for the bytes at HBM's."
    )


def _greatest(v: Verdict) -> str:
    name, seconds = v.losses[0]
    above = v.seconds - v.floor
    return f"Most of what lies above it: {LOSSES[name][0]}, {microseconds(seconds)} of {microseconds(above)} us."


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}"


def _terms(e: Explanation) -> Table:
    added, whole = e.terms.added, e.cost.seconds
    rows = [(TERMS[n], microseconds(s), share(s, whole)) for n, s in added.items()]
    bounds = dict.fromkeys((*([e.terms.full.bound] * (e.terms.waves > 1)), e.terms.last.bound))
    named = RESOURCES if e.kernel.ring else LOADED
    note = "Main loop bound by " + ", in the last wave by ".join(named[b][1] for b in bounds)
    return Table(
        title="Modelled time",
        columns=("term", "us", "share"),
        rows=(*rows, ("in all", microseconds(whole), share(1, 1))),
        note=f"{note}.",
        lengths=(*added.values(), whole),
    )


def _losses(v: Verdict) -> Table:
    """The floor, and above it what adds up to the modelled time."""
    shown = [(name, s) for name, s in v.losses if abs(s) >= LEAST]
    of = "products at the tensor cores' peak" if v.tensor_floor >= v.hbm_floor else "bytes at HBM's"
    parts = [(f"floor: {of}", v.floor), *((LOSSES[name][0], s) for name, s in shown)]
    return Table(
        title="From the floor to the modelled time",
        columns=("part", "us", "share"),
        rows=tuple((name, microseconds(s), share(s, v.seconds)) for name, s in parts),
        lengths=tuple(s for _, s in parts),
    )


def waves(e: Explanation) -> Strips:
    """CTAs take tiles one by one: all have one in each wave but the last."""
    on_one, ctas, tiles = e.kernel.per_sm, e.ctas, e.cost.tiles
    places, who = e.target.sms * on_one, "CTA" if on_one > 1 else "SM"
    number = -(-tiles // ctas)
    last = tiles - (number - 1) * ctas
    shown = range(1, number) if number <= MANY else range(1, FIRST + 1)
    rows = [(f"wave {n}", ctas) for n in shown]
    if number > MANY:
        rows.append((f"waves {FIRST + 1} to {number - 1}", ctas))
    rows.append((f"wave {number}", last))
    idle = number * places - tiles
    lie = f"{on_one} share an SM" if on_one > 1 else "SMs are numbered by the CTA that runs on them"
    return Strips(
        title=f"Waves: which {who} computes a tile in which",
        across=places,
        rows=tuple((f"{name}: {n} of {places}", _runs(name, n, places)) for name, n in rows),
        legend=((WORKS, True, "computes a tile"), (IDLE, False, "idle")),
        note=f"{_each(number, ctas, last, who)}. Of {number * places} places {idle} are idle, "
        f"{idle / number / places:.1%}. {lie}.",
    )


def _each(number: int, ctas: int, last: int, who: str) -> str:
    """How many tiles each SM computes, or each CTA."""
    said = f"{last} {who}s compute {number} tile{'s' * (number > 1)} each"
    return f"{said}, {ctas - last} compute {number - 1}" if last < ctas and number > 1 else said


def _runs(wave: str, busy: int, places: int) -> tuple[Run, ...]:
    works = Run(cells=busy, mark=WORKS, full=True, tip=f"{wave}: computes a tile")
    idle = Run(cells=places - busy, mark=IDLE, full=False, tip=f"{wave}: idle")
    return (works, idle) if busy < places else (works,)


def _runners_up(e: Explanation) -> Table:
    taken = e.cost.seconds
    rows = [
        (
            spelled(r.choice.config),
            microseconds(r.choice.cost.seconds),
            f"{r.choice.cost.seconds / taken - 1:+.1%}",
            difference(*r.differences[0]),
        )
        for r in e.runners_up
    ]
    own = (spelled(e.config), microseconds(taken), "", "taken")
    columns = ("config", "us", "price", "term that differs most")
    return Table(
        title="Runners-up: legal, cheapest first",
        columns=columns,
        rows=(own, *rows),
        marked=0,
        note="" if rows else "No other candidate is legal.",
        lengths=(taken, *(r.choice.cost.seconds for r in e.runners_up)),
    )


def difference(term: str, seconds: float) -> str:
    return f"{TERMS[term]} {seconds * 1e6:+.2f} us"
