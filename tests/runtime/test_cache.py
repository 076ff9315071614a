"""Compiled kernels on the disk: found again, found wrong, shared, bounded. The compiler is a fake."""

from __future__ import annotations

import ast
import logging
import os
import socket
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from cache_faults.fakes import Compiler, compiled, recipe
from cache_faults.stores import hostile

from gemmgen.errors import ArgumentError, CacheError, CompileError
from gemmgen.runtime import cache, cache_entry, cache_files, nvrtc
from gemmgen.runtime.cache import LIMIT, Places, cached, places
from gemmgen.runtime.cache_entry import decode, encode
from gemmgen.runtime.cache_trust import opened
from gemmgen.target import H100, H200

R = recipe()
PACKAGE = Path(nvrtc.__file__).parents[1]
EXECUTING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(cache, "_said", set())
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def own(tmp_path):
    return Places(own=tmp_path / "new" / "cache")


@pytest.fixture
def compiler():
    return Compiler()


def ask(where, compiler, r=R):
    assert cached(r, compiler(r), where) == compiled(r)


def path_of(where, r=R):
    return where.own / f"{r.key}.cubin"


# ---- found again --------------------------------------------------------------------------


def test_a_kernel_is_compiled_once(own, compiler):
    for _ in range(3):
        ask(own, compiler)
    assert compiler.calls == {R.key: 1}
    assert [p.name for p in own.own.iterdir()] == [f"{R.key}.cubin"]


def test_only_the_user_may_look(own, compiler):
    ask(own, compiler)
    modes = [p.stat().st_mode & 0o777 for p in (path_of(own), own.own, own.own.parent)]
    assert modes == [0o600, 0o700, 0o700]


@pytest.mark.parametrize(
    "change",
    (
        {"source": "source 0 "},
        {"name": "kernel_1"},
        {"arch": "sm_100a"},
        {"options": ("--std=c++17", "--fmad=false")},
        {"options": ("--std=c++20",)},
        {"compiler": "13.0 0123456789abcdee"},
    ),
    ids=str,
)
def test_every_part_of_a_recipe_is_part_of_its_key(own, compiler, change):
    other = replace(R, **change)
    ask(own, compiler)
    ask(own, compiler, other)
    assert compiler.calls == {R.key: 1, other.key: 1}


def test_the_format_is_part_of_the_key(monkeypatch):
    before = R.key
    monkeypatch.setattr(cache_entry, "FORMAT", cache_entry.FORMAT + 1)
    assert R.key != before


def test_parts_do_not_run_into_each_other():
    assert recipe(options=("ab", "c")).key != recipe(options=("a", "bc")).key
    assert recipe(name="ab", source="c").key != recipe(name="a", source="bc").key


def test_a_kernel_that_does_not_compile_this_time_leaves_nothing(own):
    def compile():
        raise CompileError("no memory", lasting=False)

    for _ in range(2):
        with pytest.raises(CompileError):
            cached(R, compile, own)
    assert not own.own.exists()


def test_the_log_is_judged_by_todays_rules(own, compiler, monkeypatch):
    ask(own, compiler)
    monkeypatch.setitem(nvrtc.FATAL, "ptxas info", "talks")
    with pytest.raises(CacheError, match="must not run"):
        decode(path_of(own).read_bytes(), R.key)


def test_a_cubin_too_large_is_not_kept(own, monkeypatch, caplog):
    monkeypatch.setattr(cache_entry, "MOST_IMAGE", 10)
    ask(own, Compiler())
    assert not own.own.exists() and "too large" in caplog.text


# ---- NVRTC's part -------------------------------------------------------------------------


@pytest.fixture
def fake_nvrtc(monkeypatch, tmp_path):
    """`cached_cubin` without NVRTC; the sources it compiled."""
    seen = []
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "build", lambda: "13.0 a")

    def compile_cubin(source, name, target):
        seen.append((source, name, target))
        return compiled(recipe(name=name))

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    return seen


def test_cached_cubin_compiles_what_it_is_given(fake_nvrtc):
    for _ in range(2):
        assert cache.cached_cubin("text", "name", H200) == compiled(recipe(name="name"))
    assert fake_nvrtc == [("text", "name", H200)]


@pytest.mark.parametrize("part", ("build", "options"))
def test_another_compiler_or_other_options_compile_anew(fake_nvrtc, monkeypatch, part):
    cache.cached_cubin("text", "name")
    new = {"build": lambda: "13.0 b", "options": lambda target: ("--new",)}[part]
    monkeypatch.setattr(nvrtc, part, new)
    cache.cached_cubin("text", "name")
    assert len(fake_nvrtc) == 2


def test_targets_of_one_architecture_share(fake_nvrtc):
    assert H100.arch == H200.arch
    for target in (H100, H200):
        cache.cached_cubin("text", "name", target)
    assert len(fake_nvrtc) == 1


@pytest.mark.nvrtc
def test_nvrtc_says_the_same_from_the_disk(monkeypatch, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "cache"))
    source = 'extern "C" __global__ void probe(int* p) { *p = 1; }'
    first = cache.cached_cubin(source, "probe")
    monkeypatch.setattr(nvrtc, "compile_cubin", None)
    assert cache.cached_cubin(source, "probe") == first
    assert first.image.startswith(b"\x7fELF") and first.registers
    version, _, digest = nvrtc.build().partition(" ")
    assert version == ".".join(map(str, nvrtc.version())) and len(digest) == 16


# ---- where --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "want"),
    (
        ({"HOME": "/h"}, "/h/.cache/gemmgen"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/gemmgen"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "x"}, "/h/.cache/gemmgen"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "GEMMGEN_CACHE": "/g"}, "/g"),
        ({"HOME": "/h", "GEMMGEN_CACHE": ""}, "/h/.cache/gemmgen"),
    ),
)
def test_the_directory(monkeypatch, environment, want):
    for name in ("HOME", "XDG_CACHE_HOME", "GEMMGEN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(places().own) == want and places().limit == LIMIT == 2**30


def test_none_keeps_nothing(monkeypatch, compiler, own):
    monkeypatch.setenv("GEMMGEN_CACHE", "none")
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", "/somewhere")
    assert places() == Places(own=None)
    for _ in range(2):
        ask(places(), compiler)
    assert compiler.calls[R.key] == 2


def test_the_search_path_and_the_size(monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", os.pathsep.join(("/a", "", "/b c")))
    monkeypatch.setenv("GEMMGEN_CACHE_BYTES", "123")
    assert [str(p) for p in places().shared] == ["/a", "/b c"] and places().limit == 123


@pytest.mark.parametrize("size", ("1GB", "-1", "1e9", "９", "9" * 30, " 1"))
def test_a_size_that_is_none(monkeypatch, size):
    monkeypatch.setenv("GEMMGEN_CACHE_BYTES", size)
    with pytest.raises(ArgumentError) as e:
        places()
    assert e.value.argument == "GEMMGEN_CACHE_BYTES"


def test_shared_directories_are_read_and_left_alone(own, tmp_path, compiler):
    built = Places(own=tmp_path / "built")
    ask(built, compiler)
    os.utime(path_of(built), (1, 1))
    for _ in range(2):
        ask(replace(own, shared=(tmp_path / "missing", tmp_path / "built")), compiler)
    assert compiler.calls[R.key] == 1 and not own.own.exists()
    assert path_of(built).stat().st_mtime == 1


def test_a_damaged_shared_entry_stays_and_is_passed_over(own, tmp_path, compiler, caplog):
    shared = [tmp_path / name for name in ("one", "two")]
    for folder in shared:
        ask(Places(own=folder), compiler)
    path_of(Places(own=shared[0])).write_bytes(b"damaged")
    ask(replace(own, shared=tuple(shared)), Compiler())
    assert path_of(Places(own=shared[0])).read_bytes() == b"damaged"
    assert len(caplog.records) == 1 and not own.own.exists()


# ---- damaged ------------------------------------------------------------------------------


def heal(own, compiler, expected):
    """The entry, whatever stands there, is compiled again, and well then."""
    ask(own, compiler)
    ask(own, compiler)
    assert compiler.calls[R.key] == expected


def test_every_length_but_the_whole_is_refused(own, compiler):
    ask(own, compiler)
    whole = path_of(own).read_bytes()
    for size in range(len(whole)):
        path_of(own).write_bytes(whole[:size])
        ask(own, compiler)
    assert compiler.calls[R.key] == 1 + len(whole)
    assert path_of(own).read_bytes() == whole


def test_every_bit_counts(own, compiler):
    whole = bytearray(encode(R, compiled(R)))
    for place in range(len(whole)):
        for bit in range(8):
            whole[place] ^= 1 << bit
            with pytest.raises(CacheError):
                decode(bytes(whole), R.key)
            whole[place] ^= 1 << bit
    assert decode(bytes(whole), R.key).cubin == compiled(R)


def test_a_flipped_byte_is_compiled_again(own, compiler):
    ask(own, compiler)
    whole = path_of(own).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x80
        path_of(own).write_bytes(damaged)
        ask(own, compiler)
    assert compiler.calls[R.key] == 1 + len(whole)


@pytest.mark.parametrize("other", (recipe(1), recipe(1, name=R.name), replace(R, options=())))
def test_another_kernels_entry_is_refused(own, compiler, other):
    ask(own, compiler, other)
    path_of(own, other).rename(path_of(own))
    heal(own, compiler, 1)


@pytest.mark.parametrize("number", range(len(hostile(R))))
def test_a_writer_who_knows_the_format_is_refused(own, compiler, number):
    ask(own, compiler)
    path_of(own).write_bytes(hostile(R)[number])
    heal(own, compiler, 2)


def test_lengths_allocate_nothing(own, compiler):
    ask(own, compiler)
    for size in (1 << 40, cache_entry.MOST_SIZE + 1):
        with path_of(own).open("r+b") as f:
            f.truncate(size)
        tracemalloc.start()
        ask(own, compiler)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
    assert compiler.calls[R.key] == 3


def as_directory(path):
    path.mkdir()


def as_fifo(path):
    os.mkfifo(path)


def as_link(path):
    path.symlink_to(path.with_name("elsewhere"))


def as_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def as_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", (as_directory, as_fifo, as_link, as_socket, as_device))
def test_what_is_no_file_is_replaced(own, compiler, make):
    own.own.mkdir(mode=0o700, parents=True)
    make(path_of(own))
    heal(own, compiler, 1)
    assert path_of(own).is_file() and not path_of(own).is_symlink()


def test_a_link_is_removed_and_what_it_names_is_not(own, compiler, tmp_path):
    ask(own, compiler)
    aside = path_of(own).rename(tmp_path / "aside")
    path_of(own).symlink_to(aside)
    heal(own, compiler, 2)
    assert aside.exists()


def test_a_directory_that_is_not_empty_stays(own, compiler, caplog):
    (path_of(own) / "in the way").mkdir(parents=True)
    own.own.chmod(0o700)
    ask(own, compiler)
    ask(own, compiler)
    assert compiler.calls[R.key] == 2 and (path_of(own) / "in the way").exists()
    assert len(caplog.records) == 2  # one says that it is no entry, one that the kernel is not kept


@pytest.mark.parametrize("mode", (0o620, 0o602))
def test_an_entry_that_others_may_write_is_refused(own, compiler, mode):
    ask(own, compiler)
    path_of(own).chmod(mode)
    heal(own, compiler, 2)
    assert path_of(own).stat().st_mode & 0o777 == 0o600


def test_a_thousand_damaged_entries_are_one_warning(own, compiler, caplog):
    many = [recipe(i) for i in range(20)]
    for r in many:
        ask(own, compiler, r)
        path_of(own, r).write_bytes(b"")
    for r in many:
        ask(own, compiler, r)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_warnings_as_errors_lose_no_work(own, compiler):
    ask(own, compiler)
    path_of(own).write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heal(own, compiler, 2)


# ---- bounded ------------------------------------------------------------------------------


def entries(where):
    with opened(where.own) as folder:
        return [e.key for e in cache_files.stored(folder)]


def fill(own, compiler, times):
    """An entry used at each of `times`; their recipes, and the size of one."""
    recipes = [recipe(i) for i in range(len(times))]
    for r in recipes:
        ask(own, compiler, r)
    for r, when in zip(recipes, times, strict=True):
        os.utime(path_of(own, r), (when, when))
    return recipes, path_of(own).stat().st_size


def test_the_least_recently_used_go_first(own, compiler):
    old, size = fill(own, compiler, (30, 10, 20))
    ask(own, compiler, old[1])  # a hit is a use
    ask(replace(own, limit=3 * size), compiler, recipe(3))
    assert entries(own) == sorted(r.key for r in (old[0], old[1], recipe(3)))


@pytest.mark.parametrize("limit", (0, 1))
def test_the_entry_just_written_stays(own, compiler, limit):
    small = replace(own, limit=limit)
    for number in range(3):
        ask(small, compiler, recipe(number))
        assert entries(own) == [recipe(number).key]


@pytest.mark.parametrize("now", (0, -(10**18), 10**18, 4 * 10**18))
def test_no_clock_loses_what_was_just_written(own, compiler, monkeypatch, now):
    fill(own, compiler, (-(2**31), 0, 2**33, 5))
    monkeypatch.setattr(cache_files.time, "time_ns", lambda: now)
    size = path_of(own).stat().st_size
    ask(replace(own, limit=2 * size), compiler, recipe(9))
    assert recipe(9).key in entries(own) and len(entries(own)) == 2


def test_times_to_come_go_before_the_past():
    now = 10**18
    used = {"a": 3, "b": now, "c": 2 * now, "d": now + cache_files.SKEW, "e": -5}
    found = cache_files.oldest(
        [cache_files.Stored(key=k, size=1, used=u) for k, u in used.items()], now
    )
    assert "".join(e.key for e in found) == "ceabd"


def test_what_dead_writers_left_goes_and_the_rest_stays(own, compiler):
    ask(own, compiler)
    names = {
        "dead": f"{R.key}.{'0' * 16}.tmp",
        "alive": f"{R.key}.{'1' * 16}.tmp",
        "of the future": f"{R.key}.{'2' * 16}.tmp",
        "strange": f"{R.key}.cubin.tmp",
        "hostile": "..cubin\n",
    }
    for name in names.values():
        (own.own / name).write_bytes(b"")
    for what, when in (("dead", 1), ("of the future", 2**33), ("strange", 1), ("hostile", 1)):
        os.utime(own.own / names[what], (when, when))
    ask(own, compiler, recipe(1))
    left = {p.name for p in own.own.iterdir()} - {f"{r.key}.cubin" for r in (R, recipe(1))}
    assert left == {names[what] for what in ("alive", "strange", "hostile")}


# ---- what is read is data -------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_nothing_that_is_read_is_executed(path):
    """No module unpickles, evaluates or starts a shell (but see SECURITY.md for the tuner's pipes)."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                assert not EXECUTING & {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                assert module.partition(".")[0] not in EXECUTING
            case ast.Call(func=ast.Name(id=name)):
                assert name not in ("eval", "exec", "compile")
            case ast.keyword(arg="shell" | "allow_pickle"):
                raise AssertionError(ast.unparse(node))
