"""What brings a rank's rows to other ranks: copies by its GPU's copy engines, beside its launches (docs/adr/0051-all-gather.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import finalize

from ..errors import RuntimeUnavailable
from . import driver
from .driver import call
from .inbox import Move, Raise
from .outbox import Await

Job = Callable[[Any, int], None]  # on a stream, for a launch of an epoch
WRITES = "CAN_USE_64_BIT_STREAM_MEM_OPS"


def writes_flags(device: int) -> bool:
    """Whether streams of the CUDA device write and await flags."""
    return bool(driver.attribute(device, WRITES))


class CopyStream:
    """A stream of the highest priority on CUDA device `device`, for copies beside launches, and so many events. Who uses it takes
    turns. held: what copies access, kept until they are done. Raises RuntimeUnavailable for a device whose streams write no flags."""

    def __init__(self, device: int, events: int, held: object = None) -> None:
        if not writes_flags(device):
            raise RuntimeUnavailable(
                f"device={device} does not write 64-bit values in the order of a stream (CU_DEVICE_ATTRIBUTE_{WRITES} is 0), "
                "by which ranks say that what they sent has arrived"
            )
        self.device, cu = device, driver.driver()
        untimed, alone = (
            cu.CUevent_flags.CU_EVENT_DISABLE_TIMING,
            cu.CUstream_flags.CU_STREAM_NON_BLOCKING,  # of the stream 0, which torch launches on
        )
        with driver.current(device):
            _, highest = call("cuCtxGetStreamPriorityRange")
            self.stream = call("cuStreamCreateWithPriority", alone, highest)
            self.events = tuple(call("cuEventCreate", untimed) for _ in range(events))
            ended = self.stream, self.events, call("cuCtxGetCurrent"), held
        finalize(self, _destroy, cu, *ended).atexit = False


class Sender(CopyStream):
    """Sends a rank's rows beside its launches: the events by which its stream and that of a launch wait for each other."""

    def __init__(self, device: int) -> None:
        super().__init__(device, events=3)
        self._ready, self._sent, self._over = self.events

    def follow(self, stream: int) -> None:
        """Let what is queued on `stream` from now on wait until this rank's launches are over. Raises LaunchError."""
        with driver.current(self.device):
            call("cuStreamWaitEvent", stream, self._over, 0)

    @contextmanager
    def beside(
        self, stream: int, own: Sequence[Job], pushes: Sequence[Job], epoch: int
    ) -> Iterator[None]:
        """What is launched on `stream` meanwhile runs behind `own` and beside `pushes`, which begin when what was before is over: this rank's
        launch before on whatever stream, and what wrote the rows on this one. What follows on `stream` finds `pushes` done.

        They are on their stream before the launch: where two streams share a queue of the hardware, they stand before
        the kernel that waits for other ranks. Raises LaunchError."""
        with driver.current(self.device):
            call("cuStreamWaitEvent", stream, self._over, 0)
            call("cuEventRecord", self._ready, stream)
            for do in own:
                do(stream, epoch)
            call("cuStreamWaitEvent", self.stream, self._ready, 0)
            try:
                for do in pushes:
                    do(self.stream, epoch)
                yield
            finally:
                call("cuEventRecord", self._sent, self.stream)
                call("cuStreamWaitEvent", stream, self._sent, 0)
                call("cuEventRecord", self._over, stream)


class ParcelSender(CopyStream):
    """Sends a rank's sums beside its launches, from an outbox of two buffers, `held`, that those take in turns."""

    def __init__(self, device: int, held: object) -> None:
        super().__init__(device, events=2, held=held)

    def behind(
        self, stream: int, launch: Callable[[], None], pushes: Sequence[Job], epoch: int
    ) -> None:
        """`launch` on `stream`, and `pushes` beside it, which wait for what it says, and may outlive it; where it raises there are none. It begins
        when those of the launch before the last, whose buffer it takes, are done. Raises LaunchError."""
        left = self.events[epoch % len(self.events)]
        with driver.current(self.device):
            call("cuStreamWaitEvent", stream, left, 0)
            launch()
            for do in pushes:
                do(self.stream, epoch)
            call("cuEventRecord", left, self.stream)


def _destroy(cu: Any, stream: Any, events: tuple[Any, ...], context: Any, held: object) -> None:
    """Once what is queued there is done, of what accesses `held` before that is let go. Nobody is there to be told of an error."""
    cu.cuCtxPushCurrent(context)
    if held is not None:
        cu.cuStreamSynchronize(stream)
    cu.cuStreamDestroy(stream)
    for event in events:
        cu.cuEventDestroy(event)
    cu.cuCtxPopCurrent()


def job(x: Await | Move | Raise) -> Job:
    """What does `x` on a stream, as part of the launch of an epoch."""
    if isinstance(x, Await):
        return partial(_await, x.flag)
    if isinstance(x, Raise):
        return partial(_raise, x.flag)
    if x.bytes:
        return partial(_copy, "cuMemcpyAsync", (x.to, x.of, x.bytes))
    return partial(_copy, "cuMemcpy2DAsync", (_lines(x),))


def _await(flag: int, stream: Any, epoch: int) -> None:
    at_least = driver.driver().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    call("cuStreamWaitValue64", stream, flag, epoch, at_least)


def _raise(flag: int, stream: Any, epoch: int) -> None:
    """After a fence of the system's scope: what was copied before is there."""
    call("cuStreamWriteValue64", stream, flag, epoch, 0)


def _copy(function: str, given: tuple[Any, ...], stream: Any, epoch: int) -> None:
    call(function, *given, stream)


def _lines(move: Move) -> Any:
    """Of memory that may be of two devices, by addresses that all of them share."""
    cu = driver.driver()
    copy, unified = cu.CUDA_MEMCPY2D(), cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    copy.srcMemoryType = copy.dstMemoryType = unified
    copy.srcDevice, copy.srcPitch = move.of, move.of_pitch
    copy.dstDevice, copy.dstPitch = move.to, move.to_pitch
    copy.WidthInBytes, copy.Height = move.width, move.height
    return copy
