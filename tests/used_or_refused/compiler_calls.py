"""Calls of the compiler, drawn: problems, configs, choices, whole kernels, explanations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from hypothesis import strategies as st

import gemmgen
from gemmgen import heuristics
from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import EPILOGUES, from_json
from gemmgen.errors import GemmgenError, IllegalConfig
from gemmgen.families import FAMILIES
from gemmgen.heuristics import ANY, choose
from gemmgen.heuristics.tuned import adds_up
from gemmgen.ir.collectives import COLLECTIVES
from gemmgen.ir.dtypes import DTYPES, DType
from gemmgen.ir.expr import ACC, Expr, PerColumn
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.heads import Heads, heads_of
from gemmgen.ir.packed import FORMS, OF_8_BITS, forms
from gemmgen.ops import building, invariance
from gemmgen.problem import LAYOUTS, Problem
from gemmgen.recipes import recipe
from gemmgen.see.explain import Explanation, explain
from gemmgen.target import H100, H200

from .lines import value_of
from .model import Ignored
from .values import CONFIG, Function, function, mostly, some

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
    "alignment": mostly(st.sampled_from([1, 4, 64, 128])),
    "accumulate": mostly(st.booleans()),
    "weights": mostly(st.sampled_from(["", *FORMS[DTYPES["bf16"]], *OF_8_BITS[DTYPES["bf16"]]])),
    "weights_ready": mostly(st.booleans()),
    "indexed": mostly(st.booleans()),
    "squares": mostly(st.sampled_from([False, False, True])),
    "compact": mostly(st.sampled_from([False, False, True])),
    "paged": mostly(st.sampled_from([False, False, True])),
    "heads": mostly(st.sampled_from([None, (128, 64, 128), [32, 8, 0]])),
    "collective": mostly(st.sampled_from([*COLLECTIVES])),
    "wire": mostly(st.sampled_from([None, "bf16", DTYPES["f16"], DTYPES["bf16"]])),
}


def problem_fields() -> st.SearchStrategy[dict[str, Any]]:
    def operands(family: Any) -> st.SearchStrategy[dict[str, Any]]:
        pairs = recipe(family).operands if family in FAMILIES else ()
        pair = st.sampled_from(pairs or ((DTYPES["bf16"],) * 2,))
        wrong = st.tuples(DTYPE, DTYPE)
        both = st.integers(0, 9).flatmap(lambda n: pair if n else wrong)
        return both.flatmap(
            lambda x: some(
                PROBLEM | {"weights": _weights(family, x[1])},
                family=st.just(family),
                a=st.just(x[0]),
                b=st.just(x[1]),
            )
        ).flatmap(_packed)

    return mostly(st.sampled_from([*FAMILIES]), 20).filter(_hashable).flatmap(operands)


def _weights(family: Any, b: Any) -> st.SearchStrategy[Any]:
    """What a family's B is packed from, or what other families refuse."""
    coded = recipe(family).coded if family in FAMILIES else 0
    known = (coded and isinstance(b, DType) and forms(coded, b)) or ("",)
    return mostly(st.sampled_from([*known])) if coded else PROBLEM["weights"]


def _packed(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Where a family needs weights they are left out seldom, and given to others as seldom."""
    family, b = fields["family"], fields["b"]
    coded = family in FAMILIES and recipe(family).coded
    if bool(coded) == ("weights" in fields):
        return st.just(fields)
    rest = {k: v for k, v in fields.items() if k != "weights"}
    other = _weights(family, b).map(lambda x: rest | {"weights": x}) if coded else st.just(rest)
    return st.integers(0, 5).flatmap(lambda n: other if n else st.just(fields))


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
    **{n: mostly(value_of(n).map(lambda v: tuple(v) if isinstance(v, list) else v)) for n in FIELDS},
    "more": mostly(st.sampled_from([(), {}])),
}  # fmt: skip
SHAPE = mostly(st.tuples(*[mostly(st.sampled_from([1, 8, 64, 100, 512, 4096]), 30)] * 3), 10)
GROUPS = mostly(st.sampled_from([1, 2, 8]))
TARGET = mostly(st.sampled_from([H200, H100]), 20)
SPLIT_K = st.sampled_from([0, 1, 2, 4])
UNBUILT = st.sampled_from([{}, {Config(): "spills"}])
# `print` stands for what is put in its place; what can be called is no wrong one.
OBSERVER = mostly(st.just(print), 3).filter(lambda x: x is print or not callable(x))
STAMPS = mostly(st.sampled_from([0, 8]))
INVARIANT = mostly(st.sampled_from([None, False, True]))


def of_json(fields: dict[str, Any]) -> dict[str, Any]:
    return {"data": {k: getattr(v, "name", v) for k, v in fields.items()}}


# ---- what came of it ------------------------------------------------------------------------


def same(given: Any, got: Any) -> bool:
    """Whether a field has what was given, by its name, as JSON, or as another library's integer."""
    if isinstance(got, Expr):
        return got == (given if isinstance(given, Expr) else from_json(given))
    if isinstance(got, DType):
        return got == DTYPES.get(given, given)
    if isinstance(got, Heads):
        return got == heads_of(given)
    return bool(got == (tuple(given) if isinstance(given, list) else given))


def _fields(made: Any, given: dict[str, Any]) -> list[str]:
    return [k for k, v in given.items() if not same(v, getattr(made, k))]


def _problem(given: dict[str, Any]) -> list[str]:
    return _fields(Problem(**given), given)


def _problem_json(given: dict[str, Any]) -> list[str]:
    made = Problem.from_json(**given)
    return _fields(made, given["data"]) + ["all"] * (
        Problem.from_json(json.loads(json.dumps(made.to_json()))) != made
    )


def _config(given: dict[str, Any]) -> list[str]:
    made, fields = Config(**given), dict(given)
    more = dict(fields.pop("more", ()))
    return _fields(made, fields) + ["more"] * (dict(made.more) != more)


def _config_json(given: dict[str, Any]) -> list[str]:
    made = Config.from_json(**given)
    return _fields(made, given["data"]) + ["all"] * (
        Config.from_json(json.loads(json.dumps(made.to_json()))) != made
    )


def _choose(given: dict[str, Any]) -> list[str]:
    with _handed_on(heuristics, "_verdicts") as asked:
        c = choose(**given)
    (of, *_) = asked[-1]
    try:
        gemmgen.lower(of.problem, c, of.target)
    except IllegalConfig as e:
        raise Ignored(f"a chosen config is refused: {e}") from e
    split_k, k = given.get("split_k", ANY), given["shape"][2]
    told = {
        "problem": of.problem == given["problem"],
        "shape": tuple(of.shape) == tuple(given["shape"]),
        "target": of.target == given["target"],
        "groups": of.groups == given.get("groups"),
        "unbuilt": c not in given.get("unbuilt", {}),
        "split_k": split_k == ANY or adds_up(given["problem"], c, k, split_k),
        "pointers": given.get("pointers", True) or not c.direct,
    }
    return [k for k in given if not told[k]]


@contextmanager
def _handed_on(module: Any, name: str) -> Iterator[list[tuple[Any, ...]]]:
    """What one of the module's functions is given by position meanwhile."""
    asked: list[tuple[Any, ...]] = []
    whole = getattr(module, name)

    def noting(*given: Any, **options: Any) -> Any:
        asked.append(given)
        return whole(*given, **options)

    with mock.patch.object(module, name, noting):
        yield asked


def _watched(given: dict[str, Any], seen: list[str]) -> dict[str, Any]:
    """With an observer that can be asked."""
    watches = given.get("observer") is print
    return given | {"observer": lambda name, kernel: seen.append(name)} if watches else given


def _lower(given: dict[str, Any]) -> list[str]:
    seen: list[str] = []
    kernel = gemmgen.lower(**_watched(given, seen))
    told = {
        "problem": True,
        "config": given["config"] == Config()
        or kernel != gemmgen.lower(given["problem"], Config()),
        "stamps": kernel.stamps == given.get("stamps", 0),
        "target": given.get("target", H200) in (H200, H100),  # whose limits are the same
        "observer": given.get("observer") is None or len(seen) > 1,
    }
    return [k for k in given if not told[k]]


def _compile(given: dict[str, Any]) -> list[str]:
    seen: list[str] = []
    with _handed_on(building, "picked_for") as asked:
        a = gemmgen.compile_to_source(**_watched(given, seen))
    text = re.sub(r"\n// +", " ", a.source)  # its first lines say all of it, wrapped
    chosen = given.get("shape") is not None
    told = {
        "problem": a.problem == given["problem"] and json.dumps(a.problem.to_json()) in text,
        "config": a.config == given.get("config", a.config)
        and json.dumps(a.config.to_json()) in text,
        "shape": bool(asked) and tuple(asked[-1][1]) == tuple(given["shape"]),
        "groups": given.get("groups") == (asked[-1][2] if asked else 1),
        "stamps": a.kernel.stamps == given.get("stamps", 0),
        "target": a.target == given.get("target", a.target),
        "observer": given.get("observer") is None or len(seen) > 1,
        "invariant": chosen and keeps(a.problem, a.config, given["shape"], given.get("invariant")),
    }
    return [k for k, v in given.items() if v is not None and not told[k]]


def keeps(p: Problem, c: Config, shape: Any, invariant: bool | None) -> bool:
    """Whether a config is what `invariant` asks for."""
    try:
        invariance.check(p, c, shape[2], invariance.split_of(p, shape[1], shape[2], invariant))
    except GemmgenError:
        return False
    return True


def _explain(given: dict[str, Any]) -> list[str]:
    e = explain(**given)
    told = {
        "problem": e.problem == given["problem"],
        "config": e.config == given["config"],
        "shape": tuple(e.shape) == tuple(given["shape"]),
        "source": e.source == given["source"],
        "groups": e.groups == given.get("groups"),
        "top": len(e.runners_up) <= given.get("top", 5),
        "why_not": given.get("why_not") is None or _asked_about(e, given["why_not"]),
        "target": e.target == given.get("target"),
        "ctas": given.get("ctas") in (None, e.ctas),
        "unbuilt": e.unbuilt == given.get("unbuilt"),
        "split_k": given.get("split_k", ANY) == ANY
        or all(
            adds_up(e.problem, r.choice.config, e.shape[2], given["split_k"]) for r in e.runners_up
        ),
    }
    return [k for k in given if not told[k]]


def _asked_about(e: Explanation, why_not: dict[str, Any]) -> bool:
    """Whether it is said of a config with these fields."""
    if e.why_not is None:
        return False
    about = e.why_not.verdict.choice or e.why_not.verdict
    return all(same(v, getattr(about.config, k)) for k, v in why_not.items())


RIGHT = mostly(problems(), 20)
FUNCTIONS: dict[str, Function] = {
    "Problem": Function(call=Problem, names=("family", "a", "b", *PROBLEM), drawn=problem_fields(), ignored=_problem),
    "Problem.from_json": Function(call=Problem.from_json, names=("data",), drawn=problem_fields().map(of_json), ignored=_problem_json),
    "Config": function(Config, _config, FIELDS_OF_CONFIG),
    "Config.from_json": Function(call=Config.from_json, names=("data",), ignored=_config_json,
        drawn=some({n: mostly(value_of(n)) for n in FIELDS}).map(lambda x: {"data": x})),
    "choose": function(choose, _choose, {"groups": GROUPS, "unbuilt": UNBUILT, "split_k": SPLIT_K, "pointers": mostly(st.booleans())}, problem=RIGHT, shape=SHAPE, target=TARGET),
    "lower": function(gemmgen.lower, _lower, {"target": TARGET, "observer": OBSERVER, "stamps": STAMPS}, problem=RIGHT, config=mostly(CONFIG, 20)),
    "compile_to_source": function(gemmgen.compile_to_source, _compile,
        {"config": mostly(CONFIG), "shape": SHAPE, "groups": GROUPS, "stamps": STAMPS, "target": TARGET, "observer": OBSERVER, "invariant": INVARIANT},
        problem=RIGHT),
    "explain": function(explain, _explain,
        {"groups": GROUPS, "top": mostly(st.sampled_from([1, 3])), "why_not": mostly(st.sampled_from([{"stages": 2}, {"block_n": 64}])),
         "target": st.sampled_from([H200, H100]), "ctas": st.sampled_from([None, 132]), "unbuilt": UNBUILT, "split_k": SPLIT_K},
        problem=problems(), config=mostly(CONFIG, 20), shape=SHAPE, source=st.sampled_from(["given", "cost model"])),
}  # fmt: skip
