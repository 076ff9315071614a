"""Only directories that nobody else can write to hold compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cache_faults.fakes import Compiler, compiled, faulty, recipe

from gemmgen.errors import CacheError
from gemmgen.runtime import cache
from gemmgen.runtime.cache import Places, cached
from gemmgen.runtime.cache_trust import opened

R = recipe()
STRANGER = 4242


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(cache, "_said", set())
    before = os.umask(0o022)
    yield
    os.umask(before)


def refused(path: Path, *, create: bool = True) -> str:
    """Why `path` is, and that a kernel is compiled all the same, with warnings and no file."""
    with pytest.raises(CacheError) as e, opened(path, create=create):
        pass
    compiler = Compiler()
    for _ in range(2):
        assert cached(R, compiler(R), Places(own=path)) == compiled(R)
    assert compiler.calls[R.key] == 2
    return str(e.value)


def accepted(path: Path) -> None:
    compiler = Compiler()
    for _ in range(2):
        assert cached(R, compiler(R), Places(own=path)) == compiled(R)
    assert compiler.calls[R.key] == 1


def owned_by_a_stranger(name: str):
    """The system, but the file or directory `name` belongs to user STRANGER."""

    def changed(path: str) -> os.stat_result | None:
        if Path(path).name != name:
            return None
        found = [*os.lstat(path)]
        found[4] = STRANGER
        return os.stat_result(found)

    def hook(call, args):
        if call == "lstat":
            return changed(args[0])
        if call == "fstat":
            return changed(os.readlink(f"/proc/self/fd/{args[0]}"))
        return None

    return faulty(hook)


@pytest.mark.parametrize("mode", (0o777, 0o702, 0o720, 0o1777))
def test_a_directory_that_others_may_write(tmp_path, mode):
    path = tmp_path / "cache"
    path.mkdir()
    path.chmod(mode)
    assert "written by others" in refused(path)
    assert not [*path.iterdir()]


@pytest.mark.parametrize("mode", (0o777, 0o702, 0o720))
@pytest.mark.parametrize("below", ("cache", "more/cache"))
def test_a_directory_above_that_others_may_write(tmp_path, mode, below):
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    assert str(above) in refused(above / below)
    assert not [*above.iterdir()]


@pytest.mark.parametrize("mode", (0o700, 0o755, 0o1777, 0o1770))
def test_a_directory_above_that_is_safe(tmp_path, mode):
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    accepted(above / "cache")
    assert (above / "cache").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("mode", (0o700, 0o755, 0o500))
def test_a_directory_that_is_safe(tmp_path, mode):
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    accepted(path)
    path.chmod(mode)
    with opened(path):
        pass


@pytest.mark.parametrize("whose", ("cache", "above"))
def test_a_directory_of_another_user(tmp_path, whose):
    path = tmp_path / "above" / "cache"
    accepted(path)
    with owned_by_a_stranger(whose):
        assert f"user {STRANGER}" in refused(path)


def test_a_sticky_directory_of_another_user(tmp_path):
    path = tmp_path / "above" / "cache"
    accepted(path)
    path.parent.chmod(0o1777)
    with owned_by_a_stranger("above"):
        assert f"user {STRANGER}" in refused(path)


def test_an_entry_of_another_user(tmp_path):
    path = tmp_path / "cache"
    accepted(path)
    compiler = Compiler()
    with owned_by_a_stranger(f"{R.key}.cubin"):
        assert cached(R, compiler(R), Places(own=path)) == compiled(R)
    assert compiler.calls[R.key] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="what is above belongs to this user, not to root")
def test_the_user_and_root_are_trusted(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    accepted(path)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with owned_by_a_stranger("cache"), opened(path):  # mine; the files above are root's or refused
        pass


def test_a_link_in_place_of_the_directory(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to("real")
    assert "symbolic link" in refused(tmp_path / "cache")
    assert not [*(tmp_path / "real").iterdir()]


@pytest.mark.parametrize("target", ("real", "../up/./real", "/absolute"))
def test_a_link_above_that_is_ours(tmp_path, target):
    here = tmp_path / "up"
    (here / "real").mkdir(mode=0o700, parents=True)
    absolute = str(here / "real")
    (here / "link").symlink_to(absolute if target == "/absolute" else target)
    accepted(here / "link" / "cache")
    assert [*(here / "real" / "cache").iterdir()]


def test_a_link_above_of_another_user(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with owned_by_a_stranger("link"):
        assert "symbolic link of user" in refused(tmp_path / "link" / "cache")


def test_a_link_above_to_where_others_may_write(tmp_path):
    (tmp_path / "open" / "real").mkdir(mode=0o700, parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open/real")
    assert str(tmp_path / "open") in refused(tmp_path / "link" / "cache")


def test_links_that_never_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic link" in refused(tmp_path / "a" / "cache")


def test_a_file_in_place_of_the_directory(tmp_path):
    (tmp_path / "cache").write_text("mine")
    assert "not a directory" in refused_by_name(tmp_path / "cache")
    assert "not a directory" in refused_by_name(tmp_path / "cache" / "below")
    assert (tmp_path / "cache").read_text() == "mine"


def refused_by_name(path: Path) -> str:
    compiler = Compiler()
    assert cached(R, compiler(R), Places(own=path)) == compiled(R)
    try:
        with opened(path, create=True):
            return ""
    except CacheError as e:
        return str(e)
    except NotADirectoryError:
        return "not a directory"


@pytest.mark.parametrize("path", ("cache", "./cache", "../cache", "~/cache", ""))
def test_a_path_that_is_not_absolute(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert "absolute" in refused(Path(path))
    assert not [*tmp_path.iterdir()]


def test_no_home_is_no_crash(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "GEMMGEN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it does for an unknown user
    monkeypatch.chdir(tmp_path)
    assert "absolute" in refused(cache.places().own)
    assert not [*tmp_path.iterdir()]


def test_a_shared_directory_is_checked_the_same(tmp_path, caplog):
    shared = tmp_path / "shared"
    accepted(shared)
    compiler = Compiler()
    own = tmp_path / "own"
    shared.chmod(0o777)
    assert cached(R, compiler(R), Places(own=own, shared=(shared,))) == compiled(R)
    assert compiler.calls[R.key] == 1 and "written by others" in caplog.text


def test_hostile_names_are_ordinary_directories(tmp_path):
    for name in ("a\nb", "%s{}", "'; rm -rf x", "\udcff", "..."):
        accepted(tmp_path / name)
