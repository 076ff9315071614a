"""What tools and hosts read of the project: citation, workflows, forms, hooks, locked versions."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gemmgen.runtime import nvrtc

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

yaml = pytest.importorskip("yaml")
requirements = pytest.importorskip("packaging.requirements")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
YAML = [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
FORMS = [p for p in sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) if p.stem != "config"]
LOCKED_EXTRAS = ("cu13", "test", "docs", "dev")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


# ---- what hosts read ------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAML, ids=name)
def test_yaml_is_read(path):
    assert isinstance(read(path), dict)


def test_citation_is_of_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["cff-version"] == "1.2.0" and citation["title"] == PROJECT["name"]
    assert {"message", "authors"} <= set(citation)


def workflows() -> dict[str, dict]:
    return {p.stem: read(p) for p in sorted(ROOT.glob(".github/workflows/*.yml"))}


def steps() -> list[dict]:
    return [s for w in workflows().values() for job in w["jobs"].values() for s in job["steps"]]


def test_workflows_run_what_contributors_run():
    """Their commands are the Makefile's, on the versions of Python that the package says it is for."""
    run = [step["run"].split() for step in steps() if "run" in step]
    targets = {words[1] for words in run if words[0] == "make"}
    assert targets == {"test", "lint", "docs", "look", "dist"}
    assert all(re.search(rf"^{target}:", MAKEFILE, re.M) for target in targets)
    tested = workflows()["tests"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    said = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested == said and f">={said[0]}" == PROJECT["requires-python"]


def test_actions_are_pinned_by_major_version():
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used and not [u for u in used if not re.fullmatch(r"actions/[\w-]+@v\d+", u)]


def test_workflows_may_only_read():
    assert all(w["permissions"] == {"contents": "read"} for w in workflows().values())


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_forms_ask_for_what_is_needed(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(part["attributes"]["label"] for part in asked)
    assert any(part.get("validations", {}).get("required") for part in asked)
    assert len({part["id"] for part in asked}) == len(asked)


def test_forms_name_commands_that_are_there():
    from gemmgen.cli import COMMANDS

    text = "".join(path.read_text() for path in FORMS)
    named = set(re.findall(r"`gemmgen (\w+)", text))
    assert {"doctor", "run", "bench", "explain"} <= named <= set(COMMANDS)


def test_hooks_run_what_lint_runs():
    hooks = [h for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for h in repo["hooks"]]
    entries = " ".join(h["entry"] for h in hooks)
    assert re.findall(r"\.venv/bin/(\w+)", entries) == ["ruff", "ruff", "mypy", "gemmgen"]
    assert "emit --all --check" in entries
    for h in hooks:
        paths = re.search(r"\((.*)\)", h.get("files", "(gemmgen)"))[1].split("|")
        assert all((ROOT / path).is_dir() for path in paths)


# ---- what is installed ------------------------------------------------------------------------


def wanted(extras=LOCKED_EXTRAS) -> list:
    of = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in of[extra])]
    return [requirements.Requirement(text) for text in texts]


def locked() -> dict[str, set[str]]:
    text = (ROOT / "requirements/dev.lock").read_text()
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.M):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_what_is_locked_is_what_is_wanted(requirement):
    """On failure: make lock."""
    versions = locked()[requirement.name]
    assert all(requirement.specifier.contains(version) for version in versions)


def test_what_is_locked_has_hashes():
    text = (ROOT / "requirements/dev.lock").read_text()
    packages = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert packages and all("--hash=sha256:" in package for package in packages)


def test_the_lock_is_written_as_it_says():
    """`make lock` names the extras that are held against it."""
    recipe = MAKEFILE.partition("\nlock:")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"--extra (\w+)", recipe)) == LOCKED_EXTRAS


def test_advice_to_install_needs_no_index_that_has_gemmgen():
    of = PROJECT["optional-dependencies"]
    quoted = " ".join(f'"{text}"' for text in of["cu13"])
    assert f"pip install {quoted}" == nvrtc.INSTALL
