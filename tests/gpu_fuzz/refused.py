"""F3: tensors that no kernel can take, each of which must be refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from gemmgen.errors import ArgumentError

from .cases import Case
from .exact import Flags
from .trial import Trial, build

Call = Callable[[], Any]


def shifted(x: Any, by: int = 8) -> Any:
    """`x` `by` bytes further on."""
    return x.as_strided(x.shape, x.stride(), x.storage_offset() + by // x.element_size())


def odd_rows(x: Any) -> Any:
    """`x` with rows one element further apart, or two: no multiple of 16 bytes."""
    steps = list(x.stride())
    steps[-2] += 1
    return x.as_strided(x.shape, steps, x.storage_offset())


def wrong_calls(trial: Trial, function: Any) -> Iterator[tuple[str, Call]]:
    """By name, calls that differ from a good one in one argument."""
    out = trial.out.views[0]
    at = {"a": 0, "b": 2 if trial.kind.scales in ("block", "a", "rows") else 1}
    for name, i in at.items():
        x = trial.positional[i]
        changes = {"8 bytes off": shifted(x), "on the CPU, or not": elsewhere(x)}
        if x.dim() > 1 and x.shape[-2] > 1:
            changes["odd rows"] = odd_rows(x)
        for what, changed in changes.items():
            given = list(trial.positional)
            given[i] = changed
            other = replace(trial, positional=tuple(given))
            yield f"{name} {what}", lambda t=other: t.call(function, out)
    yield "out 8 bytes off", lambda: trial.call(function, shifted(out))
    yield "out with odd rows", lambda: trial.call(function, odd_rows(out))
    yield "out transposed", lambda: trial.call(function, out.mT)
    if "out_dtype" in trial.named:  # which not every function has
        wide = replace(trial, named=trial.named | {"out_dtype": "f64"})
        yield "an unknown dtype", lambda: wide.call(function, out)
    named = replace(trial, named=trial.named | {"nobody": out})
    yield "an unknown argument", lambda: named.call(function, out)


def elsewhere(x: Any) -> Any:
    """`x` as no kernel can read it: on another device."""
    return x.to("meta")


def refused(machine: Any, case: Case, flags: Flags) -> int:
    """Every wrong call raises ArgumentError and leaves the images alone; then the good one is right."""
    trial = build(case, machine.device)
    function = machine.function(trial.kind.function)
    for name, call in wrong_calls(trial, function):
        trial.out.poison(0)
        refusal = 1
        try:
            call()
        except (ArgumentError, TypeError) as e:
            refusal = int(isinstance(e, TypeError) and "nobody" not in str(e))
        written = trial.out.images != trial.out.begins[0]
        flags.add(f"{case}: {name}", None, written.any().to(torch.int64) + refusal)
    trial.out.poison(0)
    for view in trial.out.views:
        trial.call(function, view)
    flags.add(case, case, trial.out.wrong(0))
    return len(trial.out.views)
