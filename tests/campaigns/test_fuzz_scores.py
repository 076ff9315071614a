"""What tests/gpu_fuzz draws of an indexer's scores: right for the kernels, on the emulator, and such that wrong windows and pages show."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from gpu_fuzz.cases import grouped, random_case  # noqa: E402
from gpu_fuzz.exact import Flags, exact  # noqa: E402
from gpu_fuzz.score_kinds import PAGED, SCORES  # noqa: E402
from gpu_fuzz.trial import build  # noqa: E402
from test_fuzz import machine_fixture  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.ops import building  # noqa: E402

DRAWN, MOST = 100, 1 << 14  # cases, and elements of D in one


def found(machine, name, shape, sizes):
    """In one of a few cases: where all windows are alike, or no number is of no page, there is nothing to find."""
    for seed in range(4):
        flags = Flags()
        exact(machine, grouped(name, shape, sizes, seed), flags, 2)
        if [*flags.wrong()]:
            return True
    return False


@pytest.mark.parametrize("machine", ["OtherWindows", "WiderWindow", "PastTheEnd"], indirect=True)
@pytest.mark.parametrize("name", SCORES)
def test_a_window_that_is_another_is_found(machine, name):
    assert found(machine, name, (9, 264, 64), (200, 0, 77))


CLEANING = [("Cleaned" if kind.compact else "Uncleaned", name) for name, kind in SCORES.items()]


@pytest.mark.parametrize(("machine", "name"), CLEANING, indirect=["machine"])
def test_what_lies_outside_of_windows_is_compared(machine, name):
    assert found(machine, name, (9, 264, 64), (200, 0, 77))


@pytest.mark.parametrize("machine", ["OtherPages", "LostPage", "AnyPage"], indirect=True)
@pytest.mark.parametrize("name", PAGED)
def test_a_page_that_is_another_is_found(machine, name):
    assert found(machine, name, (1, 264, 64), (200, 0, 257))


def drawn(name):
    """Cases that are not large, and what the function gets."""
    cases = [random_case(name, seed) for seed in range(DRAWN)]
    return [
        (c, build(c, "cpu").positional) for c in cases if c.m * c.n * max(1, len(c.sizes)) < MOST
    ]


def test_windows_of_all_kinds_are_drawn():
    given = [(torch.full((c.m,), c.n), *x[-2:]) for c, x in drawn("scores of 8 heads")]
    keys, first, end = (torch.cat(x).long() for x in zip(*given, strict=True))
    kinds = {
        "empty": first == end,
        "inverted": end < first,
        "one key": end == first + 1,
        "all": (first == 0) & (end == keys),
        "past the last": (first < keys) & (end > keys),
        "behind it": first > keys,
        "from edge to edge": (first % 64 == 0) & (end % 64 == 0) & (first > 0) & (end > first),
        "beside edges": (first % 64 == 63) & (end % 64 == 1) & (end > first),
    }
    assert [kind for kind, x in kinds.items() if not (x & (keys > 64)).any()] == []
    assert (first >= 0).all() and not all(len(x) for _, x, _ in given)


def what_is_drawn(kv, scale, lengths, table):
    """Of how the cache lies, and of each sequence's pages: `kind, whether a context reaches it`."""
    page, depth = kv.shape[1:]
    fused = scale.data_ptr() - kv.data_ptr() == page * depth
    yield f"fused {fused}, padded {kv.stride(0) > page * (depth + 4 * fused)}"
    for numbers, of in zip(table.tolist(), lengths.tolist(), strict=True):
        yield f"{len(of)} queries"
        yield from (f"{x} keys" for x in {0, 1} & {*of})
        used = -(-max(of) // page)
        reached = [x for x in numbers[:used] if 0 <= x < len(kv)]
        yield from {"permuted"} if reached != sorted(reached) else ()
        yield from {"again"} if len({*reached}) < len(reached) else ()
        for at, x in enumerate(numbers):
            kind = "below 0" if x < 0 else "too large" if x >= len(kv) else "a page"
            yield f"{kind}, {at < used}"


def test_pages_of_all_kinds_are_drawn():
    seen = set()
    for _, (_, kv, scale, _, lengths, table, most) in drawn("scores in pages of 8 heads"):
        seen |= {*what_is_drawn(kv, scale, lengths, table)}
        seen |= {"all keys"} if most in lengths else set()
        seen |= {"no sequences"} if not len(table) else set()
        assert not len(table) or 0 <= lengths.min() <= lengths.max() <= most
    both = (True, False)
    assert seen == {
        *(f"fused {f}, padded {p}" for f in both for p in both),
        *(f"{x} queries" for x in (1, 2, 3, 4)),
        *("0 keys", "1 keys", "all keys", "no sequences", "permuted", "again"),
        *(f"{x}, {r}" for x in ("below 0", "too large", "a page") for r in both),
    }


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", SCORES)
def test_kernels_leave_what_is_wanted(name, monkeypatch):
    """In the whole of what surrounds D, and nothing in what they read."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    trial = build(grouped(name, (5, 200, 64), (130, 0, 77), 3), "cpu")
    before = [parent.clone() for parent in trial.held]
    emulated(monkeypatch, Memory(*trial.held, trial.out.images))
    building.given.cache_clear()
    trial.out.poison(1)
    trial.call(getattr(ops, trial.kind.function), trial.out.views[0])
    building.given.cache_clear()
    assert torch.equal(trial.out.images[0], trial.out.wants[1])
    assert all(map(torch.equal, trial.held, before))
