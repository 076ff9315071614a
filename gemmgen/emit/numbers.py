"""Numbers in text: sums without what is 0, and loops that are written out where they run once.

Templates get a counter `i` from `each`: a number where the loop is not there, else a `Counter`, on which the same
arithmetic gives the expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent

from ..ir.places import plus


@dataclass(frozen=True)
class Counter:
    """`times * name + more`, an int expression in C."""

    name: str
    times: int = 1
    more: int = 0

    def __str__(self) -> str:
        text = self.name
        if self.times != 1:  # from the left: `i / 2 * 4`
            text = f"{self.times} * {text}" if text.isidentifier() else f"{text} * {self.times}"
        return f"{text} - {-self.more}" if self.more < 0 else f"{text}{plus(self.more)}"

    def __add__(self, number: int) -> Counter:
        return Counter(self.name, self.times, self.more + number)

    def __sub__(self, number: int) -> Counter:
        return self + -number

    def __mul__(self, number: int) -> Counter:
        return Counter(self.name, self.times * number, self.more * number)

    __rmul__ = __mul__

    def __floordiv__(self, number: int) -> Counter:
        if self.times % number == 0 and self.more % number == 0:
            return Counter(self.name, self.times // number, self.more // number)
        return Counter(f"{self._factor()} / {number}")

    def __mod__(self, number: int) -> Counter:
        return Counter(f"{self._factor()} % {number}")

    def _factor(self) -> str:
        return f"({self})" if self.more else str(self)


Number = int | Counter
DECLARES = re.compile(r"(const )?\w+ \w+( = |,)")


def each(
    end: int,
    step: int = 1,
    first: int = 0,
    *,
    caller: Callable[[Number], str],
    name: str = "i",
    shown: str = "",
    pragma: str = "#pragma unroll",
) -> str:
    """`caller`'s text in a loop from `first` to before `end`, as `shown`; written out, or left out, where it runs once or
    never."""
    numbers = range(first, end, step)
    if not numbers:
        return ""
    once = len(numbers) == 1
    text = caller(first if once else Counter(name)).rstrip("\n")
    margin = text[: len(text) - len(text.lstrip(" "))]
    starts = re.findall(rf"^{margin}(\S.*)", text, re.MULTILINE)
    if once and not any(map(DECLARES.match, starts)):
        return f"{text}\n"
    above = f"{margin}{pragma}\n" if pragma and not once else ""
    counted = f"++{name}" if step == 1 else f"{name} += {step}"
    loop = f"for (int {name} = {first}; {name} < {shown or end}; {counted}) "
    head = f"{above}{margin}{loop * (not once)}"
    inside = indent(text, "    ")
    if len(starts) == 1 and not once:
        return f"{head.rstrip(' ')}\n{inside}\n"
    return f"{head}{{\n{inside}\n{margin}}}\n"


def rounded_up(x: str, step: int) -> str:
    """The first multiple of `step` from x on."""
    return f"({x} + {step - 1}) / {step} * {step}" if step > 1 else x
