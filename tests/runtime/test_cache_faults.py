"""A cache whose disk fails, whose writers die, and whose processes race. The compiler is a fake."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from cache_faults.campaign import campaign, table
from cache_faults.damage import FAULTS
from cache_faults.fakes import CALLS, ERRORS, Compiler, compiled, error, faulty, recipe

from gemmgen.runtime import cache
from gemmgen.runtime.cache import Places, cached
from gemmgen.runtime.cache_entry import encode

R = recipe()
PROCESSES = 16


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(cache, "_said", set())


@pytest.fixture
def own(tmp_path):
    return Places(own=tmp_path / "cache")


def ask(where, compiler=None):
    assert cached(R, (compiler or Compiler())(R), where) == compiled(R)


def files(where):
    return sorted(p.name for p in where.own.iterdir()) if where.own.exists() else []


WHOLE = [f"{R.key}.cubin"]


def child(work) -> int:
    """The process that does `work` and exits with 0 if that returns."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


# ---- races --------------------------------------------------------------------------------


def test_processes_race_for_one_kernel(own, tmp_path):
    """All have the right cubin, one entry is left; each compiled at most once."""
    ready, go = os.pipe(), os.pipe()
    counted = tmp_path / "compiled"

    def compile():
        with counted.open("a") as f:
            f.write("x")
        return compiled(R)

    def work():
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        for _ in range(5):
            assert cached(R, compile, own) == compiled(R)

    children = [child(work) for _ in range(PROCESSES)]
    for _ in children:
        os.read(ready[0], 1)
    os.write(go[1], b"x" * PROCESSES)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * PROCESSES
    assert 1 <= counted.stat().st_size <= PROCESSES
    assert files(own) == WHOLE
    compiler = Compiler()
    ask(own, compiler)
    assert not compiler.calls
    for handle in (*ready, *go):
        os.close(handle)


def test_processes_race_in_a_cache_too_small(own):
    """Each evicts the others' entries while they are read and written."""
    small = Places(own=own.own, limit=600)

    def work(number: int):
        rng = random.Random(number)
        for _ in range(60):
            r = recipe(rng.randrange(6))
            assert cached(r, lambda r=r: compiled(r), small) == compiled(r)

    children = [child(lambda n=n: work(n)) for n in range(6)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
    assert not [name for name in files(own) if not name.endswith(".cubin")]


# ---- writers that die -----------------------------------------------------------------------


def killing(call: int, size: int):
    """Kill this process at its `call`-th call, or once `size` bytes are written."""
    left = [call, size]

    def hook(name, args):
        left[0] -= 1
        if name == "write" and left[1] < len(args[1]):
            os.write(args[0], args[1][: left[1]])
            left[0] = 0
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def die(own, call: int, size: int) -> bool:
    """Whether a child that publishes was killed."""

    def work():
        with faulty(killing(call, size)):
            ask(own)

    return os.WIFSIGNALED(os.waitpid(child(work), 0)[1])


def check_after_death(own):
    compiler = Compiler()
    ask(own, compiler)
    ask(own, compiler)
    assert compiler.calls[R.key] <= 1
    (own.own / WHOLE[0]).unlink()


def test_a_writer_killed_at_every_call(own):
    call = 1
    while die(own, call, 10**9):
        check_after_death(own)
        call += 1
    assert call > 10


def test_a_writer_killed_at_bytes_of_the_write(own):
    length = len(encode(R, compiled(R)))
    for size in (*range(0, length, 9), length - 1):
        assert die(own, 10**9, size)
        assert WHOLE[0] not in files(own)
        check_after_death(own)


def test_writers_killed_at_any_time(own):
    """As they write without a pause; a reader beside them never sees half an entry."""
    rng = random.Random(1)

    def work():
        while True:
            (own.own / WHOLE[0]).unlink(missing_ok=True)
            ask(own)

    ask(own)
    for _ in range(30):
        pid = child(work)
        for _ in range(rng.randrange(1, 12)):
            ask(own)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ask(own)
    assert not cache._said


# ---- disks that fail ------------------------------------------------------------------------


def failing(nth: int, failure: OSError, seen: list[str]):
    """The `nth` call fails; `seen`: which that was."""

    def hook(name, args):
        seen.append(name)
        if len(seen) == nth:
            raise failure

    return hook


@pytest.mark.parametrize("name", ("ENOSPC", "EIO", "ESTALE", "EACCES", "EMFILE"))
def test_every_call_may_fail(own, name, caplog):
    """While a kernel is looked for, kept and found: the cubin is right, and nothing half is left."""
    nth = 0
    while True:
        nth += 1
        seen = []
        with faulty(failing(nth, error(name), seen)):
            ask(own)
            ask(own)
        if len(seen) < nth:
            break
        assert set(files(own)) <= set(WHOLE) or seen[nth - 1] == "unlink"
        ask(own)
        assert set(WHOLE) <= set(files(own))
        for path in own.own.iterdir():
            path.unlink()
    assert nth > 20 and 1 <= len(caplog.records) <= 3  # one of each kind at most


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_always_fails(own, call, name, caplog):
    def hook(seen, args):
        if seen == call:
            raise error(name)

    with faulty(hook):
        for _ in range(3):
            ask(own)
    assert len(caplog.records) <= 2
    compiler = Compiler()
    ask(own, compiler)
    ask(own, compiler)
    assert compiler.calls[R.key] <= 1


@pytest.mark.parametrize("name", ("EIO", "ESTALE", "EXDEV", "ENOENT"))
def test_a_rename_that_fails(own, name, caplog):
    def hook(seen, args):
        if seen == "replace":
            raise error(name)

    compiler = Compiler()
    with faulty(hook):
        ask(own, compiler)
        ask(own, compiler)
    assert compiler.calls[R.key] == 2 and not files(own) and len(caplog.records) == 1


def test_a_rename_that_nobody_sees(own):
    """As over NFS, for a while: the compiled cubin is used, not read back."""
    compiler = Compiler()
    with faulty(lambda name, args: True if name == "replace" else None):
        ask(own, compiler)
    assert WHOLE[0] not in files(own)
    ask(own, compiler)
    assert compiler.calls[R.key] == 2 and WHOLE[0] in files(own)


@pytest.mark.parametrize("most", (1, 7, 100))
def test_short_writes_are_continued(own, most):
    with faulty(lambda n, a: os.write(a[0], a[1][:most]) if n == "write" else None):
        ask(own)
    compiler = Compiler()
    ask(own, compiler)
    assert not compiler.calls


def test_short_reads_are_continued(own):
    ask(own)
    compiler = Compiler()
    with faulty(lambda n, a: os.read(a[0], min(a[1], 5)) if n == "read" else None):
        ask(own, compiler)
    assert not compiler.calls


def test_a_write_that_writes_nothing_ends(own, caplog):
    with faulty(lambda name, args: 0 if name == "write" else None):
        ask(own)
    assert not files(own) and len(caplog.records) == 1


def test_a_disk_that_is_full(own, caplog):
    """A file system with no room left, where this user may mount none: the limit on a file's size."""
    import resource

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        ask(own)

    assert os.waitpid(child(work), 0)[1] == 0
    assert not files(own)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission(own, caplog):
    own.own.mkdir(mode=0o500)
    ask(own)
    assert not files(own) and len(caplog.records) == 1


@pytest.mark.parametrize("place", ("/proc/gemmgen", "/dev/null/gemmgen", "/sys/gemmgen"))
def test_a_place_where_nothing_can_be_made(place, caplog):
    ask(Places(own=Path(place)))
    assert 1 <= len(caplog.records) <= 2


# ---- all together ---------------------------------------------------------------------------


def test_a_campaign(tmp_path):
    tallies = campaign(20 * len(FAULTS), 1, tmp_path)
    for name, t in tallies.items():
        assert (t.faults, t.lost, t.unstable, t.wrong, t.crashes) == (20, 0, 0, 0, 0), name
    damaged = ("truncate", "flip", "hostile_facts", "fifo", "huge_file", "writable", "gone")
    assert all(tallies[name].recompiled == 20 for name in damaged)
    assert not tallies["clock"].recompiled + tallies["strangers"].recompiled
    assert table(tallies).count("\n") == len(FAULTS) + 2


def test_a_campaign_finds_what_is_wrong(tmp_path, monkeypatch):
    """Without the checksum, damage is served and counted."""
    from gemmgen.runtime import cache_entry

    pack = cache_entry.packed
    monkeypatch.setattr(
        cache_entry, "packed", lambda k, f, i: pack(k, f, i)[:56] + bytes(32) + f + i
    )
    tallies = campaign(20 * len(FAULTS), 1, tmp_path)
    assert tallies["flip"].wrong and tallies["zero_block"].wrong
