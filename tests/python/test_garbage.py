"""Full garbage collections wait for the end of a compile for Kiln, and for no other's."""

import gc

import pytest
import torch
from torch._dynamo.callback import callback_handler

from kiln_torch.options import _COMPILES


@pytest.fixture
def seen():
    """The collector's thresholds in the middle of each compile, as a callback of the user's sees them."""
    found = []

    def look(_):
        found.append(gc.get_threshold())

    torch.compile(torch.relu, backend="kiln")  # so that Kiln's callbacks come first
    callback_handler.register_start_callback(look)
    yield found
    callback_handler.remove_start_callback(look)


def fn(x):
    return torch.relu(x) * 3


def test_only_while_a_function_is_compiled_for_kiln(seen):
    before = gc.get_threshold()
    x = torch.randn(9)
    torch.compile(fn, backend="kiln")(x)
    assert gc.get_threshold() == before
    torch._dynamo.reset_code(fn.__code__)
    torch.compile(fn, backend="eager")(x)
    assert [found[:2] for found in seen] == [before[:2]] * 2
    assert seen[0][2] > 1 << 20 and seen[1] == before


def test_a_compile_that_fails_ends_it_too(seen):
    before = gc.get_threshold()

    def broken(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="kiln", fullgraph=True)(torch.randn(3))
    assert seen[0][2] > 1 << 20 and gc.get_threshold() == before


def test_what_the_user_sets_meanwhile_stays(seen):
    before = gc.get_threshold()
    other = (500, 7, 9)

    def set_others(_):
        gc.set_threshold(*other)

    callback_handler.register_start_callback(set_others)
    try:
        torch.compile(fn, backend="kiln")(torch.randn(9))
        assert gc.get_threshold() == other
    finally:
        callback_handler.remove_start_callback(set_others)
        gc.set_threshold(*before)


def test_a_collector_that_is_off_is_left_alone(seen):
    before = gc.get_threshold()
    gc.disable()
    try:
        torch.compile(fn, backend="kiln")(torch.randn(9))
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [before]


def test_it_is_there_once_however_often_torch_forgets_it():
    for _ in range(3):
        torch._dynamo.reset()
        for _ in range(2):
            torch.compile(fn, backend="kiln")
        assert callback_handler.start_callbacks.count(_COMPILES.start) == 1
        assert callback_handler.end_callbacks.count(_COMPILES.end) == 1
