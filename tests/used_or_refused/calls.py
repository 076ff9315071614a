"""Calls in Python, drawn and judged: of the compiler, of GEMMs over tensors of no GPU, and of what is around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import gemmgen
import gemmgen.ops
from gemmgen.errors import GemmgenError, RuntimeUnavailable
from gemmgen.ir.groupings import GROUPINGS

from . import compiler_calls, expert_calls, gemm_calls, host_calls, logits_calls, prenorm_calls
from .model import REFUSALS, Ignored, Tally, named
from .values import Call, Function

FUNCTIONS: dict[str, Function] = (
    compiler_calls.FUNCTIONS
    | host_calls.FUNCTIONS
    | expert_calls.FUNCTIONS
    | logits_calls.FUNCTIONS
    | prenorm_calls.FUNCTIONS
)
# What errors name besides: what is missing, one of several.
WEIGHTS = {"Problem": ("weights",), "Problem.from_json": ("weights",)}
ABOUT = WEIGHTS | {
    "compile_to_source": ("config",),
    "prepare": ("shape",),
    # A table is called as its grouping calls it.
    "ops.multiply, rows by index": (GROUPINGS["ends"].table,),
}


def judge(call: Call, tally: Tally) -> None:
    """Raises Ignored."""
    try:
        ignored = (
            FUNCTIONS[call.function].ignored(call.given)
            if call.function in FUNCTIONS
            else gemm_calls.ignored(call)
        )
    except RuntimeUnavailable:
        tally.missing += 1
        return
    except GemmgenError as e:
        _refused(call, e)
        tally.refused += 1
        return
    except Exception as e:
        raise Ignored(f"{call.function}: {type(e).__name__}: {e}"[:300]) from e
    tally.used += 1
    if ignored:
        raise Ignored(f"{call.function}: {', '.join(ignored)} ignored")


def _refused(call: Call, e: GemmgenError) -> None:
    if not e.id.startswith(REFUSALS):
        raise Ignored(f"{call.function}: {e.id}: {e}"[:300])
    argument = getattr(e, "argument", None)
    right = gemm_calls.TAKEN[call.function].right() if call.function in gemm_calls.TAKEN else {}
    names = [*right, *call.given, *"mnk" * ("shape" in call.given), *ABOUT.get(call.function, ())]
    inner = [x for n in ("why_not", "data") if isinstance(x := call.given.get(n), dict)]
    values = [v for x in (call.given, *inner) for v in x.values()]
    names += [name for x in inner for name in x]
    if argument is not None and not named(argument.split()[0], str(e), names, values):
        raise Ignored(f"{call.function}: names nothing that was given: {e}"[:300])


def calls() -> st.SearchStrategy[Call]:
    of_functions = [
        f.drawn.map(lambda given, n=name: Call(n, given)) for name, f in FUNCTIONS.items()
    ]
    return st.one_of(*of_functions, *[gemm_calls.gemm_calls()] * len(FUNCTIONS))


# ---- what can be given, and is not drawn ----------------------------------------------------

# Of what is public. These ask a GPU or NVRTC, which is not here; tests/bad_arguments has wrong calls of them.
ELSEWHERE = {"chosen", "compiled", "loaded"}
MADE = {"Artifact", "Launch", "Prepared", "Routes", "Samples"}  # by functions, never by users


def not_drawn() -> list[str]:
    """Public functions, and arguments of theirs, as their signatures have them."""
    found = []
    names = drawn_names()
    for module in (gemmgen, gemmgen.ops):
        for name in module.__all__:
            f = getattr(module, name)
            if not callable(f) or name in ELSEWHERE | MADE:
                continue
            if f not in names:
                found.append(name)
            else:
                found += [f"{name} {x}" for x in parameters(f) if x not in names[f]]
    for f, drawn in names.items():
        found += [f"{f.__qualname__} {x}" for x in parameters(f) if x not in drawn]
    return [*dict.fromkeys(found)]


def parameters(f: Callable[..., Any]) -> list[str]:
    open_ended = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [n for n, p in inspect.signature(f).parameters.items() if p.kind not in open_ended]


def drawn_names() -> dict[Callable[..., Any], set[str]]:
    """By function."""
    found = {f.call: {*f.names} for f in FUNCTIONS.values()}
    for f in gemm_calls.TAKEN.values():
        found.setdefault(f.call, set()).update(f.right(), gemm_calls.KEYWORDS)
    found[gemmgen.bind] = {"function"}  # half of those calls are bound before they are launched
    return found
