"""`python -m docs.tools.errors > docs/errors.md`: the catalogue of exception classes, from their docstrings."""

from __future__ import annotations

from . import messages

HEAD = """# Errors

Made by `python -m docs.tools.errors` from `gemmgen/errors.py`. Everything that gemmgen raises on purpose is one of
these. `gemmgen` prints the error and ends with the exit code; with `--json` the error is a JSON object.

"""
TAIL = """
An `ArgumentError` names the argument, its value and what is allowed. An `IllegalConfig` has the rule
([rules.md](rules.md)), the values that broke it and what to change
([how to read it](how-to/read-a-refusal.md)). The site that `make docs` builds also lists every message with the file
that raises it.

Two more come from below. `ProtocolViolation` (`gemmgen/check/`) means that a legal config gave a kernel that can
deadlock or race: a bug in gemmgen, worth a report with the config. The emulator's errors (`gemmgen/emulator/errors.py`)
say what a kernel did wrong, or which instruction the emulator does not know.
"""


def markdown() -> str:
    """The text of docs/errors.md."""
    return HEAD + messages.table() + TAIL


if __name__ == "__main__":
    print(markdown(), end="")
