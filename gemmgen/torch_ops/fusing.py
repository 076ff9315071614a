"""How an operator of a process group is computed: in one launch of each rank, or by the plain GEMM and torch's collective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ..cost_link import pays
from ..errors import ArgumentError
from ..ir.collectives import MOST_RANKS
from ..ir.dtypes import F32
from ..ops.building import priced_for
from ..ops.collective import rows_begin
from ..ops.ranked import Mailbox
from ..runtime.torch_tensors import empty, torch, torch_dtype
from . import launching
from .all_reduces import COLLECTIVES
from .applied import applied
from .collectives import GROUP, Collective, group_of
from .fakes import fake
from .group_call import Call, called
from .meeting import Meeting, meeting_of, meetings_of, met


@dataclass(frozen=True, kw_only=True)
class Path:
    """meeting: of one launch of each rank; None: the plain GEMM and torch's collective. why: the reason."""

    meeting: Meeting | None
    why: str


def path_of(call: Call) -> Path:
    """The same on all ranks: what it asks is. The first call of a group on GPUs is all ranks'. Raises ArgumentError where two of them are on one GPU."""
    why = _against(call) or _unprepared(call)
    if why:
        return Path(meeting=None, why=why)
    meeting = meeting_of(call.group, call.device)
    if meeting.why:
        return Path(meeting=None, why=meeting.why)
    if call.given["fuse"]:
        return Path(meeting=meeting, why="fuse=True")
    (_, n, k), target = call.shape, priced_for(call.device.index)[1]
    found = pays(call.problem, (call.own_rows, n, k), call.ranks, target)
    if found:
        return Path(meeting=meeting, why=f"expected to pay: {found.reason}")
    return Path(meeting=None, why=f"not expected to pay: {found.reason}")


def _against(call: Call) -> str:
    """What no group of GPUs would change; "" if there is nothing."""
    if call.ranks == 1:
        return "the group has one rank"
    if call.given["fuse"] is False:
        return "fuse=False"
    if call.device.type != "cuda":
        return f"tensors are on {call.device}, where there are no launches"
    if call.ranks > MOST_RANKS:
        return f"the group has {call.ranks} ranks, more than {MOST_RANKS} of one host"
    if not call.own_rows:
        return "there are no rows"
    step = 1 if call.gathers or call.reduces else rows_begin(call.problem)
    if call.own_rows % step:
        return f"each rank has {call.own_rows} rows, no multiple of {step}, where TMA can begin"
    if call.gathers and call.captured:
        return "a CUDA graph is captured, whose replay would raise the flags of an old launch"
    return ""


def _unprepared(call: Call) -> str:
    """What a call before would have made, where a CUDA graph is captured, while nothing can be; "" if nothing is missing."""
    if not call.captured:
        return ""
    there = met(call.group, call.device)
    if there is None or (not there.why and not there.has(Mailbox, call.mailbox_bytes)):
        return "a CUDA graph is captured, and no call before it needed as much memory"
    return ""


def explain(name: str, *args: Any, **kwargs: Any) -> str:
    """How `torch.ops.gemmgen.<name>(*args, **kwargs)`, of those of a process group, would be computed now, and why. All ranks must ask, if it is the first call of a
    group on GPUs. Raises as the operator."""
    ops = {op.name: op for op in COLLECTIVES}
    if name not in ops:
        raise ArgumentError("name", name, f"must be one of {', '.join(ops)}")
    call = called(ops[name], ops[name].bind(args, kwargs))
    path = path_of(call)
    if path.meeting is not None:
        return f"one launch of each rank: {path.why}"
    if call.ranks == 1:
        return f"{call.op.plain}: {path.why}"
    steps = (call.op.plain, "all_reduce" if call.reduces else "reduce_scatter_tensor")
    if call.gathers:
        steps = ("all_gather_into_tensor", call.op.plain)
    return f"{' and then '.join(steps)}: {path.why}"


def wait(group_name: str) -> None:
    """Block until this rank's launches of the group are over, those of its operators. Raises LaunchError, and where they are watched (`gemmgen.ops.collective.watch_ranks`) DeadlockError,
    which names the rank and what of it never came. ArgumentError for no group."""
    for meeting in meetings_of(group_of(group_name)):
        meeting.over()


def compute(op: Collective, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operator does. Raises ArgumentError, and as the GEMM and the collective do."""
    given = op.bind(args, kwargs)
    again = launching.kept(op, overload, given)
    if again is not None:
        return again()
    call = called(op, given, overload)
    if not call.own_rows:
        return fake(op, overload)(*args, **kwargs)  # what there is of it is its shape
    meeting = path_of(call).meeting
    if call.gathers:
        gather = _gather_plainly if meeting is None else partial(launching.gather, meeting=meeting)
        return gather(call, keep=bool(overload))
    return _add_up_plainly(call) if meeting is None else launching.add_up(call, meeting)


# ---- the plain GEMM and torch's collective -----------------------------------------------------


def _plain(call: Call, **given: Any) -> Any:
    """The product of one GPU."""
    run = getattr(torch().ops.gemmgen, call.op.plain)
    operands = {**call.operands, **call.said, **given}
    positional = [operands.pop(x) for x in call.op.tensors]
    return run(*positional, **operands)


def _whole(call: Call) -> dict[str, Any]:
    """What the plain operator computes that has all rows and all of K."""
    read = {"epilogue": call.given["epilogue"], **call.read}
    return {"out_dtype": call.problem.d.name, **read}


def _add_up_plainly(call: Call) -> Any:
    if call.ranks == 1:
        return _plain(call, **_whole(call))
    p = call.problem
    travels = F32 if p.wire is None else p.wire
    added = reduced if call.reduces else scattered
    sums = added(_plain(call, out_dtype=travels.name), call.given[GROUP])
    d = applied(p.epilogue, sums.float(), call.read).to(torch_dtype(p.d))
    out = empty(tuple(d.shape), p.d, call.device)
    return d if out.stride() == d.stride() else out.copy_(d)


def _gather_plainly(call: Call, keep: bool) -> Any:
    side = int(call.problem.mn_major[0])
    names = [x for x in ("a", "scale_a") if x in call.operands]
    whole = {x: all_rows(call.given[x], call.given[GROUP], side) for x in names}
    given = whole | ({"scale_a_layout": "row"} if "scale_a" in whole else {})
    out = _plain(call, **_whole(call), **given)
    return (out, whole["a"]) if keep else out


def scattered(x: Any, group_name: str) -> Any:
    """Of [ranks * M, N], this rank's rows of the sum of all ranks'."""
    ops, ranks = torch().ops._c10d_functional, int(group_of(group_name).size())
    moved = ops.reduce_scatter_tensor(x.contiguous(), "sum", ranks, group_name)
    return ops.wait_tensor(moved)


def reduced(x: Any, group_name: str) -> Any:
    """The sum of all ranks'."""
    ops = torch().ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(x.contiguous(), "sum", group_name))


def all_rows(x: Any, group_name: str, side: int = 0) -> Any:
    """`x` of all ranks, one after the other along `side` of two, contiguous. What is of eight bits travels as bytes, which every backend moves."""
    ops, ranks = torch().ops._c10d_functional, int(group_of(group_name).size())
    sent = x.contiguous()
    if sent.dtype.itemsize == 1:
        sent = sent.view(torch().uint8)
    moved = ops.wait_tensor(ops.all_gather_into_tensor(sent, ranks, group_name))
    if side:
        moved = torch().cat(moved.chunk(ranks), 1)
    return moved.view(x.dtype)
