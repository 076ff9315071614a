"""`gemmgen serve`: a page that answers every move of a lever, to its own browser alone, whatever it is asked."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from http.client import HTTPConnection
from threading import Thread, Timer
from urllib.parse import quote, urlencode

import pytest
import serve_walk
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_walk import STARTS, walk

from docs.tools.faults import LAYOUT, faults, fetched, said
from gemmgen.cli import main, playground, serve_command
from gemmgen.cli.playground import page
from gemmgen.cli.playground.panes import PANES, USUAL, drafted, inside
from gemmgen.cli.playground.position import position
from gemmgen.cli.playground.query import LONGEST, Query, names, read, write
from gemmgen.cli.playground.server import HEADERS, Server
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.heuristics.tuned import pick
from gemmgen.ir.counts import MOST_SIDE
from gemmgen.ir.text import dump
from gemmgen.levers import FIELDS, LEVERS, MORE, add
from gemmgen.levers.lever import Lever, integer
from gemmgen.ops import invariance
from gemmgen.passes import RULES
from gemmgen.pipeline import compile_to_source
from gemmgen.problem import Problem
from gemmgen.target import H200

FP8 = Problem(family="fp8_block", a="e4m3", b="e4m3")
SHAPE = (4096, 4096, 4096)
MOVES = 12  # of each walk here; `python -m serve_walk` makes 1,000
NASTY = (
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "</textarea></select><svg onload=alert(1)>",
    "&lt;b&gt; %s {0} \\",
    "\0\x1b[31m\r\nX-Evil: 1",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "[" * 4000,
    "9" * 5000,
    "1e999",
    "NaN",
    '{"a": 1, "a": 2}',
    "../../etc/passwd",
    "²",
)


@pytest.fixture(scope="module")
def server():
    with Server(0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    """Status, headers and text."""
    connection = HTTPConnection(*server.server_address, timeout=60)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    got = connection.getresponse()
    text = got.read().decode()
    connection.close()
    return got.status, got.headers, text


class Tags(HTMLParser):
    """Elements, ids, and what each label is of."""

    def __init__(self, text):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag):
        return [attrs for found, attrs in self.found if found == tag]


# ---- what a query is ------------------------------------------------------------------------


def of_values(values):
    """A strategy: of what a lever takes."""
    if values.listed:
        return st.sampled_from(values.listed())
    if values.span:
        low, high, step = values.span
        numbers = st.integers(0, (high - low) // step).map(lambda i: low + i * step)
        return numbers | st.none() if values.null else numbers
    return st.none() | st.lists(st.integers(0, 300), min_size=2, max_size=2)


@settings(deadline=None, max_examples=150)
@given(
    said=st.fixed_dictionaries({}, optional={n: of_values(x.values) for n, x in names().items()}),
    levers=st.fixed_dictionaries({}, optional={x.name: of_values(x.values) for x in LEVERS}),
    config=st.sampled_from(("", '{"block_n": 64}')),
    panes=st.none() | st.lists(st.sampled_from([*PANES]), unique=True).map(tuple),
)
def test_a_query_is_read_as_it_was_written(said, levers, config, panes):
    q = Query(said=said, config=config, levers=levers, panes=panes)
    got = read(write(q))
    assert all(got.value(name) == q.value(name) for name in names())
    assert (got.config, got.levers, got.panes) == (config, levers, panes)
    assert set(got.said) <= set(said)  # what is as it is anyway is left out


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ("colour=red", "query='colour': must be of family"),
        ("m=1&m=2", "must say each name once"),
        ("x=" + "y" * LONGEST, f"must have at most {LONGEST} characters"),
        ("show=config,nothing", "show='nothing': must be of config"),
        ("m=0", "m=0: must be an integer from 1"),
        ("m=12.5", "m=12.5: must be an integer from 1"),
        ("family=sparse", "family='sparse': must be one of"),
        ("groups=8", "groups=8: is for kernels with groups"),
        ("alignment=64", "alignment=64: is for groupings"),
        ("accumulate=true", "accumulate=True: needs d=f32"),
        ("family=dense&ab=bf16,e4m3", "ab='bf16,e4m3': must be one of"),
        ("ab=bf16,bf16", "fp8_block multiplies e4m3 x e4m3 or s8 x s8"),
        ("set.block_n=13", "block_n=13: must be an integer from 8 to 256, a multiple of 8"),
        ("set.block_q=8", "block_q=8: unknown field"),
        ("config=[1]", "config=[1]: must be a JSON object"),
        ("config={", "config='{': is not JSON"),
        ("config=/etc/passwd", "config='/etc/passwd': is not JSON"),  # no file is read
    ),
)
def test_what_cannot_be_is_refused_by_name(text, says):
    refused = page.asked(text).refused
    assert refused is not None and says in str(refused)


def test_a_position_is_the_choice_with_levers_moved():
    q = Query(levers={"stages": 2, "registers": [40, 232]})
    p, chosen = position(q), pick(FP8, SHAPE, H200).config
    assert p.pick and p.pick.config == p.base == chosen
    assert p.config == chosen.having(stages=2, registers=(40, 232)) and p.kernel
    given = position(replace(q, config='{"block_m": 64, "consumers": 1}'))
    assert (given.base.block_m, given.base.consumers, given.config.stages) == (64, 1, 2)
    assert given.pick.config == chosen


@pytest.mark.parametrize("first", [False, True])
def test_the_choice_is_what_the_process_is_told_now(first):
    """Whatever it was told when the same was asked before."""
    q = read("family=w4a16&weights=int4_128_bf16")
    problem, (_, n, k) = position(q).launch.problem, SHAPE
    configs = {}
    for on in (first, not first, first):
        with invariance.asking(on):
            configs[on] = position(q).config
    wanted = invariance.split_of(problem, n, k, True)
    invariance.check(problem, configs[True], k, wanted)
    with pytest.raises(ArgumentError, match=f"must add up as split_k={wanted} does"):
        invariance.check(problem, configs[False], k, wanted)


def test_where_nothing_is_chosen_a_config_may_still_be_given(monkeypatch):
    def none(at):
        raise UnsupportedProblem("no tile fits")

    monkeypatch.setattr("gemmgen.cli.playground.position.chosen", none)
    assert str(position(Query()).refused) == "no tile fits" and position(Query()).config is None
    both = position(Query(config="{}"))
    assert both.kernel and both.pick is None and not both.refused
    assert "Nothing is chosen" in inside("config", both)
    assert "nothing is chosen to compare with" in page.verdict(both).words


# ---- what is shown --------------------------------------------------------------------------


def test_every_lever_has_a_control_with_a_label(server):
    """Those of programs, too: nothing lists them."""
    tags = Tags(ask(server, "/")[2])
    labels = [x["for"] for x in tags.all("label")]
    fields = [x for kind in ("input", "select", "textarea") for x in tags.all(kind)]
    assert sorted(labels) == sorted(x["id"] for x in fields) == sorted(set(labels))
    assert {x["name"] for x in fields} == {
        *names(),
        *(f"set.{x.name}" for x in LEVERS),
        "config",
        "show",
    }
    ids = [attrs["id"] for _, attrs in tags.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    for described in (x["aria-describedby"] for x in fields if x["name"] != "show"):
        assert {*described.split()} <= {*ids}
    assert [x["id"] for _, x in tags.found if x.get("role") == "status"] == ["verdict"]


def test_a_control_offers_what_the_lever_takes(server):
    tags = Tags(ask(server, "/")[2])
    numbers = {x["name"]: x for x in tags.all("input") if x["type"] == "number"}
    of = numbers["set.block_n"]
    assert (of["min"], of["max"], of["step"]) == ("8", "256", "8")
    assert numbers["set.d_columns"]["value"] == ""  # null
    flags = {x["name"] for x in tags.all("input") if x["type"] == "checkbox"} - {"show"}
    boolean = {f"set.{x.name}" for x in LEVERS if isinstance(x.default, bool)}
    assert flags == boolean | {
        "accumulate",
        "weights_ready",
    }  # not in_flight, whose 0 and 1 equal False and True


def test_a_lever_of_a_program_has_one(monkeypatch):
    monkeypatch.setattr("gemmgen.levers.LEVERS", LEVERS)
    kept = [*LEVERS]
    add(Lever(name="m", values=integer(2, 8, 2), default=4, added=True, tag="late{}", reads="<i>"))
    try:
        p = page.asked("set.m=6&m=128")
        assert p.launch.shape[0] == 128 and dict(p.config.more) == {"m": 6}
        shown = page.render(p)
        assert 'min="2" max="8" step="2" value="6" id="control-set.m"' in shown
        assert "was 4" in shown and "<i>" not in shown
        assert "m=8" in inside("moves", p)
    finally:
        LEVERS[:] = kept
        del MORE["m"], FIELDS["m"]


def test_the_verdict_says_the_rule_and_leads_to_it(server):
    answer = json.loads(ask(server, "/answer?set.block_n=256")[2])
    error = position(Query(levers={"block_n": 256})).refused
    assert answer["kind"] == "refused"
    for words in (error.rule.id, error.rule.says, error.fix, "bytes=330800"):
        assert escape(words) in answer["verdict"]
    (link,) = re.findall('href="([^"]*)"', answer["verdict"])
    path, _, place = link.partition("#")
    text = ask(server, path)[2]
    assert f'<h2 id="{place}">{error.rule.id}</h2>' in text
    assert all(f">{rule.id}</h2>" in text and escape(rule.because) in text for rule in RULES)
    assert answer["controls"]["set.block_n"] == {
        "value": "256",
        "base": "128",
        "moved": "was 128",
        "refused": False,
    }
    assert answer["controls"]["set.stages"]["refused"]  # the rule's values name it


def test_levers_that_were_not_moved_follow_the_choice(server):
    small = "m=16&n=7168&k=16384"
    before, after = (
        json.loads(ask(server, f"/answer?set.pdl=true{more}")[2])["controls"]
        for more in ("", f"&{small}")
    )
    chosen = pick(FP8, (16, 7168, 16384), H200).config
    assert before["set.swap_ab"]["value"] == "false" and after["set.swap_ab"]["value"] == "true"
    assert after["set.stages"]["value"] == str(chosen.stages)
    assert before["set.pdl"] == after["set.pdl"] and after["set.pdl"]["moved"] == "was false"


def test_panes_are_what_other_commands_show():
    p = page.asked("set.stages=2&m=1024&n=1024&k=1024")
    assert p.kernel and p.config
    a = compile_to_source(p.launch.problem, p.config)
    without_proof = re.sub(r"^// P1 .*?(?=^// IR sha256)", "", a.source, flags=re.M | re.S)
    assert drafted(p.launch.problem, p.config) == without_proof != a.source
    assert escape(dump(a.kernel)).strip() in inside("ir", p)
    assert f"<del>-{escape('role producer')}" not in inside("ir", p)
    assert "<del>-" in inside("ir", p) and "<ins>+" in inside("cuda", p)
    assert f"{a.kernel.smem_bytes:,} of" in inside("sm", p) and "this: " in inside("sm", p)
    assert str(a.link) in inside("proof", p) and escape(str(a.proof)) in inside("proof", p)


@pytest.mark.parametrize("name", PANES)
def test_a_pane_shows_something_of_a_legal_config(name):
    shown = inside(name, page.asked("set.stages=2&m=1024&n=1024&k=1024"))
    assert "Nothing to show" not in shown and "<h3" in shown


@pytest.mark.parametrize("name", PANES)
def test_a_pane_says_why_it_has_nothing(name):
    """Of a config that is illegal, and of what is no config."""
    forbidden = inside(name, page.asked("set.block_n=256"))
    assert ("There is no kernel" in forbidden) == (PANES[name].page is not None)
    assert "There is no config" in inside(name, page.asked("set.block_n=13"))


def test_a_timeline_that_would_take_long_is_refused():
    for launch in (
        f"k={MOST_SIDE}",
        f"m={MOST_SIDE}",
        "grouping=batched&groups=1048576",
        f"grouping=rows&m={MOST_SIDE}",
    ):
        assert "Nothing to show" in inside("timeline", page.asked(launch))


def test_moves_lead_where_they_say(server):
    shown = inside("moves", page.asked("m=1024&set.stages=2"))
    rows = re.findall(r'<a href="/\?([^"]*)">([^<]*)</a></th><td[^>]*>([^<]*)</td>', shown)
    assert len(rows) > 30
    for link, words, us in rows[::7]:
        p = page.asked(link.replace("&amp;", "&"))
        assert p.launch.shape[0] == 1024 and bool(p.kernel) == bool(us)
        for change in words.split(", "):
            name, _, value = change.partition("=")
            assert json.dumps(getattr(p.config, name)).strip('"') == value.replace("&quot;", '"')


@pytest.mark.parametrize(
    "said",
    (
        {"epilogue": "silu"},
        {"ab": "f16,f16", "layout": "nn"},
        {"d": "f32", "accumulate": True},
        {"grouping": "rows", "alignment": 64},
        {"weights_ready": True},
    ),
    ids=" ".join,
)
def test_commands_say_the_same_config(capsys, said):
    """Each option under its name."""
    q = Query(said={"family": "dense", "m": 512, **said}, levers={"stages": 2})
    shown = inside("commands", position(q))
    emit, explain = (
        shlex.split(unescape(x)) for x in re.findall("gemmgen ((?:emit|explain) [^<]*)<", shown)
    )
    assert main(emit) == 0
    assert position(q).kernel.name in capsys.readouterr().out
    assert main([*explain, "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)["problem"]
    assert asked == position(q).launch.problem.to_json()


# ---- walks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(STARTS)))
def test_random_moves(server, number):
    """Each is answered: by what it makes, or by the rule that forbids it. `python -m serve_walk` makes 1,000."""
    panes = (*USUAL, "moves") if number % 3 == 0 else USUAL
    steps = [*walk(serve_walk.asking(server.url), STARTS[number], MOVES, number, panes)]
    assert not serve_walk.wrong(steps)
    assert {s.kind for s in steps} <= {"legal", "refused"}
    for s in steps:
        nothing = "Nothing to show" in s.texts["price"]
        assert nothing == (s.kind == "refused")
        assert not nothing or "There is no kernel" in s.texts["price"]


def test_a_walk_that_fails_is_seen():
    answers = iter((200, 500))

    def get(path):
        return next(answers), '{"kind": "refused", "verdict": "m=0: must be more"}'

    with pytest.raises(AssertionError, match="500"):
        [*walk(get, {}, 1, 0, ("config",))]
    refused = 200, '{"kind": "refused", "verdict": "no"}'
    assert len(serve_walk.wrong([*walk(lambda path: refused, {}, 2, 0, ())])) == 2


# ---- whoever asks ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("name", (*names(), "config", "show", "set.block_m", "set.registers", None))
def test_what_is_said_is_never_markup(name, text):
    """As a value, and (None) as a name."""
    said = {name: text} if name else {text: "1", f"set.{text}": "1"}
    p = page.asked(urlencode({"show": "config", **said}))
    shown = page.render(p)
    tags = Tags(shown)
    assert [x.get("src") for x in tags.all("script")] == ["/playground.js"]
    assert not tags.all("img") and not [k for _, x in tags.found for k in x if k.startswith("on")]
    assert "\0" not in shown or name is not None  # a name is shown as repr has it
    answer = page.answer(p)
    assert json.loads(json.dumps(answer)) == answer and not Tags(answer["verdict"]).all("img")


@pytest.mark.parametrize("path", ("/", "/answer", "/pane/config"))
def test_hostile_queries_are_answered(server, path):
    for text in (*map(quote, NASTY), "%", "%ff%fe", "&&==&", "=", "a" * 9000, "set.=1", "?m=1"):
        status, headers, shown = ask(
            server, f"{path}?m={text}" if "=" not in text else f"{path}?{text}"
        )
        assert status == 200 and "X-Evil" not in headers
        assert "<script>alert" not in shown or headers.get_content_type() == "application/json"


def test_only_its_own_name_is_answered(server):
    """A page elsewhere whose name resolves to 127.0.0.1 says that name."""
    port = server.server_address[1]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        status, _, text = ask(server, "/", Host=host)
        assert status == 421 and "gemmgen: must be asked as http://127.0.0.1" in text
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(server, "/answer", Host=host)[0] == 200


def test_other_sites_reach_the_page_and_no_more(server):
    """By a link; what a script of theirs would read is refused."""
    assert ask(server, "/", Sec_Fetch_Site="cross-site")[0] == 200
    for path in ("/answer", "/pane/proof", "/playground.js"):
        assert ask(server, path, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(server, path, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "path", ("/", "/answer", "/pane/config", "/rules", "/playground.js", "/nothing")
)
def test_nothing_is_kept_or_loaded(server, path):
    status, headers, text = ask(server, path)
    assert status == (404 if path == "/nothing" else 200)
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert not re.search(r"@import|url\(", text)
    assert all(x[0] in "/#" for x in re.findall(r'\b(?:src|href|action)="([^"]*)"', text))
    head, _, nothing = ask(server, path, "HEAD")
    assert head == status and not nothing
    assert ask(server, path, "POST")[0] == 501


def test_no_other_machine_is_listened_to(server):
    assert server.server_address[0] == "127.0.0.1"
    with (
        pytest.raises(OSError),
        socket.create_connection(("127.0.0.2", server.server_address[1]), 1),
    ):
        pass


def test_a_bug_is_an_answer_and_a_traceback(server, monkeypatch, capfd):
    def broken(query):
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(page, "asked", broken)
    status, _, text = ask(server, "/answer")
    assert status == 500 and "gemmgen: a bug" in text and "mine" not in text
    assert "ZeroDivisionError: mine" in capfd.readouterr().err


# ---- the command ----------------------------------------------------------------------------


def begun(monkeypatch, capsys, *argv):
    """What the command says before it serves."""
    monkeypatch.setattr(Server, "serve_forever", lambda self: None)
    assert main(["serve", *argv]) == 0
    return capsys.readouterr().out


def test_where_it_begins(monkeypatch, capsys):
    said = begun(monkeypatch, capsys)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\nCtrl-C ends it\.\n", said)
    url = json.loads(
        begun(
            monkeypatch,
            capsys,
            "dense",
            "-m",
            "64",
            "--epilogue",
            "silu",
            "--set",
            "stages=3",
            "--json",
        )
    )["url"]
    p = page.asked(url.partition("?")[2])
    assert (p.launch.problem.family, p.launch.shape) == ("dense", (64, 4096, 4096))
    assert p.config.stages == 3 and p.config == p.pick.config.having(stages=3)


def test_it_begins_at_a_gallery_kernel(monkeypatch, capsys):
    from gemmgen.gallery import exhibit

    said = begun(monkeypatch, capsys, "dense/tn", "--groups", "1")
    p = page.asked(said.splitlines()[0].partition("?")[2])
    assert (p.launch.problem, p.config) == (exhibit("dense/tn").problem, exhibit("dense/tn").config)


@pytest.mark.parametrize(
    ("argv", "says"),
    (
        (("--port", "70000"), "--port=70000: must be from 0 to 65535"),
        (("dense", "--set", "block_q=1"), "block_q=1: unknown field"),
        (("dense", "--groups", "0"), "groups=0: must be an integer from 1"),
        (("dense", "--groups", "4"), "groups=4: is for kernels with groups"),
        (("sparse",), "KERNEL='sparse': must be one of"),
        (("dense", "-m", "0"), "m=0: must be"),
        (("fp8_block", "--invariant", "--set", "split_k=4"), "must add up as split_k="),
        (("dense/tn", "--invariant"), "--invariant=True: chooses a config"),
        (("fp8_block/heads",), "must be of a problem without heads"),
        (("fp8_block/indexed_rows",), "must be of a problem without indexed"),
        (("dense/mqa_logits",), "must have an epilogue that has a name"),
    ),
)
def test_what_it_refuses(capsys, argv, says):
    assert main(["serve", *argv]) == 2
    assert says in capsys.readouterr().err


def test_an_illegal_config_is_a_place_to_begin(monkeypatch, capsys):
    said = begun(monkeypatch, capsys, "fp8_block", "--set", "block_n=256")
    assert page.asked(said.splitlines()[0].partition("?")[2]).refused.rule.id == "smem-capacity"


def test_a_port_that_is_taken(server, capsys):
    port = server.server_address[1]
    assert main(["serve", "--port", str(port)]) == 2
    assert f"--port={port}: cannot be listened on" in capsys.readouterr().err


def test_it_opens_a_browser_where_asked(monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(serve_command.webbrowser, "open", opened.append)
    begun(monkeypatch, capsys)
    assert not opened
    assert [begun(monkeypatch, capsys, "--open").splitlines()[0]] == opened


# `python -m gemmgen` as it is at a terminal: tests that a shell started in the background ignore SIGINT, and so would what
# they start.
ATTENDED = """import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("gemmgen", run_name="__main__")"""


def test_an_interruption_is_a_line():
    command = [sys.executable, "-c", ATTENDED, "serve"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as run:
        late = Timer(60, run.kill)  # so that neither reading nor leaving waits for ever
        late.start()
        try:
            assert run.stdout.readline().startswith("http://127.0.0.1:")
            run.send_signal(signal.SIGINT)
            _, err = run.communicate()
        finally:
            late.cancel()
            run.kill()
    assert (run.returncode, err) == (130, "gemmgen: interrupted\n")


# ---- in a browser ---------------------------------------------------------------------------

EVERY = f"show={','.join(PANES)}"  # with every pane opened
VIEWS = {  # and what the verdict says of each
    "?": "the choice itself",
    "?set.block_n=256": "smem-capacity",  # refused, by this rule
    f"?set.stages=2&m=1024&k=1024&{EVERY}": "as the choice",
    f"?set.block_n=256&{EVERY}": "smem-capacity",
    f"?set.block_n=13&{EVERY}": "block_n=13",  # no value of the lever: no config
    f"?family=dense&grouping=batched&groups=4&m=256&n=512&k=512&{EVERY}": "the choice itself",
    f"?config={'[' * 4000}": "config=",
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_in_a_browser(server, tab, view):
    """In windows of three widths and both schemes, every control by keys and with a name: as every page."""
    assert faults(tab, f"{server.url}{view}", server.url) == []
    assert VIEWS[view] in tab.run("verdict.textContent")
    panes = tab.run("document.querySelectorAll('[id^=pane-]').length")
    assert panes == len(PANES) and (
        EVERY not in view or not tab.run("document.querySelector('[id^=pane-][hidden]')")
    )


def test_the_rules_that_it_leads_to_in_a_browser(server, tab):
    assert faults(tab, f"{server.url}rules", server.url) == []


def clean(tab, home):
    """So is the page as it is now, wherever moves have led it."""
    assert [*said(tab), *fetched(tab, home), *tab.run(LAYOUT)] == []


@pytest.mark.parametrize("width", (1400, 390))
def test_a_lever_is_moved_by_keyboard(server, tab, width):
    """From the address bar on, with Tab and arrows; the verdict stays in sight."""
    tab.resize(width)
    tab.open(server.url)
    assert "the choice itself" in tab.run("verdict.textContent")
    for _ in range(40):
        tab.press("Tab")
        if tab.run("document.activeElement.name") == "set.block_n":
            break
    assert tab.run("document.activeElement.id") == "control-set.block_n"
    tab.press("ArrowUp", 16)
    tab.until(
        "verdict.textContent.includes('smem-capacity') && location.search == '?set.block_n=256'"
    )
    assert tab.run("verdict.className") == "refused"
    assert tab.run("document.activeElement.id") == "control-set.block_n"  # it keeps the keyboard
    assert tab.run("document.getElementById('control-set.block_n-moved').textContent") == "was 128"
    top, bottom, height = tab.run(
        "(b => [b.top, b.bottom, innerHeight])(verdict.getBoundingClientRect())"
    )
    assert 0 <= top < bottom < height
    own = tab.run("document.activeElement.getBoundingClientRect().top")
    assert width > 960 or own >= bottom - 1  # nor does it lie over what has the keyboard
    tab.until("document.getElementById('pane-price').textContent.includes('There is no kernel')")
    tab.press("ArrowDown", 16)
    tab.until("verdict.textContent.includes('the choice itself') && location.search == ''")
    tab.until("!document.querySelector('[aria-busy=true]')")
    clean(tab, server.url)


def test_a_view_is_its_address(server, tab):
    """It is reloaded, and gone back to; a pane is fetched when it is shown."""
    tab.resize(1400)
    tab.open(f"{server.url}?set.pdl=true")
    assert tab.run("document.getElementById('control-set.pdl').checked")
    tab.run("document.getElementById('show-words').focus()")
    tab.press("Space")
    tab.until("document.getElementById('pane-words').textContent.includes('overlapping') || "
              "document.getElementById('pane-words').textContent.includes('begins while')")  # fmt: skip
    shown = tab.run("location.search")
    assert "show=config%2Cprice%2Csm%2Cir%2Ccuda%2Cwords" in shown and "set.pdl=true" in shown
    tab.run("document.getElementById('control-m').focus()")
    tab.run("document.getElementById('control-m').select()")
    tab.type("16")
    tab.press("Enter")
    tab.until(
        "location.search.includes('m=16') && document.getElementById('control-set.swap_ab').checked"
    )
    tab.until("document.title.includes('M=16')")
    tab.run("history.back()")
    tab.until(f"location.search == {json.dumps(shown)} && document.readyState == 'complete' && "
              "document.getElementById('control-m').value == '4096'")  # fmt: skip
    tab.run("document.getElementById('back').focus()")
    tab.press("Enter")
    tab.until(
        "!location.search.includes('set.') && !document.getElementById('control-set.pdl').checked"
    )
    clean(tab, server.url)


def test_it_says_that_the_server_is_gone(server, tab):
    speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.open(server.url)
    tab.call("Network.emulateNetworkConditions", offline=True, **speed)
    tab.run("document.getElementById('control-set.pdl').click()")
    tab.until("verdict.textContent.includes('Does gemmgen serve still run')")
    assert tab.run("verdict.className") == "refused"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH")
def test_the_script_parses(tmp_path):
    (tmp_path / "x.js").write_text(page.SCRIPT)
    subprocess.run(["node", "--check", str(tmp_path / "x.js")], check=True)


def test_the_package_says_what_is_where():
    assert all(
        f"`{name}`" in playground.__doc__
        for name in ("query", "position", "controls", "panes", "page", "server")
    )
