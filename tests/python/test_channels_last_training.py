"""Graphs of training whose convolutions get channels last, as on a GPU: here they run on the CPU, by its rules for strides."""

import copy
import os
import re
import subprocess
from collections import Counter

import pytest
import small_models
import torch
import torch.nn.functional as F
from compare import assert_same
from conftest import BUILD
from functorch.compile import make_boxed_func
from test_channels_last import Flattened, Patches, Residual, Strided, Upward
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import kiln_torch
from kiln_torch import _kiln, recompute
from kiln_torch.capture import capture
from kiln_torch.decompositions import decompositions

nn = torch.nn
aten = torch.ops.aten
OPERANDS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}


@pytest.fixture(autouse=True)
def rewritten(monkeypatch):
    """Graphs of both passes are parted as a GPU's: of each, whether it was written anew."""
    found = []

    def channels_last(module, rewrite=recompute.channels_last):
        new = rewrite(module)
        found.append(new is not module)
        return new

    monkeypatch.setattr(recompute, "channels_last", channels_last)
    monkeypatch.setattr(recompute, "traced_device", lambda *_: torch.device("cuda"))
    return found


def image(*sizes, dtype=torch.float32):
    return torch.randn(*sizes).to(dtype)


def flat(out):
    if isinstance(out, dict):
        out = tuple(out.values())
    return out if isinstance(out, tuple) else (out,)


def step(fn, module, args):
    """Outputs, every gradient, running statistics, after one pass of `fn` each way."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in args]
    module.zero_grad()
    outs = [out for out in flat(fn(*leaves)) if out.is_floating_point()]
    # Not all ones: a permuted gradient has to show.
    sum((out * torch.linspace(-1, 1, out.numel()).to(out.dtype).view(out.shape)).sum() for out in outs).backward()
    grads = [p.grad.clone() for p in module.parameters()] + [x.grad for x in leaves if x.requires_grad]
    return [out.detach() for out in outs] + grads + [b.clone() for b in module.buffers()]


def check(module, args, tol=1e-4, steps=2, wrap=lambda m: m, **options):
    """Steps of `module`, compiled, against eager's and float64's."""
    wide = copy.deepcopy(module).double()
    eager, compiled = copy.deepcopy(module), copy.deepcopy(module)
    options = {"fallback": "raise", **options}
    fn = torch.compile(wrap(compiled), backend="kiln", options=options, dynamic=False)
    for _ in range(steps):
        reference = step(wrap(wide), wide, [x.double() if x.is_floating_point() else x for x in args])
        assert_same(step(fn, compiled, args), step(wrap(eager), eager, args), reference, tol)
    assert kiln_torch.stats()["fallbacks"] == []
    return fn


def graphs_of(module, args):
    """The graphs of both passes, made of operators as a GPU's are."""
    found = {}

    def keep(kind):
        def compiler(graph, _):
            found[kind] = graph
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"),
        bw_compiler=keep("backward"),
        decompositions=decompositions("cuda"),
        partition_fn=recompute.partitioner(keep_random=True),
        keep_inference_input_mutations=True,
    )
    out = torch.compile(module, backend=backend, dynamic=False)(*args)
    sum(o.float().sum() for o in flat(out)).backward()
    return found["forward"], found["backward"]


def is_last(node):
    return node.meta["val"].is_contiguous(memory_format=torch.channels_last)


def images(nodes):
    return [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor) and n.meta["val"].dim() == 4]


def copies(graph):
    """Sizes of what is copied to another order."""
    return [
        tuple(n.meta["val"].shape)
        for n in graph.graph.nodes
        if n.target == aten.clone.default and n.args[0].meta["val"].stride() != n.meta["val"].stride()
    ]


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        return out["logits"] if "logits" in out else out["out"]


def resnet():
    model, inputs = small_models.resnet()
    return Logits(model).train(), [*inputs.values()]


def unet():
    model, inputs = small_models.unet()
    return Logits(model).train(), [*inputs.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_images_that_come_in_weights_and_their_gradients_are_turned(dtype, rewritten):
    model, args = resnet()
    graphs = graphs_of(model.to(dtype), [x.to(dtype) for x in args])
    assert rewritten == [True]
    for graph in graphs:
        convolutions = [n for n in graph.graph.nodes if n.target in OPERANDS]
        assert len(convolutions) == 20
        assert all(is_last(x) for n in convolutions for x in n.args[: OPERANDS[n.target]])
    weights = [tuple(p.shape) for p in model.parameters() if p.dim() == 4 and p.shape[2] > 1]
    assert Counter(copies(graphs[0])) == Counter([*weights, tuple(args[0].shape)])
    assert Counter(copies(graphs[1])) == Counter(weights)


def test_what_the_forward_pass_turned_is_kept():
    """Not turned again: the backward pass gets it as the forward's convolutions had it."""
    forward, backward = graphs_of(*resnet())
    kept = images(n for n in backward.graph.nodes if n.op == "placeholder")
    assert kept and all(map(is_last, kept))
    assert len(copies(forward)) == 1 + len(copies(backward))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_turns_nothing_else(dtype, server, tmp_path):
    """Of target ptx's kernels those that only copy: one place for each weight, kept for the backward pass."""
    model, args = resnet()
    weights = sum(p.dim() == 4 and p.shape[2] > 1 for p in model.parameters())
    graphs = graphs_of(model.to(dtype), [x.to(dtype) for x in args])
    for graph, copied in zip(graphs, (1 + weights, weights), strict=True):
        path = tmp_path / "graph.kgraph"
        path.write_bytes(_kiln.graph_to_bytes(capture(graph, lambda _: False)))
        command = [BUILD / "bin" / "kiln", "explain", path, "--target", "ptx", "--arch", "sm_90a", "--libraries", "torch"]
        environment = {**os.environ, "KILN_SERVER": server.address}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        kernels = [found.split(", ") for found in re.findall(r"^ *\d+ +launch +\w+: (.+)$", done.stdout, re.M)]
        copies = [k for k in kernels if all(re.match("convolution|output_|clone", node) for node in k)]
        assert len(kernels) > 20 and sum(map(len, copies)) == copied, copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("module", [Residual, Upward, Flattened, Patches])
def test_modules(module, dtype, rewritten):
    args = [image(2, {Upward: 4}.get(module, 3), 8, 8, dtype=dtype)]
    check(module().train().to(dtype), args, 1e-4 if dtype == torch.float32 else 2e-2)
    assert rewritten == [True]


@pytest.mark.parametrize("model", [resnet, unet])
def test_models(model, rewritten):
    module, args = model()
    check(module, args, 1e-3)
    assert rewritten == [True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, rewritten):
    def wrap(module):
        def run(x):
            with torch.autocast("cpu", dtype, enabled=x.dtype != torch.float64):
                return module(x)

        return run

    check(Residual().train(), [image(4, 3, 16, 16)], 3e-2, wrap=wrap)
    assert rewritten == [True]


@pytest.mark.parametrize("frozen", ["stem", "norm", "body"])
def test_frozen_parts(frozen, rewritten):
    module = Residual().train()
    getattr(module, frozen).requires_grad_(False)
    eager = copy.deepcopy(module)
    compiled = torch.compile(module, backend="kiln", options={"fallback": "raise"})
    x = image(2, 3, 8, 8)
    for fn in (eager, compiled):
        fn(x).square().sum().backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            assert_same(ours.grad, theirs.grad)
    assert rewritten == [True]


@pytest.mark.parametrize("kind", ["image", "weights", "both"])
def test_operands_that_are_in_order_already(kind, rewritten):
    module, x = Residual().train(), image(2, 3, 8, 8)
    if kind != "image":
        module = module.to(memory_format=torch.channels_last)
    if kind != "weights":
        x = x.to(memory_format=torch.channels_last)
    check(module, [x])
    assert rewritten == [True]


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_steps(kind, rewritten):
    module, (x,) = resnet()
    target = torch.tensor([1, 7])

    def trained(module, x, by_kiln):
        module = copy.deepcopy(module).to(x.dtype)
        fn = torch.compile(module, backend="kiln", options={"fallback": "raise"}) if by_kiln else module
        make = {"SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), "AdamW": torch.optim.AdamW}[kind]
        optimizer = make(module.parameters())
        losses = []
        for _ in range(4):
            loss = F.cross_entropy(fn(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        # Where a gradient is near zero, Adam's step has its sign.
        return [torch.stack(losses), *(module.parameters() if kind == "SGD" else ()), *module.buffers()]

    assert_same(trained(module, x, True), trained(module, x, False), trained(module, x.double(), False), 1e-2)
    assert rewritten == [True]


class Several(nn.Module):
    """An image that is saved, too, among the outputs, a view of one and one in another order."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        inner = self.norm(self.first(x)).relu()
        out = self.second(inner)
        return inner, out, out.flatten(1), inner.transpose(2, 3).contiguous()


def test_outputs_keep_eagers_strides(rewritten):
    module, x = Several().train(), image(2, 3, 9, 7)
    eager = copy.deepcopy(module)(x)
    ours = torch.compile(copy.deepcopy(module), backend="kiln", options={"fallback": "raise"})(x)
    for a, e in zip(ours, eager, strict=True):
        assert a.stride() == e.stride() and a.storage_offset() == e.storage_offset()
    check(module, [x])
    assert rewritten == [True, True]


def test_a_gradient_of_one_place_is_given_eagers_strides_by_a_view():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    _, backward = graphs_of(module, [image(2, 3, 6, 6)])
    outputs = next(n for n in backward.graph.nodes if n.op == "output").args[0]
    strides = [n.meta["val"].stride() for n in outputs if n is not None]
    assert (8, 1, 1, 1) in strides
    assert (8, 3, 3, 3) in copies(backward) and (4, 8, 1, 1) not in copies(backward)


def test_a_module_that_is_called_twice(rewritten):
    module = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    check(module, [image(2, 4, 8, 8)], wrap=lambda m: lambda x: m(m(x)) + x)
    assert rewritten == [True]


def test_a_backward_pass_that_runs_twice(rewritten):
    module, x = Residual().train(), image(2, 3, 8, 8)
    eager = copy.deepcopy(module)
    compiled = torch.compile(module, backend="kiln", options={"fallback": "raise"})
    for fn in (eager, compiled):
        out = fn(x).square().sum()
        out.backward(retain_graph=True)
        out.backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)
    assert rewritten == [True]


def test_parts_that_are_computed_again(rewritten):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.parts = nn.ModuleList(
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()) for _ in range(3)
            )

        def forward(self, x):
            x = self.stem(x)
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=False)
            return x

    module, x = Checkpointed().train(), image(2, 3, 8, 8)
    check(module, [x], steps=1)
    _, backward = graphs_of(module, [x])
    assert any(n.target == aten.convolution.default for n in backward.graph.nodes)
    assert all(rewritten)


def test_calls_without_gradients_between(rewritten):
    module, x = Residual().train(), image(2, 3, 8, 8)
    eager = copy.deepcopy(module)
    fn = torch.compile(module, backend="kiln", options={"fallback": "raise"})
    for mode in (True, False, True):
        module.train(mode)
        eager.train(mode)
        with torch.set_grad_enabled(mode):
            ours, theirs = fn(x), eager(x)
        assert_same(ours, theirs)
        if mode:
            ours.sum().backward()
            theirs.sum().backward()
            assert_same(module.body.weight.grad, eager.body.weight.grad)
    assert any(rewritten)


def test_passes_of_which_one_runs_eager(rewritten, monkeypatch):
    """What one keeps fits the other, whichever of them has a program."""
    from kiln_torch import graphs

    obtain = graphs.load_program
    for refused in ("forward", "backward"):
        torch._dynamo.reset()
        kiln_torch.reset()
        kinds = []

        def load(text, settings, device, refused=refused, kinds=kinds):
            kinds.append("forward" if not kinds else "backward")
            if kinds[-1] == refused:
                raise kiln_torch._kiln.Error("none today")
            return obtain(text, settings, device)

        monkeypatch.setattr(graphs, "load_program", load)
        module, x = Residual().train(), image(2, 3, 8, 8)
        eager = copy.deepcopy(module)
        fn = torch.compile(module, backend="kiln")
        got = step(fn, module, [x])
        assert_same(got, step(eager, eager, [x]))
        assert kinds == ["forward", "backward"]
        assert [f["reason"] for f in kiln_torch.stats()["fallbacks"]] == ["none today"]
    assert all(rewritten)


def test_from_torchs_cache(rewritten):
    module, x = Residual().train(), image(2, 3, 8, 8)
    eager = copy.deepcopy(module)
    expected = step(eager, eager, [x])
    for hits in (0, 1):
        torch._dynamo.reset()
        counters.clear()
        again = copy.deepcopy(module)
        fn = torch.compile(again, backend="kiln", options={"fallback": "raise"})
        assert_same(step(fn, again, [x]), expected)
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits
    assert rewritten == [True]
    assert kiln_torch.stats()["fallbacks"] == []


def test_compiled_autograd(rewritten):
    module, x = Flattened().train(), image(2, 3, 8, 8)
    eager = copy.deepcopy(module)
    fn = torch.compile(module, backend="kiln", options={"fallback": "raise"})
    with torch._dynamo.config.patch(compiled_autograd=True):
        run = torch.compile(lambda: fn(x).square().sum().backward(), backend="kiln")
        run()
    eager(x).square().sum().backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)
    assert any(rewritten)


def test_checked_against_eager(rewritten):
    module, x = Residual().train(), image(2, 3, 8, 8)
    check(module, [x], check=True)
    assert rewritten == [True] and kiln_torch.stats()["checks"]["differences"] == 0


class Sliced(nn.Module):
    """An output that lies in memory as part of another."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x)[:, 1:3]


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.point, self.depth = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8)

    def forward(self, x):
        return self.depth(self.point(x))


@pytest.mark.parametrize("module", [Depthwise, Sliced, Strided, lambda: nn.Conv2d(3, 8, 3).double()])
def test_graphs_that_stay_as_they_are(module, rewritten):
    module = module()
    check(module, [image(2, 3, 8, 8, dtype=next(module.parameters()).dtype)])
    assert rewritten == [False]


def test_a_model_with_groups_stays_as_it_is(rewritten):
    module = nn.Sequential(
        nn.Conv2d(3, 12, 1),
        nn.BatchNorm2d(12),
        nn.Conv2d(12, 12, 3, groups=12),
        nn.BatchNorm2d(12),
        nn.Conv2d(12, 8, 1),
    )
    check(module.train(), [image(2, 3, 10, 12)])
    assert rewritten == [False]


def test_sizes_that_change_stay_as_they_are(rewritten):
    module = Residual().train()
    eager = copy.deepcopy(module)
    fn = torch.compile(module, backend="kiln", options={"fallback": "raise"}, dynamic=True)
    for n in (2, 3, 5):
        x = image(n, 3, 8, 8)
        assert_same(step(fn, module, [x]), step(eager, eager, [x]))
    assert not any(rewritten)


def test_convolutions_that_are_not_computed_so_stay(rewritten, monkeypatch):
    """As where cuDNN is off: the result would have to be turned after each."""
    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", lambda *_: torch.contiguous_format)
    check(Residual().train(), [image(2, 3, 10, 12)])  # no size of another test's: torch keeps the answers
    assert rewritten == [False]
