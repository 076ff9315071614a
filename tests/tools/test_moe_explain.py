"""`gemmgen moe --explain`: the launches of a layer of experts that it names are those that `ops.moe` makes. No GPU is needed."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from fake_torch import Placed, faked, recorded

from gemmgen import cost_stream
from gemmgen.bench.moe import GEMM, STAGES
from gemmgen.bench.moe_sizes import MODELS, Sizes
from gemmgen.cli import main
from gemmgen.cli.moe_launches import layer
from gemmgen.ops import building
from gemmgen.ops.mixture import CALLS, expected_of, multiplied
from gemmgen.ops.mixture_weights import Experts
from gemmgen.see.layer_page import page
from gemmgen.target import H100, H200

SMALL = Sizes(experts=8, top=2, hidden=1024, intermediate=512)


def placed(s: Sizes) -> Experts:
    n, k, i = 2 * s.intermediate, s.hidden, s.intermediate
    w1, w2 = (Placed(s.experts, *x, dtype="float8_e4m3fn") for x in ((n, k), (k, i)))
    blocks = [Placed(s.experts, -(-a // 128), -(-b // 128)) for a, b in ((n, k), (k, i))]
    return Experts(w1=w1, w2=w2, scale_w1=blocks[0], scale_w2=blocks[1])


@pytest.mark.parametrize("tokens", (1, 8, 64, 400))
def test_gemms_are_those_that_are_launched(tokens, monkeypatch):
    x = layer("", SMALL, tokens, H200)
    first, second = x.launches[3:5]
    monkeypatch.setattr(building, "priced_for", lambda device: (H200.device_name, H200))
    expected = expected_of(tokens * 2, 8, 8)
    assert (x.expected_rows, x.expected_groups) == expected
    with faked(monkeypatch):
        launches = recorded(monkeypatch)
        rows, taken = Placed(x.rows, 1024, dtype="float8_e4m3fn"), {}
        if "copies" in first.reads:  # by index
            rows = Placed(tokens, 1024, dtype="float8_e4m3fn")
            taken = {"rows": Placed(x.rows, dtype="int32"), "top": 2}
        assert bool(taken) == (expected[0] <= 64)
        a, ends = [rows, Placed(8, x.rows).mT], Placed(8, dtype="int32")
        w = placed(SMALL)
        multiplied(CALLS, w, a, ends, *expected, taken, w.alignment)
    for told, made in zip((first, second), launches, strict=True):
        p, (m, n, k) = made.problem, made.shape
        assert told.kernel == building.compile_to_source(p, made.config).name
        assert m == x.rows and told.config["shape"].endswith(f"N={n} K={k}")
        assert p.indexed == (bool(taken) and told is first)


def test_what_is_held_is_what_is_allocated():
    """Of copies that are written: on the CPU, where nothing is taken by index."""
    torch = pytest.importorskip("torch")
    from mixtures import choices, drawn, weights_of
    from torch_reference import referring_on_cpu

    from gemmgen.nn import experts
    from gemmgen.ops import mixture

    made = []

    def noting(call):
        def run(*args, **given):
            found = call(*args, **given)
            made.append([found] if isinstance(found, torch.Tensor) else [*found])
            return found

        return run

    names = ("route", "quantise_rows", "spread", "quantised", "blocks")
    calls = replace(experts.CALLS, **{n: noting(getattr(experts.CALLS, n)) for n in names})
    s = Sizes(experts=2, top=2, hidden=384, intermediate=256)
    w = mixture.Experts(**weights_of(2, 384, 256))
    chosen = choices(70, 2, 4)["chosen"] % 2
    with referring_on_cpu():
        y, _ = mixture.results(calls, w, drawn(70, 384), chosen, experts=2)
    x = layer("", s, 70, H200)
    allocated = [t.numel() * t.element_size() for results in made for t in results]
    assert [h.bytes for h in x.held] == allocated and y.shape[0] == x.rows
    assert [h.first for h in x.held] == [i for i, results in enumerate(made) for _ in results]
    assert [r.does for r in x.launches] == [
        "route",
        "cast",
        "spread",
        "GEMM 1",
        "GEMM 2",
        "combine",
    ]


def test_memory():
    for model, s in MODELS.items():
        for tokens in (1, 64, 4096):
            x = layer(model, s, tokens, H200)
            gaps = (x.rows - tokens * s.top) / (tokens * s.top)
            assert x.least <= x.peak <= (1.01 + gaps) * x.least and (gaps < 0.1 or tokens < 4096)
            assert x.peak == max(x.during(i) for i in range(6))
            n = tokens * s.top
            assert x.rows == (n + min(n, s.experts) * 3) // 4 * 4
            assert x.held[-1].bytes == x.rows * s.hidden * 2 and x.output == tokens * s.hidden * 2


def test_bytes_and_names():
    x = layer("v3", MODELS["v3"], 1, H200)
    w1, w2 = (r.reads[f"w{i + 1}"] for i, r in enumerate(x.launches[3:5]))
    assert w1 == 8 * (4096 * 7168 + 32 * 56 * 4) and w2 == 8 * (7168 * 2048 + 56 * 16 * 4)
    assert x.weights == 256 // 8 * (w1 + w2)
    for launch in x.launches:  # as the profiler's names are told apart
        begins = [b for b, does in STAGES.items() if does == launch.does] or [GEMM]
        assert launch.kernel.startswith(begins[0]) and launch.seconds > 0 and launch.ctas > 0
    assert [r.ctas for r in x.launches[:3]] == [8, 7, 1] and x.launches[5].ctas == 7
    assert x.launches[3].reads["codes"] == 7168  # the token, by index
    y = layer("v3", MODELS["v3"], 4096, H200)
    assert y.launches[3].reads["codes"] == 4096 * 8 * 7168


# docs/performance.md, DeepSeek-V3 on one H100: tokens, then us of route, cast, spread and combine.
MEASURED = (
    (1024, 8.4, 9.8, 28.0, 45.7),
    (4096, 15.3, 33.9, 123.4, 178.1),
    (16384, 56.8, 130.1, 551.1, 704.1),
)


@pytest.mark.parametrize("row", MEASURED, ids=str)
def test_prices_are_near_what_was_measured(row):
    x = layer("v3", MODELS["v3"], row[0], H100)
    if row[0] == 1024:  # all copies were written then
        size = 1024 * (7168 + 56 * 4) * 9
        spread = cost_stream.seconds("spread", size, H100)
    else:
        spread = x.launches[2].seconds
    found = (x.launches[0].seconds, x.launches[1].seconds, spread, x.launches[5].seconds)
    for us, seconds, off in zip(row[1:], found, (0.3, 0.05, 0.25, 0.1), strict=True):
        assert abs(seconds * 1e6 / us - 1) < off


def test_text_json_and_pages(capsys, tmp_path):
    sizes = ["--experts", "8", "--top", "2", "--hidden", "1024", "--intermediate", "512"]
    line = ["moe", "--explain", *sizes, "--tokens", "1,400"]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.startswith("a layer on H200: experts 8, top 2, hidden 1024, intermediate 512")
    assert out.count("Memory above weights and result") == 2 and "by the cost model" in out
    assert main([*line, "--device", "NVIDIA H100 80GB HBM3", "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)["layers"]
    assert (one["tokens"], other["tokens"], one["target"]) == (1, 400, "H100 SXM")
    x = layer("", SMALL, 1, H100)
    assert (one["seconds"], one["peak_bytes"]) == (x.seconds, x.peak)
    assert [r["kernel"] for r in one["launches"]] == [r.kernel for r in x.launches]
    for option, begins in (("--html", "<!doctype html>"), ("--svg", "<svg")):
        file = tmp_path / f"page{option}"
        assert main([*line, option, str(file)]) == 0
        text = file.read_text()
        assert text.lower().startswith(begins) and "GEMM 2" in text
        assert capsys.readouterr().out.strip() == str(file)


def test_bars_follow_each_other():
    lanes = next(b for b in page((layer("", SMALL, 8, H200),)).blocks if hasattr(b, "lanes"))
    bars = [bar for lane in lanes.lanes for bar in lane.bars]
    assert len(bars) == 6 and bars[0].start == 0 and bars[-1].end == lanes.end
    assert all(a.end == b.start for a, b in itertools.pairwise(bars))


@pytest.mark.parametrize(
    ("options", "name"),
    (
        (("--html", "x.html"), "--html"),
        (("--svg", "x.svg"), "--svg"),
        (("--device", H200.device_name), "--device"),
        (("--explain", "--device", "zz"), "--device"),
        (("--explain", "--kind", "int8-rows"), "--kind"),
        (("--explain", "-o", "x"), "-o"),
        (("--explain", "--tokens", "0"), "--tokens"),
        *((("--explain", x, "2"), x) for x in ("--repeats", "--seed")),
        (("--explain", "--router", "zipf"), "--router"),
        (("--explain", "--providers", "gemmgen"), "--providers"),
    ),
    ids=str,
)
def test_what_is_wrong_is_named(capsys, options, name):
    assert main(["moe", *options, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["argument"] == name
