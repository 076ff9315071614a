"""Where B's rows come by page, load a box of each of the tile's pages."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import S32
from ..ir.nodes import Kernel, LoadPages, Registers, Role, Smem, Stmt, TileBody, TmaLoad
from ..ir.pages import HELD, by_page
from ..ir.rewrite import map_body, map_role, statements
from ..ir.stmts import multicasts
from ..target import Target

PAGED_SHARED = Rule(
    id="paged-shared",
    says="rows by page are loaded by the CTA that multiplies them: multicast none or a",
    because="CTAs that share B load a slice of it each, and a page is loaded as a whole.",
)
PAGED_TILE = Rule(
    id="paged-tile",
    says="rows by page need a tile of whole pages: block_n a multiple of their 64 or 32 rows",
    because="A box is one page's rows, and where a tile begins in its page no box says.",
)
RULES = (PAGED_SHARED, PAGED_TILE)


def load_pages(kernel: Kernel, target: Target) -> Kernel:
    """Repeat each load of such an operand for the pages of the tile, one below the other, by numbers that the producer's leader reads when a tile
    begins. Sets TmaLoad.pages, its coordinates and its offset; adds LoadPages and its registers."""
    found = [m for m in kernel.maps if m.pages]
    if not found:
        return kernel
    (paged,) = found
    smem, rows = kernel.buffer(paged.smem), kernel.groups.pages
    loads = [s for s in statements(kernel) if isinstance(s, TmaLoad) and s.smem == smem.name]
    if any(map(multicasts, loads)):
        raise IllegalConfig(PAGED_SHARED, {"multicast": "b"}, "Use multicast=none or a.")
    if smem.rows % rows:
        values = {"block_n": smem.rows, "rows": rows}
        raise IllegalConfig(PAGED_TILE, values, "Use block_n=64, 128, 192 or 256.")
    count = smem.rows // rows

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case TmaLoad() if s in loads:
                return tuple(_of_page(s, smem, number, rows) for number in range(count))
            case TileBody():
                known = LoadPages(dst=HELD, tensor=paged.pages, count=count, rows=rows)
                return replace(s, setup=(known, *s.setup))
        return s

    def reading(r: Role) -> Role:
        pages = Registers(name=HELD, dtype=S32, count=count)
        return replace(r, locals=(*r.locals, pages), body=map_body(r.body, visit))

    return map_role(kernel, "producer", reading)


def _of_page(s: TmaLoad, smem: Smem, number: int, rows: int) -> TmaLoad:
    coords = (s.coords[0], *by_page(number))
    return replace(s, pages=HELD, coords=coords, offset=number * rows * smem.slab_bytes)
