"""The IR holds together: malformed kernels are refused, passes keep kernels well formed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from kernels import DENSE, FP8, VARIETY

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IRError
from gemmgen.families import build
from gemmgen.ir.blocks import If, Parts, Piece, TileBody
from gemmgen.ir.dtypes import BF16, DTYPES, E4M3, F16, F32
from gemmgen.ir.expr import PerElement
from gemmgen.ir.nodes import (
    Arrive,
    ExpectTx,
    ForChunks,
    ForK,
    ForTiles,
    InitBarrier,
    Kernel,
    LoadBlockScales,
    Mma,
    Peek,
    PrefetchMap,
    Promote,
    Role,
    ShareScales,
    StageTile,
    Stmt,
    StoreTile,
    Sync,
    TmaLoad,
    Wait,
    Wgmma,
    WgmmaWait,
    Zero,
)
from gemmgen.ir.rewrite import map_role, map_stmts, statements, walk
from gemmgen.ir.text import dump, smem_map, statement
from gemmgen.ir.verify import verify
from gemmgen.passes.check_complete import check_complete
from gemmgen.pipeline import lower
from gemmgen.target import H200

KERNEL = build(FP8, Config())


def swap(cls: type[Stmt], **changes):
    """KERNEL with `changes` made to every statement of class `cls`."""
    assert any(isinstance(s, cls) for s in statements(KERNEL))
    return map_stmts(KERNEL, lambda s: replace(s, **changes) if isinstance(s, cls) else s)


def resource(table: str, index: int, **changes):
    """KERNEL with `changes` made to one resource."""
    nodes = list(getattr(KERNEL, table))
    nodes[index] = replace(nodes[index], **changes)
    return replace(KERNEL, **{table: tuple(nodes)})


def role(name: str, **changes) -> Kernel:
    return map_role(KERNEL, name, lambda r: replace(r, **changes))


CONSUMER, PRODUCER = KERNEL.roles
REGISTER = CONSUMER.locals[0]

# what is wrong: (kernel, a name the error must mention)
MALFORMED = {
    "map-of-no-buffer": (resource("maps", 0, smem="nowhere"), "nowhere"),
    "init-no-barrier": (swap(InitBarrier, barrier="nowhere"), "nowhere"),
    "wait-no-barrier": (swap(Wait, barrier="nowhere"), "nowhere"),
    "arrive-no-barrier": (swap(Arrive, barrier="nowhere"), "nowhere"),
    "expect-no-barrier": (swap(ExpectTx, barrier="nowhere"), "nowhere"),
    "wait-empty-barrier": (swap(Wait, barrier=""), "Wait.barrier names ''"),
    "expect-what-no-barrier-counts": (
        swap(ExpectTx, tx_bytes=7),
        "ExpectTx of 7 bytes: full counts None",
    ),
    "tell-a-cluster-of-one": (swap(Arrive, to="cluster"), "clusters are of one CTA"),
    "scales-without-registers": (
        swap(LoadBlockScales, count=2),
        "LoadBlockScales of 2: .* has 1 registers",
    ),
    "load-no-barrier": (swap(TmaLoad, barrier="nowhere"), "nowhere"),
    "load-no-map": (swap(TmaLoad, tensor_map="nowhere"), "nowhere"),
    "prefetch-no-map": (swap(PrefetchMap, tensor_map="nowhere"), "nowhere"),
    "store-no-map": (swap(StoreTile, tensor_map="nowhere"), "nowhere"),
    "load-no-buffer": (swap(TmaLoad, smem="nowhere"), "nowhere"),
    "stage-no-buffer": (swap(StageTile, smem="nowhere"), "nowhere"),
    "mma-no-a": (swap(Mma, a="nowhere"), "nowhere"),
    "mma-no-b": (swap(Mma, b="nowhere"), "nowhere"),
    "mma-no-registers": (swap(Mma, dst="nowhere"), "nowhere"),
    "zero-no-registers": (swap(Zero, dst="nowhere"), "nowhere"),
    "promote-no-source": (swap(Promote, src="nowhere"), "nowhere"),
    "promote-no-row-scales": (swap(Promote, row_scales="nowhere"), "nowhere"),
    "promote-no-block-scales": (swap(Promote, block_scales="nowhere"), "nowhere"),
    "no-named-barriers": (swap(Sync, of="warpgroup"), "warpgroups is 0"),
    "named-barriers-of-a-cta": (swap(Sync, warpgroups=2), "warpgroups is 2"),
    "a-named-barrier-of-a-cta": (swap(Sync, first_id=1), "first_id is 1"),
    "registers-of-another-role": (role("consumer", locals=()), "acc0"),
    "load-into-another-buffer": (swap(TmaLoad, smem="smem_d"), "smem_d"),
    "load-by-another-map": (swap(TmaLoad, tensor_map="map_d"), "map_d"),
    "two-buffers": (resource("smem", 0, name="smem_b"), "smem_b"),
    "two-maps": (resource("maps", 0, name="map_b"), "map_b"),
    "two-barriers": (resource("barriers", 0, name="empty"), "empty"),
    "two-parameters": (resource("params", 0, name="shape_k"), "shape_k"),
    "a-parameter-and-a-buffer": (resource("params", 0, name="smem_a"), "smem_a"),
    "registers-and-a-barrier": (
        role("producer", locals=(replace(REGISTER, name="full"),)),
        "full",
    ),
    "registers-of-two-roles": (role("producer", locals=(REGISTER,)), "acc0"),
    "two-rings": (resource("barriers", 0, stages=9), "stages"),
    "fewer-groups-than-none": (swap(WgmmaWait, pending=-1), "pending"),
    "two-stages-back": (swap(Arrive, lag=2), "lag"),
    "no-such-phase": (swap(Wait, flip=2), "flip"),
    "k-loop-outside-tiles": (role("producer", body=(ForK(body=()),)), "ForTiles"),
    "k-loop-in-leader-only": (
        role("producer", body=(If(when="leader", body=(ForK(body=()),)),)),
        "ForTiles",
    ),
    "after-first-outside-k": (
        role("producer", body=(ForTiles(body=(If(when="after_first", body=()),)),)),
        "ForK",
    ),
    "a-tile's-parts-outside-tiles": (role("producer", body=(TileBody(main=()),)), "ForTiles"),
    "a-k-block's-outside-k": (role("producer", body=(ForTiles(body=(Piece(),)),)), "ForK"),
    "turns-in-tiles": (
        role("consumer", body=(ForTiles(body=(ForTiles(of="turn", body=()),)),)),
        "ForTiles stands inside another",
    ),
    "tiles-in-turns": (
        role("consumer", body=(ForTiles(of="turn", body=(ForTiles(body=()),)),)),
        "ForTiles stands inside another",
    ),
    "turns-in-turns": (
        role(
            "consumer",
            body=(
                ForTiles(
                    of="turn", body=(If(when="leader", body=(ForTiles(of="turn", body=()),)),)
                ),
            ),
        ),
        "ForTiles stands inside another",
    ),
    "runs-without-a-run": (
        role("consumer", body=(ForTiles(of="runs", body=()),)),
        "ForTiles of runs holds 0 ForTiles of a run",
    ),
    "a-run-in-tiles": (
        role("consumer", body=(ForTiles(body=(ForTiles(of="run", body=()),)),)),
        "ForTiles of cta holds 1 ForTiles of a run",
    ),
    "a-run-under-a-condition": (
        role(
            "consumer",
            body=(
                ForTiles(of="runs", body=(If(when="leader", body=(ForTiles(of="run", body=()),)),)),
            ),
        ),
        "holds",
    ),
    "a-run-outside-runs": (role("consumer", body=(ForTiles(of="run", body=()),)), "ForTiles"),
    "turn-of-no-barrier": (
        role("consumer", body=(ForTiles(of="turn", body=(Arrive(barrier="nowhere", to="next"),)),)),
        "nowhere",
    ),
    "turn-in-no-register": (
        role(
            "consumer",
            body=(ForTiles(of="turn", body=(Wait(barrier="full", per="turn", turn="nowhere"),)),),
        ),
        "nowhere",
    ),
    "peek-outside-k": (
        role("consumer", body=(ForTiles(body=(Peek(barrier="full", dst=REGISTER.name),)),)),
        "Peek stands outside ForK",
    ),
    "seen-in-no-register": (
        role(
            "consumer",
            body=(ForTiles(body=(ForK(body=(Wait(barrier="full", seen="nowhere"),)),)),),
        ),
        "nowhere",
    ),
    "chunks-outside-tiles": (role("producer", body=(ForChunks(blocks=32, body=()),)), "ForTiles"),
    "k-loop-of-no-chunk": (
        role("producer", body=(ForTiles(body=(ForK(body=(), of="chunk"),)),)),
        "outside ForChunks",
    ),
    "k-loop-of-tiles-in-chunks": (
        role("producer", body=(ForTiles(body=(ForChunks(blocks=32, body=(ForK(body=()),)),)),)),
        "inside ForChunks",
    ),
    "scales-shared-outside-chunks": (
        role(
            "consumer",
            body=(ForTiles(body=(ForK(body=(ShareScales(dst="acc0", src="acc0"),)),)),),
        ),
        "ForChunks",
    ),
    "scales-shared-before-the-k-loop": (
        role(
            "consumer",
            body=(
                ForTiles(
                    body=(ForChunks(blocks=32, body=(ShareScales(dst="acc0", src="acc0"),)),),
                ),
            ),
        ),
        "ForK",
    ),
    "the-next-chunks-scales-outside-chunks": (
        role(
            "consumer",
            body=(
                ForTiles(
                    body=(
                        LoadBlockScales(
                            dst="acc0", tensor="shape_k", count=REGISTER.count, block="next"
                        ),
                    )
                ),
            ),
        ),
        "ForChunks",
    ),
    "chunks-in-chunks": (
        role(
            "producer",
            body=(ForTiles(body=(ForChunks(blocks=32, body=(ForChunks(blocks=32, body=()),)),)),),
        ),
        "inside another",
    ),
    "idle-warpgroup": (role("producer", warpgroups=(3, 4)), "3"),
    "warpgroup-of-two-roles": (role("producer", warpgroups=(1, 2)), "1"),
    "warpgroup-of-nobody": (role("consumer", warpgroups=(1, 2)), "1"),
}


def test_the_original_is_well_formed():
    assert verify(KERNEL) is KERNEL


def test_what_may_stand_in_tiles_may_stand_in_turns():
    k_loop = ForK(body=(If(when="after_first", body=()),))
    chunks = ForChunks(blocks=32, body=(ForK(body=(), of="chunk"),))
    kernel = role("consumer", body=(ForTiles(of="turn", body=(k_loop, chunks)),))
    assert verify(kernel) is kernel


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case):
    kernel, name = MALFORMED[case]
    with pytest.raises(IRError, match=name):
        verify(kernel)


def test_wgmma_operands_have_one_width():
    with pytest.raises(IRError, match="e4m3"):
        Wgmma(n=64, a=BF16, b=E4M3, d=F32)


# ---- walking ------------------------------------------------------------------------------

NEST = (
    Sync(of="cta"),
    ForTiles(
        body=(
            ForK(body=(Wait(barrier="full"), If(when="after_first", body=(Arrive(barrier="e"),)))),
        )
    ),
    WgmmaWait(pending=0),
)


def test_walk_gives_parents_first_in_order():
    names = [type(s).__name__ for s in walk(NEST)]
    assert names == ["Sync", "ForTiles", "ForK", "Wait", "If", "Arrive", "WgmmaWait"]


PARTS = (
    ForTiles(
        body=(
            TileBody(
                setup=(Sync(of="warp"),),
                main=(ForK(body=(Wait(barrier="full"), Piece(release=(Arrive(barrier="e"),)))),),
                drain=(WgmmaWait(pending=0),),
            ),
        )
    ),
)


def test_parts_stand_for_what_they_hold():
    """In the order of their fields, however they were given; no text shows them."""
    tile = TileBody(epilogue=(Sync(of="cta"),), main=(WgmmaWait(pending=0),))
    assert tile.body == (WgmmaWait(pending=0), Sync(of="cta"))
    names = [type(s).__name__ for s in walk(PARTS)]
    assert names == ["ForTiles", "Sync", "ForK", "Wait", "Arrive", "WgmmaWait"]
    joined = map_stmts(nested(PARTS), lambda s: s.body if isinstance(s, Parts) else s)
    assert dump(joined) == dump(nested(PARTS)) and joined != nested(PARTS)


def test_map_stmts_rebuilds_parts():
    def fn(s):
        match s:
            case Arrive():
                return (s, s)
            case TileBody():
                return replace(s, drain=())
        return s

    (tiles,) = map_stmts(nested(PARTS), fn).roles[0].body
    (tile,) = tiles.body
    assert tile.drain == () and len(tile.main[0].body[1].release) == 2


def nested(body: tuple[Stmt, ...]) -> Kernel:
    consumer = Role(name="consumer", warpgroups=(0, 1), locals=(), body=body)
    return replace(KERNEL, prologue=(Sync(of="cta"),), roles=(consumer,))


def test_map_stmts_replaces_bottom_up():
    seen = []
    kernel = map_stmts(nested(NEST), lambda s: seen.append(type(s).__name__) or s)
    assert kernel == nested(NEST)
    expected = ["Sync", "Wait", "Arrive", "If", "ForK", "ForTiles", "WgmmaWait"]
    assert [name for name in seen if seen.count(name) == 1] == expected[1:]
    assert seen.count("Sync") == 2  # the prologue's and the role's


def test_map_stmts_may_drop_and_multiply():
    def fn(s):
        match s:
            case Wait():
                return ()
            case Arrive():
                return (s, s)
        return s

    names = [type(s).__name__ for s in walk(map_stmts(nested(NEST), fn).roles[0].body)]
    assert names == ["Sync", "ForTiles", "ForK", "If", "Arrive", "Arrive", "WgmmaWait"]


def test_map_role_touches_one_role():
    changed = role("producer", registers=40)
    assert [r.registers for r in changed.roles] == [None, 40]
    assert changed.roles[0] is KERNEL.roles[0]


# ---- text ---------------------------------------------------------------------------------


def test_dump_before_passes(golden):
    golden(dump(nested(NEST)))


def test_dump_of_an_epilogue(golden):
    problem = replace(DENSE, epilogue=EPILOGUES["bias_silu"] + PerElement("c", F16))
    stage = next(s for s in statements(build(problem, Config())) if isinstance(s, StageTile))
    golden(statement(stage) + "\n")


def test_smem_map(golden):
    golden("".join(f"{at} {end} {what}\n" for at, end, what in smem_map(lower(FP8, Config()))))


def test_dump_distinguishes_every_config():
    dumps = {dump(lower(*case)) for case in VARIETY.values()}
    assert len(dumps) == len(VARIETY)


# ---- completeness -------------------------------------------------------------------------


def unset_once(kernel: Kernel):
    """(what, kernel with that one field unset) for every field some pass has to set."""

    def optional(node):
        return [f.name for f in fields(node) if "None" in str(f.type)]

    for name in optional(kernel):
        yield name, replace(kernel, **{name: None})
    for table in ("maps", "smem", "barriers", "roles"):
        for i, node in enumerate(getattr(kernel, table)):
            for name in optional(node):
                nodes = list(getattr(kernel, table))
                nodes[i] = replace(node, **{name: None})
                yield f"{type(node).__name__}.{name}", replace(kernel, **{table: tuple(nodes)})
    for cls in {type(s) for s in statements(kernel)}:
        for name in optional(cls):
            without = map_stmts(
                kernel,
                lambda s, cls=cls, name=name: replace(s, **{name: None}) if type(s) is cls else s,
            )
            yield f"{cls.__name__}.{name}", without


def test_check_complete_rejects_every_unset_field():
    names = set()
    for case in ("fp8-multicast-a", "dense"):
        kernel = lower(*VARIETY[case])
        assert check_complete(kernel, H200) is kernel
        for what, incomplete in unset_once(kernel):
            names.add(what)
            with pytest.raises(IRError, match=what.split(".")[-1]):
                check_complete(incomplete, H200)
    assert names >= {"smem_bytes", "TmaMap.box", "Smem.offset", "Barrier.arrivals", "Mma.steps"}
    assert names >= {"Role.registers", "InitBarrier.arrivals", "TmaLoad.rank_bytes"}


@pytest.mark.parametrize(
    "abstract",
    (
        StageTile(src="acc0", smem="smem_d", wave=0),
        StoreTile(tensor_map="map_d", smem="smem_d", wave=0),
        TileBody(main=()),
        Piece(),
    ),
    ids=lambda s: type(s).__name__,
)
def test_check_complete_rejects_abstract_statements(abstract):
    kernel = lower(DENSE, Config())
    with pytest.raises(IRError, match=type(abstract).__name__):
        check_complete(replace(kernel, prologue=(*kernel.prologue, abstract)), H200)


# ---- passes -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VARIETY)
def test_every_pass_keeps_the_kernel_well_formed(case):
    names = []

    def observer(name, kernel):
        assert verify(kernel) is kernel
        names.append(name)

    lowered = lower(*VARIETY[case], observer=observer)
    assert names[0] == "build" and names[-1] == "check_complete"
    assert lowered == lower(*VARIETY[case])
    assert dump(lowered) == dump(lower(*VARIETY[case]))


def test_statements_name_parameters_that_exist():
    """LoadBlockScales reads a tensor and its strides, an epilogue its vectors: by parameter name."""
    problem = replace(FP8, epilogue=EPILOGUES["scaled"])
    kernel = lower(problem, Config())
    names = {p.name for p in kernel.params}
    assert {"arg_row_scale", "arg_column_scale"} <= names
    for s in statements(kernel):
        if isinstance(s, LoadBlockScales):
            assert {s.tensor, f"{s.tensor}_stride_n", f"{s.tensor}_stride_k"} <= names


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtype_table(dtype):
    assert dtype.bytes * 8 == dtype.bits
    assert DTYPES[dtype.name] is dtype
