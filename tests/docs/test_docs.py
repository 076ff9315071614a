"""The documentation holds: commands run, examples compile, links resolve, nothing goes unmentioned."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from shown import shows

from gemmgen.cli import COMMANDS, _parser, errors_command, main, rules_command
from gemmgen.errors import RuntimeUnavailable
from gemmgen.ir import nodes
from gemmgen.passes import PIPELINE

ROOT = Path(__file__).parents[2]
DOCS = [*(ROOT / f"{n}.md" for n in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY"))]
DOCS += sorted((ROOT / "docs").rglob("*.md"))
NEEDS_GPU = ("run", "bench", "casts", "moe", "host", "tune")
ALLOWED = {"doctor": {0, 3}}  # exit codes besides 0: it reports what this machine lacks
LONG = 30.0  # seconds: what may take as many shows how far it is
ELSEWHERE = {  # commands that take long, and what runs them besides
    "emit --all --check": "`make test`, before the tests",
    "serve dense -m 64 --set stages=3": "tests/tools/test_serve.py: it serves until it is interrupted",
    "repack path/of/a/model -o path/of/ours": "tests/tools/test_repack_command.py: there is no such checkpoint",
    "compile --all --json": "tests/emit/test_nvrtc.py, kernel by kernel",
    **{
        f"timeline fp8_block/base -m 4096 -n 7168 -k 2048 --device gpu {shown}": "tests/gpu/test_gpu_timeline.py"
        for shown in ("--html t.html --trace t.json", "--tiles 2:3")
    },
}
# The line before a block that is compiled, not run; of the second on one GPU neither.
NEEDS_A_GPU, NEEDS_GPUS = "<!-- needs a GPU -->", "<!-- needs several GPUs -->"
OF_RANKS = r"\b(ranks|mesh|group)\b"  # what such a block names


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, its text without common indentation, the line before it."""

    path: Path
    language: str
    text: str
    before: str


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(path: Path) -> Iterator[Fence]:
    text = path.read_text()
    pattern = (
        r"(?:^(?P<before>[^\n]*)\n)?^(?P<pad> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=pad)```$"
    )
    for found in re.finditer(pattern, text, re.M | re.S):
        lines = found["text"].splitlines()
        body = "\n".join(line.removeprefix(found["pad"]) for line in lines)
        yield Fence(path, found["language"], body, (found["before"] or "").strip())


FENCES = [fence for path in DOCS for fence in fences(path)]


def of(language: str) -> list[Fence]:
    return [f for f in FENCES if f.language == language]


# ---- commands -----------------------------------------------------------------------------


def commands() -> Iterator[list[str]]:
    """The arguments of every gemmgen command in an sh block that needs no GPU, each once."""
    seen = set()
    for line in (line for f in of("sh") for line in f.text.splitlines()):
        words = shlex.split(line, comments=True)
        if words[:3] == ["python", "-m", "gemmgen"]:
            words = words[2:]
        if words[:1] != ["gemmgen"] or tuple(words) in seen:
            continue
        if (words[1] not in NEEDS_GPU or "emulator" in words) and " ".join(
            words[1:]
        ) not in ELSEWHERE:
            seen.add(tuple(words))
            yield words[1:]


@pytest.mark.parametrize("argv", [*commands()], ids=" ".join)
def test_commands_run(checkout, capsys, argv):
    if argv[0] in ("compile", "prepare", "pack", "run") or not {
        "ptx",
        "sass",
        "resources",
        "emulator",
    }.isdisjoint(argv):
        need_nvrtc()
    if "sass" in argv:
        need_nvdisasm()
    began = time.process_time()  # of all threads, however busy the machine is
    assert main(argv) in ALLOWED.get(argv[0], {0})
    assert time.process_time() - began < LONG or argv[0] in shows()
    assert capsys.readouterr().out.strip()


def need_nvrtc():
    from gemmgen.runtime import nvrtc

    try:
        nvrtc.bindings()
    except RuntimeUnavailable as missing:
        pytest.skip(str(missing))


def need_nvdisasm():
    from gemmgen.runtime import disassemble

    try:
        disassemble.find()
    except RuntimeUnavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "command", [*NEEDS_GPU, *(x.split()[0] for x in ELSEWHERE if x[:5] != "serve")]
)
def test_what_runs_elsewhere_shows_progress(command):
    """On a GPU, or long; a server runs until it is interrupted."""
    assert command in shows()


def test_reference_says_who_shows_progress_and_what_is_counted():
    table = (ROOT / "docs/reference.md").read_text().partition("| command | counts |")[2]
    rows = re.findall(r"^\| (`.*?) \| .+ \|$", table.partition("\n\n")[0], re.M)
    assert {x for r in rows for x in re.findall(r"`(\w+)", r)} == shows()


@pytest.mark.parametrize("command", NEEDS_GPU)
def test_gpu_commands_parse(command):
    """Those that need a GPU, and those that run elsewhere, at least have the options they are given."""
    lines = [shlex.split(line, comments=True) for f in of("sh") for line in f.text.splitlines()]
    found = [words[1:] for words in lines if words[:2] == ["gemmgen", command]]
    assert found
    for argv in found:
        _parser(argv).parse_args(argv)


@pytest.mark.parametrize("command", ELSEWHERE)
def test_commands_run_elsewhere(command):
    """They are in the docs, and parse."""
    assert any(f"gemmgen {command}" in f.text for f in of("sh"))
    _parser(command.split()).parse_args(command.split())


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {
        words[1]
        for f in of("sh")
        for words in map(str.split, f.text.splitlines())
        if words[0] == "make"
    }
    assert {"demo", "test"} <= used <= targets


# ---- Python -------------------------------------------------------------------------------


def program(path: Path) -> str:
    """A page's blocks that need no GPU, one after the other: later ones use the names of earlier ones."""
    return "\n\n".join(
        f.text for f in of("python") if f.path == path and f.before not in (NEEDS_A_GPU, NEEDS_GPUS)
    )


@pytest.mark.parametrize("fence", of("python"), ids=lambda f: name(f.path))
def test_python_compiles(fence):
    compile(fence.text, name(fence.path), "exec")


PROGRAMS = {program(path): path for path in reversed(DOCS) if program(path)}  # translations once


@pytest.mark.parametrize("path", PROGRAMS.values(), ids=name)
def test_python_runs(path, tmp_path):
    need_nvrtc()
    if "sass" in program(path):
        need_nvdisasm()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GEMMGEN_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, "-c", program(path)]
    ended = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("fence", of("python"), ids=lambda f: name(f.path))
def test_what_needs_a_gpu_is_marked(fence):
    """A block that uses torch, or another library's arrays, is marked, and no other."""
    marked = fence.before in (NEEDS_A_GPU, NEEDS_GPUS)
    assert marked == bool(re.search("torch|cupy|jax", fence.text)), fence.text
    assert (fence.before == NEEDS_GPUS) == bool(marked and re.search(OF_RANKS, fence.text)), (
        fence.text
    )


# ---- excerpts and generated text ------------------------------------------------------------


def test_excerpts_are_from_generated():
    """Every line of a cuda block stands in the kernels that design.md walks through."""
    names = (
        "base",
        "two_wave_multicast_a",
        "masked_swiglu_fp8",
        "split_k",
        "indexed_rows",
        "heads",
    )
    names = (*(f"fp8_block/{n}" for n in names), "dense/tn", "dense/d_columns", "dense/slice_k")
    texts = [(ROOT / f"generated/{n}.cu").read_text() for n in names]
    emitted = {line.strip() for text in texts for line in text.splitlines()}
    quoted = [line.strip() for f in of("cuda") for line in f.text.splitlines()]
    assert quoted and not [line for line in quoted if line not in emitted]


def test_the_walk_through_a_kernel_follows_it():
    """The excerpts of docs/hopper-in-one-kernel.md are runs of lines of that kernel, from top to bottom."""
    text = (ROOT / "generated/fp8_block/base.cu").read_text()
    emitted = "\n".join(line.strip() for line in text.splitlines())
    page = ROOT / "docs/hopper-in-one-kernel.md"
    excerpts = [f.text for f in of("cuda") if f.path == page]
    at = 0
    for excerpt in excerpts:
        lines = "\n".join(line.strip() for line in excerpt.splitlines())
        at = emitted.find(lines + "\n", at)
        assert at >= 0, excerpt
    assert len(excerpts) > 20


@pytest.mark.parametrize("what", (rules_command, errors_command), ids=("rules", "errors"))
def test_catalogues_are_current(what):
    file = what.__name__.rpartition(".")[2].removesuffix("_command")
    assert (ROOT / f"docs/{file}.md").read_text() == what.markdown()


def test_the_tables_have_their_places():
    text = (ROOT / "docs/performance.md").read_text()
    assert all(f"<!-- TABLE:{table} -->" in text for table in ("fp8", "bf16"))


# ---- what must be mentioned -----------------------------------------------------------------


def statements(base: type[nodes.Stmt]) -> Iterator[str]:
    for cls in base.__subclasses__():
        yield cls.__name__
        yield from statements(cls)


def row(word: str) -> str:
    return f"\n| `{word}` |"


def test_design_lists_every_statement():
    text = (ROOT / "docs/design.md").read_text()
    assert not [s for s in statements(nodes.Stmt) if row(s) not in text]


def test_design_lists_every_pass_in_order():
    text = (ROOT / "docs/design.md").read_text()
    places = [text.find(row(p.name)) for p in PIPELINE]
    assert -1 not in places and places == sorted(places)


def test_readme_shows_the_ir_of_the_kernel_that_it_shows():
    """Both blocks are of generated/fp8_block/base, the IR's lines in their order."""
    shown = [f for f in of("text") + of("cuda") if f.path == ROOT / "README.md"]
    assert [f.language for f in shown] == ["text", "cuda"]
    for f, suffix in zip(shown, ("ir", "cu"), strict=True):
        text = (ROOT / f"generated/fp8_block/base.{suffix}").read_text()
        lines = [line.strip() for line in f.text.strip().splitlines()]
        assert "\n".join(lines) in "\n".join(line.strip() for line in text.splitlines())


def test_readme_is_one_screen():
    """A stranger decides in a minute; what is looked up is in docs/reference.md."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_reference_shows_every_command():
    used = {
        words[1]
        for f in of("sh")
        if f.path == ROOT / "docs/reference.md"
        for words in map(str.split, f.text.splitlines())
        if words[0] == "gemmgen"
    }
    assert used == set(COMMANDS)


# ---- links --------------------------------------------------------------------------------


def links(path: Path) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.M | re.S)
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"\w+:", link)]


def anchors(path: Path) -> set[str]:
    """The anchors of a file's headings, as code hosts derive them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_links_resolve(path):
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists() and target.is_relative_to(ROOT), f"{name(path)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(path)}: {link}"


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_code_paths_exist(path):
    """Back-quoted paths into the repository name files that are there (recipes add some)."""
    added = {"gemmgen/families/fp8_row.py", "gemmgen/passes/order_loads.py"}
    added |= {"templates/schedulers/linear.j2"}
    pattern = r"`((?:gemmgen|templates|tests|docs)/[\w./-]+)(?:::\w+)?`"
    for found in set(re.findall(pattern, path.read_text())) - added:
        assert (ROOT / found).exists(), f"{name(path)}: {found}"
