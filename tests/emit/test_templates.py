"""Templates hold no decisions, match the statements one to one and keep PTX in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jinja2.meta
import jinja2.nodes
import pytest
from values import values

import gemmgen.emit.fragments
import gemmgen.emit.names
import gemmgen.emit.wire
import gemmgen.ir.spelling
from gemmgen.emit import PTX, STATEMENTS, environment, snake, templates
from gemmgen.emit.names import ADDRESS, RANKS, VERBS
from gemmgen.ir import nodes
from gemmgen.ir.blocks import Parts
from gemmgen.passes.check_complete import LOWERED
from gemmgen.problem import OUTPUTS

MAX_STATEMENTS = 74  # classes
MAX_LINES = {
    "kernel.cu.j2": 120,
    "stmts.j2": 270,
    "stmts_output.j2": 120,
    "stmts_values.j2": 155,
    "stmts_exchange.j2": 100,
    "ptx_fragments.j2": 75,
    "pack/load.c.j2": 130,
    "pack/launch.c.j2": 90,
    "pack/driver.c.j2": 100,
    "pack/example.c.j2": 105,
    "pack/header.h.j2": 70,
    "pack/checks.c.j2": 100,
    "ptx.j2": 300,
    "ptx_registers.j2": 300,
}
GENERATED = sorted((Path(__file__).parents[2] / "generated").rglob("*.cu"))
TEMPLATES = sorted(templates().rglob("*.j2"))
NAMES = [str(path.relative_to(templates())) for path in TEMPLATES]

SYNC = r"mbarrier\.|mapa\.|st\.async|wgmma\.|cp\.async|\bfence\.|bar\.sync|setmaxnreg\.|barrier\.cluster|\basm\b|stmatrix\."

# What the holes in `ptx::` calls of stmts.j2 can hold, by the expression in the hole.
HOLES = {
    "address": tuple(ADDRESS.values()),
    "s.direction": ("inc", "dec"),
    "wait_kind(s)": ("read", "all"),
    "verb(s)": tuple(VERBS.values()),
    "rank(s)": tuple(RANKS.values()),
    "registers[s.src].dtype.cuda": ("float", "int"),
    "registers[s.dst].dtype.cuda": ("float", "int"),
    "wire(s.src).word": ("float", "int", "uint32_t"),
    "wire(s.dst).word": ("float", "int", "uint32_t"),
    "smem[s.smem].dtype.ptx": tuple(d.ptx for d in OUTPUTS if d.bytes == 2),
    "smem[s.smem].dtype.cuda": tuple({d.cuda for d in OUTPUTS}),
    "store_element_ smem[s.smem].dtype.ptx": tuple(d.ptx for d in OUTPUTS),
    "f.rows": ("bf16", "f16"),
    "kernel.to": ("bf16", "f16"),
    "s.form.to": ("bf16", "f16"),
    **dict.fromkeys(
        ("low_ f.rows", "low_ f.columns", "high_ f.rows", "high_ f.columns"), ("e4m3", "e5m2")
    ),
    "store_shared_ smem[s.smem].dtype.cuda": tuple({d.cuda for d in OUTPUTS if d.bytes == 4}),
}


def read(name: str) -> str:
    return (templates() / name).read_text()


def parsed(text: str) -> jinja2.nodes.Template:
    return environment().parse(text)


def branches(text: str) -> list[int]:
    conditional = jinja2.nodes.If, jinja2.nodes.CondExpr, jinja2.nodes.And, jinja2.nodes.Or
    found = [n.lineno for kind in conditional for n in parsed(text).find_all(kind)]
    filtered = [n.lineno for n in parsed(text).find_all(jinja2.nodes.For) if n.test]
    return found + filtered


@pytest.mark.parametrize("name", NAMES)
def test_templates_do_not_branch(name):
    assert not branches(read(name)), f"{name}: move the choice into the IR"


@pytest.mark.parametrize(
    "text",
    ("//% if x\n//% endif\n", "${a if x else b}", "${x or y}", "//% for a in b if a\n//% endfor\n"),
)
def test_a_branch_would_be_seen(text):
    assert branches(text)


@pytest.mark.parametrize("name", NAMES)
def test_templates_stay_small(name):
    assert len(read(name).splitlines()) <= MAX_LINES.get(name, 60)


def concrete(base: type[nodes.Stmt]) -> Iterator[type[nodes.Stmt]]:
    """Every statement class that a lowered kernel may hold."""
    for cls in base.__subclasses__():
        if cls not in LOWERED:
            yield cls
        yield from concrete(cls)


def test_statements_stay_few():
    """A new meaning of a statement that is there is a field of it (docs/adr/0036-fewer-statements.md). Parts only hold
    statements: nothing spells them, and a lowered kernel has none."""
    abstract = [cls for cls in LOWERED if not issubclass(cls, Parts)]
    assert len([*concrete(nodes.Stmt), *abstract]) <= MAX_STATEMENTS


def macros() -> list[jinja2.nodes.Macro]:
    return [m for name in STATEMENTS for m in parsed(read(name)).find_all(jinja2.nodes.Macro)]


def test_statements_and_macros_match_one_to_one():
    wanted = [name for cls in concrete(nodes.Stmt) for name in spelled(cls)]
    assert sorted(m.name for m in macros()) == sorted(wanted)


def spelled(cls: type[nodes.Stmt]) -> list[str]:
    """The macros of a class: one, or one for each value of the field by which it is spelled."""
    name = snake(cls.__name__)
    if not cls.spelled_by:
        return [name]
    return [f"{name}_{value}" for value in values(cls, cls.spelled_by)]


def test_every_macro_takes_the_statement_only():
    assert {tuple(a.name for a in m.args) for m in macros()} == {("s",)}


@pytest.mark.parametrize("name", NAMES)
def test_ptx_is_spelled_in_its_own_templates_only(name):
    spelled = bool(re.search(SYNC, read(name)))
    assert spelled == (name in PTX)


def test_syncthreads_is_printed_by_one_statement_only():
    """And in the kernels that are none of the IR, where the threads of a CTA meet."""
    places = {name: read(name).count("__sync") for name in NAMES}
    known = {"stmts.j2": 1, "casts/cta_max.j2": 1, "routing/rows.j2": 2, "routing/sum.j2": 1}
    known |= {f"largest/{x}.j2": 1 for x in ("sums", "gather", "rows")}
    known |= {"largest/count.j2": 3, "largest/decide.j2": 4}
    assert {name: n for name, n in places.items() if n} == known


def called(text: str) -> set[str]:
    """The PTX-layer functions a template calls, with every hole filled in every way."""
    out = set()
    for name in re.findall(r"ptx::((?:\w|\$\{[^}]*\})+)", text):
        pieces = re.split(r"\$\{([^}]*)\}", name)
        names = [pieces[0]]
        for hole, rest in zip(pieces[1::2], pieces[2::2], strict=True):
            fillings = HOLES.get(f"{pieces[0]} {hole}") or HOLES[hole]
            names = [n + filling + rest for n in names for filling in fillings]
        out |= set(names)
    return out


def test_calls_and_ptx_functions_match_one_to_one():
    library = "\n".join(map(read, PTX))
    defined = re.findall(r"__device__ __forceinline__ [\w ]+\*? (\w+)\(", library)
    assert len(set(defined)) == len(defined)
    calls = set().union(*(called(read(name)) for name in NAMES if name not in PTX))
    for module in (
        gemmgen.emit.names,
        gemmgen.emit.fragments,
        gemmgen.emit.wire,
        gemmgen.ir.spelling,
    ):
        calls |= set(re.findall(r"ptx::(\w+)", Path(module.__file__).read_text()))
    assert calls == set(defined)


def test_ptx_layer_knows_nothing_of_gemm():
    """Only the instruction's own shape reaches it, never the kernel or a statement."""
    undeclared = [jinja2.meta.find_undeclared_variables(parsed(read(name))) for name in PTX]
    assert set().union(*undeclared) <= {"instr", "range"}


# ---- what an emitted kernel says of itself ---------------------------------------------------------

SAID = re.compile(
    r"^\s*(?:if \([^)]*\) )?(?:for \(.*?\) )?(?:ptx::(?:mbarrier_(?!test)|wgmma_(?:fence|commit|wait)|fence_|store_wait|setmaxnreg)"
    r"|watchdog_wait|__syncthreads|ptx::cluster_wait|ptx::named_barrier)"
)


@pytest.mark.parametrize("path", GENERATED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_barrier_fence_and_wait_has_its_reason_above(path):
    """In the kernel's body; several lines that do one thing have one."""
    lines = path.read_text().partition('extern "C" __global__')[2].splitlines()
    said = [i for i, line in enumerate(lines) if SAID.search(line)]
    assert len(said) > 10
    bare = [lines[i].strip() for i in said if not explained(lines, i)]
    assert not bare


def explained(lines: list[str], i: int) -> bool:
    """Whether a comment stands above line `i`, or above those before it that go with it."""
    while (
        SAID.search(lines[i])
        or "cluster_arrive()" in lines[i]
        or lines[i].lstrip().startswith("for")
    ):
        i -= 1
    return lines[i].lstrip().startswith("//")


LOOP = re.compile(r"for \(int (\w+) = (\d+); \1 < (\d+); (?:\+\+\1|\1 \+= (\d+))\)")


@pytest.mark.parametrize("path", GENERATED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_nothing_stands_there_that_does_nothing(path):
    """No 0 in a sum, no loop that runs once or never."""
    text = path.read_text()
    assert not re.findall(r"\+ 0\b(?!x|\.)|(?<![\w.])0 \+", text)
    trips = {m[0]: len(range(int(m[2]), int(m[3]), int(m[4] or 1))) for m in LOOP.finditer(text)}
    assert not [loop for loop, n in trips.items() if n < 2]


def test_lines_of_the_first_kernel_to_read_are_short():
    """But for lists of operands."""
    lines = (GENERATED[0].parents[1] / "fp8_block/base.cu").read_text().splitlines()
    assert not [x for x in lines if len(x) > 120 and not re.match(r'\s*"\{%0, |\s*: "\+f"', x)]


def test_numbers_of_a_kernel_have_names():
    """Of what is in shared memory, of bytes that land, of descriptors."""
    body = (GENERATED[0].parents[1] / "fp8_block/base.cu").read_text().partition('extern "C"')[2]
    assert not re.findall(r"0x4\d+|\b33280\b|\b16384\b|\b199\d\d\d\b", body)
