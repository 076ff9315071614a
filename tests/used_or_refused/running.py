"""One command line, run in this process: what it printed and wrote, and what kernels it asked for."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gemmgen import cli, gallery
from gemmgen.bench.tuning.compiling import Built
from gemmgen.cli import (
    check_command,
    compile_command,
    emit_command,
    main,
    options,
    serve_command,
    tune_steps,
)
from gemmgen.errors import GemmgenError, RuntimeUnavailable
from gemmgen.ops import building, invariance
from gemmgen.runtime import driver, nvrtc

from . import given_files

TIMES = ("seconds", "operations_per_second")  # differ from run to run
CLOCK = re.compile(r"\b[\d.]+(e-\d+)? (s|operations/s)\b")  # as `check` prints them
COLOURED = ("FORCE_COLOR", "NO_COLOR")


@dataclass(frozen=True)
class Outcome:
    """code: the exit code. said: the JSON on standard output, or the text, without times; of what was refused, the error.
    asked: of every config that was chosen or read, the problem, the shape, the groups and the config. passed: what was
    handed on to what this campaign does not do. files: by name, what was written. broke: what no command may do, "" if it
    did not."""

    code: int
    said: Any
    asked: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()
    broke: str = ""

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(x) for x in self.asked]

    @property
    def request(self) -> dict[str, Any]:
        """What was asked last."""
        return self.requests[-1] if self.asked else {}

    @property
    def is_text(self) -> bool:
        return isinstance(self.said, str)

    def like(self, other: Outcome) -> bool:
        return self == other


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Without a GPU, NVRTC or a browser, with a small gallery, in a folder of files to read, from where nothing is left."""

    def missing(*_: object) -> Any:
        raise RuntimeUnavailable("not here")

    before = Path.cwd()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GEMMGEN_") and k not in COLOURED}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clean["GEMMGEN_CACHE"] = str(Path(folder) / "cache")
        stack.enter_context(mock.patch.dict(os.environ, clean, clear=True))
        stack.enter_context(mock.patch.object(driver, "require_hopper", missing))
        stack.enter_context(mock.patch.object(nvrtc, "bindings", missing))
        for module in (emit_command, check_command, compile_command):
            few = gallery.GALLERY[: given_files.EXHIBITS]
            stack.enter_context(mock.patch.object(module, "GALLERY", few))
        work = Path(folder) / "work"
        work.mkdir()
        os.chdir(work)
        stack.callback(os.chdir, before)
        stack.callback(_into, LAID)
        _into((work, given_files.lay(work)))
        yield


def _into(laid: tuple[Path, dict[Path, bytes]] | None) -> None:
    global LAID
    LAID = laid
    run.cache_clear()


LAID: tuple[Path, dict[Path, bytes]] | None = None  # the folder of `alone`, and what was laid there


@lru_cache(maxsize=4096)
def run(*argv: str) -> Outcome:
    """`gemmgen ARGV`, inside of `alone`: of its folder all is removed afterwards that was not there."""
    if LAID is None:
        raise RuntimeError("run works in a folder that it empties: call it inside of `alone`")
    asked: list[str] = []
    passed: list[str] = []
    errors: list[Any] = []
    out = io.StringIO()
    with contextlib.ExitStack() as stack:
        _noting(stack, asked, passed, errors)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        code, broke = _ran(argv, errors)
    files = tuple(given_files.restored(*LAID).items())
    said = {"error": errors[-1]} if errors else _said(argv, out.getvalue())
    if said is None:
        broke = broke or f"printed no JSON: {out.getvalue()[:100]!r}"
    return Outcome(code, said, tuple(asked), tuple(passed), files, broke)


def _ran(argv: tuple[str, ...], errors: list[Any]) -> tuple[int, str]:
    try:
        return main([*argv]), ""
    except SystemExit as e:
        try:
            cli._parsed([*argv])
        except cli.Refused as refused:  # argparse has printed it and left
            errors.append(cli.described(refused.error))
            return 2, ""
        return 2, f"left by SystemExit {e.code}"
    except Exception as e:
        return 1, f"{type(e).__name__}: {e}"[:300]


def _said(argv: tuple[str, ...], text: str) -> Any:
    """None: no JSON where it must be."""
    if "--json" not in argv:
        return CLOCK.sub("T", text) if argv[0] == "check" else text
    try:
        return _without_times(json.loads(text))
    except ValueError:
        return None


def _without_times(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _without_times(v) for k, v in data.items() if k not in TIMES}
    if isinstance(data, list):
        return [_without_times(x) for x in data]
    return CLOCK.sub("T", data) if isinstance(data, str) else data


# ---- what is noted --------------------------------------------------------------------------


def _noting(
    stack: contextlib.ExitStack, asked: list[str], passed: list[str], errors: list[Any]
) -> None:
    def put(where: Any, name: str, by: Any) -> None:
        stack.enter_context(mock.patch.object(where, name, by))

    put(cli, "_fail", _failed(cli._fail, errors))
    put(options, "config", _configs(options.config, asked))
    put(building, "picked_for", _picks(building.picked_for, passed))
    put(serve_command, "position", _positions(serve_command.position, asked))
    put(serve_command, "Server", Listening)
    put(serve_command, "webbrowser", SimpleNamespace(open=passed.append))
    put(check_command, "check", _sampled(check_command.check, passed))
    note = _note(passed)
    put(tune_steps.choosing, "candidates", _candidates(asked, note))
    put(tune_steps, "compile_all", _compiling(note))


def _note(passed: list[str]) -> Callable[..., None]:
    return lambda *of: passed.append(repr(of))


def _compiling(note: Callable[..., None]) -> Callable[..., Any]:
    def noted(kernels: Any, folder: Any, processes: int, *_: Any) -> dict[Any, Any]:
        note(str(folder) if not folder.is_absolute() else "", processes)
        return {k: Built(cubin=Path("none")) for k in kernels}

    return noted


def _candidates(asked: list[str], note: Callable[..., None]) -> Callable[..., Any]:
    def noted(job: Any, limit: int, factor: float, target: Any) -> tuple[()]:
        request = {"problem": job.problem.to_json(), "shape": [*job.shape], "groups": job.groups}
        asked.append(json.dumps(request | {"device": ""}))
        note(limit, factor, target)
        return ()

    return noted


def _failed(fail: Callable[..., int], errors: list[Any]) -> Callable[..., int]:
    def noted(as_json: bool, e: GemmgenError, code: int) -> int:
        errors.append(cli.described(e))
        return fail(as_json, e, code)

    return noted


def _configs(config: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noted(args: Any, p: Any, at: Any, groups: int = 1, device: str = "", **more: bool) -> Any:
        request = {"problem": p.to_json(), "shape": [*at], "groups": groups, "device": device}
        try:
            found = config(args, p, at, groups, device, **more)
        except GemmgenError:
            asked.append(json.dumps(request))
            raise
        asked.append(json.dumps(request | {"config": found[0].to_json()}))
        return found

    return noted


def _picks(picked: Callable[..., Any], passed: list[str]) -> Callable[..., Any]:
    def noted(p: Any, shape: Any, groups: int, device: str, *more: Any, **named: Any) -> Any:
        found = picked(p, shape, groups, device, *more, **named)
        passed.append(repr((p, shape, groups, device, invariance.asked, found.config)))
        return found

    return noted


def _positions(position: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noted(query: Any) -> Any:
        p = position(query)
        if p.launch:
            request = {"problem": p.launch.problem.to_json(), "shape": [*p.launch.shape]}
            request |= {"groups": p.launch.groups, "device": ""}
            config = {"config": p.config.to_json()} if p.config else {}
            asked.append(json.dumps(request | config))
        return p

    return noted


def _sampled(check: Callable[..., Any], passed: list[str]) -> Callable[..., Any]:
    """Every instance takes minutes: that they are asked for is seen."""

    def noted(kernel: Any, *, thorough: bool) -> Any:
        passed.append(f"thorough={thorough}")
        return check(kernel)

    return noted


class Listening:
    """A server that nobody asks anything."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def serve_forever(self) -> None:
        pass
