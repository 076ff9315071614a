"""How an operator of a process group is computed: in one launch of each rank, or by the plain GEMM and torch's collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ..cost_link import pays
from ..errors import ArgumentError
from ..ir.collectives import MOST_RANKS
from ..ir.dtypes import F32
from ..ir.expr import arguments
from ..ops import gathered, ranked
from ..ops.building import priced_for
from ..problem import Problem, Shape
from ..recipes import recipe
from ..runtime.torch_tensors import empty, mn_major, torch, torch_dtype
from .applied import applied
from .collectives import ALL_GATHER, COLLECTIVES, GROUP, Collective, group_of
from .fakes import checked, fake
from .meeting import Meeting, meeting_of, meetings_of
from .registration import config_of

ROW = 16  # bytes: what TMA asks of where a rank's rows begin, where M lies contiguous


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call, checked. given: its arguments by name; shape: (M, N, K), M of D."""

    op: Collective
    given: Mapping[str, Any]
    problem: Problem
    shape: Shape

    @cached_property
    def group(self) -> Any:
        return group_of(self.given[GROUP])

    @property
    def device(self) -> Any:
        return self.given["a"].device

    @property
    def gathers(self) -> bool:
        return self.op.collective == ALL_GATHER

    @cached_property
    def ranks(self) -> int:
        return int(self.group.size())

    @property
    def own_rows(self) -> int:
        """Of A or of D, those that are this rank's."""
        return self.shape[0] // self.ranks if self.gathers else self.shape[0]

    @property
    def read(self) -> dict[str, Any]:
        """What the epilogue reads, by name."""
        return {x.name: self.given[x.name] for x in arguments(self.problem.epilogue)}

    @property
    def operands(self) -> dict[str, Any]:
        return {x: self.given[x] for x in self.op.tensors}

    @property
    def said(self) -> dict[str, Any]:
        """How they are stored."""
        return {x: self.given[x] for x in ("layout", "scale_a_layout") if x in self.given}


def called(op: Collective, given: Mapping[str, Any], overload: Any = "") -> Call:
    """Raises ArgumentError."""
    p, (_, *shape) = checked(op, overload, {**given})
    m, n, k = shape
    return Call(op=op, given=given, problem=p, shape=(m, n, k))


@dataclass(frozen=True, kw_only=True)
class Path:
    """meeting: of one launch of each rank; None: the plain GEMM and torch's collective. why: the reason."""

    meeting: Meeting | None
    why: str


def path_of(call: Call) -> Path:
    """The same on all ranks: what it asks is. The first call of a group on GPUs is all ranks'. Raises ArgumentError where two of them are on one GPU."""
    why = _against(call)
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
    step = _row_step(call)
    if call.own_rows % step:
        return f"each rank has {call.own_rows} rows, no multiple of {step}, where TMA can begin"
    if torch().cuda.is_current_stream_capturing():
        return "a CUDA graph is captured, whose replay would repeat an epoch"
    return ""


def _row_step(call: Call) -> int:
    """What each rank's rows must be a multiple of, where they are a part of A (`runtime.peers.row_step`)."""
    if call.gathers:
        return 1
    of_scales = ROW // F32.bytes if recipe(call.problem.family).scaled else 1
    return max(of_scales, ROW // call.problem.a.bytes if call.problem.mn_major[0] else 1)


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
    steps = (call.op.plain, "reduce_scatter_tensor")
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
    call = called(op, op.bind(args, kwargs), overload)
    if not call.own_rows:
        return fake(op, overload)(*args, **kwargs)  # what there is of it is its shape
    meeting = path_of(call).meeting
    if call.gathers:
        gather = _gather_plainly if meeting is None else partial(_gather_fused, meeting=meeting)
        return gather(call, keep=bool(overload))
    return _scatter_plainly(call) if meeting is None else _scatter_fused(call, meeting)


# ---- one launch of each rank -------------------------------------------------------------------


def _scatter_fused(call: Call, meeting: Meeting) -> Any:
    (m, n, _), wire = call.shape, call.problem.wire
    box = meeting.end(ranked.Mailbox, ranked.mailbox_bytes(m, n, call.ranks, wire))
    with meeting.in_order():
        launch = ranked.ReduceScatter(call.problem, box, *_operands(call), **_more(call))
        out = launch.launch()
        meeting.over = launch.wait
        return out


def _gather_fused(call: Call, meeting: Meeting, keep: bool) -> Any:
    k = call.shape[2]
    size = gathered.inbox_bytes(call.problem, call.own_rows, k, call.ranks)
    inbox = meeting.end(gathered.Inbox, size)
    with meeting.in_order():
        launch = gathered.AllGather(call.problem, inbox, *_operands(call), **_more(call))
        out = launch.launch()
        meeting.over = launch.wait
        return (out, launch.gathered()) if keep else out


def _operands(call: Call) -> tuple[Any, Any]:
    return call.given["a"], call.given["b"]


def _more(call: Call) -> dict[str, Any]:
    """What a launch takes besides."""
    found = {"config": config_of(call.given["config"]), **call.read}
    if "scale_a_layout" not in call.given:
        return found
    scale_a, layout = call.given["scale_a"], call.given["scale_a_layout"]
    scale_a = mn_major(scale_a) if layout == "row" else scale_a
    scales = {"scale_a": scale_a, "scale_b": call.given["scale_b"], "scale_layout": "mn"}
    return found | scales


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


def _scatter_plainly(call: Call) -> Any:
    if call.ranks == 1:
        return _plain(call, **_whole(call))
    p = call.problem
    travels = F32 if p.wire is None else p.wire
    sums = scattered(_plain(call, out_dtype=travels.name), call.given[GROUP])
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
