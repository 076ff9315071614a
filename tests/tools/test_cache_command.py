"""`gemmgen cache`: what it lists, finds and removes."""

from __future__ import annotations

import json
import os

import pytest
from cache_faults.fakes import compiled, faulty, recipe

from gemmgen.cli import main
from gemmgen.runtime.cache import Places, cached

RECIPES = [recipe(i) for i in range(3)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's directory, with three kernels; the one of the middle is damaged."""
    path = tmp_path / "cache"
    monkeypatch.setenv("GEMMGEN_CACHE", str(path))
    for number, r in enumerate(RECIPES):
        cached(r, lambda r=r: compiled(r), Places(own=path))
        os.utime(path / f"{r.key}.cubin", (number, number))
    (path / f"{RECIPES[1].key}.cubin").write_bytes(b"short")
    os.utime(path / f"{RECIPES[1].key}.cubin", (1, 1))
    return path


def run(capsys, *argv):
    code = main(["cache", *argv])
    return code, *capsys.readouterr()


def found(capsys, *argv):
    code, out, _ = run(capsys, *argv, "--json")
    return code, json.loads(out)


def test_ls(folder, capsys):
    code, out, _ = run(capsys, "ls")
    assert code == 0 and "kernel_0" in out and "kernel_2" in out and "damaged" in out
    assert f"3 kernels, {sum(p.stat().st_size for p in folder.iterdir())} bytes in {folder}" in out
    assert "1970-01-01 00:00" in out


def test_ls_as_json(folder, capsys):
    code, data = found(capsys, "ls")
    assert code == 0 and not data["refused"]
    named = {e["key"]: e.get("name") for e in data["entries"]}
    assert named == {RECIPES[0].key: "kernel_0", RECIPES[1].key: None, RECIPES[2].key: "kernel_2"}
    good = next(e for e in data["entries"] if e["key"] == RECIPES[2].key)
    assert (good["registers"], good["arch"], good["used_ns"]) == (168, "sm_90a", 2 * 10**9)


def test_looking_changes_nothing(folder, capsys):
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    for action in ("ls", "verify", "dir"):
        run(capsys, action)
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_verify_names_what_is_damaged(folder, capsys):
    code, out, _ = run(capsys, "verify")
    assert code == 1 and str(folder / f"{RECIPES[1].key}.cubin") in out and "kernel_0" not in out
    code, data = found(capsys, "verify")
    assert code == 1 and [e["key"] for e in data["damaged"]] == [RECIPES[1].key]
    (folder / f"{RECIPES[1].key}.cubin").unlink()
    assert run(capsys, "verify")[:2] == (0, "2 verified, 0 damaged\n")


def test_shared_directories_are_verified_too(folder, tmp_path, capsys, monkeypatch):
    (folder / f"{RECIPES[1].key}.cubin").unlink()
    shared = tmp_path / "shared"
    cached(RECIPES[0], lambda: compiled(RECIPES[0]), Places(own=shared))
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", str(shared))
    assert found(capsys, "verify") == (0, {"entries": 3, "damaged": [], "refused": {}})
    next(shared.iterdir()).write_bytes(b"")
    code, data = found(capsys, "verify")
    assert code == 1 and [e["folder"] for e in data["damaged"]] == [str(shared)]


def test_a_directory_that_is_not_safe(folder, capsys):
    folder.chmod(0o777)
    code, data = found(capsys, "verify")
    assert code == 1 and "written by others" in data["refused"][str(folder)]
    code, out, _ = run(capsys, "dir")
    assert code == 0 and "refused" in out
    code, _, err = run(capsys, "gc", "--all")
    assert code == 1 and "written by others" in err and len([*folder.iterdir()]) == 3


def test_a_disk_that_fails_is_an_error(folder, capsys):
    def hook(name, args):
        if name == "listdir":
            raise OSError(5, "Input/output error")

    with faulty(hook):
        assert run(capsys, "gc")[0] == 1
        assert found(capsys, "ls")[1]["refused"]


@pytest.mark.parametrize(
    ("options", "left"),
    (
        ((), (0, 1, 2)),
        (("--bytes", "1000000"), (0, 1, 2)),
        (("--bytes", "600"), (1, 2)),
        (("--bytes", "0"), ()),
        (("--all",), ()),
    ),
    ids=str,
)
def test_gc_removes_the_oldest(folder, capsys, options, left):
    code, out, _ = run(capsys, "gc", *options)
    assert code == 0 and out.startswith(f"{3 - len(left)} files removed")
    keys = {f"{RECIPES[i].key}.cubin" for i in left}
    assert {p.name for p in folder.iterdir()} == keys


def test_gc_keeps_to_the_limit(folder, capsys, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_BYTES", "600")
    code, data = found(capsys, "gc")
    assert code == 0 and data["removed"] == [RECIPES[0].key] and data["bytes"] > 100


def test_dir(folder, capsys, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", "/missing/here")
    _, data = found(capsys, "dir")
    rows = [(r["use"], r["path"], r["state"]) for r in data["directories"]]
    assert rows == [("own", str(folder), "3 kernels"), ("shared", "/missing/here", "missing")]
    assert data["limit"] == 1 << 30


@pytest.mark.parametrize("action", ("ls", "verify", "gc", "dir"))
def test_no_cache_is_no_error(tmp_path, capsys, monkeypatch, action):
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "missing"))
    assert run(capsys, action)[0] == 0 and not (tmp_path / "missing").exists()
    monkeypatch.setenv("GEMMGEN_CACHE", "none")
    assert run(capsys, action)[0] == 0


@pytest.mark.parametrize(
    ("argv", "argument"),
    (
        (["clear"], "ACTION"),
        (["ls", "--all"], "--all"),
        (["verify", "--bytes", "3"], "--bytes"),
        (["gc", "--bytes", "-1"], "--bytes"),
        (["gc", "--bytes", "3", "--all"], "--bytes"),
    ),
    ids=str,
)
def test_bad_arguments(folder, capsys, argv, argument):
    code, _, err = run(capsys, *argv)
    assert code == 2 and argument in err and len([*folder.iterdir()]) == 3


def test_a_hostile_time_is_shown(folder, capsys):
    for when in (-(2**62) // 10**9, 2**33):
        os.utime(folder / f"{RECIPES[0].key}.cubin", (when, when))
        assert run(capsys, "ls")[0] == 0
