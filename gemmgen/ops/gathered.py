"""GEMMs of several GPUs that multiply each other's rows of A while those arrive (docs/adr/0051-all-gather.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.collectives import ALL_GATHER, check_ranks, chunks_for
from ..ir.counts import check_side
from ..ir.dtypes import F32, DType
from ..ir.expr import fold
from ..problem import Problem
from ..recipes import recipe
from ..runtime.inbox import (
    BUFFERS,
    Gathering,
    Sides,
    gathering,
    inbox_size,
    places,
    seat,
)
from ..runtime.inbox import Inbox as Layout
from ..runtime.launch import Plan
from ..runtime.sender import Job, Sender, job
from ..runtime.tensor_map import Matrix, check
from ..runtime.torch_tensors import (
    check_apart,
    check_tensor,
    current_stream,
    torch,
    torch_dtype,
)
from .arrived import of_all_ranks
from .calls import SCALE_BLOCK, matrix, operand_shape
from .collective import (
    End,
    SymmetricMemory,
    capturing,
    check_device,
    kernel_of,
    numbered,
    of_collective,
    scales_in_place,
)
from .collective import InProcess as InProcess
from .compute import Scales, read_by_epilogue, scales_of
from .epilogue import epilogue_values
from .front import returned, tensor_of
from .outputs import outputs_of, stores
from .results import planned

SENT = ("a", "scale_a")
Matrices = dict[str, Matrix]


class Inbox(End):
    """This rank's end of all ranks' inboxes, and the number of its next launch.

    memory: its flags (all of it, to be simple) zero on every rank before the first launch of any, and used by nothing else. `inbox_bytes(problem, m, k,
    ranks)` says how much launches need. device: the CUDA device of this rank. All ranks must launch the same kernels over the same M, K
    and chunks in the same order. Not in a CUDA graph: the copies beside a launch raise flags by writing a constant, so a replay would repeat an old number. Raises RuntimeUnavailable for a device whose streams cannot write
    the flags.
    """

    def __init__(self, memory: SymmetricMemory, device: Any) -> None:
        super().__init__(memory, device, least=1)
        size = int(memory.buffer_size)
        self.layout = Layout.of(size, self.ranks)
        self.bytes = memory.get_buffer(self.rank, (size,), torch().uint8)
        self.sender = Sender(self.device.index)
        self.epoch = 0  # of the last launch

    def buffer(self, epoch: int) -> int:
        """The address of the one that the rows of a launch arrive in."""
        return self.addresses[self.rank] + self.layout.buffer(epoch)


def inbox_bytes(problem: Problem, m: int, k: int, ranks: int) -> int:
    """Memory that each of `ranks` GPUs needs for launches of `problem` with up to M rows of A on each, and up to K. Raises ArgumentError."""
    if not isinstance(problem, Problem):
        raise ArgumentError("problem", problem, "must be a gemmgen.Problem")
    for name, side in (("m", m), ("k", k)):
        check_side(name, side)
    check_ranks(ranks)
    return inbox_size(_sides(problem, m, k).values(), ranks)


class AllGather:
    """`out[ranks * M, N] = epilogue(A of all ranks @ B)` in one launch of each rank, which `launch` starts as often as one likes, over what the tensors
    then hold. Other ranks' rows of A arrive while it runs.

    problem: without a grouping. a [M, K]: this rank's own rows; b [N, K]: its own columns; as the problem's layout stores them. scale_a, scale_b,
    scale_layout: as of `gemmgen.ops.multiply`, of its own rows and columns, but layout "row" is refused: rows of scales travel as they lie. out: [ranks * M, N], allocated if None: the rows
    of rank 0, then of rank 1 and so on. scale_out: of an FP8 D, as of `gemmgen.ops.multiply`. arguments: what the epilogue reads, of all ranks' rows. config: the same on
    all ranks; None lets the cost model choose. chunks: in how many a rank sends its rows, 1 to 32, the same on all
    ranks; None for as many as have 16 MB each, one at least.

    a None: the caller writes this rank's M = `rows` rows where they are read, before each launch: see `place`. Nothing is copied then but to other ranks.
    Raises as `gemmgen.ops.multiply`.
    """

    def __init__(
        self,
        problem: Problem,
        memory: Inbox,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        rows: int | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_layout: str | None = None,
        scale_out: Any = None,
        chunks: int | None = None,
        config: Config | None = None,
        **arguments: Any,
    ) -> None:
        p = of_collective(problem, memory, Inbox, ALL_GATHER)
        scaled = recipe(p.family).scaled
        self.inbox, self._problem, self._placed = memory, p, []
        if a is None or rows is not None:
            given = {"a": a, "scale_a": scale_a if scaled else None, "scale_layout": scale_layout}
            self._placed = _placed(p, memory, b, rows, given)
            a, scale_a = (self._placed[0].get(x, y) for x, y in (("a", a), ("scale_a", scale_a)))
            scale_layout = "mn" if scaled else None
        m, n, k = self.shape = operand_shape(p, a, b)
        check_device(a, memory)
        check_side("a rows", m)
        self._sides = _sides(p, m, k)
        _check_room(memory, self._sides)
        scales = Scales(a=scale_a, b=scale_b, layout=scale_layout)
        arguments |= read_by_epilogue(p, scales)
        tensors, values = scales_of(p, a, b, scales)
        whole = memory.ranks * m, n, k
        check_side("ranks * m", whole[0])
        made = outputs_of(p, (whole[0], n // fold(p.epilogue)), a, b, out, scale_out)
        result = {name: tensor_of(x) for name, x in made.items()}
        values |= epilogue_values(p, whole, 1, arguments, a.device) | stores(result)
        self.kernel = kernel_of(p, config, self.shape, memory.ranks, a.device.index)
        tensors = {
            "a": a,
            "b": b,
            **scales_in_place(tensors, self.kernel, scale_layout, "must be 'mn'"),
        }
        outside = {name: x for name, x in tensors.items() if not (self._placed and name in SENT)}
        for name, x in (outside | result).items():
            check_apart(name, x, {"memory": memory.bytes})
        matrices = {name: matrix(x) for name, x in tensors.items()}
        for name, (*_, size) in self._sides.items():
            check(name, matrices[name], size)
        chunks = chunks_for(m * k * p.a.bytes) if chunks is None else chunks
        g = gathering(self.kernel.kernel, matrices, m, memory.ranks, chunks)
        values |= {"shape_n": n, "shape_k": k, **g.strides(arguments, values)}
        self._values = {**values, **g.values(memory.addresses[memory.rank], memory.rank)}
        self.chunks, self.result = -(-m // g.chunk_rows), returned(result)
        self._held: tuple[Any, ...] = a, b, tensors, scale_b, arguments, result
        self.a = None if self._placed else a
        matrices["d"] = g.grouped(matrix(result["out"]))
        stream = current_stream(a.device)
        self._turns = [self._turn(g, matrices, epoch, stream) for epoch in range(BUFFERS)]

    def _turn(self, g: Gathering, matrices: Matrices, epoch: int, stream: int) -> _Turn:
        """Of the launches that use the buffer of this one."""
        box, buffer = self.inbox, self.inbox.buffer(epoch)
        if self._placed:
            own = {
                name: seat(x, self._sides[name][2], buffer, box.rank)
                for name, x in g.places.items()
            }
            g = replace(g, own=own)
        maps = {**matrices, **g.matrices(buffer)}
        values = {**self._values, "epoch": epoch}
        return _Turn(
            plan=planned(self.kernel, self.shape, maps, values, stream),
            own=tuple(map(job, g.own_moves(buffer, box.rank))),
            pushes=tuple(map(job, g.pushes(box.addresses, box.layout, box.rank, epoch))),
        )

    def place(self) -> Any:
        """Where the next launch of the inbox reads this rank's rows, to be written on torch's current stream, which waits until this rank's launches are over that read it: A, [M, K] as the problem's layout stores
        it, or (A, its scales [M, ceil(K/128)], contiguous along M). Launches take two places in turns. Raises ArgumentError where `a` was
        given."""
        if not self._placed:
            raise ArgumentError("a", "a tensor", "must be None, for rows to be written in place")
        box = self.inbox
        with box.lock:  # the launch before the last one reads it, on whatever stream
            box.sender.follow(current_stream(box.device))
            return returned(self._placed[(box.epoch + 1) % BUFFERS])

    def launch(self, out: Any = None) -> Any:
        """Start it on torch's current stream, as this rank's next, behind this rank's launch before: it sends the rows and waits on the GPU for those of the
        other ranks. Returns `out`, or (`out`, `scale_out`); an `out` that is given as `ReduceScatter.launch` takes it. What follows on the stream may write `a`. Raises ArgumentError while a CUDA graph is captured, and
        LaunchError: launch again then, over the same rows, which other ranks may have read."""
        if capturing():
            allowed = "must not be captured: a replay would raise the flags of an old launch"
            raise ArgumentError("inbox", "a CUDA graph", allowed)
        box, stream = self.inbox, current_stream(self.inbox.device)
        with box.lock:
            epoch = box.epoch + 1
            turn = self._turns[epoch % BUFFERS]
            to = {} if out is None else {"d": out.data_ptr()}
            if to or turn.plan.stream != stream:
                turn = replace(turn, plan=self.kernel.moved(turn.plan, to, stream))
                self._turns[epoch % BUFFERS] = turn
            with box.sender.beside(stream, turn.own, turn.pushes, epoch):
                self.kernel.launch(numbered(self.kernel, turn.plan, epoch))
                box.epoch = epoch  # of a kernel that runs, whatever comes
        return self.result if out is None else out

    def let_go(self) -> None:
        """As of `ReduceScatter`."""
        self.a, self.result, self._held = None, None, ()

    def gathered(self) -> Any:
        """A of all ranks, as this launch read it, in a new tensor: [ranks * M, K], or [K, ranks * M] where A is stored [K, M]. To be called on the stream of the
        launch, before another one of the inbox."""
        box, place = self.inbox, places(self._sides, self.inbox.ranks)["a"]
        return of_all_ranks(box.bytes, box.layout.buffer(box.epoch), place, self._problem)

    @property
    def wait(self) -> Callable[[], None]:
        """As of `ReduceScatter`: it names the rank whose rows never came, and their chunk."""
        return partial(self.kernel.wait, self._turns[self.inbox.epoch % BUFFERS].plan)


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """A launch over one of the buffers: what is copied on its stream before it, and what is sent beside it."""

    plan: Plan
    own: tuple[Job, ...]
    pushes: tuple[Job, ...]


def all_gather_gemm(
    problem: Problem, memory: Inbox, a: Any, b: Any, *args: Any, **kwargs: Any
) -> Any:
    """Plan an `AllGather` of these arguments and launch it once. Returns what that does. Raises as both."""
    if a is None:
        raise ArgumentError("a", None, "must be a tensor: rows in place are an AllGather's")
    return AllGather(problem, memory, a, b, *args, **kwargs).launch()


def _dtypes(p: Problem) -> dict[str, DType]:
    """Of what travels."""
    return dict(zip(SENT, (p.a, F32), strict=True)) if recipe(p.family).scaled else {"a": p.a}


def _sides(p: Problem, m: int, k: int) -> dict[str, Sides]:
    """Of what travels from each rank, as it lies in an inbox."""
    a = (k, m) if p.mn_major[0] else (m, k)
    sides = {"a": a, "scale_a": (-(-k // SCALE_BLOCK), m)}
    return {name: (*sides[name], dtype.bytes) for name, dtype in _dtypes(p).items()}


def _placed(
    p: Problem, memory: Inbox, b: Any, rows: Any, given: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """By buffer, this rank's rows there, as tensors."""
    for name, x in given.items():
        if x is not None:
            allowed = "must be None with rows, which are written in place"
            raise ArgumentError(name, x if isinstance(x, str) else type(x).__name__, allowed)
    if type(rows) is not int:
        raise ArgumentError("rows", rows, "must be an integer where a is None")
    check_side("rows", rows)
    sides = check_tensor("b", b, p.b, (None, None), contiguous=True)
    k = sides[0] if p.mn_major[1] else sides[1]
    check_side("b columns", k)
    of = _sides(p, rows, k)
    _check_room(memory, of)
    return [
        {
            name: _view(memory, x, _dtypes(p)[name], epoch, name != "a")
            for name, x in places(of, memory.ranks).items()
        }
        for epoch in range(BUFFERS)
    ]


def _view(memory: Inbox, place: Matrix, dtype: DType, epoch: int, turned: bool) -> Any:
    """This rank's tensor of that place."""
    x = seat(place, dtype.bytes, memory.layout.buffer(epoch), memory.rank)
    end = x.pointer + place.group_stride * dtype.bytes
    piece = memory.bytes[x.pointer : end].view(torch_dtype(dtype))
    view = piece.as_strided((x.outer, x.inner), (x.stride, 1))
    return view.mT if turned else view


def _check_room(memory: Inbox, sides: Mapping[str, Sides]) -> None:
    needed = inbox_size(sides.values(), memory.ranks)
    if memory.layout.bytes < needed:
        allowed = f"must have at least {needed} bytes: see inbox_bytes"
        raise ArgumentError("memory", memory.layout.bytes, allowed)
