"""Kernels on trial on the emulator."""

from __future__ import annotations

import pytest
from kernels import emitted, fitting


def machine(**options):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import EmulatedGpu

    return EmulatedGpu(**options)


def judged(p, c, shape, groups=None, pad=0, broken=None, seed=1, **options):
    """The verdict on the kernel, its source changed by `broken` if that is given. options: of EmulatedGpu."""
    gpu = machine(**options)
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import judge

    a = emitted(p, c)
    source = broken(a.source) if broken else a.source
    assert not broken or source != a.source
    return judge(gpu, prepare(a.kernel, source), a.kernel, p, fitting(p, shape), seed, pad, groups)
