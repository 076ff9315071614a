"""Whether the link between a kernel and its text finds a change of the text."""

from __future__ import annotations

import pytest
from kernels import Emitted

from gemmgen.link import TextDiffers, link


def check_found(a: Emitted, old: str, new: str) -> None:
    """Raises where a kernel's own text does not link, or one of which the first `old` reads `new` does."""
    link(a.kernel, a.source)
    assert old in a.source
    with pytest.raises(TextDiffers):
        link(a.kernel, a.source.replace(old, new, 1))
