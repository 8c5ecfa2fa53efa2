"""What torch's wrappers of a compiled graph guarantee, in the calls that go past them, too: a graph's
first call takes the whole way, later ones the shortcut. Each test calls more than once."""

import functools
import logging
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from compare import assert_same
from torch.fx.experimental.proxy_tensor import make_fx

import kiln_torch
from kiln_torch import _kiln, shortcuts
from kiln_torch.backend import torch_caches
from kiln_torch.capture import capture
from kiln_torch.program import load_program
from kiln_torch.settings import Settings

CALLS = 3


@pytest.fixture
def taken(monkeypatch):
    """Of each shortcut that is made, how often its whole was called."""
    counts = []
    make = _kiln.Shortcut

    def counted(program, whole, written, index_error):
        number = len(counts)
        counts.append(0)

        @torch._dynamo.disable  # as what torch made is
        def call(*args):
            counts[number] += 1
            return whole(*args)

        return make(program, call, written, index_error)

    monkeypatch.setattr(_kiln, "Shortcut", counted)
    return counts


def compiled(fn, **options):
    return torch.compile(fn, backend="kiln", options=options or None)


def affine(x):
    return x * 2 + 1


def test_only_the_first_call_goes_through_torchs_wrappers(taken):
    call = compiled(affine)
    for _ in range(CALLS):
        x = torch.randn(8)
        assert_same(call(x), affine(x))
    assert taken == [1]
    assert kiln_torch.stats()["run_calls"] == CALLS


@pytest.mark.skipif(torch_caches() is None, reason="this torch's caches keep no graphs of Kiln's")
def test_a_graph_of_torchs_cache_takes_it(taken):
    for _ in range(2):
        torch._dynamo.reset()
        call = compiled(affine)
        for _ in range(CALLS):
            call(torch.randn(8))
    assert len(kiln_torch.stats()["capture_ms"]) == 1
    assert taken == [1, 1]


def test_no_python_runs_between_dynamos_code_and_the_program():
    def fn(x):
        return x * 3

    before = set(globals())
    compiled(fn)(torch.randn(4))
    (name,) = (name for name in set(globals()) - before if name.startswith("__compiled_fn"))
    graph = globals()[name]
    assert type(graph) is _kiln.GraphType and type(graph.call) is _kiln.Shortcut


@pytest.mark.parametrize(
    ("fn", "takes_it"),
    [
        (lambda x: (x, x + 1), True),  # Dynamo's code returns x itself
        (lambda x: (x[1:], x.sum()), False),
        (lambda x: (x.view(2, 4).t(),), False),
        (lambda x: (lambda y: (y, y[2:], y.view(2, 4)))(x * 2), True),
    ],
)
def test_outputs_alias_what_eagers_do(fn, takes_it, taken):
    def aliases(outputs, x):
        storages = [value.untyped_storage().data_ptr() for value in (*outputs, x)]
        return [
            (value is x, value._is_view(), [storage == other for other in storages])
            for value, storage in zip(outputs, storages, strict=False)
        ]

    call = compiled(fn)
    for _ in range(CALLS):
        x = torch.randn(8)
        ours, eagers = call(x), fn(x)
        assert_same(ours, eagers)
        assert aliases(ours, x) == aliases(eagers, x)
    assert taken == [1] * takes_it


def test_an_input_that_changes_its_shape():
    def fn(x):
        x.t_()
        return x + 1

    call = compiled(fn)
    for _ in range(CALLS):
        x, y = torch.ones(2, 3), torch.ones(2, 3)
        assert_same(call(x), fn(y))
        assert x.shape == y.shape == (3, 2)


@pytest.mark.parametrize("mode", [True, False])
def test_a_graph_that_leaves_another_grad_mode_stays_with_torch(mode, taken):
    def fn(x):
        y = x + 1
        torch._C._set_grad_enabled(mode)
        return y * 2

    call = compiled(fn)
    before = torch.is_grad_enabled()
    try:
        for _ in range(CALLS):
            torch._C._set_grad_enabled(not mode)
            call(torch.randn(4))
            assert torch.is_grad_enabled() is mode
    finally:
        torch._C._set_grad_enabled(before)
    assert taken == []


def test_library_steps_stay_with_torch(taken):
    def fn(x):
        return torch.linalg.inv(x) + 1

    call = compiled(fn)
    for _ in range(CALLS):
        call(torch.eye(3) * 2)
    assert kiln_torch.stats()["library_ops"] and taken == []


def test_versions_of_written_inputs_advance_as_much_in_each_call(taken):
    def fn(cache, x):
        cache[1:2].copy_(x)
        return cache.sum()

    call = compiled(fn)
    cache, advanced = torch.zeros(4, 8), []
    with torch.no_grad():
        for _ in range(CALLS):
            before = cache._version
            call(cache, torch.randn(1, 8))
            advanced.append(cache._version - before)
    assert taken == [1] and advanced[0] > 0 and len(set(advanced)) == 1


def test_backward_sees_that_a_saved_tensor_was_written(taken):
    def fn(cache, x):
        cache.add_(x)
        return x + 1

    call = compiled(fn)
    cache, weight = torch.ones(4), torch.ones(4, requires_grad=True)
    for _ in range(CALLS):
        loss = (weight * cache).sum()
        with torch.no_grad():
            call(cache, torch.ones(4))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert taken == [1]


def test_grad_mode_is_the_callers_after_a_call_and_outputs_need_no_grad(taken):
    call = compiled(affine)
    for enabled in (True, False) * CALLS:
        with torch.set_grad_enabled(enabled):
            y = call(torch.randn(8))
            assert torch.is_grad_enabled() is enabled
        assert not y.requires_grad and y.grad_fn is None
    assert taken == [1, 1]


@functools.cache
def views_of_input():
    """A program whose output lies in its input's memory, which AOTAutograd would hide."""
    trace = make_fx(lambda x: [torch.ops.aten.view.default(x, [2, 4])], tracing_mode="fake")
    graph = capture(trace(torch.randn(8)), lambda i: False, "views", False)
    return load_program(graph, Settings.read({}))


def test_gradients_are_disabled_while_a_run_makes_views():
    program, seen = views_of_input(), []

    def whole(x):
        seen.append(torch.is_grad_enabled())
        return [x]

    shortcut = _kiln.Shortcut(program, whole, ())
    x = torch.randn(8, requires_grad=True)
    shortcut(x)
    (y,) = shortcut(x)
    assert y.shape == (2, 4) and y.data_ptr() == x.data_ptr()
    assert y.grad_fn is None and torch.is_grad_enabled()
    shortcut(torch.randn(9))  # a run that fails; the whole has the caller's mode
    assert seen == [True, True] and torch.is_grad_enabled()


def test_a_shortcut_refuses_what_it_cannot_call():
    with pytest.raises(TypeError):
        _kiln.Shortcut(affine, affine, ())
    with pytest.raises(TypeError):
        _kiln.Shortcut(views_of_input(), None, ())
    with pytest.raises(TypeError):
        _kiln.Shortcut(views_of_input(), affine, [0])
    whole = []
    shortcut = _kiln.Shortcut(views_of_input(), lambda *args: whole.append(args) or [], (5,))
    for _ in range(2):
        shortcut(torch.randn(8))  # there is no input 5
    assert len(whole) == 2


def test_inference_mode_is_the_callers(taken):
    call = compiled(affine)
    for _ in range(CALLS):
        with torch.inference_mode():
            assert call(torch.randn(8)).is_inference()
        with torch.no_grad():
            assert not call(torch.randn(8)).is_inference()
    assert all(count == 1 for count in taken)


def test_autocast_is_the_callers(taken):
    weight = torch.randn(8, 8)

    def fn(x):
        return x @ weight

    call = compiled(fn)
    for _ in range(CALLS):
        x = torch.randn(4, 8)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert call(x).dtype == torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            assert call(x).dtype == torch.float32
    assert taken == [1, 1]


def test_the_profiler_sees_all_that_it_saw_before(taken):
    call = compiled(affine)
    for _ in range(2):
        call(torch.randn(8))
    with torch.profiler.profile() as profile:
        call(torch.randn(8))
    names = [event.key for event in profile.key_averages()]
    assert any(name.startswith("kiln kernel") for name in names)
    assert "AOTDispatcher Runtime Wrapper Prologue" in names
    call(torch.randn(8))
    assert taken == [2]


def test_an_index_out_of_range_is_named_in_each_call(taken):
    table = torch.randn(4, 3)

    def fn(i):
        return torch.nn.functional.embedding(i, table)

    call = compiled(fn)
    call(torch.tensor([1, 2]))
    for _ in range(CALLS):
        with pytest.raises(IndexError, match="embedding"):
            call(torch.tensor([1, 9]))
        assert_same(call(torch.tensor([3, 0])), table[[3, 0]])
    assert taken == [1 + CALLS]


def test_threads_share_a_shortcut(taken):
    call, failures = compiled(affine), []
    call(torch.randn(8))

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(200):
            x = torch.randn(8, generator=generator)
            if not torch.equal(call(x), affine(x)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and taken == [1]


def test_function_transforms_of_a_compiled_function():
    call = compiled(affine)
    for _ in range(CALLS):
        x = torch.randn(3, 8)
        assert_same(call(x[0]), affine(x[0]))
        assert_same(torch.func.vmap(call)(x), affine(x))
        assert_same(torch.func.grad(lambda v: call(v).sum())(x), torch.full_like(x, 2))


class Tagged(torch.Tensor):
    """A subclass whose operators give the subclass."""


def test_a_subclass_stays_one():
    call = compiled(affine)
    for _ in range(CALLS):
        x = torch.randn(8)
        assert type(call(x)) is torch.Tensor
        y = call(x.as_subclass(Tagged))
        assert type(y) is Tagged
        assert_same(y.as_subclass(torch.Tensor), affine(x))


def test_arguments_are_freed_and_results_are_the_callers(taken):
    call, results, expected = compiled(affine), [], []
    for _ in range(CALLS):
        x = torch.randn(8)
        gone = weakref.ref(x)
        expected.append(affine(x))
        results.append(call(x))
        del x
        assert gone() is None
    for result, value in zip(results, expected, strict=True):
        assert_same(result, value)
    assert taken == [1]


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64],
)
def test_results_are_tensors_like_any_other(dtype, shape):
    """Of the second run on they come from another function of torch's than those of the first."""

    def fn(x):
        y = x.logical_not() if x.dtype == torch.bool else x + 1
        return y, (y == x).mT.contiguous() if x.dim() > 1 else y == x

    call = compiled(fn)
    for _ in range(CALLS):
        x = torch.randint(0, 2, shape).to(dtype)
        if x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        for ours, eagers in zip(call(x), fn(x), strict=True):
            assert torch.equal(ours, eagers)
            assert ours.dtype == eagers.dtype and ours.stride() == eagers.stride()
            assert not ours._is_view() and ours.storage_offset() == 0
            assert ours._version == eagers._version and ours.is_leaf


@pytest.mark.parametrize(
    "window", [lambda y: y.mT, lambda y: y[1:], lambda y: y.view(-1), lambda y: y[:, 2]]
)
def test_results_that_are_windows_of_what_a_kernel_wrote(window, taken):
    def fn(x):
        return window(x * 2)

    call, results = compiled(fn), []
    for _ in range(CALLS):
        x = torch.randn(3, 4)
        results.append((call(x), fn(x)))
        results[-1][0].add_(1)
        results[-1][1].add_(1)
    for ours, eagers in results:
        assert torch.equal(ours, eagers) and ours.stride() == eagers.stride()
    assert taken == [1]


def test_results_may_be_resized_and_written_in_place():
    call = compiled(affine)
    for _ in range(CALLS):
        x = torch.randn(8)
        y = call(x)
        y.resize_(32).zero_()
        assert y.numel() == 32 and y.untyped_storage().nbytes() >= 128
        assert_same(call(x), affine(x))


@pytest.mark.parametrize("shape", [(4, 5), (20,), (5, 4)])
def test_gradients_of_two_parameters_are_not_one_memory(shape):
    """The backward graph returns one tensor for both, as it is or as a window of what a kernel wrote;
    to write to one gradient leaves the other."""
    factors = torch.arange(20.0).view(shape)

    def fn(a, b):
        return ((a + b).view(shape) * factors).sum()

    call = compiled(fn)
    a, b = (torch.randn(4, 5, requires_grad=True) for _ in range(2))
    for _ in range(CALLS):
        call(a, b).backward()  # adds to what is there, in place
    want = CALLS * torch.arange(20.0).view(4, 5)
    assert torch.equal(a.grad, want) and torch.equal(b.grad, want)
    a.grad.zero_()
    assert torch.equal(b.grad, want)


@pytest.mark.parametrize("what", ["version", "wrapper", "disable"])
def test_a_torch_with_other_wrappers_keeps_them(what, taken, monkeypatch, caplog):
    if what == "version":
        monkeypatch.setattr(torch, "__version__", "2.99.0")
    elif what == "wrapper":
        wrappers = "torch._functorch._aot_autograd.runtime_wrappers"
        monkeypatch.delattr(f"{wrappers}._create_runtime_wrapper")
    else:
        monkeypatch.setattr(torch._dynamo, "disable", lambda cls: type("Other", (), {}))
    shortcuts._torch.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "kiln_torch"):
            known = shortcuts._torch()
            assert known is shortcuts._torch()
        if what == "disable":
            assert not known.keeps_classes
        else:
            assert known is None
            assert [r.message for r in caplog.records if "wrappers" in r.message][1:] == []
            assert "wrappers" in caplog.text
        monkeypatch.undo()
        call = torch.compile(affine, backend="kiln")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(CALLS):
                x = torch.randn(8)
                assert_same(call(x), affine(x))
    finally:
        shortcuts._torch.cache_clear()


@pytest.mark.parametrize("other", ["None", "lambda sizes, strides, dtype: torch.empty(sizes)"])
def test_a_torch_that_makes_tensors_in_another_way(other):
    """In a process of its own: what torch has is looked at once."""
    program = f"""
import logging
import torch
logging.basicConfig(level=logging.INFO)
from torch._C._dynamo import guards
guards._empty_strided_cpu = {other}
call = torch.compile(lambda x: x.mT * 2, backend="kiln", options={{"fallback": "raise"}})
for _ in range(3):
    x = torch.randn(3, 4)
    y = call(x)
    assert torch.equal(y, x.mT * 2) and y.stride() == (x.mT * 2).stride()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("results are made through DLPack") == 1
