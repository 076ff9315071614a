"""DTensors, whose rules are in `sharding`, as torch takes them.

torch keeps what it decided of a call by the arguments from the first integer of its schema on, and moves data of positional
arguments only. So an operator hands DTensors on to its twin, `torch.ops.gemmgen_sharded.*`, which begins with an integer and
takes everything by position; over each rank's own tensors the twin calls the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from inspect import Parameter
from typing import Any

from .. import ops
from ..errors import ArgumentError
from ..ir.expr import Scalar
from ..runtime.torch_tensors import torch
from .fakes import fake
from .operators import LEFT_OUT, OF_ONE, OPERATORS, TYPES, Operator, Overload
from .sharding import Sharding, Sides

TWINS = "gemmgen_sharded"


def distributed() -> Any:
    """`torch.distributed.tensor`; None where torch was built without."""
    if not torch().distributed.is_available():
        return None
    import_module("torch.distributed.tensor.experimental")
    return torch().distributed.tensor


DISTRIBUTED = distributed()


def is_dtensor(x: Any) -> bool:
    return DISTRIBUTED is not None and isinstance(x, DISTRIBUTED.DTensor)


def scale_layout(scales: Any) -> str:
    """Of scales that `quantise_rows` made: where torch moves a DTensor's data, strides are lost."""
    return "row" if is_dtensor(scales) else "mn"


@cache  # which keeps it
def register_twins(operators: Any) -> Any:
    """The library of the twins; None without `torch.distributed`. operators: the library that defines the operators."""
    if DISTRIBUTED is None:
        return None
    twins = torch().library.Library(TWINS, "DEF")
    rule = torch().library.register_torch_dispatch
    for op in OPERATORS:
        for overload in op.overloads:
            name = f"{operators.ns}::{op.qualified(overload)}"
            if overload == "out" or op.coded:
                refuse = _refuse_parts if op.coded else _refuse
                rule(name, DISTRIBUTED.DTensor, refuse, lib=operators)
                continue
            _add(twins, op, overload)
            rule(name, DISTRIBUTED.DTensor, _hand_on(op, overload), lib=operators)
    return twins


def refuse_dtensors(library: Any, ops: Iterable[Operator]) -> None:
    """Of operators that say themselves which rank has what."""
    rule = torch().library.register_torch_dispatch
    for op in ops if DISTRIBUTED else ():
        for overload in op.overloads:
            name = f"{library.ns}::{op.qualified(overload)}"
            rule(name, DISTRIBUTED.DTensor, _refuse_parts, lib=library)


def _refuse_parts(*call: Any) -> Any:
    raise ArgumentError("a", "a DTensor", "must be this rank's own tensor: x.to_local()")


def _refuse(*call: Any) -> Any:
    allowed = "must not be with DTensors: use the overload that returns its result"
    raise ArgumentError("out", "given", allowed)


def _hand_on(op: Operator, overload: Overload) -> Callable[..., Any]:
    """What an overload does when DTensors are among its arguments."""
    names = names_of(op, overload)

    def hand_on(cls: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        given = op.bind(args, kwargs or {})
        if given.get("rows") is not None:
            raise ArgumentError(
                "rows", "given", "must not be with DTensors: a's rows are this rank's"
            )
        if given.get("heads") is not None:
            raise ArgumentError("heads", given["heads"], "must be None with DTensors")
        if given.get("invariant") is None:
            given["invariant"] = ops.is_invariant()
        given["weights_ready"] = False  # what torch moves is written by launches that may still run
        ranks = next(x.device_mesh.size() for x in given.values() if is_dtensor(x))
        try:
            return overload_of(TWINS, op, overload)(ranks, *map(given.get, names))
        except RuntimeError as e:  # torch's, about an error of ours
            if isinstance(e.__cause__, ArgumentError):
                raise e.__cause__ from None
            raise

    return hand_on


def names_of(op: Operator, overload: Overload) -> tuple[str, ...]:
    """The arguments of an overload; those of its twin follow the number of ranks."""
    own = (x for x in op.parameters if x not in (*LEFT_OUT[overload], *OF_ONE))
    return *own, *op.epilogue_arguments


def schema(op: Operator, overload: Overload) -> str:
    """The twin's."""
    results = "Tensor" if op.operands and not overload else "(Tensor, Tensor)"
    declared = (f"{_type(op, name)} {name}" for name in names_of(op, overload))
    return f"{op.qualified(overload)}(int ranks, {', '.join(declared)}) -> {results}"


def _type(op: Operator, name: str) -> str:
    if name in op.epilogue_arguments:
        return "float?" if isinstance(op.epilogue_arguments[name], Scalar) else "Tensor?"
    required, optional = TYPES[op.parameters[name].annotation]
    return required if op.parameters[name].default is Parameter.empty else optional


def _add(twins: Any, op: Operator, overload: Overload) -> None:
    name = op.qualified(overload)
    twins.define(schema(op, overload), tags=(torch().Tag.pt2_compliant_tag,))
    twins.impl(name, _on_own_tensors(op, overload), "CompositeExplicitAutograd")
    result, names = fake(op, overload), names_of(op, overload)

    def of_all(ranks: int, *values: Any) -> Any:
        return result(**dict(zip(names, values, strict=True)))

    torch().library.register_fake(f"{TWINS}::{name}", of_all, lib=twins)
    register = DISTRIBUTED.experimental.register_sharding
    register(overload_of(TWINS, op, overload))(_rules(op, overload))


def _on_own_tensors(op: Operator, overload: Overload) -> Callable[..., Any]:
    names, positional = names_of(op, overload), op.positional(overload)

    def run(ranks: int, *values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        args = [given.pop(x) for x in positional]
        return overload_of("gemmgen", op, overload)(*args, **given)

    return run


def _rules(op: Operator, overload: Overload) -> Callable[..., Any]:
    """As `register_sharding` takes them: of one dimension of the mesh, the placements of results and arguments."""
    names = names_of(op, overload)

    def rules(ranks: int, *values: Any) -> list[tuple[list[Any], list[Any]]]:
        of = dict(zip(names, (getattr(x, "tensor_meta", x) for x in values), strict=True))
        call = Sharding(op=op, overload=overload, given=of)
        found = []
        for size in ("", *call.divisible(ranks)):
            results, tensors = placements(call, size)
            found.append((results, [None, *map(tensors.get, names)]))
        return found

    return rules


def placements(call: Sharding, size: str) -> tuple[list[Any], dict[str, Any]]:
    """Of the results, and of the tensors by name, where ranks divide `size`; "": where nothing is divided."""
    whole = DISTRIBUTED.Replicate()
    part = DISTRIBUTED.Partial() if call.adds_up(size) else whole

    def of(sides: Sides, otherwise: Any) -> Any:
        at = [i for i, side in enumerate(sides) if side.of == size]
        return DISTRIBUTED.Shard(at[0]) if at else otherwise

    partial = call.partial or ()
    tensors = {x: of(s, part if x in partial else whole) for x, s in call.tensors.items()}
    return [of(sides, part) for sides in call.results], tensors


@cache
def overload_of(namespace: str, op: Operator, overload: Overload) -> Any:
    return getattr(getattr(getattr(torch().ops, namespace), op.name), overload or "default")
