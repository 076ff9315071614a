"""`import deep_gemm` without DeepGEMM: this package under that name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ...errors import ArgumentError

NAME = "deep_gemm"
HERE = Path(__file__).parent
SERVED = (
    "",
    ".testing",
    ".testing.bench",
    ".testing.numeric",
    ".testing.utils",
    ".utils",
    ".utils.dist",
    ".utils.layout",
    ".utils.math",
)


def install(replace: bool = False) -> None:
    """From now on `import deep_gemm` finds this package in the whole process, and `deep_gemm.utils` and
    `deep_gemm.testing` with their modules, in every form of import.

    Raises ArgumentError if another deep_gemm has been imported, unless `replace` says to stand in for it:
    what a program already took from that one stays as it is. A second call changes nothing.
    """
    theirs = [name for name in _loaded() if not _ours(sys.modules[name])]
    if theirs and not replace:
        where = getattr(sys.modules[theirs[0]], "__file__", None)
        allowed = f"must be True: {theirs[0]} is already imported, from {where}"
        raise ArgumentError("replace", replace, allowed)
    for name in _loaded():
        del sys.modules[name]
    package = __name__.rpartition(".")[0]
    for name in SERVED:
        sys.modules[NAME + name] = import_module(package + name)
    for name in ("testing", "utils"):  # an import of copies of them has put those in their place
        setattr(sys.modules[NAME], name, sys.modules[f"{NAME}.{name}"])


def _loaded() -> list[str]:
    """The modules that the name has brought, the package first."""
    return sorted(name for name in sys.modules if name == NAME or name.startswith(f"{NAME}."))


def _ours(module: ModuleType | None) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and HERE in (Path(path).parent, *Path(path).parents)
