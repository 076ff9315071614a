"""A checkpoint that is to be packed: which files it has, what is in them, and what its config says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..quant import Checkpoint
from ..quant.checkpoint import SUFFIX
from ..quant.loading import METHODS
from ..quant.stated import PLACE, Stated, stated
from ..untrusted import parse_json, read_text
from .configs import quantised

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
ALONE = "model" + SUFFIX  # the one file, where there is no index
MAP = "weight_map"  # of the index: each tensor's file
OURS = "gemmgen"  # a `quant_method`
FACTS = "._extra_state"  # how a tensor's name ends that only layers of gemmgen have
# What is not copied beside the weights: weights in other files, and what describes how they were quantised.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")  # fmt: skip
DESCRIBES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


@dataclass(frozen=True, kw_only=True)
class Source:
    """folder: where the config is. config: None: there is none. stated: how weights are quantised. beside: files that are copied as they are."""

    folder: Path
    tensors: Checkpoint
    config: dict[str, Any] | None
    stated: Stated
    beside: tuple[Path, ...]


def opened(path: Path, method: str | None) -> Source:
    """The checkpoint in a folder, or of one file. method: of one without a `quantization_config`, one of `gemmgen.quant.METHODS`. Raises ArgumentError, and for one
    that is packed already."""
    with reading(path):
        return _opened(path, method)


def _opened(path: Path, method: str | None) -> Source:
    whole = _is_folder(path)
    folder = path if whole else path.parent
    tensors = Checkpoint(_files(folder) if whole else path)
    config = object_in(folder / CONFIG)
    if config is not None:
        _refuse_ours(config, folder)
    ours = next((name for name in tensors if name.endswith(FACTS)), None)
    if ours is not None:
        raise ArgumentError(ours, str(tensors.places[ours].path), "must not be packed already")
    said = _stated(config, method)
    beside = _beside(folder) if whole else ()
    return Source(folder=folder, tensors=tensors, config=config, stated=said, beside=beside)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """`with` it, what cannot be read is an ArgumentError about `source`. path: what is read, where an error names no file."""
    try:
        yield
    except OSError as e:
        allowed = f"cannot be read: {e.strerror or e}"
        raise ArgumentError("source", str(e.filename or path), allowed) from e
    except ArgumentError as e:
        if e.argument != "paths":
            raise
        raise ArgumentError("source", e.value, e.allowed) from e


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError) as e:  # a NUL, before Python 3.14 only
        raise ArgumentError("source", str(path), f"cannot be read: {e}") from e


def _refuse_ours(config: dict[str, Any], folder: Path) -> None:
    place, said = quantised(config)
    if isinstance(said, dict) and said.get("quant_method") == OURS:
        allowed = f"must not be packed already: {folder / CONFIG} says that it is"
        raise ArgumentError(f"{place}.quant_method", OURS, allowed)


def _stated(config: dict[str, Any] | None, method: str | None) -> Stated:
    place, said = quantised(config or {})
    if method is not None and method not in METHODS:
        raise ArgumentError("method", method, f"must be one of {', '.join(METHODS)}")
    if said is None:
        if method is None:
            allowed = f"is required, one of {', '.join(METHODS)}: no {CONFIG} has a {PLACE}"
            raise ArgumentError("method", None, allowed)
        return Stated(method=method, zeros=method in ("awq", "gptq", "gptq_v2"))
    found = stated(said, place)
    if method is not None:
        raise ArgumentError("method", method, f"must not be given: {CONFIG} says {found.method}")
    return found


def _files(folder: Path) -> list[Path] | Path:
    """Those that the index names, each in the folder; without an index the one that there is, or model.safetensors. Raises ArgumentError for several."""
    told = object_in(folder / INDEX)
    if told is None:
        found = sorted(folder.glob(f"*{SUFFIX}"))
        if len(found) > 1 and folder / ALONE not in found:
            names = [x.name for x in found]
            raise ArgumentError("source", names, f"must have {INDEX}, {ALONE}, or one file")
        return folder / ALONE if folder / ALONE in found else folder
    of = told.get(MAP)
    if not isinstance(of, dict) or not of or not all(isinstance(x, str) for x in of.values()):
        raise ArgumentError(f"{INDEX} {MAP}", type(of).__name__, "must name each tensor's file")
    for name, file in of.items():
        if Path(file).name != file or file in ("", ".", ".."):
            raise ArgumentError(f"{INDEX} {name}", file, "must be the name of a file beside it")
    found = [folder / x for x in dict.fromkeys(of.values())]
    there = Checkpoint(found).places
    for name, file in of.items():
        if name not in there or there[name].path.name != file:
            raise ArgumentError(name, None, f"must be in {file}, as {INDEX} says")
    return found


def _beside(folder: Path) -> tuple[Path, ...]:
    """What else is in the folder: tokenizer, template, licence and others; no folders, and nothing hidden."""
    left = (CONFIG, INDEX, *DESCRIBES)
    return tuple(
        x
        for x in sorted(folder.iterdir())
        if x.is_file() and x.name[0] != "." and x.name not in left and not x.name.endswith(WEIGHTS)
    )


def object_in(path: Path) -> dict[str, Any] | None:
    """An object of JSON, and of Infinity and NaN, as Python writes it; None where there is no such file."""
    try:
        there = path.exists()
    except (OSError, ValueError) as e:
        raise ArgumentError("source", str(path), f"cannot be read: {e}") from e
    if not there:
        return None
    found = parse_json(str(path), read_text("source", path), constants=True)
    if not isinstance(found, dict):
        raise ArgumentError(str(path), type(found).__name__, "must be an object of JSON")
    return found
