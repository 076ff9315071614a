"""A model of Transformers with two layers, made from code, and what its layers multiply by in float64."""

from __future__ import annotations

import torch
from four_bits import exact
from roundings import of_length
from transformers import AutoModelForCausalLM, LlamaConfig

from gemmgen import formats, nn, quant

HIDDEN, INNER, WORDS = 128, 256, 96
LINEAR = 14  # of two layers, beside the head
# Of logits, in roundings one after the other: a layer of the model rounds some twenty times, and sums of independent parts
# keep their part of the length. In FP8 operands of eight GEMMs besides.
ROUNDINGS, OPERANDS = 40, 8


def made(dtype=torch.bfloat16, **given):
    """A Llama whose weights and biases are drawn: products with numbers of size 1 have size 1."""
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": WORDS}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    biases = {"attention_bias": True, "mlp_bias": True}
    config = LlamaConfig(**{**sizes, **heads, **biases, "initializer_range": HIDDEN**-0.5, **given})
    model = AutoModelForCausalLM.from_config(config)
    for name, x in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(x, std=0.5)
    return model.to(dtype)


def tokens(rows=2, length=7):
    return torch.randint(WORDS, (rows, length))


def packed(layer):
    """What an `nn.Linear4bit` holds."""
    form, sides = formats.named(layer.weights), (layer.out_features, layer.in_features)
    held = {"blocks": layer.blocks, "factors": layer.factors, "shape": sides}
    return quant.Packed(format=form, dtype=layer.form.to, **held)


def numbers(layer):
    """float64 [N, K], of a layer of gemmgen.nn."""
    if isinstance(layer, nn.Linear4bit):
        return exact(packed(layer))
    weight = layer.weight.detach().double()
    if not isinstance(layer, nn.Fp8Linear) or layer.master:
        return weight
    scale = layer.weight_scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return weight * scale[: weight.shape[0], : weight.shape[1]]


def layers(model):
    """By name, those of gemmgen.nn."""
    kinds = (nn.Linear, nn.Fp8Linear, nn.Linear4bit)
    return {name: x for name, x in model.named_modules() if isinstance(x, kinds)}


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def exact_logits(wide, of, ids):
    """In float64, of `wide` with the numbers that the layers of `of` multiply by."""
    reference = type(wide)(wide.config).double()
    reference.load_state_dict(wide.state_dict())
    for name, layer in layers(of).items():
        reference.get_submodule(name).weight.data = numbers(layer)
    return logits(reference, ids)


def states(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def same(one, other):
    """The same tensors, to the bit."""
    assert one.keys() == other.keys()
    for name, x in one.items():
        y = other[name]
        assert x.dtype == y.dtype and x.shape == y.shape, name
        assert torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)), name


def bound(weights, dtype):
    """Of logits' length, of a model whose layers have these weights."""
    return of_length(dtype, ROUNDINGS) + of_length(torch.float8_e4m3fn, OPERANDS) * (
        weights == "fp8"
    )
