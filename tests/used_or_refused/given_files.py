"""Files that command lines read, laid out before they run; what a run writes beside them is noted and taken away."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemmgen.cli import emit_command, main
from gemmgen.gallery import GALLERY, artifact, path_of
from gemmgen.see.ncu import BUSY, DRAM, DURATION, NAME, TENSOR

ROOT = Path(__file__).parents[2]
FOLDER = Path("given")
TRACED = ("timeline", "dense", "-m", "64", "-n", "64", "-k", "128", "--trace")
PROFILE = {
    NAME: ("", "gemmgen_x"),
    DURATION: ("us", "12.5"),
    BUSY: ("%", "97.5"),
    TENSOR: ("%", "61"),
    DRAM: ("%", "8.25"),
}
# Of experts like gpt-oss's: with a config, and one file alone.
CHECKPOINTS = ("given/model", "given/alone.safetensors")
MODEL = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
EXPERTS = {
    "experts.gate_up_proj_blocks": (1, 64, 1, 16),
    "experts.gate_up_proj_scales": (1, 64, 1),
    "experts.down_proj_blocks": (1, 32, 1, 16),
    "experts.down_proj_scales": (1, 32, 1),
}
EXHIBITS = 2  # of the gallery: enough to see that it is asked for
ROWS = 4  # of the databases, of a file of rows


@lru_cache
def made() -> dict[Path, bytes]:
    """What lines read, by its name in the folder of a run."""
    table = (PROFILE, *zip(*PROFILE.values(), strict=True))
    rows = (ROOT / "gemmgen/data/h200.jsonl").read_text().splitlines(keepends=True)
    bench = ROOT / "docs/data/bench"
    texts = {
        "bf16.json": (bench / "bf16.json").read_text(),
        "rows.json": json.dumps(_with_a_peer(bench / "rows.json")),
        "a.jsonl": "".join(rows[:ROWS]),
        "b.jsonl": "".join(rows[1 : ROWS + 1]),
        "shapes.txt": "64x64x128\n",
        "ncu.csv": "".join(",".join(f'"{x}"' for x in row) + "\n" for row in table),
        "trace.json": _trace(),
    }
    found = {FOLDER / name: text.encode() for name, text in texts.items()}
    found |= dict.fromkeys(
        (FOLDER / "model/x.safetensors", FOLDER / "alone.safetensors"), _experts()
    )
    found[FOLDER / "model/config.json"] = json.dumps(MODEL).encode()
    for e in GALLERY[:EXHIBITS]:
        a = artifact(e)
        for suffix, text in ((".cu", a.source), (".ir", emit_command.ir_text(a))):
            found[Path("generated", f"{path_of(e)}{suffix}")] = text.encode()
    return found


def _experts() -> bytes:
    """A file of the safetensors format."""
    told, at = {}, 0
    for name, shape in EXPERTS.items():
        size = math.prod(shape)
        told[name] = {"dtype": "U8", "shape": shape, "data_offsets": (at, at + size)}
        at += size
    head = json.dumps(told).encode()
    return len(head).to_bytes(8, "little") + head + bytes([120]) * at


def _trace() -> str:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file = Path(folder) / "trace.json"
        assert main([*TRACED, str(file)]) == 0
        return file.read_text()


def lay(work: Path) -> dict[Path, bytes]:
    """Them into `work`."""
    for name, data in made().items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(data)
    return made()


def _with_a_peer(file: Path) -> dict[str, Any]:
    """Of a file of one other provider, as if there were two, each the faster one at every second shape: to leave either
    out makes a difference then."""
    data = json.loads(file.read_text())
    others = [row for row in data["rows"] if row["provider"] != "gemmgen"]
    peers = [
        row | {"provider": "peer", "microseconds": (0.5, 2)[i % 2] * row["microseconds"]}
        for i, row in enumerate(others)
    ]
    return {**data, "rows": data["rows"] + peers}


def held(work: Path) -> dict[Path, bytes]:
    return {p.relative_to(work): p.read_bytes() for p in work.rglob("*") if p.is_file()}


def restored(work: Path, before: dict[Path, bytes]) -> dict[str, bytes]:
    """What is other than before, which it is afterwards."""
    now = held(work)
    new = {p: data for p, data in now.items() if before.get(p) != data}
    for p in (*new, *before.keys() - now.keys()):
        if p in before:
            (work / p).write_bytes(before[p])
        else:
            (work / p).unlink()
    for p in sorted(work.rglob("*"), reverse=True):
        if p.is_dir() and not any(p.iterdir()):
            p.rmdir()
    return {p.as_posix(): data for p, data in new.items()}
