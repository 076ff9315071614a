"""What `import deep_gemm` finds where the folder above is on the path: it installs gemmgen's, and that takes its place."""

from __future__ import annotations

from importlib import import_module

from gemmgen.compat.deep_gemm import install

install()
import_module(__name__)
