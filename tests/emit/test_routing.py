"""Generated routings: the PTX that NVRTC makes of them, emulated, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from route_reference import KINDS, emulate, reference

from gemmgen import emulator
from gemmgen.errors import IRError
from gemmgen.routing import AHEAD, CTAS, THREADS, Routing, source
from gemmgen.runtime.nvrtc import compile_cubin

nvrtc = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def compiler(request):
    if request.node.get_closest_marker("nvrtc"):
        pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


# Tokens of tests are 150 for each CTA: with 4 choices each warp has 64 copies, and of a cluster five CTAs have some.


def drawn(tokens, top, experts, bits=32, seed=0):
    """Ids, a few of them of no expert."""
    rng = np.random.default_rng(seed)
    return rng.integers(-1, experts + 1, (tokens, top)).astype(KINDS[bits])


def agree(chosen, first=0, local=64, alignment=128, **options):
    found = emulate(chosen, first, local, alignment, **options)
    for got, want in zip(found, reference(chosen, first, local, alignment), strict=True):
        assert got.dtype == want.dtype and np.array_equal(got, want)
    return found


@nvrtc
@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("alignment", (1, 8, 100, 128))
def test_rows_by_expert(alignment, bits):
    agree(drawn(1200, 4, 64, bits), alignment=alignment)


@nvrtc
@pytest.mark.parametrize(
    ("tokens", "top"), ((1, 1), (1, 8), (31, 1), (33, 3), (127, 7), (700, 8), (513, 8))
)
def test_numbers_of_copies(tokens, top):
    """One alone; what ends inside of a warp's 32; several times what a lane loads at once."""
    agree(drawn(tokens, top, 64, seed=tokens))


@nvrtc
def test_more_copies_than_are_loaded_at_once():
    """Warps go on after AHEAD times 32, and the last has less than the others."""
    copies = CTAS * THREADS * AHEAD + CTAS * THREADS // 2 + 1
    agree(drawn(copies, 1, 64), alignment=8)


@nvrtc
@pytest.mark.parametrize("experts", (1, 2, 31, 32, 33, 257, 512))
def test_numbers_of_experts(experts):
    agree(drawn(2400, 2, experts, seed=experts), local=experts, alignment=8)


@nvrtc
@pytest.mark.parametrize("expert", (0, 40, 63))
def test_one_expert_has_all(expert):
    agree(np.full((1600, 4), expert, np.int32))


@nvrtc
def test_experts_without_copies():
    """Between others, before and behind them: their rows end where they would begin."""
    chosen = np.random.default_rng(1).choice(np.array([3, 4, 17, 60], np.int32), (1200, 4))
    _, _, ends = agree(chosen)
    assert (ends[:3] == 0).all() and (ends[5:17] == ends[5]).all() and ends[5] % 128 == 0


@nvrtc
def test_copies_of_no_expert_here():
    slots, copies, ends = agree(np.full((1200, 4), 64, np.int32))
    assert (slots == -1).all() and (copies == -1).all() and not ends.any()


@nvrtc
@pytest.mark.parametrize("bits", KINDS)
def test_some_experts_have_rows(bits):
    """Also where an id wraps to one of them if it is taken for less than 64 bits, or for one without a sign."""
    chosen = drawn(1200, 4, 64, bits)
    limits = np.iinfo(KINDS[bits])
    chosen[::3, 0], chosen[1::3, 1] = limits.min, limits.max
    agree(chosen, first=16, local=24)
    if bits == 64:
        chosen[::2, 2] += 1 << 32
        agree(chosen, first=16, local=24)
    top = np.full((40, 2), np.iinfo(np.int32).min, np.int64) + np.arange(2)
    agree(top.astype(KINDS[bits]), first=(1 << 31) - 2, local=1)


@nvrtc
def test_tokens_apart():
    """The first choices of more: what lies between is not read as ids."""
    agree(drawn(1200, 4, 64), pitch=11)


@nvrtc
@pytest.mark.parametrize("seed", range(3))
def test_any_schedule(seed):
    """Warps and CTAs in any order: the same rows."""
    agree(drawn(1200, 4, 64), schedule=emulator.Random(seed=seed))


@nvrtc
@pytest.mark.parametrize("schedule", (emulator.Eager, emulator.Late))
def test_first_or_last(schedule):
    agree(drawn(1200, 4, 64), schedule=schedule())


def without(text, of=1):
    """An edit that takes the `of`-th such text away."""

    def edit(source):
        *before, last = source.split(text, of)
        assert len(before) == of
        return text.join(before) + last

    return edit


def instead(old, new):
    def edit(source):
        assert old in source
        return source.replace(old, new)

    return edit


WAIT = "    ptx::cluster_arrive_release();\n    ptx::cluster_wait();\n"
BEGUN = "    ptx::cluster_wait();\n    #pragma"
UNORDERED = {
    "the totals of a cluster": without(WAIT),
    "an arrival that publishes nothing": instead(
        '"barrier.cluster.arrive.release', '"barrier.cluster.arrive.relaxed'
    ),
    "counts of all warps": without("    __syncthreads();\n", 2),
    "sums of all warps": without("    __syncthreads();\n", 1),
    "rows of all warps": without("    __syncthreads();\n", 3),
}


@nvrtc
@pytest.mark.parametrize("name", UNORDERED)
def test_a_barrier_that_is_missing_is_found(name):
    edit = UNORDERED[name]
    with pytest.raises((emulator.Race, emulator.UninitializedRead)):
        emulate(drawn(1200, 4, 64), 0, 64, 128, edit=edit)


@nvrtc
def test_memory_of_a_cta_that_may_not_have_begun_is_found():
    edit = instead(BEGUN, "    #pragma")
    with pytest.raises(emulator.ProtocolError, match="may not have begun"):
        emulate(drawn(1200, 4, 64), 0, 64, 128, edit=edit)


WRONG = {
    "CTAs before this one": instead("i < rank ? x : 0", "i <= rank ? x : 0"),
    "the same place for two CTAs": instead("rank - (rank > cta)", "rank - (rank > 0)"),
    "warps before this one": instead("i < warp ? of_warp", "i <= warp ? of_warp"),
    "lanes before this one": instead("lane >= apart", "lane > apart"),
    "lanes of the same expert": instead("__popc(peers & lower)", "__popc(peers >> 1 & lower)"),
    "unaligned rooms": instead("aligned(of_expert.all, alignment)", "of_expert.all"),
    "another expert's counts": instead("first;", "first - 1;"),
    "no rows of no copy": instead("row < to", "row < from"),
    "none behind all": instead("row < rows", "row < 0"),
    "a copy of no expert": instead("row = expert != NONE ? ", "row = true ? "),
}


@nvrtc
@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found(name):
    """By wrong results, or by the emulator."""
    edit = WRONG[name]
    with pytest.raises((AssertionError, emulator.EmulatorError)):
        agree(drawn(1200, 4, 64), first=1, local=60, edit=edit)


@nvrtc
@pytest.mark.parametrize("bits", KINDS)
def test_they_compile_without_spills(bits):
    """`compile_cubin` refuses a kernel that spills; 48 KiB are what shared memory without a launch attribute has."""
    routing = Routing(bits=bits)
    cubin = compile_cubin(source(routing), routing.name)
    assert cubin.stack_bytes == 0 and cubin.registers * THREADS <= 65536


def test_the_same_routing_is_the_same_text():
    made = [Routing(bits=bits) for bits in KINDS]
    assert len({r.name for r in made}) == len({source(r) for r in made}) == len(made)
    assert all(source(r) == source(r) for r in made)


def test_refusals():
    with pytest.raises(IRError):
        Routing(bits=16)
