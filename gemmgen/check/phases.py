"""P4, P5, P6 and P11: each use of a barrier is of the phase it is meant for, and of a live barrier."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.exchange import PARTIALS
from .after import After
from .clocks import Clock, Clocks
from .finding import Finding, Place, bar_text, when
from .history import Counter, Run
from .ops import EPOCHS, LAUNCH, OWN, PACKED, PASSED, SENT
from .parcels_meaning import PUSHES
from .properties import EXIT, INIT, NAMED_BARRIER, PARITY, PHASE


def barriers(r: Run, after: After, clocks: Clocks) -> Iterator[Finding]:
    """Every mbarrier, use by use."""
    ends = _ends(r, clocks)
    for index, c in enumerate(r.counters):
        if c.synchronises:
            yield from _members(r, c)
        elif c.name[0] == PARTIALS:
            yield from _down(r, c)
        elif c.name[0] == EPOCHS:
            i = r.program.instance
            each = _each_arrival if i.chunks or i.parcels else _each_launch
            yield from each(r, c)
        elif c.name[0] == PACKED:
            yield from _packed(r, c)
        elif c.name[0] == PASSED:
            yield from _passed(r, index, c, clocks)
        elif c.name[0] in (LAUNCH, OWN, SENT):
            continue
        else:
            yield from _initialised(r, c, clocks)
            yield from _phases(r, c, after)
            yield from _parities(r, index, c, after, clocks)
            yield from _alive(r, c, after, ends)


def _name(r: Run, c: Counter) -> str:
    return bar_text(c.name, r.program.kernel.cluster.size > 1)


def _when(r: Run, place: Place) -> str:
    agent, at = place
    text = when(r.program.ops[agent][at])
    return f"{r.program.agents[agent]}" + (f" ({text})" if text else "")


# ---- P8 ---------------------------------------------------------------------------------------


def _members(r: Run, c: Counter) -> Iterator[Finding]:
    """Who meets must always be the same, or those of one meeting could complete another."""
    members: dict[int, set[int]] = {}
    for agent, _, n in c.placed:
        members.setdefault(n, set()).add(agent)
    for n, present in members.items():
        if present != members[0]:
            others = sorted(present ^ members[0])
            text = (
                f"{c.name[0]} {c.name[2]} is not always joined by the same warps: "
                f"{r.program.agents[others[0]]} joins it only sometimes"
            )
            places = tuple((a, at) for a, at, phase in c.placed if phase == n)
            yield Finding(property=NAMED_BARRIER, message=text, places=places)
            return


# ---- P4, of flags in global memory --------------------------------------------------------------


def _down(r: Run, c: Counter) -> Iterator[Finding]:
    """Who sees one takes it down: up once, and seen once, it is down for the next launch."""
    if (len(c.placed), len(c.waits)) != (1, 1):
        text = (
            f"{_name(r, c)} goes up {len(c.placed)} times and down {len(c.waits)} times in a launch"
        )
        places = tuple((a, at) for a, at, _ in (*c.placed, *c.waits))
        yield Finding(property=PHASE, message=text, places=places)


def _each_launch(r: Run, c: Counter) -> Iterator[Finding]:
    """Its sender raises it once in each launch, and its owner waits once in each, for the epoch of that one."""
    agents = r.program.agents
    for kind, uses in (("raised", c.placed), ("awaited", c.waits)):
        launches = [agents[agent].launch for agent, _, _ in uses]
        if [n for _, _, n in uses] != launches or launches != [
            *range(len(r.program.instance.epochs))
        ]:
            found = ", ".join(
                f"in launch {x} for that of {n}"
                for x, (_, _, n) in zip(launches, uses, strict=True)
            )
            text = f"{_name(r, c)} is {kind} {found or 'never'}"
            yield Finding(property=PHASE, message=text, places=tuple((a, at) for a, at, _ in uses))


def _each_arrival(r: Run, c: Counter) -> Iterator[Finding]:
    """The same where any of a launch's CTAs may wait for it, or none."""
    agents, every = r.program.agents, range(len(r.program.instance.epochs))
    raised = [(agents[agent].launch, n) for agent, _, n in c.placed]
    early = [x for x in c.waits if agents[x[0]].launch != x[2]]
    if raised != [(x, x) for x in every] or early:
        found = ", ".join(f"in launch {x} for that of {n}" for x, n in raised)
        text = f"{_name(r, c)} is raised {found or 'never'}"
        text += (
            f", and awaited in launch {agents[early[0][0]].launch} for that of {early[0][2]}"
            * bool(early)
        )
        places = tuple((a, at) for a, at, _ in (*c.placed, *early))
        yield Finding(property=PHASE, message=text, places=places)


def _packed(r: Run, c: Counter) -> Iterator[Finding]:
    """The warps of its tiles count themselves once in each launch, and it leaves once in each, behind those of that one."""
    agents = r.program.agents
    for kind, uses in (("counted", c.placed), ("awaited", c.waits)):
        wrong = [x for x in uses if agents[x[0]].launch != x[2]]
        if wrong or c.phase != len(r.program.instance.epochs) or c.pending != c.total:
            text = f"{_name(r, c)} is complete {c.phase} times in {len(r.program.instance.epochs)} launches"
            text += (
                f", and {kind} in launch {agents[wrong[0][0]].launch} for that of {wrong[0][2]}"
                * bool(wrong)
            )
            yield Finding(property=PHASE, message=text, places=tuple((a, at) for a, at, _ in wrong))
            return


def _passed(r: Run, index: int, c: Counter, clocks: Clocks) -> Iterator[Finding]:
    """Each CTA of each launch passes that launch's epoch, once; and whoever reads it does so when the launches before have passed theirs,
    and before this one has."""
    agents, launches = r.program.agents, range(len(r.program.instance.epochs))
    by = sorted((n, agents[agent].launch, agents[agent].cta) for agent, _, n in c.placed)
    mine = (a for a in agents if a.rank == c.name[1] and a.role != PUSHES)
    every = sorted({(a.launch, a.launch, a.cta) for a in mine})
    if by != every:
        text = f"{_name(r, c)}: {len(c.phases)} in {len(launches)} launches, which {len(by)} of {len(every)} CTAs say"
        yield Finding(property=PHASE, message=text, places=tuple((a, at) for a, at, _ in c.placed))
        return
    for place in c.numbered:
        launch = agents[place[0]].launch
        before = ((a, at) for a, at, n in c.placed if n < launch)
        if early := next((x for x in before if not clocks.ordered(x, place)), None):
            text = f"{_when(r, place)} may read the epoch of a launch before its own"
            yield Finding(property=PHASE, message=text, places=(early, place))
        passed = clocks.phase(index, launch)
        if passed is None or passed[place[0]] <= place[1]:
            text = f"{_when(r, place)} may read the epoch when its launch has passed it"
            yield Finding(property=PHASE, message=text, places=(place,))


# ---- P6 ---------------------------------------------------------------------------------------


def _initialised(r: Run, c: Counter, clocks: Clocks) -> Iterator[Finding]:
    """An agent's first use decides: what it knew then it knows later."""
    assert c.made is not None
    agents = r.program.agents
    first: dict[int, int] = {}
    for agent, at, _ in (*c.waits, *c.placed):
        first[agent] = min(at, first.get(agent, at))
    for agent, at in first.items():
        if not clocks.ordered(c.made, (agent, at)):
            text = f"{_when(r, (agent, at))} may use {_name(r, c)} before it is initialised"
            yield Finding(property=INIT, message=text, places=(c.made, (agent, at)))
    outside = {a: at for a, at in first.items() if agents[a].cta != c.name[1]}
    for agent, at, _ in c.landed:
        outside[agent] = min(at, outside.get(agent, at))
    for agent, at in outside.items():
        yield from _fenced(r, c, (agent, at), clocks)


def _fenced(r: Run, c: Counter, use: Place, clocks: Clocks) -> Iterator[Finding]:
    """Other CTAs and the async proxy see an initialisation only through its writer's fence."""
    assert c.made is not None
    writer, at = c.made
    fences = [f for f in r.fences.get(writer, []) if f > at]
    if not fences or not clocks.ordered((writer, fences[0]), use):
        text = f"{_when(r, use)} uses {_name(r, c)} from another CTA or proxy, its init unfenced"
        yield Finding(property=INIT, message=text, places=(c.made, use))


# ---- P4 ---------------------------------------------------------------------------------------


def _phases(r: Run, c: Counter, after: After) -> Iterator[Finding]:
    """Where bytes count, a phase may be open although all have arrived: what comes early would
    count for it. Where they do not, the last arrival closes the phase and nothing can be early."""
    if not c.counts_bytes:
        return
    for kind, uses in (("arrive for", c.placed), ("land bytes in", c.landed)):
        for agent, at, n in uses:
            if n and (n > len(c.phases) or at < after.first[c.phases[n - 1]][agent]):
                text = f"{_when(r, (agent, at))} may {kind} phase {n - 1} of {_name(r, c)}, not {n}"
                yield Finding(property=PHASE, message=text, places=((agent, at),))


# ---- P5 ---------------------------------------------------------------------------------------


def _parities(r: Run, index: int, c: Counter, after: After, clocks: Clocks) -> Iterator[Finding]:
    """A wait sees one bit of the phase: the one before must be over, the one after unreachable."""
    for agent, at, n in c.waits:
        if n < -1:
            text = f"{_when(r, (agent, at))} waits for a phase before the first of {_name(r, c)}"
            yield Finding(property=PARITY, message=text, places=((agent, at),))
            continue
        if n > 0 and at < after.first[c.phases[n - 1]][agent]:
            text = (
                f"{_when(r, (agent, at))} waits for phase {n} of {_name(r, c)}, parity {n & 1}, "
                f"while phase {n - 1} may be open: the parity of phase {n - 2} lets it pass"
            )
            yield Finding(property=PARITY, message=text, places=((agent, at),))
        late = clocks.phase(index, n + 1)
        if late is not None and late[agent] <= at:
            text = (
                f"phase {n + 1} of {_name(r, c)} can complete before {_when(r, (agent, at))} "
                f"looks for phase {n}, parity {n & 1}: it never sees it"
            )
            yield Finding(property=PARITY, message=text, places=((agent, at),))


# ---- P11 --------------------------------------------------------------------------------------


def _ends(r: Run, clocks: Clocks) -> dict[int, Clock]:
    """By CTA: what has surely happened when the last of its agents exits."""
    ends: dict[int, Clock] = {}
    for i, agent in enumerate(r.program.agents):
        known = clocks.before(i, len(r.program.ops[i]))[:]
        known[i] = len(r.program.ops[i])
        ends[agent.cta] = list(map(max, known, ends.get(agent.cta, known)))
    return ends


def _alive(r: Run, c: Counter, after: After, ends: dict[int, Clock]) -> Iterator[Finding]:
    """What reaches a CTA from outside must have reached it before its last agent exits."""
    agents, cta = r.program.agents, c.name[1]
    for agent, at, _ in c.placed:
        if agents[agent].cta != cta and ends[cta][agent] <= at:
            text = f"{_when(r, (agent, at))} may arrive on {_name(r, c)} after that CTA has exited"
            yield Finding(property=EXIT, message=text, places=((agent, at),))
    for agent, at, n in c.landed:
        landed = after.of(c.phases[n] if n < len(c.phases) else None)
        inside = (i for i, a in enumerate(agents) if a.cta == cta)
        if not any(len(r.program.ops[i]) >= landed[i] for i in inside):
            text = f"CTA {cta} may exit while {_when(r, (agent, at))} loads into it"
            yield Finding(property=EXIT, message=text, places=((agent, at),))
