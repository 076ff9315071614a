"""`gemmgen serve`: a page on this machine on which levers are moved, and what comes of it is seen. Needs no GPU."""

from __future__ import annotations

import argparse
import json
import webbrowser

from ..epilogues import name_of
from ..errors import ArgumentError
from ..families import FAMILIES
from ..recipes import recipe
from . import options
from .fields import fields
from .playground.position import position
from .playground.query import Query, names, write
from .playground.server import Server

MOST_PORT = 65535


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser, required=False)
    options.add_shape(parser)
    parser.add_argument(
        "--groups",
        type=int,
        default=1,
        metavar="G",
        help="GEMMs in the launch that have rows (default 1)",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="of 127.0.0.1 (default: any that is free)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def main(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= MOST_PORT:
        raise ArgumentError("--port", args.port, f"must be from 0 to {MOST_PORT}")
    query = write(start(args))
    with _listening(args.port) as server:
        url = f"{server.url}?{query}" if query else server.url
        print(json.dumps({"url": url}) if args.json else f"{url}\nCtrl-C ends it.", flush=True)
        if args.open:
            webbrowser.open(url)
        server.serve_forever()
    return 0


def start(args: argparse.Namespace) -> Query:
    """Where the page begins. Raises ArgumentError for what is no problem, shape or value of a lever."""
    named = argparse.Namespace(**{**vars(args), "kernel": args.kernel or next(iter(FAMILIES))})
    p, (m, n, k) = options.problem(named), options.shape(args)
    epilogue = name_of(p.epilogue)
    if epilogue is None:
        raise ArgumentError("KERNEL", args.kernel, "must have an epilogue that has a name")
    said = {**p.to_json(), "epilogue": epilogue, "m": m, "n": n, "k": k, "groups": args.groups}
    pair = f"{said.pop('a')},{said.pop('b')}"
    said |= {"ab": pair} if (p.a, p.b) != recipe(p.family).operands[0] else {}
    unasked = sorted(said.keys() - names().keys())
    if unasked:
        allowed = (
            f"must be of a problem without {', '.join(unasked)}, for which the page does not ask"
        )
        raise ArgumentError("KERNEL", args.kernel, allowed)
    config = ""
    if options.is_fixed(named):
        fixed = argparse.Namespace(**{**vars(named), "set": []})
        config = json.dumps(options.config(fixed, p, (m, n, k))[0].to_json())
    query = Query(said=said, config=config, levers=fields("--set", args.set))
    begun = position(query)
    if isinstance(begun.refused, ArgumentError):
        raise begun.refused
    if begun.config:
        options.check_invariant(args, p, begun.config, (m, n, k))
    return query


def _listening(port: int) -> Server:
    try:
        return Server(port)
    except OSError as e:
        allowed = f"cannot be listened on: {e.strerror}"
        raise ArgumentError("--port", port, allowed) from e
