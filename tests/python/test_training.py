"""Training through torch.compile(backend="kiln"): whole models, precisions, and what users do around a
step. tests/python/sweep_models.py runs every model in every mode."""

import copy
import os
import subprocess
import sys

import pytest
import small_models
import torch
from compare import assert_same
from model_step import compare_step
from torch.utils.checkpoint import checkpoint

import kiln_torch

F = torch.nn.functional


# In CI: a model of each kind, in the precisions that users train in.
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("gpt2", "float32"),
        ("transformer_encoder", "bfloat16"),
        ("bert", "autocast"),
        ("resnet", "float32"),
        ("unet", "float32"),
        ("unet", "bfloat16"),
        ("unet", "autocast"),
        ("transformer_encoder", "float16"),
        ("bert", "autocast16"),
        ("dlrm", "float32"),
        ("dlrm", "bfloat16"),
        ("mlp", "bfloat16"),
    ],
)
def test_a_step_equals_eagers(name, precision):
    model, inputs = small_models.make(small_models.MODELS[name])
    assert compare_step(model, inputs, precision, then=[inputs])["fallbacks"] == []


def test_a_step_of_float16_that_overflows_is_left_out():
    """With GradScaler: such a step changes no parameter and halves the scale."""

    def train(run, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=100)
        torch.manual_seed(3)
        scales = []
        for step in range(4):
            x = torch.randn(24, 40) * (1e5 if step == 2 else 1)  # too large for float16
            with torch.autocast("cpu", dtype=torch.float16):
                loss = run(x).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [p.detach() for p in model.parameters()], scales

    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    ours = copy.deepcopy(model)
    options = {"fallback": "raise"}
    actual, scales = train(torch.compile(ours, backend="kiln", options=options), ours)
    expected, expected_scales = train(model, model)
    assert scales == expected_scales == [2.0**14, 2.0**14, 2.0**13, 2.0**13]
    assert_same(actual, expected, tol=1e-3)


def test_a_row_that_may_attend_to_nothing_gives_zeros_and_no_gradient():
    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    mask = torch.zeros(5, 7)
    mask[2] = -torch.inf
    mask[3, 1:] = -torch.inf
    for given in (mask, mask == 0):
        torch._dynamo.reset()
        sizes = ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
        ours = [torch.randn(size).requires_grad_() for size in sizes]
        theirs = [t.detach().clone().requires_grad_() for t in ours]
        actual = torch.compile(attend, backend="kiln")(*ours, given)
        expected = attend(*theirs, given)
        assert_same(actual, expected)
        assert (actual[:, :, 2] == 0).all()
        actual.square().sum().backward()
        expected.square().sum().backward()
        assert_same([t.grad for t in ours], [t.grad for t in theirs])
    assert kiln_torch.stats()["fallbacks"] == [] and kiln_torch.stats()["library_ops"] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_gives_its_logsumexp_as_atens(dtype, is_causal):
    def attend(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, scale=0.3
        )

    q, k, v = (torch.randn(2, 3, n, 16).to(dtype) for n in (9, 11, 11))
    actual, expected = torch.compile(attend, backend="kiln")(q, k, v), attend(q, k, v)
    exact = attend(q.double(), k.double(), v.double())
    assert_same(actual, expected, exact, tol=1e-4 if dtype == torch.float32 else 2e-2)
    assert kiln_torch.stats()["library_ops"] == {}


def test_query_heads_share_keys():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 11, 16), torch.randn(2, 2, 11, 16)
    with torch.no_grad():
        assert_same(torch.compile(attend, backend="kiln")(q, k, v), attend(q, k, v))
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = torch.autograd.grad(attend(*inputs).square().sum(), inputs)
    actual = torch.autograd.grad(
        torch.compile(attend, backend="kiln")(*inputs).square().sum(), inputs
    )
    assert_same(list(actual), list(expected))
    assert kiln_torch.stats()["fallbacks"] == []


class Block(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.inner = torch.nn.Linear(12, 24)
        self.outer = torch.nn.Linear(24, 12)
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.LayerNorm(12)

    def forward(self, x):
        return self.norm(x + self.outer(self.dropout(F.gelu(self.inner(x)))))


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def pair(model):
    """The model, and a copy of it with its compiled form."""
    torch.manual_seed(5)
    ours = copy.deepcopy(model)
    return ours, torch.compile(ours, backend="kiln")


def test_dropout_follows_the_seed_and_is_the_same_in_both_directions():
    def drop(x):
        return F.dropout(x, 0.4)

    compiled = torch.compile(drop, backend="kiln")
    x = torch.ones(1000, requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        out = compiled(x)
        x.grad = None
        out.sum().backward()
        # The gradient is the mask that the forward pass drew: 0, or 1 / (1 - p).
        assert torch.equal(out, x.grad)
        assert out.unique().tolist() == pytest.approx([0, 1 / 0.6])
        results.append(out.detach())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert 500 < results[0].count_nonzero() < 700
    assert kiln_torch.stats()["fallbacks"] == []


def test_activation_checkpointing_draws_the_same_dropout_again():
    block = Block(dropout=0.3)

    def run(x):
        return checkpoint(block, x, use_reentrant=False)

    # What runs again is torch's operator, from the state that its generator had: eager's numbers.
    plain = torch.compile(block, backend="kiln", options={"fallback_random": True})
    checkpointed = torch.compile(run, backend="kiln")
    x = torch.randn(8, 12)
    found = []
    for compiled in (plain, checkpointed, checkpointed):
        torch.manual_seed(3)
        block.zero_grad()
        out = compiled(x)
        out.square().sum().backward()
        found.append([out.detach(), gradients(block)])
    assert_same(found[1], found[0])
    assert_same(found[2], found[1])
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["library_ops"]["higher_order.run_with_rng_state"] == 1


def test_gradients_accumulate_and_frozen_parameters_get_none():
    model = torch.nn.Sequential(Block(), Block())
    model[0].inner.weight.requires_grad_(False)
    ours, compiled = pair(model)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 12)
        model(x).square().mean().backward()
        compiled(x).square().mean().backward()
    assert ours[0].inner.weight.grad is None
    assert_same(gradients(ours), gradients(model))
    assert kiln_torch.stats()["fallbacks"] == []


def test_tied_parameters_get_the_sum_of_their_gradients():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(20, 12)
            self.block = Block()
            self.head = torch.nn.Linear(12, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.block(self.embedding(x)))

    model = Tied()
    ours, compiled = pair(model)
    x = torch.randint(0, 20, (3, 7))
    F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    F.cross_entropy(compiled(x).flatten(0, 1), x.flatten()).backward()
    assert ours.head.weight.grad is ours.embedding.weight.grad
    assert_same(gradients(ours), gradients(model))
    assert kiln_torch.stats()["fallbacks"] == []


def test_several_losses_and_hooks():
    model = Block()
    ours, compiled = pair(model)
    x = torch.randn(4, 12)
    seen = {}
    for which, module, run in (("eager", model, model), ("kiln", ours, compiled)):
        module.outer.weight.register_hook(lambda grad: grad * 2)
        module.inner.weight.register_post_accumulate_grad_hook(
            lambda p, which=which: seen.update({which: p.grad.clone()})
        )
        out = run(x)
        out.square().mean().backward(retain_graph=True)
        out.abs().sum().backward()
    assert_same(gradients(ours), gradients(model))
    assert_same(seen["kiln"], seen["eager"])
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=foreach),
        lambda p, foreach: torch.optim.Adam(p, lr=1e-2, foreach=foreach),
        lambda p, foreach: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, foreach=foreach),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_a_whole_step_with_its_optimizer(make, foreach):
    model = Block()
    ours = copy.deepcopy(model)
    data = [torch.randn(8, 12) for _ in range(4)]

    def stepper(module):
        optimizer = make(module.parameters(), foreach)

        def step(x):
            optimizer.zero_grad()
            loss = (module(x) - x.flip(-1)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, compiled = stepper(model), torch.compile(stepper(ours), backend="kiln")
    for x in data:
        assert_same(compiled(x), eager(x), tol=1e-3)
    assert_same(list(ours.parameters()), list(model.parameters()), tol=1e-3)
    assert kiln_torch.stats()["fallbacks"] == []


DDP = """
import os, sys, time, torch, kiln_torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.outer(torch.nn.functional.gelu(self.inner(x)))

model, reference = Net(), Net()
data = torch.randn(2, 6, 8)
compiled = torch.compile(DistributedDataParallel(model), backend="kiln")
loss = compiled(data[rank]).square().mean()
loss.backward()
stats = kiln_torch.stats()
reference.load_state_dict(model.state_dict())
((reference(data[0]).square().mean() + reference(data[1]).square().mean()) / 2).backward()
for p, r in zip(model.parameters(), reference.parameters()):
    torch.testing.assert_close(p.grad, r.grad)
print(len(stats["fallbacks"]), stats["graphs"], flush=True)
# gloo aborts whoever still talks to a rank that has left, as in a barrier that is over for one alone.
dist.barrier()
open(f"{sys.argv[2]}.{rank}", "w").close()
while not os.path.exists(f"{sys.argv[2]}.{1 - rank}"):
    time.sleep(0.01)
dist.destroy_process_group()
"""


def compiles(server):
    counts = [line for line in server.metrics().splitlines() if line.startswith("kiln_compile_duration_seconds_count")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)


def test_two_processes_under_ddp_share_one_compile(server, tmp_path):
    before = compiles(server)
    environment = {**os.environ, "KILN_SERVER": server.address, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DDP, str(rank), str(tmp_path / "meeting")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    graphs = []
    for rank in ranks:
        out, err = rank.communicate(timeout=240)
        assert rank.returncode == 0, err
        fallbacks, count = map(int, out.split()[-2:])
        assert fallbacks == 0 and count >= 2
        graphs.append(count)
    assert graphs[0] == graphs[1] and compiles(server) - before == graphs[0]
