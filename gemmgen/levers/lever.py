"""What a lever is: one way in which kernels for one problem differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

C = Any  # a `Config`, whose fields are the levers
L = Any  # the `cost_launch.Workload` that a config is chosen and priced for
Changes = dict[str, Any]  # of a config's fields
AS_IT_IS: tuple[Changes, ...] = ({},)


def no_others(c: C) -> tuple[Changes, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Values:
    """Which values a lever takes. says: in words, as an error has them.

    What a control shows them by: listed, all of them, asked anew each time; or span, the least integer, the greatest and
    the step between two. null: None is one besides. With neither they are what `holds` says.
    """

    says: str
    holds: Callable[[Any], bool]
    listed: Callable[[], tuple[Any, ...]] | None = None
    span: tuple[int, int, int] | None = None
    null: bool = False


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A field of `Config`, and all that other layers ask of it by name.

    name: the field. values: which it takes. default: what it has where nobody says.
    added: whether files were written before there was one: where it has its default it is left out of JSON.
    tag: its part of the name of a kernel that has not the default, a format of its value, or of the config; "" where
    names do without. After those of problems if `added`, or `late`.
    word: what tables say of such a config, a format of the value.
    reads: what a report says of such a config, under the name of the lever; "" where another line of it says it.
    others: what the tuner tries instead, as changes of fields. matters: the lower, the earlier it is tried.
    sums: whether it may change in which order the products of an element of D are added up: so it is taken to be where
    nobody says (`gemmgen.summation`).
    ordered: whether it says only in which order tiles come, so that nothing is tried where all run at once.
    deepens: changes that make room for one stage more, those that cost least first, of which the tuner tries one.
    offers: what a choice considers of a config, as changes of fields; {} is the config as it is, no changes drop it.
    beside: where it has not the default, the levers of which a choice considers more; None: all.
    tile: whether another value is another tile: another size of it, or other warpgroups or CTAs at it.
    spares: whether the default takes the fewest registers: what a choice tries where the build refused a kernel.
    hides: stages more that hide latency where it has not the default.
    ready: its value in what is chosen for a problem whose weights are ready, where the host knows each tile's group; None: as chosen.
    price: what is another of the `Price` of a config that has not the default, given what it is without it.
    lowers: of one that a program adds, the pass that is handed its value, and `before` which of
    `gemmgen.passes.PIPELINE`.
    """

    name: str
    values: Values
    default: Any
    added: bool = False
    late: bool = False
    tag: str | Callable[[C], str] = ""
    word: str = ""
    reads: str = ""
    others: Callable[[C], Iterable[Changes]] = no_others
    matters: float = 100.0
    sums: bool = True
    ordered: bool = False
    deepens: Callable[[C], Iterable[Changes]] = no_others
    offers: Callable[[L, C], Iterable[Changes]] | None = None
    beside: tuple[str, ...] | None = None
    tile: bool = False
    spares: bool = False
    hides: int = 0
    ready: Any = None
    price: Callable[[Changes, L, C], Changes] | None = None
    lowers: Callable[..., Any] | None = None
    before: str = "check_complete"

    def plain(self, c: C) -> bool:
        """Whether `c` has the default."""
        return bool(getattr(c, self.name) == self.default)

    def tagged(self, c: C) -> str:
        """Its part of the name of a kernel of `c`, "" for none."""
        if callable(self.tag):
            return self.tag(c)
        return "" if self.plain(c) else self.tag.format(getattr(c, self.name))

    def said(self, c: C) -> str:
        """Its word in tables, "" for none."""
        return "" if self.plain(c) else self.word.format(getattr(c, self.name))


def integer(low: int, high: int, step: int = 1) -> Values:
    multiple = f", a multiple of {step}" if step > 1 else ""

    def holds(v: Any) -> bool:
        return isinstance(v, int) and not isinstance(v, bool) and low <= v <= high and v % step == 0

    says = f"an integer from {low} to {high}{multiple}"
    return Values(says=says, holds=holds, span=(low, high, step))


def optional(values: Values) -> Values:
    says = f"{values.says}, or null"
    return replace(values, says=says, holds=lambda v: v is None or values.holds(v), null=True)


def choice(*values: Any) -> Values:
    kinds = {type(x) for x in values}  # True equals 1, and what is no choice may have no hash
    return Values(
        says="one of " + ", ".join(map(repr, values)),
        holds=lambda v: type(v) in kinds and v in values,
        listed=lambda: values,
    )


def flag(name: str, **more: Any) -> Lever:
    """One that is asked for or not."""
    of: dict[str, Any] = {"values": choice(False, True), "default": False, "added": True} | more
    return Lever(name=name, **of)
