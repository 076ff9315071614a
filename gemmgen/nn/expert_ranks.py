"""Experts that ranks divide: copies of tokens travel to the ranks of their experts, and results back, as `gemmgen.nn.parallel` has said (docs/adr/0059-experts-over-ranks.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ArgumentError
from ..ops.mixture import GAPS, expected_of
from ..ops.mixture_weights import SCALED_ROWS
from ..torch_ops import moe_train
from ..torch_ops.copies import weights_gradient
from ..torch_ops.dtensor import DISTRIBUTED, is_dtensor
from ..torch_ops.moe_checks import Said, check_choices, checked
from .experts import as_ids
from .frozen import ALIASES, SCALE, gemmgen, torch_


class Divided(Protocol):
    """A layer whose experts ranks may divide."""

    experts: int  # of all ranks

    def leaving(self, x: Any) -> tuple[Any, Any]:
        """Of tokens [T, hidden], contiguous, what is copied: rows, and their scales, float32 [T, *], or None."""

    def multiply(
        self, rows: Any, scale: Any, ends: Any, *expected: Any, alignment: int = GAPS
    ) -> Any:
        """Of copies, which `leaving` made, sorted by this rank's experts, whose rows begin at multiples of `alignment` and end at `ends`: what the experts give."""


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
        chosen = as_ids(chosen)
        check_choices(x, chosen, weights, None)
        if not chosen.numel():
            return torch_.zeros_like(x)
        leaving = slots(chosen, self.held, self.ranks)
        with torch_.no_grad():
            codes, scale, of = self._received(experts.leaving(x), chosen, leaving)
            at, copies, ends = gemmgen.route(of.unsqueeze(-1), self.held, alignment=SCALED_ROWS)
            # Of all ranks' copies, in the mean.
            expected = expected_of(chosen.numel(), self.held, self.held)
            codes, scale = gemmgen.spread(codes, scale, at, copies.shape[0])
            y = experts.multiply(codes, scale, ends, *expected, alignment=SCALED_ROWS)
            back = self.exchanged(y[at.squeeze(-1)])  # of a row of none, any: nobody reads it
        return gemmgen.combine(back, leaving, weights)

    def train(
        self,
        x: Any,
        w1: Any,
        w2: Any,
        chosen: Any,
        weights: Any,
        add: Any,
        *,
        kind: str,
        recompute: bool,
    ) -> Any:
        """`gemmgen.torch_ops.moe_train` of this rank's tokens, of which every rank has as many, and all ranks' experts, of which w1 and w2 are this rank's. Gradients
        of experts are those of all ranks' tokens. Raises ArgumentError."""
        _check_own(x=x, chosen=chosen, weights=weights, **({} if add is None else {"add": add}))
        every = self.ranks * self.held
        said = Said(kind, "alternating", "swiglu", self.held, 0, recompute)
        checked(said, x, w1, w2, chosen, weights, add)
        if not chosen.numel():  # of any rank, for all have as many
            return moe_train(
                *(x, w1, w2, chosen, weights, add), experts=every, kind=kind, recompute=recompute
            )
        leaving = slots(chosen, self.held, self.ranks)
        rows = self.ranks * x.shape[0] * room(chosen.shape[1], self.held)
        sent = Leaving.apply(x.contiguous(), leaving, repeated(chosen), rows)
        came = Exchanged.apply(sent, self.ranks, self.group_name)
        of = self.exchanged(self._ids(chosen, leaving, rows)).unsqueeze(-1)
        once = torch_.ones(of.shape, dtype=torch_.float32, device=x.device)
        # So many experts that of the rows, of which many may be of none, each has its mean, or a little more.
        of_all = max(self.held, every * room(chosen.shape[1], self.held) // chosen.shape[1])
        y = moe_train(came, w1, w2, of, once, experts=of_all, kind=kind, recompute=recompute)
        back = Exchanged.apply(y, self.ranks, self.group_name)
        return Added.apply(back, leaving, weights, add)

    def exchanged(self, x: Any) -> Any:
        """[ranks * rows, ...], the parts that ranks have for this one in their order; x: this rank's parts for each of them, of the same shape and dtype on all ranks."""
        return exchanged(x, self.ranks, self.group_name)

    def divided(self, experts: Any, prefix: str, state: dict[str, Any]) -> dict[str, Any]:
        """`state` with this rank's part, as a DTensor, of each tensor of the module `experts` that has all of them."""
        found = dict(state)
        for name, buffer in (*experts.named_buffers(), *experts.named_parameters()):
            for key in (prefix + name, *(prefix + name.removesuffix(SCALE) + x for x in ALIASES)):
                x = found.get(key)
                if x is not None and not is_dtensor(x) and x.shape[:1] == (experts.experts,):
                    found[key] = self._part(x, buffer)
        return found

    def _part(self, x: Any, buffer: Any) -> Any:
        mesh, placements = buffer.device_mesh, buffer.placements
        mine = x[self.mine.start : self.mine.stop].clone()  # of which nothing else keeps memory
        return DISTRIBUTED.DTensor.from_local(mine, mesh, placements, run_check=False)

    def _received(self, mine: tuple[Any, Any], chosen: Any, leaving: Any) -> tuple[Any, Any, Any]:
        """Rows that came from all ranks, their scales, and of each row which of this rank's experts it is for; -1: for none."""
        tokens, top = chosen.shape
        rows = self.ranks * tokens * room(top, self.held)
        parts = [x for x in mine if x is not None]
        octets = [x.contiguous().view(torch_.uint8) for x in parts]
        row = torch_.cat(octets, -1)
        sent, _ = gemmgen.spread(row, None, leaving, rows)
        came, of = self.exchanged(sent), self.exchanged(self._ids(chosen, leaving, rows))
        found = came.split([x.shape[-1] for x in octets], -1)
        codes, *scale = (x.view(part.dtype) for x, part in zip(found, parts, strict=True))
        return codes, scale[0] if scale else None, of

    def _ids(self, chosen: Any, leaving: Any, rows: int) -> Any:
        """int32 [rows]: of each row that leaves, which of its rank's experts it is for; -1: for none."""
        local = (chosen.long() % self.held).int().flatten()
        # Behind all rows a place for copies that have none.
        to = torch_.where(leaving < 0, rows, leaving).flatten().long()
        return local.new_full((rows + 1,), -1).index_copy_(0, to, local)[:rows]


class Leaving(torch_.autograd.Function):  # type: ignore[misc]
    """Rows for copies of tokens; of x the gradient is the sum of its rows', of each once."""

    @staticmethod
    def forward(ctx: Any, x: Any, leaving: Any, again: Any, rows: int) -> Any:
        ctx.save_for_backward(torch_.where(again, -1, leaving))
        return gemmgen.spread(x, None, leaving, rows)[0]

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dsent: Any) -> tuple[Any, ...]:
        (slots,) = ctx.saved_tensors
        once = torch_.ones(slots.shape, dtype=torch_.float32, device=slots.device)
        return gemmgen.combine(dsent.contiguous(), slots, once), None, None, None


class Exchanged(torch_.autograd.Function):  # type: ignore[misc]
    """`exchanged`, whose gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, x: Any, ranks: int, group_name: str) -> Any:
        ctx.group = ranks, group_name
        return exchanged(x, ranks, group_name)

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        return exchanged(dy.contiguous(), *ctx.group), None, None


class Added(torch_.autograd.Function):  # type: ignore[misc]
    """`combine` of rows that came back, whose gradients are made as rows in their dtype; of a row without a copy any."""

    @staticmethod
    def forward(ctx: Any, back: Any, leaving: Any, weights: Any, add: Any) -> Any:
        ctx.save_for_backward(back, leaving, weights)
        return gemmgen.combine(back, leaving, weights, add)

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Any) -> tuple[Any, ...]:
        back, leaving, weights = ctx.saved_tensors
        of_back, _, of_weights, of_add = ctx.needs_input_grad
        dback = _weighed(dout.contiguous(), leaving, weights, len(back)) if of_back else None
        dweights = weights_gradient(dout, back, leaving, weights) if of_weights else None
        return dback, None, dweights, dout if of_add else None


def _weighed(dout: Any, leaving: Any, weights: Any, rows: int) -> Any:
    """dout [tokens, hidden] of each copy, times its weight, rounded once; of copies in one row times theirs together."""
    to = torch_.where(leaving < 0, rows, leaving).long()
    of_rows = torch_.zeros(rows + 1, dtype=torch_.float32, device=dout.device)
    for at, w in zip(to.unbind(1), weights.unbind(1), strict=True):  # a token has rows of its own
        of_rows.index_add_(0, at, w.float())
    found, _ = gemmgen.spread(dout, None, leaving, rows)
    return torch_.mul(found, of_rows[:-1].unsqueeze(-1), out=found)


def exchanged(x: Any, ranks: int, group_name: str) -> Any:
    ops, parts = torch_.ops._c10d_functional, [x.shape[0] // ranks] * ranks
    return ops.wait_tensor(ops.all_to_all_single(x, parts, parts, group_name))


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


def repeated(chosen: Any) -> Any:
    """bool [tokens, top]: whether a copy before it of the same token is for the same expert."""
    return (chosen.unsqueeze(-1) == chosen.unsqueeze(-2)).tril(-1).any(-1)


def slots(chosen: Any, held: int, ranks: int) -> Any:
    """int32 [tokens, top]: of each copy, its row among those that leave, first those for rank 0; -1 of what is for none.

    chosen: integers [tokens, top], of all experts, `held` of each rank, or others, which are none. For each rank a token has `room` rows, of its experts there in their order. If it chose
    one twice, both copies are the same row.
    """
    tokens, top = chosen.shape
    e = chosen.long()
    one, other = e.unsqueeze(-1), e.unsqueeze(-2)
    again = repeated(e).unsqueeze(-2)
    before = (one // held == other // held) & (other < one) & ~again
    token = torch_.arange(tokens, device=e.device).unsqueeze(-1)
    row = (e // held * tokens + token) * room(top, held) + before.sum(-1)
    return torch_.where((e >= 0) & (e < ranks * held), row, -1).int()
