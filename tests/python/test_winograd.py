"""Convolutions of 3 x 3 taps whose weights do not change: by Winograd's method, with the errors of sums of
products, and without a number that eager has finite and we do not, or the other way round."""

import copy

import pytest
import torch
from compare import assert_same
from torch import nn

import kiln_torch

# Channels, channels of the result, padding; images, height, width.
CASES = [
    (64, 64, 1, 1, 56, 56),
    (128, 128, 1, 1, 28, 28),
    (256, 256, 1, 1, 14, 14),
    (32, 40, 1, 2, 11, 13),
    (48, 64, 0, 3, 17, 21),
    (64, 96, 2, 1, 12, 30),
    (96, 33, (0, 1), 1, 64, 9),
    (40, 72, (2, 0), 2, 9, 70),
    (64, 64, 1, 1, 7, 128),
]
ARCHITECTURES = ["native", "x86-64-v3"]


class Block(nn.Module):
    """A convolution with all that may follow it: a norm, a residual link, an activation."""

    def __init__(self, channels, out, padding, stride=1, dilation=1, groups=1):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, stride, padding, dilation, groups, bias=False)
        self.norm = nn.BatchNorm2d(out)
        nn.init.normal_(self.norm.running_mean, std=0.3)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x):
        y = self.norm(self.conv(x))
        return torch.relu(y + x if y.shape == x.shape else y)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(7)


def compiled(module, dynamic=False, **options):
    return torch.compile(module, backend="kiln", dynamic=dynamic, options={"fallback": "raise", **options})


def by_planes(module, *args):
    """Whether weights of the module's convolutions lie prepared with their 16 planes beside the 9 taps."""
    weights = sum(p.numel() for p in module.parameters() if p.dim() == 4)
    call = compiled(module)
    before = kiln_torch.stats()["prepared"]["bytes"]
    with torch.no_grad():
        call(*args)
    return kiln_torch.stats()["prepared"]["bytes"] - before > 4 * weights * 2


def check(call, module, x):
    with torch.no_grad():
        actual, expected = call(x), module(x)
        assert_same(actual, expected, copy.deepcopy(module).double()(x.double()))
    return actual


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_are_as_exact_as_eagers(case, arch):
    channels, out, padding, images, height, width = case
    module, x = nn.Conv2d(channels, out, 3, padding=padding).eval(), torch.randn(images, channels, height, width)
    actual = check(compiled(module, arch=arch), module, x)
    reference = copy.deepcopy(module).double()(x.double())

    def error(y):
        return (y.double() - reference).square().mean().sqrt()

    assert error(actual) <= 3 * error(module(x))
    block = Block(channels, out, padding).eval()
    check(compiled(block, arch=arch), block, x)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_these_are_by_planes(case):
    channels, out, padding, images, height, width = case
    module = nn.Conv2d(channels, out, 3, padding=padding).eval()
    assert by_planes(module, torch.randn(images, channels, height, width))


@pytest.mark.parametrize(
    "arguments",
    [
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"channels": 3},
        {"height": 7, "width": 7},
        {"width": 300},
        {"layout": torch.channels_last},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_others_are_not(arguments):
    sizes = {"channels": 64, "height": 20, "width": 20, "layout": torch.contiguous_format, "dtype": torch.float32}
    given = {**sizes, **arguments}
    kept = {name: value for name, value in given.items() if name not in sizes}
    module = Block(given["channels"], 64, 1, **kept).eval().to(given["dtype"])
    x = torch.randn(1, given["channels"], given["height"], given["width"], dtype=given["dtype"])
    x = x.to(memory_format=given["layout"])
    assert not by_planes(module, x)
    check(compiled(module), module, x)


def test_parts_of_images_and_of_weights():
    module, x = Block(64, 64, 1).eval(), torch.randn(2, 80, 23, 25)

    def call(x):
        return module(x[:, 5:69, 1:22, 3:])

    with torch.no_grad():
        assert_same(compiled(call)(x), call(x), copy.deepcopy(module).double()(x.double()[:, 5:69, 1:22, 3:]))
        padded = nn.Sequential(nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(80, 64, 3, bias=False)).eval()
        check(compiled(padded), padded, x)


def test_any_number_of_images_and_any_size():
    module = Block(64, 64, 1).eval()
    call = compiled(module, dynamic=True)
    for images, height, width in ((1, 20, 20), (3, 20, 20), (5, 20, 20), (2, 31, 22), (4, 9, 40)):
        check(call, module, torch.randn(images, 64, height, width))


def test_a_changed_weight_counts():
    module, x = Block(64, 64, 1).eval(), torch.randn(1, 64, 20, 20)
    call = compiled(module)
    first = check(call, module, x)
    with torch.no_grad():
        module.conv.weight.mul_(-1.5)
    assert not torch.allclose(check(call, module, x), first)


# Near the greatest number a transform overflows, and what it is of does not.
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38, -3e38])
def test_what_is_not_finite_stays_where_it_is(value, arch):
    module = nn.Conv2d(64, 40, 3, padding=1).eval()
    is_number = value == value and abs(value) < float("inf")
    with torch.no_grad():
        if not is_number:
            module.weight[3, :, 1] = 0  # a product with an infinity is none
        module.weight[5] = module.weight[5].abs()
    call = compiled(module, arch=arch)
    places = [(0, 0, 0, 0), (0, 63, 22, 25), (1, 17, 11, 9), (1, 17, 11, 10), (2, 8, 3, 25), (2, 9, 12, 12)]
    for chosen in ([place] for place in places), (places,):
        for each in chosen:
            x = torch.randn(3, 64, 23, 26)
            for place in each:
                x[place] = value
            with torch.no_grad():
                actual, expected = call(x), module(x)
            for test in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(test(actual), test(expected)), (each, test)
            finite = torch.isfinite(expected)
            # Errors are those of the tile's greatest product, which a place's own tap may be far below.
            close = 1e-3 if is_number else 1e-5
            torch.testing.assert_close(actual[finite], expected[finite], rtol=close, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value):
    module, x = nn.Conv2d(64, 40, 3).eval(), torch.rand(1, 64, 20, 22) + 0.5
    with torch.no_grad():
        module.weight[7, 5, 2, 0] = value
        actual, expected = compiled(module)(x), module(x)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert torch.equal(torch.isfinite(actual), torch.isfinite(expected))


def test_both_ways_follow_when_schedules_are_timed():
    module, x = Block(64, 64, 1).eval(), torch.randn(1, 64, 20, 20)
    call = torch.compile(module, backend="kiln", mode="max-autotune")
    for _ in range(4):
        check(call, module, x)


def test_memory_for_weights_is_what_it_may_be():
    module, x = Block(64, 64, 1).eval(), torch.randn(1, 64, 20, 20)
    nine = 4 * module.conv.weight.numel()
    for memory, most in ((0, 0), (nine + 4096, 2 * nine), (4 * nine, 4 * nine)):
        torch._dynamo.reset()
        before = kiln_torch.stats()["prepared"]["bytes"]
        call = compiled(module, prepare_memory=memory)
        check(call, module, x)
        assert kiln_torch.stats()["prepared"]["bytes"] - before <= most
