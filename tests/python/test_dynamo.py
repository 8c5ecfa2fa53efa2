"""What is lighter of Dynamo's gives what torch's own gives, and is there only during compiles for Kiln."""

import contextlib
import logging
import re
import sys

import pytest
import torch
from kiln_torch import dynamo
from kiln_torch.dynamo import Lighter
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo import config, guards
from torch._dynamo.callback import callback_handler
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.scale = 0.5

    def forward(self, x):
        x = self.inner(x) * self.scale
        return (x + 1, x.relu() + x.sigmoid())


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            a, b = block(x)
            x = a * b
        return x


def deep(x, n):
    return deep(x, n - 1) + 1 if n else x.sin()


@contextlib.contextmanager
def lighter():
    part = Lighter()
    part.start()
    try:
        yield
    finally:
        part.end()


def places():
    return {piece: vars(piece()[0]).get(piece()[1]) for piece in dynamo._PIECES}


def traced(fn, *args):
    """Stacks and metadata of Dynamo's nodes, and the guards as they are explained to users."""
    torch._dynamo.reset()
    nodes = []

    def backend(module, _):
        for node in module.graph.nodes:
            inside = [str(v) for v in node.meta.get("nn_module_stack", {}).values()]
            nodes.append((node.op, node.name, str(node.target), node.stack_trace, inside))
        return module

    torch.compile(fn, backend=backend)(*args)
    code = fn.forward.__code__ if isinstance(fn, torch.nn.Module) else fn.__code__
    manager = _debug_get_cache_entry_list(code)[0].guard_manager
    lines = (re.sub(r"___\d+", "", line) for line in str(manager).splitlines())
    return nodes, [line for line in lines if "0x" not in line and "___check_obj_id" not in line]


def test_this_torch_is_known():
    assert dynamo._pieces() == dynamo._PIECES


@pytest.mark.parametrize("fn, args", [(Model(), ()), (deep, (20,))])
def test_graphs_stacks_and_guards_are_torchs(fn, args):
    x = torch.randn(4, 8)
    expected = traced(fn, x, *args)
    with lighter():
        found = traced(fn, x, *args)
    assert any(".py" in (stack or "") for *_, stack, _ in expected[0])
    assert len(expected[1]) > 10 and any("# " in line for line in expected[1])
    assert found == expected


def test_only_while_a_function_is_compiled_for_kiln():
    before, seen = places(), []

    def look(_):
        seen.append(places())

    def fn(x):
        return torch.relu(x) * 3

    torch.compile(fn, backend="kiln")  # so that Kiln's callbacks come first
    callback_handler.register_start_callback(look)
    try:
        for backend in ("kiln", "eager", "inductor"):
            torch._dynamo.reset_code(fn.__code__)
            torch.compile(fn, backend=backend)(torch.randn(9))
            assert places() == before
    finally:
        callback_handler.remove_start_callback(look)
    assert all(seen[0][piece] is not before[piece] for piece in before)
    assert seen[1:] == [before, before]


def test_a_compile_that_fails_ends_it_too():
    before = places()

    def broken(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="kiln", fullgraph=True)(torch.randn(3))
    assert places() == before


def test_what_another_put_there_meanwhile_stays(monkeypatch):
    original = guards.profile_guard_manager
    part = Lighter()
    part.start()
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 1.0)
    other = guards.profile_guard_manager
    part.end()
    assert guards.profile_guard_manager is other
    guards.profile_guard_manager = original


def test_settings_are_read_as_ever():
    def read():
        found = {}
        for name in config._config:
            try:
                found[name] = getattr(config, name)
            except Exception as error:
                found[name] = repr(error)
        return found

    expected = read()
    with lighter():
        assert read() == expected
        with config.patch(verbose=not config.verbose, recompile_limit=77):
            assert config.verbose is not expected["verbose"] and config.recompile_limit == 77
            assert config.cache_size_limit == 77  # an alias
        assert config.verbose is expected["verbose"]
        with pytest.raises(AttributeError):
            config.no_such_setting
    assert "__getattr__" not in vars(type(config))


def test_a_local_map_is_found():
    from torch.distributed.tensor.experimental._func_map import _local_map_wrapped

    owner = LocalMapWrappedHigherOrderVariable
    for around in (contextlib.nullcontext, lighter):
        with around(), owner.enable():
            assert owner.should_wrap_in_hop(_local_map_wrapped)
            assert not owner.should_wrap_in_hop(torch.relu)
        with around():
            assert not owner.should_wrap_in_hop(_local_map_wrapped)


def test_nothing_is_one_where_its_module_is_not_there(monkeypatch):
    monkeypatch.delitem(sys.modules, dynamo._LOCAL_MAP, raising=False)
    with lighter():
        assert LocalMapWrappedHigherOrderVariable.should_wrap_in_hop(torch.relu) is False
    assert dynamo._LOCAL_MAP not in sys.modules


def test_logs_that_are_on_say_the_same():
    def fn(x):
        return torch.relu(x) * 3

    def lines():
        found = []
        handler = logging.Handler()
        handler.emit = lambda record: found.append(record.getMessage())
        torch._logging.set_logs(trace_call=True, trace_source=True)
        log = logging.getLogger("torch._dynamo")
        log.addHandler(handler)
        try:
            torch._dynamo.reset()
            torch.compile(fn, backend="eager")(torch.randn(9))
        finally:
            log.removeHandler(handler)
            torch._logging.set_logs()
        return [line for line in found if line.startswith("TRACE ")]

    expected = lines()
    with lighter():
        assert lines() == expected
    assert any("FX call" in line and "test_dynamo.py" in line for line in expected)


def test_another_torch_keeps_its_own(monkeypatch, caplog):
    before = places()
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    dynamo._pieces.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "kiln_torch"), lighter(), lighter():
            assert places() == before
        assert [r.getMessage() for r in caplog.records if "traces as" in r.getMessage()] == [
            "torch 2.99.0: Dynamo traces as it does for others: RuntimeError('known are 2.13.x')"
        ]
    finally:
        monkeypatch.undo()
        dynamo._pieces.cache_clear()
