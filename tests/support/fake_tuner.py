"""Handlers for tests/choosing/test_tuning.py: what a GPU does to a process, without one."""

from __future__ import annotations

import os
import signal
import sys
import time

from gemmgen.bench.tuning.compiling import Built
from gemmgen.bench.tuning.trial import Sweep, Time, Timing, Verify
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


class FakeCompiler:
    """Writes a file per kernel. The panel says what goes wrong."""

    fragile = False

    def __call__(self, request):
        problem, config, folder = request
        match config.panel:
            case 50:
                return Built(failed="12 bytes of spills")
            case 51:
                os._exit(11)
            case 52:
                time.sleep(600)
        path = folder / f"{abs(hash(repr((problem, config))))}.cubin"
        path.write_bytes(b"cubin")
        return Built(cubin=path)


class FakeGpu:
    """Verifies and times without a GPU. The panel says what goes wrong, block_n and panel how long it takes."""

    fragile = True

    def __call__(self, request):
        if isinstance(request, Verify):
            return self._verify(request.config, request.cubin)
        assert all(path.read_bytes() == b"cubin" for *_, path in request.kernels)
        if isinstance(request, Sweep):
            return self._sweep(request)
        if any(c.panel == 60 for c, _ in request.kernels):
            os.kill(os.getpid(), signal.SIGSEGV)
        seconds = {
            c: tuple(c.block_n * 1e-6 + c.panel * 1e-9 + i * 1e-10 for i in range(request.repeats))
            for c, _ in request.kernels
        }
        reference = ("torch.fake", (2e-4,) * request.repeats) if request.reference else None
        return Timing(seconds=seconds, reference=reference)

    def _sweep(self, request):
        """Rows cost; from 100 to 103 they cost a fifth more."""
        return {
            m: ((1000 + m) * (1.2e-9 if 100 <= m <= 103 else 1e-9),) * request.repeats
            for m, *_ in request.kernels
        }

    def _verify(self, config, cubin):
        assert cubin.read_bytes() == b"cubin"
        match config.panel:
            case 61:
                os.kill(os.getpid(), signal.SIGABRT)
            case 62:
                time.sleep(600)
            case 63:
                raise VerificationError("3 of 4 elements differ")


class Limited(FakeGpu):
    """Refuses what may take more than 78 SMs."""

    def __call__(self, request):
        assert request.sms == 78
        return super().__call__(request)


class Restless(FakeGpu):
    """Two rounds in five take half as long again; of every second request, that is timed, none."""

    timed = 0

    def __call__(self, request):
        found = super().__call__(request)
        if isinstance(request, Time):
            Restless.timed += 1
            rest = 1.0 if Restless.timed % 3 == 0 else 1.5
            spread = {
                c: tuple(t * (rest if i % 5 < 2 else 1.0) for i, t in enumerate(times))
                for c, times in found.seconds.items()
            }
            found = Timing(seconds=spread)
        return found


class NoReference(FakeGpu):
    """Dies of the reference."""

    def __call__(self, request):
        if isinstance(request, Time) and request.reference:
            os._exit(9)
        return super().__call__(request)
