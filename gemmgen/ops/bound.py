"""Bound launches: one call, checked once, launched again and again over the same tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from ..errors import ArgumentError
from ..ir.argument_names import parameter
from ..ir.squares import SQUARES
from ..runtime.launch import LoadedKernel, Plan
from ..runtime.torch_tensors import check_apart, on_stream
from .front import SLOTS, Call, returned
from .kept import facts

OPERANDS = ("a", "b", "q", "kv", "pairs")  # as functions call them
ALIGNMENT = 16  # bytes; no argument has to be aligned to more
FACTS = ("address", "shape", "strides", "dtype", "device")  # as `facts` returns them


@dataclass(frozen=True, kw_only=True, eq=False)
class Launch:
    """One call of a function of `gemmgen.ops`, bound to its tensors and a stream. Immutable and thread-safe.

    tensors: by the argument's name, `out` and `scale_out` among them, allocated if they were not given;
    held as long as this is. Calling it launches, and returns what the function returns. A CUDA graph that
    captured a launch needs it alive, as it needs the tensors.
    """

    tensors: Mapping[str, Any]
    result: Any
    kernel: LoadedKernel
    plan: Plan
    slots: Mapping[str, tuple[str, ...]]  # what the kernel calls each of the tensors
    makers: Mapping[str, Callable[[], Any]]  # of its workspaces, by the kernel's parameter
    held: tuple[Any, ...] = ()

    def launch(self) -> Any:
        """Start the kernel on the bound stream and return `out`, or (`out`, `scale_out`). Nothing is
        checked, copied or allocated. Raises LaunchError."""
        if self.plan.start()[0]:
            self.kernel.retry(self.plan)
        return self.result

    __call__ = launch

    @property
    def stream(self) -> int:
        """The raw handle of the stream it launches on."""
        return self.plan.stream

    def with_stream(self, stream: Any) -> Launch:
        """The same on `stream`, a torch.cuda.Stream of the tensors' device or a raw handle. Launches on
        different streams write the same `out`: their order is the caller's concern. A kernel that needs a
        workspace has another one there, made on `stream`.

        In a CUDA graph only launches on the capturing stream are captured. Raises ArgumentError.
        """
        handle = getattr(stream, "cuda_stream", stream)
        if not isinstance(handle, int) or isinstance(handle, bool) or handle < 0:
            raise ArgumentError("stream", stream, "must be a torch.cuda.Stream or its raw handle")
        index = getattr(stream, "device_index", self.kernel.device)
        if index != self.kernel.device:
            raise ArgumentError("stream device", index, f"must be {self.kernel.device}")
        with on_stream(handle, index) if self.makers else nullcontext():
            made = {name: make() for name, make in self.makers.items()}
        addresses = {name: x.data_ptr() for name, x in made.items()}
        plan = self.kernel.moved(self.plan, addresses, handle)
        return replace(self, plan=plan, held=(*self.held, stream, *made.values()))

    def rebind(self, **tensors: Any) -> Launch:
        """The same over other tensors: each of the shape, strides, dtype, device and alignment of the one
        that it replaces, and sharing memory with another argument only where that did. Only addresses
        are encoded anew. Raises ArgumentError."""
        for name, tensor in tensors.items():
            self._check(name, tensor)
        now = {**self.tensors, **tensors}
        if _shared(now) != _shared(self.tensors):
            allowed = "must share memory with other arguments where the bound ones do, only there"
            raise ArgumentError(", ".join(tensors), _shared(now), allowed)
        _check_outputs(now)
        addresses = {slot: x.data_ptr() for name, x in tensors.items() for slot in self.slots[name]}
        plan = self.kernel.moved(self.plan, addresses, self.stream)
        outputs = {name: now[name] for name in SLOTS if name in now}
        return replace(self, tensors=now, result=returned(outputs), plan=plan)

    def _check(self, name: str, tensor: Any) -> None:
        if name not in self.tensors:
            allowed = f"is no tensor of this launch; those are {', '.join(self.tensors)}"
            raise ArgumentError(name, type(tensor).__name__, allowed)
        bound = self.tensors[name]
        if not hasattr(tensor, "data_ptr"):
            raise ArgumentError(name, type(tensor).__name__, "must be a torch tensor")
        for fact, now, then in zip(FACTS[1:], facts(tensor)[1:], facts(bound)[1:], strict=True):
            if now != then:
                raise ArgumentError(f"{name} {fact}", now, f"must be {then}, as bound")
        if (tensor.data_ptr() - bound.data_ptr()) % ALIGNMENT:
            allowed = f"must lie as the bound one does to multiples of {ALIGNMENT} bytes"
            raise ArgumentError(name, hex(tensor.data_ptr()), allowed)


def bind(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Launch:
    """The call `function(*args, **kwargs)` of a function of `gemmgen.ops`, checked now and not yet launched,
    on torch's current stream; for another, see `Launch.with_stream`.

    An `out` that is not given is allocated once. Numbers, `config` and the limit of SMs are those of now;
    what group tables, scales and operands hold is read by every launch. As with a CUDA graph, tensors used on
    another stream than torch knows of must not be freed before it is done: keep the launch.
    Raises what the function does, and ArgumentError where a launch would have to do more than launch: scales
    of layout "row" where they are copied, a tensor given for a number, a call with nothing to compute.
    """
    describe = getattr(function, "describe", None)
    if describe is None:
        raise ArgumentError("function", function, "must be a function of gemmgen.ops")
    call = describe(*args, **kwargs)
    if not isinstance(call, Call):
        raise ArgumentError("function", function.__name__, "has nothing to launch: a side is 0")
    copied = ", ".join(x.name for x in call.fresh if x.copies)
    if copied:
        allowed = (
            "must have layout 'mn', or a config with lane_scales: a bound launch copies nothing"
        )
        raise ArgumentError(copied, "row", allowed)
    if not call.lasting:
        raise ArgumentError("arguments", "a tensor", "must be a number: a bound launch reads none")
    given = inspect.signature(describe).bind(*args, **kwargs).arguments
    more = given.pop("arguments", {})
    tensors = {n: x for n, x in (given | more).items() if hasattr(x, "data_ptr")}
    slots = {n: (parameter(n),) if n in more else (SLOTS.get(n, n), parameter(n)) for n in tensors}
    tensors |= call.result
    makers = {x.name: x.own or x.make for x in call.fresh if x.name not in call.result}
    launch = Launch(
        tensors=tensors,
        result=returned(call.result),
        kernel=call.kernel,
        plan=call.plan,
        slots=slots | {name: (SLOTS[name],) for name in call.result},
        makers=makers,
    )
    return launch.with_stream(launch.stream) if makers else launch


def _shared(tensors: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pairs of arguments that begin at one address."""
    at = {name: x.data_ptr() for name, x in tensors.items()}
    return tuple((x, y) for x, y in combinations(at, 2) if at[x] == at[y])


def _check_outputs(tensors: Mapping[str, Any]) -> None:
    """That no output overlaps an operand or the other."""
    operands = {name: tensors[name] for name in OPERANDS if name in tensors}
    check_apart("out", tensors["out"], operands)
    if "scale_out" in tensors:
        others = {**operands, "out": tensors["out"]}
        check_apart("scale_out", tensors["scale_out"].mT, others)
    if SQUARES in tensors:
        squares, others = tensors[SQUARES], {**operands, "out": tensors["out"]}
        check_apart(SQUARES, squares.reshape(*squares.shape, 1), others)
