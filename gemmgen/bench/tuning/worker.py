"""A child process that serves requests one at a time, and is killed and replaced when it hangs or dies.

A handler is a class, "module:Class", made in the child: called with a request, it returns the answer or
raises. With `fragile` set, the child ends after an error: a CUDA context that has seen one cannot be trusted.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ...errors import GemmgenError, RuntimeUnavailable

START_SECONDS = 300.0  # for imports, a CUDA context and a profiler on a busy machine
KILL_SECONDS = 20.0  # the driver tears a hung kernel down first
PR_SET_PDEATHSIG = 1
SHOWN = 300  # characters of what a dead child wrote last

READY, ABSENT, DONE, FAILED = "ready", "absent", "done", "failed"


@dataclass(frozen=True)
class Answer:
    """What a request came to. failed: why it has no value, or ""."""

    value: Any = None
    failed: str = ""


class Worker:
    """Use as a context: the child is gone afterwards, whatever it was doing. environment: variables that the child has besides."""

    def __init__(
        self,
        handler: str,
        start_seconds: float = START_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._handler = handler
        self._environment = environment or {}
        self._start_seconds = start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._written: IO[bytes] | None = None
        self.starts = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Any, seconds: float) -> Answer:
        """The answer to one request, or why there is none: an error, no answer within `seconds` (the child
        is killed), or the child's death. Raises RuntimeUnavailable if no child can be started, and
        GemmgenError if it does not get ready."""
        pipe = self.start()
        try:
            pipe.send(request)
            if not pipe.poll(seconds):
                self.close()
                return Answer(failed=f"no answer within {seconds:.0f} s: killed")
            kind, value, last = pipe.recv()
        except (EOFError, OSError):
            return Answer(failed=self._died())
        if last:
            self.close()
        return Answer(value=value) if kind == DONE else Answer(failed=value)

    def start(self) -> Connection:
        """The pipe to a child that is ready. Raises as `ask`."""
        if self._pipe and self._child and self._child.poll() is None:
            return self._pipe
        self.close()
        pipe = self._spawn()
        try:
            kind, text = (
                pipe.recv() if pipe.poll(self._start_seconds) else (FAILED, "not ready in time")
            )
        except (EOFError, OSError):
            kind, text = FAILED, self._died()
        if kind == READY:
            return pipe
        self.close()
        raise (RuntimeUnavailable if kind == ABSENT else GemmgenError)(text)

    def close(self) -> None:
        """Kill the child, if there is one, and forget it."""
        if self._pipe:
            self._pipe.close()
        if self._child and self._child.poll() is None:
            self._child.kill()
        if self._child:
            # Past that it is in the kernel, and out of reach until the driver lets go.
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(KILL_SECONDS)
        if self._written:
            self._written.close()
        self._child = self._pipe = self._written = None

    def stop(self) -> None:
        """Kill the child from another thread than that which is waiting for it."""
        child = self._child
        if child:
            child.kill()

    def _spawn(self) -> Connection:
        self._pipe, theirs = Pipe()
        self._written = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        here = str(Path(__file__).parents[3])
        path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, self._handler, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._written,
                stderr=self._written,
                env={**os.environ, **self._environment, "PYTHONPATH": path},
            )
        self.starts += 1
        return self._pipe

    def _died(self) -> str:
        """How the child ended, and its last words."""
        assert self._child and self._written
        try:
            code = self._child.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        self._written.seek(0)
        words = self._written.read().decode(errors="replace").strip()[-SHOWN:]
        self.close()
        return f"the process died ({how}): {words}" if words else f"the process died ({how})"


def serve(handler: str, pipe: Connection) -> None:
    """The child's side: make the handler, then answer until the pipe is closed."""
    # Ctrl-C goes to every process of the terminal; the parent decides what becomes of this one. If the
    # parent is killed, a child on a hung kernel would stay for ever.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        module, name = handler.split(":")
        made = getattr(__import__(module, fromlist=[name]), name)()
    except Exception as e:
        pipe.send((ABSENT if isinstance(e, RuntimeUnavailable) else FAILED, _text(e)))
        return
    pipe.send((READY, ""))
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            answer = (DONE, made(request), False)
        except Exception as e:
            answer = (FAILED, _text(e), bool(made.fragile))
        pipe.send(answer)
        if answer[2]:
            os._exit(0)  # an exit in order would wait for the context


def _text(e: Exception) -> str:
    return str(e) if isinstance(e, GemmgenError) else f"{type(e).__name__}: {e}"


if __name__ == "__main__":
    serve(sys.argv[1], Connection(int(sys.argv[2])))
