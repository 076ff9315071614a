"""What the comparison of two revisions sees."""

from __future__ import annotations

import pytest
from same_code.machine_code import machine_code

from gemmgen.gallery import artifact, exhibit


def test_names_of_locals_say_nothing_and_instructions_do():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime import nvrtc

    base = artifact(exhibit("fp8_block/base"))

    def code(text):
        return machine_code(nvrtc.compile_cubin(text, base.name).image)

    same = base.source.replace("chunk_end", "last_of_chunk")
    other = base.source.replace(
        "mbarrier_init(empty + 8 * i, 8)", "mbarrier_init(empty + 8 * i, 4)"
    )
    assert base.source not in (same, other)
    assert code(base.source) == code(same) != code(other)
    assert code(base.source).instructions > 500
