"""Run an emitted kernel's text on the CPU, one thread at a time, recording every `ptx::` call.

The emitted C++ uses few constructs; each is rewritten into the Python of the same meaning. Nothing
here shares code with gemmgen: addresses, descriptors, parities and counts come from the source text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace

WAVE = 1000  # register i of the accumulator of wave w holds w * WAVE + i once a wgmma wrote it
SMEM_BASE = 1024  # where the runtime's dynamic shared memory might start; 1024-aligned


def identity(array: str, i: int) -> int:
    """Each register remembers which it is; a `part` stands for wave 0."""
    return i + WAVE * int(array.removeprefix("acc") if array.startswith("acc") else 0)


@lru_cache(maxsize=64)
def written(registers: Callable[[str, int], int], array: str, count: int) -> list[int]:
    """What a wgmma leaves in `array`."""
    return [registers(array, i) for i in range(count)]


def fragment(register: int, warp: int, lane: int) -> tuple[int, int]:
    """(row, column) of accumulator register `register` in its warpgroup's 64 x N tile (PTX ISA,
    wgmma.mma_async, D fragment)."""
    row = 16 * warp + lane // 4 + 8 * (register // 2 % 2)
    return row, register // 4 * 8 + lane % 4 * 2 + register % 2


@dataclass(frozen=True)
class Call:
    name: str
    args: tuple
    k: int | None  # the running K block, None outside the K loop


@dataclass
class Ring:
    stages: int
    stage: int = 0
    phase: int = 0

    def advance(self):
        self.stage += 1
        if self.stage == self.stages:
            self.stage, self.phase = 0, self.phase ^ 1

    def previous(self):
        return self.before(1)

    def before(self, blocks):
        return (self.stage - blocks) % self.stages

    def skip(self, blocks):
        self.phase ^= (self.stage + blocks) // self.stages & 1
        self.stage = (self.stage + blocks) % self.stages

    def back(self, blocks):
        self.skip(-blocks)


@dataclass
class OneCta:
    """A scheduler that hands out `tiles` (dicts of Tile's fields), each a run of its own."""

    tiles: list
    index: int = 0
    left: int = 0

    def begin(self, tile):
        if self.index == len(self.tiles):
            return False
        vars(tile).update(self.tiles[self.index])
        self.index, self.left = self.index + 1, 1
        return True

    def broadcast(self):
        pass

    def step(self, tile):
        self.left -= 1
        return self.left == 0

    next = begin


class Pointer(int):
    """A global pointer, in elements: addition gives an address, assignment is recorded."""

    ptx: Ptx

    name: str = "global_store"

    def __add__(self, elements):
        sum = Pointer(int(self) + elements)
        sum.ptx, sum.name = self.ptx, self.name
        return sum

    def __setitem__(self, index, value):
        self.ptx.calls.append(Call(self.name, (int(self) + index, value), None))


class Array(list):
    def __init__(self, name, size):
        super().__init__([0] * size)
        self.name = name


@dataclass
class Ptx:
    """Records calls; the few that return something return it in a form the tests can read."""

    rank: int
    scope: dict
    registers: Callable[[str, int], int]  # (array, index): what a wgmma leaves there
    returns: dict[str, Callable]  # what functions with results return
    calls: list = field(default_factory=list)

    def __getattr__(self, name):
        def call(*args):
            self.calls.append(Call(name, args, self.scope.get("k")))
            return self.returns[name](*args) if name in self.returns else 1

        return call

    def shared_address(self, _):
        return SMEM_BASE

    kept_shared_address = shared_address

    def cluster_cta_rank(self):
        return self.rank

    def descriptor_low(self, address, leading):
        return address >> 4 | leading

    def descriptor(self, low, high):
        return low | high << 32

    def mbarrier_test_wait(self, barrier, parity):
        """Never over yet: whoever looks has still to wait."""
        self.calls.append(Call("mbarrier_test_wait", (barrier, parity), self.scope.get("k")))
        return 0

    def opaque(self, pointer):
        return pointer

    def paced(self, step, x, i):
        return x

    def element_f32(self, pointer, which):
        return self.scope["__ldg"](pointer + which)

    element_bf16 = element_f16 = element_f32

    def quad_max(self, x):
        return x

    quad_sum = quad_max

    def quad_share(self, x0, x1, x2, x3, lane):
        return (x0, x1, x2, x3)[lane % 4]

    def pack_bf16(self, low, high):
        return low, high

    pack_f16 = pack_bf16

    def mma(self, d, a, b, accumulate):
        self.calls.append(Call("mma", (d.name, a, b, accumulate), self.scope.get("k")))
        d[:] = written(self.registers, d.name, len(d))


class Kernel:
    """The body of an emitted `__global__` function."""

    def __init__(self, source: str):
        self.constants = constants(source)
        _, signature, body = re.split(r'extern "C" __global__|(?<=\)) \{\n(?=    extern)', source)
        self.parameters = re.findall(r"(\w+)[,)]", signature.split("\n", 1)[1])
        lines = _Parser("{" + body).statement(0)
        self.code = compile("\n".join(lines), "<emitted kernel>", "exec")

    def run(
        self, thread: int, *, rank=0, tiles=None, registers=identity, returns=None, **arguments
    ) -> list[Call]:
        """The calls thread `thread` makes for `tiles` (default: one tile at 0, 0 with 3 K blocks)."""
        tile = {"a_row": 0, "b_row": 0, "d_row": 0, "d_col": 0, "k_blocks": 3}
        tile |= {"group": 0, "d_end": 1 << 20}
        tile |= {"k_first": 0, "k_end": 384, "slot": 0, "opens_group": False}
        scope = dict.fromkeys(self.parameters, 1 << 20) | self.constants
        scope["Shared"] = SimpleNamespace(**self.constants)
        ptx = Ptx(rank, scope, registers, returns or {})
        scope |= {name: name for name in self.parameters if name.startswith("map_")}
        scope |= {"d": Pointer(arguments.pop("d", 0))}
        scope["d"].ptx = ptx
        scope |= {"scale_d": Pointer(arguments.pop("scale_d", 0))}
        scope["scale_d"].ptx, scope["scale_d"].name = ptx, "scale_store"
        scope |= {
            "ptx": ptx,
            "threadIdx": SimpleNamespace(x=thread),
            "Array": Array,
            "Ring": lambda: Ring(self.constants["STAGES"]),
            "copy": replace,
            "Scheduler": lambda *_: OneCta([tile | t for t in tiles or [{}]]),
            "Tile": SimpleNamespace,
            "smem": None,
            "min": min,
            "fmaxf": max,
            "fabsf": abs,
            "__fdiv_rn": lambda x, y: x / y,
            "__fdividef": lambda x, y: x / y,
            "__expf": lambda x: 1.0,
            "__shfl_sync": lambda mask, value, lane: value,
            "__shfl_xor_sync": lambda mask, value, lanes: value,
            "__syncthreads": lambda: ptx.cta_sync(),
            "__ldg": lambda address: 1,
            "uint16_t": lambda x: x,
            "uint32_t": lambda x: x % 2**32,
            "__uint_as_float": lambda bits: struct.unpack("<f", struct.pack("<I", bits))[0],
            **arguments,
        }
        exec(self.code, scope)
        return ptx.calls


def constants(source: str) -> dict[str, int]:
    """Those in capitals, each worked out from those before it."""
    found: dict[str, int] = {}
    for line in re.findall(r"constexpr (?:int|uint32_t) ([A-Z][^;]*);", source):
        for part in line.split(", "):
            name, value = part.split(" = ")
            found[name] = eval(value.replace("/", "//").replace("u ", " "), {}, found)
    return found


TYPE = r"(?:const |constexpr )?(?:int|uint32_t|float|bool|auto) "


class _Parser:
    """Recursive descent over statements; expressions are rewritten by regular expressions."""

    def __init__(self, text: str):
        text = re.sub(r"//.*|#pragma.*", "", text)
        text = text.replace("ptx::k_block<__LINE__>();", "")  # a mark for the build, no instruction
        text = re.sub(r"(ptx::\w+)<([^<>()]*)>\((?!\))", r"\1(\2, ", text)
        self.text = re.sub(r"(ptx::\w+)<([^<>()]*)>\(", r"\1(\2", text)
        self.at = 0
        self.steps: list[list[str]] = []  # of the loops around: what `continue` does first

    def statement(self, depth: int) -> list[str]:
        pad = "    " * depth
        if found := re.compile(r"\s*const auto (\w+) = \[&\]\((.*)\) (?=\{\n)").match(
            self.text, self.at
        ):
            self.at = found.end()
            parameters = re.sub(r"\(&(\w+)\)\[\d+\]", r"\1", found[2]).split(",")
            names = ", ".join(part.split()[-1] for part in parameters)
            inside = self.statement(depth + 1)
            assert self._take(";")
            return [f"{pad}def {found[1]}({names}):", *inside]
        if self._take("{"):
            lines = []
            while not self._take("}"):
                lines += self.statement(depth)
            own = [pad + f"ring = {x}" for x in ("Ring()", "outer")]
            if depth and own[0] in lines:  # hides the role's until the block ends
                lines = [f"{pad}outer = ring", *lines, own[1]]
            return lines
        if self._take("for ("):
            return self._loop(self._until(")"), depth)
        if self._take("while ("):
            return self._loop(f"; {self._until(')')};", depth)
        if self._take("switch ("):
            return [f"{pad}match {_expression(self._until(')'))}:", *self._cases(depth + 1)]
        if self._take("if ("):
            lines = [f"{pad}if {_expression(self._until(')'))}:", *self.statement(depth + 1)]
            if self._take("else"):
                lines += [f"{pad}else:", *self.statement(depth + 1)]
            return lines
        if self._take("continue;"):
            return [pad + line for line in (*self.steps[-1], "continue")]
        return [pad + line for line in _simple(self._until(";"))]

    def _cases(self, depth: int) -> list[str]:
        lines = []
        assert self._take("{")
        while self._take("case "):
            lines += [f"{'    ' * depth}case {self._until(':')}:", *self.statement(depth + 1)]
            assert self._take("break;"), "no fall-through"
        assert self._take("}")
        return lines

    def _loop(self, header: str, depth: int) -> list[str]:
        pad = "    " * depth
        if ":" in header:  # for (auto& r : registers) r = 0
            self.statement(depth + 1)
            name = header.split(":")[1].strip()
            return [f"{pad}{name}[:] = [0] * len({name})"]
        init, condition, step = (part.strip() for part in header.split(";"))
        self.steps.append([line for part in _split(step) for line in _simple(part)])
        body = self.statement(depth + 1)
        steps = [f"{pad}    {line}" for line in self.steps.pop()]
        start = [pad + line for line in _simple(init)] if init else []
        forget = [f"{pad}k = None"] if init.startswith("int k") else []
        return [*start, f"{pad}while {_expression(condition)}:", *body, *steps, *forget]

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _take(self, token: str) -> bool:
        self._skip()
        found = self.text.startswith(token, self.at)
        self.at += len(token) * found
        return found

    def _until(self, end: str) -> str:
        """Up to `end` outside all brackets, and past it."""
        start, depth = self.at, 0
        while depth or self.text[self.at] != end:
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(self.text[self.at], 0)
            self.at += 1
        self.at += 1
        return self.text[start : self.at - 1].strip()


def _split(text: str) -> list[str]:
    """At commas outside all brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(c, 0)
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _simple(text: str) -> list[str]:
    if text.startswith("extern"):
        return ["pass"]
    if found := re.fullmatch(r"const auto (\w+) = \[&\]\(int (\w+)\) \{ return (.*); \}", text):
        return [f"{found[1]} = lambda {found[2]}: {_expression(found[3])}"]
    if found := re.fullmatch(r"(?:float|int) (\w+)\[(\d+)\]", text):
        return [f"{found[1]} = Array({found[1]!r}, {found[2]})"]
    if found := re.fullmatch(r"(?:Ring|Scheduler) (\w+) = (\w+)", text):
        return [f"{found[1]} = copy({found[2]})"]
    if found := re.fullmatch(r"(Ring|Tile|Scheduler) (\w+)(\(.*\))?", text):
        return [f"{found[2]} = {found[1]}{found[3] or '()'}"]
    if found := re.fullmatch(r"(\+\+|--)(\w+(?:\[\d\])?)", text):
        return [f"{found[2]} {found[1][0]}= 1"]
    return [_expression(part) for part in _split(re.sub(f"^{TYPE}", "", text))]


def _expression(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    text = text.replace("::", ".").replace("(long long)", "").replace("&&", " and ")
    text = re.sub(r"&(?=map_)", "", text).replace("/", "//")
    text = re.sub(r"(\d)f\b", r"\1", text) if "0x" not in text else text
    text = re.sub(r"\(([^()?]+) \? ([^():]+) : ([^()]+)\)", r"(\2 if \1 else \3)", text)
    text = re.sub(r"\((__ldg\([^?]+) < 0 \? 0 : (.+)\)", r"(0 if \1 < 0 else \2)", text)
    text = re.sub(r"\((\S.*) \? (.+) : (__uint_as_float\(\w+\))\)", r"(\2 if \1 else \3)", text)
    return re.sub(r"= ([^=?]+) \? ([^:]+) : (.+)", r"= \2 if \1 else \3", text)
