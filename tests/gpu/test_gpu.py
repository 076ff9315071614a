"""On a Hopper GPU: every kernel's result, bit for bit where it is exact, within its bound where not.

Run with `python -m pytest -m gpu` (add `-n 8` with pytest-xdist).
"""

from __future__ import annotations

import itertools

import pytest
from exhibits import EXHIBITS
from kernels import fitting
from on_gpu import judged, legal, machine
from probe_approximate import emulated, measure, random_bits

from gemmgen.config import Config
from gemmgen.emulator.floats import MEASURED
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.gallery import path_of
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8, S32
from gemmgen.ir.dtypes import FP8 as FP8_TYPES
from gemmgen.pipeline import compile_to_source
from gemmgen.problem import Problem
from gemmgen.target import H200

pytestmark = pytest.mark.gpu

FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
B16 = Problem(family="dense", a=BF16, b=BF16)
PROBLEMS = {
    "fp8_bf16": FP8,
    "fp8_f16": Problem(family="fp8_block", a=E4M3, b=E4M3, d=F16),
    "fp8_f32": Problem(family="fp8_block", a=E4M3, b=E4M3, d=F32),
    "bf16": B16,
    "f16_f32": Problem(family="dense", a=F16, b=F16, d=F32),
    "f16": Problem(family="dense", a=F16, b=F16, d=F16),
    "s8_block": Problem(family="fp8_block", a=S8, b=S8),
    "fp8_1d1d": Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32),
    "fp8_1d1d_add": Problem(
        family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, epilogue=EPILOGUES["residual_f32"]
    ),
    "fp8_1d1d_in_place": Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, accumulate=True),
    "bf16_in_place": Problem(family="dense", a=BF16, b=BF16, d=F32, accumulate=True),
    "fp8_1d1d_bf16": Problem(family="fp8_1d1d", a=E4M3, b=E4M3),
    "s8": Problem(family="dense", a=S8, b=S8, d=S32),
    "s8_bf16": Problem(family="dense", a=S8, b=S8, epilogue=EPILOGUES["scaled"]),
    "s8_f32": Problem(family="dense", a=S8, b=S8, d=F32, epilogue=EPILOGUES["bias_relu"]),
    **{f"bf16_{x}": Problem(family="dense", a=BF16, b=BF16, layout=x) for x in ("nn", "tn", "tt")},
    **{
        f"{family}_{a}_{b}": Problem(family=family, a=a, b=b, d=F32 if a is b else BF16)
        for family in ("fp8", "dense")
        for a in FP8_TYPES
        for b in FP8_TYPES
    },
}
# M around a tile's sides; N and K with and without tails; K of one block and of fewer than the stages.
SIDES_M = (1, 7, 64, 127, 128, 129, 300)
SIDES_NK = ((8, 128), (24, 16), (100, 96), (576, 256), (129, 200), (2112, 384), (264, 1000))
LARGE = (
    (4096, 576, 7168),
    (4096, 2112, 1040),
    (4096, 4096, 128),  # more tiles than SMs, one K block each
    (1, 4096, 7168),
    (64, 7168, 2048),
    (4097, 4095, 520),
    (8192, 8192, 256),
)
SHAPES = (*((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK)), *LARGE)
TAILS = ((1, 8, 16), (3, 5, 9), (130, 261, 272), (300, 520, 1100), (700, 2603, 640))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", ["fp8_bf16", "bf16"])
def test_chosen_config(name, shape):
    problem = PROBLEMS[name]
    judged(problem, choose(problem, shape, H200), shape)


@pytest.mark.parametrize("shape", TAILS, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", ["fp8_f16", "fp8_f32", "f16_f32", "f16", "bf16_in_place"])
def test_other_outputs(name, shape):
    problem = PROBLEMS[name]
    judged(problem, choose(problem, shape, H200), shape, seed=1)


@pytest.mark.parametrize(
    "name", ["fp8_1d1d", "fp8_1d1d_add", "fp8_1d1d_in_place", "fp8_1d1d_bf16", "s8_block"]
)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_scaled_blocks(name, shape):
    """Scales along both operands' rows, and INT8 between FP32 scales."""
    problem = PROBLEMS[name]
    judged(problem, choose(problem, shape, H200), shape, pad=shape[0] % 2, seed=15)


@pytest.mark.parametrize("name", ["s8", "s8_bf16", "s8_f32"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_int8(name, shape):
    problem = PROBLEMS[name]
    judged(problem, choose(problem, shape, H200), shape, seed=11)


@pytest.mark.parametrize("name", [n for n in PROBLEMS if n.startswith(("fp8_e", "dense_e"))])
def test_fp8_pairs(name):
    """Every legal mix, promoted and not, over shapes of its own."""
    problem = PROBLEMS[name]
    for i, shape in enumerate((*TAILS, *itertools.product((1, 65, 129), (24, 130), (64, 500)))):
        judged(problem, choose(problem, shape, H200), shape, seed=10 + i)


TURNED = ("bf16_nn", "bf16_tn", "bf16_tt")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", TURNED)
def test_layouts(name, shape):
    problem = PROBLEMS[name]
    judged(problem, choose(problem, shape, H200), shape, seed=12)


@pytest.mark.parametrize("swizzle_ab", [None, 0, 32, 64, 128])
@pytest.mark.parametrize("multicast", ["none", "a", "b"])
@pytest.mark.parametrize("name", TURNED)
def test_layouts_by_swizzle(name, multicast, swizzle_ab):
    for block_m, consumers, block_n in ((64, 1, 64), (128, 2, 128), (256, 2, 64)):
        if swizzle_ab == 0 and block_m == 256:
            continue  # too many boxes per stage
        config = Config(
            block_m=block_m,
            block_n=block_n,
            consumers=consumers,
            stages=2,
            multicast=multicast,
            swizzle_ab=swizzle_ab,
        )
        for shape in TAILS:
            judged(PROBLEMS[name], config, shape, seed=13)


@pytest.mark.parametrize("name", TURNED)
def test_layouts_by_block_n(name):
    """Every width, and so every number of slabs, full and in part."""
    problem = PROBLEMS[name]
    for block_n, config in widths(problem):
        judged(problem, config, (130, 3 * block_n + 40, 300), pad=block_n % 3, seed=block_n)


@pytest.mark.parametrize("block_k_bytes", [32, 64, 256])
@pytest.mark.parametrize("name", TURNED)
def test_layouts_by_depth(name, block_k_bytes):
    config = Config(block_k_bytes=block_k_bytes, in_flight=1, stages=2, multicast="a")
    for shape in TAILS:
        judged(PROBLEMS[name], config, shape, seed=14)


@pytest.mark.parametrize("d", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name, d):
    from dataclasses import replace

    for family in ("bf16", "fp8_bf16"):
        problem = replace(PROBLEMS[family], d=d, epilogue=EPILOGUES[name])
        for shape in (fitting(problem, s) for s in (*TAILS, (2100, 2304, 512))):
            judged(problem, choose(problem, shape, H200), shape, seed=12)


SCALED_OUTPUTS = {
    "bf16": B16,
    "fp8_block": FP8,
    "fp8_1d1d": PROBLEMS["fp8_1d1d"],
    "s8": Problem(family="dense", a=S8, b=S8),
    "s8_block": PROBLEMS["s8_block"],
    "fp8": Problem(family="fp8", a=E4M3, b=FP8_TYPES[1]),
    "fp8_fast": Problem(family="dense", a=E4M3, b=E4M3),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", ["bf16", "fp8_block"])
def test_quantised(name, shape):
    """D in FP8 and its scales, of the product and with a bias where there are columns past N."""
    from dataclasses import replace

    for epilogue in ("none", "bias"):
        p = replace(SCALED_OUTPUTS[name], d=E4M3, epilogue=EPILOGUES[epilogue])
        judged(p, choose(p, shape, H200), shape, pad=shape[0] % 2, seed=16)


@pytest.mark.parametrize("epilogue", ["none", "bias_silu", "residual", "scaled", "bias_gelu"])
@pytest.mark.parametrize("name", SCALED_OUTPUTS)
def test_quantised_families(name, epilogue):
    from dataclasses import replace

    p = replace(SCALED_OUTPUTS[name], d=E4M3, epilogue=EPILOGUES[epilogue])
    for shape in (*TAILS, (2100, 2304, 512)):
        judged(p, choose(p, shape, H200), shape, seed=17)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("d", [BF16, F32, E4M3], ids=str)
def test_pairs(d, shape):
    """Bit for bit (reglu), and SwiGLU within its bound."""
    from dataclasses import replace

    for epilogue in ("reglu", "bias_swiglu"):
        p = replace(B16, d=d, epilogue=EPILOGUES[epilogue])
        fit = fitting(p, shape)
        judged(p, choose(p, fit, H200), fit, pad=shape[0] % 2, seed=18)


@pytest.mark.parametrize("name", SCALED_OUTPUTS)
def test_pairs_of_families(name):
    from dataclasses import replace

    for epilogue in ("reglu", "scaled_swiglu"):
        for d in (BF16, F32, E4M3):
            p = replace(SCALED_OUTPUTS[name], d=d, epilogue=EPILOGUES[epilogue])
            for shape in (fitting(p, s) for s in (*TAILS, (2100, 2304, 512))):
                judged(p, choose(p, shape, H200), shape, seed=19)


@pytest.mark.parametrize("shape", TAILS, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=path_of)
def test_gallery(exhibit, shape):
    judged(exhibit.problem, exhibit.config, fitting(exhibit.problem, shape), seed=2)


@pytest.mark.parametrize("pad", [1, 5])
@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=path_of)
def test_padded_rows(exhibit, pad):
    judged(exhibit.problem, exhibit.config, (200, 328, 400), pad=pad, seed=3)


@pytest.mark.parametrize("multicast", ["none", "a", "b"])
@pytest.mark.parametrize(("block_m", "consumers"), [(64, 1), (128, 2), (192, 3), (256, 2)])
@pytest.mark.parametrize("name", ["fp8_bf16", "bf16"])
def test_tiles(name, block_m, consumers, multicast):
    config = Config(block_m=block_m, consumers=consumers, stages=2, multicast=multicast)
    for shape in TAILS:
        judged(PROBLEMS[name], config, shape, seed=4)


def widths(problem):
    """Every legal block_n, with the most stages up to 4."""
    for block_n in range(8, 257, 8):
        for stages in (4, 3, 2):
            if config := legal(problem, Config(block_n=block_n, stages=stages)):
                yield block_n, config
                break


@pytest.mark.parametrize("name", ["fp8_bf16", "fp8_f32", "bf16", "f16_f32"])
def test_every_block_n(name):
    problem = PROBLEMS[name]
    found = dict(widths(problem))
    assert set(range(8, 129, 8)) <= set(found)
    for block_n, config in found.items():
        judged(problem, config, (130, 3 * block_n + 40, 300), seed=block_n)


@pytest.mark.parametrize("swizzle_d", [0, 32, 64, 128])
@pytest.mark.parametrize("swizzle_ab", [0, 32, 64, 128])
def test_swizzles(swizzle_ab, swizzle_d):
    config = Config(swizzle_ab=swizzle_ab, swizzle_d=swizzle_d)
    for problem in (FP8, B16):
        judged(problem, config, (190, 392, 408), seed=5)


@pytest.mark.parametrize("block_k_bytes", [32, 64, 128, 256])
@pytest.mark.parametrize("in_flight", [0, 1])
def test_depths(block_k_bytes, in_flight):
    config = Config(block_k_bytes=block_k_bytes, in_flight=in_flight, stages=2)
    for shape in TAILS:
        judged(B16, config, shape, seed=6)


@pytest.mark.parametrize("raster", ["m", "n"])
@pytest.mark.parametrize("panel", [1, 3, 16])
def test_rasters(raster, panel):
    config = Config(raster=raster, panel=panel, multicast="a", block_n=64)
    judged(FP8, config, (3000, 2500, 256), seed=7)


class TestOps:
    """The functions users call, on torch tensors."""

    def inputs(self, m=130, n=260, k=400):
        import torch

        a = torch.randint(-2, 3, (m, k), device="cuda").float().to(torch.float8_e4m3fn)
        b = torch.randint(-2, 3, (n, k), device="cuda").float().to(torch.float8_e4m3fn)
        blocks = -(-k // 128)
        scale_a = torch.exp2(torch.randint(-1, 2, (m, blocks), device="cuda").float())
        scale_b = torch.exp2(torch.randint(-1, 2, (-(-n // 128), blocks), device="cuda").float())
        wide_a = a.double() * scale_a.double().repeat_interleave(128, 1)[:, :k]
        wide_b = (
            b.double()
            * scale_b.double().repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 0)[:n]
        )
        return a, scale_a, b, scale_b, (wide_a @ wide_b.T).float()

    def test_row_and_mn_scales_agree(self):
        from gemmgen import ops
        from gemmgen.runtime.torch_tensors import mn_major

        a, scale_a, b, scale_b, want = self.inputs()
        row = ops.fp8_block_gemm(a, scale_a, b, scale_b, scale_a_layout="row", out_dtype="f32")
        mn = ops.fp8_block_gemm(
            a, mn_major(scale_a), b, scale_b, scale_a_layout="mn", out_dtype="f32"
        )
        assert (row == want).all() and (mn == want).all()

    def test_transposed_scale_b(self):
        from gemmgen import ops

        a, scale_a, b, scale_b, want = self.inputs()
        turned = scale_b.T.contiguous().T
        out = ops.fp8_block_gemm(a, scale_a, b, turned, scale_a_layout="row", out_dtype="f32")
        assert (out == want).all()

    @pytest.mark.parametrize("accurate", [True, False])
    @pytest.mark.parametrize("kind", ["none", "float", "tensor", "vector"])
    def test_fp8_gemm(self, kind, accurate):
        import torch

        from gemmgen import ops

        a = torch.randint(-2, 3, (130, 400), device="cuda").float().to(torch.float8_e4m3fn)
        b = torch.randint(-2, 3, (260, 400), device="cuda").float().to(torch.float8_e5m2)
        scales = {
            "none": (None, None),
            "float": (0.5, 2.0),
            "tensor": (torch.tensor(0.5, device="cuda"), torch.tensor([2.0], device="cuda")),
            "vector": tuple(
                torch.exp2(torch.randint(-2, 3, (s,), device="cuda").float()) for s in (130, 260)
            ),
        }[kind]
        out = ops.fp8_gemm(
            a, b, scale_a=scales[0], scale_b=scales[1], accurate=accurate, out_dtype="f32"
        )
        want = a.double() @ b.double().T
        if kind == "vector":
            want = want * scales[0].double()[:, None] * scales[1].double()
        assert (out == want).all()

    def test_int8_gemm(self):
        import torch

        from gemmgen import ops

        a = torch.randint(-128, 128, (130, 400), device="cuda").to(torch.int8)
        b = torch.randint(-128, 128, (260, 400), device="cuda").to(torch.int8)
        want = a.double() @ b.double().T
        assert (ops.int8_gemm(a, b) == want).all()
        rows = torch.exp2(torch.randint(-2, 3, (130,), device="cuda").float())
        scaled = ops.int8_gemm(a, b, scale_a=rows, scale_b=0.5, out_dtype="f32")
        assert (scaled == want * rows.double()[:, None] * 0.5).all()
        with pytest.raises(ArgumentError, match="131071"):
            ops.int8_gemm(a.repeat(1, 512), b.repeat(1, 512))

    @pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
    def test_layouts(self, layout):
        import torch

        from gemmgen import ops

        a = torch.randint(-2, 3, (130, 400), device="cuda").bfloat16()
        b = torch.randint(-2, 3, (400, 264), device="cuda").bfloat16()
        stored = (
            a.T.contiguous() if layout[0] == "t" else a,
            b.T.contiguous() if layout[1] == "t" else b,
        )
        if layout[0] == "t":  # 130 columns: a row stride of 260 bytes is no multiple of 16
            with pytest.raises(ArgumentError, match="row stride"):
                ops.gemm(*stored, layout=layout)
            wide = torch.zeros(400, 136, device="cuda", dtype=torch.bfloat16)
            wide[:, :130] = a.T
            stored = wide[:, :130], stored[1]
        assert (ops.gemm(*stored, layout=layout, out_dtype="f32") == a.double() @ b.double()).all()

    def test_a_gemm_adds_to_its_output(self):
        import torch

        from gemmgen import ops

        a = torch.randint(-2, 3, (130, 400), device="cuda").bfloat16()
        b = torch.randint(-2, 3, (258, 400), device="cuda").bfloat16()
        out = torch.ones(130, 260, device="cuda")[:, :258]
        for times in (1, 2):
            ops.gemm(a, b, out, accumulate=True)
            assert (out == 1 + times * (a.double() @ b.double().T)).all()
        with pytest.raises(ArgumentError, match="out="):
            ops.gemm(a, b, accumulate=True)
        with pytest.raises(ArgumentError, match="accumulate="):
            ops.gemm(a, b, out.bfloat16(), out_dtype="bf16", accumulate=True)

    @pytest.mark.parametrize("scale_layout", ["row", "mn"])
    def test_wgrad_in_place(self, scale_layout):
        """Added to what is there, three times."""
        import torch

        from gemmgen import ops
        from gemmgen.runtime.torch_tensors import mn_major

        a = torch.randint(-2, 3, (130, 400), device="cuda").float()
        b = torch.randint(-2, 3, (260, 400), device="cuda").float()
        scale_a = torch.exp2(torch.randint(-2, 3, (130, 4), device="cuda").float())
        scale_b = torch.exp2(torch.randint(-2, 3, (260, 4), device="cuda").float())
        rows, columns = (s.repeat_interleave(128, 1)[:, :400] for s in (scale_a, scale_b))
        want = (a.double() * rows) @ (b.double() * columns).T
        given = [mn_major(s) if scale_layout == "mn" else s for s in (scale_a, scale_b)]
        x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        out = torch.zeros(130, 260, device="cuda")
        for times in (1, 2, 3):
            ops.fp8_wgrad_gemm(x, given[0], y, given[1], out, c=out, scale_layout=scale_layout)
            assert (out == times * want).all()
        fresh = ops.fp8_wgrad_gemm(x, given[0], y, given[1], scale_layout=scale_layout)
        assert (fresh == want).all()
        with pytest.raises(ArgumentError) as e:
            ops.fp8_wgrad_gemm(x, given[0][:5], y, given[1], scale_layout=scale_layout)
        assert e.value.argument == "scale_a shape"
        with pytest.raises(ArgumentError) as e:
            ops.fp8_wgrad_gemm(x, given[0], y, given[1], scale_layout="auto")
        assert e.value.argument == "scale_layout"

    def test_int8_block_gemm(self):
        import torch

        from gemmgen import ops

        a = torch.randint(-128, 128, (130, 400), device="cuda")
        b = torch.randint(-128, 128, (260, 400), device="cuda")
        ones = torch.ones(130, 4, device="cuda"), torch.ones(3, 4, device="cuda")
        out = ops.int8_block_gemm(
            a.to(torch.int8),
            ones[0],
            b.to(torch.int8),
            ones[1],
            scale_a_layout="row",
            out_dtype="f32",
        )
        assert (out == a.double() @ b.double().T).all()

    def test_no_rows(self):
        import torch

        from gemmgen import ops

        a = torch.empty(0, 64, device="cuda", dtype=torch.bfloat16)
        b = torch.ones(24, 64, device="cuda", dtype=torch.bfloat16)
        assert ops.gemm(a, b).shape == (0, 24)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    def test_residual(self, dtype):
        import torch

        from gemmgen import ops
        from gemmgen.epilogues import acc
        from gemmgen.ir.expr import PerElement, Scalar

        a = torch.randint(-2, 3, (300, 64), device="cuda").bfloat16()
        b = torch.randint(-2, 3, (261, 64), device="cuda").bfloat16()
        wide = torch.randint(-2, 3, (300, 270), device="cuda").to(getattr(torch, dtype))
        c = wide[:, 2:263]
        element = PerElement("c", {"bfloat16": BF16, "float16": F16, "float32": F32}[dtype])
        epilogue = acc + Scalar("beta") * element
        out = ops.gemm(a, b, out_dtype="f32", epilogue=epilogue, c=c, beta=0.5)
        assert (out == a.double() @ b.double().T + 0.5 * c.double()).all()
        broadcast = c[:1].expand(300, 261)
        out = ops.gemm(a, b, out_dtype="f32", epilogue=epilogue, c=broadcast, beta=2.0)
        assert (out == a.double() @ b.double().T + 2 * broadcast.double()).all()

    def test_residual_in_place(self):
        import torch

        from gemmgen import ops

        a = torch.randint(-2, 3, (3000, 64), device="cuda").bfloat16()
        b = torch.randint(-2, 3, (2048, 64), device="cuda").bfloat16()
        c = torch.randint(-2, 3, (3000, 2048), device="cuda").bfloat16()
        want = a.double() @ b.double().T + c.double()
        out = ops.gemm(a, b, c, epilogue=EPILOGUES["residual"], c=c)
        assert out is c and (out == want.bfloat16()).all()

    @pytest.mark.parametrize(
        ("argument", "change"),
        [
            ("c dtype", lambda c: c.float()),
            ("c shape", lambda c: c[:5]),
            ("c shape", lambda c: c.flatten()),
            ("c device", lambda c: c.cpu()),
            ("c last stride", lambda c: c.T.contiguous().T),
            ("c row stride", lambda c: odd_rows(c)),
            ("c", lambda c: shifted(c, 2)),
            ("c", lambda c: 1.0),
            ("c", lambda c: None),
        ],
    )
    def test_wrong_residuals(self, argument, change):
        import torch

        from gemmgen import ops

        a = torch.ones(72, 64, device="cuda", dtype=torch.bfloat16)
        c = torch.ones(72, 72, device="cuda", dtype=torch.bfloat16)
        with pytest.raises(ArgumentError) as e:
            ops.gemm(a, a, epilogue=EPILOGUES["residual"], c=change(c))
        assert e.value.argument == argument and e.value.allowed

    def test_swiglu(self):
        import torch

        from gemmgen import ops

        a = torch.randn(100, 64, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(144, 64, device="cuda", dtype=torch.bfloat16) / 4
        bias = torch.randn(144, device="cuda")
        out = ops.gemm(a, b, out_dtype="f32", epilogue=EPILOGUES["bias_swiglu"], bias=bias)
        x = a.double() @ b.double().T + bias.double()
        want = torch.nn.functional.silu(x[:, 0::2]) * x[:, 1::2]
        assert out.shape == (100, 72) and (out - want).abs().max() < 1e-4 * want.abs().max()

    @pytest.mark.parametrize("given", [False, True])
    def test_quantised(self, given):
        """The bits of the recipe in torch; then the next layer reads them in place."""
        import torch

        from gemmgen import ops

        a = torch.randint(-2, 3, (130, 400), device="cuda").bfloat16()
        b = torch.randint(-2, 3, (300, 400), device="cuda").bfloat16()
        scale = torch.full((3, 136), 7.0, device="cuda")[:, :130].mT if given else None
        out, scale_out = ops.gemm(a, b, out_dtype="e4m3", scale_out=scale)
        assert scale_out is scale or not given
        x = torch.nn.functional.pad((a.double() @ b.double().T).float(), (0, 84)).view(130, 3, 128)
        amax = x.abs().amax(2).clamp(1e-4)
        largest = torch.full_like(amax, 448.0)  # torch multiplies by 1 / a number on a GPU
        want = (x * (largest / amax)[..., None]).to(torch.float8_e4m3fn).view(130, 384)[:, :300]
        assert (scale_out == amax / largest).all()
        assert (out.view(torch.uint8) == want.view(torch.uint8)).all()
        next_b = torch.randint(-2, 3, (64, 300), device="cuda").float().to(torch.float8_e4m3fn)
        wide = torch.zeros(64, 304, device="cuda", dtype=torch.float8_e4m3fn)
        wide[:, :300] = next_b
        ones = torch.ones(1, 3, device="cuda")
        second = ops.fp8_block_gemm(
            out, scale_out, wide[:, :300], ones, scale_a_layout="mn", out_dtype="f32"
        )
        columns = scale_out.double().repeat_interleave(128, 1)[:, :300]
        right = (out.double() * columns) @ next_b.double().T
        assert (second - right).abs().max() < 1e-3 * right.abs().max()

    def test_scaled_and_quantised(self):
        import torch

        from gemmgen import ops

        a = torch.randint(-8, 8, (70, 256), device="cuda").to(torch.int8)
        b = torch.randint(-8, 8, (256, 256), device="cuda").to(torch.int8)
        rows = torch.exp2(torch.randint(-2, 3, (70,), device="cuda").float())
        out, scale_out = ops.int8_gemm(
            a, b, scale_a=rows, out_dtype="e4m3", epilogue=EPILOGUES["reglu"]
        )
        x = (a.double() @ b.double().T) * rows.double()[:, None]
        y = (x[:, 0::2].clamp(0) * x[:, 1::2]).float()
        amax = y.abs().amax(1, keepdim=True).clamp(1e-4)
        largest = torch.full_like(amax, 448.0)
        assert (scale_out == amax / largest).all()
        want = (y * (largest / amax)).to(torch.float8_e4m3fn)
        assert (out.view(torch.uint8) == want.view(torch.uint8)).all()

    @pytest.mark.parametrize(
        ("argument", "options"),
        [
            ("scale_out", lambda t: {"scale_out": t}),
            ("scale_out shape", lambda t: {"out_dtype": "e4m3", "scale_out": t[:, :1]}),
            ("scale_out dtype", lambda t: {"out_dtype": "e4m3", "scale_out": t.half()}),
            ("scale_out device", lambda t: {"out_dtype": "e4m3", "scale_out": t.cpu()}),
            ("scale_out stride along M", lambda t: {"out_dtype": "e4m3", "scale_out": t.contiguous()}),
            ("scale_out column stride", lambda t: {"out_dtype": "e4m3", "scale_out": t[:, :1].expand(72, 2)}),
            ("b rows", lambda t: {"epilogue": EPILOGUES["swiglu"]}),
        ],
    )  # fmt: skip
    def test_wrong_scales_of_the_output(self, argument, options):
        import torch

        from gemmgen import ops

        a = torch.ones(72, 64, device="cuda", dtype=torch.bfloat16)
        b = torch.ones(131, 64, device="cuda", dtype=torch.bfloat16)
        scale = torch.ones(2, 72, device="cuda").mT
        with pytest.raises(ArgumentError) as e:
            ops.gemm(a, b, **options(scale))
        assert e.value.argument == argument and e.value.allowed

    def test_gelu(self):
        import torch

        from gemmgen import ops

        a = torch.randn(100, 64, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(72, 64, device="cuda", dtype=torch.bfloat16) / 4
        acc = a.double() @ b.double().T
        for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
            out = ops.gemm(a, b, out_dtype="f32", epilogue=EPILOGUES[name])
            want = torch.nn.functional.gelu(acc, approximate=approximate)
            assert (out - want).abs().max() < 1e-5

    def test_bias_silu(self):
        import torch

        from gemmgen import ops
        from gemmgen.epilogues import EPILOGUES

        a = torch.randn(100, 64, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(72, 64, device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(72, device="cuda")
        out = ops.gemm(a, b, out_dtype="f32", epilogue=EPILOGUES["bias_silu"], bias=bias)
        want = torch.nn.functional.silu(a.double() @ b.double().T + bias.double())
        assert (out - want).abs().max() < 1e-4 * want.abs().max()

    @pytest.mark.parametrize(
        ("argument", "change"),
        [
            ("a dtype", lambda t: t | {"a": t["a"].float()}),
            ("a last stride", lambda t: t | {"a": t["a"].T.contiguous().T}),
            ("a device", lambda t: t | {"a": t["a"].cpu()}),
            ("b shape", lambda t: t | {"b": t["b"][:, :64]}),
            ("scale_a shape", lambda t: t | {"scale_a": t["scale_a"][:5]}),
            ("scale_b shape", lambda t: t | {"scale_b": t["scale_b"].T}),
            ("scale_a_layout", lambda t: t | {"scale_a_layout": "auto"}),
            ("scale_a stride along M", lambda t: t | {"scale_a_layout": "mn"}),
            ("out_dtype", lambda t: t | {"out_dtype": "f64"}),
            ("a row stride", lambda t: t | {"a": odd_rows(t["a"])}),
            ("a", lambda t: t | {"a": shifted(t["a"])}),
            ("beta", lambda t: t | {"beta": 2.0}),
        ],
    )
    def test_wrong_arguments(self, argument, change):
        from gemmgen import ops

        a, scale_a, b, scale_b, _ = self.inputs()
        given = {"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b, "scale_a_layout": "row"}
        with pytest.raises(ArgumentError) as e:
            ops.fp8_block_gemm(**change(given))
        assert e.value.argument == argument


def odd_rows(t):
    """`t` with a row stride that is no multiple of 16 bytes."""
    import torch

    parent = torch.empty(t.shape[0], t.shape[1] + 1, dtype=t.dtype, device=t.device)
    return parent[:, :-1]


def shifted(t, by=8):
    """A tensor like `t` whose address is `by` bytes after a multiple of 16 bytes."""
    import torch

    parent = torch.empty(t.nbytes + by, dtype=torch.uint8, device=t.device)
    return parent[by:].view(t.dtype).view(t.shape)


def test_source_compiles_with_the_machines_nvrtc():
    from gemmgen.runtime.nvrtc import compile_cubin

    a = compile_to_source(FP8, Config())
    assert compile_cubin(a.source, a.name).spill_bytes == 0


@pytest.mark.parametrize("shape", [(130, 261, 272), (7, 40, 1100), (300, 520, 384)])
@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=path_of)
def test_same_bits_as_the_emulator(exhibit, shape):
    """The emulator executes the PTX of the very source whose cubin the GPU runs."""
    from gemmgen import ops
    from gemmgen.gallery import artifact
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.inputs import random_normal
    from gemmgen.verification.trial import output, pitches

    p = exhibit.problem
    shape = fitting(p, shape)
    program = ops.loaded(p, exhibit.config, 0)
    operands = random_normal(p, *shape, seed=8)
    strides = pitches(program.kernel, shape)
    d = output(p, operands, strides)
    on_gpu = machine().execute(program, operands, strides, d, 0xFF)
    emulated = EmulatedGpu().execute(
        prepare(artifact(exhibit).kernel, artifact(exhibit).source), operands, strides, d, 0xFF
    )
    differ = int((d.extract(on_gpu) != d.extract(emulated)).sum())
    assert differ == 0, f"{differ} of {d.rows * d.cols} elements"


@pytest.mark.parametrize("opcode", MEASURED)
def test_approximate_functions_have_the_emulators_bits(opcode):
    x, y = random_bits(2, 1 << 22)
    wrong = measure(opcode, x, y) != emulated(opcode, x, y)
    assert not wrong.any(), [hex(v) for v in x[wrong][:4]]


STUCK = """
from dataclasses import replace
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.errors import DeadlockError
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.nodes import ExpectTx
from gemmgen.ir.rewrite import map_stmts
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.gpu import Gpu
from gemmgen.runtime.launch import LoadedKernel
from gemmgen.runtime.nvrtc import compile_cubin
from gemmgen.verification.trial import judge

problem = Problem(family="dense", a=BF16, b=BF16)
kernel = lower(problem, Config(watchdog=True))
wrong = map_stmts(
    kernel, lambda s: replace(s, tx_bytes=s.tx_bytes + 16) if isinstance(s, ExpectTx) else s
)
program = LoadedKernel(wrong, compile_cubin(emit(wrong), wrong.name))
try:
    judge(Gpu(), program, wrong, problem, (256, 256, 512))
except DeadlockError as e:
    print(e)
"""


def test_a_deadlock_becomes_a_table():
    """In a process of its own: the trap leaves its CUDA context unusable."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "is stuck" in lines[0], done.stderr[-2000:]
    assert any("consumer" in line and "full[0] parity 0" in line for line in lines[1:])
    assert any("producer" in line and "empty[0]" in line for line in lines[1:])


WATCHED = ("base", "two_wave_multicast_a", "n192_multicast_b", "n256", "two_wave_in_flight")


@pytest.mark.parametrize(
    "exhibit", [e for e in EXHIBITS.values() if e.name in WATCHED], ids=path_of
)
def test_watched_builds(exhibit):
    from dataclasses import replace

    judged(exhibit.problem, replace(exhibit.config, watchdog=True), (300, 520, 1100), seed=9)
