"""Reads at positions that tensors hold: what eager refuses is refused, and results lie as eager's."""

import inspect
import math

import pytest
import torch
from compare import assert_same

import kiln_torch

F = torch.nn.functional


def compiled(fn, dynamic=False):
    torch._dynamo.reset()
    kiln_torch.reset()
    return torch.compile(fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})


def check(fn, *args, dynamic=False):
    expected = fn(*args)
    actual = compiled(fn, dynamic)(*args)
    assert kiln_torch.stats()["library_ops"] == {}
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_stride=True)


# By name: the operator, of a tensor [n, 3] and three indices into its n rows.
ROWS = {
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i.expand(2, 3)),
    "index": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "scatter": lambda x, i: x.scatter(0, i.expand(1, 3), x),
    "scatter_add": lambda x, i: x.scatter_add(0, i.expand(1, 3), x),
    "index_put": lambda x, i: x.index_put((i,), x[0] + 1),
    "accumulating index_put": lambda x, i: x.index_put((i,), x[0] + 1, accumulate=True),
    "index_add": lambda x, i: x.index_add(0, i, x[:1].expand(3, 3)),
    "index_fill": lambda x, i: x.index_fill(0, i, 7.0),
}
WRAPS = {"index", "index_put", "accumulating index_put", "index_fill"}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("rows", [1, 4])
def test_an_index_outside_is_an_error(name, rows):
    fn = compiled(lambda x, i: ROWS[name](x * 2, i) + 1)
    x = torch.arange(3.0 * rows).view(rows, 3)
    good = torch.tensor([0, rows - 1, 0])
    torch.testing.assert_close(fn(x, good), ROWS[name](x * 2, good) + 1)
    for bad in (rows, 5, -1 - rows, -1):
        i = torch.tensor([0, bad, 0])
        if bad == -1 and name in WRAPS:
            torch.testing.assert_close(fn(x, i), ROWS[name](x * 2, i) + 1)
            continue
        with pytest.raises(IndexError):
            fn(x, i)
    torch.testing.assert_close(fn(x, good), ROWS[name](x * 2, good) + 1)


@pytest.mark.parametrize("name", ["index_select", "index", "embedding", "index_add"])
def test_so_it_is_where_a_size_turns_out_to_be_1(name):
    fn = compiled(lambda x, i: ROWS[name](x * 2, i) + 1, dynamic=True)
    for rows in (4, 3):
        fn(torch.randn(rows, 3), torch.tensor([0, 1, 0]))
    with pytest.raises(IndexError):
        fn(torch.randn(1, 3), torch.tensor([0, 1, 0]))
    with pytest.raises(IndexError):
        fn(torch.randn(5, 3), torch.tensor([0, 5, 0]))


# Tensors [6, 3] whose element does not depend on the row, or is not read for every row.
SOURCES = {
    "expanded": lambda x: x[0].expand(6, 3),
    "repeated": lambda x: x[0] * torch.ones(6, 1),
    "padded": lambda x: F.pad(x[:4], [0, 0, 1, 1]),
    "joined": lambda x: torch.cat([x[:2] * 2, x[2:6] + 1]),
    "constant": lambda x: x.new_ones(6, 3),
    "counted": lambda x: torch.arange(18.0).view(6, 3),
    "indexed": lambda x: x[:, torch.tensor([2, 1, 0])],
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_index_is_checked_whatever_computes_what_it_reads(name):
    def fn(x, i):
        source = SOURCES[name](x)
        return source.index_select(0, i) + 1, source[i.view(3, 1), torch.arange(3)]

    x = torch.randn(6, 3)
    check(fn, x, torch.tensor([0, 5, 2]))
    run = compiled(fn)
    for bad in (6, 100, -1):
        with pytest.raises(IndexError):
            run(x, torch.tensor([0, bad, 2]))


def test_results_lie_in_memory_as_eagers():
    i, j = torch.tensor([1, 0, 1]), torch.tensor([[0], [1]])

    def fn(x, i, j):
        t, u = x.transpose(0, 1), x.permute(2, 0, 1)
        return (
            t[:, i], t[i], u[:, :, i], u[i, :, j], u[:, i, j], u[:, j], u[j, j], x[:, ::2][:, i],
            x[:1].expand(4, 4, 5).permute(2, 1, 0)[:, i], (u + 1)[:, i], u.flip(0)[j],
            u.index_select(1, i), u.gather(0, j.view(1, 2, 1)), F.embedding(i, x[0].t()),
        )  # fmt: skip

    check(fn, torch.randn(3, 4, 5), i, j)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_into_a_view_leaves_the_whole_as_it_lay(dynamic):
    """So that it is viewed as the whole again."""

    def fn(x, y):
        part = x.view(3, 2, 7).transpose(0, 2)[1]
        part.masked_fill_(part > 0, -1)
        other = y.view(3, 2, 7).movedim(2, 0)[2]
        other.copy_(other.sin().t().contiguous().t())
        return x * 2, part, y.view(-1)

    theirs, ours = ([torch.randn(6, 7), torch.arange(42.0).view(6, 7)] for _ in range(2))
    ours[0].copy_(theirs[0])
    actual, expected = torch.compile(fn, backend="kiln", dynamic=dynamic)(*ours), fn(*theirs)
    torch.testing.assert_close((*actual, *ours), (*expected, *theirs), check_stride=True)
    assert kiln_torch.stats()["fallbacks"] == []


def test_rolls_and_padded_borders():
    def fn(x):
        image = x[:, :3]
        return (
            x.roll(5), x.roll(-2, 1), x.roll((1, 7), (2, 0)), x.transpose(1, 2).roll(3, 1),
            x.roll(x.shape[1], 1), x.to(memory_format=torch.channels_last).roll((1, 1), (2, 3)),
            F.pad(image, [2, 1, 0, 2], mode="reflect"), F.pad(image, [1, 0, 2, 1], mode="replicate"),
            F.pad(image.transpose(2, 3), [0, 0, 1, 2], mode="reflect"),
        )  # fmt: skip

    check(fn, torch.randn(2, 4, 5, 6))


def test_rolls_and_padded_borders_of_symbolic_sizes():
    def fn(x):
        return x.roll(5), x.roll(-2, 1), F.pad(x, [2, 1], mode="reflect")

    run = compiled(fn, dynamic=True)
    for sizes in ((3, 4), (5, 7)):
        x = torch.randn(sizes)
        torch.testing.assert_close(run(x), fn(x), rtol=0, atol=0, check_stride=True)
    assert kiln_torch.stats()["library_ops"] == {}


def test_a_wrong_index_names_its_operator_and_its_line():
    table = torch.randn(10, 4)

    def fn(i, j):
        rows = torch.nn.functional.embedding(i, table) * 2
        picked = rows.exp().gather(0, j)  # the line at fault
        return picked + 1

    lines, first = inspect.getsourcelines(fn)
    line = first + next(n for n, text in enumerate(lines) if "at fault" in text)
    right, wrong = torch.zeros(3, 4, dtype=torch.int64), torch.full((3, 4), 3)
    i = torch.tensor([1, 2, 3])
    for _ in range(2):  # then as torch's cache keeps it, without what Dynamo knows of the source
        torch._dynamo.reset()
        call = torch.compile(fn, backend="kiln", options={"fallback": "raise"})
        assert_same(call(i, right), fn(i, right))
        with pytest.raises(IndexError) as raised:
            call(i, wrong)
        text = str(raised.value)
        assert f"aten.gather.default (node 'gather'), test_indexing.py:{line} in fn: " in text
    assert kiln_torch.stats()["fallbacks"] == []


POOLS = {
    "1d": (lambda x: F.max_pool1d(x[0], 3, 2, 1, return_indices=True), (1, 2, 3, 11)),
    "2d": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (2, 3, 9, 8)),
    "dilated": (lambda x: F.max_pool2d(x, 2, 1, 0, 2, return_indices=True), (2, 3, 9, 8)),
    "2d dilated with a border": (
        lambda x: F.max_pool2d(x, 3, 1, 1, 2, return_indices=True),
        (2, 3, 9, 8),
    ),
    "2d of channels": (
        lambda x: F.max_pool2d(
            x.contiguous(memory_format=torch.channels_last), 3, 2, 1, return_indices=True
        ),
        (2, 24, 9, 8),
    ),
    "2d of channels in large windows": (
        lambda x: F.max_pool2d(
            x.contiguous(memory_format=torch.channels_last), 6, 1, 3, return_indices=True
        ),
        (1, 64, 12, 11),
    ),
    "3d": (lambda x: F.max_pool3d(x, 2, return_indices=True), (2, 3, 4, 6, 6)),
    "adaptive": (lambda x: F.adaptive_max_pool2d(x, (3, 5), return_indices=True), (2, 3, 9, 8)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_max_pooling_names_the_last_of_several_nan_and_the_first_of_equals(name, dynamic):
    fn, sizes = POOLS[name]
    for dtype in (torch.float32, torch.bfloat16):
        run = compiled(fn, dynamic=dynamic)
        x = torch.randint(-2, 2, sizes).to(dtype)
        x[torch.rand(sizes) < 0.3] = math.nan
        x[torch.rand(sizes) < 0.2] = -math.inf
        values, indices = run(x)
        expected_values, expected_indices = fn(x)
        torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(indices, expected_indices)
    assert kiln_torch.stats()["library_ops"] == {}
