"""On a Hopper GPU: the C example of a pack gives the bits that `gemmgen.ops` gives."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import BF16, E4M3, F32
from gemmgen.ir.expr import ACC, DeviceScalar
from gemmgen.ops.calls import config_for
from gemmgen.ops.preparing import device_name
from gemmgen.pack import files, pack
from gemmgen.problem import Problem

CC = shutil.which("cc") or shutil.which("gcc")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(CC is None, reason="no C compiler")]

SHAPES = ((1, 515, 1024), (77, 515, 1024), (700, 515, 1024))
FP8 = {"a": E4M3, "b": E4M3}
SCALED = ACC * DeviceScalar("scale_a") * DeviceScalar("scale_b")
PROBLEMS = {
    "dense": Problem(family="dense", a=BF16, b=BF16),
    "residual": Problem(family="dense", a=BF16, b=BF16, epilogue=EPILOGUES["residual"]),
    "fp8": Problem(family="fp8", **FP8, epilogue=SCALED),
    "fp8_block": Problem(family="fp8_block", **FP8),
    "fp8_1d1d": Problem(family="fp8_1d1d", **FP8, d=F32),
}


def pattern(size, seed, device="cuda"):
    """The bytes that the example fills its `seed`-th address with."""
    import torch

    i = torch.arange(size, device=device)
    return (0x38 + (i * 5 + i // 64 + seed) % 7).to(torch.uint8)


def example_args(made, shape, device="cuda"):
    """What the example passes: strides by name, and bytes of memory by the name of their address."""
    m, n, k = shape
    numbers, memory = SimpleNamespace(), {}
    names = {"m": m, "n": n, "k": k, "args": numbers}
    for x in made.interface.members:
        if x.ctype == "int64_t":
            setattr(numbers, x.name, eval(x.example.replace("/", "//"), {}, names))
    pointers = [x for x in made.interface.members if x.ctype == "CUdeviceptr"]
    for seed, x in enumerate(pointers):
        size = eval(x.example.replace("/", "//"), {}, names)
        memory[x.name] = pattern(size, seed, device)
    return numbers, memory


def viewed(made, shape, device="cuda"):
    """The example's memory as torch tensors, rows as long as they are; and D's, whole."""
    import torch

    numbers, memory = example_args(made, shape, device)
    m, n, k = shape
    kinds = {"bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}
    found = {}
    for t in made.interface.tensors:
        rows = memory[t.name].view(kinds[t.dtype.name]).view(-1, getattr(numbers, t.stride))
        inner = eval(t.inner.replace("/", "//"), {}, {"m": m, "n": n, "k": k})
        found[t.name] = rows[:, :inner]
    for name in memory.keys() - found.keys():
        found[name] = memory[name].view(kinds["bf16" if name == "arg_c" else "f32"])
    return found, memory["d"], numbers


def run(name, t, shape, numbers, config):
    from gemmgen import ops

    _, n, k = shape
    given = {"out": t["d"], "config": config}
    match name:
        case "dense":
            return ops.gemm(t["a"], t["b"], **given)
        case "residual":
            c = t["arg_c"].view(-1, numbers.arg_c_stride)[:, :n]
            return ops.gemm(t["a"], t["b"], epilogue=EPILOGUES["residual"], c=c, **given)
        case "fp8":
            scales = {"scale_a": t["arg_scale_a"], "scale_b": t["arg_scale_b"]}
            return ops.fp8_gemm(t["a"], t["b"], **scales, **given)
        case "fp8_block":
            blocks = t["scale_b"].view(-1, -(-k // 128))
            scale_a = t["scale_a"].mT
            return ops.fp8_block_gemm(t["a"], scale_a, t["b"], blocks, scale_a_layout="mn", **given)
        case "fp8_1d1d":
            a, b = t["scale_a"].mT, t["scale_b"].mT
            return ops.fp8_wgrad_gemm(t["a"], a, t["b"], b, scale_layout="mn", **given)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_example_gives_the_bits_of_ops(name, tmp_path):
    import torch

    p, device = PROBLEMS[name], device_name(0)
    chosen = {shape: config_for(p, shape, 1, device) for shape in SHAPES}
    made = pack(p, chosen, prefix="gemmgen_x", device=device)
    for file, data in files(made).items():
        (tmp_path / file).write_bytes(data)
    example = tmp_path / "example"
    sources = [str(tmp_path / file) for file in ("example.c", "gemmgen_x.c")]
    subprocess.run([CC, "-std=c11", *sources, "-o", str(example), "-ldl"], check=True)
    for shape, config in chosen.items():
        out = tmp_path / "d.bin"
        command = [str(example), str(tmp_path), *map(str, shape), str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        tensors, d, numbers = viewed(made, shape)
        run(name, tensors, shape, numbers, config)
        torch.cuda.synchronize()
        assert out.read_bytes() == d.cpu().numpy().tobytes()
