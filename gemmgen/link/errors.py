"""What reading the text back, and holding it against the IR, raises."""

from __future__ import annotations

from ..errors import GemmgenError


class Unreadable(Exception):
    """A text that the reader does not understand: it is then not what the IR says either."""


class TextDiffers(GemmgenError):
    """The emitted text is not what the IR says. `where` names the role and the blocks around the place, `ir` and
    `text` are what each says there."""

    id = "GG-V003"

    def __init__(self, kernel: str, where: str, ir: str, text: str) -> None:
        super().__init__(f"{kernel}: {where}:\n  the IR says    {ir}\n  the text says  {text}")
        self.where = where
        self.ir = ir
        self.text = text
