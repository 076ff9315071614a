"""Libraries that gemmgen does not depend on: where one is not installed, an error says what to install."""

from __future__ import annotations

import runpy
import sys

import pytest

from gemmgen.compat.needed import needed
from gemmgen.errors import RuntimeUnavailable


def test_what_is_there_is_imported():
    assert needed("json.decoder", "json") is sys.modules["json.decoder"]


@pytest.mark.parametrize("name", ("no_such_library", "json.no_such_module"))
def test_what_is_not_there_is_named(name):
    with pytest.raises(RuntimeUnavailable) as e:
        needed(name, "a-library>=2")
    text = str(e.value)
    assert text.startswith(f"{name} cannot be imported (No module named '{name}'")
    assert text.endswith("Run: pip install 'a-library>=2'")


@pytest.mark.parametrize(
    ("module", "library", "requirement"),
    (
        ("gemmgen.compat.torchao", "torchao", "torchao>=0.18"),
        ("gemmgen.compat.transformers.library", "transformers", "transformers>=5.24"),
    ),
)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_module_that_stands_on_one(monkeypatch, module, library, requirement):
    pytest.importorskip("torch")
    for name in [library, *(x for x in sys.modules if x.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeUnavailable, match=rf"^{library}\..*pip install '{requirement}'$"):
        runpy.run_module(module)
