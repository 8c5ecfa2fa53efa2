"""The profiler's region before a graph: away in calls of Kiln's graphs, and of no other's."""

import pytest
import torch
from compare import assert_same
from torch.profiler import ProfilerActivity, profile

REGION = "Pregraph bytecode"


def regions(call):
    """How often the region is opened in a call, after the first one."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return sum(event.name == REGION for event in profiler.events())


def affine(x):
    return x * 2 + 1


def affine_twice(x):
    return (x * 2 + 1) * 2 + 1


def test_only_graphs_of_kilns_lack_it():
    x = torch.randn(8)
    ours = torch.compile(affine, backend="kiln")
    others = torch.compile(affine_twice, backend="aot_eager")
    assert regions(lambda: others(x)) == 1
    assert regions(lambda: ours(x)) == 0
    assert regions(lambda: others(x)) == 1  # what was compiled before and after it alike
    torch._dynamo.reset()
    assert regions(lambda: ours(x)) == 0
    assert regions(lambda: others(x)) == 1
    assert torch._dynamo.config.record_runtime_overhead
    assert_same(ours(x), affine(x))


def test_graphs_with_gradients_and_those_that_run_eager_lack_it(monkeypatch):
    x = torch.randn(8, requires_grad=True)
    call = torch.compile(affine, backend="kiln")
    assert regions(lambda: call(x).sum().backward()) == 0
    monkeypatch.setenv("KILN_SERVER", "127.0.0.1:1")
    away = torch.compile(affine_twice, backend="kiln", options={"timeout_s": 1})
    with pytest.warns(UserWarning, match="eager"):
        assert regions(lambda: away(x)) == 0


def test_each_graph_of_a_function_lacks_it():
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    x = torch.randn(8)
    for backend, expected in (("aot_eager", 2), ("kiln", 0)):
        torch._dynamo.reset()
        call = torch.compile(broken, backend=backend)
        assert regions(lambda call=call: call(x)) == expected


@pytest.mark.parametrize("where", ["option", "environment"])
def test_the_option_keeps_it(where, monkeypatch):
    if where == "environment":
        monkeypatch.setenv("KILN_RECORD_RUNTIME_OVERHEAD", "1")
    options = {"record_runtime_overhead": True} if where == "option" else None
    x, call = torch.randn(8), torch.compile(affine, backend="kiln", options=options)
    assert regions(lambda: call(x)) == 1


def test_torchs_own_switch_takes_it_away_all_the_same():
    x = torch.randn(8)
    with torch._dynamo.config.patch(record_runtime_overhead=False):
        call = torch.compile(affine, backend="kiln", options={"record_runtime_overhead": True})
        assert regions(lambda: call(x)) == 0


def test_what_is_compiled_while_a_profiler_records_keeps_it():
    x = torch.randn(8)
    call = torch.compile(affine, backend="kiln")
    with profile(activities=[ProfilerActivity.CPU]):
        call(x)
    assert regions(lambda: call(x)) == 1
