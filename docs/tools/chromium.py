"""Chromium without a window: opens pages, runs scripts in them, presses keys, takes pictures.

It is spoken to in the DevTools protocol over two pipes: JSON, a NUL behind each message. One process serves any number
of pages, and the browser is all that must be installed: no driver of its version, no package.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0  # for one answer
FLAGS = (
    *("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--hide-scrollbars", "--disable-smooth-scrolling", "--font-render-hinting=none"),
    # No name resolves: a page reaches nobody.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "about:blank",
)
# A child's descriptors 3 and 4 are the pipes.
PIPED = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null'
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Space": (32, " "),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}
SETTLED = "document.fonts.ready.then(() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r))))"
# Every page is opened as by somebody who was never there.
STRANGER = "try { localStorage.clear() } catch {}"

Message = dict[str, Any]


def installed() -> str | None:
    """A browser's program, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One process, and its first page. A context: it ends with it."""

    def __init__(self, program: str) -> None:
        self._profile = TemporaryDirectory(ignore_cleanup_errors=True)
        command = [program, *FLAGS[:-1], f"--user-data-dir={self._profile.name}", FLAGS[-1]]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", PIPED, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._read, self._waiting = b"", list[Message]()
        self._sent = 0
        self.events: list[Message] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._profile.cleanup()

    def tab(self) -> Tab:
        """A page of its own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        return Tab(self, target, attached["sessionId"])

    def call(self, method: str, session: str = "", **params: Any) -> Message:
        """The answer. Raises RuntimeError for an error or a browser that has ended, TimeoutError for none."""
        number = self.send(method, session, **params)
        answer = self._until(lambda m: m.get("id") == number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: Message = answer["result"]
        return result

    def send(self, method: str, session: str = "", **params: Any) -> int:
        """Nobody waits for the answer: it has this number."""
        self._sent += 1
        message: Message = {"id": self._sent, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        return self._sent

    def wait(self, event: str, session: str, **params: Any) -> None:
        """Until `event` was or is told, with `params` among its own."""

        def told(m: Message) -> bool:
            of = m.get("params", {})
            mine = (m.get("method"), m.get("sessionId")) == (event, session)
            return mine and all(of.get(name) == value for name, value in params.items())

        if not any(map(told, self.events)):
            self._until(told, event)

    def _until(self, wanted: Any, what: str) -> Message:
        """The first message that is wanted; what else comes is kept if it is an event."""
        end = time.monotonic() + SECONDS
        while True:
            message = self._next(end, what)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def _next(self, end: float, what: str) -> Message:
        assert self._process.stdout
        while not self._waiting:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"{what}: no answer in {SECONDS:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                raise RuntimeError(f"{what}: the browser has ended")
            *whole, self._read = (self._read + data).split(b"\0")
            self._waiting = [json.loads(text) for text in whole]
        return self._waiting.pop(0)


class Tab:
    """A page."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Page.addScriptToEvaluateOnNewDocument", source=STRANGER)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def call(self, method: str, **params: Any) -> Message:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int = 900, scale: float = 1) -> None:
        """The window, in CSS pixels. scale: a picture's pixels in one of them."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=False)

    def scheme(self, dark: bool) -> None:
        """What the reader prefers. Nothing moves: what is measured stands still."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        """Until it is loaded and its fonts are there. Raises RuntimeError for an address that leads nowhere."""
        self._browser.events.clear()
        to = self.call("Page.navigate", url=url)
        if "errorText" in to:
            raise RuntimeError(f"{url}: {to['errorText']}")
        which = {"loaderId": to["loaderId"], "name": "load"}
        self._browser.wait("Page.lifecycleEvent", self._session, **which)
        self.settle()

    def run(self, script: str) -> Any:
        """The value of an expression, of a promise what it is kept with. Raises RuntimeError if it throws."""
        how = {"expression": script, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", **how)
        if "exceptionDetails" in found:
            thrown = found["exceptionDetails"]
            raise RuntimeError(thrown.get("exception", {}).get("description", thrown["text"]))
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Until an expression is true. Raises TimeoutError if it never is, with what it last threw."""
        end, thrown = time.monotonic() + SECONDS, ""
        while time.monotonic() < end:
            try:
                if self.run(script):
                    return
            except RuntimeError as e:  # as it is asked the page may be left for another
                thrown = f" ({e})"
            time.sleep(0.02)
        raise TimeoutError(f"never true in {SECONDS:g} s: {script}{thrown}")

    def settle(self) -> None:
        """Returns once what is under way is drawn."""
        self.run(SETTLED)

    def type(self, text: str) -> None:
        """In place of what is selected where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, times: int = 1) -> None:
        """One of KEYS, down and up, where the focus is; until the page has had the last."""
        code, text = KEYS[key]
        of = {"key": text if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        ways = [down, {"type": "keyUp"}] * times
        for way in ways[:-1]:
            self._browser.send("Input.dispatchKeyEvent", self._session, **of, **way)
        self.call("Input.dispatchKeyEvent", **of, **ways[-1])

    def events(self, *methods: str) -> Sequence[Message]:
        """What was told since the page was opened: the parameters of these events."""
        mine = (m for m in self._browser.events if m.get("sessionId") == self._session)
        return [m["params"] for m in mine if m["method"] in methods]

    def picture(self, selector: str = "html", height: int = 1 << 14) -> bytes:
        """A PNG of an element, from its top so many pixels at most. Raises RuntimeError if there is none."""
        of = json.dumps(selector)
        box = self.run(f"(r => [r.x + scrollX, r.y + scrollY, r.width, r.height])"
                       f"(document.querySelector({of}).getBoundingClientRect())")  # fmt: skip
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
        clip["height"] = min(clip["height"], height)
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return b64decode(shot["data"])
