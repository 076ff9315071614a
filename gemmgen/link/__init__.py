"""The link from the IR to the text that is compiled: the text is read back and held against the statements.

It knows C, the PTX ISA's instructions by their opcodes and what each statement means, and nothing of templates.
"""

from __future__ import annotations

from .errors import TextDiffers
from .match import Link, from_ir, from_text, link

__all__ = ["Link", "TextDiffers", "from_ir", "from_text", "link"]
