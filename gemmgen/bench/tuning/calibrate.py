"""What a GPU does, measured: how fast it reads, how fast it multiplies, what a launch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ... import recipes
from ...config import Config
from ...epilogues import EPILOGUES
from ...errors import GemmgenError
from ...ir.dtypes import BF16, E4M3
from ...problem import Problem
from ...runtime.calibrated import SIDE, Calibration
from ..noise import spread
from .compiling import Built
from .jobs import Job
from .session import NOISY, Settings
from .trial import Reads, Time, Timing, Verify
from .worker import Worker

SHAPE = (SIDE, SIDE, SIDE)
# By bytes of an operand; those whose H200 rates are known.
PROBLEMS = {
    1: Problem(family=recipes.DENSE, a=E4M3, b=E4M3, epilogue=EPILOGUES["tensor_scaled"]),
    2: Problem(family=recipes.DENSE, a=BF16, b=BF16),
}
# What an H200 was tuned to at SHAPE, by which its rates are known; the same on every GPU.
CONFIG = Config(
    block_n=192, stages=4, multicast="b", in_flight=1, d_columns=64, ping_pong=True, unroll=1
)
KERNELS = tuple((p, CONFIG) for p in PROBLEMS.values())
SIZES = tuple(1 << bits for bits in (26, 28, 30, 32))  # bytes: the smallest is more than an L2
READS = 25  # rounds
GEMM_SECONDS = 3.0  # of back-to-back launches, the second half of which counts: by then clock and power have settled
LEAST_ROUNDS, MOST_ROUNDS = 50, 5000
FIRST = 5  # rounds that say how long one takes
TRIES = 3


def measure(
    device: str,
    attributes: tuple[tuple[str, int], ...],
    built: Mapping[tuple[Problem, Config], Built],
    worker: Worker,
    s: Settings,
) -> Calibration:
    """Raises GemmgenError for what fails, is wrong or stays noisy, and says what."""
    worker.start()  # not at a kernel's expense
    times = _reads(worker, s)
    per_byte, launch = line(times)
    flops = {size: _flops(p, built[p, CONFIG], worker, s) for size, p in PROBLEMS.items()}
    return Calibration(
        device=device,
        attributes=attributes,
        read=1 / per_byte,
        launch=launch,
        flops=tuple(flops.items()),
    )


def line(times: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Seconds per byte and seconds at no bytes, of the line that is nearest to the medians, each as near as to its size."""
    found = {size: median(seconds) for size, seconds in times.items()}
    weights = {size: seconds**-2 for size, seconds in found.items()}
    whole = sum(weights.values())
    x = sum(weights[size] * size for size in found) / whole
    y = sum(weights[size] * seconds for size, seconds in found.items()) / whole
    across = sum(w * (size - x) ** 2 for size, w in weights.items())
    slope = sum(weights[b] * (b - x) * (seconds - y) for b, seconds in found.items()) / across
    return slope, y - slope * x


def _reads(worker: Worker, s: Settings) -> dict[int, tuple[float, ...]]:
    for _ in range(TRIES):
        answer = worker.ask(Reads(sizes=SIZES, repeats=READS), s.timeout)
        if answer.failed:
            raise GemmgenError(f"memory could not be read: {answer.failed}")
        found: dict[int, tuple[float, ...]] = answer.value
        widest = max(map(spread, found.values()))
        if widest <= NOISY:
            return found
    raise _noisy("reading memory", widest)


def _flops(p: Problem, made: Built, worker: Worker, s: Settings) -> float:
    """Per second, under load."""
    of = Job(problem=p, shape=SHAPE)
    if not made.cubin:
        raise GemmgenError(f"{p.a} could not be compiled: {made.failed}")
    if failed := worker.ask(Verify(job=of, config=CONFIG, cubin=made.cubin), s.timeout).failed:
        raise GemmgenError(f"{p.a} could not be multiplied: {failed}")
    rounds = FIRST
    for _ in range(TRIES + 1):
        request = Time(job=of, kernels=((CONFIG, made.cubin),), repeats=rounds)
        answer = worker.ask(request, s.timeout + GEMM_SECONDS)
        if answer.failed:
            raise GemmgenError(f"{p.a} could not be timed: {answer.failed}")
        timing: Timing = answer.value
        (seconds,) = timing.seconds.values()
        settled = seconds[len(seconds) // 2 :]
        if rounds > FIRST and spread(settled) <= NOISY:
            return 2.0 * SIDE**3 / median(settled)
        rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, round(GEMM_SECONDS / median(settled))))
    raise _noisy(f"multiplying {p.a}", spread(settled))


def _noisy(what: str, by: float) -> GemmgenError:
    text = f"{what} varied by {by:.0%} of itself: is something else running on this GPU?"
    return GemmgenError(text)
