"""Nsight Compute's CSV beside a simulation."""

from __future__ import annotations

import csv
import io
import json

import pytest

from gemmgen.cli import main
from gemmgen.errors import ArgumentError
from gemmgen.see.ncu import BUSY, DRAM, DURATION, METRICS, TENSOR, read

ARGS = ("timeline", "fp8_block/base", "-m", "4096", "-n", "1024", "-k", "512")
COLUMNS = ("ID", "Kernel Name", *METRICS)
UNITS = {DURATION: "us", BUSY: "%", TENSOR: "%", DRAM: "%"}
ROW = {
    "ID": "1",
    "Kernel Name": "gemmgen_x",
    DURATION: "1,012.50",
    BUSY: "97.5",
    TENSOR: "61",
    DRAM: "8.25",
}


def written(tmp_path, *rows, columns=COLUMNS, units=UNITS):
    """As ncu prints it, quoted, behind lines of its own."""
    text = io.StringIO()
    out = csv.DictWriter(text, columns, quoting=csv.QUOTE_ALL, extrasaction="ignore")
    out.writeheader()
    out.writerow(units)
    out.writerows(rows)
    file = tmp_path / "ncu.csv"
    file.write_text(f"==PROF== Connected to process 1\n{text.getvalue()}")
    return file


def test_the_last_launch_of_ours_is_read(tmp_path):
    others = [ROW | {"Kernel Name": "fill"}, ROW | {BUSY: "1"}]
    found = read(written(tmp_path, *others, ROW, ROW | {"Kernel Name": "x"}), "--ncu")
    assert (found.kernel, found.busy, found.tensor, found.dram) == (
        "gemmgen_x",
        0.975,
        0.61,
        0.0825,
    )
    assert found.seconds == pytest.approx(1012.5e-6)
    in_ns = written(tmp_path, ROW, units=UNITS | {DURATION: "ns"})
    assert read(in_ns, "--ncu").seconds == pytest.approx(1012.5e-9)


@pytest.mark.parametrize("column", ["Kernel Name", *METRICS])
def test_a_missing_column_is_named(tmp_path, column):
    file = written(tmp_path, ROW, columns=[c for c in COLUMNS if c != column])
    with pytest.raises(ArgumentError, match=f"no column '{column}'"):
        read(file, "--ncu")


@pytest.mark.parametrize(
    ("row", "units", "says"),
    [
        (ROW | {BUSY: "n/a"}, UNITS, "n/a"),
        (ROW | {TENSOR: "-1"}, UNITS, "-1"),
        (ROW | {DRAM: "nan"}, UNITS, "nan"),
        (ROW, UNITS | {DURATION: "weeks"}, "weeks"),
        (ROW | {"Kernel Name": "x"}, UNITS, "no launch of a kernel named gemmgen_"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, row, units, says):
    with pytest.raises(ArgumentError, match=says):
        read(written(tmp_path, row, units=units), "--ncu")


def test_what_csv_refuses_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="field larger than field limit"):
        read(written(tmp_path, ROW | {"ID": "1" * (csv.field_size_limit() + 1)}), "--ncu")


def test_beside_the_simulation(tmp_path, capsys):
    file = written(tmp_path, ROW)
    assert main([*ARGS, "--ncu", str(file), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ncu"]["busy"] == 0.975
    assert main([*ARGS, "--ncu", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.strip()[:8]: line.split()[-2:] for line in lines if line.startswith("  ")}
    assert rows["duration"] == ["1012.50", f"{figures['cycles'] / 1755:.2f}"]
    # 256 tiles in two turns on 128 of 132 SMs.
    assert rows["SMs busy"] == ["97.5%", f"{128 / 132:.1%}"]
    kept = figures["tensor_core"][0]["kept"]
    assert rows["tensor p"] == ["61.0%", f"{kept * 128 / 132:.1%}"]


def test_wrong_arguments(tmp_path, capsys):
    assert main([*ARGS, "--ncu", str(tmp_path / "none.csv")]) == 2
    assert "ncu --csv --page raw --metrics" in capsys.readouterr().err
    assert main([*ARGS, "--ncu", "x.csv", "--device", "emulator"]) == 2
    assert "--device" in capsys.readouterr().err
