"""Experts that ranks divide, against the same experts on one rank."""

from __future__ import annotations

import copy
import sys
from unittest.mock import patch

import four_bits
import mixtures
import torch
from ranks import mesh
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module

from gemmgen import formats, nn, quant
from gemmgen.errors import ArgumentError
from gemmgen.nn import expert_ranks
from gemmgen.nn.expert_ranks import ExpertRanks
from gemmgen.nn.parallel import ExpertParallel
from gemmgen.ops import mixture
from gemmgen.ops.mixture import expected_of

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
EXPERTS, HIDDEN, INTERMEDIATE, TOKENS = 8, 144, 96, 21
# Of weights of 4 bits: the format, what it is packed for, how rows lie, and how x is quantised.
CODED = {
    "mxfp4": (formats.MXFP4, BF16, "alternating", None),
    "mxfp4 halves": (formats.MXFP4, BF16, "halves", None),
    "nvfp4 of fp16": (formats.NVFP4, torch.float16, "alternating", None),
    "mxfp4 by fp8": (formats.MXFP4, FP8, "alternating", "e4m3"),
    "mxfp4 by fp8 blocks": (formats.MXFP4, FP8, "alternating", "e4m3_128"),
    "mxfp4 halves by fp8 blocks": (formats.MXFP4, FP8, "halves", "e4m3_128"),
    "int8 by bf16": (formats.INT8_ROWS, BF16, "alternating", None),
    "int4 by fp8 blocks": (formats.int4(128, "f32"), FP8, "alternating", "e4m3_128"),
}


def drawn(experts=EXPERTS, kind="fp8"):
    if kind in CODED:
        return coded(experts, *CODED[kind])
    gate, up = (torch.randn(experts, INTERMEDIATE, HIDDEN) / HIDDEN**0.5 for _ in range(2))
    made = nn.GroupedExperts(experts, HIDDEN, INTERMEDIATE)
    made.put_projections(gate, up, torch.randn(experts, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5)
    return made


def coded(experts, form, dtype, order, activations):
    """With biases, and the clamped activation."""
    hidden, inner = (256, 128) if form.element == "int4" else (160, INTERMEDIATE)
    shapes = (experts, 2 * inner, hidden), (experts, hidden, inner)
    packed = [quant.pack(four_bits.drawn(form, *s), dtype) for s in shapes]
    biases = [torch.randn(s[:2]) for s in shapes]
    given = dict(zip(("gate_up_bias", "down_bias"), biases, strict=True))
    said = {"order": order, "activation": "swiglu_clamped", "activations": activations}
    module = nn.Experts8bit if form.bits == 8 else nn.Experts4bit
    return module.from_packed(*packed, **given, **said)


def tokens_for(experts, count):
    dtype = getattr(experts, "dtype", BF16)
    return torch.randn(count, experts.hidden).to(dtype)


def divided(of, ranks, **how):
    made = copy.deepcopy(of)
    assert parallelize_module(made, mesh(ranks), ExpertParallel(), **how) is made
    return made


def chosen_of(case, tokens):
    """[tokens, top], in the order of falling scores."""
    scores = torch.rand(tokens, EXPERTS)
    if case == "few":  # half of the experts get nothing, of two ranks one
        scores[:, EXPERTS // 2 :] -= 1
    if case == "one":
        return torch.full((tokens, 1), EXPERTS - 2)
    if case == "none":  # numbers of no expert, in a token that has no other too
        chosen = scores.topk(4).indices
        chosen[torch.rand(chosen.shape) < 0.3] = -1
        chosen[torch.rand(chosen.shape) < 0.1] = EXPERTS
        chosen[:1] = -1
        return chosen
    if case == "twice":  # the same expert for several copies of a token
        return torch.randint(EXPERTS, (tokens, EXPERTS))
    return scores.topk({"many": 7, "all": EXPERTS, "few": 3}.get(case, 2)).indices


def poisoned(of, counts):
    """What a GEMM leaves as it was is no number; counts: gets how many rows each computes."""

    multiply = type(of).multiply

    def run(self, q, scale, ends, *rest, alignment):
        y, begin = multiply(self, q, scale, ends, *rest, alignment=alignment), 0
        written = torch.zeros(len(y), dtype=torch.bool)
        for end in ends.tolist():
            written[-(-begin // alignment) * alignment : end] = True
            begin = end
        counts.append(int(written.sum()))
        return torch.where(written.unsqueeze(-1), y, torch.nan)

    return patch.object(type(of), "multiply", run)


def same_bits(ranks, case, tokens=TOKENS, kind="fp8"):
    on, one = mesh(ranks), drawn(kind=kind)
    many, whole = divided(one, ranks), [tokens_for(one, ranks * tokens)]
    whole += [chosen_of(case, ranks * tokens)]
    whole += [torch.rand(whole[1].shape)]
    x, chosen, weights = (t.chunk(ranks)[on.get_local_rank()] for t in whole)
    counts = []
    with poisoned(one, counts):
        y = many(x, chosen, weights)
    copies = [len({*of} & {*many.mine}) for of in whole[1].tolist()]
    assert counts == [sum(copies)] * bool(tokens)
    assert y.dtype == x.dtype and y.shape == x.shape and not y.isnan().any()
    assert torch.equal(y, one(x, chosen, weights))
    assert torch.equal(y, one(*whole).chunk(ranks)[on.get_local_rank()])
    assert torch.equal(y, many(x, chosen.int(), weights))


def one_rank():
    one = drawn()
    many = divided(one, 1)
    assert many.across is None and not any(isinstance(t, DTensor) for t in many.buffers())
    x, chosen = torch.randn(TOKENS, HIDDEN).to(BF16), chosen_of("two", TOKENS)
    weights = torch.rand(chosen.shape)
    assert torch.equal(many(x, chosen, weights), one(x, chosen, weights))


def routers_gradient():
    """Weights of a router have one, as of the experts on one rank; the experts themselves have none."""
    one = drawn()
    many = divided(one, 2)
    x, chosen = torch.randn(TOKENS, HIDDEN).to(BF16), chosen_of("two", TOKENS)
    weights, dy = torch.rand(chosen.shape).requires_grad_(), torch.randn(TOKENS, HIDDEN).to(BF16)
    found, expected = (
        torch.autograd.grad(m(x, chosen, weights), weights, dy)[0] for m in (many, one)
    )
    assert torch.equal(found, expected)
    with torch.no_grad():
        y = many(x.requires_grad_(), chosen, weights)
    assert torch.equal(y, one(x.detach(), chosen, weights))


def what_travels(ranks, top, kind="fp8", beside=2 * 4):
    """As many bytes whatever is chosen: codes with scales and numbers of experts there, results back. beside: bytes of scales, of rows of FP8; None: they have 16 bits."""
    many, sent, exchanged = divided(drawn(kind=kind), ranks), [], ExpertRanks.exchanged

    def noted(self, x):
        sent.append((tuple(x.shape), x.dtype))
        return exchanged(self, x)

    chosen = chosen_of("all", TOKENS)[:, :top]
    with patch.object(ExpertRanks, "exchanged", noted):
        x = tokens_for(many, TOKENS)
        many(x, chosen, torch.rand(chosen.shape))
    rows, hidden = ranks * TOKENS * min(top, EXPERTS // ranks), many.hidden
    wide = (rows, 2 * hidden if beside is None else hidden + beside)
    assert sent == [(wide, torch.uint8), ((rows,), torch.int32), ((rows, hidden), x.dtype)]


def without_a_value(kind="fp8"):
    """Tensors without values do: the host asks for none."""
    many, sides = divided(drawn(kind=kind), 4), (TOKENS, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x, chosen = tokens_for(many, TOKENS), torch.empty(sides, dtype=torch.long)
        y = many(x, chosen, torch.empty(sides))
    assert y.shape == x.shape and y.dtype == x.dtype


def own_rows(kind="fp8"):
    """Of sorted rows and of masked ones a rank takes those of its own experts."""
    on, one = mesh(4), drawn(kind=kind)
    many, counts = divided(one, 4), torch.tensor([3, 0, 16, 9, 1, 16, 0, 5]).int()
    x = tokens_for(one, EXPERTS * 16).view(EXPERTS, 16, -1)
    at = on.get_local_rank()
    assert [*many.mine] == [2 * at, 2 * at + 1]
    found = many.masked(x.chunk(4)[at], counts.chunk(4)[at], expected_rows=7)
    expected = one.masked(x, counts, expected_rows=7).chunk(4)[at]
    there = torch.arange(16) < counts.chunk(4)[at].unsqueeze(-1)
    assert torch.equal(found[there], expected[there])
    rows = torch.cat((x[2 * at], x.new_zeros(112, one.hidden), x[2 * at + 1]))
    first, second = counts.chunk(4)[at].tolist()
    y = many.contiguous(rows, torch.tensor([first, 128 + second]).int())
    assert torch.equal(y[:first], expected[0, :first])
    assert not first or torch.equal(y[128 : 128 + second], expected[1, :second])


# ---- experts that train ---------------------------------------------------------------------


def training(kind, recompute=False):
    made = nn.Experts(EXPERTS, 160, INTERMEDIATE, kind=kind, recompute=recompute)
    with torch.no_grad():
        for w in made.parameters():  # products of size 1
            w.normal_(std=w.shape[-1] ** -0.5)
    return made


def rows_told(ranks, top):
    """The mean of an expert's rows, for the choice of configs, is that of all ranks' copies."""
    many, told = divided(training("bf16"), ranks), []

    def noted(copies, experts, held):
        told.append(expected_of(copies, experts, held)[0])
        return expected_of(copies, experts, held)

    x, chosen = torch.randn(64, 160).to(BF16), chosen_of("all", 64)[:, :top]
    with patch.object(sys.modules["gemmgen.torch_ops.moe_train"], "expected_of", noted):
        many(x, chosen, torch.rand(chosen.shape))
    mean = ranks * 64 * top / EXPERTS
    assert len(told) == 1 and mean <= told[0] <= 1.15 * mean  # experts are whole numbers


def trains(ranks, case, kind, recompute, bound):
    """Results have the bits of one rank; gradients are within `bound` of float64's, those of experts of all ranks' tokens."""
    on, one = mesh(ranks), training(kind, recompute)
    many, at = divided(one, ranks), on.get_local_rank()
    whole = {"x": torch.randn(ranks * TOKENS, 160).to(BF16), "chosen": chosen_of(case, ranks * TOKENS)}  # fmt: skip
    whole |= {"weights": torch.rand(whole["chosen"].shape), "add": torch.randn(ranks * TOKENS, 160).to(BF16)}  # fmt: skip
    dy = torch.randn(ranks * TOKENS, 160).to(BF16)
    w = {"w1": one.gate_up.detach(), "w2": one.down.detach()}
    exact = mixtures.trained(mixtures.wide_layer, whole | w, dy)
    mine = {n: t.chunk(ranks)[at].clone() for n, t in whole.items()}
    leaves = {n: t.requires_grad_() for n, t in mine.items() if n != "chosen"}
    with patch.object(mixture, "CALLS", nn.experts.CALLS):  # of `ops.moe`, on the CPU
        y = many(**mine)
        assert torch.equal(y, one(**whole).chunk(ranks)[at])
        y.backward(dy.chunk(ranks)[at])
    for name, t in leaves.items():
        near(name, t.grad, exact[name].chunk(ranks)[at], bound)
    for name, p in (("w1", many.gate_up), ("w2", many.down)):
        assert p.grad.placements == (Shard(0),)
        near(name, p.grad.to_local(), exact[name].chunk(ranks)[at], bound)


def near(name, found, exact, bound):
    assert found.shape == exact.shape and not found.isnan().any(), name
    off = (found.double() - exact.double()).norm()
    assert off <= bound * exact.double().norm() + 1e-9, (name, off, exact.norm())


def trained_module(ranks):
    """A mixture whose experts are divided, compiled or not; a state of all experts is loaded, an optimiser steps on parts."""
    on = mesh(ranks)
    one = nn.MoE(160, INTERMEDIATE, EXPERTS, 2, shared=64)
    many = copy.deepcopy(one)
    parallelize_module(many, on, {"experts": ExpertParallel()})
    x = torch.randn(TOKENS, 160).to(BF16)
    assert torch.equal(many(x), one(x))
    state = {n: t.clone() for n, t in one.state_dict().items()}
    many.load_state_dict(state)
    check_states(many, one)
    many(x).float().square().sum().backward()
    before = many.experts.down.to_local().clone()
    torch.optim.SGD(many.parameters(), lr=0.1).step()
    assert not torch.equal(many.experts.down.to_local(), before)
    assert many.router.weight.grad is not None
    given = x, chosen_of("two", TOKENS), torch.rand(TOKENS, 2)
    compiled = torch.compile(many.experts, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*given), many.experts(*given))
    many.zero_grad(set_to_none=True)
    nobody = many.experts(x[:0], torch.zeros(0, 2).long(), torch.zeros(0, 2))
    none = many.experts(x, torch.zeros(TOKENS, 0).long(), torch.zeros(TOKENS, 0), x)
    assert nobody.shape == (0, 160) and torch.equal(none, x)
    (nobody.sum() + none.sum()).backward()
    assert not many.experts.down.grad.to_local().any()
    # Loaded by assignment a rank keeps memory of its own part.
    many.load_state_dict(state, assign=True)
    local = many.experts.down.to_local()
    assert local.untyped_storage().nbytes() == local.nbytes
    check_states(copy.deepcopy(many), one)


def training_refused():
    """(argument, value) of each ArgumentError: before anything travels."""
    many, found = divided(training("bf16"), 4), []
    x, chosen, weights = torch.zeros(4, 160, dtype=BF16), torch.zeros(4, 2).long(), torch.ones(4, 2)
    placed = DTensor.from_local(x, mesh(4), [Shard(0)], run_check=False)
    for given in (
        (x.float(), chosen, weights),
        (x[:, :8], chosen, weights),
        (x, chosen[:3], weights),
        (x, chosen, weights[:1]),
        (x, chosen, weights, x.float()),
        (placed, chosen, weights),
        (x, chosen, weights, placed),
    ):
        try:
            with patch.object(expert_ranks, "exchanged", side_effect=AssertionError):
                many(*given)
        except ArgumentError as e:
            found.append((e.argument, str(e.value)))
    return found


# ---- states ---------------------------------------------------------------------------------


def whole(x):
    """gloo gathers no FP8."""
    if not isinstance(x, DTensor):
        return x.float()
    assert x.placements == (Shard(0),)
    parts = [torch.empty(x.to_local().shape) for _ in range(x.device_mesh.size())]
    torch.distributed.all_gather(parts, x.to_local().float(), group=x.device_mesh.get_group())
    return torch.cat(parts)


def check_states(found, expected):
    a, b = found.state_dict(), expected.state_dict()
    assert a.keys() == b.keys()
    for name, x in b.items():
        assert a[name].dtype == x.dtype and a[name].shape == x.shape, name
        assert torch.equal(whole(a[name]), x.float()), name


def kept(ranks, source):
    """A rank keeps memory for its own experts alone; of rank 0's or of what each had."""
    on, one = mesh(ranks), drawn()
    given = copy.deepcopy(one)
    if source == 0 and on.get_local_rank():
        given.put_projections(*(torch.ones(s) for s in sides()))
    many = divided(given, ranks, src_data_rank=source)
    check_states(many, one)
    for x, y in zip(many.buffers(), one.buffers(), strict=True):
        local = x.to_local()
        assert local.untyped_storage().nbytes() * ranks == y.untyped_storage().nbytes()
        part = y.chunk(ranks)[on.get_local_rank()]
        assert torch.equal(local.float(), part.float())


def sides():
    inward = (EXPERTS, INTERMEDIATE, HIDDEN)
    return inward, inward, (EXPERTS, HIDDEN, INTERMEDIATE)


def loaded(kind, ranks):
    """From what a divided module saves, and from what holds all experts, or this rank's."""
    one = drawn()
    many = divided(drawn(), ranks)
    state = {n: x.clone() for n, x in one.state_dict().items()}
    if kind == "divided":
        state = {n: x.clone() for n, x in divided(one, ranks).state_dict().items()}
    if kind == "wide":
        gate, up, down = (torch.randn(s).to(BF16) for s in sides())
        one.put_projections(gate, up, down)
        state = {"gate_up": nn.experts.alternating(gate, up), "down": down}
    if kind == "aliases":
        state = {n.replace("_scale", "_scale_inv"): x for n, x in state.items()}
    if kind in ("projections", "own projections"):
        given = [torch.randn(s) for s in sides()]
        one.put_projections(*given)
        numbers = many.mine if kind.startswith("own") else range(EXPERTS)
        of = {n: zip(nn.experts.PROJECTIONS, given, strict=True) for n in numbers}
        state = {f"{n}.{p}.weight": w[n] for n, pairs in of.items() for p, w in pairs}
    before = {*state}
    many.load_state_dict(state)
    assert {*state} == before
    check_states(many, one)
    many.half()  # neither rounds codes nor gathers them
    check_states(many, one)


def coded_states(ranks):
    """Kept by a rank are its own experts' blocks, factors and biases; what is saved, and what holds all experts, is loaded; facts are of all."""
    on, one = mesh(ranks), drawn(kind="nvfp4 of fp16")
    many = divided(one, ranks)
    check_states(many, one)
    for name, x in many.named_buffers():
        part = one.get_buffer(name).chunk(ranks)[on.get_local_rank()]
        assert torch.equal(x.to_local(), part), name
    for state in (many.state_dict(), one.state_dict()):
        other = divided(drawn(kind="nvfp4 of fp16"), ranks)
        other.load_state_dict({n: x.clone() for n, x in state.items()})
        check_states(other, one)
    other.half()
    check_states(other, one)
    assert other.facts == one.facts and len(other.mine) * ranks == EXPERTS
    try:
        divided(drawn(kind="mxfp4"), ranks).load_state_dict(one.state_dict())
    except RuntimeError as e:
        return str(e)
    return ""


def made_empty():
    """Without memory for all experts: divided first, then filled with this rank's. A copy is divided, too."""
    made = nn.GroupedExperts(EXPERTS, HIDDEN, INTERMEDIATE, device="meta")
    many = divided(made, 4)
    assert all(t.is_meta for t in many.buffers())
    many.to_empty(device="cpu")
    given = [torch.randn(s) for s in sides()]
    of = zip(nn.experts.PROJECTIONS, given, strict=True)
    many.load_state_dict({f"{n}.{p}.weight": w[n] for p, w in of for n in many.mine})
    one = nn.GroupedExperts(EXPERTS, HIDDEN, INTERMEDIATE)
    one.put_projections(*given)
    x, chosen = torch.randn(TOKENS, HIDDEN).to(BF16), chosen_of("two", TOKENS)
    weights = torch.rand(chosen.shape)
    for module in (many, copy.deepcopy(many)):
        check_states(module, one)
        assert torch.equal(module(x, chosen, weights), one(x, chosen, weights))


def states_refused():
    """What a load of the wrong state says."""
    many, found = divided(drawn(), 4), []
    whole_state = drawn().state_dict()
    other = (many.mine.stop % EXPERTS,)
    for state in (
        {n: x[:3] for n, x in whole_state.items()},
        {f"{n}.{p}.weight": torch.zeros(1) for n in other for p in nn.experts.PROJECTIONS},
        {n: x for n, x in whole_state.items() if n != "down_scale"},
    ):
        try:
            many.load_state_dict(state)
        except RuntimeError as e:
            found.append(str(e))
    return found


# ---- errors ---------------------------------------------------------------------------------


def refused():
    """(argument, value) of each ArgumentError."""
    many, on, found = divided(drawn(), 4), mesh(4), []
    x, chosen = torch.zeros(4, HIDDEN, dtype=BF16), torch.zeros(4, 2).long()
    weights = torch.ones(4, 2)
    placed = DTensor.from_local(x, on, [Shard(0)], run_check=False)
    for run in (
        lambda: divided(drawn(6), 4),
        lambda: divided(torch.nn.Linear(8, 8), 4),
        lambda: divided(torch.nn.Linear(8, 8), 1),
        lambda: parallelize_module(many, on, ExpertParallel()),
        lambda: many(x.clone().requires_grad_(), chosen, weights),
        lambda: many(x.float(), chosen, weights),
        lambda: many(x, chosen[:3], weights),
        lambda: many(x, chosen.flatten(), weights),
        lambda: many(x, chosen, weights[:1]),
        lambda: many(placed, chosen, weights),
        lambda: many(x, chosen.float(), weights),
        lambda: many(x, chosen, weights.double()),
    ):
        try:
            run()
        except ArgumentError as e:
            found.append((e.argument, str(e.value)))
    return found
