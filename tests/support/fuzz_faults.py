"""Machines with faults in place of the GPU that is fuzzed: what the harness must find."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from unittest import mock

import torch
from fuzz_cpu import Cpu
from fuzz_reference import memory, view

from gemmgen.ir.argument_names import parameter
from gemmgen.ir.pages import COUNT, PAGES, PITCH
from gemmgen.ir.row_sums import fold_rows, windows
from gemmgen.runtime import tensor_map
from gemmgen.runtime.torch_tensors import torch_dtype


class OneElement(Cpu):
    """The last element of wide results is wrong, by the least that can be."""

    def execute(self, p, plan):
        super().execute(p, plan)
        if plan.shape[1] > 100 and plan.shape[0] > 16:
            view(p, "d", plan.matrices["d"]).view(torch.uint8)[0, 0, -2] ^= 1


class PastTheEnd(Cpu):
    """A byte past the last row's end."""

    def execute(self, p, plan):
        super().execute(p, plan)
        d = plan.matrices["d"]
        size = view(p, "d", d).element_size()
        end = d.pointer + ((d.outer - 1) * d.stride + d.inner) * size
        memory(end, torch.uint8, (1,), (1,)).fill_(3)


class Scribbler(Cpu):
    """Writes where A is, past what it reads."""

    def execute(self, p, plan):
        super().execute(p, plan)
        memory(plan.matrices["a"].pointer - 1, torch.uint8, (1,), (1,)).fill_(3)


class Forgetful(Cpu):
    """Every 50th launch does nothing."""

    count = 0

    def execute(self, p, plan):
        self.count += 1
        if self.count % 50:
            super().execute(p, plan)


class OverGaps(Cpu):
    """One element of a gap is written."""

    def execute(self, p, plan):
        super().execute(p, plan)
        if p.heads and 0 not in plan.shape:
            view(p, "d", plan.matrices["d"])[0, -1, p.heads.left + p.heads.mid - 1] = 3


class OutOfBounds(Cpu):
    """Reads one column of A too many, where K is no multiple of 16 bytes: NaN, which must show."""

    def execute(self, p, plan):
        super().execute(p, plan)
        a = plan.matrices["a"]
        size = p.a.bytes
        if a.inner * size % 16 and not p.a.integer:
            dtype = torch_dtype(p.a)
            beyond = memory(a.pointer + a.inner * size, dtype, (1,), (1,)).float()
            view(p, "d", plan.matrices["d"])[0, 0, 0] += beyond[0].to(torch_dtype(p.d))


class Leaky(Cpu):
    """Every launch leaves 8 bytes behind."""

    lost = 0

    def execute(self, p, plan):
        super().execute(p, plan)
        self.lost += 8

    def held(self):
        return self.lost

    taken = held


class Stale(Cpu):
    """A graph's replays do nothing."""

    def captured(self, work):
        super().captured(work)
        return lambda: None


class Unchecked(Cpu):
    """Takes tensors at any address."""

    def __init__(self):
        super().__init__()
        for module in (sys.modules[Cpu.__module__], tensor_map):
            self.patches.append(mock.patch.object(module, "check", lambda *a: None))
            self.patches[-1].start()


class NoNan(Cpu):
    """Gives 0 where NaN should be."""

    def execute(self, p, plan):
        super().execute(p, plan)
        view(p, "d", plan.matrices["d"]).nan_to_num_(0.0)


class Negative(Cpu):
    """Gives -0 for 0."""

    def execute(self, p, plan):
        super().execute(p, plan)
        d = view(p, "d", plan.matrices["d"])
        d.copy_(torch.where(d == 0, torch.full_like(d, -0.0), d))


class Sleeper(Cpu):
    """Hangs in a shape with K of 131071."""

    def execute(self, p, plan):
        if plan.shape[2] == 131071:
            time.sleep(3600)
        super().execute(p, plan)


class Mortal(Cpu):
    """Dies in a shape with K of 131071."""

    def execute(self, p, plan):
        if plan.shape[2] == 131071:
            os._exit(9)
        super().execute(p, plan)


class Thrower(Cpu):
    """Raises in a shape with K of 131071."""

    def execute(self, p, plan):
        if plan.shape[2] == 131071:
            raise RuntimeError("an illegal memory access was encountered")
        super().execute(p, plan)


def retold(plan, name, sides, change):
    """`plan` with another table in place of the one of int32 that its value `name` points to: what `change` makes of a copy."""
    values = {**plan.values}
    steps = (values.get(PITCH, 1), 1)[-len(sides) :]
    table = memory(values[name], torch.int32, sides, steps).clone().contiguous()
    change(table)
    values |= {name: table.data_ptr()} | ({PITCH: sides[1]} if name == PAGES else {})
    return SimpleNamespace(**{**vars(plan), "values": values, "kept": (plan, table)})


class OtherWindows(Cpu):
    """The windows of queries are not theirs."""

    def execute(self, p, plan):
        for x in windows(p.epilogue):
            rows = plan.values["groups"] * plan.shape[0] // fold_rows(p.epilogue)
            plan = retold(plan, parameter(x.name), (rows,), self.change)
        super().execute(p, plan)

    def change(self, table):
        """The first query's is the last one's, and that its."""
        table[[0, -1]] = table[[-1, 0]]


class WiderWindow(OtherWindows):
    """A window ends one key too late."""

    def execute(self, p, plan):
        self.left = len(windows(p.epilogue))
        super().execute(p, plan)

    def change(self, table):
        self.left -= 1
        table += int(self.left == 0)


class OtherPages(Cpu):
    """The pages of sequences are not theirs."""

    def execute(self, p, plan):
        if p.paged:
            self.count, entries = plan.values[COUNT], -(-plan.shape[1] // p.paged)
            plan = retold(plan, PAGES, (plan.values["groups"], entries), self.change)
        super().execute(p, plan)

    def change(self, table):
        """The first is that of the second."""
        table[:, 0] = table[:, 1]


class LostPage(OtherPages):
    """The keys of a page are 0."""

    def change(self, table):
        table[:, 0] = -1


class AnyPage(OtherPages):
    """A number that is no page's is read as if it were the last one's."""

    def change(self, table):
        table[(table < 0) | (table >= self.count)] = self.count - 1


class Uncleaned(Cpu):
    """What no window reaches is left as it was."""

    def execute(self, p, plan):
        d = view(p, "d", plan.matrices["d"])
        before = d.clone()
        super().execute(p, plan)
        d.copy_(torch.where(d == -torch.inf, before, d))


class Cleaned(Cpu):
    """What lies behind windows is minus infinity too."""

    def execute(self, p, plan):
        if p.compact:
            view(p, "d", plan.matrices["d"]).fill_(-torch.inf)
        super().execute(p, plan)
