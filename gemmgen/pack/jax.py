"""A pack as a target of XLA's FFI, for JAX: which arrays a call has, of what dtype and sides, and which arguments of the C function they become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import UnsupportedProblem
from ..ir.argument_names import parameter, row_stride
from ..ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32, DType
from ..ir.expr import Argument, DeviceScalar, PerElement, PerRow, Scalar, arguments, fold
from ..ir.packed import ROWS, Form
from ..problem import Problem
from ..runtime.torch_tensors import NAMES
from .fields import BLOCKS_K, BLOCKS_N, Interface
from .members import Tensor

# XLA's types.
XLA = {BF16: "BF16", F16: "F16", F32: "F32", E4M3: "F8E4M3FN", E5M2: "F8E5M2", S8: "S8", S32: "S32"}
XLA_BYTES, BYTES = "U8", "uint8"  # of packed weights, which are of no dtype of operands
DENSE = {  # by vector of scales: its sides, and by member how far they lie apart in a dense array
    "scale_a": (("m", BLOCKS_K), {"scale_a_stride_m": BLOCKS_K, "scale_a_stride_k": "1"}),
    "scale_b": ((BLOCKS_N, BLOCKS_K), {"scale_b_stride_n": BLOCKS_K, "scale_b_stride_k": "1"}),
}


@dataclass(frozen=True, kw_only=True)
class Array:
    """One that JAX passes or is given, dense. name: of the Python argument and of the member of the C arguments. dtype: None: bytes. sides: in C over m, n and k.
    strides: by member, in C too. laid: the sides as the target is given them, where rows must begin at multiples of 16 bytes: the call pads."""

    name: str
    dtype: DType | None
    sides: tuple[str, ...]
    strides: tuple[tuple[str, str], ...] = ()
    laid: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The sides that the target sees."""
        return self.laid or self.sides

    @property
    def xla(self) -> str:
        return XLA[self.dtype] if self.dtype else XLA_BYTES

    @property
    def jax(self) -> str:
        """As torch calls the dtype, too."""
        return NAMES[self.dtype] if self.dtype else BYTES

    @property
    def python(self) -> str:
        """Its sides, in Python."""
        return _python(self.sides)

    @property
    def pad(self) -> str:
        """By how many elements its rows are padded, in Python."""
        return f"{self.laid[-1]} - {self.sides[-1]}".replace(" / ", " // ")

    @property
    def says(self) -> str:
        return f"{self.jax} [{', '.join(self.sides)}]"


@dataclass(frozen=True, kw_only=True)
class Target:
    """inputs, outputs: in order. numbers: float32 that are given beside them. packed: B is weights, of whose blocks N is no side: the Python function is told
    its `columns`, and the target reads them off D, of which each is that of `fold` columns of the product."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    numbers: tuple[str, ...]
    packed: bool
    fold: int

    @property
    def told(self) -> tuple[str, ...]:
        """What the Python function is told besides."""
        return ("columns",) * self.packed

    @property
    def rows(self) -> int:
        """Of packed weights, those of a block."""
        return ROWS

    @property
    def multiple(self) -> str:
        """What is asked of `columns` besides, in words."""
        return f", a multiple of {self.fold}" * (self.fold > 1)

    @property
    def sided(self) -> tuple[Array, ...]:
        """The inputs that say sides of the product."""
        return self.inputs[: 1 if self.packed else 2]

    @property
    def ranked(self) -> dict[str, str]:
        """The arrays of two sides that say those of the product, as C++ begins to ask of them."""
        found = {x.name: f"{x.name}." for x in self.sided}
        return found | {x.name: f"{x.name}->" for x in self.outputs[:1] if self.packed}

    @property
    def padded(self) -> tuple[Array, ...]:
        return tuple(x for x in self.inputs if x.laid)

    @property
    def side(self) -> dict[str, str]:
        """m, n and k, in C++."""
        found: dict[str, str] = {}
        for x in self.sided:
            sides = {s: f"{x.name}.dimensions()[{i}]" for i, s in enumerate(x.sides)}
            found = sides | found
        if self.packed:
            found["n"] = f"d->dimensions()[1]{f' * {self.fold}' * (self.fold > 1)}"
        return {s: found[s] for s in "mnk"}


def check_target(p: Problem) -> None:
    """Raise UnsupportedProblem for several GEMMs in a launch, and a D that is added to, which JAX's arrays are not."""
    for name, value, plain in (
        ("grouping", p.grouping, "none"),
        ("accumulate", p.accumulate, False),
    ):
        if value != plain:
            said = f"a target for JAX cannot be of {name}={value}: must be {plain}"
            raise UnsupportedProblem(said)


def target(p: Problem, face: Interface) -> Target:
    """Raises as `check_target`, and for kernels that need a workspace."""
    check_target(p)
    if face.sums:
        said = "a target for JAX cannot be of kernels with stream: their workspace outlives a call"
        raise UnsupportedProblem(said)
    tensors = {t.name: t for t in face.tensors}
    outputs = [t for t in face.outputs if t.name not in tensors]
    return Target(
        inputs=(*_operands(p, face, tensors), *_arguments(p)),
        outputs=(_array(tensors["d"]), *map(_array, outputs)),
        numbers=tuple(parameter(x.name) for x in arguments(p.epilogue) if isinstance(x, Scalar)),
        packed=p.form is not None,
        fold=fold(p.epilogue),
    )


def _operands(p: Problem, face: Interface, tensors: dict[str, Tensor]) -> Iterator[Array]:
    """A and B, then their scales."""
    members = {x.name for x in face.members}
    blocks = {"b": _blocks(p.form)} if p.form else {}
    for name in ("a", "b", "scale_a", "scale_b"):
        if name in tensors:
            # Of scales the rows run along M or N, which are of any length.
            yield (_padded if name in DENSE else _array)(tensors[name])
        elif name in blocks:
            yield blocks[name]
        elif name in members:
            sides, strides = DENSE[name]
            yield Array(name=name, dtype=F32, sides=sides, strides=(*strides.items(),))


def _blocks(form: Form) -> Array:
    sides = (f"(n + {ROWS - 1}) / {ROWS}", BLOCKS_K, f"{form.block_bytes}")
    return Array(name="b", dtype=None, sides=sides)


def _array(t: Tensor) -> Array:
    strides = ((t.stride, t.inner),)
    return Array(name=t.name, dtype=t.dtype, sides=(t.outer, t.inner), strides=strides)


def _padded(t: Tensor) -> Array:
    return replace(_array(t), laid=(t.outer, t.whole), strides=((t.stride, t.whole),))


def _python(sides: tuple[str, ...]) -> str:
    return ", ".join(x.replace(" / ", " // ") for x in sides) + "," * (len(sides) == 1)


def _arguments(p: Problem) -> Iterator[Array]:
    """What the epilogue reads in memory."""
    for x in arguments(p.epilogue):
        name = parameter(x.name)
        match x:
            case Scalar():
                continue
            case PerElement(_, dtype):
                strides = ((row_stride(x.name), "n"),)
                yield Array(name=name, dtype=dtype, sides=("m", "n"), strides=strides)
            case _:
                yield Array(name=name, dtype=F32, sides=_side(x))


def _side(x: Argument) -> tuple[str]:
    if isinstance(x, DeviceScalar):
        return ("1",)
    return ("m",) if isinstance(x, PerRow) else ("n",)
