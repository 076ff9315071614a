"""Handlers for tests/choosing: what a process does that serves requests. They begin within a fifth of a second: they import little."""

from __future__ import annotations

import os
import signal
import sys
import time

from gemmgen.errors import RuntimeUnavailable, VerificationError


class Fake:
    """Does what a request says."""

    fragile = True

    def __call__(self, request):
        match request:
            case "crash":
                print("illegal instruction", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGABRT)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(600)
            case "wrong":
                raise VerificationError("3 of 4 elements differ")
            case "bug":
                raise KeyError("x")
        return os.getpid()


class Sturdy(Fake):
    fragile = False


class Absent:
    def __init__(self):
        raise RuntimeUnavailable("no GPU here")


class Broken:
    def __init__(self):
        os._exit(7)


class Slow:
    def __init__(self):
        time.sleep(600)


class Told(Fake):
    """Answers with the environment variable that is asked for."""

    def __call__(self, request):
        return os.environ.get(request)
