"""Pictures that a notebook shows, and a file or a terminal as well."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.nodes import Kernel
from . import layout_page, svg, text
from .page import Page


@dataclass(frozen=True, repr=False)
class Picture:
    """A page of pictures: a notebook shows them, `svg` is a file's text, `str` a terminal's."""

    page: Page

    @property
    def svg(self) -> str:
        """A file of its own, for light and dark screens."""
        return svg.render(self.page)

    def __str__(self) -> str:
        return text.render(self.page)

    def __repr__(self) -> str:
        return f"Picture({self.page.title!r})"

    def _repr_svg_(self) -> str:
        """In a notebook."""
        return self.svg


def layout(kernel: Kernel, what: str) -> Picture:
    """What lies where in a lowered kernel, as `gemmgen layout` draws it. what: "A", "B", "acc" (the accumulator), "D" or
    "scales". Raises ArgumentError for another, and for the scales of a kernel that has none in shared memory."""
    return Picture(layout_page.layout(kernel, what))
