"""Checkpoints of small models as Hugging Face saves them: several files, an index, a config, a tokenizer; and the models."""

from __future__ import annotations

import json

import numpy as np
import torch
from stored_weights import awq, drawn, gptq

NAMES = {
    torch.int32: "I32",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.int8: "I8",
}
HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 64, 128, 12, 3
EXPERTS, HEADS = 2, 4
METHODS = {
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": True, "modules_to_not_convert": ["visual"]},
    "gptq": {"quant_method": "gptq", "sym": False, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "sym": False, "checkpoint_format": "gptq_v2"},
    "gptq of 8": {"quant_method": "gptq", "sym": True},
}  # fmt: skip


def octets(t):
    return t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def write(path, tensors, **more):
    """A file of the format, as its description says."""
    told, data = dict(more), b""
    for name, t in tensors.items():
        place = [len(data), len(data) + t.numel() * t.element_size()]
        told[name] = {"dtype": NAMES[t.dtype], "shape": [*t.shape], "data_offsets": place}
        data += octets(t)
    head = json.dumps(told).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return path


def save(folder, tensors, config, files=3):
    """`tensors` in so many files, dealt out as they come, with an index; a config, a tokenizer, and what is not copied."""
    folder.mkdir()
    each, names = -(-len(tensors) // files), [*tensors]
    where = {}
    for i in range(files):
        file = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = names[i * each : (i + 1) * each]
        write(folder / file, {x: tensors[x] for x in part}, __metadata__={"format": "pt"})
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"é": 1}')
    (folder / "chat_template.jinja").write_text("{{ x }}")
    (folder / "quantize_config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"old")
    (folder / ".gitattributes").write_text("")
    (folder / "original").mkdir()
    return folder


def linear(name, n, k, method, group, seed):
    """A layer's tensors, and its codes, zeros and scales."""
    given = drawn(group if group > 0 else k, k, n, seed)
    if method == "gptq of 8":
        given = (given[0], np.full_like(given[1], 8), given[2])
    of = {"awq": awq, "gptq_v2": lambda *x: gptq(*x, less=0)}.get(method, gptq)
    return of(*given, name)


def llama(method="awq", group=32):
    """Tensors of a model of linear layers."""
    torch.manual_seed(0)
    found = {"model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN).half()}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        found |= linear(f"{at}.mlp.up_proj", INTERMEDIATE, HIDDEN, method, group, 2 * i)
        found[f"{at}.mlp.up_proj.bias"] = torch.randn(INTERMEDIATE).half()
        found |= linear(f"{at}.mlp.down_proj", HIDDEN, INTERMEDIATE, method, group, 2 * i + 1)
        found[f"{at}.norm.weight"] = torch.randn(HIDDEN).half()
        found[f"{at}.steps"] = torch.tensor(i)
    return found | {"lm_head.weight": torch.randn(VOCABULARY, HIDDEN).half()}


def config(method="awq", group=32, dtype="bfloat16", **more):
    said = {"bits": 4, "group_size": group, **METHODS[method], **more}
    return {"model_type": "llama", "torch_dtype": dtype, "quantization_config": said}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE)
        self.down_proj = torch.nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp()
        self.norm = torch.nn.RMSNorm(HIDDEN)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Llama(torch.nn.Module):
    """Of `llama`, before it was quantised."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.model.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.lm_head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(x)


def gpt_oss(bias=True, seed=0, least=118):
    """Tensors of a model of experts, as gpt-oss names them."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(2):
        at = f"model.layers.{i}.mlp"
        found[f"{at}.router.weight"] = torch.randn(EXPERTS, HIDDEN).bfloat16()
        for name, n, k in (
            ("gate_up", 2 * INTERMEDIATE, HIDDEN),
            ("down", HIDDEN, INTERMEDIATE),
        ):
            blocks = rng.integers(0, 256, (EXPERTS, n, k // 32, 16), np.uint8)
            scales = rng.integers(least, 126, (EXPERTS, n, k // 32), np.uint8)
            held = {"blocks": torch.from_numpy(blocks), "scales": torch.from_numpy(scales)}
            if bias:
                held["bias"] = torch.randn(EXPERTS, n).bfloat16()
            found |= {f"{at}.experts.{name}_proj_{x}": t for x, t in held.items()}
        found[f"model.layers.{i}.self_attn.sinks"] = torch.randn(HEADS).bfloat16()
    return found


GPT_OSS = {
    "model_type": "gpt_oss",
    "dtype": "bfloat16",
    "swiglu_limit": 7.0,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}  # fmt: skip


class GptOss(torch.nn.Module):
    """Of `gpt_oss`; what its experts are before they are loaded does not matter."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList()
        for _ in range(2):
            block = torch.nn.Module()
            block.mlp, block.self_attn = torch.nn.Module(), torch.nn.Module()
            block.mlp.router = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
            block.mlp.experts = torch.nn.Module()
            block.self_attn.sinks = torch.nn.Parameter(torch.empty(HEADS))
            self.model.layers.append(block)
