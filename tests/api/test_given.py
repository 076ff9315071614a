"""What a command line gives is used or refused by name: every option of every subcommand has a row here.

A row shows that the option is read: a value that is wrong, or a place where it says nothing, is refused by name. What
names a kernel is read in one place for all commands; that right values change the kernel is shown of `emit`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gemmgen import cli
from gemmgen.cli import COMMANDS, main
from gemmgen.errors import RuntimeUnavailable
from gemmgen.runtime import driver

FAMILY, EXHIBIT = "dense", "dense/f16_f32"
TILE = '{"block_m": 64, "consumers": 1}'
KERNEL = {  # options that describe a kernel: what is wrong of it, and how the error names it
    "--ab": (("--ab", "f64"), "a="),
    "--layout": (("--layout", "zz"), "layout="),
    "--d": (("--d", "zz"), "d="),
    "--grouping": (("--grouping", "zz"), "grouping="),
    "--alignment": (("--alignment", "64"), "--alignment"),  # of a kernel without groups
    "--accumulate": (("--accumulate", "--d", "f16"), "accumulate="),
    "--weights": (("--weights", "int4_128_bf16"), "weights="),  # of a family without
    "--weights-ready": (("--weights-ready", "--grouping", "k_columns"), "weights_ready="),
    "--epilogue": (("--epilogue", "zz"), "epilogue="),
    "--config": (("--config", "{"), "--config"),
    "--set": (("--set", "zz=1"), "zz="),
    "--invariant": (("--invariant", "--config", TILE), "--invariant"),
    "--swap-ab": (("--swap-ab", "--set", "swap_ab=false"), "swap_ab=True"),
    "--split-k": (("--split-k", "3"), "split_k="),
    "--watchdog": (("--watchdog", "--set", "watchdog=false"), "watchdog=True"),
}
CHOSEN = ("prepare", "pack", "tune")  # they choose configs, and take none
TAKES_NONE = dict.fromkeys(("--config", "--set", "--invariant", "--swap-ab", "--split-k"))
AROUND = {  # what a command needs beside KERNEL and its options
    "layout": ("A",),
    "diff": ("stages=4",),
    "tune": ("-o", "x.jsonl"),
    "pack": ("-o", "out"),
    "bench": ("--shapes", "64x64x64"),
}
SIDES = {f"-{x}": ((f"-{x}", "0"), f"{x}=") for x in "mnk"}
GROUPS = {
    "--rows": (("--rows", "3"), "--rows"),
    "--depths": (("--depths", "3"), "--depths"),
}
PAGE = {"--html": (("--html", ""), "--html")}
PICTURE = {**PAGE, "--svg": (("--svg", ""), "--svg"), "--text": (("--text", "--json"), "--text")}
LEVEL = {"--level": (("--level", "zz"), "--level"), "--color": (("--color", "zz"), "--color")}
PREPARED = {
    "--shapes": (("--shapes", "zz"), "--shapes"),
    "--device": (("--device", "foo"), "--device"),
    "--up-to": (("--up-to", "0"), "--up-to"),
    "--threads": (("--threads", "0"), "--threads"),
}
OUT = {"-o": (("-o", ""), "-o")}
SEED = {"--seed": (("--seed", "-1"), "--seed"), "--pad": (("--pad", "-1"), "--pad")}
BENCH = str(Path(__file__).parents[2] / "docs/data/bench/rows.json")
LAYER = ("--experts", "8", "--top", "2", "--hidden", "64", "--intermediate", "32")
USED = "used"  # changes what runs on a GPU, takes minutes or opens a browser: the command's module reads it
ROWS = {
    "emit": {
        **SIDES, **OUT,
        "--all": (("--all",), "KERNEL"),
        "--check": (("--check",), "--check"),
        "--dump": (("--dump", "zz"), "--dump"),
    },
    "compile": {**SIDES, **OUT, "--all": (("--all",), "KERNEL")},
    "run": {
        **SIDES, **GROUPS, **SEED,
        "--repeats": (("--repeats", "5", "--device", "emulator"), "--repeats"),
        "--device": (("--device", "zz"), "--device"),
    },
    "check": {
        **SIDES,
        "--all": (("--all",), "KERNEL"),
        "--properties": (("--properties",), "KERNEL"),
        "--thorough": USED,
    },
    "emulate": {
        **SIDES, **GROUPS, **SEED,
        "--sms": (("--sms", "-1"), "--sms"),
        "--schedule": (("--schedule", "zz"), "--schedule"),
        "--stats": USED,
    },
    "bench": {
        **OUT,
        **{f"--{x}": ((f"--{x}", "zz"), f"--{x}") for x in ("shapes", "providers", "mode", "pace", "l2", "data")},
        **{f"--{x}": ((f"--{x}", "0"), f"--{x}") for x in ("repeats", "seconds")},
        "--no-verify": USED,
        "--plot": (("--plot",), "--plot"),
    },
    "chart": {
        "bench": (("absent.json", "-o", "x.svg"), "FILE"),
        "-o": ((BENCH, "-o", ""), "-o"),
        "--by": ((BENCH, "-o", "x.svg", "--by", "zz"), "--by"),
        "--only": ((BENCH, "-o", "x.svg", "--only", "zz"), "--only"),
        "--name": ((BENCH, "-o", "x.svg", "--name", "a", "--name", "b"), "--name"),
        "--label": ((BENCH, "-o", "x.svg", "--label", "zz"), "--label"),
    },
    "casts": {
        **{f"--{x}": ((f"--{x}", "zz"), f"--{x}") for x in ("shapes", "x", "q")},
        "--repeats": (("--repeats", "1"), "--repeats"),
        "--power-of-two": USED,
    },
    "moe": {
        **OUT,
        **{f"--{x}": ((f"--{x}", "zz"), f"--{x}") for x in ("model", "kind", "tokens", "router", "providers")},
        **{f"--{x}": ((*LAYER, f"--{x}", "0"), f"--{x}") for x in ("experts", "top", "hidden", "intermediate")},
        "--repeats": (("--repeats", "1"), "--repeats"),
        "--seed": (("--seed", "-1"), "--seed"),
        "--explain": (("--explain", "-o", "out"), "-o"),
        "--trace": (("--trace", ""), "--trace"),
        **{x: ((x, "x"), x) for x in ("--device", "--html", "--svg")},
    },
    "host": {"what": (("zz",), "what"), "--repeats": (("--repeats", "1"), "--repeats")},
    "tune": {
        "-o": (("-o", ""), "-o"),
        "--shapes": (("--shapes", "zz"), "--shapes"),
        **{f"--{x}": ((f"--{x}", "-1"), f"--{x}") for x in ("budget", "total", "timeout", "factor", "limit", "repeats", "processes")},
        **{f"--{x}": ((f"--{x}", "--cubins", "c", "--compile-only"), "-o") for x in ("again", "no-reference")},
        **{f"--{x}": ((f"--{x}", ""), f"--{x}") for x in ("cubins", "log", "merge", "report")},
        "--compile-only": (("--compile-only",), "--cubins"),
        "--shard": (("--shard", "0/2"), "--shard"),
        "--calibrate": (("--calibrate",), "KERNEL"),
        "--regret": (("--regret", "--sweep", "m"), "--regret"),
        "--sweep": (("--sweep", "zz"), "--sweep"),
        **{f"--{x}": ((f"--{x}", "5"), f"--{x}") for x in ("count", "seed", "families", "groupings", "sms")},
    },
    "explain": {
        "--collective": (("--collective", "zz"), "collective"),
        "--wire": (("--collective", "reduce_scatter", "--wire", "f32"), "wire"),
        "--ranks": (("--ranks", "2"), "--ranks"),
        **SIDES, **PAGE,
        "--groups": (("--groups", "8"), "--groups"),
        "--top": (("--top", "0"), "--top"),
        "--device": (("--device", "zz"), "--device"),
        "--why-not": (("--why-not", "zz"), "--why-not"),
    },
    "layout": {**SIDES, **PICTURE, "what": (("zz",), "unrecognized arguments: zz")},
    "timeline": {
        **SIDES, **GROUPS, **PICTURE,
        "--sms": (("--sms", "0"), "--sms"),
        "--device": (("--device", "zz"), "--device"),
        "--stamps": (("--stamps", "8"), "--stamps"),
        "--tiles": (("--tiles", "zz"), "--tiles"),
        "--blocks": (("--blocks", "zz"), "--blocks"),
        "--beside": (("--beside", "zz=1"), "zz="),
        "--ncu": (("--ncu", "absent.csv"), "--ncu"),
        "--trace": (("--trace", ""), "--trace"),
    },
    "serve": {
        **SIDES,
        "--groups": (("--groups", "0"), "groups="),
        "--port": (("--port", "70000"), "--port"),
        "--open": USED,
    },
    "report": {**SIDES, **OUT, "--bench": (("--bench", "absent.json"), "--bench")},
    "show": {**SIDES, **LEVEL, **PAGE},
    "diff": {**SIDES, **LEVEL, "other": (("--d", "f32", "zz"), "unrecognized arguments: zz")},
    "prepare": {**PREPARED, "--scale-a-layout": (("--scale-a-layout", "row"), "scale_a_layout=")},
    "pack": {
        **PREPARED, **OUT,
        "--jax": (("--jax", "--grouping", "masked", "--shapes", "4x64x256x128"), "grouping=masked"),
        "--prefix": (("--prefix", "1x", "--shapes", "1x64x64"), "prefix"),
    },
    "repack": {
        "checkpoint": (("", "-o", "out"), "CHECKPOINT"),
        "-o": (("absent", "-o", ""), "-o"),
        **{f"--{x}": (("absent", "-o", "out", f"--{x}", "zz"), f"--{x}") for x in ("activations", "method", "shard-size")},
    },
    "cache": {
        "action": (("zz",), "ACTION"),
        "--bytes": (("ls", "--bytes", "3"), "--bytes"),
        "--all": (("ls", "--all"), "--all"),
    },
    "list": {},
    "rules": {"--markdown": (("--markdown", "--json"), "--markdown")},
    "errors": {"--markdown": (("--markdown", "--json"), "--markdown")},
    "doctor": {},
}  # fmt: skip


@cache
def arguments_of(command):
    return cli.subcommands(cli._parser([command]))[command]._actions


def options_of(command):
    """Every option, by its first spelling, and every argument without one."""
    found = [(x.option_strings or [x.dest])[0] for x in arguments_of(command)]
    return [x for x in found if x not in ("-h", "--json", "kernel")]


def takes_kernel(command):
    return any(x.dest == "kernel" for x in arguments_of(command))


def row(command, option, kernel):
    """(arguments, what the error says) or USED."""
    if takes_kernel(command) and option in KERNEL:
        argv, says = KERNEL[option]
        if command in CHOSEN and option in TAKES_NONE:
            says = "--config" if option in ("--config", "--invariant") else "--set"
        return (command, kernel, *AROUND.get(command, ()), *argv), says
    found = ROWS[command].get(option)
    if found is None or found == USED:
        return found
    argv, says = found
    named = (kernel, *AROUND.get(command, ())) if takes_kernel(command) else ()
    return (command, *named, *argv), says


EVERY = [
    (c, o, kernel)
    for c in COMMANDS
    for o in options_of(c)
    for kernel in (FAMILY, *(EXHIBIT,) * (takes_kernel(c) and o in KERNEL))
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing here needs a GPU, or writes."""

    def missing(*_):
        raise RuntimeUnavailable("no CUDA driver")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "require_hopper", missing)
    yield
    assert [x.name for x in Path().iterdir()] == []


def refused(capsys, *argv):
    """What is said of it on the way out with exit code 2."""
    try:
        assert main(list(argv)) == 2, capsys.readouterr()
    except SystemExit as e:
        assert e.code == 2
    out, err = capsys.readouterr()
    return err or json.loads(out)["error"]["message"]


@pytest.mark.parametrize(("command", "option", "kernel"), EVERY)
def test_every_option_is_read(capsys, command, option, kernel):
    """An option that is added without a row fails here."""
    found = row(command, option, kernel)
    assert found, f"tests/api/test_given.py has no row for {command} {option}"
    if found == USED:
        module = Path(cli.__file__).parent / f"{command}_command.py"
        assert f"args.{option.removeprefix('--').replace('-', '_')}" in module.read_text()
        return
    argv, says = found
    if kernel == EXHIBIT and command in ("prepare", "pack"):
        says = "KERNEL"
    assert says in refused(capsys, *argv)


def test_sizes_of_rows_and_of_depths(capsys):
    """Those that the grouping has do not hide the others."""
    rows = ("timeline", FAMILY, "--grouping", "ends", "--rows", "1,100")
    assert "--depths" in refused(capsys, *rows, "--depths", "1,100")
    depths = ("timeline", FAMILY, "--grouping", "k_columns", "--d", "f32", "--depths", "64,64")
    assert "--rows" in refused(capsys, *depths, "--rows", "1,100")


def test_no_row_is_left_over():
    for command, rows in ROWS.items():
        assert set(rows) <= set(options_of(command)), command
    assert set(ROWS) == set(COMMANDS)


RIGHT = {  # a right value, and the kernel that takes it
    "--ab": (("--ab", "f16"), ("--ab", "bf16")),
    "--layout": (("--layout", "nn"), ("--layout", "tn")),
    "--d": (("--d", "f32"), ("--d", "f16")),
    "--grouping": (("--grouping", "rows"), ("--grouping", "batched")),
    "--alignment": (("--grouping", "rows", "--config", TILE, "--alignment", "64"),) * 2,
    "--accumulate": (("--d", "f32", "--accumulate"),) * 2,
    "--weights-ready": (("--config", TILE, "--weights-ready"),) * 2,
    "--epilogue": (("--epilogue", "relu"),) * 2,
    "--config": (("--config", TILE),) * 2,
    "--set": (("--set", "panel=5"),) * 2,
    "--swap-ab": (("--swap-ab", "--config", '{"block_m": 16}'),) * 2,
    "--split-k": (("--split-k", "2", "--config", TILE),) * 2,
}


@pytest.mark.parametrize("option", RIGHT)
@pytest.mark.parametrize("number", (0, 1), ids=("family", "gallery"))
def test_what_describes_a_kernel_changes_it(capsys, option, number):
    kernel, right = (FAMILY, EXHIBIT)[number], RIGHT[option][number]
    at = right.index(option)
    takes_value = option not in ("--accumulate", "--weights-ready", "--swap-ab")
    without = (*right[:at], *right[at + 1 + takes_value :])
    if option == "--swap-ab":
        without = ("--config", '{"block_m": 64, "consumers": 1}')
    texts = []
    for argv in (right, without):
        assert main(["emit", kernel, *argv]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]


def test_one_field_changes_nothing_else_of_the_chosen_config(capsys):
    """It used to throw the choice away."""
    shape = ("-m", "4096", "-n", "7168", "-k", "2048", "--json")
    configs = []
    for more in ((), ("--set", "panel=5")):
        assert main(["emit", "fp8_block", *shape, *more]) == 0
        configs.append(json.loads(capsys.readouterr().out)["config"])
    assert configs[1] == configs[0] | {"panel": 5} != configs[0]


def test_an_invariant_config_is_one_for_every_m(capsys):
    """Whose K is divided alike; `--set` may not say otherwise. The next command chooses as before."""
    sides, split = ("-n", "2112", "-k", "7168"), []
    for m, more in ((16, ["--invariant"]), (4096, ["--invariant"]), (4096, [])):
        assert main(["emit", "fp8_block", "-m", str(m), *sides, "--json", *more]) == 0
        config = json.loads(capsys.readouterr().out)["config"]
        split.append((config.get("split_k", 1), config.get("shares", 1)))
    assert split == [(2, 1), (1, 2), (1, 1)]
    given = ("-m", "16", *sides, "--invariant", "--set", "split_k=4")
    assert "must add up as split_k=2" in refused(capsys, "emit", "fp8_block", *given)


IDLE = (  # what says nothing there
    *((f"{c} --all {x}", x.split()[0]) for c in ("emit", "compile", "check") for x in ("--d f32", "--set panel=5", "--config {}", "-m 64")),
    ("emit --all --dump after:build", "--dump"),
    ("emit dense --dump after:build -o out", "-o"),
    ("check --properties --all", "--all"),
    ("check --properties --thorough", "--thorough"),
    *((f"{c} -{side} 64", f"-{side}") for side in "mnk" for c in (
        f"emit {EXHIBIT}", f"compile {EXHIBIT}", f"check {EXHIBIT}", f"layout {EXHIBIT} A", f"show {EXHIBIT}",
        f"diff {EXHIBIT} stages=3", f"diff {EXHIBIT} fp8_block/base", "emit dense --config {}", "diff dense stages=3 --config {}")),
    ("emit dense --ab bf16,bf16,f32", "--ab"),
    ("emit dense --set panel=4 --set panel=5", "--set"),
    ("run dense --grouping masked --rows 999 -m 64", "--rows"),
    ("emulate dense --grouping ends --rows 128,1 -m 128", "--rows"),
    ("emulate dense --grouping rows --rows 129 -m 128", "--rows"),
    ("emulate dense --grouping batched --rows 64,63 -m 64", "--rows"),
    ("emulate dense --grouping k_columns --layout tn --d f32 --depths 65 -k 64", "--depths"),
    ("run dense --repeats 5", "--repeats"),
    ("run dense --repeats 0", "--repeats"),
    ("explain dense --groups 8", "--groups"),
    ("timeline dense --json --tiles 0:1", "--tiles"),
    ("timeline dense --trace t.json --blocks 0:1", "--blocks"),
    ("timeline dense --trace t.json --beside stages=2", "--beside"),
    ("timeline dense --trace t.json --ncu x.csv", "--ncu"),
    ("timeline dense --svg t.svg --ncu x.csv", "--ncu"),
    ("report --bench x.json -m 64", "-m"),
    ("report --bench x.json --d f32", "--d"),
    *((f"{c} --color never {x}", "--color") for c, x in (
        ("show dense", "--json"), ("show dense", "--html x.html"), ("diff dense stages=3", "--json"),
        ("diff dense stages=3", "--level resources"))),
    ("bench dense --seconds 3", "--seconds"),
    ("bench dense --pace sustained --repeats 5", "--repeats"),
    ("tune dense --merge x.jsonl", "KERNEL"),
    ("tune --merge x.jsonl --limit 3", "--limit"),
    ("tune --report x.jsonl -o y.jsonl", "-o"),
    *((f"tune --{mode} --shard 1/2", "--shard") for mode in ("merge x.jsonl", "report x.jsonl", "calibrate", "regret", "sweep m")),
    *((f"tune dense --cubins c --compile-only {x}", x.split()[0]) for x in (
        "-o x", "--again", "--log x", "--no-reference", "--budget 5", "--total 5", "--timeout 5", "--repeats 5")),
)  # fmt: skip


@pytest.mark.parametrize(("line", "says"), IDLE)
def test_what_says_nothing_there_is_refused(capsys, line, says):
    said = refused(capsys, *line.split()).removeprefix("gemmgen: GG-A001: ")
    assert said.partition("=")[0] == says


def test_text_beside_a_trace(capsys, tmp_path):
    """--text was passed over where a file was written."""
    file = tmp_path / "t.json"
    argv = ["timeline", EXHIBIT, "-m", "64", "-n", "64", "-k", "64", "--trace", str(file)]
    assert main(argv) == 0 and len(capsys.readouterr().out.splitlines()) == 1
    assert main([*argv, "--text"]) == 0 and len(capsys.readouterr().out.splitlines()) > 5
    file.unlink()


@pytest.mark.parametrize(
    "argv",
    (
        *((c, "--no-such-option", "--json") for c in COMMANDS),
        *((c, "--json", "--no-such-option") for c in COMMANDS),
        ("emit", "dense", "-m", "x", "--json"),
        ("emit", "dense", "-o", "", "--js"),
        ("no-such-command", "--json"),
        ("--json",),
        ("--", "doctor", "--json"),
    ),
    ids=" ".join,
)
def test_what_argparse_refuses_is_json_too(capsys, argv):
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert not err and (error["id"], error["type"]) == ("GG-A001", "ArgumentError")
    assert error["message"]


def test_without_json_argparse_says_how_it_is_used(capsys):
    with pytest.raises(SystemExit) as e:
        main(["emit", "dense", "-m", "x"])
    out, err = capsys.readouterr()
    assert e.value.code == 2 and not out and err.startswith("usage: gemmgen emit")
