"""Operators of a process group as one launch of each rank, which is planned once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..ops import all_reduced, gathered, ranked
from ..ops.collective import is_watched
from ..ops.kept import READ, Unreadable
from ..runtime import sms
from ..runtime.torch_tensors import maker, mn_major, torch
from .collectives import GROUP, Collective, group_of
from .group_call import Call
from .meeting import Meeting, met
from .registration import config_of


def add_up(call: Call, meeting: Meeting) -> Any:
    """Whether each rank gets rows of the sum of all, or the sum."""
    kind = all_reduced.AllReduce if call.reduces else ranked.ReduceScatter
    if call.captured:  # what replays follow, and whether all ranks are there, is up to who replays
        box = meeting.held(ranked.Mailbox)
        return kind(call.problem, box, *_operands(call), **_more(call)).launch()
    box = meeting.end(ranked.Mailbox, call.mailbox_bytes)
    with meeting.in_order():
        launch = kind(call.problem, box, *_operands(call), **_more(call))
        meeting.align((call.problem, call.shape, call.given["config"]))
        out = launch.launch()
    _keep(call, "", meeting, launch, out)
    return out


def gather(call: Call, meeting: Meeting, keep: bool) -> Any:
    k = call.shape[2]
    size = gathered.inbox_bytes(call.problem, call.own_rows, k, call.ranks)
    inbox = meeting.end(gathered.Inbox, size)
    with meeting.in_order():
        launch = gathered.AllGather(call.problem, inbox, *_operands(call), **_more(call))
        meeting.align((call.problem, call.shape, call.given["config"]))
        out = launch.launch()
        rows = launch.gathered() if keep else None
    _keep(call, "gathered" if keep else "", meeting, launch, out)
    return (out, rows) if keep else out


@dataclass(kw_only=True, eq=False)
class Again:
    """A call that was planned: what launches the same over the same tensors, into a new one. gathers: rows of all ranks are returned too."""

    planned: Any  # a ReduceScatter or an AllGather that holds no tensor
    make: Callable[[], Any]
    gathers: bool
    used: bool = False  # as `Kept` asks

    def launch(self, meeting: Meeting) -> Any:
        self.used = True
        with meeting.in_order():
            out = self.planned.launch(self.make())
            meeting.over = self.planned.wait
            return (out, self.planned.gathered()) if self.gathers else out


def _keep(call: Call, overload: Any, meeting: Meeting, launch: Any, out: Any) -> None:
    """Unless a copy of scales was made for this call."""
    meeting.over = launch.wait
    launch.let_go()
    key = _key(call.op, overload, call.given)
    if key is not None and call.given.get("scale_a_layout") != "row":
        make = maker(tuple(out.shape), call.problem.d, call.device)
        kept = Again(planned=launch, make=make, gathers=bool(overload))
        meeting.kept.put(key, kept)


def kept(op: Collective, overload: Any, given: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What launches this call again, if it was made before."""
    device = given["a"].device
    if device.type != "cuda" or torch().cuda.is_current_stream_capturing():
        return None
    meeting, key = met(group_of(given[GROUP]), device), _key(op, overload, given)
    found = None if meeting is None or key is None else meeting.kept.get(key)
    if found is None or meeting is None:
        return None
    return partial(found.launch, meeting)


def _key(op: Collective, overload: Any, given: Mapping[str, Any]) -> Any:
    """Of all that is read to check and to plan a call; None for what no key holds."""
    try:
        facts = tuple(READ[type(x)](x) for x in given.values())
    except Unreadable:
        return None
    return op.name, overload, sms.most, is_watched(), facts


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
