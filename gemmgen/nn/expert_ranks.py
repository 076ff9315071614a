"""Experts that ranks divide: copies of tokens travel to the ranks of their experts, and results back, as `gemmgen.nn.parallel` has said (docs/adr/0059-experts-over-ranks.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ArgumentError
from ..ops.mixture import expected_of
from ..ops.mixture_checks import ALIGNMENT
from ..torch_ops.dtensor import DISTRIBUTED, is_dtensor
from .experts import check_choices
from .frozen import ALIASES, SCALE, gemmgen, torch_


class Divided(Protocol):
    """A layer whose experts ranks may divide."""

    experts: int  # of all ranks

    def leaving(self, x: Any) -> tuple[Any, Any]:
        """Of tokens [T, hidden], contiguous, what is copied: rows, and their scales, float32 [T, *], or None."""

    def multiply(self, rows: Any, scale: Any, ends: Any, *expected: Any) -> Any:
        """Of copies, which `leaving` made, sorted by this rank's experts, whose rows end at `ends`: what the experts give."""

    def named_buffers(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class ExpertRanks:
    """Rank r has the `held` experts from r * held on. ranks, rank: of the process group of that name."""

    group_name: str
    ranks: int
    rank: int
    held: int

    @property
    def mine(self) -> range:
        """The experts of this rank."""
        return range(self.rank * self.held, (self.rank + 1) * self.held)

    def forward(self, experts: Divided, x: Any, chosen: Any, weights: Any) -> Any:
        """As the layer's own, of this rank's tokens, of which every rank has as many. Raises ArgumentError."""
        _check_own(x=x, chosen=chosen, weights=weights)
        check_choices(x, chosen, weights)
        if not chosen.numel():
            return torch_.zeros_like(x)
        leaving = slots(chosen, self.held, self.ranks)
        with torch_.no_grad():
            codes, scale, of = self._received(experts.leaving(x), chosen, leaving)
            at, copies, ends = gemmgen.route(of.unsqueeze(-1), self.held, alignment=ALIGNMENT)
            # Of all ranks' copies, in the mean.
            expected = expected_of(chosen.numel(), self.held, self.held)
            codes, scale = gemmgen.spread(codes, scale, at, copies.shape[0])
            y = experts.multiply(codes, scale, ends, *expected)
            back = self.exchanged(y[at.squeeze(-1)])  # of a row of none, any: nobody reads it
        return gemmgen.combine(back, leaving, weights)

    def exchanged(self, x: Any) -> Any:
        """[ranks * rows, ...], the parts that ranks have for this one in their order; x: this rank's parts for each of them, of the same shape and dtype on all ranks."""
        ops, parts = torch_.ops._c10d_functional, [x.shape[0] // self.ranks] * self.ranks
        return ops.wait_tensor(ops.all_to_all_single(x, parts, parts, self.group_name))

    def divided(self, experts: Divided, prefix: str, state: dict[str, Any]) -> dict[str, Any]:
        """`state` with this rank's part, as a DTensor, of each tensor of the buffers that has all experts."""
        found = dict(state)
        for name, buffer in experts.named_buffers():
            for key in (prefix + name, *(prefix + name.removesuffix(SCALE) + x for x in ALIASES)):
                x = found.get(key)
                if x is not None and not is_dtensor(x) and x.shape[:1] == (experts.experts,):
                    found[key] = self._part(x, buffer)
        return found

    def _part(self, x: Any, buffer: Any) -> Any:
        mesh, placements = buffer.device_mesh, buffer.placements
        mine = x[self.mine.start : self.mine.stop]
        return DISTRIBUTED.DTensor.from_local(mine, mesh, placements, run_check=False)

    def _received(self, mine: tuple[Any, Any], chosen: Any, leaving: Any) -> tuple[Any, Any, Any]:
        """Rows that came from all ranks, their scales, and of each row which of this rank's experts it is for; -1: for none."""
        tokens, top = chosen.shape
        rows = self.ranks * tokens * room(top, self.held)
        parts = [x for x in mine if x is not None]
        octets = [x.contiguous().view(torch_.uint8) for x in parts]
        row = torch_.cat(octets, -1)
        sent, _ = gemmgen.spread(row, None, leaving, rows)
        local = (chosen.long() % self.held).int().flatten()
        # Behind all rows a place for copies that have none.
        to = torch_.where(leaving < 0, rows, leaving).flatten().long()
        ids = local.new_full((rows + 1,), -1).index_copy_(0, to, local)[:rows]
        came, of = self.exchanged(sent), self.exchanged(ids)
        found = came.split([x.shape[-1] for x in octets], -1)
        codes, *scale = (x.view(part.dtype) for x, part in zip(found, parts, strict=True))
        return codes, scale[0] if scale else None, of


def _check_own(**given: Any) -> None:
    """Raise ArgumentError for a DTensor: copies are exchanged by their ranks, not by how tensors lie."""
    for name, t in given.items():
        if is_dtensor(t):
            raise ArgumentError(
                name, "a DTensor", f"must be of this rank's own tokens: {name}.to_local()"
            )


def room(top: int, held: int) -> int:
    """The experts of one rank that a token may choose, at most."""
    return min(top, held)


def slots(chosen: Any, held: int, ranks: int) -> Any:
    """int32 [tokens, top]: of each copy, its row among those that leave, first those for rank 0; -1 of what is for none.

    chosen: integers [tokens, top], of all experts, `held` of each rank, or others, which are none. For each rank a token has `room` rows, of its experts there in their order. If it chose
    one twice, both copies are the same row.
    """
    tokens, top = chosen.shape
    e = chosen.long()
    one, other = e.unsqueeze(-1), e.unsqueeze(-2)
    again = (one == other).tril(-1).any(-1, keepdim=True).mT
    before = (one // held == other // held) & (other < one) & ~again
    token = torch_.arange(tokens, device=e.device).unsqueeze(-1)
    row = (e // held * tokens + token) * room(top, held) + before.sum(-1)
    return torch_.where((e >= 0) & (e < ranks * held), row, -1).int()
