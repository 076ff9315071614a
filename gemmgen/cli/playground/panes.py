"""What is shown of a position, a pane each: pages that other commands show too, and differences to the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import lru_cache
from typing import TypeVar

from ...config import Config
from ...cost import floors, terms
from ...errors import ArgumentError
from ...ir.groupings import GROUPINGS, OF_SIZES, Layout
from ...ir.nodes import Kernel
from ...ir.text import dump
from ...pipeline import compile_to_source, draft
from ...problem import Problem, Shape
from ...see import html, kernel_page, lowering, price_page, sm_page
from ...see.layout_page import VIEWS, layout
from ...see.page import Facts, Listing, Page
from ...see.timeline_page import Selection
from ...see.timeline_page import page as timeline_page
from ...target import H200
from ..levels import without_noise
from ..report_command import MAPS
from ..simulated import simulated
from .differences import commands, differences, words
from .moves import moves
from .position import KEPT, REFUSALS, Asked, Position, lowered

THIS, CHOICE = "this", "the choice"
# What is simulated: K blocks of a CTA, about a millisecond each, and rows of A in a table of the host.
MOST_BLOCKS, MOST_ROWS, MOST_GROUPS = 1000, 1 << 20, 1024
UNPROVED = "Not proved and not read back: gemmgen emit does both first, and its header says so."

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class At:
    """A legal position. other: the choice, None where this is it or nothing is chosen."""

    launch: Asked
    config: Config
    kernel: Kernel = field(compare=False)  # follows from them
    other: Config | None

    @property
    def problem(self) -> Problem:
        return self.launch.problem


@dataclass(frozen=True, kw_only=True)
class Pane:
    """page: of a legal position; of_any: of any that has a config. usual: shown where nothing is said."""

    title: str
    page: Callable[[At], Page] | None = None
    of_any: Callable[[Position], Page] | None = None
    usual: bool = False


def inside(name: str, p: Position) -> str:
    """A pane as HTML, below a heading of level 2. name: one of PANES."""
    pane = PANES[name]
    if not (p.launch and p.config):
        return _html(name, _nothing("There is no config: the verdict says why."))
    if pane.of_any:
        return _html(name, _page(pane.of_any, p))
    if not (p.kernel and pane.page):
        return _html(name, _nothing("There is no kernel: the verdict says why."))
    other = p.pick.config if p.pick and p.pick.config != p.config else None
    return _kept(name, At(launch=p.launch, config=p.config, kernel=p.kernel, other=other))


@lru_cache(maxsize=KEPT)
def _kept(name: str, at: At) -> str:
    page = PANES[name].page
    assert page
    return _html(name, _page(page, at))


def _page(make: Callable[[T], Page], of: T) -> Page:
    try:
        return make(of)
    except REFUSALS as e:  # a launch, or a kernel, that this pane cannot show
        return _nothing(str(e))


def _html(name: str, page: Page) -> str:
    return html.blocks(page, 3, f"{name}-")


def _nothing(why: str) -> Page:
    facts = Facts(title="Nothing to show", items=(("why", why),))
    return Page(title=facts.title, blocks=(facts,))


# ---- the panes ------------------------------------------------------------------------------


def _price(at: At) -> Page:
    m, p, groups = at.launch.shape, at.problem, at.launch.groups
    this = (THIS, terms(p, at.config, m, H200, groups))
    other = None
    if at.other:
        other = (CHOICE, terms(p, at.other, m, H200, groups))
    return price_page.page(this, other, floors(p, m, H200, groups))


def _sm(at: At) -> Page:
    return sm_page.page(_both(at), H200)


def _both(at: At) -> list[tuple[str, Kernel]]:
    """This kernel, and the choice's if that is another."""
    other = [(CHOICE, lowered(at.problem, at.other))] if at.other else []
    return [(THIS, at.kernel), *other]


def _ir(at: At) -> Page:
    return _text("IR", "ir", at, lambda p, c: dump(lowered(p, c)), "")


def _cuda(at: At) -> Page:
    return _text("CUDA", "cu", at, drafted, UNPROVED)


@lru_cache(maxsize=KEPT)
def drafted(p: Problem, c: Config) -> str:
    """The CUDA of a legal config, not proved."""
    return draft(p, c, lowered(p, c))


def _text(
    title: str, level: str, at: At, text: Callable[[Problem, Config], str], note: str
) -> Page:
    """What the choice's becomes, and the whole text, with a note."""
    whole = text(at.problem, at.config)
    lines = tuple(whole.splitlines())
    listing = Listing(title=f"{title} of {at.kernel.name}", lines=lines, folded=True, note=note)
    if not at.other:
        return Page(title=title, blocks=(listing,))
    name = lowered(at.problem, at.other).name
    before = without_noise(text(at.problem, at.other), name, level)
    after = without_noise(whole, at.kernel.name, level)
    changes = tuple(unified_diff(before, after, CHOICE, THIS, lineterm=""))
    same = "" if changes else "The same text, but for the kernel's name."
    diff = Listing(title=f"{title}: from the choice's to this", lines=changes, diff=True, note=same)
    return Page(title=title, blocks=(diff, listing))


def _timeline(at: At) -> Page:
    p, config, kernel = at.problem, at.config, at.kernel
    t = terms(p, config, at.launch.shape, H200, at.launch.groups)
    blocks, shape = t.waves * t.work.steps, at.launch.shape
    if blocks > MOST_BLOCKS:
        allowed = f"gives a CTA some {blocks} K blocks; at most {MOST_BLOCKS} are simulated here, more by gemmgen timeline"
        raise ArgumentError("shape", shape, allowed)
    whole, of_groups = _laid_out(at.launch)
    timeline, launch = simulated(p, config, kernel, whole, H200.sms, of_groups)
    return timeline_page(timeline, Selection(), launch)


def _laid_out(at: Asked) -> tuple[Shape, Layout]:
    """The launch's shape where every group has the mean, and where they lie."""
    (m, n, k), g, groups = at.shape, GROUPINGS[at.problem.grouping], at.groups
    step = at.problem.alignment if g.aligned else 1
    rows = m if g.rows or g.depths else groups * (-(-m // step) * step)
    if groups > MOST_GROUPS or rows > MOST_ROWS:
        allowed = f"must be at most {MOST_GROUPS} groups and {MOST_ROWS} rows for a timeline here"
        raise ArgumentError("groups, rows", (groups, rows), allowed)
    deep = k * groups if g.depths else k
    side, size = (deep, k) if g.depths else (rows, m)
    of_groups = OF_SIZES[at.problem.grouping](side, [size] * groups, at.problem.alignment)
    return (rows, n, deep), of_groups


def _proof(at: At) -> Page:
    a = compile_to_source(at.problem, at.config)
    page = kernel_page.proof(a.proof)
    read = Facts(title="The text read back", items=(("link", str(a.link)),))
    return replace(page, blocks=(*page.blocks, read))


def _passes(p: Position) -> Page:
    assert p.launch and p.config
    return lowering.page("this config", lowering.lowering(p.launch.problem, p.config))


def _view(what: str) -> Pane:
    return Pane(title=MAPS[what], page=lambda at: layout(at.kernel, what))


PANES: dict[str, Pane] = {
    "config": Pane(title="Config", of_any=differences, usual=True),
    "price": Pane(title="Price", page=_price, usual=True),
    "sm": Pane(title="Shared memory and registers", page=_sm, usual=True),
    "ir": Pane(title="IR", page=_ir, usual=True),
    "cuda": Pane(title="CUDA", page=_cuda, usual=True),
    "moves": Pane(title="Every next move", of_any=moves),
    "timeline": Pane(title="Timeline", page=_timeline),
    "words": Pane(title="In words", of_any=words),
    "commands": Pane(title="Commands", of_any=commands),
    "passes": Pane(title="Passes", of_any=_passes),
    **{what.lower(): _view(what) for what in VIEWS},
    "proof": Pane(title="Proof", page=_proof),
}
USUAL = tuple(name for name, pane in PANES.items() if pane.usual)
