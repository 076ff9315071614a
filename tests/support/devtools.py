"""A browser without a window that is driven: Chromium's DevTools protocol over a pair of pipes, and nothing else.

https://chromedevtools.github.io/devtools-protocol/: JSON, each message ended by a NUL.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import subprocess
import time
from base64 import b64decode
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from docs.tools.chromium import NAMES

SECONDS = 60
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
# What no markup says: what was fetched, is the page wider than its window, do words leave their picture or cell.
FIND = """() => {
const found = performance.getEntriesByType("resource").map(e => `fetched: ${e.name}`);
const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) found.push(`page: ${wide} of ${innerWidth} pixels`);
for (const s of document.querySelectorAll("svg")) {
  const room = s.viewBox.baseVal;
  for (const t of s.querySelectorAll("text")) {
    const b = t.getBBox(), say = why => found.push(`${why}: ${t.textContent}`);
    if (b.x < -1 || b.y < -1 || b.x + b.width > room.width + 1 || b.y + b.height > room.height + 1)
      say("leaves its picture");
    const cell = t.previousElementSibling;
    if (cell && cell.tagName == "rect" && cell.getBBox().width > 12 && cell.getBBox().height < 30
        && cell.className.baseVal != "plain" && b.width > cell.getBBox().width) say("wider than its cell");
  }
}
return found;
}"""
HERE_ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
# Of a key that is pressed: its code, its virtual number, the text that it types.
KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    " ": ("Space", 32, " "),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
}


class Refused(AssertionError):
    """A command that the browser did not take."""


@dataclass
class Tab:
    """events: what the page said, by the protocol's names."""

    _to: int
    _from: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _left: bytes = b""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (got := self._next()).get("id") != number:
            self.events.append(got)
        if "error" in got:
            raise Refused(method, got["error"])
        return got["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._from], [], [], SECONDS)
            assert ready, "the browser says nothing"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser is gone"
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        got = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, (script, got)
        return got["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with suppress(Refused):  # the page that was asked has been left for another
                if value := self.run(script):
                    return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {script}")

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """A page in a window of that size, once it is loaded."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState == 'complete' && location.href == {json.dumps(url)}")

    def press(self, key: str, times: int = 1) -> None:
        code, number, text = KEYS.get(key, ("", ord(key[0].upper()), key))
        of = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        for _ in range(times):
            self.call(
                "Input.dispatchKeyEvent", type="keyDown", **of, **({"text": text} if text else {})
            )
            self.call("Input.dispatchKeyEvent", type="keyUp", **of)

    def picture(self) -> bytes:
        """A PNG of the window."""
        return b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    @property
    def said(self) -> list[str]:
        """What stands on the console, and exceptions that nobody caught."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]

    @property
    def asked(self) -> list[str]:
        """Addresses of everything that was asked for."""
        kind = "Network.requestWillBeSent"
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == kind]


def browser() -> str:
    """Its program; skips the test where there is none."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} on PATH (apt-get install chromium)")
    return found[0]


@contextmanager
def tab(folder):
    """A browser with one page, closed at the end; skips the test where there is no browser. Keeps its files in `folder`."""
    (there, to), (source, back) = os.pipe(), os.pipe()
    own = (
        HERE_ALONE,
        "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}",
        "about:blank",
    )
    command = shlex.join([browser(), *FLAGS, *own])
    shell = f"exec {command} 3<&{there} 4>&{back}"  # the two that the protocol is spoken on
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(["bash", "-c", shell], pass_fds=(there, back), **quiet)
    os.close(there)
    os.close(back)
    t = Tab(to, source)
    try:
        targets = t.call("Target.getTargets")["targetInfos"]
        page = next(x["targetId"] for x in targets if x["type"] == "page")
        t.session = t.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            t.call(f"{domain}.enable")
        yield t
    finally:
        started.terminate()
        started.wait(SECONDS)
        os.close(to)
        os.close(source)
