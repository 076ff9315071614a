"""Functions of what stands several times in an emitted text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernels import VARIETY

from gemmgen.emit import emit
from gemmgen.emit.numbers import Counter, each
from gemmgen.emit.repeats import Repeat, repeats, shape, spelled
from gemmgen.emit.repeats import longest as longest_of
from gemmgen.ir.blocks import BLOCKS
from gemmgen.ir.nodes import Arrive, StoreTail
from gemmgen.ir.places import plus, total
from gemmgen.ir.rewrite import walk
from gemmgen.pipeline import lower


def found(kernel):
    """Every repeat of a kernel."""
    bodies = [r.body for r in kernel.roles]
    bodies += [s.body for r in kernel.roles for s in walk(r.body) if isinstance(s, BLOCKS)]
    return [x for body in bodies for x in repeats(kernel, body) if isinstance(x, Repeat)]


def tails(*waves):
    return tuple(StoreTail(tensor="d", smem="smem_d", wave=w) for w in waves)


def longest(body):
    return longest_of(body, [*map(shape, body)])


def test_the_longest_repeat_is_found():
    a, b = tails(0)[0], Arrive(barrier="empty")
    assert longest((a, b, replace(a, wave=1), b)) == (2, 2)
    assert longest(tails(0, 1, 2)) == (1, 3)
    assert longest((a, b, b)) == (1, 1)
    assert longest((b, b, b)) == (1, 1), "of what stores nothing there is no function"
    assert longest((a, replace(a, tensor="other"))) == (1, 1)


def test_numbers_are_told_in_terms_of_others():
    known = {(0, 1, 0, 1): "slot"}
    assert str(spelled((0, 64, 0, 64), known)) == "64 * slot"
    assert str(spelled((3, 5, 3, 5), known)) == "2 * slot + 3"
    assert spelled((0, 1, 2, 3), known) is None


@pytest.mark.parametrize(
    "name", ["dense-d-columns", "fp8-d-columns-swizzle", "dense-quantised-waves"]
)
def test_calls_stand_for_the_statements(name):
    """With a call's numbers in their places the function's statements are those of its group."""
    kernel = lower(*VARIETY[name])
    (first, *_) = found(kernel)
    size = len(first.groups) // len(first.calls)
    for i, call in enumerate(first.calls):
        known = dict(zip(first.parameters, call, strict=True))
        text = repr(first.body)
        for c in set(re.findall(r"Counter\(name='\w+', times=-?\d+, more=-?\d+\)", text)):
            counter = eval(c, {"Counter": Counter})
            text = text.replace(c, str(counter.times * known[counter.name] + counter.more))
        for array, given in known.items():
            text = text.replace(f"'{array}'", f"'{given}'")
        assert text == repr(first.groups[i * size : (i + 1) * size])


def test_a_function_is_written_where_it_is_shorter():
    several, one = (emit(lower(*VARIETY[name])) for name in ("dense-d-columns", "dense"))
    called = re.findall(r"\bstore_piece\(.+\);", several)
    assert len(called) > 1 and several.count("const auto store_piece = ") == 1
    assert "store_piece" not in one


@pytest.mark.parametrize("name", VARIETY)
def test_no_function_is_generic(name):
    """NVRTC before 13.5 refuses a lambda with `auto` among its parameters."""
    assert not re.findall(r"\[&\]\([^{]*\bauto\b", emit(lower(*VARIETY[name])))


# ---- numbers ----------------------------------------------------------------------------------------


def test_what_is_0_is_left_out():
    assert (plus(0), plus(3), plus("x")) == ("", " + 3", " + x")
    assert (total(0, "a", 0, 4), total(0, 0)) == ("a + 4", "0")


@pytest.mark.parametrize(
    ("of", "text"),
    (
        (lambda i: 2 * i + 6, "2 * i + 6"),
        (lambda i: i // 2 + 1, "i / 2 + 1"),
        (lambda i: 64 * i // 2, "32 * i"),
        (lambda i: 2 * i % 64 * 2, "2 * i % 64 * 2"),
        (lambda i: 2 * i // 64 * 8192, "2 * i / 64 * 8192"),
        (lambda i: i - 1, "i - 1"),
        (lambda i: (i + 3) // 2, "(i + 3) / 2"),
        (lambda i: (2 * i + 1) % 4, "(2 * i + 1) % 4"),
    ),
)
def test_arithmetic_on_a_counter_is_that_of_its_numbers(of, text):
    assert str(of(Counter("i"))) == text
    for i in range(0, 200, 7):
        assert eval(text.replace("/", "//"), {"i": i}) == of(i)


def test_a_loop_is_there_where_it_runs_more_than_once():
    def body(i):
        return f"  f({i});\n"

    assert (
        each(8, 4, caller=body)
        == "  #pragma unroll\n  for (int i = 0; i < 8; i += 4)\n      f(i);\n"
    )
    assert each(4, 4, caller=body) == "  f(0);\n"
    assert each(12, 4, 8, caller=body) == "  f(8);\n"
    assert each(8, 4, 8, caller=body) == ""
    names = each(1, caller=lambda i: "const int x = 1;\nf(x);\n")
    assert names == "{\n    const int x = 1;\n    f(x);\n}\n", "what it declares is its own"
    two = each(3, caller=lambda i: f"a({i});\nb({i}\n  );\n", pragma="", shown="N")
    assert two == "for (int i = 0; i < N; ++i) {\n    a(i);\n    b(i\n      );\n}\n"
