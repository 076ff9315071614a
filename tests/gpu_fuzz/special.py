"""F5: values that are no ordinary numbers, each where a float64 product says what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .cases import Case
from .exact import Flags
from .kinds import KINDS
from .trial import build

NAN, INF = float("nan"), float("inf")
Change = Callable[[str, Any], Any]


def put(name: str, value: float, at: tuple[int, int] = (5, 3)) -> Change:
    """`value` at `at` of the tensor `name`."""

    def change(which: str, x: Any) -> Any:
        if which == name:
            x[at] = value
        return x

    return change


def cancelling(which: str, x: Any) -> Any:
    """Inf - Inf in row 5, and in no other."""
    if which == "a":
        x[5, 3], x[5, 4] = INF, -INF
    if which == "b":
        x[:, 3:5] = 1.0
    return x


def all_of(**values: float) -> Change:
    return lambda which, x: torch.full_like(x, values[which]) if which in values else x


def every_code(dtype: Any) -> Change:
    """A is the unit matrix, so D is B^T: every finite code of `dtype`."""
    codes = torch.uint8 if dtype.itemsize == 1 else torch.int16

    def change(which: str, x: Any) -> Any:
        if which == "a":
            return torch.eye(*x.shape, device=x.device)
        if which != "b":
            return torch.ones_like(x)
        numbers = torch.arange(x.numel(), device=x.device) % (1 << 8 * dtype.itemsize)
        found = numbers.to(torch.int32).to(codes).view(dtype).to(torch.float32).view(x.shape)
        return torch.where(found.isfinite(), found, torch.zeros_like(found))

    return change


@dataclass(frozen=True, kw_only=True)
class Special:
    name: str
    kind: str
    change: Change
    shape: tuple[int, int, int] = (70, 136, 300)


FLOATS = ("bf16", "bf16 to f32", "bf16 swapped", "bf16 split 2", "bf16 tn", "f16 to f32", "f16")
FP8S = ("fp8 vector", "fp8 e5m2", "fp8 fast")
SCALED = (
    "block unrolled",
    "block swapped",
    "block split 4",
    "block parts",
    "wgrad",
    "wgrad swapped",
)
LARGE = {"bf16": 2.0**127, "f16": 60000.0, "fp8": 448.0, "block": 448.0, "wgrad": 448.0}


def _of(kind: str) -> tuple[Special, ...]:
    """What every floating kind is tried with."""
    large = LARGE[kind.split()[0]]
    changes = {
        "NaN in A": put("a", NAN),
        "NaN in B": put("b", NAN),
        "NaN in the last of A": put("a", NAN, (69, 299)),
        "negative zeros": all_of(a=-0.0),
        "the greatest number": all_of(a=large, b=1.0),
    }
    if kind in FLOATS:
        changes |= {
            "Inf in A": put("a", INF),
            "-Inf in B": put("b", -INF),
            "Inf - Inf": cancelling,
        }
    if kind in SCALED:
        changes |= {
            "NaN in A's scales": put("scale_a", NAN, (1, 5)),
            "Inf in A's scales": put("scale_a", INF, (1, 5)),
            "a scale of 0": put("scale_a", 0.0, (1, 5)),
            "a subnormal scale": put("scale_a", 2.0**-140, (1, 5)),
            "a negative scale": put("scale_a", -2.0, (1, 5)),
            "NaN in B's scales": put("scale_b", NAN, (0, 0)),
        }
    plain = [Special(name=n, kind=kind, change=c) for n, c in changes.items()]
    dtype = getattr(torch, KINDS[kind].b_dtype)
    codes = Special(name="every code", kind=kind, change=every_code(dtype), shape=(256, 256, 256))
    return (*plain, codes)


INT8 = tuple(
    Special(name=name, kind=kind, change=all_of(a=a, b=b), shape=(8, 24, 131071))
    for kind in ("int8", "int8 split 4")
    for name, a, b in (("-128 x -128", -128.0, -128.0), ("-128 x 127", -128.0, 127.0))
)
TABLE = (*(s for kind in (*FLOATS, *FP8S, *SCALED) for s in _of(kind)), *INT8)


def special(machine: Any, index: int, seed: int, flags: Flags) -> int:
    s = TABLE[index % len(TABLE)]
    m, n, k = s.shape
    trial = build(Case(kind=s.kind, m=m, n=n, k=k, seed=seed), machine.device, change=s.change)
    function = machine.function(trial.kind.function)
    trial.out.poison(0)
    for view in trial.out.views:
        trial.call(function, view)
    want = trial.out.place.view(trial.out.wants[0], trial.out.dtype)
    wrong = [((x != want) & ~(x.isnan() & want.isnan())).any() for x in trial.out.views]
    flags.add(f"{s.kind}: {s.name}", None, torch.stack(wrong).sum())
    return len(trial.out.views)
