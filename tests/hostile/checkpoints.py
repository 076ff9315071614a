"""Files of tensors: headers that say what no file holds, and places that are none."""

from __future__ import annotations

import json

from gemmgen.quant import Checkpoint

from .files import DEEP, content, of_file, read_by


def header(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def entry(name: str = "a", **changes: object) -> bytes:
    of = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} | changes
    return header(json.dumps({name: of}).encode(), b"ab")


ENTRY = b'{"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}'
# What it is, the argument that is named, a part of what is said of it, the file.
BAD: dict[str, tuple[str, str, bytes]] = {
    "nothing": ("paths", "ends before byte 8", b""),
    "a short length": ("paths", "ends before byte 8", b"\x01\x00"),
    "a length of 0": ("paths", "a header of 0 bytes", bytes(8)),
    "a length of too much": ("paths", "a header of 1099511627776 bytes", (1 << 40).to_bytes(8, "little") + b"{}"),
    "a length of all ones": ("paths", "a header of", b"\xff" * 8 + b"{}"),
    "less than it says": ("paths", "ends before byte 58", (50).to_bytes(8, "little") + b"{}"),
    "much less than it says": ("paths", "ends before byte 99999999", (99_999_991).to_bytes(8, "little") + b"{}"),
    "no text": ("paths", "no UTF-8", header(b"\xff\xfe{}")),
    "no JSON": ("paths", "its header is not JSON", header(b"{a}")),
    "JSON that nests": ("paths", "nests too deep", header(b"[" * DEEP)),
    "a list": ("paths", "no JSON object", header(b"[1, 2]")),
    "one name twice": ("paths", "a name twice", header(b'{"a": %s, "a": %s}' % (ENTRY, ENTRY), b"ab")),
    "no place": ("a", "must have dtype, shape and data_offsets", header(b'{"a": {"dtype": "U8", "shape": [1]}}')),
    "a number": ("a", "must have dtype, shape and data_offsets", header(b'{"a": 5}')),
    "three offsets": ("a", "must have dtype, shape and data_offsets", entry(data_offsets=[0, 1, 2])),
    "a shape of text": ("a", "numbers from 0 on", entry(shape="2")),
    "a shape of names": ("a", "numbers from 0 on", entry(shape={})),
    "a shape of true": ("a", "numbers from 0 on", entry(shape=[True, 2])),
    "a shape of a fraction": ("a", "numbers from 0 on", entry(shape=[2.0])),
    "NaN": ("paths", "NaN is no number", entry(shape=[float("nan")])),
    "a number of 5000 digits": ("paths", "its header is not JSON", header(b'{"a": %s}' % ENTRY.replace(b"[2]", b"[%s]" % (b"9" * 5000)), b"ab")),
    "a side of 2^62": ("a", "numbers from 0 on", entry(shape=[1 << 62])),
    "sides of none": ("a shape", "a product below", entry(shape=[0, 1 << 61, 1 << 61], data_offsets=[0, 0])),
    "many sides": ("a shape", "a product below", entry(shape=[1 << 61] * DEEP, data_offsets=[0, 0])),
    "a place before the file": ("a", "numbers from 0 on", entry(data_offsets=[-1, 1])),
    "a place that ends first": ("a data_offsets", "must not end before they begin", entry(data_offsets=[2, 0])),
    "a place behind the file": ("paths", "ends before byte", entry(shape=[4], data_offsets=[0, 4])),
    "a place of more than memory": ("paths", "ends before byte", entry(shape=[1 << 61], data_offsets=[0, 1 << 61])),
    "nothing behind the file": ("paths", "ends before byte", entry(shape=[0], data_offsets=[3, 3])),
    "more numbers than bytes": ("a data_offsets", "must hold [3] of U8", entry(shape=[3])),
    "a dtype that there is not": ("a dtype", "must be F16", entry(dtype="F4")),
    "a dtype that is no name": ("a", "a dtype's name", entry(dtype=["U8"])),
    "a name with a NUL": ("a\0\n dtype", "must be F16", entry("a\0\n", dtype="\0")),
    "a name of 100000": ("a" * DEEP + " dtype", "must be F16", entry("a" * DEEP, dtype="x" * DEEP)),
}  # fmt: skip


def _read(path: str) -> object:
    return dict(Checkpoint(path))


CASES = (
    *read_by("checkpoints", _read, ()),
    *(of_file("checkpoints", says, content(data), _read) for says, (_, _, data) in BAD.items()),
)
