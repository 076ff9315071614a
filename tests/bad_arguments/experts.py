"""What is around the GEMMs of experts: rows for copies of tokens, copies, sums."""

from __future__ import annotations

from fake_torch import Placed

from gemmgen import ops

from .gemms import K, M
from .model import Function, Given, wrong


def _ids() -> Given:
    return {"chosen": Placed(M, 8, dtype="int64"), "experts": 64}


ROUTE = (
    wrong("no tensor", "chosen", chosen=[[1]]),
    *(wrong(f"{x} ids", "chosen dtype", chosen=Placed(M, 8, dtype=x)) for x in ("bfloat16", "int8")),
    wrong("one dimension", "chosen shape", chosen=Placed(M, dtype="int32")),
    wrong("three dimensions", "chosen shape", chosen=Placed(M, 8, 1, dtype="int32")),
    wrong("more copies than are counted", "chosen shape", chosen=Placed(2**28, 8, dtype="int32")),
    wrong("room for more rows than are counted", "chosen shape", alignment=2**26),
    *(wrong(f"{x!r} experts", "experts", experts=x) for x in (0, -1, 8.0, "8", None, True, 2**31)),
    *(wrong(f"alignment={x!r}", "alignment", alignment=x) for x in (0, -128, 128.0, "128", None, True, 2**31)),
    *(wrong(f"first={x!r}", "first", first=x) for x in (-1, 64, 0.0, "0", None, False)),
    *(wrong(f"local={x!r}", "local", local=x) for x in (0, -1, 65, 8.0, "8", True)),
    wrong("more experts than there are behind the first", "local", first=60, local=5),
    wrong("more experts than a kernel has", "local", experts=1024, local=513),
    wrong("all of too many experts", "experts", experts=513),
)  # fmt: skip


def _copies() -> Given:
    """Of 8 tokens, three each."""
    y, slots = Placed(M, K, dtype="bfloat16"), Placed(8, 3, dtype="int32")
    return {"y": y, "slots": slots, "weights": Placed(8, 3)}


COMBINE = (
    *(
        wrong(f"{name} of no tensor", name, **{name: [[1.0]]})
        for name in ("y", "slots", "weights", "add")
    ),
    wrong("codes", "y dtype", y=Placed(M, K, dtype="float8_e4m3fn")),
    wrong("slots that are no int32", "slots dtype", slots=Placed(8, 3)),
    wrong("integers for weights", "weights dtype", weights=Placed(8, 3, dtype="int32")),
    wrong("another dtype to add to", "add dtype", add=Placed(8, K)),
    wrong("one row", "y shape", y=Placed(K, dtype="bfloat16")),
    wrong("copies of no token", "slots shape", slots=Placed(24, dtype="int32")),
    wrong("weights of fewer copies", "weights shape", weights=Placed(8, 2)),
    wrong("rows to add to of more tokens", "add shape", add=Placed(9, K, dtype="bfloat16")),
)


def _tokens() -> Given:
    """8, of three copies each."""
    q, slots = Placed(8, K, dtype="float8_e4m3fn"), Placed(8, 3, dtype="int32")
    return {"q": q, "scale": Placed(8, 4), "slots": slots, "rows": 512}


SPREAD = (
    *(wrong(f"{name} of no tensor", name, **{name: [[1.0]]}) for name in ("q", "scale", "slots")),
    *(wrong(f"{x!r} rows", "rows", rows=x) for x in (-1, 2**31, 2.0, "8", None, True)),
    wrong("scales that are no float32", "scale dtype", scale=Placed(8, 4, dtype="bfloat16")),
    wrong("slots that are no int32", "slots dtype", slots=Placed(8, 3)),
    wrong("one token", "q shape", q=Placed(K, dtype="int8")),
    wrong("scales of fewer tokens", "scale shape", scale=Placed(7, 4)),
    wrong("a scale for each token", "scale shape", scale=Placed(8)),
    wrong("copies of more tokens", "slots shape", slots=Placed(9, 3, dtype="int32")),
    wrong("copies of no token", "slots shape", slots=Placed(24, dtype="int32")),
)
FUNCTIONS = (
    Function(name="ops.route", call=ops.route, right=_ids, runs=False, wrong=ROUTE),
    Function(name="ops.combine", call=ops.combine, right=_copies, runs=False, wrong=COMBINE),
    Function(name="ops.spread", call=ops.spread, right=_tokens, runs=False, wrong=SPREAD),
)
