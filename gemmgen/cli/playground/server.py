"""Who answers: HTTP on 127.0.0.1 and nowhere else, to nobody who came by another name, with nothing kept or loaded."""

from __future__ import annotations

import json
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import page
from .panes import PANES, inside

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
SECONDS = 60  # that a connection may say nothing
HTML, JSON, SCRIPT = "text/html", "application/json", "text/javascript"
# Styles are in the page; a picture has no other form than SVG inside it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
OURS = (None, "same-origin", "none")  # of Sec-Fetch-Site: by a browser that says it, or typed


class Server(ThreadingHTTPServer):
    """port: 0 for any that is free."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__((LOOPBACK, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a Host header may say: a page of another name, which resolves to here, may not ask."""
        port = self.server_address[1]
        bare = NAMES if port == 80 else ()
        return (*(f"{name}:{port}" for name in NAMES), *bare)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    wbufsize = (
        -1
    )  # head and body in one packet: a second would wait for the first's acknowledgement
    disable_nagle_algorithm = True
    server: Server

    def version_string(self) -> str:
        return "gemmgen"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal says what failed."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, f"must be asked as {self.server.url}")
            return
        path, _, query = self.path.partition("?")
        if path != "/" and self.headers.get("Sec-Fetch-Site") not in OURS:
            self._refuse(HTTPStatus.FORBIDDEN, "is for its own page alone")
            return
        try:
            self._answer(path, query)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the reader went away
        except Exception:
            traceback.print_exc()
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the terminal has more")

    def _answer(self, path: str, query: str) -> None:
        kind, _, name = path.removeprefix("/").partition("/")
        match kind, name:
            case "", "":
                self._send(HTML, page.render(page.asked(query)))
            case "answer", "":
                self._send(JSON, json.dumps(page.answer(page.asked(query))))
            case "pane", name if name in PANES:
                self._send(HTML, inside(name, page.asked(query)))
            case "rules", "":
                self._send(HTML, page.rules())
            case "playground.js", "":
                self._send(SCRIPT, page.SCRIPT)
            case "favicon.ico", "":
                self._send(HTML, "", HTTPStatus.NO_CONTENT)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send("text/plain", f"gemmgen: {why}\n", status)

    def _send(self, kind: str, text: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = text.encode(errors="replace")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NO_CONTENT:
            self.wfile.write(data)
