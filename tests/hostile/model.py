"""A hostile input, and what must come of it: an error of gemmgen's with an id, in seconds, in bounded memory, and
every file as it was."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import signal
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gemmgen.cli import main
from gemmgen.errors import GemmgenError

SECONDS = 5.0
BYTES = 1 << 30  # more memory than before
USAGE, WARNING = "usage", "warning"  # argparse refused it; a warning said that it is passed over


class Hang(BaseException):
    """No `except Exception` may catch it."""


class Refused(Exception):
    """What the command said: an id of gemmgen's, or `USAGE`; and its whole text."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """made: prepares files in an empty folder and returns the call. ids: prefixes of the ids allowed."""

    surface: str
    says: str
    made: Callable[[Path], Callable[[], object]]
    ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """problem: "" if it was refused as it must be."""

    surface: str
    says: str
    problem: str


def call(surface: str, says: str, it: Callable[[], object], *ids: str) -> Case:
    """A case without files."""
    return Case(surface=surface, says=says[:60], made=lambda folder: it, ids=ids or ("GG-A",))


def command(*argv: str) -> object:
    """Run `gemmgen`; raises Refused if it says why it failed in one line, whose id is then its text."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main([*argv])
        except SystemExit as e:
            raise Refused(USAGE if e.code == 2 else f"exit {e.code}") from e
    found = re.match(r"gemmgen: (GG-\S+): ", said.getvalue())
    if code and found:
        raise Refused(found[1], said.getvalue())
    return code


def tried(case: Case, folder: Path) -> Outcome:
    """folder: an empty one."""
    it = case.made(folder)
    before = listing(folder)
    problem = _judged(it, case.ids)
    if not problem and listing(folder) != before:
        problem = "files changed"
    return Outcome(surface=case.surface, says=case.says, problem=problem)


def _judged(it: Callable[[], object], ids: tuple[str, ...]) -> str:
    try:
        with warnings.catch_warnings(), within(SECONDS, BYTES):
            warnings.simplefilter("error", RuntimeWarning)
            it()
    except Hang:
        return "hangs"
    except GemmgenError as e:
        return _allowed(e.id, ids, str(e))
    except Refused as e:
        return _allowed(e.args[0], ids, "".join(e.args[1:]))
    except RuntimeWarning as e:
        return _allowed(WARNING, ids, str(e))
    except BaseException as e:
        return f"{type(e).__name__}: {str(e)[:200]}"
    return "was not refused"


def _allowed(id: str, ids: tuple[str, ...], text: str) -> str:
    if len(text) > 4096 or "\0" in text:
        return "its message is as long as the input, or holds a NUL"
    return "" if id.startswith(ids) else f"{id} instead of {' or '.join(ids)}: {text[:200]}"


@contextlib.contextmanager
def within(seconds: float, more: int) -> Iterator[None]:
    """Raise Hang after so many seconds, MemoryError beyond `more` bytes of address space."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, ring)
    most = pages * resource.getpagesize() + more
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def listing(folder: Path) -> dict[str, object]:
    """What lies in `folder`: kind, mode, time of change, and a small file's contents."""
    found: dict[str, object] = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            s = path.lstat()
            small = stat.S_ISREG(s.st_mode) and s.st_size < 1 << 20
            digest = sha256(path.read_bytes()).hexdigest() if small else ""
            found[str(path)] = (s.st_mode, s.st_size, s.st_mtime_ns, digest)
    return found
