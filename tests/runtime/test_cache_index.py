"""Kernels found on the disk by what is asked for: the same as built, never stale, never trusted blindly."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cache_faults.campaign import campaign
from cache_faults.damage import OF_LAUNCHES
from cache_faults.fakes import compiled, recipe
from cache_faults.stores import (
    LAUNCHES,
    ask_launch,
    asked,
    hostile_launches,
    kernel,
    launch_key,
    machine,
)

import gemmgen
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.epilogues import PerElement
from gemmgen.errors import CacheError
from gemmgen.gallery import GALLERY, artifact, path_of
from gemmgen.ir.dtypes import BF16, F32
from gemmgen.ir.expr import ACC, Const
from gemmgen.ops import building
from gemmgen.problem import Problem
from gemmgen.runtime import cache, cache_index, fingerprint, launch_record, nvrtc
from gemmgen.runtime.launch import grid, workspace_bytes
from gemmgen.runtime.tensor_map import Matrix, describe

R, OTHER = recipe(0), recipe(1)
DENSE = Problem(family="dense", a=BF16, b=BF16)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", "")
    return tmp_path / "cache"


def count(r, folder) -> int:
    """How often the compiler builds `r` when it is asked for once."""
    built = []
    assert ask_launch(r, lambda: built.append(r), folder) == compiled(r)
    return len(built)


def launches(folder):
    return sorted(p for p in folder.iterdir() if p.suffix == ".launch")


# ---- found again ----------------------------------------------------------------------------


def test_a_kernel_is_built_once(folder):
    assert [count(R, folder) for _ in range(3)] == [1, 0, 0]
    assert [count(OTHER, folder), count(R, folder)] == [1, 0]
    assert len(launches(folder)) == 2 and launches(folder)[0].stat().st_mode & 0o777 == 0o600


def test_a_directory_to_share_is_read_only(folder, tmp_path, monkeypatch):
    count(R, folder)
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", str(folder))
    before = [(p, p.read_bytes(), p.stat().st_mtime_ns) for p in launches(folder)]
    assert count(R, tmp_path / "own") == 0 and not (tmp_path / "own").exists()
    assert before == [(p, p.read_bytes(), p.stat().st_mtime_ns) for p in launches(folder)]


def test_nothing_is_kept_nowhere(folder, tmp_path):
    with machine(folder), pytest.MonkeyPatch.context() as m:
        m.setenv("GEMMGEN_CACHE", "none")
        m.setattr(fingerprint, "fingerprint", None)  # not even asked for
        for _ in range(2):
            made = cache_index.ready("x", lambda: made_of(R), lambda *_: compiled(R))
            assert made.cubin == compiled(R)
    assert not folder.exists()


def made_of(r):
    return type("Made", (), {"kernel": kernel(r.name), "source": r.source, "name": r.name})


def test_without_its_cubin_a_launch_is_worth_nothing(folder):
    count(R, folder)
    for path in folder.glob("*.cubin"):
        path.unlink()
    assert [count(R, folder), count(R, folder)] == [1, 0]


def test_a_cubin_that_was_swapped_is_not_believed(folder):
    """The cubin's own entry names its key; a good one of another kernel in its place has another."""
    count(R, folder)
    (mine,) = folder.glob("*.cubin")
    count(OTHER, folder)
    (other,) = {*folder.glob("*.cubin")} - {mine}
    mine.write_bytes(other.read_bytes())
    assert count(R, folder) == 1


def test_a_watched_kernel_is_built_each_time(folder, monkeypatch):
    monkeypatch.setitem(kernel.__wrapped__.__globals__, "kernel", watched)
    assert [count(R, folder), count(R, folder)] == [1, 1] and not launches(folder)
    with pytest.raises(CacheError, match="watched"):
        launch_record.record_of(watched("k"))


def watched(name):
    return replace(kernel(name), watchdog=True)


def test_the_newest_kernel_stays_however_small_the_cache(folder, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_BYTES", "1")
    count(OTHER, folder)
    assert [count(R, folder), count(R, folder)] == [1, 0]
    assert len([*folder.iterdir()]) == 2


# ---- never stale ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ("fingerprint", "asked", "options", "searched"))
def test_every_part_of_a_question_is_part_of_its_key(field):
    plain = {"fingerprint": "", "asked": "", "options": (), "searched": ()}
    value = "x" if plain[field] == "" else ("x",)
    asked, other = (cache_index.Question(**plain | {field: v}) for v in (plain[field], value))
    assert asked.digest != other.digest


@pytest.mark.parametrize("change", ("options", "prefix", "LD_LIBRARY_PATH"))
def test_what_is_around_is_part_of_the_key(folder, change, monkeypatch):
    count(R, folder)
    before = launch_key(R)
    if change == "options":
        monkeypatch.setattr(nvrtc, "options", lambda target: ("--other",))
    if change == "prefix":
        monkeypatch.setattr(sys, "prefix", "/elsewhere")
    if change == "LD_LIBRARY_PATH":
        monkeypatch.setenv(change, "/elsewhere")
    assert launch_key(R) != before and count(R, folder) == 1


def test_another_nvrtc_compiles_again(folder):
    count(R, folder)
    with machine(folder, build="13.1 fedcba9876543210"):
        question = cache_index._question(asked(R), cache_index.H200)
        assert cache_index._found(question, cache.places()) is None
    assert count(R, folder) == 0


def test_an_nvrtc_without_a_readable_file_is_never_believed(folder):
    answer = cache_index.Answer(
        key="0" * 64,
        arch="sm_90a",
        compiler="13.0",
        library="/nowhere",
        record=launch_record.record_of(kernel("k")),
    )
    assert not answer.current


def test_the_library_is_read_where_it_was(tmp_path):
    library = tmp_path / "libnvrtc.so"
    library.write_bytes(b"build 1")
    answer = cache_index.Answer(
        key="0" * 64,
        arch="sm_90a",
        compiler=nvrtc.build_of("13.0", str(library)),
        library=str(library),
        record=launch_record.record_of(kernel("k")),
    )
    assert answer.current
    library.write_bytes(b"build 2")
    assert not answer.current
    library.unlink()
    assert not answer.current


@pytest.mark.parametrize(
    "other",
    (
        replace(DENSE, epilogue=ACC + Const(0.0)),
        replace(DENSE, epilogue=ACC + Const(-0.0)),
        replace(DENSE, epilogue=ACC + PerElement("c", BF16)),
        replace(DENSE, epilogue=ACC + PerElement("c", F32)),
        replace(DENSE, layout="tn"),
        replace(DENSE, d=F32),
        replace(DENSE, d=F32, accumulate=True),
        replace(DENSE, grouping="ends"),
        replace(DENSE, grouping="ends", alignment=64),
    ),
    ids=repr,
)
def test_problems_and_configs_are_spelled_in_full(other, monkeypatch):
    spelled = []
    monkeypatch.setattr(building, "ready", lambda asked, *_: spelled.append(asked))
    for p in (DENSE, other, replace(DENSE, epilogue=ACC + Const(1.0))):
        for c in (Config(), Config(stages=5), Config(pdl=True)):
            building.built(p, c)
    assert len({*spelled}) == len(spelled) == 9


# ---- which gemmgen this is --------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two files that has been there for a while."""
    root = tmp_path / "site" / "gemmgen"
    (root / "templates").mkdir(parents=True)
    (root / "one.py").write_text("x = 1")
    (root / "templates" / "two.j2").write_text("y")
    monkeypatch.setattr(fingerprint, "PACKAGE", root)
    monkeypatch.setattr(gemmgen, "IMPORTED", 2**62)
    return root


def now():
    return fingerprint.fingerprint.__wrapped__()


@pytest.mark.parametrize(
    "change",
    (
        lambda root: (root / "one.py").write_text("x = 2"),
        lambda root: (root / "templates" / "two.j2").write_text("z"),
        lambda root: (root / "one.py").rename(root / "three.py"),
        lambda root: (root / "more.py").write_text(""),
        lambda root: (root / "one.py").unlink(),
    ),
)
def test_any_change_of_a_file_is_another_gemmgen(package, change):
    """Whatever its size and dates say."""
    old, found = (package / "one.py").stat(), now()
    assert found == now() and len(found) == 64
    change(package)
    if (package / "one.py").exists():
        os.utime(package / "one.py", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert now() not in (found, None)


def test_what_python_writes_does_not_matter(package):
    found = now()
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "one.py").write_text("")
    (package / "one.txt").write_text("")
    assert now() == found


def test_what_no_kernel_passes_through_does_not_matter(package):
    found = now()
    for name in fingerprint.BESIDE:
        (package / name).mkdir()
        (package / name / "one.py").write_text("")
    assert now() == found
    (package / "passes" / "cli").mkdir(parents=True)
    (package / "passes" / "cli" / "one.py").write_text("")
    assert now() not in (found, None)


def test_a_file_changed_since_the_import_makes_it_unknown(package, monkeypatch):
    """What runs may be what stood there before."""
    changed = (package / "one.py").stat().st_ctime_ns
    for imported, known in (
        (changed + 3 * 10**9, True),
        (changed + 10**9, False),
        (changed, False),
    ):
        monkeypatch.setattr(gemmgen, "IMPORTED", imported)
        assert fingerprint.unchanged() is known and (now() is not None) is known


def test_a_file_that_grows_while_it_is_read_makes_it_unknown(package, monkeypatch):
    read = os.read

    def growing(handle, size):
        found = read(handle, size)
        (package / "one.py").write_text("x = 1 + 1")
        return found

    with monkeypatch.context() as m:
        m.setattr(os, "read", growing)
        assert now() is None
    assert now()


def test_nothing_to_read_is_no_fingerprint(package, monkeypatch):
    monkeypatch.setattr(fingerprint, "PACKAGE", package / "gone")
    assert now() is None and not fingerprint.unchanged()
    os.mkfifo(package / "pipe.py")
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    assert now() is None


def test_an_unknown_gemmgen_neither_asks_nor_keeps(folder):
    for name, value in (("fingerprint", None), ("unchanged", False)):
        with machine(folder), pytest.MonkeyPatch.context() as m:
            m.setattr(fingerprint, name, lambda value=value: value)
            cache_index.ready("x", lambda: made_of(R), lambda *_: compiled(R))
        assert not launches(folder)


def test_the_files_are_those_of_this_package():
    files = {Path(f.path) for f in fingerprint.sources()}
    root = Path(gemmgen.__file__).parent
    assert {
        root / "emit" / "__init__.py",
        root / "passes" / "split_k.py",
        root.parent / "templates/ptx.j2",
    } <= files
    beside = root.parent / "templates"
    assert {f for f in files if beside in f.parents} == {*beside.rglob("*.j2")}, (
        "layers are no templates"
    )
    assert not files & {root / "cli" / "__init__.py", root / "heuristics" / "__init__.py"}


# ---- what is kept is what was built -----------------------------------------------------------

MATRIX = Matrix(
    pointer=1 << 20, outer=1000, inner=2064, stride=2064, groups=3, group_stride=1 << 22
)


@pytest.mark.parametrize("exhibit", GALLERY, ids=path_of)
def test_a_record_launches_as_its_kernel_does(exhibit):
    built = artifact(exhibit).kernel
    data = cache_index.encode("ab" * 32, answer := answer_of(built))
    found = cache_index.decode(data, "ab" * 32)
    assert found == answer
    record = found.record
    assert (record.name, record.threads, record.smem_bytes, record.pdl, record.params) == (
        built.name, built.threads, built.smem_bytes, built.pdl, built.params,
    )  # fmt: skip
    assert record.block == built.block and record.cluster == built.cluster
    assert [describe(record, m, MATRIX) for m in record.maps] == [
        describe(built, m, MATRIX) for m in built.maps
    ]
    for shape in ((1, 128, 64), (4096, 4096, 512)):
        ctas = grid(record, shape, 132, 3)
        assert ctas == grid(built, shape, 132, 3)
        assert workspace_bytes(record, ctas, 3) == workspace_bytes(built, ctas, 3)
    assert {b.name for b in record.buffers} == {"smem_d", *(m.smem for m in built.maps)}
    assert all(b.dtype is built.buffer(b.name).dtype for b in record.buffers)
    assert record.pointed == built.pointed


def answer_of(built):
    return cache_index.Answer(
        key="0" * 64,
        arch="sm_90a",
        compiler="13.0 a",
        library="/nowhere",
        record=launch_record.record_of(built),
    )


@pytest.mark.parametrize("number", range(len(hostile_launches(R))))
def test_hostile_launches_are_refused(number):
    with pytest.raises(CacheError):
        cache_index.decode(hostile_launches(R)[number], launch_key(R))


def test_a_campaign(folder, tmp_path):
    tallies = campaign(10 * len(OF_LAUNCHES), 1, tmp_path / "campaign", LAUNCHES, OF_LAUNCHES)
    for name, t in tallies.items():
        assert (t.faults, t.lost, t.unstable, t.wrong, t.crashes) == (10, 0, 0, 0, 0), name
    for name in ("truncate", "flip", "hostile_facts", "of_another", "fifo", "writable", "gone"):
        assert tallies[name].recompiled == 10, name
    assert not tallies["clock"].recompiled + tallies["strangers"].recompiled


# ---- the command, and a process that starts -----------------------------------------------------


def test_the_command_knows_launches(folder, capsys, monkeypatch):
    count(R, folder)
    monkeypatch.setenv("GEMMGEN_CACHE", str(folder))
    assert main(["cache", "ls"]) == 0
    out = capsys.readouterr().out
    assert "launch of" in out and "1 kernels" in out and "damaged" not in out
    launches(folder)[0].write_bytes(b"short")
    assert main(["cache", "verify"]) == 1
    assert f"{launches(folder)[0]}" in capsys.readouterr().out
    assert main(["cache", "gc", "--all"]) == 0 and not [*folder.iterdir()]


FIRST = """
import sys
from gemmgen.ops import building
from gemmgen import Config, Problem
from gemmgen.ir.dtypes import BF16
found = building.built(Problem(family="dense", a=BF16, b=BF16), Config())
print(type(found.kernel).__name__, found.cubin.name, len(found.cubin.image), "cuda" in sys.modules)
"""


@pytest.mark.nvrtc
def test_another_process_needs_neither_the_compiler_nor_nvrtc(folder):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    if not fingerprint.unchanged():
        pytest.skip("gemmgen's files were changed a moment ago")
    env = {**os.environ, "GEMMGEN_CACHE": str(folder)}
    run = [sys.executable, "-c", FIRST]
    first, second = (
        subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert (first[0], first[3], second[0], second[3]) == ("Kernel", "True", "LaunchRecord", "False")
    assert first[1:3] == second[1:3]
