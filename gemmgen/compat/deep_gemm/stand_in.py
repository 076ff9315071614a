"""`import deep_gemm` without DeepGEMM: this package under that name.

A finder of Python's import system serves the name, so nothing is imported before the program asks for it, and
`importlib.util.find_spec("deep_gemm")`, by which programs ask whether DeepGEMM is there, says that it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

from ... import environment
from ...errors import ArgumentError

NAME = "deep_gemm"
PACKAGE = __name__.rpartition(".")[0]
HERE = Path(__file__).parent
PARTS = ("legacy", "mega", "testing", "utils")
PACKAGES = ("", ".testing", ".utils")
SERVED = (
    "",
    ".legacy",
    ".mega",
    ".testing",
    ".testing.bench",
    ".testing.numeric",
    ".testing.utils",
    ".utils",
    ".utils.dist",
    ".utils.layout",
    ".utils.math",
)


class Served(Loader):
    """Loads a module of this package under another name: it is the same object, of which nothing changes."""

    def __init__(self, tail: str) -> None:
        self.tail = tail

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(PACKAGE + self.tail)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put that of the other name there
        _name_all()


class Finder(MetaPathFinder):
    """Finds `deep_gemm` and its modules here. What this package does not serve there is nowhere: Python would else look for
    it among this package's files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != NAME:
            return None
        tail = fullname.removeprefix(NAME)
        if tail not in SERVED:
            why = f"No module named {fullname!r}: {PACKAGE} stands in for {NAME}, and has none"
            raise ModuleNotFoundError(why, name=fullname)
        whole = tail in PACKAGES
        return spec_from_loader(fullname, Served(tail), origin=str(HERE), is_package=whole)


_finder = Finder()
_replaced: dict[str, ModuleType] = {}


def install(replace: bool = False) -> None:
    """From now on `import deep_gemm` finds this package in the whole process, and `deep_gemm.utils` and
    `deep_gemm.testing` with their modules, in every form of import, also where DeepGEMM is installed.

    Raises ArgumentError if another deep_gemm has been imported, unless `replace` says to stand in for it:
    what a program already took from that one stays as it is. A second call changes nothing.
    """
    theirs = [name for name in _loaded() if not _ours(sys.modules[name])]
    if theirs and not replace:
        where = getattr(sys.modules[theirs[0]], "__file__", None)
        allowed = f"must be True: {theirs[0]} is already imported, from {where}"
        raise ArgumentError("replace", replace, allowed)
    _replaced.update({name: sys.modules[name] for name in theirs})
    copies = [name for name in _loaded() if sys.modules[name] is not _served(name)]
    for name in copies:
        del sys.modules[name]
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if NAME in sys.modules:
        _name_all()


def uninstall() -> None:
    """Undo `install`: `import deep_gemm` finds again what it found before, and modules that were replaced are those that are
    imported. What a program took from this package stays as it is. Without `install` it does nothing."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    for name in _loaded():
        if _ours(sys.modules[name]):
            del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()


def is_installed() -> bool:
    """Whether `import deep_gemm` finds this package because `install` said so."""
    return _finder in sys.meta_path


def install_if_asked() -> None:
    """`install` if the environment variable GEMMGEN_AS_DEEP_GEMM is 1, nothing if it is 0 or not set: what vLLM and SGLang
    call in each of their processes, as a plugin. Raises ArgumentError for other values, and as `install`."""
    text = os.environ.get(environment.AS_DEEP_GEMM, "")
    if text not in ("", "0", "1"):
        raise ArgumentError(environment.AS_DEEP_GEMM, text, "must be 0 or 1")
    if text == "1":
        install()


def _name_all() -> None:
    """Every module of this package under the other name too: an import of one by one would bind `testing.bench`, a function,
    to the module of that name."""
    for tail in SERVED:
        sys.modules[NAME + tail] = import_module(PACKAGE + tail)
    for name in PARTS:  # an import of copies of them has put those in their place
        setattr(sys.modules[NAME], name, sys.modules[f"{NAME}.{name}"])


def _served(name: str) -> ModuleType | None:
    return sys.modules.get(PACKAGE + name.removeprefix(NAME))


def _loaded() -> list[str]:
    """The modules that the name has brought, the package first."""
    return sorted(name for name in sys.modules if name == NAME or name.startswith(f"{NAME}."))


def _ours(module: ModuleType | None) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and HERE in (Path(path).parent, *Path(path).parents)
