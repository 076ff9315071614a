"""Tables that must grow together: a new dtype or family that misses one of them fails here."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.codes import code_type, decode, encode
from gemmgen.families import FAMILIES
from gemmgen.gallery import GALLERY
from gemmgen.ir.dtypes import DTYPES
from gemmgen.problem import OUTPUTS
from gemmgen.recipes import RECIPES
from gemmgen.verification.tensor_core import TENSOR_CORES

OPERANDS = sorted({t.name for r in RECIPES.values() for pair in r.operands for t in pair})


@pytest.mark.parametrize("family", FAMILIES)
def test_family_tables(family):
    assert family in RECIPES and [*RECIPES] == [*FAMILIES]
    assert any(e.problem.family == family for e in GALLERY)


@pytest.mark.parametrize("name", OPERANDS)
def test_operand_tables(name):
    assert DTYPES[name] in TENSOR_CORES
    assert bool(DTYPES[name].wgmma_immediates) != DTYPES[name].integer


@pytest.mark.parametrize("dtype", (*(DTYPES[n] for n in OPERANDS), *OUTPUTS), ids=str)
def test_dtype_tables(dtype):
    torch = pytest.importorskip("torch")
    from gemmgen.runtime.torch_tensors import torch_dtype

    assert isinstance(torch_dtype(dtype), torch.dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtypes_have_codes(dtype):
    one = encode(decode(encode(np.array([1.0, -2.0]), dtype), dtype), dtype)
    assert one.dtype == code_type(dtype)
