"""One command line, run in this process: what it printed, and what kernels it asked for."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from gemmgen.cli import main, options
from gemmgen.errors import GemmgenError, RuntimeUnavailable
from gemmgen.runtime import driver, nvrtc

TIMES = ("seconds", "operations_per_second")  # differ from run to run


@dataclass(frozen=True)
class Outcome:
    """code: the exit code. said: the JSON on standard output, without times. asked: of every config that was chosen or
    read, the problem, the shape, the groups and the config. broke: what no command may do, "" if it did not."""

    code: int
    said: Any
    asked: tuple[str, ...]
    broke: str = ""

    @property
    def request(self) -> dict[str, Any]:
        """What was asked last."""
        return json.loads(self.asked[-1]) if self.asked else {}

    def like(self, other: Outcome) -> bool:
        return (self.code, self.said, self.asked) == (other.code, other.said, other.asked)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Without a GPU and without NVRTC, in an empty folder, from where nothing is left behind."""

    def missing(*_: object) -> Any:
        raise RuntimeUnavailable("not here")

    before = Path.cwd()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GEMMGEN_")}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clean["GEMMGEN_CACHE"] = str(Path(folder) / "cache")
        stack.enter_context(mock.patch.dict(os.environ, clean, clear=True))
        stack.enter_context(mock.patch.object(driver, "require_hopper", missing))
        stack.enter_context(mock.patch.object(nvrtc, "bindings", missing))
        os.chdir(folder)
        stack.callback(os.chdir, before)
        run.cache_clear()
        yield
        run.cache_clear()


@lru_cache(maxsize=4096)
def run(*argv: str) -> Outcome:
    """`gemmgen ARGV --json`."""
    asked: list[str] = []
    out, config = io.StringIO(), options.config

    def noted(args: Any, p: Any, at: Any, groups: int = 1, device: str = "") -> Any:
        request = {"problem": p.to_json(), "shape": [*at], "groups": groups, "device": device}
        try:
            found = config(args, p, at, groups, device)
        except GemmgenError:
            asked.append(json.dumps(request))
            raise
        asked.append(json.dumps(request | {"config": found[0].to_json()}))
        return found

    with (
        mock.patch.object(options, "config", noted),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        try:
            code = main([*argv, "--json"])
        except SystemExit as e:
            return Outcome(2, None, (), f"left by SystemExit {e.code}")
        except Exception as e:
            return Outcome(1, None, (), f"{type(e).__name__}: {e}"[:300])
    try:
        said = _without_times(json.loads(out.getvalue()))
    except ValueError:
        return Outcome(code, None, (), f"printed no JSON: {out.getvalue()[:100]!r}")
    return Outcome(code, said, tuple(asked))


def _without_times(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _without_times(v) for k, v in data.items() if k not in TIMES}
    return [_without_times(x) for x in data] if isinstance(data, list) else data
