"""An explanation as a page."""

from __future__ import annotations

from ..errors import IllegalConfig
from ..heuristics.verdict import Verdict
from .explain import Explanation, Refusal
from .glance_page import RESOURCES, blocks, difference
from .kernel_page import registers, shared_memory
from .page import Block, Facts, Page, Table, count, microseconds, scaled
from .spelling import spelled, tile
from .verdict import LEAST

FEW_STAGES = "too few stages fit to hide latency"


def page(e: Explanation) -> Page:
    m, n, k = e.shape
    groups = f"{e.groups} x " if e.groups > 1 else ""
    on = f"{e.groups} x {e.target.name}" if e.problem.together else e.target.name
    of = f"{e.problem.collective.replace('_', '-')} " if e.problem.together else groups
    title = f"{e.problem.family} {of}M={m} N={n} K={k} on {on}: {spelled(e.config)}"
    time: tuple[Block, ...] = (_choice(e), *_link(e), _floor(e), _waves(e), _roles(e), _panels(e))
    others = (_refusals(e), *_why_not(e))
    tables = (shared_memory(e.kernel, e.target), registers(e.kernel, e.target))
    return Page(title=title, blocks=(*blocks(e), *time, *others, *tables))


def _choice(e: Explanation) -> Facts:
    items = [
        ("kernel", e.kernel.name),
        (
            "config",
            ", ".join(f"{name}={v}" for name, v in e.config.to_json().items() if v is not None),
        ),
        ("config from", e.source),
        ("priced for", f"{e.target.name}: {e.target.rates}"),
        ("modelled", f"{microseconds(e.cost.seconds)} us"),
    ]
    items += [("weights ready", _ahead(e))] * e.problem.weights_ready
    items += [("instead of", f"{spelled(c)}: {why}") for c, why in e.unbuilt.items()]
    row = e.measured
    if row and row.best.seconds:
        at = "x".join(map(str, row.shape))
        default = row.default.seconds
        beside = f"; the model's choice there {microseconds(default)} us" if default else ""
        items.append(
            ("measured", f"{microseconds(row.best.seconds)} us at {at} on {row.device}{beside}")
        )
    return Facts(title="Choice", items=tuple(items))


def _ahead(e: Explanation) -> str:
    """What becomes of the promise."""
    if e.config.weights_ahead:
        blocks = f"the first {e.kernel.stages} K blocks of a CTA's first tile"
        return (
            f"B of {blocks} is loaded while launches before end; the time modelled is without that"
        )
    if e.kernel.tables:
        return f"nothing is loaded ahead: {e.kernel.tables[0]} says on the device whose weights come first"
    return "nothing is loaded ahead: the config has not both pdl and weights_ahead"


def _link(e: Explanation) -> tuple[Block, ...]:
    """What other ranks add, and whether that pays."""
    if e.payoff is None:
        return ()
    items = [("pays", f"{'yes' if e.payoff else 'no'}: {e.payoff.reason}")]
    link, rate = e.terms.link, e.target.link_bytes_per_second
    if link and rate:
        wire = "" if e.problem.wire is None else f", sums rounded to {e.problem.wire}"
        sent = f"{scaled(link.bytes, 'B')} to {e.ranks - 1} other rank(s){wire}"
        items += [
            ("sends", sent),
            ("link", f"{microseconds(link.seconds)} us at {rate * 1e-9:.0f} GB/s one way"),
            ("shows", f"{microseconds(link.shown)} us, the rest is hidden by main loops"),
            ("besides", f"{microseconds(link.beside)} us"),
        ]
    return (Facts(title="Other ranks", items=tuple(items)),)


def _floor(e: Explanation) -> Facts:
    f = e.floor
    parts = ", ".join(f"{name} {scaled(size, 'B')}" for name, size in f.bytes.items() if size)
    return Facts(
        title="Floors",
        items=(
            (
                "tensor cores",
                f"{microseconds(f.tensor)} us at their peak: {scaled(f.flops, 'FLOP')}",
            ),
            (
                "HBM",
                f"{microseconds(f.hbm)} us at its peak: {scaled(sum(f.bytes.values()), 'B')} ({parts})",
            ),
            ("modelled", f"{e.cost.seconds / max(f.tensor, f.hbm):.2f} times the higher floor"),
        ),
    )


def _waves(e: Explanation) -> Facts:
    t, c = e.terms, e.cost
    return Facts(
        title="Waves",
        items=(
            ("tiles", f"{c.tiles}, whole clusters of {e.kernel.cluster.size}"),
            ("waves", f"{c.waves}, each on {t.full.busy} of {e.target.sms} SMs"),
            ("last wave", f"on {t.last.busy} SMs, {c.last_wave_use:.0%} of them"),
            ("K blocks", f"{t.work.steps} per tile and CTA"),
            (
                "from L2",
                f"{scaled(c.l2_bytes, 'B')} in all, {scaled(t.work.l2_bytes, 'B')} per tile",
            ),
        ),
    )


def _roles(e: Explanation) -> Table:
    w, wave = e.terms.work, e.terms.full
    cycles = {name: getattr(w, name) for name in RESOURCES if name != "l2"} | {"l2": wave.l2}
    rows = tuple(
        (
            *RESOURCES[name],
            count(cycles[name]),
            count(cycles[name] / w.steps) * (name != "epilogue"),
        )
        for name in RESOURCES
    )
    note = (
        f"SM cycles at {e.target.clock_hz / 1e6:.0f} MHz, in a wave of {wave.busy} SMs. They overlap: a tile "
        f"takes {count(wave.total)}."
    )
    columns = ("role", "does", "cycles per tile", "per K block")
    return Table(title="Roles", columns=columns, rows=rows, note=note)


def _panels(e: Explanation) -> Table:
    rows = tuple(
        (f"{p.raster}{p.panel}", count(p.a_rows), count(p.b_rows), scaled(p.bytes, "B"))
        for p in e.panels
    )
    return Table(
        title="L2 panels: what the tiles of a full wave read",
        columns=("raster, panel", "rows of A", "rows of B", "bytes over all of K"),
        rows=rows,
        marked=0,
    )


def _refusals(e: Explanation) -> Table:
    rows = tuple(
        (
            tile(r.config),
            microseconds(r.seconds),
            str(r.candidates),
            *_because(r),
        )
        for r in e.refusals
    )
    return Table(
        title=f"Refused, among the {e.judged} candidates that cost no more than the last runner-up",
        columns=("lowered", "us", "removes", "rule", "values", "fix"),
        rows=rows,
        note="A refusal also removes candidates with the same tile, or where it overflows a larger one. `us` "
        "is the cheapest one's modelled time."
        if rows
        else "None.",
    )


def _because(r: Refusal) -> tuple[str, str, str]:
    """Rule, values, fix."""
    if r.error:
        return r.error.rule.id, _values(r.error), r.error.fix
    if r.unbuilt:
        return "the build", r.unbuilt, "The next choice is taken."
    return "-", FEW_STAGES, "Use a smaller tile."


def _values(error: IllegalConfig) -> str:
    return ", ".join(f"{name}={value}" for name, value in error.values.items())


def _why_not(e: Explanation) -> tuple[Block, ...]:
    if e.why_not is None:
        return ()
    v = e.why_not.verdict
    price = f"{microseconds(v.cost.seconds)} us, {v.cost.seconds / e.cost.seconds - 1:+.1%}"
    costed = "yes" if e.why_not.candidate else "no: not among the candidates for this shape"
    items = [*_legality(v), ("candidate", costed), ("modelled", price)]
    items += [("", difference(*d)) for d in e.why_not.differences if abs(d[1]) >= LEAST]
    title = f"Why not {spelled(v.choice.config) if v.choice else tile(v.config)}"
    return (Facts(title=title, items=tuple(items)),)


def _legality(v: Verdict) -> list[tuple[str, str]]:
    if v.choice:
        return [("legal", "yes")]
    if v.refused is None:
        return [("legal", f"yes, but {FEW_STAGES}")]
    rule = v.refused.rule
    return [
        ("legal", f"no: {rule.id}"),
        ("rule", f"{rule.says}. {rule.because}"),
        ("values", _values(v.refused)),
        ("fix", v.refused.fix),
    ]
