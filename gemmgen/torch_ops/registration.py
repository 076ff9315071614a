"""The operators in torch's dispatcher: definitions, CUDA implementations, fakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.dtypes import DTYPES
from ..ops.front import Call, front
from ..runtime.torch_tensors import torch, torch_dtype
from .dtensor import register_twins
from .fakes import fake
from .operators import OPERATORS, Operator, Overload

NAMESPACE = "gemmgen"


@cache
def register() -> Any:
    """The `torch.library.Library` that holds every operator and its rules for DTensors, registered once per process: it must live on.
    Raises RuntimeUnavailable without torch. No CUDA device is needed, nor looked for."""
    library = torch().library.Library(NAMESPACE, "DEF")
    for op in OPERATORS:
        for overload in op.overloads:
            _add(library, op, overload)
    register_twins(library)
    return library


def _add(library: Any, op: Operator, overload: Overload) -> None:
    name = op.qualified(overload)
    library.define(op.schema(overload), tags=tags())
    # A function that quantises runs wherever its tensors are.
    key = "CUDA" if op.operands else "CompositeExplicitAutograd"
    library.impl(name, implementation(op, overload), key)
    torch().library.register_fake(f"{NAMESPACE}::{name}", fake(op, overload), lib=library)


def tags() -> tuple[Any, ...]:
    """Rows are padded and scales are read in place: a compiler must leave strides alone."""
    tag = torch().Tag
    strides = getattr(tag, "needs_exact_strides", tag.needs_fixed_stride_order)  # torch < 2.7
    return tag.pt2_compliant_tag, strides


def implementation(op: Operator, overload: Overload) -> Callable[..., Any]:
    """What an overload does: what the function of `ops` does, and as that, without a look at what was looked at
    before. Raises as that."""
    if not op.operands:
        return op.function
    describe = getattr(op.function, "describe", op.function)

    def described(*args: Any, **given: Any) -> Any:
        made = describe(*args, **_read(op, overload, given))
        if overload != "out":
            return made
        return replace(made, result={}) if isinstance(made, Call) else None

    return front(described, op.positional(overload))


def _read(op: Operator, overload: Overload, given: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments as `ops` takes them. torch leaves out what has its default. Raises ArgumentError."""
    match overload:
        case "quantised":
            given["out_dtype"] = "e4m3"
        case "out":
            given["out_dtype"] = _written(given)
        case _ if given.get("out_dtype") is not None:
            op.check_output(given["out_dtype"])
    if "epilogue" in given:
        given["epilogue"] = op.epilogue(given["epilogue"])
    if "config" in given:
        given["config"] = config_of(given["config"])
    return given


def _written(given: dict[str, Any]) -> str:
    """The name of `out`'s dtype. Raises ArgumentError."""
    dtype = _names().get(given["out"].dtype)
    if dtype is None:
        raise ArgumentError("out dtype", given["out"].dtype, f"must be of {', '.join(DTYPES)}")
    if dtype == "e4m3" and given.get("scale_out") is None:
        raise ArgumentError("scale_out", None, "must be given with an FP8 out")
    return dtype


@cache
def _names() -> dict[Any, str]:
    """gemmgen's names of torch's dtypes."""
    return {torch_dtype(t): t.name for t in DTYPES.values()}


@lru_cache(maxsize=256)
def config_of(text: str) -> Config | None:
    """The config that JSON text says, None for no text. Raises ArgumentError."""
    if not text:
        return None
    try:
        return Config.from_json(json.loads(text))
    except json.JSONDecodeError as e:
        raise ArgumentError("config", text, f"must be a JSON object, or no text ({e})") from e
