"""What is around the GEMMs of experts: rows for copies of tokens, copies, sums."""

from __future__ import annotations

from types import SimpleNamespace

from fake_torch import Placed, codes

from gemmgen import ops
from gemmgen.compat import sglang
from gemmgen.compat.experts import FLAGS, ONLY
from gemmgen.compat.fused_experts import NONE_OTHER, fused_experts

from .gemms import K, M
from .model import Function, Given, wrong


def _ids() -> Given:
    return {"chosen": Placed(M, 8, dtype="int64"), "experts": 64}


ROUTE = (
    wrong("no tensor", "chosen", chosen=[[1]]),
    *(wrong(f"{x} ids", "chosen dtype", chosen=Placed(M, 8, dtype=x)) for x in ("bfloat16", "int8")),
    wrong("one dimension", "chosen shape", chosen=Placed(M, dtype="int32")),
    wrong("three dimensions", "chosen shape", chosen=Placed(M, 8, 1, dtype="int32")),
    wrong("more copies than are counted", "chosen shape", chosen=Placed(2**28, 8, dtype="int32")),
    wrong("room for more rows than are counted", "chosen shape", alignment=2**26),
    *(wrong(f"{x!r} experts", "experts", experts=x) for x in (0, -1, 8.0, "8", None, True, 2**31)),
    *(wrong(f"alignment={x!r}", "alignment", alignment=x) for x in (0, -128, 128.0, "128", None, True, 2**31)),
    *(wrong(f"first={x!r}", "first", first=x) for x in (-1, 64, 0.0, "0", None, False)),
    *(wrong(f"local={x!r}", "local", local=x) for x in (0, -1, 65, 8.0, "8", True)),
    wrong("more experts than there are behind the first", "local", first=60, local=5),
    wrong("more experts than a kernel has", "local", experts=1024, local=513),
    wrong("all of too many experts", "experts", experts=513),
)  # fmt: skip


def _logits() -> Given:
    """Of 64 experts in 8 groups."""
    return {"logits": Placed(M, 64), "top": 8, "groups": 8, "kept_groups": 4, "bias": Placed(64)}


SELECT = (
    *(wrong(f"{x} of no tensor", x, **{x: [[1.0]]}) for x in ("logits", "bias")),
    wrong("integers", "logits dtype", logits=Placed(M, 64, dtype="int32")),
    wrong("one token", "logits shape", logits=Placed(64)),
    wrong("a bias of 16 bits", "bias dtype", bias=Placed(64, dtype="bfloat16")),
    wrong("a bias of fewer experts", "bias shape", bias=Placed(63)),
    *(wrong(f"{x!r} experts of each token", "top", top=x) for x in (0, -1, 33, 8.0, "8", None, True)),
    *(wrong(f"score {x!r}", "score", score=x) for x in ("relu", None, 1, ["softmax"])),
    *(wrong(f"{x!r} groups", "groups", groups=x) for x in (0, -1, 7, 65, 8.0, "8", None, True)),
    *(wrong(f"{x!r} groups kept", "kept_groups", kept_groups=x) for x in (0, -1, 9, 4.0, "4", None, True)),
    *(wrong(f"renormalise={x!r}", "renormalise", renormalise=x) for x in (0, 1.0, "1", None)),
    *(wrong(f"{x!r} that all have", "shared", shared=x) for x in (-1, 1.0, "1", None, True, 2**31)),
    *(wrong(f"scale={x!r}", "scale", scale=x) for x in (float("nan"), float("inf"), "1", None, True)),
)  # fmt: skip


def _copies() -> Given:
    """Of 8 tokens, three each."""
    y, slots = Placed(M, K, dtype="bfloat16"), Placed(8, 3, dtype="int32")
    return {"y": y, "slots": slots, "weights": Placed(8, 3)}


COMBINE = (
    *(
        wrong(f"{name} of no tensor", name, **{name: [[1.0]]})
        for name in ("y", "slots", "weights", "add")
    ),
    wrong("codes", "y dtype", y=Placed(M, K, dtype="float8_e4m3fn")),
    wrong("slots that are no int32", "slots dtype", slots=Placed(8, 3)),
    wrong("integers for weights", "weights dtype", weights=Placed(8, 3, dtype="int32")),
    wrong("another dtype to add to", "add dtype", add=Placed(8, K)),
    wrong("one row", "y shape", y=Placed(K, dtype="bfloat16")),
    wrong("copies of no token", "slots shape", slots=Placed(24, dtype="int32")),
    wrong("weights of fewer copies", "weights shape", weights=Placed(8, 2)),
    wrong("rows to add to of more tokens", "add shape", add=Placed(9, K, dtype="bfloat16")),
)


def _tokens() -> Given:
    """8, of three copies each."""
    q, slots = Placed(8, K, dtype="float8_e4m3fn"), Placed(8, 3, dtype="int32")
    return {"q": q, "scale": Placed(8, 4), "slots": slots, "rows": 512}


SPREAD = (
    *(wrong(f"{name} of no tensor", name, **{name: [[1.0]]}) for name in ("q", "scale", "slots")),
    *(wrong(f"{x!r} rows", "rows", rows=x) for x in (-1, 2**31, 2.0, "8", None, True)),
    wrong("scales that are no float32", "scale dtype", scale=Placed(8, 4, dtype="bfloat16")),
    wrong("slots that are no int32", "slots dtype", slots=Placed(8, 3)),
    wrong("one token", "q shape", q=Placed(K, dtype="int8")),
    wrong("scales of fewer tokens", "scale shape", scale=Placed(7, 4)),
    wrong("a scale for each token", "scale shape", scale=Placed(8)),
    wrong("copies of more tokens", "slots shape", slots=Placed(9, 3, dtype="int32")),
    wrong("copies of no token", "slots shape", slots=Placed(24, dtype="int32")),
)


def _layer() -> Given:
    """Of 8 experts in FP8, 16 tokens, four choices each."""
    w1, w2 = (Placed(8, *sides, dtype="float8_e4m3fn") for sides in ((512, K), (K, 256)))
    given = {"x": Placed(16, K, dtype="bfloat16"), "w1": w1, "w2": w2}
    given |= {"scale_w1": Placed(8, 4, K // 128), "scale_w2": Placed(8, K // 128, 2)}
    return given | {"chosen": Placed(16, 4, dtype="int32"), "weights": Placed(16, 4)}


MOE = (
    *(wrong(f"{x} of no tensor", x, **{x: [[1.0]]}) for x in ("x", "w1", "w2", "chosen", "weights", "scale_w1", "scale_w2", "add")),
    wrong("floats", "x dtype", x=Placed(16, K)),
    wrong("one token", "x shape", x=Placed(K, dtype="bfloat16")),
    wrong("rows not at multiples of 16 bytes", "x shape", x=Placed(16, K + 8, dtype="bfloat16")),
    wrong("integers", "w1 dtype", w1=Placed(8, 512, K, dtype="int8")),
    wrong("16 bits and scales", "w1 dtype", w1=Placed(8, 512, K, dtype="bfloat16")),
    wrong("another dtype for the second GEMM", "w2 dtype", w2=Placed(8, K, 256, dtype="bfloat16")),
    wrong("one expert without its side", "w1 shape", w1=codes(512, K)),
    wrong("an odd number of rows", "w1 shape", w1=codes(8, 511, K)),
    wrong("other features", "w1 shape", w1=codes(8, 512, K + 128)),
    wrong("no experts", "w1 shape", w1=codes(0, 512, K)),
    wrong("more experts than are routed", "w1 shape", w1=codes(513, 512, K)),
    wrong("halves in one block of scales", "w1 shape", order="halves", w1=codes(8, 384, K)),
    wrong("fewer experts", "w2 shape", w2=codes(7, K, 256)),
    wrong("another number of features inside", "w2 shape", w2=codes(8, K, 384)),
    wrong("K apart", "w1 last stride", w1=codes(8, 512, K, stride=(512 * K, 1, 512))),
    wrong("rows at odd places", "w1", w1=codes(8, 512, K, stride=(513 * (K + 8), K + 8, 1))),
    wrong("rows of w2 at odd places", "w2", w2=codes(8, K, 256, stride=(K * 264, 264, 1))),
    wrong("no scales of w2", "scale_w2", scale_w2=None),
    wrong("scales of 16 bits", "scale_w1 dtype", scale_w1=Placed(8, 4, K // 128, dtype="bfloat16")),
    wrong("a scale for each row", "scale_w1 shape", scale_w1=Placed(8, 512, K // 128)),
    wrong("scales of fewer blocks", "scale_w2 shape", scale_w2=Placed(8, K // 128, 1)),
    wrong("scales of w1's rows and of w2's blocks", "scale_w2 shape", scale_w1=Placed(8, 512)),
    wrong("scales of fewer rows", "scale_w1 shape", scale_w1=Placed(8, 511), scale_w2=Placed(8, K)),
    wrong("scales of w2's rows and of w1's blocks", "scale_w2 shape", scale_w2=Placed(8, K)),
    wrong("rows' scales apart", "scale_w1 strides", scale_w1=Placed(8, 512, stride=(1024, 2)), scale_w2=Placed(8, K)),
    wrong("INT8 for the second GEMM", "w2 dtype", w2=Placed(8, K, 256, dtype="int8"), scale_w1=Placed(8, 512), scale_w2=Placed(8, K)),
    wrong("ids of 16 bits", "chosen dtype", chosen=Placed(16, 4, dtype="bfloat16")),
    wrong("choices of fewer tokens", "chosen shape", chosen=Placed(15, 4, dtype="int32")),
    wrong("choices in a row", "chosen shape", chosen=Placed(64, dtype="int32")),
    wrong("weights that are integers", "weights dtype", weights=Placed(16, 4, dtype="int32")),
    wrong("weights of fewer choices", "weights shape", weights=Placed(16, 3)),
    wrong("another dtype to add to", "add dtype", add=Placed(16, K)),
    wrong("rows to add to of more tokens", "add shape", add=Placed(17, K, dtype="bfloat16")),
    *(wrong(f"order {x!r}", "order", order=x) for x in ("row", None, 1, ["halves"])),
    *(wrong(f"epilogue {x!r}", "epilogue", epilogue=x) for x in ("silu", "gated", "zz", None, ["swiglu"])),
    wrong("a gate of one that is multiplied apart", "epilogue", epilogue="gated_reglu", order="halves"),
    wrong("a bias of the second product alone", "bias_w1", bias_w2=Placed(8, K)),
    wrong("a bias of the first product alone", "bias_w2", bias_w1=Placed(8, 512)),
    wrong("biases of 16 bits", "bias_w1 dtype", bias_w1=Placed(8, 512, dtype="bfloat16"), bias_w2=Placed(8, K)),
    wrong("a bias of fewer columns", "bias_w2 shape", bias_w1=Placed(8, 512), bias_w2=Placed(8, K - 1)),
    wrong("biases apart", "bias_w1 strides", bias_w1=Placed(8, 512, stride=(1024, 2)), bias_w2=Placed(8, K)),
    *(wrong(f"{x!r} experts", "experts", experts=x) for x in (0, 7, -1, 8.0, "8", True, 2**31)),
    *(wrong(f"first={x!r}", "first", first=x) for x in (-1, 0.0, "0", None, False, 2**31)),
    wrong("more experts than there are", "experts", first=4, experts=11),
)  # fmt: skip


BYTES = 4352  # of a block of MXFP4


def _packed() -> Given:
    """A layer of MXFP4, H 256 and I 256, in blocks of 64 x 128."""
    of = {n: x for n, x in _layer().items() if not n.startswith("scale")}
    w1, w2 = (Placed(8, rows // 64, 2, BYTES, dtype="uint8") for rows in (512, K))
    return of | {"w1": w1, "w2": w2, "packed": "e2m1_32_e8m0", "order": "alternating"}


def _blocks(*shape: int, stride: tuple[int, ...] | None = None) -> Placed:
    return Placed(*shape, dtype="uint8", stride=stride)


def _factors() -> Given:
    return {"scale_w1": Placed(8, 512), "scale_w2": Placed(8, K)}


BY_FP8: Given = {"activations": "e4m3"}
PACKED = (
    *(wrong(f"weights {x!r}", "packed", packed=x) for x in ("int4", "e2m1", 4, ["e2m1_32_e8m0"], True)),
    *(wrong(f"activations {x!r}", "activations", activations=x) for x in ("bf16", "fp8", 8, ["e4m3"], True)),
    wrong("INT4 for FP8", "packed", **BY_FP8, packed="int4_128_bf16"),
    wrong("no packed weights for FP8", "activations", **BY_FP8, packed=None),
    wrong("halves", "order", order="halves"),
    wrong("tokens of FP16", "x dtype", x=Placed(16, K, dtype="float16")),
    wrong("tokens of FP16 for FP8", "x dtype", **BY_FP8, **_factors(), x=Placed(16, K, dtype="float16")),
    wrong("tokens of BF16 for FP16", "x dtype", packed="e2m1_32_e8m0_f16", **_factors()),
    wrong("features that no group has", "x shape", x=Placed(16, K - 16, dtype="bfloat16")),
    wrong("no features", "x shape", x=Placed(16, 0, dtype="bfloat16")),
    *(wrong(f"{x} of codes", f"{x} dtype", **{x: codes(8, 8, 2, BYTES)}) for x in ("w1", "w2")),
    wrong("rows of bytes", "w1 shape", w1=_blocks(8, 8, 2 * BYTES)),
    wrong("fewer features", "w1 shape", w1=_blocks(8, 8, 1, BYTES)),
    wrong("blocks of NVFP4", "w1 shape", w1=_blocks(8, 8, 2, 4608)),
    wrong("no rows", "w1 shape", w1=_blocks(8, 0, 2, BYTES)),
    wrong("no experts", "w1 shape", w1=_blocks(0, 8, 2, BYTES)),
    wrong("more experts than are routed", "w1 shape", w1=_blocks(513, 8, 2, BYTES)),
    wrong("features inside that no group has", "w1 shape", packed="int4_64_bf16", w1=_blocks(8, 7, 2, BYTES)),
    wrong("fewer experts", "w2 shape", w2=_blocks(7, 4, 2, BYTES)),
    wrong("another number of features inside", "w2 shape", w2=_blocks(8, 4, 3, BYTES)),
    *(wrong(f"{x} apart", f"{x} strides", **{x: _blocks(8, n, 2, BYTES, stride=(2 * n * 2 * BYTES, 2 * BYTES, BYTES, 1))}) for x, n in (("w1", 8), ("w2", 4))),
    wrong("factors of weights that have none", "scale_w1", **_factors()),
    wrong("no factors for FP8", "scale_w1", **BY_FP8),
    wrong("factors of w1 alone", "scale_w2", **BY_FP8, scale_w1=Placed(8, 512)),
    wrong("factors of 16 bits", "scale_w1 dtype", **BY_FP8, **_factors() | {"scale_w1": Placed(8, 512, dtype="bfloat16")}),
    wrong("factors of fewer rows", "scale_w2 shape", **BY_FP8, **_factors() | {"scale_w2": Placed(8, K - 1)}),
    wrong("factors apart", "scale_w1 strides", **BY_FP8, **_factors() | {"scale_w1": Placed(8, 512, stride=(1024, 2))}),
    wrong("rows to add to of FP16", "add dtype", add=Placed(16, K, dtype="float16")),
    wrong("a bias of fewer columns", "bias_w1 shape", bias_w1=Placed(8, 511), bias_w2=Placed(8, K)),
    wrong("a bias of more columns", "bias_w2 shape", bias_w1=Placed(8, 512), bias_w2=Placed(8, K + 1)),
)  # fmt: skip


def _fused() -> Given:
    """The same layer, gate's rows before up's, by vLLM's names."""
    of = _layer()
    names = {"x": "hidden_states", "chosen": "topk_ids", "weights": "topk_weights"}
    names |= {"scale_w1": "w1_scale", "scale_w2": "w2_scale"}
    return {names.get(n, n): x for n, x in of.items()} | {
        "use_fp8_w8a8": True,
        "block_shape": [128, 128],
    }


FUSED = (
    *(wrong(f"{x} of no tensor", x, **{x: [[1.0]]}) for x in ("hidden_states", "w1", "w2", "topk_weights", "topk_ids", "w1_scale")),
    *(wrong(f"{x!r} for {n}", n, **{n: x}) for n in NONE_OTHER for x in (1, "1", 0.0, [1])),
    *(wrong(f"activation {x!r}", "activation", activation=x) for x in ("relu", None, ["silu"], 1)),
    wrong("a bias alone", "w2_bias", w1_bias=Placed(8, 512)),
    wrong("biases that are integers", "w2_bias dtype", w1_bias=Placed(8, 512), w2_bias=Placed(8, K, dtype="int32")),
    *(wrong(f"{n} that is {x!r}", n, **{n: x}) for n in ("inplace", *FLAGS) for x in (1, None, "1")),
    *(wrong(f"blocks of {x!r}", "block_shape", block_shape=x) for x in (None, [64, 128], (128,), 128, "128")),
    *(wrong(f"{x!r} experts of all", "global_num_experts", global_num_experts=x) for x in (0, -2, 7, 8.0, "8", None, True)),
    wrong("FP8 and INT8", "use_int8_w8a8", use_int8_w8a8=True),
    wrong("channels and blocks", "block_shape", per_channel_quant=True),
    wrong("scales of blocks for channels", "w1_scale shape", per_channel_quant=True, block_shape=None),
    wrong("INT8 without channels", "per_channel_quant", use_fp8_w8a8=False, use_int8_w8a8=True, block_shape=None),
    wrong("a scale for each channel of blocks", "w1_scale shape", w1_scale=Placed(8, 512)),
    wrong("16 bits", "w1 dtype", w1=Placed(8, 512, K, dtype="bfloat16")),
    wrong("blocks of gate and up", "w1 shape", w1=codes(8, 384, K)),
    wrong("no scales of w1", "w1_scale", w1_scale=None),
    wrong("no scales of w2", "w2_scale", w2_scale=None),
    wrong("scales without FP8", "w2_scale", use_fp8_w8a8=False, w1_scale=None, block_shape=None),
    wrong("floats", "hidden_states dtype", hidden_states=Placed(16, K)),
    wrong("ids of fewer tokens", "topk_ids shape", topk_ids=Placed(15, 4, dtype="int32")),
    wrong("weights of fewer choices", "topk_weights shape", topk_weights=Placed(16, 3)),
    wrong("a list for a map", "expert_map", expert_map=[0]),
    wrong("a map of 64 bits", "expert_map dtype", expert_map=Placed(8, dtype="int64")),
    wrong("two maps", "expert_map shape", expert_map=Placed(2, 8, dtype="int32")),
    wrong("a map of nothing", "expert_map shape", expert_map=Placed(0, dtype="int32")),
    wrong("floats to look up", "topk_ids dtype", expert_map=Placed(8, dtype="int32"), topk_ids=Placed(16, 4)),
)  # fmt: skip


def _config(**said: object) -> SimpleNamespace:
    return SimpleNamespace(**{"activation": "silu", "inplace": False, **said})


def _of_sglang() -> Given:
    """The same layer by SGLang's names."""
    of = _fused()
    chosen = (of.pop("topk_weights"), of.pop("topk_ids"), None)
    return of | {"topk_output": chosen, "moe_runner_config": _config()}


def _weights(*shape: int) -> Placed:
    return Placed(*shape, dtype="float32")


SGLANG = (
    *(wrong(f"{x} of no tensor", x, **{x: [[1.0]]}) for x in ("hidden_states", "w1", "w2", "w1_scale")),
    *(wrong(f"{x!r} for {n}", n, **{n: x}) for n in ONLY if n != "apply_router_weight_on_input" for x in (1, "1", 0.0, [1])),
    *(wrong(f"{n} that is {x!r}", n, **{n: x}) for n in FLAGS for x in (1, None, "1")),
    *(wrong(f"a config's {n} that is {x!r}", n, moe_runner_config=_config(**{n: x})) for n, x in (
        ("activation", "swigluoai"), ("activation", "relu"), ("activation", None), ("is_gated", False), ("inplace", 1),
        ("no_combine", True), ("apply_router_weight_on_input", True), ("routed_scaling_factor", "2"), ("routed_scaling_factor", float("inf")), ("gemm1_alpha", 1.0), ("swiglu_limit", 7.0),
        ("custom_act_fn", 1), ("gate_up_interleaved", None),
    )),
    wrong("a limit without alpha", "gemm1_alpha", moe_runner_config=_config(gemm1_clamp_limit=7.0)),
    wrong("another limit", "gemm1_clamp_limit", moe_runner_config=_config(gemm1_alpha=1.702, gemm1_clamp_limit=10.0)),
    wrong("a clamped GELU", "activation", moe_runner_config=_config(activation="gelu", gemm1_alpha=1.702, gemm1_clamp_limit=7.0)),
    *(wrong(f"{x!r} for choices", "topk_output", topk_output=x) for x in (None, (), [1, 2, 3], 1)),
    wrong("weights of fewer choices", "topk_weights shape", topk_output=(_weights(16, 3), Placed(16, 4, dtype="int32"), None)),
    wrong("floats for ids", "topk_ids dtype", topk_output=(_weights(16, 4), _weights(16, 4), None)),
    wrong("a bias alone", "b2", b1=Placed(8, 512)),
    wrong("biases that are integers", "b2 dtype", b1=Placed(8, 512), b2=Placed(8, K, dtype="int32")),
    wrong("16 bits", "w1 dtype", w1=Placed(8, 512, K, dtype="bfloat16")),
    wrong("blocks of 64", "block_shape", block_shape=[64, 128]),
)  # fmt: skip
FUNCTIONS = (
    Function(name="ops.route", call=ops.route, right=_ids, runs=False, wrong=ROUTE),
    Function(name="ops.select", call=ops.select, right=_logits, runs=False, wrong=SELECT),
    Function(name="ops.combine", call=ops.combine, right=_copies, runs=False, wrong=COMBINE),
    Function(name="ops.spread", call=ops.spread, right=_tokens, runs=False, wrong=SPREAD),
    Function(name="ops.moe", call=ops.moe, right=_layer, runs=False, wrong=MOE),
    Function(name="ops.moe, packed weights", call=ops.moe, right=_packed, runs=False, wrong=PACKED),
    Function(name="fused_experts", call=fused_experts, right=_fused, runs=False, wrong=FUSED),
    Function(
        name="sglang.fused_experts",
        call=sglang.fused_experts,
        right=_of_sglang,
        runs=False,
        wrong=SGLANG,
    ),
)
