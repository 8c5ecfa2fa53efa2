"""Writes at positions that tensors hold are native, the same in every run, and eager's."""

import pytest
import torch

import kiln_torch

F = torch.nn.functional


def compiled(fn, **options):
    kiln_torch.reset()
    return torch.compile(
        fn, backend="kiln", dynamic=False, options={"fallback": "raise", **options}
    )


def check(fn, *args, tolerance=1e-5):
    expected = fn(*args)
    actual = compiled(fn)(*args)
    assert kiln_torch.stats()["library_ops"] == {}
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=True
    )


I = torch.tensor([[2, 0, 2, 4], [1, 1, 1, 1], [4, 3, 2, 1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_each_scatter_is_eagers(dtype):
    torch.manual_seed(0)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-6

    def numbers(*sizes):
        return (torch.randn(*sizes) * 5).to(dtype)

    x, v, rows = numbers(3, 5), numbers(3, 4), numbers(4, 5)
    i = torch.tensor([2, 0, 2, 1])

    def fn(x, v, w):
        columns = x + 1
        columns[:, i] = w[:3, :4]
        return (
            x.scatter_add(1, I, v) * 2, x.scatter(1, I, v), x.scatter(1, I, 3),
            x.scatter(0, I[:2] % 3, v), x.index_add(0, i, w, alpha=2), x.index_copy(0, i[:2], w[:2]),
            x.index_fill(1, i, 7), x.index_put((i,), w, accumulate=True),
            x.index_put((i - 3, i), w[:, 0]), columns, x.index_put((x < 1,), x.sum()),
            *(
                x.scatter_reduce(1, I, v, reduce, include_self=with_self)
                for reduce in ("sum", "prod", "mean", "amax", "amin")
                for with_self in (True, False)
            ),
        )  # fmt: skip

    check(fn, x, v, rows, tolerance=tolerance)


def test_gradients_of_reads_at_positions_are_native():
    torch.manual_seed(0)
    table, i = torch.randn(50, 16, requires_grad=True), torch.randint(0, 50, (7, 9))
    x = torch.randn(6, 8, requires_grad=True)
    j = torch.randint(0, 8, (6, 3))

    def loss(table, x):
        out = F.embedding(i, table, padding_idx=3).square().sum()
        return out + x.gather(1, j).exp().sum() + x[j[:, 0] % 6].sum() * 2

    expected = torch.autograd.grad(loss(table, x), (table, x))
    actual = torch.autograd.grad(compiled(loss)(table, x), (table, x))
    assert kiln_torch.stats()["library_ops"] == {}
    torch.testing.assert_close(actual, expected)


# Long chains of additions into few places: any other order than the index's shows.
def test_a_sum_has_one_order_whatever_the_threads():
    torch.manual_seed(0)
    i, v = torch.randint(0, 7, (20000,)), torch.randn(20000, 24)

    def fn(v):
        return torch.zeros(7, 24).index_add(0, i, v), torch.zeros(7).index_add(0, i, v[:, 0])

    expected = torch.zeros(7, 24)
    for row, value in zip(i.tolist(), v, strict=True):
        expected[row] += value
    for threads in (1, 2, 3):
        rows, single = compiled(fn, threads=threads)(v)
        assert torch.equal(rows, expected), threads
        assert torch.equal(single, expected[:, 0]), threads


def test_of_equal_places_the_last_value_counts():
    i, v = torch.tensor([1, 1, 0, 1]), torch.arange(4.0)
    assert compiled(lambda v: torch.zeros(3).index_put((i,), v))(v).tolist() == [2, 3, 0]
    assert compiled(lambda v: torch.zeros(3).scatter(0, i, v))(v).tolist() == [2, 3, 0]


@pytest.mark.parametrize("bad", [5, -1, 2**40])
def test_an_index_outside_raises(bad):
    i = torch.tensor([0, bad, 1])
    with pytest.raises(IndexError):
        compiled(lambda x, i: x.scatter(0, i, 1.0))(torch.zeros(5), i)
    with pytest.raises(IndexError):
        compiled(lambda x, i: x.index_add(0, i, torch.ones(3, 4)))(torch.zeros(5, 4), i)


def test_sizes_may_be_symbols():
    fn = torch.compile(
        lambda x, i, v: x.index_add(0, i, v).scatter_add(1, (i % 3)[:, None], v),
        backend="kiln", dynamic=True, options={"fallback": "raise"},
    )  # fmt: skip
    for rows, columns, values in ((5, 4, 9), (17, 6, 12)):
        values = min(values, rows)
        x, i = torch.randn(rows, columns), torch.randint(0, rows, (values,))
        v = torch.randn(values, columns)
        expected = x.index_add(0, i, v).scatter_add(1, (i % 3)[:, None], v)
        torch.testing.assert_close(fn(x, i, v), expected)


# Sizes, and the diagonal: its number and its two dimensions.
DIAGONALS = [
    ((4, 4), 0, 0, 1), ((5, 2), 0, 0, 1), ((2, 5), 2, 0, 1), ((5, 3), -3, 0, 1), ((5, 3), 7, 0, 1),
    ((3, 4, 5), 1, 2, 0), ((3, 4, 5), -1, 0, -1), ((0, 3), 0, 0, 1), ((2, 3, 1), 0, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "offset", "row", "column"), DIAGONALS)
def test_a_diagonal_is_replaced(sizes, offset, row, column):
    x = torch.randn(sizes)
    y = torch.randn(x.diagonal(offset, row, column).shape)
    check(lambda x, y: torch.diagonal_scatter(x, y * 2, offset, row, column) * 3, x, y)


def test_a_diagonal_is_written_in_place_at_sizes_that_change():
    def fn(x):
        y = x * 2
        y.diagonal(1).mul_(5)
        y.diagonal(0, 1, 0)[1:] += 3
        return y

    kiln_torch.reset()
    ours = torch.compile(fn, backend="kiln", dynamic=True, options={"fallback": "raise"})
    for sizes in ((3, 5), (4, 4), (6, 2)):
        x, y = (torch.arange(1.0, 1 + sizes[0] * sizes[1]).view(sizes).requires_grad_() for _ in "12")
        expected, actual = fn(x), ours(y)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        gradients = (torch.autograd.grad(out.square().sum(), at)[0] for out, at in ((actual, y), (expected, x)))
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert kiln_torch.stats()["library_ops"] == {}
