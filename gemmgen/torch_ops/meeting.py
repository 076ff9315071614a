"""Where the ranks of a process group meet on their GPUs: what they know of each other, and the memory that all of them can access.

Kept for as long as the group is: destroyed with it. What is grown or found out takes all ranks, each in the same call: so it may depend only
on what all of them know, which is shapes and arguments of calls that are the same on all.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

from .. import __version__
from ..errors import ArgumentError, GemmgenError
from ..ops.building import chosen_by
from ..ops.collective import End, is_watched
from ..ops.kept import Kept
from ..runtime import driver
from ..runtime.peers import whole
from ..runtime.sender import writes_flags
from ..runtime.torch_tensors import torch

CALLS = 256  # of a group that are kept
GRAIN = 2 << 20  # bytes that GPUs map memory in
BOOT = Path("/proc/sys/kernel/random/boot_id")
CHOICE = (
    "ranks 0 and {} may choose different kernels: calibrated figures, tuned configs, limits of SMs, NVRTC or whether bits may depend on the batch "
    "differ"
)
Kind = Callable[[Any, Any], End]  # Mailbox or Inbox
Facts = Mapping[str, Any]  # JSON

MEETINGS: WeakKeyDictionary[Any, dict[int, Meeting]] = WeakKeyDictionary()  # by group and device
LAST: dict[int, Any] = {}  # stream that launches were on, by device
TURN = Lock()
FORMED: Counter[str] = Counter()  # meetings so far, by the group's name


class Meeting:
    """This rank's part in that of `group` on a CUDA device. why: the reason why its ranks launch nothing together; "" if they may."""

    def __init__(self, group: Any, device: Any) -> None:
        """Raises ArgumentError if two ranks are on one GPU, on every rank."""
        self._group, self.device = ref(group), device
        self.name, self.ranks, self.rank = group.group_name, group.size(), group.rank()
        self.over: Callable[[], None] = _nothing  # waits for the last launch
        self._aligned: set[Hashable] = set()
        self.kept = Kept[Any](CALLS)  # what launches the same again, over this memory
        self._ends: dict[Kind, tuple[End, Any]] = {}
        self._held: dict[End, Any] = {}  # by CUDA graphs, which do not say how long they live
        round_ = FORMED[self.name]
        FORMED[self.name] += 1
        share = _exchange(group, f"gemmgen/{round_}")
        of_all = share("facts", facts(device.index))
        _check_apart(of_all)
        self.why = differing(of_all)
        if not self.why:
            seen = share("links", unlinked(device.index, [x["gpu"] for x in of_all]))
            self.why = next(filter(None, seen), "")

    def end(self, kind: Kind, size: int) -> Any:
        """This rank's Mailbox or Inbox with so many bytes at least, the same on all ranks: grown by all of them together, once
        this rank's launches are over."""
        if not self.has(kind, size):
            self._ends.pop(kind, None)
            self.kept.clear()
            self._ends[kind] = self._made(kind, whole(size, GRAIN))
        return self._ends[kind][0]

    def has(self, kind: Kind, size: int) -> bool:
        """Whether that is there already."""
        kept = self._ends.get(kind)
        return kept is not None and kept[1].numel() >= size

    def held(self, kind: Kind) -> Any:
        """The one that is there, and that is kept for as long as the group is, whatever is grown."""
        end, memory = self._ends[kind]
        self._held[end] = memory
        return end

    def _made(self, kind: Kind, size: int) -> tuple[End, Any]:
        symmetric = import_module("torch.distributed._symmetric_memory")
        with torch().cuda.device(self.device):
            torch().cuda.synchronize()
            memory = symmetric.empty(size, dtype=torch().uint8, device=self.device).zero_()
            made = kind(symmetric.rendezvous(memory, self.name), self.device)
            torch().cuda.synchronize()
            torch().distributed.barrier(self._group())  # the flags of all ranks are zero
        return made, memory

    def align(self, asked: Hashable) -> None:
        """Before the first launch of `asked`, which is the same on all ranks, once it is planned: where ranks are watched all wait for each other, for one that compiles is
        late, and has not failed."""
        if is_watched() and asked not in self._aligned:
            self._aligned.add(asked)
            with torch().cuda.device(self.device):
                torch().distributed.barrier(self._group())

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """What is launched meanwhile follows what was before, of any group, on whatever streams: each launch may take all SMs while it waits for
        other ranks, and those must not hold theirs for another one."""
        with TURN:
            stream, last = torch().cuda.current_stream(self.device), LAST.get(self.device.index)
            if last is not None and last != stream:
                stream.wait_stream(last)
            LAST[self.device.index] = stream
            yield


def _nothing() -> None:
    """What there is to wait for before the first launch."""


def met(group: Any, device: Any) -> Meeting | None:
    """That of `group` on `device`, if there was one."""
    return MEETINGS.get(group, {}).get(device.index)


def meetings_of(group: Any) -> tuple[Meeting, ...]:
    """Those of `group` so far."""
    return tuple(MEETINGS.get(group, {}).values())


def meeting_of(group: Any, device: Any) -> Meeting:
    """That of `group` on `device`. The first call is all ranks'. Raises as it."""
    on = MEETINGS.setdefault(group, {})
    if device.index not in on:
        on[device.index] = Meeting(group, device)
    return on[device.index]


def _exchange(group: Any, key: str) -> Callable[[str, Any], list[Any]]:
    """What tells all ranks something and returns what each has told, by rank. By the group's store, not by its collectives: NCCL
    refuses two ranks on one GPU in words of its own."""
    store = torch().distributed.distributed_c10d._get_process_group_store(group)
    rank, ranks = group.rank(), group.size()

    def share(what: str, mine: Any) -> list[Any]:
        store.set(f"{key}/{what}/{rank}", json.dumps(mine))
        return [json.loads(store.get(f"{key}/{what}/{r}")) for r in range(ranks)]

    return share


def facts(device: int) -> Facts:
    """What other ranks must know of this one."""
    found: dict[str, Any] = {"host": host(), "version": __version__, "gpu": "", "refused": ""}
    found |= {"name": "", "sms": 0, "choice": ""}
    try:
        found["gpu"] = driver.pci_bus_id(device)
        found["name"] = driver.require_hopper(device)
        found["sms"] = driver.sm_count(device)
        found["choice"] = chosen_by(device)
        if not writes_flags(device):
            found["refused"] = f"GPU {found['gpu']} does not write flags in the order of a stream"
        elif not symmetric_memory():
            found["refused"] = "this torch has no symmetric memory for CUDA"
    except GemmgenError as e:
        found["refused"] = str(e)
    return found


@cache
def host() -> str:
    """This machine, as it is since it was started."""
    return f"{platform.node()} {BOOT.read_text().strip() if BOOT.exists() else ''}"


def symmetric_memory() -> bool:
    try:
        import_module("torch.distributed._symmetric_memory")
    except ImportError:
        return False
    return bool(torch().cuda.is_available())


def _check_apart(of_all: Sequence[Facts]) -> None:
    """Raise ArgumentError where two ranks are on one GPU: each launch takes all of it, and waits for the other's."""
    at: dict[tuple[str, str], int] = {}
    for rank, x in enumerate(of_all):
        place = x["host"], x["gpu"]
        if x["gpu"] and place in at:
            who = f"ranks {at[place]} and {rank} on GPU {x['gpu']} ({x['name']})"
            raise ArgumentError("group_name", who, "must be a group with a GPU for each rank")
        at[place] = rank


def differing(of_all: Sequence[Facts]) -> str:
    """Why GPUs of which these are the facts launch nothing together; "" if nothing is against it."""
    for rank, x in enumerate(of_all):
        if x["refused"]:
            return f"rank {rank}: {x['refused']}"
    for what, says in (
        ("host", "ranks 0 and {} are on different hosts"),
        ("name", "ranks 0 and {} have different GPUs, which might choose different kernels"),
        ("sms", "the GPUs of ranks 0 and {} have different numbers of SMs"),
        ("version", "ranks 0 and {} run different versions of gemmgen"),
        ("choice", CHOICE),
    ):
        for rank, x in enumerate(of_all):
            if x[what] != of_all[0][what]:
                return says.format(rank)
    return ""


def unlinked(device: int, gpus: Sequence[str]) -> str:
    """Why this rank's GPU has no NVLink to one of these; "" if it has to all."""
    try:
        for rank, gpu in enumerate(gpus):
            there = driver.device_at(gpu)
            if there is None:
                return f"GPU {driver.pci_bus_id(device)} does not see that of rank {rank}, {gpu}"
            if there != device and not driver.linked(device, there):
                return f"no NVLink connects GPUs {driver.pci_bus_id(device)} and {gpu}"
    except GemmgenError as e:  # told, so that no rank waits for this one
        return str(e)
    return ""
