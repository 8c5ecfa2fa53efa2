"""How shortcuts read torch's wrappers, and what they make of a run's errors."""

import functools
import types

import pytest
import torch
from compare import assert_same
from torch.fx.experimental.proxy_tensor import make_fx

from kiln_torch import _kiln, shortcuts
from kiln_torch.capture import capture
from kiln_torch.program import load_program
from kiln_torch.runner import CapturedGraph, Convention, Eager, runner
from kiln_torch.settings import Settings

CALLS = 3


@functools.cache
def rows_of_a_table():
    """The graph and its program."""
    trace = make_fx(lambda t, i: [torch.ops.aten.embedding.default(t, i)], tracing_mode="fake")
    module = trace(torch.randn(4, 3), torch.tensor([0, 1]))
    text = capture(module, lambda i: False, "rows", False)
    return module, text, load_program(text, Settings.read({}))


def test_a_run_that_does_not_fit_names_its_graph():
    module, text, program = rows_of_a_table()
    graph = CapturedGraph("inference", text, Convention.of(module, "inference"), frozenset())
    run = runner(program, graph, Eager(module), "rows", Settings.read({"fallback": "raise"}))
    assert run.direct[0] is program
    with pytest.raises(RuntimeError, match="^kiln: rows: "):
        run([torch.randn(5, 3), torch.tensor([0, 1])])


def test_an_index_error_that_no_second_run_would_show_is_the_callers():
    """A GPU's kernels tell of one in a later run."""
    calls, table = [], torch.randn(4, 3)
    shortcut = _kiln.Shortcut(
        rows_of_a_table()[2],
        lambda *args: calls.append(args) or [table[args[1]]],
        (),
        lambda error, inputs: IndexError(f"named: {error}, of {len(inputs)}"),
    )
    good, bad = torch.tensor([1, 2]), torch.tensor([1, 9])
    shortcut(table, good)
    for _ in range(CALLS):
        with pytest.raises(IndexError, match="named: .*, of 2"):
            shortcut(table, bad)
        assert_same(shortcut(table, good)[0], table[good])
    assert len(calls) == 1


@pytest.mark.skipif(not shortcuts._torch().generates, reason="this torch's wrapper is not generated")
def test_a_wrapper_that_does_more_is_seen():
    """Each further thing that AOTAutograd's generated function may do makes it another one."""
    nothing = shortcuts._nothing_else(1, (), False)
    assert nothing == shortcuts._nothing_else.__wrapped__(1, (), False)
    others = [(2, (), False), (1, (0,), False), (1, (1,), False), (1, (), True)]
    assert all(nothing != shortcuts._nothing_else(*other) for other in others)
    assert shortcuts._seen_by_generated(nothing, 1, (3,)) == ()
    assert shortcuts._seen_by_generated(shortcuts._nothing_else(1, (2, 3), False), 1, (3, 2)) == (2, 3)
    assert shortcuts._seen_by_generated(shortcuts._nothing_else(1, (2,), False), 1, (3, 2)) is None
    assert shortcuts._seen_by_generated(nothing, 2, ()) is None


@pytest.mark.parametrize(
    "more",
    [
        {"num_outputs": 2},
        {"num_mutated_inp_runtime_indices": 1},
        {"num_outputs_aliased": 1},
        {"num_intermediate_bases": 1},
        {"dynamic_outputs": True},
        {"grad_enabled_mutation": False},
        {"trace_joint": True},
        {"epilogue_args_idx": [0]},
    ],
)
def test_a_wrapper_that_reads_of_more_is_seen(more):
    """As torch 2.11 has them."""
    graph = {
        "num_outputs": 1,
        "num_mutated_inp_runtime_indices": 0,
        "num_outputs_aliased": 0,
        "num_intermediate_bases": 0,
        "dynamic_outputs": False,
        "grad_enabled_mutation": None,
        "mutated_graph_handled_indices_seen_by_autograd": [2],
    }
    around = {"trace_joint": False, "epilogue_args_idx": [], "keep_input_mutations": True}

    def seen(changed):
        of_graph = {name: changed.get(name, value) for name, value in graph.items()}
        of_wrapper = {name: changed.get(name, value) for name, value in around.items()}
        of_wrapper["runtime_metadata"] = types.SimpleNamespace(**of_graph)
        return shortcuts._seen_by_reading(of_wrapper, 1)

    assert seen({}) == (2,) and seen({"keep_input_mutations": False}) == ()
    assert seen(more) is None
