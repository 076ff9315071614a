"""The parts of what a C caller passes: members of the struct of arguments, tensors, kernel parameters."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.dtypes import DType

ADDRESS = "CUdeviceptr"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of the C arguments. ctype: `CUdeviceptr`, `int64_t` or `float`. says: the comment beside it.
    checks: C calls that return a status. example: in C, over the sides, what the example program sets it to,
    or of an address the bytes behind it. entry: of a table of int32, its i-th entry there."""

    name: str
    ctype: str
    says: str
    example: str
    checks: tuple[str, ...] = ()
    entry: str = ""


def pointer(name: str, says: str, size: str, alignment: int = 4, entry: str = "") -> Member:
    check = f'check_address("{name}", args->{name}, {alignment})'
    return Member(name=name, ctype=ADDRESS, says=says, example=size, checks=(check,), entry=entry)


def number(name: str, says: str, example: str, *checks: str) -> Member:
    return Member(name=name, ctype="int64_t", says=says, example=example, checks=checks)


def in_range(name: str, least: int | str, most: int | str = "INT32_MAX") -> str:
    return f'check_range("{name}", args->{name}, {least}, {most})'


def group_stride(name: str, example: str, multiple: int = 1) -> Member:
    """From group to group, of what is read or written through plain pointers. `multiple`: of so many elements."""
    says = "elements from group to group" + f", a multiple of {multiple}" * (multiple > 1)
    check = f'check_multiple("{name}", args->groups > 1 ? args->{name} : 0, {multiple})'
    checks = (in_range(name, 0, "INT64_MAX"), *(check,) * (multiple > 1))
    return number(name, says, example, *checks)


def workspace_size(x: Member) -> Member:
    """Of the workspace that x points to."""
    return number(f"{x.name}_bytes", "how large it is, at least what the pack asks for", "0")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """What a tensor map is over: `outer` rows of `inner` contiguous elements, in C over m, n and k; `grouped`: of
    each group, else of all. packed: dense matrices of the groups behind each other, which need no strides."""

    name: str
    dtype: DType
    outer: str
    inner: str
    grouped: bool = False
    packed: bool = False

    @property
    def step(self) -> int:
        """Elements in the 16 bytes of which strides are multiples."""
        return 16 // self.dtype.bytes

    @property
    def whole(self) -> str:
        """`inner`, rounded up to such a multiple."""
        return f"({self.inner} + {self.step - 1}) / {self.step} * {self.step}"

    @property
    def stride(self) -> str:
        return f"{self.name}_stride"

    @property
    def row_step(self) -> str:
        """In C, elements from row to row. No packed matrix has such rows, but the driver wants a legal map."""
        return self.inner if self.packed else f"args->{self.stride}"

    @property
    def groups(self) -> str:
        return "args->groups" if self.grouped else "1"

    @property
    def group_step(self) -> str:
        return f"args->{self.stride}_g" if self.grouped else "0"

    @property
    def steps(self) -> tuple[str, ...]:
        """Both, over the sides and the members' names."""
        found = (self.row_step, *(self.group_step,) * self.grouped)
        return tuple(x.removeprefix("args->") for x in found)

    @property
    def rank(self) -> int:
        return 2 + self.grouped

    @property
    def members(self) -> tuple[Member, ...]:
        if self.packed:
            shape = f"[{self.outer}, k of the group] of each group, one behind the other"
            return (self._address(shape, f"{self.outer} * {self.inner}"),)
        step, rows = self.step, f"{self.outer} * args.{self.stride}"
        size = f"groups * args.{self.stride}_g" if self.grouped else rows
        address = self._address(f"[{'groups, ' * self.grouped}{self.outer}, {self.inner}]", size)
        says = f"elements from row to row, a multiple of {step}"
        row = number(self.stride, says, self.whole)
        says = f"elements from group to group, a multiple of {step}"
        group = number(f"{self.stride}_g", says, rows)
        return (address, row, *(group,) * self.grouped)

    def _address(self, shape: str, size: str) -> Member:
        says = f"{self.dtype.name} {shape}, 16-byte aligned"
        size = f"{size} * {self.dtype.bytes}"
        return Member(name=self.name, ctype=ADDRESS, says=says, example=size)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A kernel parameter after the tensor maps: its name, its C type and the C expression of its value."""

    name: str
    ctype: str
    value: str
