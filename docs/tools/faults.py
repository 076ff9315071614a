"""What is wrong with a page in a browser: what is cut off, over something else, too faint, not reached by keys.

What the page says, loads and lays out is looked at in windows of three widths, in the light and the dark scheme; then
every control is gone to with the Tab key, in the narrowest and the widest, and looked up in the browser's accessibility tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from .chromium import Message, Tab

WIDTHS = (390, 768, 1400)
SCHEMES = (False, True)  # dark?
LAYOUT = Path(__file__).with_suffix(".js").read_text()
KEYS = Path(__file__).with_name("keys.js").read_text()
# Transitions are over at once, and all that can be unfolded is.
STILL = """(() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important; }");
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  for (const e of document.querySelectorAll("details")) e.open = true;
})()"""
BURST = 16  # presses of Tab: if none of them leads anywhere new, the focus has come round
# By the kind of control: the keys of which one must work, and what shows that it did.
WORKS = {
    "scrollers": (("ArrowRight",), "e.scrollLeft"),
    "scripted": (("Enter", "Space", "ArrowRight"), "gemmgenKeys.worked"),
    "folds": (("Enter",), "e.parentElement.open"),  # last: what is folded up no longer scrolls
}
WATCH = """gemmgenKeys.worked = 0; for (const kind of ["click", "keydown"])
  addEventListener(kind, e => gemmgenKeys.worked += kind == "click" || e.defaultPrevented)"""
# Roles of the accessibility tree: of what somebody works; of a whole page.
CONTROLS = frozenset(
    [
        "button",
        "link",
        "checkbox",
        "radio",
        "switch",
        "slider",
        "spinbutton",
        "textbox",
        "searchbox",
        "combobox",
        "listbox",
        "tab",
        "menuitem",
        "treeitem",
        "DisclosureTriangle",
    ]
)
WHOLE = {"RootWebArea", "WebArea"}
LOUD = ("warning", "error", "assert")
OWN = ("data:", "blob:", "about:")


def faults(tab: Tab, url: str, home: str) -> list[str]:
    """A line per fault: where it is seen, its kind, what has it. home: what the addresses that it may load begin with."""
    found: dict[str, list[str]] = {}  # by fault, the windows that it is seen in

    def note(where: str, faults: Iterable[str]) -> None:
        for fault in faults:
            found.setdefault(fault, []).append(where)

    for dark in SCHEMES:
        name = "dark" if dark else "light"
        opened(tab, url, dark)
        for width in WIDTHS:
            tab.resize(width)
            tab.settle()  # a box that scrolls now is named a frame later
            note(f"{width} {name}", tab.run(LAYOUT))
        note(name, (*said(tab), *fetched(tab, home)))
    note(f"{WIDTHS[-1]}", keys(tab))
    opened(tab, url, dark=False, width=WIDTHS[0])
    note(f"{WIDTHS[0]}", keys(tab))
    return [f"{', '.join(dict.fromkeys(where))}: {fault}" for fault, where in found.items()]


def opened(tab: Tab, url: str, dark: bool, width: int = WIDTHS[-1]) -> None:
    """The page in a window, with all that can be unfolded."""
    tab.scheme(dark)
    tab.resize(width)
    tab.open(url)
    tab.run(STILL)
    tab.settle()


def said(tab: Tab) -> Iterable[str]:
    """Errors and warnings on the console."""
    for told in tab.events("Runtime.consoleAPICalled"):
        if told["type"] in LOUD:
            words = (str(a.get("value", a.get("description"))) for a in told["args"])
            yield f"console: {' '.join(words)}"
    for told in tab.events("Runtime.exceptionThrown"):
        thrown = told["exceptionDetails"]
        yield f"console: {thrown.get('exception', {}).get('description', thrown['text'])}"
    for told in tab.events("Log.entryAdded"):
        if told["entry"]["level"] in LOUD:
            yield f"console: {told['entry']['text']}"


def fetched(tab: Tab, home: str) -> Iterable[str]:
    """What it asks others for."""
    for told in tab.events("Network.requestWillBeSent"):
        url = told["request"]["url"]
        if not url.startswith((home, *OWN)):
            yield f"fetched: {url}"


def keys(tab: Tab) -> Iterable[str]:
    """What no key reaches or works, and what has no name."""
    tab.run(KEYS)
    before, reached = -1, 0
    while reached > before:
        tab.press("Tab", BURST)
        before, reached = reached, tab.run("gemmgenKeys.reached()")
    if tab.run("document.activeElement?.matches('input, textarea')"):
        # What it has opened, a frame later, covers the page with what is for pointers.
        tab.settle()
        tab.press("Escape")
        tab.settle()
    yield from tab.run("gemmgenKeys.ended()")
    yield from unnamed(tab)
    yield from idle(tab)


def unnamed(tab: Tab) -> Iterable[str]:
    """Controls whose name a reader of the screen would not say: of every node of the tree that the browser hands to such
    readers. Of what takes the focus and is no control they read the words."""
    for node in tab.call("Accessibility.getFullAXTree")["nodes"]:
        if node["ignored"] or node.get("name", {}).get("value", "").strip():
            continue
        role = node["role"]["value"]
        if role in CONTROLS or (role not in WHOLE and _takes_focus(node)):
            shown, words = _element(tab, node)
            if role in CONTROLS or not words:
                yield f"no name: {shown}"


def _takes_focus(node: Message) -> bool:
    told = {x["name"]: x["value"].get("value") for x in node.get("properties", ())}
    return bool(told.get("focusable"))


def _element(tab: Tab, node: Message) -> tuple[str, str]:
    """The element that a node stands for, as other faults show theirs, and its words."""
    held = tab.call("DOM.resolveNode", backendNodeId=node["backendDOMNodeId"])["object"]
    says = "function () { return [gemmgenKeys.named(this), this.textContent.trim()] }"
    how = {"functionDeclaration": says, "returnByValue": True}
    found = tab.call("Runtime.callFunctionOn", objectId=held["objectId"], **how)
    shown, words = found["result"]["value"]
    return shown, words


def idle(tab: Tab) -> Iterable[str]:
    """Controls that are reached, but that no key works. What one of them opens may cover others: these are let be."""
    tab.run(WATCH)
    for kind, (pressed, shows) in WORKS.items():
        for i in range(tab.run(f"gemmgenKeys.{kind}.length")):
            e = f"gemmgenKeys.{kind}[{i}]"
            if tab.run(f"{e}.focus(); document.activeElement == {e}"):
                shown = f"(e => {shows})({e})"
                if not any(worked(tab, key, shown) for key in pressed):
                    yield f"no key works: {tab.run(f'gemmgenKeys.named({e})')}"


def worked(tab: Tab, key: str, shown: str) -> bool:
    """Whether the value of `shown` changes."""
    before = json.dumps(tab.run(shown))
    tab.press(key)
    changed: bool = tab.run(f"gemmgenKeys.soon(() => {shown} != {before})")
    return changed
