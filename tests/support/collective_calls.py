"""Of one rank of several: calls of the operators of a process group, against the same on one."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from ranks import mesh
from torch.distributed.tensor import DTensor, Shard
from torch_reference import BY_NAME, faked, overload, product, scales_of, value, values

from gemmgen import torch_ops
from gemmgen.cost_link import pays
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import DTYPES
from gemmgen.ir.expr import DeviceScalar, PerColumn, PerElement, PerRow, Scalar, arguments
from gemmgen.ops.kept import READ, Kept
from gemmgen.runtime.torch_tensors import torch_dtype
from gemmgen.target import BY_DEVICE, H200
from gemmgen.torch_ops import fusing, group_call, launching, meeting
from gemmgen.torch_ops import gradients as backwards

M, N, K = 24, 48, 256  # rows of each rank, columns, and K
OPS = {op.name: op for op in torch_ops.COLLECTIVES}
REGISTERED = torch.ops.gemmgen
CUDA = SimpleNamespace(index=0, type="cuda")


def seat(ranks):
    """The group's name, and this rank's place in it."""
    on = mesh(ranks)
    return on.get_group().group_name, on.get_local_rank()


def gathers(op):
    return op.collective == "all_gather"


def reduces(op):
    return op.collective == "all_reduce"


def drawn(op, ranks, shape):
    """By rank, its operands: alike wherever they are drawn."""
    m, n, k = shape
    m = m if gathers(op) or reduces(op) else ranks * m
    dtype = torch_dtype(op.operands[0])
    return [
        {"a": torch.randn(m, k).to(dtype), "b": torch.randn(n, k).to(dtype)}
        | {
            x: t
            for x, t in scales_of(op, (m, n, k), (), ()).items()
            if op.scaling == "block" and x[-1] in "ab"
        }
        for _ in range(ranks)
    ]


def read_by(epilogue, m, n):
    """What it reads, drawn."""
    found = {}
    for x in arguments(EPILOGUES[epilogue]):
        match x:
            case Scalar():
                found[x.name] = 0.5
            case PerElement(_, dtype):
                found[x.name] = torch.randn(m, n).to(torch_dtype(dtype))
            case PerRow():
                found[x.name] = torch.rand(m)
            case PerColumn():
                found[x.name] = torch.rand(n)
            case DeviceScalar():
                found[x.name] = torch.rand(1)
    return found


def sums(op, of_ranks, rank):
    """What `rank` gets, in float64, before the epilogue."""
    plain = BY_NAME[op.plain]
    if gathers(op):
        names = [x for x in ("a", "scale_a") if x in of_ranks[0]]
        whole = {x: torch.cat([y[x] for y in of_ranks]) for x in names}
        return product(plain, plain.bind((), of_ranks[rank] | whole))[0]
    found = sum(product(plain, plain.bind((), x))[0] for x in of_ranks)
    return found if reduces(op) else found.chunk(len(of_ranks))[rank]


def sizes(x):
    return x | {n: t.float().abs().to(t.dtype) for n, t in x.items()}


def values_of(name, ranks, epilogue="none", layout="nt", shape=(M, N, K), **said):
    """A call, held against float64: every sum and result is rounded once, and an epilogue's steps in FP32."""
    op, (group, rank) = OPS[name], seat(ranks)
    of_ranks = drawn(op, ranks, shape)
    read = read_by(epilogue, shape[0] * (ranks if gathers(op) else 1), shape[1])
    mine, how = of_ranks[rank], {"layout": layout}
    turned = {"a": layout[0] == "t", "b": layout[1] == "n"}
    args = [mine[x].mT.contiguous() if turned.get(x) else mine[x] for x in op.tensors]
    if op.scaling == "block":
        how = {"scale_a_layout": "row"}
    given = {"epilogue": epilogue, **how, **read, **said}
    found = overload(op, "")(*args, group, **given)
    pretended = faked(overload(op, ""), (*args, group), given)
    assert described(found) == described(pretended)
    exact = sums(op, of_ranks, rank)
    most = sums(op, [sizes(x) for x in of_ranks], rank)
    rounding = torch.finfo(found.dtype).eps / 2
    if said.get("wire"):
        rounding += ranks * torch.finfo(torch_dtype(DTYPES[said["wire"]])).eps
    e = EPILOGUES[epilogue]
    expected = value(e, exact, values(e, read, exact, BY_NAME["gemm"]))
    if epilogue == "none":
        assert ((found - expected).abs() <= rounding * most + 1e-6).all()
        return
    off = (found - expected).norm() / expected.norm()
    assert off <= 2 * rounding + 1e-5, off


def values_of_said(name, ranks, said):
    values_of(name, ranks, **said)


def described(x):
    return tuple(x.shape), x.stride(), x.dtype


def gradients(name, ranks, layout="nt", bias=False, compiled=False):
    """Of a sum over all ranks' results, against one rank's autograd over float64."""
    op, (group, rank) = OPS[name], seat(ranks)
    of_ranks = drawn(op, ranks, (M, N, K))
    read = {"bias": torch.rand(N)} if bias else {}
    rows = M * (ranks if gathers(op) else 1)
    dy = [torch.randn(rows, N).bfloat16() for _ in range(ranks)]
    leaves = [{x: t.double().requires_grad_() for x, t in y.items()} for y in of_ranks]
    biases = [read["bias"].double().requires_grad_() if bias else 0.0 for _ in range(ranks)]
    total = 0.0
    for r in range(ranks):
        if gathers(op):
            y = torch.cat([x["a"] for x in leaves]) @ leaves[r]["b"].mT
        else:
            y = sum(x["a"] @ x["b"].mT for x in leaves).chunk(ranks)[r]
        total = total + ((y + biases[r]) * dy[r].double()).sum()
    total.backward()
    mine = {x: t.clone() for x, t in of_ranks[rank].items()}
    mine["b"] = mine["b"].mT.contiguous() if layout[1] == "n" else mine["b"]
    mine = {x: t.requires_grad_() for x, t in (mine | read).items()}
    run = overload(op, "")

    def call(a, b, bias):
        more = {} if bias is None else {"epilogue": "bias", "bias": bias}
        return run(a, b, group, layout=layout, **more) * 1

    call = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    call(mine["a"], mine["b"], mine.get("bias")).backward(dy[rank])
    wanted = {"a": leaves[rank]["a"].grad, "b": leaves[rank]["b"].grad}
    wanted["b"] = wanted["b"].mT if layout[1] == "n" else wanted["b"]
    wanted |= {"bias": biases[rank].grad} if bias else {}
    for x, expected in wanted.items():
        found = mine[x].grad
        assert (found.shape, found.dtype) == (mine[x].shape, mine[x].dtype)
        off = (found.double() - expected).norm() / expected.norm()
        assert off < 2**-8 * ranks, (x, off)


def one_gradient(name, which):
    """Where only one of the operands asks for it."""
    op, (group, _) = OPS[name], seat(2)
    (x, _) = drawn(op, 2, (M, N, K))
    asked = {n: t.clone().requires_grad_(n == which) for n, t in x.items()}
    both = {n: t.clone().requires_grad_() for n, t in x.items()}
    for given in (asked, both):
        overload(op, "")(given["a"], given["b"], group).float().sum().backward()
    assert torch.equal(asked[which].grad, both[which].grad)
    assert [n for n, t in asked.items() if t.grad is not None] == [which]


def gathered():
    """The result and all ranks' rows."""
    op, (group, rank) = OPS["all_gather_gemm"], seat(4)
    for layout in ("nt", "tt"):
        of_ranks = drawn(op, 4, (M, N, K))
        side = int(layout[0] == "t")
        parts = [x["a"].mT.contiguous() if side else x["a"] for x in of_ranks]
        args = parts[rank], of_ranks[rank]["b"], group
        found = REGISTERED.all_gather_gemm.gathered(*args, layout=layout)
        assert torch.equal(found[1], torch.cat(parts, side))
        assert torch.equal(found[0], REGISTERED.all_gather_gemm(*args, layout=layout))
        pretended = faked(REGISTERED.all_gather_gemm.gathered, args, {"layout": layout})
        assert [*map(described, found)] == [*map(described, pretended)]


def columns_of_scales():
    """Scales that lie along M are those that lie in any way."""
    for op in (x for x in OPS.values() if x.scaling == "block"):
        group, rank = seat(2)
        x = drawn(op, 2, (M, N, K))[rank]
        args = [x[n] for n in op.tensors]
        by_rows = overload(op, "")(*args, group, scale_a_layout="row")
        args[1] = args[1].mT.contiguous().mT
        assert torch.equal(overload(op, "")(*args, group, scale_a_layout="mn"), by_rows)


def no_rows():
    group, _ = seat(2)
    b = torch.randn(N, K).bfloat16()
    for name in ("gemm_reduce_scatter", "all_gather_gemm"):
        a = b[:0].clone().requires_grad_()
        w = b.clone().requires_grad_()
        y = overload(OPS[name], "")(a, w, group)
        assert tuple(y.shape) == (0, N)
        y.float().sum().backward()
        assert tuple(a.grad.shape) == (0, K) and not w.grad.any()
    assert tuple(overload(OPS["gemm_all_reduce"], "")(b[:0], b, group).shape) == (0, N)


def opcheck(name):
    op, (group, _) = OPS[name], seat(2)
    x = drawn(op, 2, (M, N, K))[0]
    args = [x[n] for n in op.tensors]
    how = {"scale_a_layout": "row"} if op.scaling == "block" else {}
    if op.scaling != "block" and not reduces(op):
        args = [t.requires_grad_() for t in args]
    tests = (
        "test_schema",
        "test_faketensor",
        "test_autograd_registration",
        "test_aot_dispatch_dynamic",
    )
    for each in op.overloads:
        eight_bit = args[0].dtype.itemsize == 1
        chosen = tests[1:] if eight_bit or each else tests
        if each:
            args = [t.detach() for t in args]
        torch.library.opcheck(overload(op, each), (*args, group), how, test_utils=chosen)


def whole_layer():
    """Two operators of a group and what is between them, in one graph, forward and backward."""
    group, _ = seat(4)
    x, up, down = (torch.randn(*s).bfloat16() for s in ((M, K), (N, K), (K, N)))

    def layer(x, up, down):
        h = torch_ops.all_gather_gemm(x, up, group)
        return torch_ops.gemm_reduce_scatter(torch.nn.functional.silu(h), down, group, wire="bf16")

    found = []
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        leaves = [t.clone().requires_grad_() for t in (x, up, down)]
        y = run(*leaves)
        y.sum().backward()
        found.append([y.detach(), *(t.grad for t in leaves)])
    for eager, compiled in zip(*found, strict=True):
        assert torch.equal(eager, compiled)


def told():
    """What is said of calls that are not one launch."""
    group, _ = seat(2)
    a, b = torch.ones(2 * M, K).bfloat16(), torch.ones(N, K).bfloat16()
    single = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return [
        torch_ops.explain("gemm_reduce_scatter", a, b, group),
        torch_ops.explain("all_gather_gemm", a, b, group, fuse=False),
        torch_ops.explain("all_gather_gemm", a, b, single.group_name),
        torch_ops.explain("gemm_all_reduce", a, b, group, fuse=False),
    ]


def errors():
    """The arguments that are named."""
    group, _ = seat(4)
    a, b, odd = (torch.ones(s, K).bfloat16() for s in (4 * M, N, 4 * M + 2))
    part = DTensor.from_local(a, mesh(4), [Shard(0)], run_check=False)
    run, found = REGISTERED.gemm_reduce_scatter, []
    for refused in (
        lambda: run(odd, b, group),
        lambda: run(a, b, "no such group"),
        lambda: run(a, b, group, wire="f32"),
        lambda: run(a, b, group, out_dtype="e4m3"),
        lambda: run(part, b, group),
        lambda: run(a, b[:, :64].contiguous(), group),
        lambda: run(a, b, group, bias=torch.ones(N)),
        lambda: run(a.clone().requires_grad_(), b, group, epilogue="relu"),
        lambda: run(a.mT.contiguous().requires_grad_(), b, group, layout="tt"),
        lambda: torch_ops.explain("gemm", a, b, group),
    ):
        try:
            refused()
        except ArgumentError as e:
            found.append(e.argument)
    return found


def wrong(name, change):
    """A function of `fusing` whose result is changed."""
    right = getattr(fusing, name)
    return lambda *args: change(right(*args))


FAULTS = {  # what is wrong, in `fusing` or a module that is named, and a call that must show it
    "rows of another rank": (
        lambda: ("scattered", wrong("scattered", lambda x: x.roll(1, 0))),
        lambda: values_of("gemm_reduce_scatter", 4),
    ),
    "sums of one rank only": (
        lambda: ("scattered", lambda x, group: x.chunk(4)[seat(4)[1]]),
        lambda: values_of("fp8_block_gemm_reduce_scatter", 4),
    ),
    "a sum that is not of all": (
        lambda: ("reduced", lambda x, group: x),
        lambda: values_of("gemm_all_reduce", 4),
    ),
    "ranks in another order": (
        lambda: ("all_rows", lambda x, *more: torch.cat([*reversed(RIGHT(x, *more).chunk(4))])),
        lambda: values_of("fp8_block_all_gather_gemm", 4),
    ),
    "an epilogue of each part": (
        lambda: ("applied", lambda epilogue, sums, read: sums),
        lambda: values_of("gemm_reduce_scatter", 4, "bias"),
    ),
    "a gradient of another rank's rows": (
        lambda: ("all_rows", lambda x, *more: RIGHT(x, *more).roll(M, 0), backwards),
        lambda: gradients("all_gather_gemm", 4),
    ),
    "a weight's gradient of rows in another order": (
        lambda: ("_of_weight", lambda dy, *more: OF_WEIGHT(dy.roll(1, 0), *more), backwards),
        lambda: gradients("gemm_reduce_scatter", 2),
    ),
    "a bias without its gradient": (
        lambda: ("_places", lambda ctx, da, db, dy: PLACES(ctx, da, db, dy * 0), backwards),
        lambda: gradients("gemm_reduce_scatter", 2, "nt", True),
    ),
    "a result that lies elsewhere than is said": (
        lambda: ("empty", lambda shape, *more: torch.zeros(shape[0], shape[1] + 8)[:, : shape[1]]),
        lambda: values_of("gemm_reduce_scatter", 2),
    ),
}
RIGHT, OF_WEIGHT, PLACES = fusing.all_rows, backwards._of_weight, backwards._places


def planted(fault):
    """Whether the call shows it."""
    plant, call = FAULTS[fault]
    call()
    name, wrong, *of = plant()
    with patch.object(*(of or [fusing]), name, wrong):
        try:
            call()
        except AssertionError:
            return "found"
    return "not found"


# ---- ranks that meet -----------------------------------------------------------------------


def met(changes, links=None):
    """What a meeting of four ranks finds, of facts that differ in `changes`, by rank; links: what a rank says of its own."""
    rank = dist.get_rank()
    same = {"host": "h", "version": "1", "refused": "", "name": "H200", "sms": 132, "choice": "c"}
    mine = same | {"gpu": f"0000:0{rank}:00.0"} | changes.get(rank, {})
    said = (links or {}).get(rank, "")
    group = dist.new_group()
    with (
        patch.object(meeting, "facts", lambda device: mine),
        patch.object(meeting, "unlinked", lambda device, gpus: said),
    ):
        try:
            return meeting.meeting_of(group, CUDA).why
        except ArgumentError as e:
            return f"{e.argument}: {e}"
        finally:
            dist.destroy_process_group(group)


def destroyed():
    """A meeting lasts as long as its group, and another group of that name meets anew."""
    kept = len(meeting.MEETINGS)
    found = []
    for _ in range(2):
        group = dist.new_group()
        with (
            patch.object(
                meeting, "facts", lambda device: {"refused": "told", "host": "", "gpu": ""}
            ),
        ):
            made = meeting.meeting_of(group, CUDA)
            assert meeting.meeting_of(group, CUDA) is made and made.why.endswith("told")
        found.append(id(made))
        assert len(meeting.MEETINGS) == kept + 1
        dist.destroy_process_group(group)
        del group, made
        gc.collect()
        assert len(meeting.MEETINGS) == kept


def aligned():
    """Where ranks are watched the first launch of each kind waits for all, once."""
    waited = []
    met_ = SimpleNamespace(_aligned=set(), device=None, _group=lambda: None)
    with (
        patch.object(torch.cuda, "device", lambda device: nullcontext()),
        patch.object(dist, "barrier", waited.append),
    ):
        for on, asked, count in ((False, 1, 0), (True, 1, 1), (True, 1, 1), (True, 2, 2)):
            with patch.object(meeting, "is_watched", lambda on=on: on):
                meeting.Meeting.align(met_, asked)
            assert len(waited) == count


class Memory:
    """Symmetric memory that only says what was asked of it."""

    def __init__(self, size):
        self.size = size

    def numel(self):
        return self.size


def grown():
    """Memory is made anew for a launch that needs more, and only then."""
    asked = []
    met_ = object.__new__(meeting.Meeting)
    met_._ends, met_._held, met_.kept = {}, {}, Kept(4)
    met_._made = lambda kind, size: (kind(asked.append(size), None), Memory(size))
    other, kind = (lambda memory, device: object() for _ in range(2))
    met_.end(other, 1)
    one = met_.end(kind, 100)
    assert met_.end(kind, meeting.GRAIN) is one is met_.held(kind)
    assert met_.has(kind, meeting.GRAIN) and not met_.has(kind, meeting.GRAIN + 1)
    two = met_.end(kind, meeting.GRAIN + 1)
    assert two is not one and met_.end(kind, 5) is two
    assert [*met_._held] == [one]  # a graph may still be replayed
    assert asked == [meeting.GRAIN, meeting.GRAIN, 2 * meeting.GRAIN]


def weighed():
    """By operator and GPU, which path a call takes and why, and what the model says of it."""
    group, _ = seat(2)
    found = []
    for name, op in OPS.items():
        x = drawn(op, 2, (M, N, K))[0]
        for target in (H200, BY_DEVICE["NVIDIA H100 PCIe"]):
            for fuse in (None, True):
                given = op.bind((*(x[n] for n in op.tensors), group), {"fuse": fuse})
                call = fusing.called(op, given)
                with (
                    patch.object(fusing, "_against", lambda call: ""),
                    patch.object(fusing, "priced_for", lambda index, t=target: (t.name, t)),
                    patch.object(fusing, "meeting_of", lambda *_: SimpleNamespace(why="")),
                ):
                    path = fusing.path_of(call)
                shape = (call.own_rows, *call.shape[1:])
                said = pays(call.problem, shape, 2, target)
                found.append((name, fuse, path.meeting is not None, path.why, said))
    return found


def launched():
    """What a launch of each rank is given, in place of one."""
    group, _ = seat(2)
    kept, held, aligned = [], [], []

    class Planned:
        wait = "waits"

        def __init__(self, problem, box, a, b, **more):
            kept.append((problem, box, more))

        def launch(self, out=None):
            return torch.zeros(3, 8).bfloat16() if out is None else out

        def let_go(self):
            held.append(self)

        def gathered(self):
            return "rows"

    def found(name, each="", **said):
        op = OPS[name]
        x = drawn(op, 2, (M, N, K))[0]
        call = fusing.called(op, op.bind((*(x[n] for n in op.tensors), group), said), each)
        ends = {"end": lambda kind, size: (kind.__name__, size), "in_order": nullcontext}
        at = SimpleNamespace(kept=Kept(4), align=aligned.append, **ends)
        try:
            if op.collective == "all_gather":
                return launching.gather(call, at, keep=bool(each))
            return launching.add_up(call, at)
        finally:
            assert at.over == "waits" and len(held) == len(kept)

    with (
        patch.object(launching.ranked, "ReduceScatter", Planned),
        patch.object(launching.all_reduced, "AllReduce", Planned),
        patch.object(launching.gathered, "AllGather", Planned),
    ):
        results = [
            found("gemm_reduce_scatter", wire="bf16", config='{"watchdog": true}'),
            found("fp8_block_gemm_reduce_scatter", scale_a_layout="row"),
            found("all_gather_gemm", "gathered"),
            found("fp8_block_all_gather_gemm", scale_a_layout="mn"),
            found("gemm_all_reduce", wire="f16"),
        ]
    assert results[2][1] == "rows" and len(results[0]) == len(results[3]) == 3
    assert len({*aligned}) == 5
    (p, box, more), (_, wide, scales), (_, inbox, _), _, (whole, large, _) = kept
    assert (whole.collective, whole.wire.name) == ("all_reduce", "f16")
    assert large[0] == "Mailbox" and large[1] > box[1]
    assert p.wire.name == "bf16" and p.collective == "reduce_scatter" and more["config"].watchdog
    assert box[0] == wide[0] == "Mailbox" and inbox[0] == "Inbox" and box[1] < wide[1]
    assert scales["scale_layout"] == "mn" and scales["scale_a"].stride(0) == 1


def again():
    """A call that was made before is not planned again, and writes another tensor; one that differs in anything is."""
    op, (group, _) = OPS["all_gather_gemm"], seat(2)
    x, plans = drawn(op, 2, (M, N, K))[0], []
    met_ = SimpleNamespace(kept=Kept(4), in_order=nullcontext, align=len)
    met_.end = lambda kind, size: None

    class Planned:
        def __init__(self, problem, box, a, b, **more):
            plans.append(more)
            self.wait = len(plans)

        def launch(self, out=None):
            return torch.zeros(2 * M, N).bfloat16() if out is None else out.fill_(self.wait)

        def gathered(self):
            return "rows"

        def let_go(self):
            pass

    def run(each="", **said):
        given = op.bind((x["a"], x["b"], group), said)
        kept = launching.kept(op, each, given | {"a": On(x["a"])})
        if kept is not None:
            return kept()
        return launching.gather(fusing.called(op, given, each), met_, keep=bool(each))

    class On:
        """On a GPU, as far as is asked."""

        device = SimpleNamespace(type="cuda", index=0)

        def __init__(self, it):
            self.it = it

    read = {On: lambda x: READ[torch.Tensor](x.it)}
    with (
        patch.object(launching.gathered, "AllGather", Planned),
        patch.object(launching, "met", lambda group, device: met_),
        patch.object(launching, "READ", Reading(read)),
        patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
    ):
        first, second, third = run(), run(), run()
        assert len(plans) == 1 and (second == 1).all() and second is not third
        assert described(second) == described(first) and met_.over == 1
        run("gathered")
        assert run("gathered")[1] == "rows" and len(plans) == 2
        run(out_dtype="f32")
        x["b"] = x["b"].clone()
        run()
        assert len(plans) == 4
        with patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
            assert launching.kept(op, "", op.bind((On(x["a"]), x["b"], group), {})) is None


class Reading(dict):
    def __missing__(self, kind):
        return READ[kind]


def captured():
    """What a call that a CUDA graph captures would be, by what calls before it have made; and that it takes that."""
    group, _ = seat(2)
    made = []

    def ready(size):
        return SimpleNamespace(
            device=CUDA, why="", has=lambda kind, needs: needs <= size, held=lambda kind: kind
        )

    def path(name, there):
        op = OPS[name]
        x = drawn(op, 2, (M, N, K))[0]
        call = fusing.called(op, op.bind((*(x[n] for n in op.tensors), group), {"fuse": True}))
        with patch.object(fusing, "met", lambda group, device: there):
            return call, fusing.path_of(call)

    class Planned:
        def __init__(self, problem, box, *operands, **more):
            made.append(box)

        def launch(self):
            return "out"

    scatter = "gemm_reduce_scatter"
    refused = SimpleNamespace(device=CUDA, why="rank 1: no driver")
    with (
        patch.object(fusing.Call, "device", CUDA),
        patch.object(group_call, "capturing", lambda: True),
        patch.object(fusing, "meeting_of", lambda *_: refused),
    ):
        found = [
            path("all_gather_gemm", ready(1 << 30)),
            path(scatter, None),
            path(scatter, ready(1)),
            path(scatter, refused),
        ]
        with patch.object(fusing, "meeting_of", lambda *_: ready(1 << 30)):
            call, found_ready = path(scatter, ready(1 << 30))
        with patch.object(launching.ranked, "ReduceScatter", Planned):
            assert launching.add_up(call, found_ready.meeting) == "out"
    assert made == [launching.ranked.Mailbox] and not hasattr(found_ready.meeting, "over")
    assert all(x.meeting is None for _, x in found)
    return [*(x.why for _, x in found), found_ready.why]


def waited():
    """A group is waited for by each of its launches' devices."""
    group, _ = seat(2)
    torch_ops.wait(group)
    done = []
    met_ = {i: SimpleNamespace(over=lambda i=i: done.append(i)) for i in range(2)}
    with patch.dict(meeting.MEETINGS, {fusing.group_of(group): met_}):
        torch_ops.wait(group)
    assert done == [0, 1]
