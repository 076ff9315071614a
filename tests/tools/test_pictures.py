"""What pages and pictures look like: where words stand, what readers are told, what a plot draws."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_explain import check_html, contrast

from gemmgen.see import html, plot_picture, svg, text
from gemmgen.see.apart import apart
from gemmgen.see.drawing import LETTER, ticks
from gemmgen.see.page import Bar, Book, Facts, Lane, Lanes, Listing, Page, Part, Plot, Series, Table

SPACE = "{http://www.w3.org/2000/svg}"
DIGIT = 0.011  # pixels: two roundings of the last digit that a place has


def lanes(start, end, legend=(), name="n"):
    bar = Bar(start=start, end=end, mark="a", hue=0, label="", tip="")
    lane = Lane(name=name, bars=(bar,))
    return Lanes(title="T", start=start, end=end, unit="cycles", lanes=(lane,), legend=legend)


def drawn(block):
    return ElementTree.fromstring(svg.render(Page(title="P", blocks=(block,))))


def spans(texts):
    """Where each of some words begins and ends."""
    back = {None: 0, "start": 0, "middle": 0.5, "end": 1}
    for t in texts:
        width = len(t.text) * LETTER
        left = float(t.get("x")) - width * back[t.get("text-anchor")]
        yield left, left + width


@pytest.mark.parametrize(
    "start, end", [(0, 6600), (145800, 150764), (0, 1), (10**8, 10**8 + 100), (3, 999_999)]
)
def test_numbers_of_an_axis_stand_apart_and_inside(start, end):
    root = drawn(lanes(start, end))
    group, *_ = root.iter(f"{SPACE}g")
    axis = [t for t in group.iter(f"{SPACE}text") if t.get("y") == "14"]
    assert len(axis) == len(ticks(start, end)) + 1  # and the unit
    places = sorted(spans(axis))
    assert all(a[1] < b[0] for a, b in pairwise(places))
    assert places[0][0] >= -1e-6 and places[-1][1] <= float(root.get("width"))


def test_the_legend_takes_as_few_rows_as_fit():
    entries = tuple((chr(97 + i), i, "waits for something") for i in range(7))
    root = drawn(lanes(0, 10, entries))
    named = [t for t in root.iter(f"{SPACE}text") if (t.text or "").endswith("something")]
    assert [t.text[0] for t in named] == list("abcdefg")
    assert len({t.get("y") for t in named}) == 2
    assert max(end for _, end in spans(named)) <= float(root.get("width"))


def test_a_picture_of_its_own_is_described():
    root = drawn(lanes(0, 10))
    assert root.get("aria-labelledby") == root.find(f"{SPACE}title").get("id")
    desc = root.find(f"{SPACE}desc")
    assert root.get("aria-describedby") == desc.get("id") and desc.text == "T."
    group, *_ = root.iter(f"{SPACE}g")
    assert group.get("role") == "img" and group.get("aria-label") == "T"


def test_what_scrolls_can_be_focused_and_nothing_else():
    f = Facts(title="F", items=(("a", "b"),))
    t = Table(title="T", columns=("a",), rows=(("1",),))
    document = html.render(Page(title="P", blocks=(f, t, lanes(0, 10))))
    assert document.count("tabindex") == document.count('class="wide') == 2


def test_numbers_are_aligned_in_html():
    t = Table(title="T", columns=("name", "us", "why"), rows=(("a", "1.5", "x"), ("b", "", "1")))
    document = html.render(Page(title="P", blocks=(t,)))
    assert (
        document.count('<td class="number">') == 2
        and '<th scope="col" class="number">us' in document
    )
    assert '<th scope="col">why' in document


# ---- plots --------------------------------------------------------------------------------

POINTS = Series(name="a < b", points=((1, 10), (10, 100), (1000, 650)))
ROOF = Series(name="roof", points=((1, 5), (200, 900), (1000, 900)), line=True)


def plot(**changes):
    made = {"title": "T", "x": "FLOP per byte", "y": "TFLOP/s", "series": (POINTS, ROOF)}
    return Plot(**{**made, "log_x": True, "log_y": True, **changes})


@pytest.mark.parametrize("log", [{}, {"log_y": False}, {"log_x": False, "log_y": False}])
def test_points_lie_inside_and_in_order(log):
    root = drawn(plot(**log))
    marks = [m for m in root.iter(f"{SPACE}path") if m.get("class", "").startswith("mark hue0")]
    assert len(marks) == 3 + 1  # and one in the legend
    places = [
        tuple(map(float, re.findall(r"[\d.]+", m.get("transform"))))
        for m in marks[: len(POINTS.points)]
    ]
    assert places == sorted(places) and [y for _, y in places] == sorted(
        (y for _, y in places), reverse=True
    )
    left, right = plot_picture.LEFT, plot_picture.LEFT + plot_picture.WIDTH
    assert all(left <= x <= right and 20 <= y <= 20 + plot_picture.HEIGHT for x, y in places)
    assert marks[0].find(f"{SPACE}title").text == "a < b: 1, 10"


def test_a_point_stands_where_the_axes_say():
    """Of (10, 100): across from the 100, above the 10."""
    root = drawn(plot())
    mark = next(
        m
        for m in root.iter(f"{SPACE}path")
        if m.find(f"{SPACE}title") is not None and "10, 100" in m[0].text
    )
    x, y = map(float, re.findall(r"[\d.]+", mark.get("transform")))
    texts = {(t.text, t.get("text-anchor")): t for t in root.iter(f"{SPACE}text")}
    assert float(texts["10", "middle"].get("x")) == x
    assert float(texts["100", "end"].get("y")) == pytest.approx(y + 4)
    lines = [p.get("d") for p in root.iter(f"{SPACE}path") if p.get("class") == "tick"]
    assert any(d.startswith(f"M{x:g} ") for d in lines) and any(f" {y:g}H" in d for d in lines)


def test_a_logarithmic_axis_is_one():
    a = plot_picture.axis([1, 1000], True, 100)
    assert a.place(10) - a.place(1) == pytest.approx(a.place(1000) - a.place(100))
    assert a.ticks() == [1, 10, 100, 1000] and 0 < a.place(1) < a.place(1000) < 100
    assert plot_picture.axis([20, 60], True, 100).ticks() == [20, 50]
    assert plot_picture.axis([3, 4], False, 100).place(0) == 0
    one = plot_picture.axis([7], True, 100)
    assert one.place(7) == pytest.approx(50)


def test_a_plot_without_a_logarithm_is_refused():
    with pytest.raises(AssertionError):
        plot(series=(Series(name="s", points=((0, 1),)),))


def test_every_pair_of_series_differs():
    root = drawn(plot(series=tuple(Series(name=f"s{i}", points=((1, 1),)) for i in range(40))))
    marks = [(m.get("class"), m.get("d")) for m in root.iter(f"{SPACE}path") if m.get("transform")]
    assert len(set(marks)) == 40


def marks_of(root):
    """Where each mark stands, but for the legend's, and its words."""
    return {
        m[0].text: tuple(map(float, re.findall(r"[\d.]+", m.get("transform"))))
        for m in root.iter(f"{SPACE}path")
        if m.get("transform") and len(m)
    }


@given(
    st.lists(
        st.tuples(st.floats(0, 700), st.floats(0, 400)) | st.sampled_from([(3.0, 3.0), (700, 390)]),
        max_size=60,
    )
)
def test_marks_never_lie_over_each_other(places):
    """In a picture of 720 x 400: none that need not be is moved, and the first not at all."""
    moved = apart(places, 13, (0, 0), (720, 400))
    assert len(moved) == len(places) and moved[:1] == places[:1]
    for (a, b), (c, d) in combinations(moved, 2):
        assert abs(a - c) >= 13 or abs(b - d) >= 13
    for i, (place, at) in enumerate(zip(places, moved, strict=True)):
        near = any(max(abs(place[0] - x), abs(place[1] - y)) < 13 for x, y in moved[:i])
        assert near or at == place
        assert at == place or (0 <= at[0] <= 720 and 0 <= at[1] <= 400)


def test_a_crowded_plot_shows_every_mark_and_the_best_where_it_is():
    series = tuple(
        Series(name=f"s{i}", points=((10, 100 + i), (1000, 640)), best=(0,) * (i == 3))
        for i in range(9)
    )
    root = drawn(plot(series=(*series, ROOF)))
    found = marks_of(root)
    assert len(found) == 18
    for (a, b), (c, d) in combinations(found.values(), 2):
        assert max(abs(a - c), abs(b - d)) > plot_picture.SIZE - DIGIT
    alone = marks_of(drawn(plot(series=(*series[3:4], ROOF))))
    full = [m for m in root.iter(f"{SPACE}path") if m.get("class") == "mark full"]
    assert [m[0].text for m in full if len(m)] == ["s3: 10, 103"] and len(full) == 2
    assert found["s3: 10, 103"][0] == alone["s3: 10, 103"][0]
    leads = [m for m in root.iter(f"{SPACE}path") if m.get("class") == "lead"]
    assert len(leads) == 16  # all but one of each heap
    assert any("filled: the fastest" in (t.text or "") for t in root.iter(f"{SPACE}text"))
    said = root.find(f"{SPACE}desc").text
    assert all(words in said for words in found)


def test_a_plot_as_text_has_its_points():
    lines = text.render(Page(title="P", blocks=(plot(),))).splitlines()
    assert [line.split() for line in lines if line.startswith("  roof")][1] == [
        "roof",
        "200",
        "900",
    ]


# ---- listings and books -------------------------------------------------------------------


def test_a_diff_says_what_became_of_each_line():
    b = Listing(title="D", lines=("@@ -1 +1 @@", "-a<b", "+c", " d"), diff=True, note="why")
    document = html.render(Page(title="P", blocks=(b,)))
    check_html(document)
    assert "<del>-a&lt;b</del>" in document and "<ins>+c</ins>" in document
    assert '<p class="note">why</p>' in document
    assert text.render(Page(title="P", blocks=(b,))).splitlines()[2:] == [
        *("D", "@@ -1 +1 @@", "-a<b", "+c", " d", "  why")
    ]


def test_a_long_listing_is_folded():
    b = Listing(title="D", lines=("+x", "y"), folded=True)
    document = html.render(Page(title="P", blocks=(b,)))
    assert "<summary>2 lines</summary>\n<pre>+x\ny</pre>" in document


@pytest.mark.parametrize("scheme", (0, 1), ids=("light", "dark"))
def test_what_is_gone_is_legible(scheme):
    gone, ink = (re.findall(rf"--{name}: (#\w+)", html.STYLE)[scheme] for name in ("gone", "ink"))
    assert contrast(gone, ink) >= 4.5


def test_a_book_links_to_its_pages():
    t = Table(title="T", columns=("a",), rows=(("1",),))
    page = Page(title="Page & one", blocks=(t, t))
    b = Book(title="B", parts=(Part(name="x<y", pages=(page, page)), Part(name="y", pages=(page,))))
    document = html.book(b)
    checker = check_html(document)
    targets = re.findall(r'href="#([\w-]+)"', document)
    assert len(targets) == len(set(targets)) == 5 and set(targets) <= checker.ids
    levels = [tag for tag in checker.tags if re.fullmatch(r"h\d", tag)]
    assert levels == ["h1", *("h2", *("h3", "h4", "h4") * 2), "h2", "h3", "h4", "h4"]
    assert len(re.findall(r' id="', document)) == len(checker.ids)
    assert text.book(b).count("Page & one") == 3
