"""Kernels on trial on the emulator."""

from __future__ import annotations

from functools import cache

import pytest
from kernels import emitted, fitting

from gemmgen.verification import random_normal


def machine(**options):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu

    return EmulatedGpu(**options)


@cache
def prepared(problem, config, edits=()):
    """The kernel, and its program of a source with these replacements."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import prepare

    a = emitted(problem, config)
    source = a.source
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    return a.kernel, prepare(a.kernel, source)


def judged(p, c, shape, groups=None, pad=0, broken=None, seed=1, **options):
    """The verdict on the kernel, its source changed by `broken` if that is given. options: of EmulatedGpu."""
    gpu = machine(**options)
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import judge

    a = emitted(p, c)
    source = broken(a.source) if broken else a.source
    assert not broken or source != a.source
    return judge(
        gpu, prepare(a.kernel, source), a.kernel, p, fitting(p, shape, a.kernel), seed, pad, groups
    )


def same_bits(p, shape, configs, seed):
    """Whether the kernels of all `configs` leave the same bits on random data."""
    gpu = machine()
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import output, pitches

    operands, found = random_normal(p, *shape, seed), []
    for c in configs:
        a = emitted(p, c)
        strides = pitches(a.kernel, shape)
        d = output(p, operands, strides)
        after = gpu.execute(prepare(a.kernel, a.source), operands, strides, d, 0xFF)
        found.append(d.extract(after))
    return all((found[0] == x).all() for x in found)
