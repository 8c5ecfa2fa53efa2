"""Rounding, special values and long sums: what eager's numbers are, kiln's are."""

import math

import pytest
import torch

import kiln_torch

F = torch.nn.functional
INF, NAN = math.inf, math.nan


def compiled(fn):
    return torch.compile(fn, backend="kiln", dynamic=False, options={"fallback": "raise"})


def assert_bits_equal(actual, expected, inputs, what):
    """Equal with the sign of zeros; any NaN equals any other."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    same = actual == expected
    if expected.is_floating_point():
        same &= (expected != 0) | (actual.signbit() == expected.signbit())
        same |= actual.isnan() & expected.isnan()
    bad = (~same).nonzero().flatten()[:3]
    assert len(bad) == 0, f"{what} of {inputs[bad]}: {actual[bad]}, not {expected[bad]}"


# Of a tensor and a Python number. The number has another place in each of ATen's kernels: rounded
# to the tensor's type, or as it is.
WITH_NUMBER = {
    "eq": lambda x, s: x == s,
    "ne": lambda x, s: x != s,
    "lt": lambda x, s: x < s,
    "ge": lambda x, s: x >= s,
    "add": lambda x, s: x + s,
    "rsub": lambda x, s: s - x,
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "rdiv": lambda x, s: s / x,
    "floor_divide": lambda x, s: x // s,
    "div trunc": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "add alpha": lambda x, s: torch.add(x, 0.3, alpha=s),
    "clamp": lambda x, s: x.clamp(-abs(s), abs(s)),
    "where": lambda x, s: torch.where(x > 0, x, s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "fill": torch.full_like,
    "threshold": lambda x, s: F.threshold(x, s, 2 * s),
    "leaky_relu": F.leaky_relu,
    "hardtanh": lambda x, s: F.hardtanh(x, -abs(s), abs(s)),
    "hardshrink": F.hardshrink,
    "add rank 0": lambda x, s: x + torch.tensor(s),
    "lt rank 0": lambda x, s: x < torch.tensor(s, dtype=torch.float64),
    "mul rank 0": lambda x, s: x * torch.tensor(s, dtype=torch.float64),
    "rank 0 div": lambda x, s: torch.tensor(s) / x,
    "add int64": lambda x, s: x + torch.arange(1000, 1000 + len(x)),
    "lt int64": lambda x, s: x < torch.arange(1000, 1000 + len(x)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_floats_and_numbers_round_as_eager_for_every_value(dtype):
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    numbers = (0.1, -1 / 3, 1000.3, 1e-8)

    def all_of(x):
        return [op(x, s) for op in WITH_NUMBER.values() for s in numbers]

    names = [f"{name} {s}" for name in WITH_NUMBER for s in numbers]
    for name, actual, expected in zip(names, compiled(all_of)(values), all_of(values), strict=True):
        assert_bits_equal(actual, expected, values, name)
    assert kiln_torch.stats()["library_ops"] == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_remainders_and_powers_of_16_bit_floats_take_the_rounded_number(dtype):
    # Far from where ATen's vectorized fmod gives up, and where powers are close.
    values = torch.linspace(-50, 50, 4001).to(dtype)

    def all_of(x):
        return [torch.remainder(x, 0.1), torch.fmod(x, 0.1), x.abs() ** 0.1, 1.1**x]

    for actual, expected in zip(compiled(all_of)(values), all_of(values), strict=True):
        torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("rows", [1, 3, 6, 40])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("is_parameter", [False, True])
def test_products_of_float16_are_rounded_once(is_parameter, transposed, rows):
    """Sums are float32: what is too large on the way may be finite in the end; subnormal numbers
    count, in operands and in results."""
    x = torch.zeros(max(rows, 6), 70, dtype=torch.float16)
    x[0] = 300  # the sum is too large
    x[1, :35], x[1, 35:] = 300, -300  # a part of it is
    x[2, 0] = 2.0**-24
    x[3, :3] = 3 * 2.0**-24
    x[4, 0], x[5, 0] = NAN, INF
    weight = torch.zeros(70, 66, dtype=torch.float16)
    weight[:, 0] = 300
    weight[0, 1:], weight[1:, 1:] = 1, 0.25
    given = weight.t().contiguous().t() if transposed else weight
    call = compiled(torch.matmul)
    if is_parameter:
        parameter = torch.nn.Parameter(given, requires_grad=False)
        call = compiled(lambda x: x @ parameter)
    for begin in range(0, len(x), rows):
        part = x[begin : begin + rows]
        actual = call(part) if is_parameter else call(part, given)
        expected = (part.double() @ weight.double()).half()
        expected = expected.flatten()
        assert_bits_equal(actual.flatten(), expected, expected, f"rows from {begin}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hypot_neither_overflows_nor_underflows(dtype):
    large, small = (1e19, 1e-30) if dtype == torch.float32 else (1e200, 1e-200)
    x = torch.tensor([large, small, 0, -0.0, 3, INF, NAN, -INF, NAN, large, 1e-40], dtype=dtype)
    y = torch.tensor([large, small, small, 0, 4, NAN, INF, 1, 1, small, 1e-40], dtype=dtype)
    actual = compiled(torch.hypot)(x, y)
    torch.testing.assert_close(actual, torch.hypot(x, y), rtol=1e-6, atol=0, equal_nan=True)


def test_zeros_keep_their_sign_as_in_eager():
    x = torch.tensor([0.0, -0.0, NAN, INF, -INF, 1.0, -1.0])

    def all_of(x):
        results = [x.relu(), F.relu6(x), x.clamp(min=0), x.clamp(max=0), F.elu(x, alpha=-0.7)]
        return [*results, torch.fmax(x, -x), torch.fmin(x, -x), F.hardtanh(x, 0.0, 1.0)]

    for i, (actual, expected) in enumerate(zip(compiled(all_of)(x), all_of(x), strict=True)):
        assert_bits_equal(actual, expected, x, f"result {i}")


def test_casts_of_what_does_not_fit_are_eagers():
    x = torch.tensor([-2147483649.0, 4294967297.0, -1.0, 256.0, -129.0, 2.9, -2.9, 1e10])
    targets = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    for source in (torch.float32, torch.float64):
        given = x.to(source)

        def casts(x):
            return [x.to(target) for target in targets]

        for actual, expected in zip(compiled(casts)(given), casts(given), strict=True):
            assert_bits_equal(actual, expected, given, f"{source} to {expected.dtype}")


def test_addcdiv_multiplies_by_the_value_first():
    x, y = torch.tensor([1e-45, 3e38, 2e38]), torch.tensor([0.0, 1e-3, 0.5])

    def divided(x, y):  # Dynamo rewrites torch.addcdiv.
        return torch.ops.aten.addcdiv.default(x, x, y, value=1e-3)

    torch.testing.assert_close(compiled(divided)(x, y), divided(x, y), equal_nan=True)


# name: function, sizes of its argument
LONG_SUMS = {
    "rows": (lambda x: x.sum(0), (300_000, 4)),
    "columns": (lambda x: x.sum(1), (4, 300_000)),
    "all": (lambda x: x.sum(), (600_000,)),
    "outer and inner": (lambda x: x.sum((0, 2)), (20_000, 8, 7)),
    "strided": (lambda x: x[:, ::3].mean(0), (100_000, 9)),
    "scalars": (lambda x: x.sum(0), (100_000, 1)),
    "variance": (lambda x: x.var(0), (100_000, 8)),
    "product": (lambda x: x @ x.t(), (16, 50_000)),
    "16 bits": (lambda x: x.bfloat16().sum(0, dtype=torch.float32), (100_000, 8)),
}


@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_float_sums_are_as_accurate_as_eagers(name):
    fn, sizes = LONG_SUMS[name]
    x = torch.rand(sizes) + (3 if name == "variance" else 0)
    exact = fn(x.double() if name != "16 bits" else x.bfloat16().double())

    def error(result):
        return ((result.double() - exact) / exact).abs().mean().item()

    assert error(compiled(fn)(x)) <= 2 * error(fn(x)) + torch.finfo(torch.float32).eps


def test_long_sums_of_symbolic_length_are_accurate():
    fn = torch.compile(lambda x: (x.sum(0), x.sum(1)), backend="kiln", dynamic=True)
    for sizes in ((3, 5), (100_000, 6), (6, 100_000)):
        x = torch.rand(sizes)
        for result, dim in zip(fn(x), (0, 1), strict=True):
            torch.testing.assert_close(result.double(), x.double().sum(dim), rtol=2e-6, atol=0)
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("shape", [(64, 512, 7, 7), (2, 64, 56, 56)])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_variances_keep_their_digits_beside_a_large_mean(shape, mean):
    x = torch.randn(shape) + mean
    variance = torch.compile(lambda x: x.var([0, 2, 3]), backend="kiln", dynamic=False)(x)
    expected = x.double().var([0, 2, 3])
    assert ((variance - expected).abs() / expected).max() < 9e-7


def test_variances_of_what_has_none_are_torchs():
    rows = [[1e30, -1e30, 3e30], [float("inf"), 1, 2], [float("nan"), 1, 2], [1e4, 1e4, 1e4]]
    x = torch.tensor(rows)
    compiled = torch.compile(lambda x: x.var(1), backend="kiln", dynamic=False)
    torch.testing.assert_close(compiled(x), x.var(1), equal_nan=True)


NORMS = {
    "layer": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
    "layer alone": lambda x, w, b: F.layer_norm(x, (x.shape[-1],)),
    "layer over two": lambda x, w, b: F.layer_norm(x, x.shape[-2:]) * w + b,
    "group": lambda x, w, b: F.group_norm(x.transpose(1, 2), 4, w, b),
    "batch": lambda x, w, b: F.batch_norm(x.transpose(1, 2), None, None, w, b, training=True),
    "rms": lambda x, w, b: F.rms_norm(x, (x.shape[-1],), w) + b,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", NORMS)
def test_norms_whose_statistics_are_kept_are_as_accurate_as_eagers(name, dtype):
    """A mean kept for the backward pass in 16 bits is not the one that a row is normalized with."""
    x = (torch.randn(3, 7, 32) * 0.05 + 3).to(dtype)
    w, b = (torch.randn(32) * 0.1 + 1).to(dtype), torch.randn(32).to(dtype)

    def run(fn, *given):
        given = [value.clone().requires_grad_() for value in given]
        y = fn(*given)
        (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
        return [y.detach(), *(value.grad for value in given if value.grad is not None)]

    exact = run(NORMS[name], x.double(), w.double(), b.double())
    ours, theirs = run(compiled(NORMS[name]), x, w, b), run(NORMS[name], x, w, b)
    for actual, expected, reference in zip(ours, theirs, exact, strict=True):
        least = torch.finfo(dtype).eps * reference.abs().max()
        error, allowed = (actual - reference).abs().max(), (expected - reference).abs().max()
        assert error <= 2.5 * allowed + least
