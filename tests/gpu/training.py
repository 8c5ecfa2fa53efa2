"""Parts of check.py with whole models: inference, gradients, training steps, autocast, dropout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from measure import Results, Tensors, check, compare, compiled
from models import ResNet, Transformer, VisionTransformer

from kiln_torch import recompute

F = torch.nn.functional
STEPS = 4
# Of a whole model, whose gradients in 16 bits depend on the order of every sum.
TIMES_EAGER = 8.0


def _tokens(*sizes: int, vocabulary: int = 100) -> torch.Tensor:
    return torch.randint(0, vocabulary, sizes, device="cuda")


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "gpt": lambda: (Transformer(100, 64, 2, 4), _tokens(2, 33)),
    "bert": lambda: (Transformer(100, 48, 2, 4, causal=False), _tokens(3, 24)),
    "llama": lambda: (Transformer(100, 64, 2, 4, gated=True), _tokens(2, 21)),
    "resnet": lambda: (ResNet(8, (2, 1), 10), torch.randn(2, 3, 61, 67, device="cuda")),
    "vit": lambda: (VisionTransformer(32, 8, 48, 2, 4, 10), torch.randn(2, 3, 32, 32, device="cuda")),
}


def _model(name: str, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    module, x = MODELS[name]()
    return module.cuda().to(dtype), x.to(dtype) if x.is_floating_point() else x


def models(run: Results) -> None:
    for name in MODELS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kind = str(dtype).removeprefix("torch.")
            module, x = _model(name, dtype)
            with run.case(f"models {name} {kind} forward and backward"):
                check(lambda m, x: m(x), [module.train(), x], TIMES_EAGER)
            frozen = copy.deepcopy(module).eval().requires_grad_(False)
            with run.case(f"models {name} {kind} inference"):
                check(lambda m, x: m(x), [frozen, x], TIMES_EAGER)


def training_loss(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = module(x)
    target = torch.arange(logits[..., 0].numel(), device="cuda") % logits.shape[-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, -2), target)


def _trained(
    module: torch.nn.Module,
    x: torch.Tensor,
    make: Callable[..., torch.optim.Optimizer],
    by_kiln: bool,
) -> Tensors:
    """Losses and parameters of a few steps; with Kiln the optimizer's step is compiled, too."""
    module = copy.deepcopy(module).train()
    optimizer = make(module.parameters())
    loss_of = compiled(training_loss) if by_kiln else training_loss
    step = torch.compile(optimizer.step, backend="kiln", options={"fallback": "raise"})
    losses = []
    for _ in range(STEPS):
        loss = loss_of(module, x)
        loss.backward()
        step() if by_kiln else optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [torch.stack(losses), *(p.detach() for p in module.parameters())]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW capturable": lambda p: torch.optim.AdamW(p, lr=1e-3, capturable=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=1e-4),
}


class Smooth(torch.nn.Module):
    """Images [b, 3, h, w] to [b, 10], without the corners of ReLU: at those another order of a sum may turn a
    gradient off."""

    def __init__(self) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.stem = torch.nn.Sequential(
            conv(3, 64, 7, 2, 3, bias=False), norm(64), torch.nn.SiLU(), torch.nn.AvgPool2d(3, 2, 1)
        )
        self.inner = torch.nn.Sequential(
            conv(64, 64, 3, padding=1, bias=False), norm(64), torch.nn.SiLU(), conv(64, 64, 1, bias=False), norm(64)
        )
        self.down = conv(64, 96, 3, 2, 1)
        self.head = torch.nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.silu(x + self.inner(x))
        return self.head(F.silu(self.down(x)).mean((2, 3)))


@contextmanager
def _written_anew() -> Iterator[list[bool]]:
    """Of each graph of both passes that is parted meanwhile, whether its convolutions got channels last."""
    found: list[bool] = []

    def channels_last(module: Any, rewrite: Callable[..., Any] = recompute.channels_last) -> Any:
        new = rewrite(module)
        found.append(new is not module)
        return new

    with mock.patch.object(recompute, "channels_last", channels_last):
        yield found


def _images(run: Results) -> None:
    """Convolutions, norms and poolings in training, at sizes that fill a GPU, in both orders of dimensions."""
    orders = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
    torch.manual_seed(0)
    module = Smooth().cuda().train()
    x = torch.randn(8, 3, 112, 112, device="cuda")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kind = str(dtype).removeprefix("torch.")
        for order, form in orders.items():
            with run.case(f"training images {kind} {order}"), _written_anew() as anew:
                given = [copy.deepcopy(module).to(dtype), x.to(dtype)]
                args = [copy.deepcopy(arg).to(memory_format=form) for arg in given]
                # On a GPU torch 2.11's gradients of means are wrong with channels last.
                check(lambda m, x: m(x), args, TIMES_EAGER, given)
                assert all(anew), "convolutions are as they were"  # none: from torch's cache

    def with_autocast(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return module(x)

    with run.case("training images autocast"), _written_anew() as anew:
        check(with_autocast, [module, x], TIMES_EAGER)
        assert all(anew), "convolutions are as they were"
    with run.case("training images: gradients lie as eager's do"):
        eager, ours = copy.deepcopy(module), copy.deepcopy(module)
        eager(x).sum().backward()
        compiled(ours)(x).sum().backward()
        for a, e in zip(ours.parameters(), eager.parameters(), strict=True):
            assert a.grad.stride() == e.grad.stride(), f"{a.grad.stride()}, eager's {e.grad.stride()}"
    for order, form in orders.items():
        image = torch.randn(8, 64, 112, 112, device="cuda").to(memory_format=form).requires_grad_()
        with run.case(f"training batch norm {order}"):
            norm = torch.nn.BatchNorm2d(64, device="cuda").train()
            check(lambda m, x: m(x).relu(), [norm, image])
        for pool in ((3, 2, 1, 1, False), (5, 1, 2, 1, False), (3, 2, 1, 2, True)):
            with run.case(f"training max pooling {pool} {order}"):
                check(lambda x, pool=pool: F.max_pool2d(x, *pool).relu(), [image])
        with run.case(f"training mean pooling {order}"):
            # As above.
            given = [image.detach().contiguous().requires_grad_()]
            check(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), [image], given=given)


def _vocabularies(run: Results) -> None:
    """Gradients of logits whose rows are no whole 16 bytes, which libraries multiply twice."""

    def fn(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, w).float(), target)

    target = torch.arange(2048, device="cuda") % 5003
    for dtype in (torch.bfloat16, torch.float16):
        with run.case(f"training vocabulary {str(dtype).removeprefix('torch.')}"):
            x = torch.randn(2048, 512, device="cuda").to(dtype).requires_grad_()
            w = (torch.randn(5003, 512, device="cuda") * 512**-0.5).to(dtype).requires_grad_()
            check(fn, [x, w, target], TIMES_EAGER)


def training(run: Results) -> None:
    _images(run)
    _vocabularies(run)
    for name in ("gpt", "llama", "resnet"):
        for kind, make in OPTIMIZERS.items():
            with run.case(f"training {name} {kind}"):
                module, x = _model(name)
                wide = x.double() if x.is_floating_point() else x
                reference = _trained(copy.deepcopy(module).double(), wide, make, False)
                eager = _trained(module, x, make, False)
                # Where a gradient is near zero, Adam's step has its sign: compare in steps' units.
                ours = _trained(module, x, make, True)
                if kind == "SGD":
                    compare(ours, eager, reference, TIMES_EAGER)
                else:
                    compare(ours[:1], eager[:1], reference[:1], TIMES_EAGER)
                    for a, e in zip(ours[1:], eager[1:], strict=True):
                        off = float((a - e).abs().mean())
                        assert off < 0.1e-3 * STEPS, f"parameters are off by {off:.3g} in the mean"


def _scaled(module: torch.nn.Module, x: torch.Tensor, dtype: torch.dtype, by_kiln: bool) -> Tensors:
    module = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype):
            return training_loss(module, x)

    run: Callable[..., Any] = compiled(loss_of) if by_kiln else loss_of
    losses = []
    for _ in range(STEPS):
        loss = run(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [torch.stack(losses)]


def precision(run: Results) -> None:
    for name in ("gpt", "llama", "resnet", "vit"):
        for dtype in (torch.bfloat16, torch.float16):
            with run.case(f"precision {name} autocast {str(dtype).removeprefix('torch.')}"):
                module, x = _model(name)
                ours, eager = (_scaled(module, x, dtype, by_kiln)[0] for by_kiln in (True, False))
                off = float((ours - eager).abs().max())
                limit = 4 * torch.finfo(dtype).eps * float(eager.abs().max())
                assert off <= limit, f"losses are off by {off:.3g}, more than {limit:.3g}"


def randomness(run: Results) -> None:
    """What a GPU's generator draws is eager's, bit by bit, and in the same order."""
    x = torch.randn(64, 129, device="cuda")
    functions: dict[str, Callable[..., Any]] = {
        "dropout": lambda x: F.dropout(x, 0.3),
        "rand": lambda x: torch.rand_like(x) + torch.rand(129, device="cuda"),
        "randn": lambda x: torch.randn(64, 129, device="cuda"),
        "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
        "randint": lambda x: torch.randint(0, 99, (33,), device="cuda"),
        "randperm": lambda x: torch.randperm(1000, device="cuda"),
    }
    for name, fn in functions.items():
        with run.case(f"random {name}"):
            by_kiln = compiled(fn)
            for seed in range(3):
                torch.manual_seed(seed)
                eager = fn(x), torch.rand(3, device="cuda")
                torch.manual_seed(seed)
                ours = by_kiln(x), torch.rand(3, device="cuda")
                assert all(map(torch.equal, ours, eager)), "other numbers than eager's"
    for dtype in (torch.float32, torch.bfloat16):
        with run.case(f"random attention with dropout {str(dtype).removeprefix('torch.')}"):
            q, k, v = (
                torch.randn(2, 4, 64, 64, device="cuda", dtype=dtype, requires_grad=True)
                for _ in range(3)
            )

            def attention(q: Any, k: Any, v: Any) -> Any:
                return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)

            got = []
            for fn in (attention, compiled(attention)):
                torch.manual_seed(3)
                out = fn(q, k, v)
                got.append([out.detach(), *torch.autograd.grad(out.float().square().sum(), (q, k, v))])
            for a, e in zip(*got, strict=True):
                torch.testing.assert_close(a, e)
