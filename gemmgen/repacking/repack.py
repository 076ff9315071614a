"""A checkpoint of 4 or 8 bits into files of packed weights, one matrix at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import quant
from ..errors import ArgumentError
from ..ir.dtypes import BF16, F16, DType
from ..ir.packed import COLUMN
from ..quant.loading import OF_8_BITS
from ..quant.stated import PLACE
from ..runtime.torch_tensors import torch
from ..untrusted import read_bytes
from . import configs, folder, shards
from .experts import check_model, experts, of_matrices
from .layers import ACTIVATIONS, Wanted, format_of, group_of, left_wide, linear, names, octets_of
from .loading import VERSION
from .pieces import Copy, Packing, Piece, copied
from .progress import Progress, telling
from .source import CONFIG, OURS, Source, opened, reading

GB = 10**9
PART = 1 << 26  # bytes that are copied at once
BY_TORCH = {"bfloat16": BF16, "float16": F16}
HEAD = "lm_head"


@dataclass(frozen=True, kw_only=True)
class Repacked:
    """What was written. out: the folder. method: what weights were quantised by. weights: what layers call theirs; activations: the dtype that is multiplied with them. layers: how many were
    packed. copied: how many tensors stayed as they were. files: names, in the folder. size: bytes of all tensors."""

    out: Path
    method: str
    weights: str
    activations: str
    layers: int
    copied: int
    files: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        return (
            f"{self.out}: {self.method} is packed as {self.weights} for {self.activations}; layers: {self.layers}, "
            f"other tensors: {self.copied}, files: {len(self.files)}, GB of tensors: {self.size / GB:.2f}"
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What becomes of a checkpoint. layers: names of those that are packed. left: of those with a wide weight of two sides."""

    source: Source
    wanted: Wanted
    pieces: list[Piece]
    layers: list[str]
    left: list[str]


def repack(
    source: str | Path,
    out: str | Path,
    *,
    activations: str | None = None,
    method: str | None = None,
    shard_bytes: int = 5 * GB,
    progress: Progress | None = None,
) -> Repacked:
    """Write `source`, a checkpoint that `gemmgen.quant` reads, to the folder `out`, its weights of 4 and 8 bits as `gemmgen.nn.Linear4bit`, `Linear8bit` and, of MXFP4, `Experts4bit` hold them in a `state_dict`.

    source: a folder of safetensors files with config.json, whose `quantization_config` says the method, or one such file. method: of a source without a `quantization_config`, one of `gemmgen.quant.METHODS`. activations: the dtype that
    packed weights are multiplied with: "bf16", "f16", or of MXFP4 "e4m3", to which layers quantise rows of bfloat16, or "e4m3_128", with a scale for each 128 columns of a row, also of INT4 without zeros whose scales are of 128 columns or whole rows; None: the model's dtype as config.json says it, else "bf16". out: an empty folder, or none yet. shard_bytes: of tensors in a file; a larger
    tensor has a file of its own. progress: called with (bytes read, bytes, the name of the tensor or layer).

    One matrix at a time is in memory, read, packed on the CPU and written. Tensors that are not quantised are copied; biases of experts, and they alone, get the names that `Experts4bit` has for them. config.json is written with a `quantization_config` that says what weights are packed
    from and for (`quant_method` "gemmgen"), and the dtype of activations; other files of the folder, such as a tokenizer's, are copied. `out` is there whole or not at all.

    Returns what was written. Raises ArgumentError, naming the argument, the tensor or the field of the config: for what the readers refuse (act-order, other bits, groups or layouts), layers that are not as the config says, sides that are no multiple of a group,
    experts that are not gpt-oss's, weights that another method quantised, and a checkpoint that is packed already; for a file that cannot be read (`source`) or written (`out`). Raises OSError where the disk fills up meanwhile; what `progress` raises passes.
    """
    into = _path("out", out)
    folder.check_free(into)
    _check_size(shard_bytes)
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", progress, "must be a function of three arguments")
    plan = planned(opened(_path("source", source), method), activations)
    said = plan.source.tensors.metadata | shards.PT
    parts = shards.divided([x for piece in plan.pieces for x in piece.holds], shard_bytes, said)
    size = sum(x.size for piece in plan.pieces for x in piece.holds)
    with folder.whole(into) as there:
        folder.check_space(there, into, sum(x.size for x in parts))
        with folder.writing(into):
            writer = shards.Writer(there, parts)
        with telling(progress) as tell:
            _write(plan, writer, into, tell)
        told = shards.index(parts, size) | {CONFIG: _config(plan)}
        with folder.writing(into):
            for name, data in told.items():
                (there / name).write_bytes(data)
        for path in plan.source.beside:
            _copy_file(path, there / path.name, into)
        with folder.writing(into):
            files = tuple(sorted(x.name for x in there.iterdir()))
    return Repacked(
        out=into,
        method=plan.wanted.stated.method,
        weights=plan.wanted.weights,
        activations=plan.wanted.said,
        layers=len(plan.layers),
        copied=sum(isinstance(x, Copy) for x in plan.pieces),
        files=files,
        size=size,
    )


def planned(source: Source, activations: str | None) -> Plan:
    """What becomes of each tensor, of the files' headers alone; in their order. Raises ArgumentError."""
    said, tensors, method = _said(source.config, activations), source.tensors, source.stated.method
    for name, place in tensors.places.items():
        place.check(name)
    found = names(tensors, method)
    coded = method != "mxfp4"
    if method in OF_8_BITS:
        form = octets_of(tensors.places, found, method, said)
    else:
        grouped = coded and not method.startswith("nvfp4")
        group = group_of(tensors.places, found, source.stated) if grouped else COLUMN
        form = format_of(source.stated, said, group)
    wanted = Wanted(stated=source.stated, format=form, said=said)
    if not coded:
        check_model(source.config)
        found = of_matrices(found)
    layer_of: dict[str, str] = {}
    waiting: dict[str, list[Piece]] = {}
    for layer in found:
        waiting[layer], read = _pieces(tensors, layer, wanted)
        layer_of |= dict.fromkeys(read, layer)
    listed: list[Piece] = []
    for name, place in tensors.places.items():
        packed = waiting.pop(layer_of[name], []) if name in layer_of else None
        listed += [copied(name, place)] if packed is None else packed
    _each_once(listed)
    left = left_wide(tensors.places, layer_of)
    return Plan(source=source, wanted=wanted, pieces=listed, layers=found, left=left)


def _pieces(tensors: quant.Checkpoint, layer: str, wanted: Wanted) -> tuple[list[Piece], set[str]]:
    """What is written of a layer, and the tensors that are not copied then."""
    if wanted.stated.method == "mxfp4":
        of_experts, read = experts(tensors, layer, wanted)
        return [*of_experts], read
    piece, read = linear(tensors, layer, wanted)
    return [piece], read


def _said(config: Mapping[str, Any] | None, activations: str | None) -> str:
    """What packed weights are multiplied with, by name."""
    if activations is None:
        return BY_TORCH.get(configs.dtype_of(config or {}), BF16).name
    if not isinstance(activations, str) or activations not in ACTIVATIONS:
        allowed = f"must be one of {', '.join(ACTIVATIONS)}"
        raise ArgumentError("activations", activations, allowed)
    return activations


def _each_once(pieces: list[Piece]) -> None:
    seen: set[str] = set()
    for name in (x.name for piece in pieces for x in piece.holds):
        if name in seen:
            allowed = "must not be among the tensors: a packed layer has one of that name"
            raise ArgumentError(name, None, allowed)
        seen.add(name)


def _write(plan: Plan, writer: shards.Writer, out: Path, said: Progress) -> None:
    done, of = 0, sum(piece.size for piece in plan.pieces)
    for piece in plan.pieces:
        name = piece.holds[0].name
        said(done, of, name)
        if isinstance(piece, Copy):
            _copy(piece, writer, out)
        else:
            _pack(piece, writer, out, lambda part: said(done + part, of, name))  # noqa: B023 (called here)
        done += piece.size
    writer.check_whole()
    said(done, of, "")


def _copy(piece: Copy, writer: shards.Writer, out: Path) -> None:
    for first in range(0, piece.size, PART):
        with reading(piece.place.path):
            part = piece.place.octets(first, min(PART, piece.size - first))
        with folder.writing(out):
            writer.write(piece.held.name, part, first)


def _copy_file(path: Path, to: Path, out: Path) -> None:
    with reading(path):
        size = path.stat().st_size
    with folder.writing(out):
        to.touch(exist_ok=False)
    for first in range(0, size, PART):
        part = read_bytes("source", path, first, min(PART, size - first))
        with folder.writing(out), to.open("ab") as file:
            file.write(part)


def _pack(piece: Packing, writer: shards.Writer, out: Path, said: Callable[[int], object]) -> None:
    def told(rows: int, of: int) -> None:
        said(piece.size * rows // max(of, 1))

    for name, x in piece.make(told).items():
        octets = x.contiguous().cpu().view(-1).view(torch().uint8).numpy()
        with folder.writing(out):
            writer.write(name, octets.data)


def _config(plan: Plan) -> bytes:
    """config.json of what is written. Its dtype is that of activations, if it has one: layers take no other."""
    wanted, form = plan.wanted, plan.wanted.format
    config = configs.rewritten(plan.source.config or {}, _dtype_name(wanted.to))
    packed = {
        "version": VERSION,
        "from": wanted.stated.method,
        "layers": "experts" if wanted.stated.method == "mxfp4" else "linear",
        "element": form.element,
        "group": form.group,
        "scale": form.scale,
        "zeros": form.zeros,
        "activations": wanted.said,
    }
    said = {"quant_method": OURS, "weights": wanted.weights, "stored": OURS}
    head = [HEAD] * (HEAD not in plan.layers)
    left = configs.left_out([*plan.left, *head], plan.layers)
    config[PLACE] = {**said, "modules_to_not_convert": left, "packed": packed}
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _dtype_name(to: DType) -> str:
    """The model's, in torch's words: rows that are quantised to E4M3 have bfloat16."""
    return next((name for name, t in BY_TORCH.items() if t == to), "bfloat16")


def _path(argument: str, given: Any) -> Path:
    if not isinstance(given, str | Path) or not str(given):
        raise ArgumentError(argument, given, "must be a path")
    return Path(given)


def _check_size(shard_bytes: Any) -> None:
    if isinstance(shard_bytes, bool) or not isinstance(shard_bytes, int) or shard_bytes < 1:
        raise ArgumentError("shard_bytes", shard_bytes, "must be a positive number of bytes")
