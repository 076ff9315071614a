"""pack.json: what a pack holds, for people and for programs that build on it."""

from __future__ import annotations

import json
from typing import Any

from ..ir.nodes import TmaMap
from ..runtime.tensor_map import Matrix, describe
from .groups import choice
from .members import Tensor
from .model import FORMAT, Pack, PackedKernel, Range

NAME = "pack.json"
HEAD = (
    f'{{\n  "format": {FORMAT},'  # how the file begins: a reader needs no JSON to know the format
)


def manifest(pack: Pack) -> str:
    """Sides are expressions over m, n, k and the arguments' strides; strides, shared memory and a CTA's workspace are bytes,
    boxes elements, the innermost dimension first."""
    text = json.dumps(
        {
            "format": FORMAT,
            "generator": "gemmgen",
            "prefix": pack.prefix,
            "device": pack.device,
            "problem": pack.problem.to_json(),
            "kernels": [_kernel(pack, x) for x in pack.kernels],
            "shapes": [_shapes(pack, r) for r in pack.ranges],
        },
        indent=2,
    )
    return text + "\n"


def _shapes(pack: Pack, r: Range) -> dict[str, Any]:
    at = dict(zip(choice(pack.problem).exactly, r.at, strict=True))
    kernel = pack.kernels[r.kernel].kernel.name
    return {**at, "first": r.first, "last": r.last, "kernel": kernel}


def _kernel(pack: Pack, x: PackedKernel) -> dict[str, Any]:
    k = x.kernel
    return {
        "name": k.name,
        "file": x.file,
        "sha256": x.sha256,
        "config": x.config.to_json(),
        "shared_memory": k.smem_bytes,
        "threads": k.threads,
        "tile": [k.block.m, k.block.n],
        "cluster": k.cluster.size,
        "maps": [_map(x, m, t) for m, t in zip(k.maps, pack.interface.tensors, strict=True)],
        "workspace": 4 * k.workspace.words,
        "parameters": [
            {"name": p.name, "type": p.ctype} for p in pack.interface.parameters[: len(k.params)]
        ],
    }


def _map(x: PackedKernel, m: TmaMap, tensor: Tensor) -> dict[str, Any]:
    box, swizzle = constant(x, m)
    return {
        "name": m.name,
        "tensor": tensor.name,
        "dtype": tensor.dtype.tensor_map,
        "dims": [_whole(tensor.inner, m.clip), tensor.outer, *("groups",) * m.grouped],
        "strides": [f"{x} * {tensor.dtype.bytes}" for x in tensor.steps],
        "box": box,
        "swizzle": swizzle,
    }


def constant(x: PackedKernel, m: TmaMap) -> tuple[tuple[int, ...], int]:
    """What a tensor map has whatever the shape: its box and its swizzle."""
    any_matrix = Matrix(pointer=16, outer=1, inner=1, stride=1)
    found = describe(x.kernel, m, any_matrix)
    return found.box, found.swizzle


def _whole(side: str, clip: int) -> str:
    return side if clip == 1 else f"max({clip}, {side} / {clip} * {clip})"
