"""On a Hopper GPU: a pack that JAX calls inside of jit gives the bits that `gemmgen.ops` gives."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from packs import sizes

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.ops.building import config_for
from gemmgen.ops.preparing import device_name
from gemmgen.pack import files, pack
from gemmgen.pack.jax import target
from gemmgen.problem import Problem

CXX, CC = shutil.which("g++"), shutil.which("gcc")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CXX is None or CC is None, reason="no C++ compiler"),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no JAX"),
]

SHAPES = ((1, 256, 512), (77, 256, 512), (700, 256, 512))
PREFIX = "gemmgen_x"
DENSE = Problem(family="dense", a=BF16, b=BF16)
PROBLEMS = {
    "dense": DENSE,
    "residual": replace(DENSE, epilogue=EPILOGUES["residual"]),
    "fp8_block": Problem(family="fp8_block", a=E4M3, b=E4M3),
}


def built(made, folder):
    """The folder of the pack with its library, made as CMakeLists.txt says."""
    import jax

    for file, data in files(made, jax=True).items():
        (folder / file).write_bytes(data)
    headers = ["-isystem", jax.ffi.include_dir()]
    objects = [str(folder / x) for x in ("target.o", "pack.o")]
    source = str(folder / f"{PREFIX}_jax.cc")
    subprocess.run(
        [CXX, "-std=c++17", "-fPIC", *headers, "-c", source, "-o", objects[0]], check=True
    )
    source = str(folder / f"{PREFIX}.c")
    subprocess.run([CC, "-std=c11", "-fPIC", "-c", source, "-o", objects[1]], check=True)
    library = str(folder / f"lib{PREFIX}_jax.so")
    subprocess.run([CXX, "-shared", *objects, "-ldl", "-o", library], check=True)


def pattern(shape, dtype, seed):
    """What `jax_run.py` fills its arrays with."""
    import torch

    i = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return (((i * 5 + i // 7 + seed) % 15 - 7) / 8).to(getattr(torch, dtype)).cuda()


def run(p, tensors, config):
    import torch

    from gemmgen import ops

    if p.family == "fp8_block":
        scales = tensors["scale_a"]
        m = scales.shape[1]  # JAX's call makes rows of whole 16 bytes of [K / 128, M]
        scales = torch.nn.functional.pad(scales, (0, -m % 4))[:, :m].mT
        given = {"scale_a": scales, "scale_a_layout": "mn", "scale_b": tensors["scale_b"]}
        return ops.fp8_block_gemm(a=tensors["a"], b=tensors["b"], **given, config=config)
    given = {"epilogue": EPILOGUES["residual"], "c": tensors["arg_c"]} if "arg_c" in tensors else {}
    return ops.gemm(tensors["a"], tensors["b"], **given, config=config)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_jitted_call_gives_the_bits_of_ops(name, tmp_path):
    import torch

    p, device = PROBLEMS[name], device_name(0)
    chosen = {shape: config_for(p, shape, 1, device) for shape in SHAPES}
    made = pack(p, chosen, prefix=PREFIX, device=device)
    built(made, tmp_path)
    of, asked = target(p, made.interface), []
    for shape in SHAPES:
        names = dict(zip("mnk", shape, strict=True))
        asked.append([(sizes(x, names), x.jax) for x in of.inputs])
    out = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("jax_run.py")), str(tmp_path), PREFIX],
        input=json.dumps(asked), env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert not out.returncode, out.stderr
    for (shape, config), arrays, line in zip(
        chosen.items(), asked, out.stdout.split(), strict=True
    ):
        drawn = [pattern(*x, seed) for seed, x in enumerate(arrays)]
        d = run(p, dict(zip((x.name for x in of.inputs), drawn, strict=True)), config)
        assert bytes.fromhex(line) == d.cpu().view(torch.int16).numpy().tobytes(), shape
