"""Depthwise convolutions and poolings between products: their channels lie side by side, and all is as in eager."""

import copy

import pytest
import torch
from compare import assert_same
from torch import nn


class Inverted(nn.Module):
    """A product that widens, windows over what it gave, a product that narrows, and a residual link."""

    def __init__(self, channels, hidden, taps, stride, dilation, padding, pooled):
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, taps, stride, padding, dilation, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(),
        )
        self.project = nn.Sequential(nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.pool = nn.MaxPool2d(3, 2, 1) if pooled == "most" else nn.AvgPool2d(3, 1, 1) if pooled else nn.Identity()

    def forward(self, x):
        y = self.project(self.pool(self.depthwise(self.expand(x))))
        return y + x if y.shape == x.shape else y


# channels, hidden, taps, stride, dilation, padding, pooled; batch, height, width
CASES = [
    ((16, 96, 3, 1, 1, 1, ""), (1, 28, 28)),
    ((24, 144, 3, 2, 1, 1, ""), (1, 57, 31)),
    ((5, 37, 5, 1, 1, 2, ""), (2, 29, 26)),
    ((8, 40, 5, 2, 2, 3, "most"), (1, 41, 64)),
    ((12, 48, 3, 1, 2, 2, "mean"), (3, 23, 21)),
    ((16, 64, 7, 1, 1, 3, ""), (1, 24, 24)),
    ((16, 100, 3, 1, 1, 0, "most"), (1, 33, 20)),
]


def make(case):
    model = Inverted(*case[0])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
    batch, height, width = case[1]
    return model.eval(), torch.randn(batch, case[0][0], height, width)


def compare(model, x, tol, dynamic=False, compiled=None):
    if compiled is None:
        compiled = torch.compile(model, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})
    with torch.no_grad():
        assert_same(compiled(x), model(x), copy.deepcopy(model).double()(x.double()), tol)
    return compiled


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prepared", [True, False])
def test_blocks_are_as_in_eager(case, prepared):
    model, x = make(case)
    options = {"fallback": "raise"} | ({} if prepared else {"prepare_memory": 0})
    compare(model, x, 1e-4, compiled=torch.compile(model, backend="kiln", dynamic=False, options=options))


@pytest.mark.parametrize("case", CASES[:5])
def test_blocks_of_bfloat16(case):
    model, x = make(case)
    compare(model.bfloat16(), x.bfloat16(), 3e-2)


def test_sizes_that_change():
    model, x = make(CASES[1])
    compiled = compare(model, x, 1e-4, dynamic=True)
    for height, width in ((40, 57), (61, 33)):
        compare(model, torch.randn(1, 24, height, width), 1e-4, compiled=compiled)


def test_images_that_lie_by_channels():
    model, x = make(CASES[0])
    compare(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), 1e-4)


@pytest.mark.parametrize("case", CASES[:4])
def test_gradients(case):
    model, x = make(case)
    results = []
    for dtype, backend in ((torch.float64, "eager"), (torch.float32, "eager"), (torch.float32, "kiln")):
        mine = copy.deepcopy(model).to(dtype).train()
        options = {"fallback": "raise"} if backend == "kiln" else None
        run = torch.compile(mine, backend=backend, dynamic=False, options=options)
        out = run(x.to(dtype))
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape))
        results.append([out.detach()] + [p.grad for p in mine.parameters()])
    assert_same(results[2], results[1], results[0], 1e-3)
