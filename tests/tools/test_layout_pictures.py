"""`gemmgen layout`: what is drawn is what the emitted text does (tests/support/device.py runs it), what the emulator
does with the PTX, and what the hardware's rules in tests/tools/test_layout.py say."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from device import SMEM_BASE, WAVE, Kernel, fragment
from exhibits import exhibit
from kernels import DENSE, DENSE_F32, FP8, LOGITS, VARIETY
from test_explain import check_html, contrast
from test_layout import box_addresses, loaded, mn_major_addresses, wgmma_addresses

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.emulator.spaces import SHARED_BASE
from gemmgen.errors import ArgumentError
from gemmgen.formats.format import named
from gemmgen.formats.packing import pack
from gemmgen.formats.weights import Weights, joined, scale_type
from gemmgen.gallery import GALLERY, artifact, path_of
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.expr import ACC
from gemmgen.ir.nodes import Smem
from gemmgen.ir.packed import forms
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.see import html, svg, text
from gemmgen.see.accumulator import fragments
from gemmgen.see.banks import bank, count, total
from gemmgen.see.layout_page import VIEWS, layout
from gemmgen.see.operand import Read, operand
from gemmgen.see.output import output
from gemmgen.see.page import Cell, Grid, Page, Table
from gemmgen.see.picture import layout as shown
from gemmgen.see.scales import scale_reads

WARP = 32


def compiled(name: str):
    """An artifact of the gallery, or of tests/support/kernels.py."""
    return artifact(exhibit(name)) if "/" in name else compile_to_source(*VARIETY[name])


# ---- operands -----------------------------------------------------------------------------

OPERANDS = (
    *("fp8_block/base", "dense/unswizzled_ab", "dense/wide_k", "dense/tn"),
    *("fp8_block/n192_multicast_b", "fp8_block/swap_ab", "dense-tt-unswizzled", "fp8-parts-split"),
)


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("which", ("a", "b"))
def test_each_byte_lies_where_tma_writes_it(name, which):
    """Of K block 0, which ring stage 0 holds; `loaded` runs the emitted loads of every rank."""
    a = compiled(name)
    o = operand(a.kernel, which)
    tags = loaded(a, o.smem.name, 0)
    row, byte = np.mgrid[: o.where.shape[0], : o.where.shape[1]]
    assert (tags[SMEM_BASE + o.where] == (row << 32 | byte)).all()
    assert (np.unique(o.where).size, o.where.size) == (o.smem.stage_bytes,) * 2


@pytest.mark.parametrize("name", (*OPERANDS, "dense-ping-pong", "dense-ping-pong-swap"))
def test_reads_are_those_of_the_emitted_descriptors(name):
    a = compiled(name)
    kernel, device = a.kernel, Kernel(a.source)
    found = {which: operand(kernel, which) for which in "ab"}
    swapped = kernel.buffer("smem_d").along == "n"
    first, second = (found[x] for x in ("ba" if swapped else "ab"))
    for warpgroup in range(kernel.consumers):
        calls = [c for c in device.run(128 * warpgroup) if c.name == "mma" and c.k == 0]
        mine = [r for r in first.reads if r.warpgroup in (None, warpgroup)]
        assert calls and check_reads(mine, first.major, 64, {c.args[1] for c in calls})
        rows = kernel.instr.n
        assert check_reads(second.reads, second.major, rows, {c.args[2] for c in calls})


def check_reads(reads, major, rows, descriptors) -> bool:
    """The same descriptors, and the same bytes by the PTX ISA's rules."""
    where = {"k": wgmma_addresses, "mn": mn_major_addresses}[major]
    emitted = {tuple(where(d, rows).reshape(-1)) for d in descriptors}
    drawn = {tuple((SMEM_BASE + r.where).reshape(-1)) for r in reads}
    return emitted == drawn and len(drawn) == len(reads)


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("which", ("a", "b"))
def test_core_matrices_cover_the_tile(name, which):
    """Every 16 bytes are in one core matrix of one step, and each is 8 x 16 different bytes."""
    o = operand(compiled(name).kernel, which)
    pieces = [int(at) for r in o.reads for core in r.core_matrices for at in core]
    assert sorted(pieces) == sorted(o.where.reshape(-1)[::16].tolist())
    assert {len(core) for r in o.reads for core in r.core_matrices} == {8}
    assert o.banks.accesses == o.smem.stage_bytes // 128


@pytest.mark.parametrize("which", ("a", "b"))
def test_operands_have_no_conflicts(which):
    for e in (e for e in GALLERY[::5] if which == "a" or not e.problem.weights):
        banks = operand(lower(e.problem, e.config), which).banks
        assert banks.conflicts == 0 and banks.accesses == banks.wavefronts > 0


def test_rows_of_128_bytes_without_a_swizzle_would_conflict():
    """By hand: eight rows of one column begin at one bank, so each of their pieces takes a turn."""
    r = operand(lower(DENSE, Config()), "a").reads[0]
    row, byte = np.mgrid[:64, :32]
    plain = Read(**{**vars(r), "where": (row * 128 + byte).astype(np.int64)})
    banks = count(plain.core_matrices, 16)
    assert (banks.accesses, banks.wavefronts, banks.fewest) == (16, 16 * 8, 16)


def test_another_operand_is_refused():
    with pytest.raises(ArgumentError) as e:
        operand(lower(DENSE, Config()), "c")
    assert e.value.argument == "operand"


# ---- the accumulator ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    (
        *("fp8_block/base", "fp8-parts-waves", "dense/swap_ab"),
        *("dense-ping-pong", "dense-ping-pong-three", "dense-ping-pong-swap"),
    ),
)
def test_accumulators_are_wgmma_s_fragments(name):
    """Each element of the product's tile once, where the PTX ISA says."""
    kernel = compiled(name).kernel
    swapped = kernel.buffer("smem_d").along == "n"
    seen = np.zeros((kernel.block.m, kernel.block.n), int)
    for f in fragments(kernel):
        base = (f.wave * kernel.consumers + (f.warpgroup or 0)) * 64
        for register in range(f.count):
            for thread in range(128):
                row, column = fragment(register, thread // WARP, thread % WARP)
                at = (base + row, column)[:: -1 if swapped else 1]
                assert at == (f.row[register, thread], f.column[register, thread])
        seen[f.row, f.column] += 1
    assert (seen == 1).all()


# ---- the output ---------------------------------------------------------------------------

OUTPUTS = (
    *("fp8_block/base", "fp8_block/n144", "dense/padded_d", "fp8_block/m64_n32_f16"),
    *("fp8_block/n104_f32", "dense/f16_f32", "fp8_block/swap_ab", "fp8_1d1d/swap_ab"),
    *("fp8_block/two_wave_multicast_a", "dense/swiglu", "fp8_block/fp8_out", "dense-swap-padded"),
    *("dense/swiglu_fp8", "dense-paired-f32-waves", "dense/d_columns"),
    *("dense-d-columns", "dense-d-columns-add", "fp8-d-columns-swizzle"),
    *("dense-ping-pong", "dense-ping-pong-columns", "dense-ping-pong-swap"),
    *("dense-ping-pong-padded", "fp8-ping-pong-masked"),
)
MATHS = {"__fdividef": lambda x, y: x, "__expf": float}
STORES = ("store_matrix", "store_shared", "store_element", "store_pair")


def stores_of(device: Kernel, thread: int) -> list:
    calls = device.run(thread, tiles=[{"k_blocks": 1}], **MATHS)
    return [c for c in calls if c.name.startswith(STORES)]


@pytest.mark.parametrize("name", OUTPUTS)
def test_stores_are_those_of_the_emitted_text(name):
    """Of two warps of every warpgroup: each lane's address, in order, and which registers go there."""
    a = compiled(name)
    kernel, device, o = a.kernel, Kernel(a.source), output(a.kernel)
    plain = a.problem.epilogue == ACC and not a.problem.quantised
    plain = plain and (a.problem.family == "dense" or not a.config.swap_ab)  # scales by reference
    for warpgroup in range(kernel.consumers):
        for warp in (0, 3):
            first = 128 * warpgroup + WARP * warp
            calls = [stores_of(device, t) for t in range(first, first + WARP)]
            drawn = [s for s in o.stores if (s.warpgroup, s.warp) == (warpgroup, warp)]
            assert len(drawn) == len(calls[0])
            for s, same in zip(drawn, zip(*calls, strict=True), strict=True):
                lanes = len(s.where)
                assert [c.args[0] for c in same[:lanes]] == list(SMEM_BASE + s.where)
                check_registers(s, same[0], plain)


def check_registers(s, call, plain: bool) -> None:
    """A plain epilogue stores accumulator registers, which know their number (tests/support/device.py: a promoted
    one only that of its part, times scales of 1)."""
    values = [v for x in call.args[1:] for v in (x if isinstance(x, tuple) else (x,))]
    assert len(values) == s.registers[1] - s.registers[0]
    assert not plain or [v % WAVE for v in values] == [*range(*s.registers)]


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_element_of_d_is_staged_once(name):
    """`place` of the element that the fragment puts at a lane's address, and beside it."""
    o = output(compiled(name).kernel)
    seen = np.zeros(o.where.shape, int)
    for s in o.stores:
        for i in range(s.size // o.smem.dtype.bytes):
            seen[s.row, s.column + i] += 1
            assert (o.where[s.row, s.column + i] == s.where + i * o.smem.dtype.bytes).all()
    held, times = np.unique(o.where, return_counts=True)
    d = o.smem
    assert (seen == 1).all() and held.size == d.stages * d.rows * d.cols
    assert (times == o.where.size // held.size).all(), "places that take turns serve alike"


@pytest.mark.parametrize("name", OUTPUTS)
def test_boxes_of_d_are_those_of_the_emitted_text(name):
    a = compiled(name)
    kernel, o, device = a.kernel, output(a.kernel), Kernel(a.source)
    emitted = set()
    for warpgroup in range(kernel.consumers):
        for c in device.run(128 * warpgroup, tiles=[{"k_blocks": 1}], **MATHS):
            if c.name.startswith(("tma_store", "tma_add")):
                inner, outer = kernel.map(c.args[0]).box
                size = inner * o.smem.dtype.bytes
                at = box_addresses(c.args[1], size, outer, o.smem.swizzle or 0)[:, ::16]
                emitted.add((c.args[3], c.args[2], tuple(at.reshape(-1))))
    drawn = {(b.row, b.column, tuple((SMEM_BASE + b.where).reshape(-1))) for b in o.boxes}
    assert drawn == emitted and len(drawn) == len(o.boxes)
    for b in o.boxes:  # what a box takes is what lies there
        unit, (rows, pieces) = 16 // o.smem.dtype.bytes, b.where.shape
        piece = o.where[b.row : b.row + rows, b.column : b.column + pieces * unit : unit]
        assert (piece == b.where).all()


@pytest.mark.parametrize(
    "name", ("dense-ping-pong", "dense-ping-pong-columns", "dense-ping-pong-swap")
)
def test_each_warpgroup_that_takes_turns_stores_in_a_copy_of_its_own(name):
    """The second takes the second tile, and writes it where the first would, a copy further."""
    a = compiled(name)
    device, o = Kernel(a.source), output(a.kernel)
    tiles = [{"k_blocks": 1}, {"k_blocks": 1}]
    for warp in (0, 3):
        drawn = [s for s in o.stores if s.warp == warp]
        calls = [
            [
                c
                for c in device.run(128 + WARP * warp + lane, tiles=tiles)
                if c.name.startswith(STORES)
            ]
            for lane in range(WARP)
        ]
        assert drawn and len(drawn) == len(calls[0])
        for s, same in zip(drawn, zip(*calls, strict=True), strict=True):
            further = SMEM_BASE + s.where + o.smem.copy_bytes
            assert [c.args[0] for c in same[: len(s.where)]] == list(further)


# ---- bank conflicts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "addresses, size, expected",
    [
        (range(0, 128, 4), 4, (1, 1)),  # a word in each bank
        ([0] * 32, 4, (1, 1)),  # one word for all
        (range(0, 32 * 128, 128), 4, (32, 1)),  # one bank, 32 words
        (range(0, 32 * 8, 8), 4, (2, 1)),  # every second bank, twice
        (range(0, 32 * 16, 16), 16, (4, 4)),  # 512 bytes in a row
        (range(0, 32 * 256, 256), 16, (32, 4)),  # one quad of banks
        (range(0, 32 * 272, 272), 16, (4, 4)),  # rows four banks further each
        (range(0, 32 * 8, 8), 8, (2, 2)),
    ],
)
def test_conflicts_by_hand(addresses, size, expected):
    found = count([list(addresses)], size)
    assert (found.wavefronts, found.fewest) == expected
    assert found.conflicts == expected[0] - expected[1]


def changed_d(kernel, **changes):
    d: Smem = replace(kernel.buffer("smem_d"), **changes)
    return replace(kernel, smem=tuple(d if s.name == d.name else s for s in kernel.smem))


def test_padding_and_swizzle_remove_what_plain_rows_cost():
    """D of 128 BF16 columns. By hand: eight rows of 256 bytes begin at one bank, so every matrix takes 8
    turns instead of 1; 16 bytes of padding, or the swizzle, spread them over all banks."""
    padded = lower(DENSE, Config(swizzle_d=0))
    assert padded.buffer("smem_d").pad == 8
    matrices = 2 * 4 * 8 * 4  # warpgroups, warps, stmatrix.x4, matrices
    plain = output(changed_d(padded, pad=0)).banks
    assert (plain.fewest, plain.wavefronts) == (matrices, 8 * matrices)
    for kernel in (padded, lower(DENSE, Config())):
        banks = output(kernel).banks
        assert (banks.accesses, banks.fewest, banks.conflicts) == (matrices // 4, matrices, 0)


@pytest.mark.parametrize("swizzle, factor", [(128, 2), (64, 2), (32, 1)])
def test_pairs_of_fp32(swizzle, factor):
    """By hand, 16 lanes of 8 bytes are 4 rows of 32 bytes, one turn at best. A swizzle of 128 bytes exchanges
    their two pieces between rows 0 and 1, which so share 8 banks; one of 64 between rows 0 and 2. In one of 32
    the four rows are one line of 128 bytes."""
    banks = output(lower(DENSE_F32, Config(stages=2, swizzle_d=swizzle))).banks
    accesses = 2 * 4 * 64 // 2  # warpgroups, warps, pairs of registers
    assert (banks.accesses, banks.fewest, banks.wavefronts) == (
        accesses,
        2 * accesses,
        factor * 2 * accesses,
    )


def test_scales_are_read_without_conflicts():
    reads = scale_reads(lower(FP8, Config()))
    assert len(reads) == 2 * 4 * 2  # warpgroups, warps, two rows
    assert total(r.banks for r in reads).conflicts == 0
    eight_rows = [bank(int(at)) for at in reads[0].where]
    assert eight_rows == [i // 4 for i in range(32)]  # a quad shares a row


@pytest.mark.parametrize(
    "name",
    (
        *("fp8_block/base", "fp8_1d1d/wgrad", "fp8_block/swap_ab"),
        *("fp8-ping-pong-masked", "fp8-1d1d-ping-pong-k_flat"),
    ),
)
def test_each_lane_reads_the_scales_that_the_text_does(name):
    a = compiled(name)
    device, reads = Kernel(a.source), scale_reads(a.kernel)
    names = {4: "load_shared_float", 8: "load_shared_floatx2"}
    for thread in (0, 5, 31, 77, 128 * a.kernel.consumers - 1):
        calls = device.run(thread, returns={"load_shared_float": float})
        emitted = sorted(
            (size, c.args[0])
            for c in calls
            for size, n in names.items()
            if c.name == n and c.k == 0
        )
        mine = [
            r
            for r in reads
            if r.warpgroup in (None, thread // 128) and r.warp in (None, thread // WARP % 4)
        ]
        drawn = sorted((r.size, SMEM_BASE + int(r.where[thread % WARP])) for r in mine)
        assert emitted == drawn


# ---- the emulator -------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "name", ("fp8_block/base", "fp8_1d1d/wgrad", "dense/tn", "fp8_block/swap_ab")
)
def test_the_emulator_touches_what_is_drawn(name, monkeypatch, capsys):
    """One tile of PTX: the boxes that its loads write, the descriptors that its products read, the addresses
    and the bank conflicts of its stores."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.emulator import bulk_loads, wgmma
    from gemmgen.emulator.stats import Stats

    boxes, descriptors, stores = set(), set(), []
    region, decode, access = bulk_loads.region, wgmma.decode_descriptor, Stats.shared_access

    def see_region(*args):
        found = region(*args)
        boxes.add(tuple((found.chunks * 16 - SHARED_BASE).tolist()))
        return found

    def see_descriptor(value):
        found = decode(value)
        descriptors.add(replace(found, start=found.start - SHARED_BASE))
        return found

    def see_access(self, i, addresses, size, lanes):
        if i.parts[0] in ("stmatrix", "st"):
            for warp in np.unique(lanes // WARP):
                stores.append(tuple((addresses[lanes // WARP == warp] - SHARED_BASE).tolist()))
        access(self, i, addresses, size, lanes)

    monkeypatch.setattr(bulk_loads, "region", see_region)
    monkeypatch.setattr(wgmma, "decode_descriptor", see_descriptor)
    monkeypatch.setattr(Stats, "shared_access", see_access)
    kernel = artifact(exhibit(name)).kernel
    side = (kernel.block.m * kernel.cluster.m, kernel.block.n * kernel.cluster.n)
    shape = ["-m", str(side[0]), "-n", str(side[1]), "-k", str(kernel.block.k)]
    assert main(["emulate", name, *shape, "--stats", "--json"]) == 0
    sites = json.loads(capsys.readouterr().out)["stats"]["shared_memory"]

    operands = [operand(kernel, which) for which in "ab"]
    for o in operands:
        assert {tuple(b.where.reshape(-1).tolist()) for b in o.boxes} <= boxes
    assert {r.descriptor for o in operands for r in o.reads} == descriptors
    o = output(kernel)
    assert set(stores) == {tuple(s.where.tolist()) for s in o.stores}
    mine = [s for s in sites if s["instruction"].startswith(("stmatrix", "st.shared"))]
    tiles = kernel.cluster.size
    assert sum(s["executions"] for s in mine) == tiles * o.banks.accesses
    assert sum(s["wavefronts"] for s in mine) == tiles * o.banks.wavefronts
    assert sum(s["bank_conflicts"] for s in mine) == tiles * o.banks.conflicts


# ---- pages --------------------------------------------------------------------------------


# Besides: operands that no tensor map brings, rows that threads copy and packed weights.
PAGES = (
    "dense/tn",
    "fp8_block/indexed_rows",
    "w4a8_block/int4",
    "w4a16/mxfp4_grouped",
    "w8a16/int8",
)


@pytest.mark.parametrize("name", [*PAGES, *(path_of(e) for e in GALLERY[::6])])
@pytest.mark.parametrize("what", VIEWS)
def test_pages(name, what):
    kernel = artifact(exhibit(name)).kernel
    if what == "scales" and not scale_reads(kernel):
        with pytest.raises(ArgumentError) as e:
            layout(kernel, what)
        assert e.value.argument == "scales"
        return
    page = layout(kernel, what)
    lines = text.render(page).splitlines()
    assert max(map(len, lines[1:])) <= 100
    tags = check_html(html.render(page)).tags
    grids = sum(isinstance(b, Grid) for b in page.blocks)
    assert tags.count("svg") == tags.count("details") == grids
    check_svg(svg.render(page))


def check_svg(document: str) -> ElementTree.Element:
    """Well formed; everything has a size and lies inside the picture; each label is inside a cell."""
    root = ElementTree.fromstring(document)
    width, height = (float(root.get(side) or 0) for side in ("width", "height"))
    space = "{http://www.w3.org/2000/svg}"
    for g in root.iter(f"{space}g"):
        left, top = map(float, (g.get("transform") or "")[len("translate(") : -1].split())
        for rect in g.iter(f"{space}rect"):
            x, y, w, h = (float(rect.get(k) or 0) for k in ("x", "y", "width", "height"))
            assert w > 0 and h > 0 and x >= 0 and y >= 0
            assert left + x + w <= width and top + y + h <= height
        for label in g.iter(f"{space}text"):
            assert 0 <= float(label.get("x") or 0) <= width - left
    return root


def test_the_picture_of_a_says_what_lies_where():
    page = layout(lower(DENSE, Config()), "A")
    memory, rows, order = (b for b in page.blocks if isinstance(b, Grid))
    assert [c.label for c in memory.cells[1][:2]] == ["m1 k8", "m1 k0"]  # chunk 0 ^ line 1
    assert memory.rows[1] == "+128" and memory.columns[1] == "b4"
    assert [c.label for c in rows.cells[3]][:4] == ["b12", "b8", "b4", "b0"]
    assert [c.label for c in order.cells[1]][:4] == ["0.2", "0.3", "1.2", "1.3"]
    descriptors = next(b for b in page.blocks if isinstance(b, Table) and "descriptor" in b.title)
    assert ("0", "1", "0", "3", "8,288", "64", "16", "1,024") in descriptors.rows


@pytest.mark.parametrize(
    "name, weights",
    (
        ("w4a16/int4", "int4_128_bf16"),
        ("w4a16/mxfp4_grouped", "e2m1_32_e8m0"),
        ("w8a16/int8", "int8_column_f32"),
    ),
)
def test_the_picture_of_packed_weights_is_as_they_are_packed(name, weights):
    tables = {b.title: b for b in layout(compiled(name).kernel, "B").blocks}
    word = tables["The first word of thread 0: where its codes lie"]
    form = named(weights)
    assert isinstance(word, Table) and len(word.rows) == 32 // form.bits
    for row in word.rows:
        bits = sum(1 << int(b) for b in row[4].split())
        assert changed(weights, int(row[1]), int(row[2])) == {0: bits}
    lines = tables["A block's codes, the first 16 lines of 128 bytes"]
    assert isinstance(lines, Grid)
    cells = [cell for line in lines.cells for cell in line]
    for word, cell in enumerate(cells):
        row, column = (int(x[1:]) for x in cell.label.split())
        assert [*changed(weights, row, column)] == [4 * word]  # 16 bytes a cell


def changed(weights: str, row: int, column: int) -> dict[int, int]:
    """Of a block whose codes are 0 but for that one, which has all bits: what is not 0, by its word."""
    form = named(weights)
    codes = np.zeros((64, 128), np.uint8)
    codes[row, column] = (1 << form.bits) - 1
    scales = np.zeros((64, 128 // form.group_of(128)), scale_type(form))
    whole = Weights(format=form, codes=joined(codes, form), scales=scales)
    words = pack(whole).blocks[0, 0, : forms(form.bits, BF16)[weights].codes_bytes].view(np.uint32)
    return {int(at): int(words[at]) for at in np.flatnonzero(words)}


def test_packed_weights_are_no_operand_in_boxes():
    kernel = compiled("w4a16/int4").kernel
    with pytest.raises(ArgumentError, match="not packed"):
        operand(kernel, "b")
    assert operand(kernel, "a").reads


def test_the_picture_of_the_accumulator():
    (grid,) = (b for b in layout(lower(DENSE, Config()), "acc").blocks if isinstance(b, Grid))
    assert (
        grid.cells[9][3].label == "T5 3"
    )  # row 9 is lane / 4 = 1, 8 below; column 3 is lane % 4 = 1


def test_the_picture_of_d():
    grids = [b for b in layout(lower(DENSE, Config()), "D").blocks if isinstance(b, Grid)]
    assert grids[1].cells[2][3].label == "T18 8"  # row 2, columns 24 on: the second stmatrix


def test_what_warpgroups_that_take_turns_have_of_a_tile():
    kernel = compiled("dense-ping-pong").kernel
    (rows,) = (b.rows for b in layout(kernel, "acc").blocks if isinstance(b, Table))
    assert [(r[0], r[2], r[4]) for r in rows] == [
        *(("acc0", "each", "0-63"), ("acc1", "each", "64-127"))
    ]
    lines = text.render(layout(kernel, "D"))
    assert "2 copies, one for each consumer warpgroup" in lines
    assert "Of warpgroup 0; the next one's copy lies 16,384 bytes on." in lines
    assert "copies" not in text.render(layout(lower(DENSE, Config()), "D"))
    reads = layout(kernel, "A").blocks[-2]
    assert isinstance(reads, Table) and {r[1] for r in reads.rows} == {"all"}


def test_grids_as_svg():
    g = Grid(
        title="a < b", columns=("x",), rows=("r",), cells=((Cell(label="&", hue=9, tip="<"),),)
    )
    root = check_svg(svg.render(Page(title="P", blocks=(g,))))
    words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["a < b", "x", "r", "&"]
    assert 'class="hue1"' in svg.picture(g) and 'aria-label="a &lt; b"' in svg.picture(g)


@pytest.mark.parametrize("ink, hues", [(svg.INK[0], svg.LIGHT), (svg.INK[1], svg.DARK)])
def test_labels_contrast_with_their_cells(ink, hues):
    assert min(contrast(ink, hue) for hue in hues) >= 4.5


# ---- the command --------------------------------------------------------------------------


def test_command(capsys, tmp_path):
    assert main(["layout", "fp8_block/base", "A"]) == 0
    assert "Matrix descriptors" in capsys.readouterr().out
    assert main(["layout", "dense", "D", "--set", "swizzle_d=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"].startswith("D of gemmgen_dense")
    for option, check in (("--svg", check_svg), ("--html", check_html)):
        file = tmp_path / f"picture{option}"
        assert main(["layout", "fp8_block/base", "acc", option, str(file)]) == 0
        check(file.read_text())
        assert main(["layout", "fp8_block/base", "acc", option, str(file)]) == 0  # its own: again
        capsys.readouterr()


def test_command_refuses(capsys, tmp_path):
    assert main(["layout", "fp8_block/base", "C"]) == 2
    assert "WHAT='C'" in capsys.readouterr().err
    assert main(["layout", "dense", "scales", "--set", "stages=3"]) == 2
    file = tmp_path / "notes.svg"
    file.write_text("mine")
    assert main(["layout", "dense", "A", "--svg", str(file)]) == 2 and file.read_text() == "mine"


def test_a_picture_for_notebooks_is_the_command_s(tmp_path, capsys):
    kernel = compiled("fp8_block/base").kernel
    picture = shown(kernel, "D")
    file = tmp_path / "d.svg"
    assert main(["layout", "fp8_block/base", "D", "--svg", str(file)]) == 0
    assert picture.svg == picture._repr_svg_() == file.read_text()
    capsys.readouterr()
    assert main(["layout", "fp8_block/base", "D"]) == 0
    assert str(picture) == capsys.readouterr().out
    assert repr(picture) == f"Picture({layout(kernel, 'D').title!r})"
    with pytest.raises(ArgumentError, match="what='d'"):
        shown(kernel, "d")


def test_a_kernel_that_stages_no_d_has_no_picture_of_it():
    with pytest.raises(ArgumentError, match=r"^D=.* must stage D in shared memory"):
        output(lower(LOGITS, Config(swap_ab=True, block_m=128, block_n=128)))
