"""Variables of gemmgen's: those that there are, and those that somebody misspelt."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest

from gemmgen import environment
from gemmgen.cli import main
from gemmgen.heuristics import tuned
from gemmgen.runtime import cache

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def only_known(monkeypatch):
    for name in [x for x in os.environ if x.upper().startswith(environment.PREFIX)]:
        monkeypatch.delenv(name)
    environment.warn_of_unknown.cache_clear()
    yield
    environment.warn_of_unknown.cache_clear()


@pytest.mark.parametrize(
    ("name", "nearest"),
    (
        ("GEMMGEN_TUNE", "GEMMGEN_TUNED"),
        ("GEMMGEN_TUNNED", "GEMMGEN_TUNED"),
        ("gemmgen_tuned", "GEMMGEN_TUNED"),
        ("GEMMGEN_CACHE_DIR", "GEMMGEN_CACHE"),
        ("GEMMGEN_CACHE_BYTE", "GEMMGEN_CACHE_BYTES"),
        ("GEMMGEN_CACHE_PATHS", "GEMMGEN_CACHE_PATH"),
        ("GEMMGEN_", "GEMMGEN_"),
    ),
)
@pytest.mark.parametrize(
    "use", (cache.places, tuned.databases, lambda: main(["list"])), ids=("cache", "tuned", "cli")
)
def test_a_misspelt_name_is_said_with_the_nearest(monkeypatch, use, name, nearest):
    monkeypatch.setenv(name, "x")
    with pytest.warns(RuntimeWarning, match=f"^{name} is not read; the nearest that is: {nearest}"):
        use()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use()  # said once


def test_names_that_are_read_are_not_spoken_of(monkeypatch, tmp_path):
    for name, value in zip(
        environment.KNOWN, (tmp_path, tmp_path, "5", "none", "none", "0", "never", "0"), strict=True
    ):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("XGEMMGEN_TUNE", "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not environment.unknown() and main(["list"]) == 0


def test_whatever_the_code_reads_is_known():
    """A variable that is added elsewhere, and not to KNOWN, would be called unknown."""
    texts = [x.read_text() for x in (ROOT / "gemmgen").rglob("*.py")]
    found = {name for text in texts for name in re.findall(r'"(GEMMGEN_[A-Z_]+)"', text)}
    assert found - {environment.PREFIX} == set(environment.KNOWN)


@pytest.mark.parametrize("value", ("1e9", "-1", "x", "1 GiB"))
def test_a_bad_number_of_bytes_is_refused(monkeypatch, capsys, value):
    monkeypatch.setenv("GEMMGEN_CACHE_BYTES", value)
    assert main(["cache", "ls"]) == 2
    assert f"GEMMGEN_CACHE_BYTES='{value}'" in capsys.readouterr().err


def test_a_database_that_is_not_there_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMGEN_TUNED", str(tmp_path / "missing.jsonl"))
    tuned.forget()
    with pytest.warns(RuntimeWarning, match=r"missing\.jsonl.*cannot be read"):
        main(["emit", "dense", "-m", "64", "-n", "64", "-k", "64"])
    tuned.forget()
