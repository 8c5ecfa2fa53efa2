"""Numbers that follow from sizes: integers by way of floats, floats, comparisons; sizes 0 and 1."""

import math

import pytest
import torch
from compare import assert_same

import kiln_torch

F = torch.nn.functional


class Features(torch.nn.Module):
    """Strided convolutions one after another over a length, as in speech models."""

    def __init__(self):
        super().__init__()
        shapes = ((1, 8, 10, 5), (8, 8, 3, 2), (8, 8, 3, 2), (8, 4, 2, 2))
        self.layers = torch.nn.ModuleList(torch.nn.Conv1d(*shape) for shape in shapes)

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


def check(fn, examples, dynamic=True):
    """Each example through one compiled `fn` against eager; no graph falls back."""
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    with torch.no_grad():
        for example in examples:
            assert_same(compiled(*example), fn(*example))
    assert kiln_torch.stats()["fallbacks"] == []


# One graph for every length from 12 to 30: sizes of 0 and 1, which torch guards on, are no results.
ONE_GRAPH = {
    "int of half": lambda x: x[: int(x.shape[0] / 2)] + 1,
    "int of a product": lambda x: x[: int(x.shape[0] * 0.75)] + 1,
    "floor": lambda x: x[: math.floor(x.shape[0] / 3)] + 1,
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 3)] + 1,
    "trunc": lambda x: x.new_ones(math.trunc((3 - x.shape[0]) / 2) + 20),
    "round": lambda x: x[: round(x.shape[0] / 4)] + 1,
    "float divisor": lambda x: x[: math.trunc(x.shape[0] / 2.5)] + 1,
    "abs": lambda x: x.new_ones(abs(9 - x.shape[0])) + 1,
    "shift": lambda x: x.new_ones(x.shape[0] << 1) + 1,
    "sym_min": lambda x: x[: torch.sym_min(x.shape[0], 5)] + 1,
    "sym_ite": lambda x: x.new_ones(torch.sym_ite(x.shape[0] * 2 > 31, 2, 3)) * 2,
    "bool": lambda x: x * torch.full((), x.shape[0] * 3 >= 45),
    "equality": lambda x: x * torch.full((), x.shape[0] * 2 == 30),
    "power": lambda x: x * x.shape[0] ** 0.5,
    "quotient": lambda x: x / x.shape[0] + x.shape[0] / 7,
    "reciprocal": lambda x: x.clamp(max=1.0 / x.shape[0]),
    "alpha": lambda x: torch.add(x, x, alpha=x.shape[0] / 3),
    "exponent": lambda x: x.abs() ** (1 / x.shape[0]),
    "full": lambda x: torch.full((3,), x.shape[0] / 3),
    "comparison": lambda x: x > x.shape[0] / 10,
    "integer tensor": lambda x: torch.arange(6) * (x.shape[0] / 3),
    "16 bits": lambda x: x.bfloat16() * x.shape[0] ** 0.5,
    "library step": lambda x: F.leaky_relu(x, 1 / x.shape[0]),
    "float output": lambda x: (x + 1, x.shape[0] / 2),
    "bool output": lambda x: (x + 1, x.shape[0] % 4 == 2),
}


def test_numbers_that_follow_from_sizes_are_right_for_every_size():
    # In one graph: each by itself would compile as often.
    def all_of(x):
        return [fn(x) for fn in ONE_GRAPH.values()]

    compiled = torch.compile(all_of, backend="kiln", dynamic=True)
    for length in (12, 14, 15, 16, 17, 30):
        x = torch.randn(length, 3)
        for name, actual, expected in zip(ONE_GRAPH, compiled(x), all_of(x), strict=True):
            if not isinstance(expected, tuple):
                actual, expected = (actual,), (expected,)
            for a, e in zip(actual, expected, strict=True):
                assert type(a) is type(e), f"{name} of {length}"
                torch.testing.assert_close(a, e, msg=lambda m, n=name, s=length: f"{n} of {s}: {m}")
    assert kiln_torch.stats()["fallbacks"] == []
    assert kiln_torch.stats()["graphs"] <= 2


@pytest.mark.parametrize(
    "fn", [lambda x: x[: int(x.shape[0] * 0.7)] + 1, lambda x: x * round(x.shape[0] / 3, 2)]
)
def test_what_has_no_exact_expression_is_captured_anew_for_another_value(fn):
    check(fn, [(torch.randn(n, 2),) for n in (10, 11, 13, 20)])
    assert kiln_torch.stats()["graphs"] >= 3


def test_a_float_argument_that_changes_compiles_once():
    check(lambda x, s: (x * s, x + s / 2), [(torch.randn(5), s) for s in (0.1, 0.7, 3.3)])
    assert kiln_torch.stats()["graphs"] == 1


@pytest.mark.parametrize("dynamic", [True, None])
def test_strided_convolutions_over_a_symbolic_length(dynamic):
    torch.manual_seed(0)
    lengths = ((2, 200), (3, 333), (4, 401), (1, 150))
    check(Features().eval(), [(torch.randn(b, 1, n),) for b, n in lengths], dynamic)


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_of_one_and_zero_equal_eager(dynamic):
    def fn(x):
        return x.sum(0), x.softmax(1), x[:, None] + x, torch.cat([x, x]).relu()

    check(fn, [(torch.randn(n, 3),) for n in (4, 6, 1, 0, 9)], dynamic)


def test_marked_dimensions_of_one_and_zero_equal_eager():
    compiled = torch.compile(lambda x: (x * 2).sum(1), backend="kiln")
    for n in (5, 3, 1, 0):
        x = torch.randn(n, 4)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert_same(compiled(x), (x * 2).sum(1))
    assert kiln_torch.stats()["fallbacks"] == []


SIZES_WITHOUT_A_VALUE = {
    "rows": (lambda x: (x * 2).softmax(-1) * x.shape[0], 0),
    "columns": (lambda x: x.softmax(1) - x.sum(1, keepdim=True), 1),
    "taken apart": (lambda x: x.view(-1, 2, 2).mT.reshape(x.shape[0], 4).mean(0), 0),
}


def weighted_step(fn, x):
    x = x.clone().requires_grad_()
    y = fn(x)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    return y, x.grad


@pytest.mark.parametrize("name", SIZES_WITHOUT_A_VALUE)
def test_a_size_that_torch_traces_without_a_value_is_that_of_the_call(name):
    fn, dimension = SIZES_WITHOUT_A_VALUE[name]
    compiled = torch.compile(lambda x: fn(x), backend="kiln", fullgraph=True)
    for n in (5, 1, 9, 0, 64):
        x = torch.randn(*((3, n) if dimension else (n, 4)))
        exact = weighted_step(fn, x.double())
        marked = x.clone().requires_grad_()
        torch._dynamo.decorators.mark_unbacked(marked, dimension)
        y = compiled(marked)
        (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum().backward()
        assert_same((y, marked.grad), weighted_step(fn, x), exact)
    stats = kiln_torch.stats()
    assert stats["graphs"] >= 2 and stats["fallbacks"] == []


def test_gradients_through_floats_that_follow_from_sizes():
    def loss(x, w):
        return ((x @ w) * x.shape[0] ** -0.5).tanh().sum() / x.shape[0]

    compiled = torch.compile(loss, backend="kiln", dynamic=True)
    for n in (4, 7, 9):
        x, w = torch.randn(n, 3), torch.randn(3, 2, requires_grad=True)
        (expected,) = torch.autograd.grad(loss(x, w), w)
        (actual,) = torch.autograd.grad(compiled(x, w), w)
        torch.testing.assert_close(actual, expected)
    assert kiln_torch.stats()["fallbacks"] == []


def test_an_integer_argument_may_be_negative():
    """Unlike a size, it has no least value."""

    def fn(x, n):
        picked = x[max(n, 0) :] + 1
        return x * n + n // 2, x.roll(n) * (n % 3), picked, torch.arange(abs(n) + 1) * n, n + 1

    compiled = torch.compile(fn, backend="kiln")
    for n in (3, 4, 5, -1, -4, -7, 0, 1):
        x = torch.randn(7)
        assert_same(compiled(x, n), fn(x, n))
    assert kiln_torch.stats()["fallbacks"] == []


def test_a_size_divides_by_an_integer_argument_of_either_sign():
    def fn(x, n):
        length = x.shape[0]
        rounded = torch.full((6,), math.floor(length / n)) + math.ceil(length / n)
        return (
            x + length // n, x * (length % n), x > 7 // n, x.new_zeros(abs(length // n) + 1),
            x * ((length - 11) % n) - n // x.shape[1] + n % x.shape[1],
            rounded * 100 + math.trunc(length / n) - 7 * round((length - 11) / n),
        )

    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for n in (3, -2, 2, -7, 5, -1, -3, 12, -12):
        for length in (6, 9):
            x = torch.randn(length, 4)
            assert_same(compiled(x, n), fn(x, n))
    assert kiln_torch.stats()["fallbacks"] == []
    with pytest.raises(Exception, match="ZeroDivisionError|division"):
        compiled(x, 0)


@pytest.mark.parametrize("rounded", [math.floor, math.ceil, math.trunc, round])
def test_a_size_divided_by_a_negative_number_is_rounded_as_eager_does(rounded):
    def fn(x):
        return x * rounded(x.shape[0] / -3) + rounded(x.shape[0] / -2.5)

    check(fn, [(torch.randn(size),) for size in range(5, 16)])


def chunked_scan(x, size):
    """Running sums in chunks of `size`, the last one filled up, as linear attention has them."""
    x = F.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))
    return x.cumsum(-1), (x @ x.transpose(-1, -2)).amax(-1)


def test_a_size_that_a_guard_makes_one_is_one():
    lengths = (11, 70, 64, 130, 1)
    check(chunked_scan, [(torch.randn(2, 3, length), 64) for length in lengths])


def chunked_products(x, size):
    """What a chunk's states are and what they give, as state-space models have it."""
    x = F.pad(x.tanh(), (0, 0, 0, 0, 0, size - x.shape[1] % size))
    x = x.reshape(x.shape[0], -1, size, x.shape[2], x.shape[3])
    states = torch.einsum("bclhn,bclhp->bchpn", x * 2, x)
    return torch.einsum("bclhn,bchpn->bclhp", x, states.sin())


def chunked_step(fn, x):
    x = x.clone().requires_grad_()
    y = fn(x, 8)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    return y, x.grad


def test_what_the_backward_pass_gets_has_the_strides_that_torch_recorded():
    compiled = torch.compile(chunked_products, backend="kiln", dynamic=True)
    for batch, length in ((2, 11), (3, 14), (2, 30), (1, 9)):
        x = torch.randn(batch, length, 4, 6)
        exact = chunked_step(chunked_products, x.double())
        assert_same(chunked_step(compiled, x), chunked_step(chunked_products, x), exact)
    assert kiln_torch.stats()["fallbacks"] == []


def unfolded(x):
    """Patches of 2 x 2 of a strided picture as MobileViT has them, normalized along the 8 channels."""
    x = x[..., ::32, ::32] * 2
    half = math.ceil(x.shape[-1] / 2)
    x = x.reshape(8 * half, 2, half, 2).transpose(1, 2).reshape(1, 8, half * half, 4)
    return F.layer_norm(x.transpose(1, 3).reshape(4, half * half, -1), (8,))


def test_a_part_of_other_sizes_that_a_guard_makes_one_is_one():
    check(unfolded, [(torch.randn(1, 8, side, side),) for side in (64, 100, 50)])
