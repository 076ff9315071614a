"""Row 100: weights that are loaded before the launch before is over."""

from __future__ import annotations

from dataclasses import replace

from check_museum import without

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.rewrite import map_role, map_stmts, statements, walk

from .mutant import Change, edit
from .rows_protocol import row

FEW, ADDING = "fp8-ahead-few", "dense-ahead-adding"
FIRST = "if (ahead_of.next(tile)) {"
WAIT, CONSUMER, PRODUCER = "ptx::wait_for_grids();", "// consumers", "// producer"
PROPERTY, BEFORE = r"\A\[P15 ", r"\A\[P15 dependency\] {} stands before"
RACE = "Race: .*griddepcontrol"


def ahead_too(tensor: str) -> Change:
    """The loads of `tensor` are before the wait, too, and no more after it for those K blocks."""

    def change(k: ir.Kernel) -> ir.Kernel:
        name = f"map_{tensor}"
        loads = tuple(
            s for s in statements(k) if isinstance(s, ir.TmaLoad) and s.tensor_map == name
        )

        def visit(s: ir.Stmt) -> ir.Stmt:
            match s:
                case ir.ForK(of="ahead") | ir.If(when="behind"):
                    return replace(s, body=(*s.body, *loads))
                case ir.ForK():
                    return replace(s, body=tuple(x for x in s.body if x not in loads))
            return s

        return map_stmts(k, visit)

    return change


def at_first(kind: type[ir.Stmt]) -> Change:
    """What the consumers do of a kind they do before they wait."""

    def change(k: ir.Kernel) -> ir.Kernel:
        found = next(s for s in walk(k.consumer.body) if isinstance(s, kind))
        return map_role(k, "consumer", lambda r: replace(r, body=(found, *r.body)))

    return change


def in_each_tile(k: ir.Kernel) -> ir.Kernel:
    """Consumers wait in tiles: those of a CTA that has none never do."""

    def visit(s: ir.Stmt) -> ir.Stmt | tuple[()]:
        match s:
            case ir.WaitForGrids():
                return ()
            case ir.ForTiles(of="cta"):
                return replace(s, body=(ir.WaitForGrids(), *s.body))
        return s

    (body,) = (map_stmts(replace(k, roles=(r,)), visit).roles[0].body for r in k.roles[:1])
    return map_role(k, "consumer", lambda r: replace(r, body=body))


def reading_a_table(k: ir.Kernel) -> ir.Kernel:
    """The scheduler is that of groups whose rows the device counts."""
    table = ir.Param(name="group_rows", ctype="const int*")
    scheduler = replace(k.scheduler, params=("group_rows",))
    return replace(k, params=(*k.params, table), scheduler=scheduler)


def again(k: ir.Kernel) -> ir.Kernel:
    """The loop announces and loads what was loaded ahead."""
    return map_stmts(k, lambda s: s.body if is_if(s, "behind") else s)


def everywhere(k: ir.Kernel) -> ir.Kernel:
    """In every tile as many K blocks are taken for loaded ahead as in the first."""
    return map_stmts(k, lambda s: replace(s, ahead="") if isinstance(s, ir.ForTiles) else s)


def p15(id: str, says: str, change: Change, reason: str = PROPERTY, kernel: str = FEW):
    return row(id, kernel, says, "P", ir=change, reason=reason)


def raced(id: str, says: str, *pairs: tuple[str, str], after: str = ""):
    return row(id, FEW, says, "E", text=edit(*pairs, after=after), reason=RACE)


ROWS = (
    p15("100", "A is loaded ahead too", ahead_too("a"), BEFORE.format("TmaLoad of a")),
    p15("100b", "A's scales are loaded ahead too", ahead_too("scale_a"), BEFORE.format("TmaLoad of scale_a")),
    p15("100c", "the scheduler reads a table of groups before the wait", reading_a_table),
    p15("100d", "D is stored before the wait", at_first(ir.TmaStore), BEFORE.format("TmaStore")),
    p15("100e", "D is added to before the wait", at_first(ir.TmaStore), BEFORE.format("TmaStore"), ADDING),
    p15("100f", "B's scales are read by the consumers before the wait", at_first(ir.LoadBlockScales)),
    p15("100g", "the consumers wait in each tile", in_each_tile),
    p15("100h", "nobody waits", without(ir.WaitForGrids)),
    p15("100i", "nobody promises that B is ready", lambda k: replace(k, ready=()), BEFORE.format("TmaLoad of b")),
    row("100j", FEW, "what was loaded ahead is announced again", "P", ir=again),
    row("100k", FEW, "the first K blocks of every tile are taken for loaded ahead", "P", ir=everywhere),
    raced("100l", "A is loaded ahead too, in the text",
        (FIRST, f"{FIRST} ptx::tma_load(smem_a, &map_a, full, 0, tile.a_row);")),
    raced("100m", "the producer does not wait, in the text", (WAIT, ""), after=PRODUCER),
    raced("100n", "the consumers do not wait, in the text", (WAIT, ""), after=CONSUMER),
    raced("100o", "D is read before the wait, in the text", (FIRST, f"{FIRST} if (d[0] == 1) return;")),
    row("100p", FEW, "one K block more than there are stages is loaded ahead", "E",
        text=edit(("min(STAGES, tile.k_blocks)", "min(STAGES + 1, tile.k_blocks)"))),
    row("100q", FEW, "one K block is counted that was not loaded ahead", "E",
        text=edit((FIRST, f"{FIRST} ++ahead[0];"))),
    row("100r", FEW, "the ring does not move on while it is loaded ahead", "E",
        text=edit(("++ahead[0], ring.advance()", "++ahead[0]"))),
    row("100s", FEW, "the tile that was looked at is taken", "E",
        text=edit(("Scheduler ahead_of = scheduler;", "Scheduler& ahead_of = scheduler;"))),
)  # fmt: skip
