"""On a Hopper GPU: the C example of a pack gives the bits that `gemmgen.ops` gives."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import BF16, E4M3, F32, S8, S32
from gemmgen.ir.expr import ACC, DeviceScalar
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ops.building import config_for
from gemmgen.ops.preparing import device_name
from gemmgen.pack import files, pack
from gemmgen.pack.render import filled
from gemmgen.problem import Problem

CC = shutil.which("cc") or shutil.which("gcc")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(CC is None, reason="no C compiler")]

SHAPES = ((1, 515, 1024), (77, 515, 1024), (700, 515, 1024))  # M, N, K, of a group in the mean
DEPTHS = ((77, 515, 128), (77, 515, 384), (77, 515, 1024))  # where groups split K
GROUPS = 5
FP8 = {"a": E4M3, "b": E4M3}
SCALED = ACC * DeviceScalar("scale_a") * DeviceScalar("scale_b")
DENSE = Problem(family="dense", a=BF16, b=BF16)
BLOCK = Problem(family="fp8_block", **FP8)
WGRAD = Problem(family="fp8_1d1d", **FP8, d=F32)
TENSOR = Problem(family="fp8", **FP8, epilogue=SCALED)
INT4 = Problem(family="w4a16", a=BF16, b=BF16, weights="int4_128_bf16")
INT8 = Problem(family="dense", a=S8, b=S8, d=S32)
PROBLEMS = {
    "dense": DENSE,
    "residual": replace(DENSE, epilogue=EPILOGUES["residual"]),
    "fp8": TENSOR,
    "fp8_block": BLOCK,
    "fp8_1d1d": WGRAD,
    **{
        f"{name} {grouping}": replace(p, grouping=grouping)
        for name, p in (("dense", DENSE), ("fp8", TENSOR), ("fp8_block", BLOCK), ("int8", INT8))
        for grouping in ("batched", "masked", "rows", "ends")
    },
    "residual masked": replace(DENSE, grouping="masked", epilogue=EPILOGUES["residual"]),
    "e4m3 rows": replace(BLOCK, grouping="rows", d=E4M3),
    "ends at 64": replace(DENSE, grouping="ends", alignment=64),
    "dense k_columns": replace(DENSE, grouping="k_columns", layout="tn", d=F32),
    "accumulate k_columns": replace(
        DENSE, grouping="k_columns", layout="tn", d=F32, accumulate=True
    ),
    "fp8 k_columns": replace(WGRAD, grouping="k_columns"),
    "fp8 k_flat": replace(WGRAD, grouping="k_flat"),
    "dense summed": replace(DENSE, grouping="summed", d=F32),
    **{
        f"int4 {x}": replace(INT4, grouping=x)
        for x in ("none", "batched", "masked", "rows", "ends")
    },
}


def pattern(size, seed, device="cuda"):
    """The bytes that the example fills its `seed`-th address with."""
    import torch

    i = torch.arange(size, device=device)
    return (0x38 + (i * 5 + i // 64 + seed) % 7).to(torch.uint8)


def sides_of(p, shape):
    """The example's arguments for `shape`, which is of one group in the mean: all of M, or of K, is theirs."""
    m, n, k = shape
    match p.grouping:
        case "none":
            return {"m": m, "n": n, "k": k}
        case "rows" | "ends":
            return {"groups": GROUPS, "m": GROUPS * m, "n": n, "k": k}
        case "k_columns" | "k_flat":
            return {"groups": GROUPS, "m": m, "n": n, "k": GROUPS * k}
    return {"groups": GROUPS, "m": m, "n": n, "k": k}


def number(expression, names):
    """A C expression over integers that are not negative, but for what is subtracted last."""
    return eval(expression.replace("/", "//"), {}, names)


def example_args(made, sides, device="cuda"):
    """What the example passes: strides by name, and memory by the name of its address, bytes but for tables."""
    import torch

    numbers, memory = SimpleNamespace(), {}
    names = {**sides, "args": numbers}
    for x in made.interface.members:
        if x.ctype == "int64_t":
            setattr(numbers, x.name, number(x.example, names))
    for seed, x in enumerate(filled(made)):
        memory[x.name] = pattern(number(x.example, names), seed, device)
    for x in (x for x in made.interface.members if x.entry):
        count = number(x.example, names) // 4
        entries = [number(x.entry, {**names, "i": i}) for i in range(count)]
        memory[x.name] = torch.tensor(entries, dtype=torch.int32, device=device)
    return numbers, memory


def viewed(made, sides, device="cuda"):
    """The example's memory as torch tensors, rows as long as they are; and D's, whole."""
    import torch

    numbers, memory = example_args(made, sides, device)
    kinds = {"bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}
    kinds |= {"s8": torch.int8, "s32": torch.int32}
    found = {}
    for t in (*made.interface.tensors, *made.interface.outputs):
        flat = memory[t.name].view(kinds[t.dtype.name])
        if t.packed:
            found[t.name] = flat
            continue
        lead = (sides["groups"],) if t.grouped else ()
        rows = flat.view(*lead, -1, getattr(numbers, t.stride))
        found[t.name] = rows[..., : number(t.inner, sides)]
    if made.problem.form:
        blocks = -(-sides["n"] // 64), -(-sides["k"] // 128), made.problem.form.block_bytes
        lead = (sides["groups"],) if "groups" in sides else ()
        found["b"] = memory["b"].view(*lead, *blocks)
    for name in memory.keys() - found.keys():
        kind = torch.int32 if memory[name].dtype == torch.int32 else torch.float32
        found[name] = memory[name].view(kinds["bf16"] if name == "arg_c" else kind)
    return found, memory["d"], numbers


def run(p, t, sides, numbers, config):
    """The same by gemmgen.ops."""
    from gemmgen import ops

    g = GROUPINGS[p.grouping]
    given = {"out": t["d"], "config": config}
    given |= {x: t[x] for x in ("group_rows", "row_groups", "group_ends", "group_depths") if x in t}
    given |= {"alignment": p.alignment} if g.aligned else {}
    given |= {"layout": p.layout} if p.a == BF16 and not p.form else {}
    given |= {"weights": p.weights, "columns": sides["n"]} if p.form else {}
    lead = (sides["groups"],) if g.rows else ()
    if "arg_c" in t:
        c = t["arg_c"].view(*lead, -1, numbers.row_stride_c)[..., : sides["n"]]
        given |= {"epilogue": EPILOGUES["residual"], "c": c}
    given |= {"out_dtype": p.d.name} if p.grouping == "summed" else {}
    if p.accumulate:
        given |= {"c": t["d"]}
    if p.quantised:
        given |= {"out_dtype": "e4m3", "scale_out": t["scale_d"].mT}
    if p.family == "fp8":
        given |= {"scale_a": t["arg_scale_a"], "scale_b": t["arg_scale_b"]}
    if p.family == "fp8_1d1d":
        given |= {"scale_a": t["scale_a"].mT, "scale_b": t["scale_b"].mT, "scale_layout": "mn"}
    if p.family == "fp8_block":
        blocks = [-(-sides[x] // 128) for x in "nk"]
        columns = (sides["groups"],) if g.columns else ()
        given |= {"scale_a": t["scale_a"].mT, "scale_a_layout": "mn"}
        given |= {"scale_b": t["scale_b"].view(*columns, *blocks)}
    if g.depths and p.family == "fp8_1d1d":
        given |= {"packing": p.grouping.removeprefix("k_")}
    getattr(ops, function_of(p))(a=t["a"], b=t["b"], **given)


FAMILIES = {
    ("fp8", E4M3): "fp8_",
    ("fp8_block", E4M3): "fp8_block_",
    ("fp8_1d1d", E4M3): "fp8_",
    ("dense", BF16): "",
    ("w4a16", BF16): "w4a16_",
    ("dense", S8): "int8_",
}
KINDS = {
    "none": "",
    "batched": "batched_",
    "masked": "masked_",
    "rows": "grouped_",
    "ends": "grouped_",
}
KINDS |= {"summed": "summed_"}
KINDS |= dict.fromkeys(("k_columns", "k_flat"), "k_grouped_")


def function_of(p):
    if (p.family, p.grouping) == ("fp8_1d1d", "none"):
        return "fp8_wgrad_gemm"
    return f"{FAMILIES[p.family, p.a]}{KINDS[p.grouping]}gemm"


def shapes_of(p):
    return DEPTHS if GROUPINGS[p.grouping].depths else SHAPES


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_example_gives_the_bits_of_ops(name, tmp_path):
    import torch

    p, device = PROBLEMS[name], device_name(0)
    lead = () if p.grouping == "none" else (GROUPS,)
    chosen = {
        (*lead, *shape): config_for(p, shape, GROUPS if lead else 1, device, pointers=False)
        for shape in shapes_of(p)
    }
    made = pack(p, chosen, prefix="gemmgen_x", device=device)
    for file, data in files(made).items():
        (tmp_path / file).write_bytes(data)
    example = tmp_path / "example"
    sources = [str(tmp_path / file) for file in ("example.c", "gemmgen_x.c")]
    subprocess.run([CC, "-std=c11", *sources, "-o", str(example), "-ldl"], check=True)
    for shape, config in chosen.items():
        sides, out = sides_of(p, shape[-3:]), tmp_path / "d.bin"
        command = [str(example), str(tmp_path), *map(str, sides.values()), str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        tensors, d, numbers = viewed(made, sides)
        run(p, tensors, sides, numbers, config)
        torch.cuda.synchronize()
        assert out.read_bytes() == d.cpu().numpy().tobytes()
