"""Rows of A that ranks have sent each other, for whoever needs them besides the launch that multiplied them."""

from __future__ import annotations

from typing import Any

from ..problem import Problem
from ..runtime.tensor_map import Matrix
from ..runtime.torch_tensors import torch, torch_dtype


def of_all_ranks(memory: Any, buffer: int, place: Matrix, p: Problem) -> Any:
    """A of all ranks, copied from an inbox: [ranks * M, K], or [K, ranks * M] where `p` stores A [K, M].

    memory: the inbox, in bytes. buffer: where the one of the launch begins there. place: of all ranks' rows in it, as groups."""
    start = buffer + place.pointer
    end = start + place.groups * place.group_stride * p.a.bytes
    rows = memory[start:end].view(torch_dtype(p.a))
    sides = place.groups, place.outer, place.inner
    by_rank = rows.as_strided(sides, (place.group_stride, place.stride, 1))
    return torch().cat(by_rank.unbind(), int(p.mn_major[0]))
