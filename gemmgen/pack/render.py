"""A pack as files: cubins, the manifest, and C code from templates/pack/."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ..emit import environment
from ..ir.counts import MOST_SIDE, MOST_TILES
from ..ir.dealing import IDLE
from ..ir.groupings import GROUPINGS
from ..ir.text import expression
from ..runtime.launch import MAP_BYTES
from ..target import AT_ONCE, GPC_SMS, H200_SMS
from .fields import shape_checks
from .groups import choice, sides
from .jax import Target, target
from .manifest import HEAD, NAME, constant, manifest
from .members import ADDRESS, Member
from .model import FORMAT, Pack, PackedKernel

# Numbers of the driver's interface (cuda.h): they are its ABI and do not change.
DATA_TYPES = {"UINT8": 0, "INT32": 3, "FLOAT16": 6, "FLOAT32": 7, "BFLOAT16": 9}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}

SOURCES = {
    "{prefix}.h": "header.h.j2",
    "{prefix}.c": "source.c.j2",
    "example.c": "example.c.j2",
    "CMakeLists.txt": "cmake.txt.j2",
}
OF_JAX = {
    "{prefix}_jax.cc": "jax.cc.j2",
    "{prefix}_jax.py": "jax.py.j2",
    "CMakeLists.txt": "jax_cmake.txt.j2",
}


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """A tensor map's constants, as the C table has them."""

    type: int
    bytes: int
    box: tuple[int, ...]
    swizzle: int
    clip: int


def files(pack: Pack, *, jax: bool = False) -> dict[str, bytes]:
    """Every file of the folder, by name. The same pack gives the same bytes. jax: with those of a target for JAX. Raises UnsupportedProblem for what is none."""
    listed = manifest(pack)
    texts = {
        NAME: listed,
        **dict(_sources(pack, listed, target(pack.problem, pack.interface) if jax else None)),
    }
    cubins = {x.file: x.image for x in pack.kernels}
    return {**{name: text.encode() for name, text in texts.items()}, **cubins}


def _sources(pack: Pack, listed: str, found: Target | None) -> Iterator[tuple[str, str]]:
    env, grouping = environment(), GROUPINGS[pack.problem.grouping]
    env.globals |= {
        "pack": pack,
        "prefix": pack.prefix,
        "face": pack.interface,
        "checks": (shape_checks(pack.problem), pack.interface.checks),
        "choice": choice(pack.problem),
        "sides": sides(pack.problem),
        "ragged": int(grouping.ragged or grouping.again),
        "map_bytes": MAP_BYTES,
        "most_tiles": MOST_TILES,
        "most_side": MOST_SIDE,
        "filled": filled(pack),
        "says_workspace": ", and for any other" if pack.interface.sums else "",
        "tables": [x for x in pack.interface.members if x.entry],
        "numbers": [x for x in pack.interface.members if x.ctype != ADDRESS],
        "d_bytes": next(x.example for x in pack.interface.members if x.name == "d"),
        "format": FORMAT,
        "manifest_file": NAME,
        "manifest_head": HEAD.replace("\n", "\\n").replace('"', '\\"'),
        "manifest_sha256": hashlib.sha256(listed.encode()).hexdigest(),
        "gpc_sms": GPC_SMS,
        "whole": H200_SMS,
        "at_once": AT_ONCE,
        "idle": IDLE,
        "map_rows": _map_rows,
    }
    if found:
        env.globals |= {"target": found, "value": expression(pack.problem.value)}
    for name, template in {**SOURCES, **(OF_JAX if found else {})}.items():
        yield name.format(prefix=pack.prefix), env.get_template(f"pack/{template}").render()


def filled(pack: Pack) -> list[Member]:
    """Of what lies in memory, what the example fills with a pattern: the first of them with its first, ..."""
    face = pack.interface
    addresses = (x for x in face.members if x.ctype == ADDRESS)
    return [x for x in addresses if not x.entry and x not in face.workspaces]


def _map_rows(x: PackedKernel) -> Iterator[MapRow]:
    for m in x.kernel.maps:
        dtype, (box, swizzle) = x.kernel.buffer(m.smem).dtype, constant(x, m)
        yield MapRow(
            type=DATA_TYPES[dtype.tensor_map],
            bytes=dtype.bytes,
            box=box,
            swizzle=SWIZZLES[swizzle],
            clip=m.clip,
        )
