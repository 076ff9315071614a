"""What a shell asks when a word of `gemmgen` is to be completed; argcomplete answers, where it is installed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

ASKED = "_ARGCOMPLETE"  # set by the shell's function: how many words of the line are before ours


def complete(parser_of: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """If a shell asks, answer and end the process. parser_of: of the words before the one that is completed."""
    if ASKED not in os.environ:
        return
    try:
        import argcomplete
        from argcomplete.completers import SuppressCompleter
        from argcomplete.lexers import split_line
    except ImportError:  # the shell's is of another Python
        return
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    parser = parser_of(words[int(os.environ[ASKED]) :])
    argcomplete.autocomplete(parser, default_completer=SuppressCompleter())
