"""Where asked, multiply a K of one block without a loop over K."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.blocks import ForTiles, is_if
from ..ir.nodes import ForK, If, Kernel, Role, Stmt
from ..ir.rewrite import map_body, map_role, walk
from ..target import Target

ONE_BLOCK = Rule(
    id="one-block",
    says="one_block needs an epilogue that sums rows, and consumers that share K blocks neither in slices nor in shares",
    because="Such an epilogue's K is short, often one block, and its tiles many. Elsewhere K has many blocks, "
    "of which each CTA, share or slice has some.",
)
RULES = (ONE_BLOCK,)


def one_block(kernel: Kernel, target: Target, one_block: bool) -> Kernel:
    """With `one_block`, a tile's K block, and its epilogue, are one sequence of statements, of which a compiler can move each: no branch lies
    between products and what waits for them. Sets ForK.of and Block.one_block, which a launch asks for; puts what stands in a tile with K
    blocks under one If."""
    if not one_block:
        return kernel
    loops = {s.of for s in walk(kernel.consumer.body) if isinstance(s, ForK)}
    if kernel.block.fold_rows == 1 or loops != {"tile"}:
        found = ", ".join(sorted(loops))
        values = {"one_block": True, "rows of a sum": kernel.block.fold_rows, "K loops": found}
        raise IllegalConfig(ONE_BLOCK, values, "Use one_block=false.")
    kernel = replace(kernel, block=replace(kernel.block, one_block=True))
    return map_role(kernel, "consumer", _without_loop)


def _without_loop(role: Role) -> Role:
    def visit(s: Stmt) -> Stmt:
        match s:
            case ForK():
                return replace(s, of="only", unroll=1)
            case ForTiles():
                return replace(s, body=_together(s.body))
        return s

    return replace(role, body=map_body(role.body, visit))


def _together(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The K block, and what else asks for one, under one condition where they follow each other."""
    out: list[Stmt] = []
    for s in body:
        inside = s.body if is_if(s, "has_blocks") else (s,) if isinstance(s, ForK) else ()
        if inside and out and is_if(out[-1], "has_blocks"):
            out[-1] = replace(out[-1], body=(*out[-1].body, *inside))
        elif inside:
            out.append(If(when="has_blocks", body=inside))
        else:
            out.append(s)
    return tuple(out)
