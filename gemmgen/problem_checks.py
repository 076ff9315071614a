"""What a problem's fields may be beside each other."""

from __future__ import annotations

from typing import Any

from .errors import ArgumentError
from .ir.collectives import COLLECTIVES, WIRES
from .ir.counts import MOST_SIDE
from .ir.dtypes import F32, DType
from .ir.expr import ACC, Expr, fold
from .ir.groupings import GROUPINGS
from .ir.heads import check_boxes
from .ir.pages import ROWS as PAGE_ROWS
from .ir.row_sums import fold_rows, windows
from .ir.walks import WINDOWS
from .recipes import Recipe, recipe

P = Any  # a `Problem`
BOX_BYTES = 16  # at whose multiples TMA's boxes begin


def check_operands(p: P, sums: Recipe) -> None:
    """Raise ArgumentError naming A, or if only B is wrong for it B, unless the family multiplies them."""
    if (p.a, p.b) in sums.operands:
        return
    name = "b" if any(a == p.a for a, _ in sums.operands) else "a"
    pairs = " or ".join(f"{a} x {b}" for a, b in sums.operands)
    raise ArgumentError(name, getattr(p, name).name, f"{p.family} multiplies {pairs}")


def check_weights(p: P, sums: Recipe) -> None:
    """Raise ArgumentError for weights that are none, of a layout of their own, or of groups that split their K; for a family that has none, for any."""
    known = sums.weights(p.b)
    if not isinstance(p.weights, str) or p.weights not in known:
        allowed = (
            f"must be one of {', '.join(known)}" if sums.coded else f"must be '' in {p.family}"
        )
        raise ArgumentError("weights", p.weights, allowed)
    if sums.coded and p.layout != "nt":
        allowed = f"must be nt for weights={p.weights}: blocks of them have one order"
        raise ArgumentError("layout", p.layout, allowed)
    if sums.coded and GROUPINGS[p.grouping].depths:
        allowed = f"must be none that splits K for weights={p.weights}: blocks have 128 of it"
        raise ArgumentError("grouping", p.grouping, allowed)


def check_summed(p: P, sums: Recipe) -> None:
    """Raise ArgumentError for groups that are summed, unless what they sum needs only their tensor maps."""
    if GROUPINGS[p.grouping].summed and (sums.scaled or sums.coded):
        allowed = f"must be none that sums groups in {p.family}: scales would be other ones in each"
        raise ArgumentError("grouping", p.grouping, allowed)


def check_promise(p: P) -> None:
    """Raise ArgumentError for a promise that is none, or of what is no weight."""
    if not isinstance(p.weights_ready, bool):
        raise ArgumentError("weights_ready", p.weights_ready, "must be true or false")
    g = GROUPINGS[p.grouping]
    if p.weights_ready and (g.depths or g.summed):
        allowed = f"must be false for grouping={p.grouping}: where groups split K, or are summed, B is no weight"
        raise ArgumentError("weights_ready", p.weights_ready, allowed)


def check_accumulate(p: P) -> None:
    """Raise ArgumentError for what is no flag, and for a D that a launch cannot add to."""
    if not isinstance(p.accumulate, bool):
        raise ArgumentError("accumulate", p.accumulate, "must be true or false")
    if p.accumulate and (p.d != F32 or p.grouping == "rows"):
        allowed = f"needs d=f32, not {p.d}, and not grouping=rows, which sets rows to 0"
        raise ArgumentError("accumulate", p.accumulate, allowed)
    if p.accumulate and fold(p.epilogue) > 1:
        allowed = "needs an epilogue that does not pair columns"
        raise ArgumentError("accumulate", p.accumulate, allowed)


INDEXED = "ends"  # the grouping whose rows may come by index


def check_indexed(p: P) -> None:
    """Raise ArgumentError for what is no flag, and for rows by index where none can come so."""
    if not isinstance(p.indexed, bool):
        raise ArgumentError("indexed", p.indexed, "must be true or false")
    if p.indexed and p.grouping != INDEXED:
        allowed = f"must be false for grouping={p.grouping}: rows come by index for {INDEXED} only"
        raise ArgumentError("indexed", p.indexed, allowed)
    if p.indexed and p.mn_major[0]:
        allowed = f"must be false for layout={p.layout}: A's rows are not contiguous"
        raise ArgumentError("indexed", p.indexed, allowed)
    if p.indexed and p.weights:
        allowed = f"must be false for weights={p.weights}: K blocks of both have other lengths"
        raise ArgumentError("indexed", p.indexed, allowed)


PAGED = "batched"  # the grouping whose rows of B may come by page


def check_paged(p: P) -> int:
    """Rows of a page, 0 of none. Raises ArgumentError for what is neither, and for rows by page where none can come so."""
    rows = PAGE_ROWS[0] if p.paged is True else p.paged
    if type(rows) not in (bool, int) or rows not in (0, *PAGE_ROWS):
        allowed = f"must be true or false, or {' or '.join(map(str, PAGE_ROWS))}"
        raise ArgumentError("paged", p.paged, allowed)
    if not rows:
        return 0
    for name, value, wrong, said in (
        ("grouping", p.grouping, p.grouping != PAGED, f"rows come by page for {PAGED} only"),
        ("layout", p.layout, p.mn_major[1], "B's rows are not contiguous"),
        ("weights", p.weights, bool(p.weights), "blocks of them are of rows that lie together"),
        ("weights_ready", p.weights_ready, p.weights_ready, "pages are no weights"),
        ("family", p.family, recipe(p.family).scale_rows, "B's scales lie in no pages"),
    ):
        if wrong:
            raise ArgumentError("paged", p.paged, f"must be false for {name}={value}: {said}")
    return rows


SQUARED = ("none", "batched")  # groupings whose A's rows may have their squares summed


def check_squares(p: P) -> None:
    """Raise ArgumentError for what is no flag, and for sums of squares where no kernel makes them."""
    if not isinstance(p.squares, bool):
        raise ArgumentError("squares", p.squares, "must be true or false")
    if not p.squares:
        return
    for name, value, wrong, said in (
        (
            "family",
            p.family,
            recipe(p.family).promotes or bool(p.weights),
            "A's rows have scales, or B is packed",
        ),
        ("a", p.a.name, p.a.bytes != 2, "squares are of 16-bit numbers, which FP32 has exactly"),
        ("layout", p.layout, p.mn_major[0], "A's rows are not contiguous"),
        ("grouping", p.grouping, p.grouping not in SQUARED, f"must be {' or '.join(SQUARED)}"),
        ("d", p.d.name, p.d != F32, "their sum is FP32, and lies in D"),
    ):
        if wrong:
            raise ArgumentError("squares", p.squares, f"must be false for {name}={value}: {said}")
    if fold_rows(p.epilogue) > 1:
        raise ArgumentError("epilogue", repr(p.epilogue), "must sum no rows with squares")
    _check_alone(p, "squares")


def check_rows(p: P) -> None:
    """Raise ArgumentError for a sum of rows, or a window, of what has other rows: it is of one GEMM or of several of one shape, of one
    GPU, into a D that it writes whole and without scales."""
    if fold_rows(p.epilogue) == 1:
        return
    g = GROUPINGS[p.grouping]
    if g.scheduler not in WINDOWS or g.summed:
        allowed = "must be none or batched with an epilogue that sums rows"
        raise ArgumentError("grouping", p.grouping, allowed)
    _check_alone(p, "an epilogue that sums rows")
    if p.weights:
        allowed = "must multiply by weights that are not packed, with an epilogue that sums rows"
        raise ArgumentError("family", p.family, allowed)
    if p.quantised:
        raise ArgumentError("d", p.d.name, "must have no scales with an epilogue that sums rows")


BOUNDS = 2  # of windows that begin somewhere


def check_compact(p: P) -> None:
    """Raise ArgumentError for what is no flag, and for rows that begin with windows where there are none, or several GEMMs."""
    if not isinstance(p.compact, bool):
        raise ArgumentError("compact", p.compact, "must be true or false")
    if p.compact and len(windows(p.epilogue)) < BOUNDS:
        allowed = (
            "must be false for an epilogue without windows that begin at a column of their own"
        )
        raise ArgumentError("compact", p.compact, allowed)
    if p.compact and p.grouping != "none":
        allowed = f"must be false for grouping={p.grouping}: of one GEMM"
        raise ArgumentError("compact", p.compact, allowed)


def check_heads(p: P) -> None:
    """Raise ArgumentError for gaps that no box of D would leave out, and in what has other columns than the product, or scales."""
    if p.grouping != "none":
        raise ArgumentError("grouping", p.grouping, "must be none with heads")
    _check_alone(p, "heads")
    if p.quantised:
        raise ArgumentError("d", p.d.name, "must have no scales with heads")
    if fold(p.epilogue) * fold_rows(p.epilogue) > 1:
        allowed = "must pair no columns and sum no rows with heads"
        raise ArgumentError("epilogue", repr(p.epilogue), allowed)
    check_boxes(p.heads, p.d)


def _check_alone(p: P, what: str) -> None:
    """Raise ArgumentError unless it is of one GPU, and adds to nothing. what: with which it must be."""
    for name, value, plain, said in (
        ("collective", p.collective, "none", "none"),
        ("accumulate", p.accumulate, False, "false"),
    ):
        if value != plain:
            raise ArgumentError(name, value, f"must be {said} with {what}")


def check_collective(p: P) -> None:
    """Raise ArgumentError for one that there is not, or that groups take no part in."""
    if not isinstance(p.collective, str) or p.collective not in COLLECTIVES:
        allowed = f"must be one of {', '.join(sorted(COLLECTIVES))}"
        raise ArgumentError("collective", p.collective, allowed)
    if p.together and p.grouping != "none":
        allowed = f"must be none for grouping={p.grouping}: ranks compute one GEMM"
        raise ArgumentError("collective", p.collective, allowed)


def check_wire(p: P, sums: Recipe) -> None:
    """Raise ArgumentError for a dtype that sums are not rounded to, or where no FP32 sums travel."""
    if p.wire is None:
        return
    if p.wire not in WIRES:
        allowed = f"must be None, or one of {', '.join(sorted(t.name for t in WIRES))}"
        raise ArgumentError("wire", getattr(p.wire, "name", p.wire), allowed)
    if not COLLECTIVES[p.collective].sums:
        allowed = f"must be None for collective={p.collective}: no sums travel"
        raise ArgumentError("wire", p.wire.name, allowed)
    if p.a.integer and not sums.promotes:
        raise ArgumentError("wire", p.wire.name, "must be None for sums in INT32, which are exact")


def check_sums(
    argument: str, a: DType, d: DType, epilogue: Expr, without: str = "an epilogue"
) -> None:
    """Raise ArgumentError naming `argument`, which says D's dtype, if that is an integer's and D is not the sum of integers as it
    is. without: what else that sum has none of, as the caller's arguments name it."""
    if d.integer and not (a.integer and epilogue == ACC):
        allowed = f"is of integer operands' sum itself, without {without}"
        raise ArgumentError(argument, d.name, allowed)


def check_shape(shape: object) -> None:
    """Raise ArgumentError unless `shape` is (M, N, K), each an integer of a range that kernels count in."""
    if not isinstance(shape, tuple | list) or len(shape) != 3:
        raise ArgumentError("shape", shape, "must be (M, N, K)")
    for name, side in zip(("m", "n", "k"), shape, strict=True):
        if not hasattr(side, "__index__") or not 1 <= side <= MOST_SIDE:
            raise ArgumentError(name, side, f"must be an integer from 1 to {MOST_SIDE}")


def row_step(p: P) -> int:
    """What the first row of a group must be a multiple of where groups share A's rows: where rows lie side by side in memory, as of a turned A, and
    as scales of 32 bits do, so many have the 16 bytes at whose multiples TMA's boxes begin."""
    turned, _ = p.mn_major
    return max(
        BOX_BYTES // p.a.bytes if turned else 1,
        BOX_BYTES // F32.bytes if recipe(p.family).scaled else 1,
    )


def check_alignment(p: P) -> None:
    """Raise ArgumentError for an alignment that a problem's grouping has not, or whose boxes do not begin where TMA wants them."""
    g = GROUPINGS[p.grouping]
    step = row_step(p) if g.aligned else 1
    allowed = tuple(x for x in g.alignments if x % step == 0)
    if type(p.alignment) is not int or p.alignment not in allowed:
        of = f" for grouping={p.grouping}" * g.aligned
        raise ArgumentError("alignment", p.alignment, f"must be one of {allowed}{of}")


def depth_step(p: P) -> int:
    """What a group's K must be a multiple of where groups split it: K of a scale, between two of which they do,
    and in a K-major matrix 16 bytes, at whose multiples TMA's boxes begin."""
    k_major = p.mn_major != (True, True)
    return max(recipe(p.family).scale_depth, BOX_BYTES // p.a.bytes if k_major else 1)
