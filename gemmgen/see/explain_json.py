"""An explanation as JSON: what its page shows, with all digits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..errors import IllegalConfig
from ..ir.text import smem_map
from .explain import Explanation, RunnerUp, WhyNot
from .glance_page import headline
from .verdict import Verdict, verdict


def to_json(e: Explanation) -> dict[str, Any]:
    """Seconds, bytes and SM cycles; configs as `Config.to_json`."""
    t = e.terms
    work, full, last = asdict(t.work), asdict(t.full), asdict(t.last)
    return {
        "problem": e.problem.to_json(),
        "shape": e.shape,
        "groups": 1 if e.problem.together else e.groups,
        "ranks": e.ranks,
        "target": e.target.name,
        "figures": e.target.figures,
        "kernel": e.kernel.name,
        "config": e.config.to_json(),
        "config_from": e.source,
        "verdict": _verdict(verdict(e)),
        "refused_by_build": [
            {"config": c.to_json(), "because": why} for c, why in e.unbuilt.items()
        ],
        "seconds": e.cost.seconds,
        "measured_seconds": e.measured.best.seconds if e.measured else None,
        "floor": asdict(e.floor),
        "tiles": e.cost.tiles,
        "waves": e.cost.waves,
        "last_wave_use": e.cost.last_wave_use,
        "terms": t.added,
        "link": asdict(t.link) if t.link else None,
        "payoff": asdict(e.payoff) if e.payoff is not None else None,
        "cycles": {"tile": work, "full_wave": full, "last_wave": last, "tail": t.tail},
        "bound": {"full_waves": t.full.bound, "last_wave": t.last.bound},
        "panels": [asdict(p) for p in e.panels],
        "judged": e.judged,
        "runners_up": [_runner_up(r) for r in e.runners_up],
        "refused": [
            {
                "config": r.config.to_json(),
                "seconds": r.seconds,
                "candidates": r.candidates,
                **_error(r.error),
                **({"refused_by_build": r.unbuilt} if r.unbuilt else {}),
            }
            for r in e.refusals
        ],
        "why_not": _why_not(e.why_not) if e.why_not else None,
        "smem": [
            {"offset": first, "bytes": end - first, "what": what}
            for first, end, what in smem_map(e.kernel)
        ],
        "smem_bytes": e.kernel.smem_bytes,
        "registers": {r.name: r.registers for r in e.kernel.roles},
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "says": headline(v).says,
        "bound_by": v.bound,
        "share": v.share,
        "floor_seconds": v.floor,
        "floor_of": "tensor cores" if v.tensor_floor >= v.hbm_floor else "HBM",
        "times_the_floor": v.times_the_floor,
        "waits_seconds": dict(v.waits),
        "losses_seconds": dict(v.losses),
        "try": v.advice,
    }


def _runner_up(r: RunnerUp) -> dict[str, Any]:
    return {
        "config": r.choice.config.to_json(),
        "seconds": r.choice.cost.seconds,
        "differences": dict(r.differences),
    }


def _why_not(w: WhyNot) -> dict[str, Any]:
    v = w.verdict
    config = v.choice.config if v.choice else v.config
    return {
        "config": config.to_json(),
        "legal": v.refused is None,
        "candidate": w.candidate,
        "seconds": v.cost.seconds,
        "differences": dict(w.differences),
        **_error(v.refused),
    }


def _error(e: IllegalConfig | None) -> dict[str, Any]:
    """As the command line spells it; no rule: too few stages fit to hide latency, or nothing is wrong."""
    if e is None:
        return {"rule": None}
    values = {name: str(value) for name, value in e.values.items()}
    return {"rule": e.rule.id, "values": values, "fix": e.fix}
