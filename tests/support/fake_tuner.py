"""Handlers for tests/choosing: what a GPU does to a process, without one; and a worker without a process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import ClassVar

from gemmgen.bench.tuning.compiling import Built
from gemmgen.bench.tuning.trial import Reads, Sweep, Time, Timing, Verify
from gemmgen.bench.tuning.worker import Answer
from gemmgen.errors import GemmgenError, VerificationError


class InProcess:
    """A worker without a process, which tests/choosing/test_tuning.py covers."""

    def __init__(self, handler, environment=None):
        self._made = globals()[handler]()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self):
        pass

    def ask(self, request, seconds):
        try:
            return Answer(value=self._made(request))
        except GemmgenError as e:
            return Answer(failed=str(e))


def built_here(kernels, folder, processes, progress):
    """`compile_all` without a compiler: the same cubin for every kernel."""
    found = {}
    folder.mkdir(parents=True, exist_ok=True)
    for i, kernel in enumerate(dict.fromkeys(kernels)):
        path = folder / f"{abs(hash(repr(kernel)))}.cubin"
        path.write_bytes(b"cubin")
        found[kernel] = Built(cubin=path)
        progress(i, len(found))
    return found


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


class Rated(FakeGpu):
    """Reads, and multiplies operands of one byte and of two, so many bytes and FLOP a second; a launch takes so long besides.
    Times vary by so much of themselves."""

    read, launch, spread = 4.4e12, 4e-6, 0.0
    flops: ClassVar = {1: 1.3e15, 2: 0.7e15}

    def __call__(self, request):
        match request:
            case Reads():
                return {
                    size: self._rounds(Rated.launch + size / Rated.read, request.repeats)
                    for size in request.sizes
                }
            case Time():
                m, n, k = request.job.shape
                seconds = 2.0 * m * n * k / Rated.flops[request.job.problem.a.bytes]
                each = self._rounds(seconds, request.repeats)
                return Timing(seconds={c: each for c, _ in request.kernels})
        return super().__call__(request)

    def _rounds(self, seconds, repeats):
        return tuple(seconds * (1 + Rated.spread * (i % 2)) for i in range(repeats))


class NoReference(FakeGpu):
    """Dies of the reference."""

    def __call__(self, request):
        if isinstance(request, Time) and request.reference:
            os._exit(9)
        return super().__call__(request)


class Paced(FakeGpu):
    """Takes its time, and notes in the folder FAKE_SEEN which devices it sees."""

    def __init__(self):
        place = Path(os.environ["FAKE_SEEN"]) / str(os.getpid())
        place.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))

    def __call__(self, request):
        time.sleep(0.03)
        return super().__call__(request)
