"""The two kinds of files of a cache: compiled kernels, and what leads to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from gemmgen.config import Config
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.nodes import Kernel
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import cache_entry, cache_index, fingerprint, nvrtc
from gemmgen.runtime.cache import Places, cached
from gemmgen.runtime.cache_entry import BuildInputs
from gemmgen.runtime.nvrtc import Cubin
from gemmgen.target import H200

from .fakes import CUDA_ELF, compiled, recipe

Ask = Callable[[BuildInputs, Callable[[], Cubin], Path], Cubin]


@dataclass(frozen=True)
class Store:
    """file: the name of a recipe's. ask: for its cubin, found in a folder or compiled, which puts it there.
    hostile: files for its key with the right checksum, as by a writer who knows the format."""

    file: Callable[[BuildInputs], str]
    ask: Ask
    hostile: Callable[[BuildInputs], tuple[bytes, ...]]


def hostile(r: BuildInputs) -> tuple[bytes, ...]:
    """Files for the key of `r` with the right checksum, as by a writer who knows the format."""
    good = {"name": r.name, "arch": r.arch, "compiler": r.compiler, "seconds": 0.1, "log": ""}
    changes = (
        {"name": "../../etc/passwd"},
        {"name": "another"},
        {"arch": "sm_100"},
        {"compiler": "12.9"},
        {"seconds": float("nan")},
        {"seconds": "1"},
        {"more": 1},
        {"log": "8 bytes spill stores"},
        {"log": "C7510"},
        {"log": f"Used {'9' * 9999} registers"},
    )
    facts = (b"[" * 100000, b"\xff\xfe", b"{}")
    facts += tuple(json.dumps({**good, **change}).encode() for change in changes)
    return tuple(cache_entry.packed(bytes.fromhex(r.key), text, CUDA_ELF) for text in facts)


@cache
def kernel(name: str) -> Kernel:
    return replace(lower(Problem(family="dense", a=BF16, b=BF16), Config()), name=name)


def asked(r: BuildInputs) -> str:
    return f"what {r.name} computes"


@contextmanager
def machine(folder: Path, build: str = recipe().compiler) -> Iterator[None]:
    """One where an NVRTC of `build` is installed, on which gemmgen has not changed."""
    with (
        patch.dict(os.environ, {"GEMMGEN_CACHE": str(folder)}),
        patch.object(fingerprint, "fingerprint", lambda: "f" * 64),
        patch.object(fingerprint, "unchanged", lambda: True),
        patch.object(nvrtc, "build", lambda: build),
        patch.object(nvrtc, "build_of", lambda version, path: build),
        patch.object(nvrtc, "library", lambda: "/nowhere/libnvrtc.so"),
    ):
        yield


def ask_launch(r: BuildInputs, build: Callable[[], Cubin], folder: Path) -> Cubin:
    """`build` counts what the compiler builds; its cubin is another entry of the folder."""

    def built() -> SimpleNamespace:
        build()
        return SimpleNamespace(kernel=kernel(r.name), source=r.source, name=r.name)

    with machine(folder):
        found = cache_index.ready(asked(r), built, lambda source, name: compiled(r))
    assert (found.kernel.name, found.kernel.smem_bytes) == (r.name, kernel(r.name).smem_bytes)
    return found.cubin


def launch_key(r: BuildInputs) -> str:
    with machine(Path("/nowhere")):
        question = cache_index._question(asked(r), H200)
    assert question
    return question.digest


def hostile_launches(r: BuildInputs) -> tuple[bytes, ...]:
    key = launch_key(r)
    record = cache_index.to_json(cache_index.record_of(kernel(r.name)))
    good = {"key": "0" * 64, "arch": "sm_90a", "compiler": r.compiler, "library": "/nowhere"}
    good |= {"record": record}
    changes: tuple[dict[str, object], ...] = (
        {"key": "../" * 10},
        {"key": 3},
        {"more": 1},
        {"record": {}},
        {"record": {**record, "threads": "128"}},
        {"record": {**record, "threads": 0}},
        {"record": {**record, "smem_bytes": 1 << 40}},
        {"record": {**record, "pdl": 1}},
        {"record": {**record, "maps": [*record["maps"], {}]}},
        {"record": {**record, "buffers": []}},
        {"record": {**record, "block": {**record["block"], "m": 0}}},
        {"record": {**record, "cluster": {"size": 2, "shared": "c"}}},
    )
    facts = (b"[" * 100000, b"\xff\xfe", b"{}")
    facts += tuple(json.dumps({**good, **change}).encode() for change in changes)
    whole = json.dumps(good).encode()
    return (
        *(cache_entry.packed(bytes.fromhex(key), text, b"") for text in facts),
        cache_entry.packed(bytes.fromhex(key), whole, CUDA_ELF),
    )


CUBINS = Store(
    lambda r: f"{r.key}.cubin", lambda r, c, folder: cached(r, c, Places(own=folder)), hostile
)
LAUNCHES = Store(lambda r: f"{launch_key(r)}.launch", ask_launch, hostile_launches)
