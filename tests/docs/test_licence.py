"""Every file has a licence, and what gemmgen emits has none of gemmgen's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def annotations() -> list[dict]:
    return tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]


def test_every_file_has_a_licence():
    """The first table covers all, the next what gemmgen emits, the last what others wrote; each licence has its text."""
    every, output, others = annotations()
    assert (every["path"], every["SPDX-License-Identifier"]) == ("**", PROJECT["license"])
    assert output["path"] == "generated/**"
    text = (ROOT / others["path"]).read_text()
    assert f"SPDX-License-Identifier: {others['SPDX-License-Identifier']}" in text
    assert {p.stem for p in (ROOT / "LICENSES").iterdir()} == {
        a["SPDX-License-Identifier"] for a in annotations()
    }
    licence = (ROOT / f"LICENSES/{PROJECT['license']}.txt").read_text()
    assert (ROOT / "LICENSE").read_text() == licence
    assert output["SPDX-License-Identifier"] in " ".join(PROJECT["license-files"])


def test_the_permission_is_quoted_as_it_is():
    text = (ROOT / "LICENSES/LicenseRef-gemmgen-output.txt").read_text()
    permission = text.partition("\n\n")[2].splitlines()
    quoted = re.findall(r"^> (.*)$", (ROOT / "docs/licence.md").read_text(), re.M)
    assert permission == quoted


def test_emitted_text_states_no_licence():
    for path in (ROOT / "generated").rglob("*.cu"):
        assert not re.search("SPDX|[Cc]opyright|[Ll]icen[cs]e", path.read_text()), path.name


REUSE = shutil.which("reuse", path=Path(sys.executable).parent) or shutil.which("reuse")


@pytest.mark.skipif(REUSE is None, reason="reuse is not installed: `make lint` runs it")
def test_reuse_finds_every_file():
    found = subprocess.run([REUSE, "lint", "--lines"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
