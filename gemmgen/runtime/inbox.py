"""The memory in which other ranks' rows of A arrive, as the host lays it out, and what brings them: the same on each rank
(docs/adr/0051-all-gather.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir.argument_names import group_stride, row_stride
from ..ir.arrivals import ARRIVALS, NO_ARRIVALS
from ..ir.collectives import MOST_CHUNKS, check_chunks, check_ranks
from ..ir.counts import check_side
from ..ir.launchable import Launchable
from ..ir.nodes import TmaMap
from ..target import Target
from .peers import FLAG, LINE, whole
from .tensor_map import Matrix

Sides = tuple[int, int, int]  # of a tensor of one rank: lines, elements in each, bytes of those
BUFFERS = NO_ARRIVALS.buffers


@dataclass(frozen=True, kw_only=True)
class Inbox:
    """size: bytes of each buffer of rows, which come behind the flags."""

    ranks: int
    size: int

    @classmethod
    def of(cls, size: int, ranks: int) -> Inbox:
        """All of `size` bytes, however they will be used."""
        left = max(0, size - flag_bytes(ranks))
        return cls(ranks=ranks, size=left // (BUFFERS * LINE) * LINE)

    @property
    def bytes(self) -> int:
        return flag_bytes(self.ranks) + BUFFERS * self.size

    def buffer(self, epoch: int) -> int:
        """Where that of a launch begins."""
        return flag_bytes(self.ranks) + epoch % BUFFERS * self.size


def flag_bytes(ranks: int) -> int:
    """Flags come first, as many of each sender whatever a launch needs: so one has one writer for ever. They are zero before the
    first launch."""
    return FLAG * MOST_CHUNKS * (ranks - 1)


def flag(place: int, chunk: int) -> int:
    """Where a chunk's is, of the rank that is so many behind the next one."""
    return FLAG * (place * MOST_CHUNKS + chunk)


@dataclass(frozen=True, kw_only=True)
class Move:
    """A copy of `height` lines of `width` bytes, which lie so many bytes apart there and here."""

    to: int
    to_pitch: int
    of: int
    of_pitch: int
    width: int
    height: int

    @property
    def bytes(self) -> int:
        """Of the one piece of memory that it is in either place, with what pads its lines to where TMA may begin; 0 if it is more."""
        pad = self.to_pitch - self.width
        if self.height > 1 and (self.to_pitch != self.of_pitch or pad >= Target.tma_alignment):
            return 0
        return (self.height - 1) * self.to_pitch + self.width


@dataclass(frozen=True, kw_only=True)
class Raise:
    """A flag becomes the epoch, once all that was copied before is there."""

    flag: int


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """What a launch gathers. own: this rank's tensors, by name; places: of all ranks, where they are in a buffer, as groups."""

    kernel: Launchable
    ranks: int
    chunk_rows: int
    own: Mapping[str, Matrix]
    places: Mapping[str, Matrix]

    @property
    def rows(self) -> int:
        """Of each rank."""
        (m,) = (m for m in _maps(self.kernel) if m.tensor == "a")
        return self.own["a"].inner if m.inner == "m" else self.own["a"].outer

    def matrices(self, buffer: int) -> dict[str, Matrix]:
        """What tensor maps describe, in the buffer at this address."""
        return {name: replace(x, pointer=buffer + x.pointer) for name, x in self.places.items()}

    def grouped(self, d: Matrix) -> Matrix:
        """D, of all ranks' rows, each rank's as a group."""
        stride = self.rows * d.stride
        return replace(d, outer=self.rows, groups=self.ranks, group_stride=stride)

    def values(self, base: int, rank: int) -> dict[str, int]:
        """The kernel's parameters, but for the epoch. base: where this rank's memory begins."""
        return {
            "shape_m": self.rows,
            "groups": self.ranks,
            "ranks": self.ranks,
            "rank": rank,
            "chunk_rows": self.chunk_rows,
            ARRIVALS: base,
        }

    def strides(self, names: Iterable[str], values: Mapping[str, int | float]) -> dict[str, int]:
        """Between ranks' rows of D, of its scales, and of what the epilogue reads by these names, as parameters. values: those of
        the strides between rows."""
        of_d = {"d_stride_g": self.rows * int(values["d_stride"]), "scale_d_stride_g": self.rows}
        read = {group_stride(x): self.rows * int(values.get(row_stride(x), 0)) for x in names}
        return of_d | read

    def own_moves(self, buffer: int, rank: int) -> Iterator[Move]:
        """This rank's rows into its own buffer, but for those that lie there."""
        for m in _maps(self.kernel):
            move = self._move(m, buffer, rank, 0, self.rows)
            if (move.to, move.to_pitch) != (move.of, move.of_pitch):
                yield move

    def pushes(
        self, bases: Sequence[int], box: Inbox, rank: int, epoch: int
    ) -> Iterator[Move | Raise]:
        """This rank's rows into all others' buffers, chunk by chunk, each followed by its flag: first to the rank that needs them
        next. bases: where each rank's memory begins."""
        for place in range(self.ranks - 1):
            to = (rank - 1 - place) % self.ranks
            buffer = bases[to] + box.buffer(epoch)
            for m in _maps(self.kernel):
                if m.tensor != "a":  # scales, which are few
                    yield self._move(m, buffer, rank, 0, self.rows)
            (rows,) = (m for m in _maps(self.kernel) if m.tensor == "a")
            for chunk, first in enumerate(range(0, self.rows, self.chunk_rows)):
                last = min(first + self.chunk_rows, self.rows)
                yield self._move(rows, buffer, rank, first, last)
                yield Raise(flag=bases[to] + flag(place, chunk))

    def _move(self, m: TmaMap, buffer: int, rank: int, first: int, last: int) -> Move:
        """Rows of this rank to their place in a buffer."""
        size, own = _bytes(self.kernel, m), self.own[m.tensor]
        there = seat(self.places[m.tensor], size, buffer, rank)
        along = m.inner == "m"
        step = (size, size) if along else (there.stride * size, own.stride * size)
        return Move(
            to=there.pointer + first * step[0],
            to_pitch=there.stride * size,
            of=own.pointer + first * step[1],
            of_pitch=own.stride * size,
            width=(last - first if along else own.inner) * size,
            height=own.outer if along else last - first,
        )


def gathering(
    kernel: Launchable, own: Mapping[str, Matrix], rows: int, ranks: int, chunks: int
) -> Gathering:
    """Of a launch whose A has `rows` of each rank, sent in at most `chunks`. Raises ArgumentError for more ranks than one host has, more rows than are
    counted, or numbers of chunks that there are no flags for."""
    check_ranks(ranks)
    check_chunks(chunks)
    check_side("ranks * m", ranks * rows)
    mine = {m.tensor: own[m.tensor] for m in _maps(kernel)}
    sizes = {m.tensor: _bytes(kernel, m) for m in _maps(kernel)}
    return Gathering(
        kernel=kernel,
        ranks=ranks,
        chunk_rows=-(-rows // min(chunks, rows)),
        own=mine,
        places=places({name: (x.outer, x.inner, sizes[name]) for name, x in mine.items()}, ranks),
    )


def places(tensors: Mapping[str, Sides], ranks: int) -> dict[str, Matrix]:
    """Of tensors by name, where all ranks' are in a buffer, as groups."""
    found, at = {}, 0
    for name in sorted(tensors):
        outer, inner, size = tensors[name]
        stride, group = _strides(outer, inner, size)
        found[name] = Matrix(
            pointer=at,
            outer=outer,
            inner=inner,
            stride=stride // size,
            groups=ranks,
            group_stride=group // size,
        )
        at += ranks * group
    return found


def seat(place: Matrix, size: int, buffer: int, rank: int) -> Matrix:
    """A rank's of the tensor, of elements of so many bytes, that has this place in the buffer at this address."""
    pointer = buffer + place.pointer + rank * place.group_stride * size
    return replace(place, pointer=pointer, groups=1, group_stride=0)


def needed(g: Gathering) -> int:
    """Bytes of a buffer."""
    sizes = {m.tensor: _bytes(g.kernel, m) for m in _maps(g.kernel)}
    return sum(x.groups * x.group_stride * sizes[name] for name, x in g.places.items())


def inbox_size(tensors: Iterable[Sides], ranks: int) -> int:
    """Memory that each of `ranks` GPUs needs for launches that gather tensors of these sides."""
    return flag_bytes(ranks) + BUFFERS * ranks * sum(_strides(*x)[1] for x in tensors)


def _strides(outer: int, inner: int, size: int) -> tuple[int, int]:
    """Bytes between lines, and between ranks, where TMA may begin."""
    line = whole(inner * size, Target.tma_alignment)
    return line, whole(outer * line, LINE)


def _maps(kernel: Launchable) -> tuple[TmaMap, ...]:
    return tuple(m for m in kernel.maps if m.tensor in kernel.arrivals.tensors)


def _bytes(kernel: Launchable, m: TmaMap) -> int:
    return kernel.buffer(m.smem).dtype.bytes
