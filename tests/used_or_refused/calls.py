"""Calls in Python, drawn: problems, configs, choices, whole kernels, explanations, and GEMMs over tensors of no GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import gemmgen
from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import EPILOGUES, from_json
from gemmgen.errors import GemmgenError
from gemmgen.families import FAMILIES
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import DTYPES, DType
from gemmgen.ir.expr import ACC, Expr, PerColumn
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.problem import LAYOUTS, Problem
from gemmgen.recipes import recipe
from gemmgen.see.explain import explain
from gemmgen.target import H100, H200

from . import gemm_calls
from .lines import value_of
from .model import REFUSALS, Ignored, Tally, named
from .values import CONFIG, Call, mostly, some

# ---- what is drawn --------------------------------------------------------------------------

DTYPE = mostly(st.sampled_from([*DTYPES.values(), *DTYPES]))
EPILOGUE = mostly(
    st.sampled_from([*EPILOGUES, *EPILOGUES.values(), ACC + PerColumn("v"), ACC * 2.0])
)
PROBLEM = {
    "d": DTYPE,
    "layout": mostly(st.sampled_from(LAYOUTS)),
    "epilogue": EPILOGUE,
    "grouping": mostly(st.sampled_from([*GROUPINGS])),
    "alignment": mostly(st.sampled_from([64, 128])),
    "accumulate": mostly(st.booleans()),
    "weights_ready": mostly(st.booleans()),
}


def problem_fields() -> st.SearchStrategy[dict[str, Any]]:
    def operands(family: Any) -> st.SearchStrategy[dict[str, Any]]:
        pairs = recipe(family).operands if family in FAMILIES else ()
        pair = st.sampled_from(pairs or ((DTYPES["bf16"],) * 2,))
        wrong = st.tuples(DTYPE, DTYPE)
        both = st.integers(0, 9).flatmap(lambda n: pair if n else wrong)
        return both.flatmap(
            lambda x: some(PROBLEM, family=st.just(family), a=st.just(x[0]), b=st.just(x[1]))
        )

    return mostly(st.sampled_from([*FAMILIES]), 20).filter(_hashable).flatmap(operands)


def _hashable(x: Any) -> bool:
    return x.__hash__ is not None


def problems() -> st.SearchStrategy[Problem]:
    """Right ones."""

    def made(fields: dict[str, Any]) -> Problem | None:
        try:
            return Problem(**fields)
        except GemmgenError:
            return None

    return problem_fields().map(made).filter(lambda p: p is not None)  # type: ignore[return-value]


FIELDS_OF_CONFIG = {
    n: mostly(value_of(n).map(lambda v: tuple(v) if isinstance(v, list) else v)) for n in FIELDS
}
SHAPE = mostly(st.tuples(*[mostly(st.sampled_from([1, 8, 64, 100, 512, 4096]), 30)] * 3), 10)
GROUPS = mostly(st.sampled_from([1, 2, 8]))
SOME_CALLS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "Problem": problem_fields(),
    "Problem.from_json": problem_fields().map(lambda f: {k: getattr(v, "name", v) for k, v in f.items()}),
    "Config": some(FIELDS_OF_CONFIG),
    "Config.from_json": some({n: mostly(value_of(n)) for n in FIELDS}),
    "choose": some({"groups": GROUPS}, problem=mostly(problems(), 20), shape=SHAPE, target=mostly(st.sampled_from([H200, H100]), 20)),
    "compile_to_source": some(
        {"config": mostly(CONFIG), "shape": SHAPE, "groups": GROUPS, "stamps": mostly(st.sampled_from([0, 8])), "target": mostly(st.just(H200)), "observer": mostly(st.just(print), 3)},
        problem=mostly(problems(), 20)),
    "explain": some(
        {"groups": GROUPS, "top": mostly(st.sampled_from([1, 3])), "why_not": mostly(st.sampled_from([{"stages": 2}, {"block_n": 64}]))},
        problem=problems(), config=mostly(CONFIG, 20), shape=SHAPE),
}  # fmt: skip


# ---- what came of it ------------------------------------------------------------------------


def same(given: Any, got: Any) -> bool:
    """Whether a field has what was given, by its name, as JSON, or as another library's integer."""
    if isinstance(got, Expr):
        return got == (given if isinstance(given, Expr) else from_json(given))
    if isinstance(got, DType):
        return got == DTYPES.get(given, given)
    return bool(got == (tuple(given) if isinstance(given, list) else given))


def _fields(made: Any, given: dict[str, Any]) -> list[str]:
    return [k for k, v in given.items() if not same(v, getattr(made, k))]


def _problem(given: dict[str, Any]) -> list[str]:
    return _fields(Problem(**given), given)


def _problem_json(given: dict[str, Any]) -> list[str]:
    made = Problem.from_json(given)
    return _fields(made, given) + ["all"] * (
        Problem.from_json(json.loads(json.dumps(made.to_json()))) != made
    )


def _config(given: dict[str, Any]) -> list[str]:
    return _fields(Config(**given), given)


def _config_json(given: dict[str, Any]) -> list[str]:
    made = Config.from_json(given)
    return _fields(made, given) + ["all"] * (
        Config.from_json(json.loads(json.dumps(made.to_json()))) != made
    )


def _choose(given: dict[str, Any]) -> list[str]:
    gemmgen.lower(given["problem"], choose(**given), given["target"])
    return []


def _compile(given: dict[str, Any]) -> list[str]:
    seen: list[str] = []
    if given.get("observer") is print:
        given = given | {"observer": lambda name, kernel: seen.append(name)}
    a = gemmgen.compile_to_source(**given)
    text = re.sub(r"\n// +", " ", a.source)  # its first lines say all of it, wrapped
    told = {
        "problem": a.problem == given["problem"] and json.dumps(a.problem.to_json()) in text,
        "config": a.config == given.get("config", a.config)
        and json.dumps(a.config.to_json()) in text,
        "shape": a.config_from != "given",
        "groups": given.get("shape") is not None or given.get("groups") == 1,
        "stamps": a.kernel.stamps == given.get("stamps", 0),
        "target": a.target == given.get("target", a.target),
        "observer": given.get("observer") is None or len(seen) > 1,
    }
    return [k for k, v in given.items() if v is not None and not told[k]]


def _explain(given: dict[str, Any]) -> list[str]:
    e = explain(
        given["problem"],
        given["config"],
        given["shape"],
        "given",
        **{k: given[k] for k in ("groups", "top", "why_not") if k in given},
    )
    told = {
        "problem": e.problem == given["problem"],
        "config": e.config == given["config"],
        "shape": tuple(e.shape) == tuple(given["shape"]),
        "groups": e.groups == given.get("groups"),
        "top": len(e.runners_up) <= given.get("top", 5),
        "why_not": given.get("why_not") is None or e.why_not is not None,
    }
    return [k for k in given if not told[k]]


RUNS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "Problem": _problem,
    "Problem.from_json": _problem_json,
    "Config": _config,
    "Config.from_json": _config_json,
    "choose": _choose,
    "compile_to_source": _compile,
    "explain": _explain,
}


ABOUT = {"compile_to_source": ("config",)}  # what errors name where it is missing


def judge(call: Call, tally: Tally) -> None:
    """Raises Ignored."""
    try:
        ignored = (
            RUNS[call.function](call.given) if call.function in RUNS else gemm_calls.ignored(call)
        )
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
    if isinstance(call.given.get("why_not"), dict):
        names += call.given["why_not"]
    if argument is not None and not named(argument.split()[0], str(e), names, call.given.values()):
        raise Ignored(f"{call.function}: names nothing that was given: {e}"[:300])


def calls() -> st.SearchStrategy[Call]:
    of_functions = [
        strategy.map(lambda given, n=name: Call(n, given)) for name, strategy in SOME_CALLS.items()
    ]
    return st.one_of(*of_functions, *[gemm_calls.gemm_calls()] * 3)
