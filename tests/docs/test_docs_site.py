"""The site holds: pages are found, what they are made of is current, and what is wrong with a built one is seen."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

import gemmgen
from docs.tools import built, messages, seen, site
from docs.tools.faults import fetched, said
from gemmgen.passes import RULES

ROOT = Path(__file__).parents[2]
PAGES = [p.relative_to(ROOT) for p in sorted((ROOT / "docs").rglob("*.md"))]
NAV = re.findall(r"^ +- (?:[^:\n]+: )?([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
NEEDED = ("mkdocs", "material", "mkdocstrings_handlers")

# ---- pages --------------------------------------------------------------------------------


def test_every_page_is_in_the_menu():
    """Decisions are listed on a page of their own; one page is made while the site is built."""
    pages = {p.relative_to("docs").as_posix() for p in PAGES}
    decisions = {p for p in pages if re.match(r"adr/\d", p)}
    assert sorted(NAV) == sorted((pages - decisions) | {"messages.md"})


def test_every_decision_is_listed():
    listed = re.findall(r"\]\((\d[\w-]+\.md)\): (.*)\.$", text("docs/adr/README.md"), re.M)
    files = {p.name: p for p in (ROOT / "docs/adr").glob("0*.md")}
    assert [name for name, _ in listed] == sorted(files)
    for name, title in listed:
        assert files[name].read_text().splitlines()[0].endswith(f": {title}")


def text(path: str) -> str:
    return (ROOT / path).read_text()


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_lead_to_pages(path):
    """On the site, every link between files is one between pages that are there."""
    at = PurePosixPath(path)
    outside = site.linked([at])
    for link in site.links((ROOT / path).read_text()):
        file = site.target(link, at)
        page = site.page_of(file)
        if page.is_relative_to(site.OTHERS):
            assert file in outside, link
        else:
            assert (ROOT / "docs" / page).is_file(), link


@pytest.mark.parametrize(
    "file, page",
    [
        ("docs/adr", "adr/README.md"),
        ("docs/zh/x.md", "zh/x.md"),
        ("SECURITY.md", "repository/SECURITY.md"),
        ("tests/emit/test_emit.py", "repository/tests/emit/test_emit.py.md"),
    ],
)
def test_pages_of_files(file, page):
    assert site.page_of(PurePosixPath(file)) == PurePosixPath(page)


def test_links_are_made_relative_to_pages():
    at = PurePosixPath("docs/adr/0001.md")
    given = "[a](../../tests/x.py) [b](../rules.md#r) [c](https://x.org) [d](#here) `[e](f)`\n"
    made = "[a](../repository/tests/x.py.md) [b](../rules.md#r) [c](https://x.org) [d](#here) `[e](f)`\n"
    assert site.prepared(given, at) == made


def test_code_is_left_alone():
    given = "```sh\nls  # [a](../x.py)\n```\n"
    assert site.prepared(given, PurePosixPath("docs/x.md")) == given


def test_contents_of_lists_are_indented():
    given = "1. one\n\n   ```sh\n   ls\n   ```\n\n- two\n  more\n\nend\n  code\n"
    made = "1. one\n\n    ```sh\n    ls\n    ```\n\n- two\n    more\n\nend\n  code\n"
    assert site.indented(given) == made


# ---- what is made from code ---------------------------------------------------------------


def test_messages_name_rules_and_arguments():
    found = messages.raised()
    rules = {r.what for r in found if r.error == "IllegalConfig"}
    known = {rule.id for rule in RULES}
    assert "smem-capacity" in rules and len(rules & known) > 0.8 * len(known)
    assert any(r.what == "experts" and "at least 1" in r.says for r in found)
    assert all((ROOT / r.file).is_file() for r in found)
    assert messages.page().count("\n## ") == len({r.error for r in found})


def test_api_pages_name_what_is_there():
    """Every `:::` names a module, or a name that its module has; `ops` has all of its names."""
    for path in (ROOT / "docs/api").glob("*.md"):
        for dotted in re.findall(r"^::: ([\w.]+)$", path.read_text(), re.M):
            module, _, name = dotted.rpartition(".")
            assert source(dotted) or name in names(source(module)), f"{path.name}: {dotted}"
    listed = re.findall(r"^::: gemmgen\.ops\.(\w+)$", text("docs/api/ops.md"), re.M)
    assert listed == exported(source("gemmgen.ops"))


def source(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def names(path: Path | None) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body if path else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Assign):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return found


def exported(path: Path | None) -> list[str]:
    for node in ast.parse(path.read_text()).body if path else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


@pytest.mark.parametrize(
    "path", [*ROOT.glob("docs/tools/*.py"), *ROOT.glob("examples/*.py")], ids=lambda p: p.name
)
def test_sources_are_small(path):
    """As those of gemmgen: no file over 300 lines, no function over 60."""
    assert len(path.read_text().splitlines()) <= 300
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


# ---- a built site -------------------------------------------------------------------------


def page(folder: Path, body: str, name: str = "index.html") -> None:
    (folder / name).write_text(f"<html><body>{body}</body></html>")


@pytest.mark.parametrize(
    "body, fault",
    [
        ('<a href="other.html#there">x</a>', None),
        ('<a href="missing.html">x</a>', "leads to missing.html"),
        ('<a href="other.html#nowhere">x</a>', "leads to other.html#nowhere"),
        ('<img src="missing.svg">', "leads to missing.svg"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "loads //fonts.example/x.css"),
        ('<a href="https://example.org">x</a>', None),
    ],
)
def test_faults_of_a_site(tmp_path, body, fault):
    built.page.cache_clear()
    page(tmp_path, body)
    page(tmp_path, '<h1 id="there">x</h1>', "other.html")
    assert built.faults(tmp_path) == ([f"index.html {fault}"] if fault else [])


GOOD = "<!DOCTYPE html><html lang='en'><title>t</title><style>:root { color-scheme: light dark }</style><h1>t</h1>"
FAINT = '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="p"><text y="20" fill="#ccc">x</text></svg>'


def test_faults_that_a_browser_sees(browser, tmp_path, monkeypatch, capsys):
    """Of every page and picture; one that a server gives for any path is none of them."""
    (tmp_path / "charts").mkdir()
    for name, body in (("index", ""), ("404", "<h1>"), ("sub", "<p id='a'>x</p><p id='a'>x</p>")):
        (tmp_path / f"{name}.html").write_text(GOOD + body)
    (tmp_path / "charts/faint.svg").write_text(FAINT)
    monkeypatch.setattr(sys, "argv", ["seen", str(tmp_path)])
    assert seen.main() == 1
    found = [line.split(": ") for line in capsys.readouterr().out.splitlines()]
    kinds = {(file, kind) for file, _, kind, *_ in found}
    assert kinds >= {("charts/faint.svg", "contrast"), ("sub.html", "id twice")}
    assert {file for file, _ in kinds} == {"charts/faint.svg", "sub.html"}


def test_without_a_browser_nothing_is_looked_at(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["seen", str(tmp_path)])
    monkeypatch.setattr(seen, "installed", lambda: None)
    assert seen.main() == 0 and "no page was looked at" in capsys.readouterr().out


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    """The site, built; a test that puts a page of its own there removes it."""
    if not all(map(find_spec, NEEDED)):
        pytest.skip("the extra docs is not installed: `make docs` builds")
    folder = tmp_path_factory.mktemp("built") / "site"
    run = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    made = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    yield folder
    shutil.rmtree(folder)


def test_site_builds(site_folder):
    """Without a warning; every link leads somewhere; nothing is loaded from elsewhere."""
    built.page.cache_clear()
    assert built.faults(site_folder) == [] == built.elsewhere(site_folder)


def test_every_page_says_its_version(site_folder):
    for path in ("index.html", "zh/quick-start.html", "repository/CONTRIBUTING.html"):
        assert f"gemmgen {gemmgen.__version__}, Apache-2.0" in (site_folder / path).read_text()


SEARCH = """new Promise(found => {
document.getElementById("__search").click();
const input = document.querySelector("[data-md-component=search-query]");
input.focus();
input.value = "WORDS";
const asking = setInterval(() => {
  input.dispatchEvent(new Event("keyup", {bubbles: true}));
  const hits = [...document.querySelectorAll("a.md-search-result__link")].map(a => a.pathname);
  if (hits.length) { clearInterval(asking); found(hits); }
}, 50);
})"""


@pytest.mark.parametrize(
    "words, page",
    [("setmaxnreg", "hopper-in-one-kernel.html"), ("ping-pong", "adr/0027-ping-pong.html")],
)
def test_search_finds_in_a_folder(site_folder, tab, words, page):
    """Browsers start no worker and fetch no index there; on a page in a folder of its own too."""
    tab.open((site_folder / "how-to/index.html").as_uri())
    hits = tab.run(SEARCH.replace("WORDS", words))
    names = [hit.removeprefix(f"{site_folder}/") for hit in hits]
    assert page in names
    sources = [names.index(name) for name in names if re.search(r"\.(cu|py|j2)\.html$", name)]
    assert all(names.index(page) < at for at in sources)
    assert [*said(tab), *fetched(tab, site_folder.as_uri())] == []


PICTURES = (
    """[...document.querySelectorAll(".md-content img")].map(i => [i.width, i.naturalWidth])"""
)


@pytest.mark.parametrize("width", (390, 1400))
def test_pictures_keep_their_size(site_folder, tab, width):
    """Their text is as large as they were drawn; they scroll, the page does not."""
    tab.resize(width)
    tab.open((site_folder / "ten-steps.html").as_uri())
    pictures = tab.run(PICTURES)
    assert len(pictures) == 10 and all(abs(shown - drawn) <= 1 for shown, drawn in pictures)
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")


# Of each table: its heading, how far its last column ends beyond its box, how far its first column begins before it,
# scrolled as far as it goes, and whether it had to be.
TABLES = """[...document.querySelectorAll(".md-content table:has(th)")].filter(t => !t.classList.length).map(t => {
  const box = t.closest(".md-typeset__scrollwrap"), cells = [...t.rows].at(-1).cells, room = box.getBoundingClientRect();
  const scrolls = box.scrollWidth > box.clientWidth + 1;
  box.scrollLeft = box.scrollWidth;
  const first = cells[0].getBoundingClientRect(), last = cells[cells.length - 1].getBoundingClientRect();
  return [t.rows[0].innerText, last.right - room.right, room.left - first.left, scrolls];
})"""


@pytest.mark.parametrize("width", (390, 768, 1400))
def test_tables_show_every_column(site_folder, tab, width):
    """On a narrow screen by scrolling past the first column, else at once."""
    tab.resize(width)
    tab.open((site_folder / "performance.html").as_uri())
    tables = tab.run(TABLES)
    assert len(tables) > 15
    for heading, beyond, before, scrolls in tables:
        assert beyond <= 1 and before <= 1, heading
        assert not scrolls or width < 768, heading
    assert any(scrolls for *_, scrolls in tables) == (width < 768)
