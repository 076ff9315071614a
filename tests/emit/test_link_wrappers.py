"""Every function of the PTX layer, each token of it left out or exchanged: its meaning is then another, or it has
none, unless the change is one of EQUIVALENT, POINTED or HINTS."""

from __future__ import annotations

import re

import pytest
from kernels import VARIETY, emitted

from gemmgen.emit import PTX, environment
from gemmgen.ir.dtypes import BF16, F32
from gemmgen.ir.resources import Wgmma
from gemmgen.link import TextDiffers, link
from gemmgen.link.errors import Unreadable
from gemmgen.link.tokens import TOKEN
from gemmgen.link.unit import _namespace, function
from gemmgen.link.walk import Walk

INSTR = Wgmma(n=16, a=BF16, b=BF16, d=F32)


def functions() -> dict[str, str]:
    env = environment()
    env.globals["instr"] = INSTR
    text = "\n".join(env.get_template(name).render() for name in PTX)
    return _namespace(f"namespace ptx {{\n{text}\n}}")


FUNCTIONS = functions()
INSIDE = re.compile(r"%%?\w+|\\n|[A-Za-z_]\w*|\d\w*|::|[^\s\w]")

# Left out, these change no kernel: why.
EQUIVALENT = {
    "const": "what is only read may be read",
    "void": "without a type the compiler refuses it",
    "\\n": "PTX ends instructions with semicolons",
}
# What a parameter points to: none is converted to another unasked, and where memory is read its type is said again.
POINTED = ("TensorMap", "T", "float", "int", "uint16_t", "uint32_t")
OF_OPAQUE = ("load_once_float", "load_once_int")  # pointers only
HINTS = {("prefetch_tensor_map", '"memory"'): "a hint writes no memory that anyone reads"}


def meaning(name: str, text: str):
    """What a call of the function does and returns, its parameters being names; None if it has no meaning."""
    w = Walk({name: text})
    try:
        f = function(text)
        env, args = {}, []
        for of, parameter, count in function(FUNCTIONS[name]).parameters:
            args.append(f"of_{parameter}")
            if count is not None:
                env[args[-1]] = ("array", of, args[-1])
            elif not of.endswith("&"):
                env[args[-1]] = ("typed", of, args[-1])
            if name.removeprefix("ptx::") in OF_OPAQUE:
                env[args[-1]] = ("opaque", env[args[-1]])
        templates = tuple(5 + i for i, _ in enumerate(function(FUNCTIONS[name]).templates))
        value = w.value(("call", name, templates, tuple(args)), env)
    except (Unreadable, ValueError, IndexError, KeyError, TypeError, AttributeError):
        return None
    return w.events, value, f.words


def changes(text: str):
    """(what, text) for each token, and each part of an asm text, left out or exchanged."""
    for m in TOKEN.finditer(text):
        token, at = m[0], m.start()
        if token.startswith("//"):
            continue
        yield token, text[:at] + text[m.end() :]
        if token[0] != '"':
            continue
        for x in INSIDE.finditer(token[1:-1]):
            first, last = at + 1 + x.start(), at + 1 + x.end()
            for new in ("", *exchanged(x[0])):
                yield f"{x[0]} -> {new}" if new else x[0], text[:first] + new + text[last:]


def exchanged(word: str):
    """Another operand, number, state space, scope or order."""
    if re.fullmatch(r"%\d+", word):
        yield f"%{int(word[1:]) ^ 1}"
    elif word.isdigit():
        yield str(int(word) + 1)
    others = {
        "cta": "cluster",
        "cluster": "cta",
        "shared": "global",
        "global": "shared",
        "gpu": "cta",
    }
    others |= {"acquire": "relaxed", "release": "relaxed", "parity": "noparity", "arrive": "wait"}
    others |= {
        "f32": "u32",
        "b64": "b32",
        "add": "min",
        "read": "write",
        "inc": "dec",
        "dec": "inc",
    }
    yield from (new for old, new in others.items() if old == word)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_change_of_a_function_shows(name):
    right = meaning(name, FUNCTIONS[name])
    assert right is not None
    missed = [
        what
        for what, text in changes(FUNCTIONS[name])
        if meaning(name, text) == right and not equivalent(name, what)
    ]
    assert missed == []


def equivalent(name: str, what: str) -> bool:
    points = what in POINTED and f"{what}* " in FUNCTIONS[name]
    return points or what in EQUIVALENT or (name.removeprefix("ptx::"), what) in HINTS


def test_a_wait_that_does_not_loop_shows():
    e = emitted(*VARIETY["dense"])
    for old, new in (("@!done bra WAIT;", ""), ("@!done", "@done"), ("bra WAIT", "bra AWAY")):
        assert old in e.source
        with pytest.raises(TextDiffers):
            link(e.kernel, e.source.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    (
        (':: "memory"', "", 'does not clobber "memory"'),
        ("asm volatile(", "asm(", "is not volatile"),
    ),
)
def test_what_is_missing_is_told(old, new, says):
    e = emitted(*VARIETY["dense"])
    begin = e.source.rindex("void store_wait_read()")
    text = e.source[:begin] + e.source[begin:].replace(old, new, 1)
    text = (
        text.replace('::"n"(kPending) : "memory"', '::"n"(kPending)', 1) if old[0] == ":" else text
    )
    with pytest.raises(TextDiffers, match=re.escape(says)):
        link(e.kernel, text)
