"""What a command that draws writes."""

from __future__ import annotations

import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from gemmgen.cli import main


def drawn(command: str) -> str:
    """The file that `command`, which ends in `--svg FILE`, writes. Raises RuntimeError if it fails."""
    *words, name = shlex.split(command)[1:]
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        file = Path(folder) / name
        if main([*words, str(file)]):
            raise RuntimeError(command)
        return file.read_text()
