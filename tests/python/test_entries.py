"""Calls of compiled functions in C: what they do, what they leave to torch, what they leave behind."""

import gc
import inspect
import threading
import traceback
import weakref

import pytest
import torch
from compare import assert_same
from torch._C._dynamo.eval_frame import set_eval_frame, set_skip_guard_eval_unsafe
from torch._dynamo import eval_frame

import kiln_torch
from kiln_torch import _kiln, entries

CALLS = 3


def compiled(fn, **options):
    return torch.compile(fn, backend="kiln", options={"fallback": "raise"}, **options)


def entry_of(call):
    """None where torch's own wrapper is called."""
    cells = [cell.cell_contents for cell in call.__closure__]
    return next((found for found in cells if isinstance(found, _kiln.Entry)), None)


def torchs_wrap():
    return inspect.unwrap(eval_frame._TorchDynamoContext.__call__)


def made_ours(torchs):
    """What torch.compile would have made for Kiln of what it made for another backend."""
    context = torchs.__closure__[entries._CLOSURE.index("self")].cell_contents
    ours = entries._shortened(context, torchs, entries._Torch(torchs_wrap()))
    assert entry_of(ours) is not None
    return ours


def callback_now():
    """Of Dynamo's, in this thread; it is set again."""
    found = set_eval_frame(None)
    set_eval_frame(found)
    return found


def test_a_compiled_function_is_called_so_and_looks_as_torchs():
    def scaled(x, by=2.0, *, plus=1.0):
        """Doc."""
        return x * by + plus

    call, torchs, x = compiled(scaled), torch.compile(scaled, backend="eager"), torch.randn(8)
    assert entry_of(call) is not None and entry_of(torchs) is None
    for _ in range(CALLS):
        assert_same(call(x), scaled(x))
        assert_same(call(x, 3.0, plus=2.0), scaled(x, 3.0, plus=2.0))
    assert call.__name__ == "scaled" and call.__doc__ == "Doc." and call.__wrapped__ is scaled
    assert inspect.signature(call) == inspect.signature(scaled)
    assert set(vars(call)) == set(vars(torchs))
    assert eval_frame.innermost_fn(call) is scaled
    assert call.__code__.co_filename == torchs.__code__.co_filename
    with pytest.raises(TypeError, match="scaled"):
        call()
    assert callback_now() is None


def test_a_modules_call_and_its_method():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).relu()

    layer, x = Layer(), torch.randn(2, 4)
    expected = layer(x)
    module = compiled(layer)
    assert entry_of(module.forward) is not None
    assert_same(module(x), expected)
    layer.compile(backend="kiln", options={"fallback": "raise"})
    assert entry_of(layer._compiled_call_impl) is not None
    assert_same(layer(x), expected)


def test_guards_are_looked_at_in_every_call():
    graphs = []

    def fn(x):
        return x * (2 if torch.is_grad_enabled() else 3)

    call = compiled(fn, dynamic=False)
    for x in (torch.randn(4), torch.randn(5), torch.randn(4, dtype=torch.float64)):
        for grad in (True, False, True):
            with torch.set_grad_enabled(grad):
                assert_same(call(x), fn(x))
            graphs.append(kiln_torch.stats()["graphs"])
    assert len(set(graphs)) == 6


def test_functions_of_one_code_keep_their_backends_apart():
    def fn(x):
        return x + 1

    seen = []
    x = torch.randn(4)
    other = torch.compile(fn, backend=lambda module, inputs: seen.append(module) or module.forward)
    call, again, second = compiled(fn), compiled(fn), torch.compile(fn, backend="kiln")
    for _ in range(CALLS):
        for each in (call, other, again, second):
            assert_same(each(x), fn(x))
    assert len(seen) == 1
    entries_of_code = eval_frame._debug_get_cache_entry_list(fn.__code__)
    assert len(entries_of_code) == 3  # `again` is equal to `call`; `second` has other options
    assert all(not isinstance(e.backend, _kiln.Callback) for e in entries_of_code)


@pytest.mark.parametrize(("dynamic", "graphs"), [(None, 2), (True, 1), (False, 3)])
def test_the_sizes_that_torch_compile_takes_for_dynamic(dynamic, graphs):
    before = kiln_torch.stats()["graphs"]
    call = compiled(lambda x: x.sin() * 2, dynamic=dynamic)
    for size in (7, 8, 9):
        x = torch.randn(size, size + 1)
        for _ in range(CALLS):
            assert_same(call(x), x.sin() * 2)
    assert kiln_torch.stats()["graphs"] - before == graphs
    assert torch._dynamo.config.automatic_dynamic_shapes
    assert torch._dynamo.config.assume_static_by_default


def test_an_error_of_the_function_leaves_nothing_behind():
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()

    @torch._dynamo.disable
    def fails():
        torch._C._functorch._vmap_increment_nesting(2, "error")
        raise KeyError("the user's")

    def fn(x):
        y = x + 1
        fails()
        return y

    call = compiled(fn)
    for _ in range(CALLS):
        with pytest.raises(KeyError, match="the user's") as raised:
            call(torch.randn(4))
        assert callback_now() is None
        assert torch._C._functorch.get_dynamic_layer_stack_depth() == depth
        assert any(frame.name == "fails" for frame in traceback.extract_tb(raised.tb))


def test_errors_of_a_compile_are_raised_as_torch_raises_them():
    """By its wrapper: without the frames of Dynamo's, and an error of the backend with its cause."""

    def fails(module, inputs):
        raise ValueError("no such thing")

    def fn(x):
        return x + 1

    def raised_by(call):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
            call(torch.randn(3))
        return str(raised.value), [frame.name for frame in traceback.extract_tb(raised.tb)][:2]

    torchs = torch.compile(fn, backend=fails)
    assert raised_by(made_ours(torchs)) == raised_by(torchs)
    assert callback_now() is None


def test_what_is_not_as_in_most_calls_is_torchs():
    def fn(x):
        return x + 1

    wholes, x = [], torch.randn(4)

    def whole(x):
        wholes.append(x)
        return fn(x)

    around = entries._Torch(torchs_wrap()).around()
    call = _kiln.Entry(fn, whole, None, (), around)
    call(x)
    assert not wholes
    with torch.compiler.set_stance("force_eager"):
        call(x)
    assert len(wholes) == 1
    with torch._export.utils._compiling_state_context():
        call(x)
    assert len(wholes) == 2
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        call(x)
    assert len(wholes) == 3
    torch.jit.trace(lambda x: call(x), x, check_trace=False)
    assert len(wholes) == 4
    torch.fx.symbolic_trace(lambda x: call(x))
    assert len(wholes) == 5
    call(x)
    assert len(wholes) == 5


def test_a_stance_is_torchs():
    def fn(x):
        return x + 1

    call, x = compiled(fn), torch.randn(4)
    call(x)
    before = kiln_torch.stats()["run_calls"]
    with torch.compiler.set_stance("force_eager"):
        assert_same(call(x), fn(x))
    assert kiln_torch.stats()["run_calls"] == before
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        assert_same(call(x), fn(x))
    assert_same(call(x), fn(x))
    assert kiln_torch.stats()["run_calls"] == before + 2
    assert set_skip_guard_eval_unsafe(False) is False


def test_calls_in_a_call():
    """Dynamo's callback is the outer one's again, and that of none in a thread of its own."""
    seen = []
    inner = compiled(lambda x: x * 3)

    @torch._dynamo.disable
    def breaks(x):
        seen.append(callback_now())
        return inner(x)

    def fn(x):
        y = x + 1
        z = breaks(y)
        seen.append(callback_now())
        return z + y

    call, x = compiled(fn), torch.randn(4)
    for _ in range(CALLS):
        assert_same(call(x), (x + 1) * 3 + x + 1)
    results = []
    threads = [threading.Thread(target=lambda: results.append(call(x))) for _ in range(CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == CALLS and callback_now() is None
    for result in results:
        assert_same(result, call(x))


def test_switches_go_back_in_the_opposite_order():
    """Also where one of them fails, and then the function is not called."""
    log, state = [], {"a": 1, "b": 2}

    def swap(name):
        def set_to(value):
            if value == "fails":
                raise ValueError(name)
            log.append((name, value))
            state[name], before = value, state[name]
            return before

        return set_to

    def entry(function, value):
        around = entries._Torch(torchs_wrap()).around()
        return _kiln.Entry(function, print, None, ((swap("a"), 5), (swap("b"), value)), around)

    assert entry(lambda: dict(state), 6)() == {"a": 5, "b": 6}
    assert log == [("a", 5), ("b", 6), ("b", 2), ("a", 1)] and state == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="b"):
        entry(lambda: log.clear(), "fails")()
    assert log[4:] == [("a", 5), ("a", 1)]


def test_dynamos_callback_is_between_its_hooks():
    log = []

    def hook():
        log.append("begins")
        return lambda: log.append("ends")

    def callback(*args):
        log.append(args)
        if not args:
            raise KeyError("none")
        return args

    backend = object()
    ours = _kiln.Callback(callback, backend, (hook, hook))
    assert ours._torchdynamo_orig_backend is backend and not hasattr(ours, "other")
    assert ours(1, 2) == (1, 2)
    assert log == ["begins", "begins", (1, 2), "ends", "ends"]
    with pytest.raises(KeyError, match="none"):
        ours()
    assert log[5:] == ["begins", "begins", (), "ends", "ends"]


def test_a_module_that_holds_its_own_compiled_call_can_go():
    layer = torch.nn.Linear(3, 3)
    layer.compile(backend="kiln")
    layer(torch.randn(2, 3))
    gone = weakref.ref(layer)
    del layer
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


def test_a_wrapper_of_another_torch_stays(monkeypatch):
    known = entries._Torch(torchs_wrap())
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(RuntimeError, match="known for"):
        entries._Torch(torchs_wrap())
    torchs = torch.compile(lambda x: x, backend="eager")
    context = torchs.__closure__[entries._CLOSURE.index("self")].cell_contents
    context.enter_exit_hooks.append(lambda: print)
    assert entries._shortened(context, torchs, known) is torchs
