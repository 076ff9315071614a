"""A kernel ready to run: one closure per instruction, operands as numbered slots of lane arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UninitializedRead, UnsupportedInstruction
from .parse import size_of
from .spaces import GLOBALS, RANK_SHIFT, SHARED_BASE
from .syntax import Function, Imm, Instruction, Operand, Reg, Special, Symbol

if TYPE_CHECKING:
    from .group import Group

Op = Callable[["Group"], "int | None"]
Handler = Callable[[Instruction, "Scope"], Op]

POISON = 0xCD  # of registers that nothing wrote
ALIGNED = 64  # bytes

NUMPY: dict[str, Any] = {
    "pred": np.bool_,
    **{f"{k}{n}": getattr(np, f"uint{n}") for k in "ub" for n in (8, 16, 32, 64)},
    **{f"s{n}": getattr(np, f"int{n}") for n in (8, 16, 32, 64)},
    "f16": np.float16,
    "bf16": np.uint16,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "f32": np.float32,
    "f64": np.float64,
}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What a slot holds: a register seen as a type, a constant, or a special register."""

    kind: str  # "reg", "const", "shared" (a variable's address in this CTA), "special"
    name: str
    type: str
    value: Any = None


@dataclass(kw_only=True)
class Scope:
    """What decoding an instruction needs: names -> slots, labels -> positions."""

    function: Function
    slots: dict[tuple[Any, ...], int] = field(default_factory=dict)
    table: list[Slot] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)  # variable -> address
    globals: dict[str, int] = field(default_factory=dict)
    current: Instruction | None = None  # being decoded
    read: dict[str, Instruction | None] = field(
        default_factory=dict
    )  # register -> its first reader
    written: set[str] = field(default_factory=set)
    defined: list[set[str]] = field(default_factory=list)  # registers that each instruction writes

    def __post_init__(self) -> None:
        shared, at_global = SHARED_BASE, GLOBALS
        variables = self.function.variables.values()
        for v in sorted(variables, key=lambda v: v.size == 0):  # dynamic shared memory comes last
            if v.space == "shared":
                shared = -(-shared // v.align) * v.align
                self.shared[v.name] = shared
                shared += v.size
            else:
                at_global = -(-at_global // v.align) * v.align
                self.globals[v.name] = at_global
                at_global += v.size
        self.static_end = shared

    def src(self, operand: Operand, kind: str) -> int:
        """The slot of an operand read as `kind`."""
        match operand:
            case Reg(name):
                self.read.setdefault(name, self.current)
                return self._register(name, kind)
            case Imm(bits, width):
                return self._constant(_immediate(bits, width, kind), kind)
            case Special(name):
                return self._slot(
                    ("special", name, kind), Slot(kind="special", name=name, type=kind)
                )
            case Symbol(name):
                if name in self.shared:
                    return self._slot(
                        ("shared", name, kind),
                        Slot(kind="shared", name=name, type=kind, value=self.shared[name]),
                    )
                return self._constant(self.address(name), kind)
        raise UnsupportedInstruction(f"operand {operand} read as .{kind}")

    def dst(self, operand: Operand, kind: str) -> int:
        if not isinstance(operand, Reg):
            raise UnsupportedInstruction(f"operand {operand} as a destination")
        self.written.add(operand.name)
        self.defined[-1].add(operand.name)
        return self._register(operand.name, kind)

    def check_registers(self) -> None:
        """Raises UninitializedRead for a register that is read and that no instruction writes."""
        for name, reader in self.read.items():
            if name not in self.written:
                raise UninitializedRead(f"{reader}: nothing writes {name}")

    def type_of(self, operand: Operand) -> str:
        """The declared type of a register."""
        assert isinstance(operand, Reg)
        return self.function.registers[operand.name]

    def wide(self, operand: Operand, kind: str) -> str:
        """`kind` at the width of the register: results narrower than it are extended into it."""
        bits = 8 * size_of(self.type_of(operand))
        return f"{kind[0] if kind[0] in 'us' else 'u'}{bits}"

    def address(self, name: str) -> int:
        """Of a variable or parameter in its own space."""
        for p in self.function.params:
            if p.name == name:
                return p.offset
        if name in self.shared:
            return self.shared[name]
        if name in self.globals:
            return self.globals[name]
        raise UnsupportedInstruction(f"unknown name {name}")

    def label(self, operand: Operand) -> int:
        if isinstance(operand, Symbol) and operand.name in self.function.labels:
            return self.function.labels[operand.name]
        raise UnsupportedInstruction(f"{operand} is no label")

    def _register(self, name: str, kind: str) -> int:
        declared = self.function.registers[name]
        if size_of(kind) > size_of(declared):
            raise UnsupportedInstruction(f"{name} (.{declared}) read as .{kind}")
        key = ("reg", name, NUMPY[kind])
        return self._slot(key, Slot(kind="reg", name=name, type=kind))

    def _constant(self, value: Any, kind: str) -> int:
        key = ("const", value.tobytes() if hasattr(value, "tobytes") else value, kind)
        return self._slot(key, Slot(kind="const", name="", type=kind, value=value))

    def _slot(self, key: tuple[Any, ...], slot: Slot) -> int:
        if key not in self.slots:
            self.slots[key] = len(self.table)
            self.table.append(slot)
        return self.slots[key]


def _immediate(bits: int, width: int, kind: str) -> Any:
    """A literal as the type the instruction wants."""
    if kind == "pred":
        return np.bool_(bits != 0)
    if width == 0:
        size = size_of(kind)
        if kind in ("f32", "f64"):
            return NUMPY[kind](bits)
        raw = (bits & (1 << 8 * size) - 1).to_bytes(size, "little")
        return np.frombuffer(raw, NUMPY[kind])[0]
    if width == 64 and size_of(kind) == 4:  # a decimal literal in an f32 instruction
        value = np.frombuffer(bits.to_bytes(8, "little"), np.float64)[0].astype(np.float32)
        return value.view(NUMPY[kind]) if kind != "f32" else value
    return np.frombuffer(bits.to_bytes(width // 8, "little"), NUMPY[kind])[0]


@dataclass(frozen=True, kw_only=True)
class Program:
    """`ops[i]` executes `body[i]`; one more op at the end exits."""

    function: Function
    scope: Scope
    body: tuple[Instruction, ...]
    ops: tuple[Op, ...]
    layouts: dict[int, Layout] = field(default_factory=dict)  # by a group's lanes

    def bind(self, group: Group) -> list[Any]:
        """One array of lanes per slot. Registers start as garbage, as on the hardware."""
        lanes = group.lanes
        if lanes not in self.layouts:
            self.layouts[lanes] = _layout(self.scope, lanes)
        layout = self.layouts[lanes]
        arrays, raw = layout.arrays.copy(), layout.registers.copy()
        for i, (dtype, at, stride) in layout.views.items():
            arrays[i] = np.ndarray((lanes,), dtype, raw, at, (stride,))
        for i, slot in layout.of_group.items():
            arrays[i] = _of_group(slot, group)
        return arrays


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the slots of a group of so many lanes lie. arrays: of the constants, shared by all groups, None for
    other slots; registers: all of a group's, as they start; views: by slot, a register's type, offset, and bytes
    from lane to lane; of_group: by slot, what depends on the group."""

    arrays: list[Any]
    registers: Any
    views: dict[int, tuple[Any, int, int]]
    of_group: dict[int, Slot]


def _layout(scope: Scope, lanes: int) -> Layout:
    declared = scope.function.registers
    names = dict.fromkeys(s.name for s in scope.table if s.kind == "reg")
    starts: dict[str, int] = {}
    end = 0
    for name in names:
        starts[name] = end
        end += -(-lanes * size_of(declared[name]) // ALIGNED) * ALIGNED
    registers = np.full(end, POISON, np.uint8)
    for name, start in starts.items():
        if declared[name] == "pred":
            registers[start : start + lanes] = 1
    arrays: list[Any] = [None] * len(scope.table)
    views, of_group = {}, {}
    for i, slot in enumerate(scope.table):
        dtype = NUMPY[slot.type]
        if slot.kind == "reg":
            views[i] = (np.dtype(dtype), starts[slot.name], size_of(declared[slot.name]))
        elif slot.kind == "const":
            arrays[i] = np.full(lanes, slot.value, dtype)
        else:
            of_group[i] = slot
    return Layout(arrays=arrays, registers=registers, views=views, of_group=of_group)


def _of_group(slot: Slot, group: Group) -> Any:
    dtype = NUMPY[slot.type]
    if slot.kind == "special":
        return special(slot.name, group).astype(dtype)
    return np.full(group.lanes, slot.value | group.cta.rank << RANK_SHIFT, dtype)


def special(name: str, group: Group) -> Any:
    """The value of %`name` in each lane, uint64."""
    cta, lanes = group.cta, np.arange(group.lanes, dtype=np.uint64)
    thread = lanes + np.uint64(group.first)
    directives = group.program.function.directives
    values: dict[str, Any] = {
        "tid.x": thread,
        "laneid": lanes % np.uint64(32),
        "warpid": thread // np.uint64(32),
        "ntid.x": cta.block,
        "ctaid.x": cta.index,
        "nctaid.x": cta.grid,
        "cluster_ctarank": cta.rank,
        "cluster_ctaid.x": cta.rank,
        "cluster_nctarank": cta.cluster.size,
        "cluster_nctaid.x": cta.cluster.size,
        "clusterid.x": cta.index // cta.cluster.size,
        "nclusterid.x": cta.grid // cta.cluster.size,
        "is_explicit_cluster": cta.cluster.size > 1 or "reqnctapercluster" in directives,
        "smid": cta.index,
        "nwarpid": 64,
        "WARP_SZ": 32,
        "dynamic_smem_size": cta.shared_bytes,
        **{f"{n}.{d}": 0 for n in ("tid", "ctaid", "clusterid", "cluster_ctaid") for d in "yz"},
        **{f"{n}.{d}": 1 for n in ("ntid", "nctaid", "nclusterid", "cluster_nctaid") for d in "yz"},
    }
    if name not in values:
        raise UnsupportedInstruction(f"special register %{name}")
    return np.broadcast_to(np.asarray(values[name], np.uint64), (group.lanes,))
