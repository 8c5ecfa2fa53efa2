"""Random operators are native: their distribution, and what repeats them."""

import math

import pytest
import torch

import kiln_torch

F = torch.nn.functional
N = 40_000


def compiled(fn, **options):
    kiln_torch.reset()
    return torch.compile(
        fn, backend="kiln", dynamic=False, options={"fallback": "raise", **options}
    )


def drawn(fn, *args, seed=0, **options):
    run = compiled(fn, **options)
    torch.manual_seed(seed)
    out = run(*args)
    # One number a run, the seed, is torch's; all others are made here.
    assert set(kiln_torch.stats()["library_ops"]) == {"aten.randint.low"}
    return out


def distance(sample, cumulative):
    """Kolmogorov's and Smirnov's, over sqrt(n): above 1.95 once in a thousand samples."""
    x = sample.double().sort()[0]
    p, steps = cumulative(x), torch.arange(len(x) + 1, dtype=torch.float64) / len(x)
    return float(torch.maximum(p - steps[:-1], steps[1:] - p).max()) * math.sqrt(len(x))


def of_normal(x):
    return (1 + torch.erf(x / math.sqrt(2))) / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous_distributions(dtype):
    x = torch.zeros(200, N // 200, dtype=dtype)

    def fn(x):
        return (
            torch.rand(N, dtype=dtype), torch.rand_like(x), torch.randn(N, dtype=dtype),
            torch.empty_like(x).uniform_(-2, 5), torch.empty_like(x).normal_(3, 2),
            torch.empty_like(x).exponential_(1.5),
        )  # fmt: skip

    rand, like, randn, uniform, normal, exponential = (t.flatten() for t in drawn(fn, x))
    assert rand.dtype == dtype and rand.min() >= 0 and rand.max() < 1
    assert exponential.min() > 0
    for sample, cumulative in (
        (rand, lambda x: x), (like, lambda x: x), (randn, of_normal),
        (uniform, lambda x: (x + 2) / 7), (normal, lambda x: of_normal((x - 3) / 2)),
        (exponential, lambda x: 1 - torch.exp(-1.5 * x)),
    ):  # fmt: skip
        assert distance(sample, cumulative) < 1.95
    # Neither a stream's neighbours nor two streams have to do with each other.
    for a, b in ((rand[:-1], rand[1:]), (rand, like), (randn[:-1], randn[1:])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_stay_below_one(dtype):
    sample = drawn(lambda: torch.rand(N, dtype=dtype))
    assert sample.dtype == dtype and sample.min() >= 0 and sample.max() < 1
    assert abs(sample.float().mean() - 0.5) < 0.01


def test_integers():
    def fn():
        return torch.randint(-3, 4, (N,)), torch.randint(2**40, (N,)), torch.randint(7, (N,))

    small, large, seven = drawn(fn)
    counts = torch.bincount(small + 3, minlength=7)
    assert len(counts) == 7
    assert float(((counts - N / 7) ** 2 / (N / 7)).sum()) < 22.5  # once in a thousand
    assert large.min() >= 0 and large.max() < 2**40
    assert distance(large.double() / 2**40, lambda x: x) < 1.95
    assert set(seven.tolist()) == set(range(7))


def test_choices():
    p = torch.linspace(0, 1, 5).repeat(N // 5)

    def fn(p):
        return torch.bernoulli(p), torch.bernoulli(torch.zeros(N), 0.3), p.bernoulli(0.0)

    by_tensor, by_number, never = drawn(fn, p)
    means = by_tensor.view(-1, 5).mean(0)
    assert means[0] == 0 and means[4] == 1
    assert (means - torch.linspace(0, 1, 5)).abs().max() < 0.03
    assert abs(by_number.mean() - 0.3) < 0.01
    assert never.sum() == 0


def model(x):
    return F.dropout(torch.randn_like(x) + x, 0.25).cumsum(-1), torch.rand(33, 7), x.bernoulli(0.5)


def test_a_seed_repeats_a_run_and_runs_differ():
    x = torch.randn(33, 129)
    run = compiled(model)
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    again = run(x)
    for a, b, c in zip(first, again, second, strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)


def test_threads_and_fusion_change_nothing():
    x = torch.randn(33, 129)
    alone = drawn(lambda x: torch.randn_like(x), x, seed=5)
    for threads in (1, 2, 3):
        fused = drawn(lambda x: (torch.randn_like(x) * x.exp()).sum(-1), x, seed=5, threads=threads)
        torch.testing.assert_close(fused, (alone * x.exp()).sum(-1))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropouts_gradient_has_the_masks_of_its_forward(p):
    x = torch.rand(64, 500) + 0.5
    x.requires_grad_()
    run = compiled(lambda x: F.dropout(x, p) * 3)
    torch.manual_seed(0)
    out = run(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    stays = out != 0
    scale = 0 if p == 1 else 3 / (1 - p)
    torch.testing.assert_close(out, x * stays * scale)
    torch.testing.assert_close(grad, stays * torch.tensor(float(scale)))
    assert abs(stays.float().mean() - (1 - p)) < 0.02


def test_dropout_that_does_not_train_is_nothing():
    x = torch.randn(5, 6)
    assert torch.equal(compiled(lambda x: F.dropout(x, 0.5, training=False) + 0)(x), x)


# torch runs such an operator again from its generator's state: it stays torch's own.
def test_activation_checkpoints_draw_the_same_again():
    x = torch.randn(8, 40, requires_grad=True)

    def part(x):
        return F.dropout(x.sin(), 0.5) * x

    def fn(x):
        return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sum()

    loss = compiled(fn)
    torch.manual_seed(1)
    value = loss(x)
    (grad,) = torch.autograd.grad(value, x)
    # d/dx (mask * 2 sin(x) x): where the mask is, and nowhere else.
    expected = 2 * (x.cos() * x + x.sin())
    stays = grad != 0
    torch.testing.assert_close(grad, expected * stays)
    torch.testing.assert_close(value, (2 * x.sin() * x * stays).sum())


# As what the server declines: it is called as eager calls it, without the seed that the graph has.
def test_what_has_no_lowering_stays_torchs():
    p = torch.rand(40)

    def fn(p):
        wide = torch.randint(-(2**63), 2**63 - 1, (5,))
        return torch.multinomial(p, 9), F.rrelu(p - 0.5, training=True), wide

    run = compiled(fn)
    torch.manual_seed(3)
    chosen, *_ = run(p)
    assert kiln_torch.stats()["fallbacks"] == []
    assert len(chosen) == 9
    torch.manual_seed(3)
    assert torch.equal(run(p)[0], chosen)


def test_eagers_numbers_are_an_option():
    x = torch.randn(33, 129)
    run = compiled(model, fallback_random=True)
    torch.manual_seed(3)
    actual = run(x)
    torch.manual_seed(3)
    expected = model(x)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)
