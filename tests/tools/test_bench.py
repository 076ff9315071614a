"""What `gemmgen bench` measures: the named shapes, and how groups are sized."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_torch import fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import DENSE, FP8, INT8_BLOCK

from gemmgen.bench import cases, grouped, providers, sources
from gemmgen.bench.data import NORMAL, Data
from gemmgen.bench.shapes import GROUPED, K_GROUPED, SETS, depths_of, parse, rows_of, sizes
from gemmgen.bench.work import VERIFIED_ROWS, launched, verified, work
from gemmgen.cli.bench_command import _row
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ir.expr import ACC, DeviceScalar, PerColumn, PerRow, of
from gemmgen.problem import Problem

BATCHED, MASKED = replace(DENSE, grouping="batched"), replace(FP8, grouping="masked")
WGRAD = Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, accumulate=True)
FLAT = replace(WGRAD, grouping="k_flat")
TURNED = replace(DENSE, d=F32, layout="tn", grouping="k_columns")
FP8_ROWS = Problem(family="fp8", a=E4M3, b=E5M2)
INT8 = Problem(family="dense", a=S8, b=S8)


def test_shapes_have_groups_where_the_problem_has():
    assert parse("large", DENSE) == SETS["large"]
    assert parse("3x5x7", FP8) == ((3, 5, 7),)
    assert parse("bmm", BATCHED) == GROUPED["bmm"]
    assert parse("2x3x5x7,1x1x1x1", MASKED) == ((2, 3, 5, 7), (1, 1, 1, 1))
    assert parse("k-grouped", FLAT) == parse("k-grouped", TURNED) == K_GROUPED["k-grouped"]
    assert parse("2x3x5x128", FLAT) == ((2, 3, 5, 128),)


@pytest.mark.parametrize(
    ("text", "problem", "allowed"),
    [
        ("bmm", DENSE, "MxNxK"),
        ("large", MASKED, "contiguous, masked, bmm, deepseek-v3, GxMxNxK,... or @file"),
        ("2x3x5x7", DENSE, "MxNxK"),
        ("3x5x7", MASKED, "GxMxNxK"),
        ("2x0x5x7", MASKED, "GxMxNxK"),
        ("2x3x5x-7", MASKED, "GxMxNxK"),
        ("masked", FLAT, "k-grouped, GxMxNxK,... or @file"),
        ("k-grouped", MASKED, "contiguous, masked, bmm, deepseek-v3, GxMxNxK"),
        ("2x3x5x127", TURNED, "at least 128"),
    ],
)
def test_other_shapes_are_refused(text, problem, allowed):
    with pytest.raises(ArgumentError, match=allowed) as e:
        parse(text, problem)
    assert (e.value.argument, e.value.value) == ("--shapes", text)


def test_the_sets_of_models():
    assert {"deepseek-v3", "llama", "panels"} <= {*SETS} and "deepseek-v3" in GROUPED
    assert all(len(s) == 3 and min(s) > 0 for shapes in SETS.values() for s in shapes)
    assert all(len(s) == 4 and min(s) > 0 for shapes in GROUPED.values() for s in shapes)
    assert {(4096, 28672, 4096), (1, 57344, 8192)} <= {*SETS["llama"]}
    assert {(4096, 36864, 7168), (64, 7168, 18432)} <= {*SETS["deepseek-v3"]}
    assert SETS["panels"][0] == (12288,) * 3 and SETS["panels"][-1] == (20480,) * 3


FILES = {
    "lines": "# of a model\n3x5x7\n\n 2x4x6 \n3x5x7\n",
    "commas": "3,5,7\n2, 4, 6\n",
    "header": "k,name,M,n\n7,q,3,5\n6,o,2,4\n",
    "bench": "# gemmgen bench\ngroups,m,n,k,provider\n1,3,5,7,gemmgen\n1,3,5,7,torch.mm\n1,2,4,6,x\n",
}


@pytest.mark.parametrize("name", FILES)
def test_shapes_from_a_file(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    assert parse(f"@{path}", DENSE) == ((3, 5, 7), (2, 4, 6))


def test_grouped_shapes_from_a_file(tmp_path):
    path = tmp_path / "shapes"
    path.write_text(FILES["bench"].replace("1,3", "9,3"))
    assert parse(f"@{path}", MASKED) == ((9, 3, 5, 7), (1, 2, 4, 6))
    path.write_text("8x3x5x7\n")
    assert parse(f"@{path}", MASKED) == ((8, 3, 5, 7),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one shape"),
        ("# none\n", "at least one shape"),
        ("3x5x7\n3x5\n", "'3x5'; a line must be MxNxK"),
        ("3x5x0\n", "'3x5x0'"),
        ("3x5x-7\n", "MxNxK"),
        ("m,n,k\n3,5,\n", "'3,5,'"),
        ("m,n\n3,5\n", "'m,n'"),
        ("1x3x5x7", "MxNxK"),
    ],
)
def test_a_wrong_file_of_shapes(tmp_path, text, says):
    path = tmp_path / "shapes"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=says) as e:
        parse(f"@{path}", DENSE)
    assert (e.value.argument, e.value.value) == ("--shapes", f"@{path}")


def test_a_file_of_too_little_k(tmp_path):
    path = tmp_path / "shapes"
    path.write_text("2x3x5x128\n")
    assert parse(f"@{path}", FLAT) == ((2, 3, 5, 128),)
    path.write_text("2x3x5x128\n2x3x5x127\n")
    with pytest.raises(ArgumentError, match="at least 128"):
        parse(f"@{path}", FLAT)


def test_no_file_of_shapes(tmp_path):
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        parse(f"@{tmp_path}/none", DENSE)


@pytest.mark.parametrize("groups", range(1, 40))
def test_group_sizes_lie_about_the_mean(groups):
    found = sizes(groups, 1000)
    assert len(found) == groups and min(found) >= 700 and max(found) <= 1300
    assert groups < 4 or abs(sum(found) / groups - 1000) < 5
    assert groups < 4 or len(set(found)) == groups


def test_a_batch_has_equal_groups():
    assert rows_of(BATCHED, 3, 20) == (20, 20, 20)
    assert set(rows_of(MASKED, 6, 20)) == {14, 16, 19, 21, 24, 26}


def test_named_depths_have_their_sums():
    totals = {shape: sum(depths_of(shape[0], shape[3])) for shape in K_GROUPED["k-grouped"]}
    assert [*totals.values()] == [33536, 35328, 32000, 32768, 34304, 33152]
    assert [shape[:3] for shape in totals] == [
        (g, *sides) for g in (4, 8, 16) for sides in ((4096, 7168), (7168, 2048))
    ]


@pytest.mark.parametrize("groups", range(1, 40))
@pytest.mark.parametrize("mean", (128, 300, 2144, 8384))
def test_depths_are_sizes_in_whole_blocks(groups, mean):
    found = depths_of(groups, mean)
    assert len(found) == groups and sum(found) > 0 and not any(x % 128 for x in found)
    assert all(abs(x - y) <= 128 for x, y in zip(found, sizes(groups, mean), strict=True))
    assert abs(sum(found) - groups * mean) <= 64 + groups / 2


SCALED_TENSORS = ACC * DeviceScalar("scale_a") * DeviceScalar("scale_b")
SCALED_ROWS = ACC * PerRow("scale_a") * PerColumn("scale_b")


@pytest.mark.parametrize(
    ("problem", "epilogue"),
    [
        (DENSE, ACC),
        (FP8, ACC),
        (MASKED, ACC),
        (FLAT, ACC),
        (FP8_ROWS, SCALED_TENSORS),
        (replace(FP8_ROWS, family="dense", b=E4M3), SCALED_TENSORS),
        (replace(FP8_ROWS, grouping="masked"), SCALED_ROWS),
        (INT8, SCALED_ROWS),
        (replace(INT8, grouping="rows"), SCALED_ROWS),
        (replace(INT8, d=S32), ACC),
        (INT8_BLOCK, ACC),
    ],
)
def test_what_is_launched_has_the_scales_it_is_given(problem, epilogue):
    assert launched(problem) == replace(problem, epilogue=epilogue)


def test_an_epilogue_is_of_the_scaled_product():
    silu, own = EPILOGUES["silu"], ACC * PerRow("scale_a")
    assert launched(replace(DENSE, epilogue=silu)).epilogue == silu
    assert launched(replace(FP8_ROWS, epilogue=silu)).epilogue == of(silu, SCALED_TENSORS)
    assert launched(replace(FP8_ROWS, epilogue=own)).epilogue == own, "it has its own scales"


@pytest.mark.parametrize("shape", [(100, 200, 300)])
def test_work_of_one_gemm(shape):
    found = work(FP8, shape)
    assert found.flops == 2 * 100 * 200 * 300
    assert found.inputs == 100 * 300 + 200 * 300
    assert found.bytes == found.inputs + 2 * 100 * 200
    assert work(WGRAD, shape).bytes == 100 * 300 + 200 * 300 + 2 * 4 * 100 * 200


def test_bytes_of_an_epilogue():
    """Half of D where columns are paired; a matrix that is read."""
    shape = (100, 200, 300)
    plain = work(DENSE, shape).bytes
    assert work(replace(DENSE, epilogue=EPILOGUES["swiglu"]), shape).bytes == plain - 100 * 200
    assert (
        work(replace(DENSE, epilogue=EPILOGUES["residual"]), shape).bytes == plain + 2 * 100 * 200
    )


def test_work_of_groups_of_rows():
    rows = sum(rows_of(MASKED, 4, 100))
    found = work(MASKED, (4, 100, 200, 300))
    assert found.flops == 2 * rows * 200 * 300
    assert found.inputs == rows * 300 + 4 * 200 * 300
    assert found.bytes == found.inputs + 2 * rows * 200


@pytest.mark.parametrize("problem", [FLAT, TURNED])
def test_work_of_groups_of_k(problem):
    """Operands once, over the K of all groups; as many D as groups, read too if they are added to."""
    k, size = sum(depths_of(4, 1000)), problem.a.bytes
    found = work(problem, (4, 100, 200, 1000))
    assert found.flops == 2 * 100 * 200 * k
    d = 4 * 4 * 100 * 200 * (2 if problem.accumulate else 1)
    assert found.inputs == size * (100 + 200) * k
    assert found.bytes == found.inputs + d


def test_rows_count_the_launch():
    samples = SimpleNamespace(median=1e-3, spread=0.0, kernels=("x",))
    found = _row(FLAT, (4, 100, 200, 1000), "gemmgen", samples, 2e-3, Config())
    done = work(FLAT, (4, 100, 200, 1000))
    assert (found.groups, found.m, found.n, found.k, found.ratio) == (4, 100, 200, 1000, 0.5)
    assert found.tflops == pytest.approx(done.flops * 1e-9)
    assert found.gigabytes_per_second == pytest.approx(done.bytes * 1e-6)


def test_what_is_verified():
    """Groups of as many rows as there are, up to a limit; the K of two whole groups."""
    assert verified(DENSE, (9, 8192, 7)) == (9, 8192, 7)
    assert verified(MASKED, (32, 192, 6144, 7168)) == (192, 6144, 7168)
    assert verified(MASKED, (4, 8192, 6144, 7168)) == (VERIFIED_ROWS, 6144, 7168)
    assert verified(FLAT, (8, 4096, 7168, 4000)) == (VERIFIED_ROWS, 7168, sum(depths_of(2, 4000)))


CONFIG = Config(block_n=64, stages=2)
GROUPS_OF_ROWS = ("batched", "masked", "rows", "ends")


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("grouping", GROUPS_OF_ROWS)
@pytest.mark.parametrize(
    ("problem", "theirs"),
    [
        (DENSE, "torch.mm, one"),
        (replace(DENSE, a=F16, b=F16, d=F32), "torch.mm, one"),
        (FP8, "torch._scaled_mm, one"),
        (FP8_ROWS, "torch._scaled_mm, one"),
        (replace(FP8_ROWS, family="dense"), "torch._scaled_mm, one"),
        (INT8, "torch._int_mm, one"),
        (replace(INT8, d=S32), "torch._int_mm, one"),
        (replace(DENSE, layout="nn"), "torch.mm, one"),
        (replace(FP8, epilogue=EPILOGUES["bias_silu"]), "torch._scaled_mm, one"),
        (replace(DENSE, epilogue=EPILOGUES["swiglu"]), "torch.mm, one"),
    ],
)
def test_calls_by_rows(problem, theirs, grouping, fresh, launches):
    """The kernel that is timed is the one that is verified."""
    p = launched(replace(problem, grouping=grouping))
    both = grouped.calls(p, (3, 200, 96, 256), CONFIG, Data(kind="uniform"), fresh)
    if theirs == "torch.mm, one" and grouping == "batched":
        theirs = "torch.bmm"
    assert [*both] == ["gemmgen", theirs] and sources.torch_reference(p) == theirs
    assert {*both} <= {x.name for x in sources.offers(p, CONFIG)}
    both["gemmgen"]()
    assert (launches[0].problem, launches[0].config) == (p, CONFIG)
    assert launches[0].shape[1:] == (96, 256) and launches[0].values["groups"] == 3


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "problem",
    [
        FLAT,
        replace(FLAT, grouping="k_columns"),
        replace(FLAT, accumulate=False, d=BF16),
        TURNED,
        replace(TURNED, layout="nt", accumulate=True),
        replace(TURNED, layout="nn", a=F16, b=F16),
        replace(TURNED, layout="tt", d=BF16),
        replace(TURNED, epilogue=EPILOGUES["bias"]),
    ],
)
def test_calls_by_depths(problem, fresh, launches):
    p = launched(problem)
    config = replace(CONFIG, in_flight=0 if p.family == "fp8_1d1d" else 1)
    both = grouped.calls(p, (3, 200, 96, 1000), config, NORMAL, fresh)
    theirs = "torch._scaled_mm, one" if p.family == "fp8_1d1d" else "torch.mm, one"
    assert [*both] == ["gemmgen", theirs] and sources.torch_reference(p) == theirs
    offered = [x.name for x in sources.offers(p, config) if x.takes(p)]
    assert offered == [*both, "read"]
    both["gemmgen"]()
    assert (launches[0].problem, launches[0].config) == (p, config)
    assert launches[0].shape == (200, 96, sum(depths_of(3, 1000)))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "problem",
    [
        DENSE,
        INT8_BLOCK,
        replace(DENSE, layout="tn", d=F32, accumulate=True),
        FP8,
        WGRAD,
        replace(WGRAD, accumulate=False),
        FP8_ROWS,
        replace(FP8_ROWS, family="dense"),
        INT8,
        replace(INT8, d=S32),
        *(replace(DENSE, epilogue=EPILOGUES[x]) for x in ("bias_silu", "residual", "swiglu")),
        replace(FP8_ROWS, epilogue=EPILOGUES["residual"]),
        replace(FP8, epilogue=EPILOGUES["bias"], d=F32, accumulate=True),
    ],
)
def test_calls_of_one_gemm(problem, fresh, launches):
    p = launched(problem)
    case = cases.make(p, (200, 96, 256), NORMAL)
    providers.gemmgen(CONFIG).make(case, fresh)()
    assert sources.reference(p) == providers.torch_reference(p).name
    assert (launches[0].problem, launches[0].config) == (p, CONFIG)


@pytest.mark.parametrize(
    "problem",
    [DENSE, FP8, WGRAD, INT8, replace(INT8, grouping="rows"), MASKED, BATCHED, FLAT, TURNED],
    ids=lambda p: f"{p.family}-{p.a}-{p.grouping}",
)
def test_the_reference_that_tuning_times(problem, fake_torch):
    """Of any problem, whether or not it is benchmarked."""
    ran = []
    names = ("mm", "bmm", "_scaled_mm", "_int_mm")
    for name in names:
        setattr(sys.modules["torch"], name, lambda *x, n=name, **y: ran.append(n))
    for p in (problem, replace(problem, epilogue=EPILOGUES["bias"])):
        shape = (200, 96, 1024) if p.grouping == "none" else (3, 200, 96, 1024)
        sources.torch_call(p, shape, CONFIG)()
        assert f"torch.{ran.pop()}" == sources.torch_reference(p).partition(",")[0]


@pytest.mark.parametrize("grouping", [*GROUPS_OF_ROWS, "k_columns"])
def test_the_floor_of_groups_reads_what_work_counts(grouping, fake_torch, monkeypatch):
    """B, and the rows that there are of A: not those that only pad."""
    spans = []
    monkeypatch.setattr(grouped.read, "over", lambda found: spans.extend(found))
    p, shape = replace(DENSE, grouping=grouping), (3, 200, 96, 1024)
    assert "read" not in grouped.calls(p, shape, CONFIG)
    assert [*grouped.calls(p, shape, CONFIG, floor=True)][-1] == "read"
    assert sum(size for _, size in spans) == work(p, shape).inputs
    assert all(size <= x.numel() * x.element_size() for x, size in spans)


def test_the_floor_of_one_gemm_reads_a_and_b(fake_torch, monkeypatch):
    from gemmgen.bench import read

    monkeypatch.setattr(read, "over", lambda spans: spans)
    case = cases.make(FP8, (200, 96, 256), NORMAL)
    spans = read.PROVIDER.make(case, False)
    assert [x for x, _ in spans] == [case.a, case.b]
    assert sum(size for _, size in spans) == work(FP8, (200, 96, 256)).inputs
