"""What weights of 4 and 8 bits mean that are decoded into registers: see meaning."""

from __future__ import annotations

import math

from ..ir import nodes as ir
from ..ir.codings import E2M1_VALUES, LEAST_SHIFT, Coding
from ..ir.packed import Form
from ..ir.spelling import of_group
from .meaning_loads import low
from .meaning_waits import Meaning
from .parts import UNROLL, coord, first_block

BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
ROWS, COLUMNS, THREADS, STEPS = 64, 128, 128, 8  # of a block; a step: 16 columns
REGISTERS = 4  # of a step


def load_blocks(k: ir.Kernel, s: ir.LoadBlocks) -> str:
    """Block (r, c) lies behind all of the rows of blocks before, and those before it in its own."""
    smem = k.buffer(s.smem)
    row = f"min(tile.b_row / {ROWS} + i, (shape_n + {ROWS - 1}) / {ROWS} - 1)"
    number = f"((long long){row} * ((shape_k + {COLUMNS - 1}) / {COLUMNS}) + ({coord(s.k)}))"
    to = f"{s.smem} + ring.stage * {smem.stage_bytes} + {smem.row_bytes} * i"
    source = f"{of_group(k, s.tensor)} + {number} * {smem.row_bytes}"
    copy = f'"{BULK}"([{to}], [{source}], {smem.row_bytes}, [{s.barrier} + 8 * ring.stage]);'
    return f"{UNROLL}for (int i = 0; i < {smem.rows}; ++i) {{ {copy} }}"


def read_codes(k: ir.Kernel, s: ir.ReadCodes) -> str:
    block = f"{s.smem} + ring.stage * {k.buffer(s.smem).stage_bytes} + {s.wave_bytes} + warpgroup * {s.warpgroup_bytes}"
    piece = f"{block} + threadIdx.x % {THREADS} * 16 + i * {THREADS * 16 // REGISTERS}"
    codes = ROWS * COLUMNS * s.form.bits // 8
    record = f"{block} + {codes} + (warp * 8 + lane / 4) * {s.form.pair_bytes}"
    words = s.form.pair_bytes // 4 if s.beside == "records" else 0
    if s.beside == "scales":
        sets = " ".join(f"{s.records}[{r}] = $nth(x, {r});" for r in range(2))
        scales = f'const auto x = "ld.shared.v2.f32"({{$f, $f}}, [{record}]); {sets}'
        return f"{_fours(s.dst, codes // (4 * THREADS), piece)} {{ {scales} }}"
    fours = words // REGISTERS * REGISTERS
    out = [
        _fours(s.dst, codes // (4 * THREADS), piece),
        _fours(s.records, fours, f"{record} + 4 * i"),
    ]
    each = f'{s.records}[i] = int("ld.shared.s32"($r, [{record} + 4 * i]));'
    out += [f"{UNROLL}for (int i = {fours}; i < {words}; ++i) {{ {each} }}"] * (words > fours)
    return " ".join(out)


def _fours(name: str, words: int, at: str) -> str:
    sets = " ".join(f"{name}[i + {w}] = $nth(x, {w});" for w in range(REGISTERS))
    each = f'const auto x = "ld.shared.v4.s32"({{$r, $r, $r, $r}}, [{at}]); {sets}'
    return f"{UNROLL}for (int i = 0; i < {words}; i += 4) {{ {each} }}" * (words > 0)


def decode(k: ir.Kernel, s: ir.Decode) -> str:
    """Register r of a step is of the thread's first row if r is even, of its second if it is odd."""
    if s.by in ("shift", "whole"):
        return _shifted(s) if s.by == "shift" else _whole(s)
    if s.form.bits == 8:
        return _alone(s)
    form, half = s.form, STEPS // 2
    assert isinstance(form.coding, Coding)
    group = f"((i + {s.half * half}) / {form.group // 16})"
    of_row = [group, f"({group} + {COLUMNS // form.group})"]
    word = f"uint32_t({s.codes}[i + {s.half * half}])"
    out = []
    for r in range(REGISTERS):
        scale, zero = _record(s, of_row[r % 2])
        number = _number(form.coding, word, r)
        if zero:
            number = f'"sub.rn.{form.to.ptx}x2"($r, {number}, {zero})'
        out.append(f'{s.dst}[4 * i + {r}] = "mul.rn.{form.to.ptx}x2"($r, {number}, {scale});')
    return f"{UNROLL}for (int i = 0; i < {half}; ++i) {{ {' '.join(out)} }}"


def _shifted(s: ir.Decode) -> str:
    """A word is of a row and a step, which is a group: register r has its bytes' low nibbles if r < 2, else its high halves'. Of each the size is one
    of eight, the sign its highest bit."""
    steps = s.form.steps // 2
    sizes = [0 if not x else _normal(x) for x in E2M1_VALUES]
    grow = [0 if not x else 1 << s.form.to.significand - 1 for x in E2M1_VALUES]
    at = f"(i + {s.half * steps})"
    out = []
    for row in range(2):
        shift = f"(uint32_t({s.records}[{row}]) >> 8 * {at} & 0xFF)"
        eight = ", ".join(
            f"{_octets(sizes[x : x + 4])}u + {shift} * {_octets(grow[x : x + 4])}u" for x in (0, 4)
        )
        word = f"uint32_t({s.codes}[2 * {at} + {row}])"
        places = f"({word} & {0x77777777}u)"
        for r, (place, sign) in enumerate(
            ((places, word), (f"({places} >> 16)", f"({word} << 4)"))
        ):
            picked = f'"prmt.b32"($r, {eight}, {place})'
            both = f'"lop3.b32"($r, {sign}, {0x80808080}u, {picked}, {0xEA})'
            out.append(f"{s.dst}[4 * i + {row + 2 * r}] = {both};")
    return f"{UNROLL}for (int i = 0; i < {steps}; ++i) {{ {' '.join(out)} }}"


def _whole(s: ir.Decode) -> str:
    """A word is of a row and a step. Of a byte bit 7 is the sign of one code and bits 0 to 2 the rest, of the other bit 6 and bits 3 to 5. Below 0 a size is one
    more than its bits, and E4M3's sign bit 7."""
    steps = s.form.steps // 2
    at, out = f"(i + {s.half * steps})", []
    for row in range(2):
        word = f"uint32_t({s.codes}[2 * {at} + {row}])"
        for r, (sign, least) in enumerate(((7, 0), (6, 3))):
            one = f"({_moved(word, sign)} & {0x01010101}u)"
            size = f"({_moved(word, least)} & {0x07070707}u)"
            number = f'"mad.lo.u32"($r, {one}, {0x81}u, {size})'
            out.append(f"{s.dst}[4 * i + {row + 2 * r}] = {number};")
    return f"{UNROLL}for (int i = 0; i < {steps}; ++i) {{ {' '.join(out)} }}"


def _alone(s: ir.Decode) -> str:
    """A word is half a step: of its four codes the first of each half belong to the thread's first row, the others to its second."""
    word = f"uint32_t({s.codes}[i + {s.half * STEPS}])"
    numbers = (f"{s.dst}[2 * i + {r}] = {ALONE[s.by](s.form, word, r)};" for r in range(2))
    return f"{UNROLL}for (int i = 0; i < {STEPS}; ++i) {{ {' '.join(numbers)} }}"


def _sign(form: Form, word: str, row: int) -> str:
    """Codes lie one beside the other. Below the bits of 128 in BF16 have seven of them room."""
    low, high = (_masked(_moved(word, 8 * row), x, f"{0x43004300}u") for x in (0x7F, 0x80))
    return f'"sub.rn.{form.to.ptx}x2"($r, {low}, {high})'


def _offset(form: Form, word: str, row: int) -> str:
    """As it, with room for all below 1024; 128 more than the code."""
    code = _masked(_moved(word, 8 * row), 0xFF, f"{0x64006400}u")
    return f'"sub.rn.{form.to.ptx}x2"($r, {code}, {0x64806480}u)'


def _power(form: Form, word: str, row: int) -> str:
    """BF16's exponent has a bias of 127, E4M3's of 7."""
    assert isinstance(form.coding, Coding)
    power = (127 + 127 - 7 << 7) * 0x10001
    return f'"mul.rn.{form.to.ptx}x2"($r, {_number(form.coding, word, row)}, {power}u)'


def _bits(form: Form, word: str, row: int) -> str:
    """One code is in its place; of the other the sign is one place lower, the rest seven."""
    if not row:
        return _masked(word, 0xBF80, "0")
    return _masked(_moved(word, -1), 0x8000, f"({_moved(word, -7)} & {0x3F803F80}u)")


def _masked(word: str, mask: int, besides: str) -> str:
    """`mask` of both halves, and what else is in them."""
    return f'"lop3.b32"($r, {word}, {mask * 0x10001}u, {besides}, {0xEA})'


ALONE = {"sign": _sign, "offset": _offset, "power": _power, "bits": _bits}


def _normal(x: float) -> int:
    """E4M3's byte of `x` times 2^LEAST_SHIFT: three bits of fraction, an exponent from 1 on for 2^-6."""
    fraction, exponent = math.frexp(x)
    return int((2 * fraction - 1) * 8) | exponent - 1 + LEAST_SHIFT + 7 << 3


def _octets(four: list[int]) -> int:
    return int.from_bytes(bytes(four), "little")


def _record(s: ir.Decode, group: str) -> tuple[str, str]:
    """Scale and zero of a group, each in both halves."""
    form: Form = s.form
    assert isinstance(form.coding, Coding)
    if s.by == "zeros":
        both = [f'"prmt.b32"($r, {s.records}[{group}], 0, {x})' for x in (0x1010, 0x3232)]
        return both[0], both[1]
    if s.by == "scale":
        half = f"{0x1010} + {group} % 2 * {0x2222}"
        scale = f'"prmt.b32"($r, {s.records}[{group} / 2], 0, {half})'
        return scale, f"{(form.coding.magic + 8) * 0x10001}u"
    one = 1 << form.to.significand - 1
    # The record of a scale of E4M3 has three bits of a fraction, an exponent of bias 10, and 2^7 to spare; that of E8M0 has BF16's bias, for FP16 23.
    bias = 1 - form.to.min_exponent
    own = {"bf16": 127, "f16": 23}[form.to.name]
    step, least = (one >> 3, bias - 10 - 7) if form.scale == "e4m3" else (one, bias - own)
    record = f'"prmt.b32"($r, {s.records}[{group} / 4], 0, {0x4040} + {group} % 4 * {0x0101})'
    return f"({record} * {step}u + {(form.coding.factor + least) * one * 0x10001}u)", ""


def _number(code: Coding, word: str, register: int) -> str:
    """Of a code in each half its bits, where they are in a number, in the order of how far they are moved: from 16 on they come from the other half, so
    that a word is turned."""
    masks: dict[int, int] = {}
    turned: set[int] = set()
    for at, to in zip(code.places[register], code.lands, strict=True):
        masks[at - to] = masks.get(at - to, 0) | 0x10001 << to
        if at >= 16:
            turned.add(at - to)
    if code.magic:
        ((far, mask),) = masks.items()
        set_besides = code.magic * 0x10001
        return f'"lop3.b32"($r, {_moved(word, far)}, {mask}u, {set_besides}u, {0xEA})'
    parts = [f"({_moved(word, far, far in turned)} & {masks[far]}u)" for far in sorted(masks)]
    return f"({' | '.join(parts)})"


def _moved(word: str, far: int, turned: bool = False) -> str:
    if not far:
        return word
    way, back = (">>", "<<") if far > 0 else ("<<", ">>")
    return f"({word} {way} {abs(far)}{f' | {word} {back} {32 - abs(far)}' * turned})"


def mma_decoded(k: ir.Kernel, s: ir.MmaDecoded) -> str:
    b = low(s.b, k.buffer(s.b).stage_bytes, str(s.part_bytes), s.b_bits or 0)
    first = {"block": "0", "tile": f"k != {first_block(k)}", "never": "1"}[s.fresh]
    out = [f"const uint32_t b_low = {b};"]
    for i, (_, y) in enumerate(s.steps or ()):
        of_a = ", ".join(f"{s.decoded}[{REGISTERS * i + r}]" for r in range(REGISTERS))
        of_b = f'"mov.b64"($l, {{b_low + {y // 16}, {(s.b_bits or 0) >> 32}}})'
        adds = f'"setp.ne.b32"($pred, {1 if i else first}, 0)'
        to = f"$all({s.dst}, {s.instr.num_regs})"
        immediates = s.instr.register_immediates
        out.append(f'"{s.instr.mnemonic}"({to}, {{{of_a}}}, {of_b}, {adds}{immediates});')
    return " ".join(out)


DECODING: dict[type[ir.Stmt], Meaning] = {
    ir.LoadBlocks: load_blocks,
    ir.ReadCodes: read_codes,
    ir.Decode: decode,
    ir.MmaDecoded: mma_decoded,
}
