"""What a kernel is, in words: problem, config, resources, its IR; and what is proved of it."""

from __future__ import annotations

from ..check import PROPERTIES, Proof
from ..config import Config
from ..epilogues import name_of
from ..families import FAMILIES
from ..ir.dtypes import DType
from ..ir.groupings import GROUPINGS
from ..ir.nodes import Kernel
from ..ir.text import dump, expression, smem_map
from ..levers import LEVERS
from ..levers.lever import Lever
from ..pipeline import Artifact
from ..problem import Problem
from ..target import Target
from .page import Facts, Listing, Page, Table, count


def what_it_is(a: Artifact) -> Page:
    """Problem and config in words, and what they take of an SM."""
    tables = (shared_memory(a.kernel, a.target), registers(a.kernel, a.target))
    ir = Listing(title="Lowered IR", lines=tuple(dump(a.kernel).splitlines()), folded=True)
    return Page(
        title="Kernel", blocks=(problem(a.problem), config(a.config, a.kernel), *tables, ir)
    )


def problem(p: Problem) -> Facts:
    a, b = p.stored
    scales = ", with a scale per row and 128 columns" * p.quantised
    named = name_of(p.epilogue)
    value = expression(p.value) + (f" ({named})" if named not in (None, "none") else "")
    items = [
        ("family", f"{p.family}: {FAMILIES[p.family].says}"),
        ("A", f"{_spelled(p.a)} {a}, {p.layout[0]}: contiguous along {a[-2]}"),
        ("B", f"{_spelled(p.b)} {b}, {p.layout[1]}: contiguous along {b[-2]}"),
        ("D", f"{_spelled(p.d)} [M, N]{scales}"),
        ("each element", f"{value}, where acc is its sum over K"),
        ("launch", f"{p.grouping}: {GROUPINGS[p.grouping].says}"),
    ]
    return Facts(title="Problem", items=tuple(items))


def _spelled(t: DType) -> str:
    return t.name.upper()


def config(c: Config, k: Kernel) -> Facts:
    """k: the kernel of `c`, lowered."""
    bytes_each = f"{k.block.k} of K, {c.block_k_bytes} bytes of a row"
    items = [
        ("name", k.name),
        ("tile", f"{c.block_m} x {c.block_n} of the product per CTA; a K block is {bytes_each}"),
        ("ring", f"{c.stages} stages of one K block; {c.unroll} per trip of the consumers' loop"),
        ("warpgroups", _warpgroups(c)),
        ("cluster", _cluster(c)),
        ("tile order", f"in panels of {c.panel} along {c.raster.upper()}"),
        *_unusual(c),
    ]
    return Facts(title="Config", items=tuple(items))


ORDINALS = {2: "second", 3: "third", 4: "fourth"}


def _warpgroups(c: Config) -> str:
    side = "columns of D" if c.swap_ab else "rows of D"
    if c.turns > 1:
        return f"1 loads; {c.consumers} ping-pong, each with a tile of its own: {64 * c.waves} {side}{_sub_tiles(c)}"
    if c.slices > 1:
        of = f"each every {ORDINALS[c.slices]}, of all {64 * c.waves} {side}{_sub_tiles(c)}"
        return f"1 loads; {c.slices} divide a tile's K blocks, {of}"
    multiply = f"{c.consumers} multiply" if c.consumers > 1 else "1 multiplies"
    each = " each" * (c.consumers > 1)
    return f"1 loads; {multiply} {64 * c.waves} {side}{each}{_sub_tiles(c)}"


def _sub_tiles(c: Config) -> str:
    return f", in {c.waves} sub-tiles of 64" * (c.waves > 1)


def _cluster(c: Config) -> str:
    parts = [f"{c.cluster_size} CTAs"] if c.cluster_size > 1 else ["none"]
    parts += [f"two CTAs share {c.multicast.upper()} by multicast"] * (c.multicast != "none")
    parts += [f"{c.split_k} divide a tile's K"] * (c.split_k > 1)
    return ", ".join(parts)


def _unusual(c: Config) -> list[tuple[str, str]]:
    """What a plain config does not have, as far as no other line says it."""
    return [(x.name, _valued(x, c)) for x in LEVERS if x.reads and not x.plain(c)]


def _valued(x: Lever, c: Config) -> str:
    value = getattr(c, x.name)
    return x.reads if value is True else f"{value}: {x.reads}"


def proof(p: Proof) -> Page:
    """Every property by its id, and whether it was proved."""
    verdict = Facts(
        title="Verdict",
        items=(
            ("proved", str(p)),
            ("instances", "; ".join(map(str, p.instances))),
            ("means", "No schedule of the warpgroups deadlocks, races or corrupts."),
        ),
    )
    rows = tuple((x.id, x.name, _holds(x.id, p), x.says) for x in PROPERTIES)
    columns = ("id", "property", "verdict", "says")
    return Page(
        title="Proof", blocks=(verdict, Table(title="Properties", columns=columns, rows=rows))
    )


def _holds(name: str, p: Proof) -> str:
    return "proved" if name in p.properties else "does not apply"


def shared_memory(kernel: Kernel, target: Target) -> Table:
    parts = smem_map(kernel)
    rows = tuple((count(first), count(end - first), what) for first, end, what in parts)
    used, most = kernel.smem_bytes or 0, target.smem_bytes
    return Table(
        title="Shared memory",
        columns=("offset", "bytes", "what"),
        rows=rows,
        note=f"{count(used)} of {count(most)} bytes, {count(most - used)} free.",
    )


def registers(kernel: Kernel, target: Target) -> Table:
    rows = tuple(
        (
            r.name,
            f"{r.count} x {target.warpgroup}",
            str(r.registers),
            str(sum(x.count for x in r.locals)),
            ", ".join(f"{x.name} {x.dtype}[{x.count}]" for x in r.locals),
        )
        for r in kernel.roles
    )
    columns = ("role", "threads", "registers", "of them in arrays", "arrays")
    return Table(title="Registers per thread", columns=columns, rows=rows)
