"""`python -m docs.tools.ten_steps`: writes the parts of docs/ten-steps.md that come from code, in every language.

Between `<!-- step: SLUG -->` and `<!-- end -->` stand the command and the IR's difference, between
`<!-- figures: SLUG -->` and `<!-- end -->` what changed in numbers, and docs/pictures/ has the pictures. The numbers
of the emulator and of a GPU come from docs/data/; what a GPU measures is written there by `docs.tools.measure`.
"""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from pathlib import Path
from typing import Any

from gemmgen.ir.text import dump
from gemmgen.pipeline import lower
from gemmgen.see import svg

from .figures import DATA, FILE
from .order import order
from .pictures import drawn
from .steps import Kernel, Pair, pairs, value

DOCS = Path(__file__).parent.parent
PICTURES = DOCS / "pictures"
MEASURED = DATA / "ten-steps-gpu.json"
MOST = 30  # lines of a difference that the page shows
BLOCK = re.compile(
    r"<!-- (?P<kind>step|figures|summary): (?P<slug>[\w-]+) -->\n.*?<!-- end -->", re.S
)
HEADS = {
    "en": ("figure", "before", "after", "from"),
    "zh": ("数值", "之前", "之后", "来源"),
}
MORE = "... {} more lines"
SUMMARY = {
    "en": "| step | changes | shared memory, bytes | simulated, µs | measured, µs |",
    "zh": "| 步 | 改动 | 共享内存，字节 | 模拟，µs | 实测，µs |",
}
NOT_MEASURED = {"en": "not measured yet", "zh": "尚未实测"}
# By figure: its name in each language, and where it comes from.
IR, MODEL, SIMULATION, PTXAS, EMULATOR, GPU = (
    {"en": "IR", "zh": "IR"},
    {"en": "cost model", "zh": "代价模型"},
    {"en": "simulation", "zh": "模拟"},
    {"en": "ptxas", "zh": "ptxas"},
    {"en": "emulator", "zh": "仿真器"},
    {"en": "GPU", "zh": "GPU"},
)
NAMES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "smem_bytes": ({"en": "shared memory, bytes", "zh": "共享内存，字节"}, IR),
    "registers_consumer": (
        {"en": "registers per consumer thread", "zh": "每个消费者线程的寄存器"},
        IR,
    ),
    "registers_producer": (
        {"en": "registers per producer thread", "zh": "每个生产者线程的寄存器"},
        IR,
    ),
    "loads": ({"en": "loads issued per K block", "zh": "每个 K 块发出的加载"}, IR),
    "stores": (
        {
            "en": "copies that store a CTA's tile, per warpgroup",
            "zh": "每个 warpgroup 写出分块所用的拷贝",
        },
        IR,
    ),
    "wave_rows": (
        {"en": "rows of A and B that a full wave reads", "zh": "一整波读取的 A、B 行数"},
        MODEL,
    ),
    "l2_megabytes": ({"en": "read from L2, MB", "zh": "从 L2 读取，MB"}, MODEL),
    "simulated_us": ({"en": "time, µs", "zh": "时间，µs"}, SIMULATION),
    "simulated_tensor_percent": (
        {"en": "tensor core busy, % of the time", "zh": "张量核忙碌，占时间 %"},
        SIMULATION,
    ),
    "spill_bytes": ({"en": "spilled registers, bytes", "zh": "寄存器溢出，字节"}, PTXAS),
    "instructions_producer": (
        {"en": "warp instructions of producers", "zh": "生产者的 warp 指令数"},
        EMULATOR,
    ),
    "instructions_consumer": (
        {"en": "warp instructions of consumers", "zh": "消费者的 warp 指令数"},
        EMULATOR,
    ),
    "bank_conflicts": ({"en": "bank conflicts", "zh": "bank 冲突"}, EMULATOR),
}
TIME = {"en": "time, µs", "zh": "时间，µs"}


def pages() -> dict[str, Path]:
    """The page of each language."""
    return {"en": DOCS / "ten-steps.md", "zh": DOCS / "zh/ten-steps.md"}


def filled(text: str, language: str) -> str:
    """A page's text with every block made anew. Raises KeyError for a slug that no step has."""
    of = {p.step.slug: p for p in pairs()}

    def made(block: re.Match[str]) -> str:
        kind, slug = block["kind"], block["slug"]
        body = summary(language) if kind == "summary" else PARTS[kind](of[slug], language)
        return f"<!-- {kind}: {slug} -->\n{body}<!-- end -->"

    return BLOCK.sub(made, text)


def code(pair: Pair, language: str) -> str:
    """The commands, the difference of the IR, and the picture."""
    commands = [pair.diff, *([pair.picture] if pair.picture else [])]
    lines = difference(pair)
    if len(lines) > MOST:
        lines = [*lines[:MOST], MORE.format(len(lines) - MOST)]
    here = "../" if language != "en" else ""
    parts = [
        "```sh",
        *commands,
        "```",
        "",
        "```diff" if pair.before else "```text",
        *lines,
        "```",
        "",
    ]
    picture = f"{here}pictures/{pair.file}"  # leads to itself: it is wider than a page
    return "\n".join([*parts, f"[![{pair.step.slug}]({picture})]({picture})", ""])


def difference(pair: Pair) -> list[str]:
    """Lines of the lowered IR that differ; of the first kernel, all of its roles."""
    after = _text(pair.after)
    if pair.before is None:
        return after[after.index("prologue:") :]
    changed = unified_diff(_text(pair.before), after, n=0, lineterm="")
    return [line for line in changed if not line.startswith(("---", "+++", "@@"))]


def _text(k: Kernel) -> list[str]:
    kernel = lower(k.problem, k.config)
    return dump(kernel).replace(kernel.name, "KERNEL").splitlines()


def figures(pair: Pair, language: str) -> str:
    """What changed, as a table; the last row is a GPU's."""
    of = json.loads(FILE.read_text())["steps"][pair.step.slug]
    after, before = of["after"], of["before"] or {}
    rows = [_head(language)]
    for name, (label, source) in NAMES.items():
        if after.get(name) != before.get(name):
            cells = (
                label[language],
                _cell(before.get(name)),
                _cell(after.get(name)),
                source[language],
            )
            rows.append("| " + " | ".join(cells) + " |")
    rows.append(_measured(pair, language))
    return "\n".join(rows) + "\n"


PARTS = {"step": code, "figures": figures}


def summary(language: str) -> str:
    """All steps: what changes, shared memory, simulated and measured time."""
    held = json.loads(FILE.read_text())["steps"]
    measured = _all_measured()
    head = [SUMMARY[language], "| ---: | --- | ---: | ---: | ---: |"]
    for number, pair in enumerate(pairs(), 1):
        of = held[pair.step.slug]["after"]
        time = measured["steps"].get(pair.step.slug, {}).get("after")
        cells = (
            str(number),
            _changes(pair),
            _cell(of["smem_bytes"]),
            _cell(of["simulated_us"]),
            f"{time['us']:,.1f}" if time else NOT_MEASURED[language],
        )
        head.append("| " + " | ".join(cells) + " |")
    return "\n".join(head) + "\n"


def _changes(pair: Pair) -> str:
    """The fields of Config, or the family, and the shape where it is another."""
    if pair.before is None:
        return ""
    named = [f"`{k}={value(v)}`" for k, v in pair.step.changes.items()]
    family = [f"`{pair.after.problem.family}`"] if pair.step.problem else []
    shape = [f"M = {pair.after.shape[0]}"] if pair.step.shape else []
    return ", ".join([*family, *named, *shape])


def _all_measured() -> dict[str, Any]:
    """What a GPU measured: its name, and each step's times; no steps without a measurement."""
    if not MEASURED.exists():
        return {"gpu": "", "steps": {}}
    found: dict[str, Any] = json.loads(MEASURED.read_text())
    return found


def _head(language: str) -> str:
    return "| " + " | ".join(HEADS[language]) + " |\n| --- | ---: | ---: | --- |"


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _measured(pair: Pair, language: str) -> str:
    """A GPU's row: its medians, or that there are none yet."""
    measured, missing = _all_measured(), NOT_MEASURED[language]
    found, gpu = measured["steps"].get(pair.step.slug, {}), measured["gpu"] or GPU[language]

    def cell(which: str) -> str:
        return f"{found[which]['us']:,.1f}" if found.get(which) else missing

    before = cell("before") if pair.before else ""
    return f"| {TIME[language]} | {before} | {cell('after')} | {gpu} |"


def pictures() -> dict[str, str]:
    """Every picture by its file's name."""
    return {p.file: drawn(p.picture) if p.picture else _ordered(p) for p in pairs()}


def _ordered(pair: Pair) -> str:
    return svg.render(order(pair.before, pair.after))


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (PICTURES / name).write_text(text)
    for language, path in pages().items():
        if path.exists():
            path.write_text(filled(path.read_text(), language))


if __name__ == "__main__":
    main()
