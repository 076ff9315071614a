"""What a tile and a K block consist of, while they are lowered."""

from __future__ import annotations

import pytest
from kernels import VARIETY

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import Parts
from gemmgen.ir.promotion import PROMOTION
from gemmgen.ir.rewrite import map_stmts, walk
from gemmgen.ir.stmts import releases
from gemmgen.ir.text import dump
from gemmgen.passes import PIPELINE
from gemmgen.passes.join_parts import join_parts
from gemmgen.pipeline import lower
from gemmgen.target import H200

# What may stand in a part, and nowhere else.
OF_TILE = {"main": (ir.ForK,), "epilogue": (ir.StageTile, ir.StoreCommit)}
OF_BLOCK = {
    "loads": (ir.LoadRowScales, ir.LoadColumnScales),
    "products": (ir.Mma, ir.WgmmaCommit),
    "wait": (ir.WgmmaWait,),
    "promote": PROMOTION.__args__,
}


def parts(kernel):
    found = []
    map_stmts(kernel, lambda s: found.append(s) or s if isinstance(s, Parts) else s)
    return found


def holds(part, name, kinds):
    here = [s for s in walk(getattr(part, name)) if isinstance(s, kinds)]
    return here == [s for s in walk(part.body) if isinstance(s, kinds)]


@pytest.mark.parametrize("case", VARIETY)
def test_parts_hold_what_they_are_called_for(case):
    """After every pass that there are parts after. Two roles have a tile; every release of a K block is in a piece."""

    def observe(name, kernel):
        found = parts(kernel)
        if name in after:
            assert not found
            return
        tiles = [x for x in found if isinstance(x, ir.TileBody)]
        pieces = [x for x in found if isinstance(x, ir.Piece)]
        assert len(tiles) == len(kernel.roles) and pieces
        assert all(holds(x, *item) for x in tiles for item in OF_TILE.items())
        assert all(holds(x, *item) for x in pieces for item in OF_BLOCK.items())
        loops = [s for s in walk(kernel.consumer.body) if isinstance(s, ir.ForK)]
        released = [s for loop in loops for s in walk(loop.body) if releases(s)]
        assert released == [s for x in pieces for s in walk(x.release) if releases(s)]

    names = [p.name for p in PIPELINE]
    after = names[names.index("join_parts") :]
    lower(*VARIETY[case], observer=observe)


@pytest.mark.parametrize("case", VARIETY)
def test_joined_they_read_the_same(case):
    built = []
    lower(*VARIETY[case], observer=lambda name, kernel: built.append(kernel))
    joined = join_parts(built[0], H200)
    assert not parts(joined) and dump(joined) == dump(built[0])
