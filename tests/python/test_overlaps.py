"""Arguments that share memory, of functions that write to them: each call as eager makes it."""

import pytest
import torch

import kiln_torch

# Where two arguments of four elements begin in a buffer of twelve.
PLACES = ((0, 8), (0, 2), (2, 4), (4, 2), (1, 1), (4, 0), (6, 8))


def both_written(x, y):
    x.add_(1)
    y.mul_(2)
    return x + y


def one_written(x, y):
    x.add_(1)
    return x * y


def read_again(x, y):
    x.add_(y.sum())
    return x * y.sum()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("fn", [both_written, one_written, read_again])
def test_windows_of_one_buffer_wherever_the_first_call_had_them(fn, first, dynamic):
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    for a, b in (PLACES[first], *PLACES):
        expected_buffer, buffer = torch.arange(12.0), torch.arange(12.0)
        expected = fn(expected_buffer[a : a + 4], expected_buffer[b : b + 4])
        actual = compiled(buffer[a : a + 4], buffer[b : b + 4])
        assert torch.equal(actual, expected) and torch.equal(buffer, expected_buffer), (a, b)
    assert kiln_torch.stats()["fallbacks"] == []


def test_a_window_that_moves_over_a_buffer():
    def smooth(here, there):
        here.add_(there.mean()).div_(2)

    compiled = torch.compile(smooth, backend="kiln")
    expected, actual = torch.arange(20.0), torch.arange(20.0)
    for i in range(15):
        smooth(expected[i : i + 4], expected[i + 1 : i + 5])
        compiled(actual[i : i + 4], actual[i + 1 : i + 5])
    assert torch.allclose(actual, expected)


def test_columns_of_one_matrix_compile_once():
    matrix = torch.randn(5, 12)
    expected = matrix.clone()
    compiled = torch.compile(both_written, backend="kiln")
    for _ in range(3):
        actual_sum = compiled(matrix[:, :4], matrix[:, 4:8])
        expected_sum = both_written(expected[:, :4], expected[:, 4:8])
        assert torch.equal(actual_sum, expected_sum) and torch.equal(matrix, expected)
    assert kiln_torch.stats()["graphs"] == 1


def test_halves_of_buffers_of_any_size_are_one_graph():
    compiled = torch.compile(both_written, backend="kiln", dynamic=True)
    for length in (4, 6, 9, 5):
        expected, actual = torch.arange(2.0 * length), torch.arange(2.0 * length)
        expected_sum = both_written(expected[:length], expected[length:])
        assert torch.equal(compiled(actual[:length], actual[length:]), expected_sum)
        assert torch.equal(actual, expected)
    stats = kiln_torch.stats()
    assert stats["graphs"] == 1 and stats["fallbacks"] == []


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [both_written, one_written, read_again])
def test_arguments_that_share_memory_only_in_a_later_call(fn, dynamic):
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    apart = [(torch.arange(4.0), torch.arange(4.0) + i) for i in range(3)]
    for x, y in apart[:2]:
        expected_x, expected_y = x.clone(), y.clone()
        expected = fn(expected_x, expected_y)
        actual = compiled(x, y)
        assert torch.equal(actual, expected)
        assert torch.equal(x, expected_x) and torch.equal(y, expected_y)
    assert kiln_torch.stats()["fallbacks"] == []
    for a, b in PLACES[1:5]:
        expected_buffer, buffer = torch.arange(12.0), torch.arange(12.0)
        expected = fn(expected_buffer[a : a + 4], expected_buffer[b : b + 4])
        actual = compiled(buffer[a : a + 4], buffer[b : b + 4])
        assert torch.equal(actual, expected) and torch.equal(buffer, expected_buffer), (a, b)
    before = len(kiln_torch.stats()["fallbacks"])
    x, y = apart[2]
    expected = fn(x.clone(), y.clone())
    assert torch.equal(compiled(x, y), expected)
    reasons = [fallback["reason"] for fallback in kiln_torch.stats()["fallbacks"]]
    assert len(reasons) == before and all("share memory" in reason for reason in reasons)


WINDOWS = {
    "rows": lambda x: (x[:3], x[2:]),
    "columns": lambda x: (x[:, :4], x[:, 3:]),
    "a column": lambda x: (x, x[:, 2]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("windows", WINDOWS)
def test_a_window_that_is_returned_lies_where_it_lay(windows, memory_format, dynamic):
    def fn(x, y):
        return y.add_(1), x.mul_(2), x + 1

    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    for rows in (5, 6):
        whole = torch.randn(rows, 8, 3, 2).contiguous(memory_format=memory_format)
        theirs, ours = (WINDOWS[windows](whole.clone()) for _ in range(2))
        expected, actual = fn(*theirs), compiled(*ours)
        for e, a in zip((*expected, *theirs), (*actual, *ours), strict=True):
            assert torch.equal(a, e) and a.stride() == e.stride()
            assert a.storage_offset() == e.storage_offset()
        assert actual[0].data_ptr() == ours[1].data_ptr()
    assert kiln_torch.stats()["fallbacks"] == []


def test_neighbours_in_a_buffer_stay_native():
    """They share a storage and no byte."""
    compiled = torch.compile(both_written, backend="kiln")
    compiled(torch.randn(4), torch.randn(4))
    expected, actual = torch.arange(8.0), torch.arange(8.0)
    assert torch.equal(
        compiled(actual[:4], actual[4:]), both_written(expected[:4], expected[4:])
    )
    assert torch.equal(actual, expected)
    stats = kiln_torch.stats()
    assert stats["graphs"] == 1 and stats["fallbacks"] == []


def test_more_views_of_one_buffer_than_guards_compare():
    def spread(first, *others):
        first.add_(1)
        return sum(other.sum() for other in others) + first

    def views(buffer, places):
        return [buffer[place : place + 2] for place in places]

    compiled = torch.compile(spread, backend="kiln")
    apart = range(0, 140, 2)
    for places in (apart, [*apart[:5], 0, *apart[6:]], apart):
        expected, actual = torch.arange(140.0), torch.arange(140.0)
        expected_sum = spread(*views(expected, places))
        torch.testing.assert_close(compiled(*views(actual, places)), expected_sum)
        assert torch.equal(actual, expected)
    assert len(kiln_torch.stats()["fallbacks"]) == 1


def test_a_training_step_whose_buffers_are_swapped_for_views_of_its_input():
    norm, compiled_norm = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    compiled = torch.compile(compiled_norm, backend="kiln")
    for shares in (False, True, False):
        results = []
        for module, call in ((norm, norm), (compiled_norm, compiled)):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).clone()
            module.running_mean = x[1] if shares else torch.zeros(4)
            y = call(x)
            module.zero_grad()
            y.square().sum().backward()
            results.append((y.detach(), module.weight.grad, x, module.running_mean.clone()))
        for actual, expected in zip(*results[::-1], strict=True):
            torch.testing.assert_close(actual, expected)


OVERLAPPING = {
    "windows": lambda x: (x * 1).unfold(2, 3, 2),
    "windows of windows": lambda x: (x * 1).unfold(1, 2, 1).unfold(2, 4, 3),
    "repeated": lambda x: (x * 1).unsqueeze(1).expand(-1, 4, -1, -1),
    "strided": lambda x: (x * 1).as_strided((3, 5, 4), (2, 7, 3)),
    "apart": lambda x: (x * 1)[:, ::2, 1:],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_gradients_of_outputs_whose_elements_share_memory(name, dynamic, dtype):
    fn = OVERLAPPING[name]
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})
    for sizes in ((3, 8, 17), (2, 6, 19)):
        x = torch.randn(sizes).to(dtype)
        grads = []
        for call in (fn, compiled):
            leaf = x.clone().requires_grad_()
            out = call(leaf)
            out.backward(torch.linspace(-1, 2, out.numel()).to(dtype).reshape(out.shape))
            grads.append(leaf.grad)
        torch.testing.assert_close(grads[1], grads[0])
