"""The front door: the functions users call, where a call that was made before is launched at once.

A function of `gemmgen.ops` checks its arguments and returns a `Call`, planned and not yet launched. `front` makes
of it what users call: it launches, and keeps what it needs to launch the same again, under a key of all that the
checks and the plan have read. It keeps no tensor, so memory is freed as if it had kept nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import wraps
from operator import itemgetter
from typing import Any, ParamSpec

from ..ir.squares import SQUARES
from ..runtime import sms
from ..runtime.arrays import Array
from ..runtime.launch import LoadedKernel, Plan
from . import dependent, invariance
from .kept import READ, TENSORS, Kept, Unreadable

CALLS = 1024  # kept of all functions together
PLANS = 16  # kept of a call: on other streams, and over other tensors that it made anew
# Outputs, by what kernels call them.
SLOTS = {"out": "d", "scale_out": "scale_d", SQUARES: SQUARES}

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """A tensor that every call makes anew. name: of the argument or kernel parameter that it stands for.
    make: another one, from that argument if it `copies` it. tensor: this call's. own: what makes one for a launch that is
    bound, where `make` finds one that the stream's launches share."""

    name: str
    make: Callable[..., Any]
    tensor: Any
    copies: bool = False
    own: Callable[[], Any] | None = None


def fresh(name: str, make: Callable[[], Any]) -> Fresh:
    return Fresh(name=name, make=make, tensor=make())


def tensor_of(x: Any) -> Any:
    """A tensor, given or Fresh."""
    return x.tensor if isinstance(x, Fresh) else x


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call, checked and planned. result: what the function returns, by the argument's name. fresh: held
    until the launch is on the stream; the allocator may then give their memory to what follows there.
    lasting: no value in the plan was read from a tensor."""

    kernel: LoadedKernel
    plan: Plan
    result: Mapping[str, Any]
    fresh: tuple[Fresh, ...]
    lasting: bool
    stream: Callable[[int], int]  # the current one on a device, by its number


class Repeat:
    """A Call without its tensors. values, everywhere: the arguments, in the order that `order` names."""

    def __init__(self, call: Call, order: tuple[str, ...]) -> None:
        made = tuple(x.name for x in call.fresh)
        given = {name: i for i, name in enumerate(order)}
        places = given | {x: len(order) + i for i, x in enumerate(made)}
        self.used = False
        self._kernel, self._plan = call.kernel, call.plan
        self._stream, self._device = call.stream, call.kernel.device
        self._slots = tuple(SLOTS.get(name, name) for name in made)
        self._makers = tuple((x.make, given[x.name] if x.copies else None) for x in call.fresh)
        result = tuple(places[name] for name in call.result)
        self._result = itemgetter(*result) if result else _nothing
        addresses = (x.tensor.data_ptr() for x in call.fresh)
        self._plans = Kept[Plan](PLANS)
        self._plans.put(_place(call.plan.stream, *addresses), call.plan)
        self._kept = self._plans.get

    def launch(self, values: tuple[Any, ...]) -> Any:
        """Launch on torch's current stream and return what the function does."""
        self.used = True
        stream = self._stream(self._device)
        if self._makers:
            return self._anew([*values], stream)
        plan = self._kept(stream) or self._moved(stream)
        if plan.start()[0]:
            self._kernel.retry(plan)
        return self._result(values)

    def _anew(self, values: list[Any], stream: int) -> Any:
        """As `launch`, with tensors that are made now."""
        place = [stream]
        for make, of in self._makers:
            made = make() if of is None else make(values[of])
            values.append(made)
            place.append(made.data_ptr())
        plan = self._kept(tuple(place)) or self._moved(*place)
        if plan.start()[0]:
            self._kernel.retry(plan)
        return self._result(values)

    def _moved(self, stream: int, *addresses: int) -> Plan:
        slots = dict(zip(self._slots, addresses, strict=True))
        plan = self._kernel.moved(self._plan, slots, stream)
        self._plans.put(_place(stream, *addresses), plan)
        return plan


def _place(stream: int, *addresses: int) -> Hashable:
    """What tells the plans of a call apart."""
    return (stream, *addresses) if addresses else stream


def _nothing(values: Any) -> None:
    """What a call without a result returns."""


KEPT = Kept[Repeat](CALLS)


def front(function: Callable[P, Any], names: tuple[str, ...] | None = None) -> Callable[P, Any]:
    """`function`, whose Call is launched and kept. Whatever else it returns or raises is passed on, and not
    kept. names: of what it takes by position, None for those in its signature. Thread-safe."""
    names = tuple(inspect.signature(function).parameters) if names is None else names

    def elsewhere(args: Any, kwargs: Any) -> Any:
        """A call over other libraries' arrays, or one that is not kept."""
        from .arrays import Untouched, over_arrays

        try:
            return over_arrays(call, names, (args, kwargs))
        except Untouched:
            return launched(function(*args, **kwargs))

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        values: tuple[Any, ...] = (*args, *kwargs.values()) if kwargs else args
        limit, same, early = sms.most, invariance.asked, dependent.asked
        facts: list[Any] = [function, limit, same, early, len(args), *kwargs]
        try:
            for x in values:
                # `kept.facts`, written out: calls of it would be a tenth of the whole
                if type(x) in TENSORS:
                    facts.append((x.data_ptr(), x.shape, x.stride(), x.dtype, x.device))
                else:
                    facts.append(READ[type(x)](x))
        except Unreadable:
            return elsewhere(args, kwargs)
        key = tuple(facts)
        repeat = KEPT.get(key)
        if repeat is not None:
            return repeat.launch(values)
        if "stream" in kwargs and any(type(x) is Array for x in values):
            return elsewhere(args, kwargs)
        made = function(*args, **kwargs)
        result = launched(made)
        if isinstance(made, Call) and made.lasting and _settings() == (limit, same, early):
            KEPT.put(key, Repeat(made, (*names[: len(args)], *kwargs.keys())))
        return result

    call.describe = function  # type: ignore[attr-defined]
    return call


def _settings() -> tuple[Any, ...]:
    """Of the process, which a call is planned by."""
    return sms.most, invariance.asked, dependent.asked


def launched(made: Any) -> Any:
    """The result of a Call, once it is on its way; anything else as it is."""
    if not isinstance(made, Call):
        return made
    made.kernel.launch(made.plan)
    return returned(made.result)


def returned(result: Mapping[str, Any]) -> Any:
    """`out`, or (`out`, `scale_out`), or None."""
    tensors = tuple(result.values())
    return tensors if len(tensors) > 1 else next(iter(tensors), None)
