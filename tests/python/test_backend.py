"""What a user of torch.compile(backend="kiln") relies on, apart from whole models."""

import math
import os
import resource
import threading
import warnings

import pytest
import sympy
import torch
from compare import assert_same

import kiln_torch
from kiln_torch.program import load_program
from kiln_torch.sizes import Sizes
from kiln_torch.tools import _write_whole


def run(fn, *args, **options):
    return torch.compile(fn, backend="kiln", options=options or None)(*args)


def run_dynamic(fn, x, dynamic, *more):
    return torch.compile(fn, backend="kiln", dynamic=dynamic)(x, *more)


def test_the_entry_point_registers_the_backend():
    assert "kiln" in torch._dynamo.list_backends(exclude_tags=())


def test_symbolic_sizes_compile_once():
    def fn(x, y):
        return torch.softmax(x @ y, dim=-1) + x.sum()

    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for n in (3, 17, 64, 129):
        x, y = torch.randn(n, 33), torch.randn(33, n)
        assert_same(compiled(x, y), fn(x, y), fn(x.double(), y.double()))
    stats = kiln_torch.stats()
    assert stats["graphs"] == 1 and stats["fallbacks"] == []


def test_views_of_views_leave_no_quotient_that_cancels():
    def fn(x):
        rows = x.shape[1] - x.shape[1] % 4
        folded = x[:, :rows, :rows].reshape(x.shape[0], rows * rows, -1)
        square = folded.view(x.shape[0], rows, folded.shape[1] // rows, -1)
        return square.transpose(1, 2).reshape(-1, square.shape[3]) + 1

    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for n in (8, 13, 30):
        x = torch.randn(2, n, n, 5)
        assert_same(compiled(x), fn(x))
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize(
    ("size", "written"),
    [
        # (what a view makes of s, what is sent)
        (lambda s: (s * s) // s, lambda s: s),
        (lambda s: (6 * s * s) // (2 * s), lambda s: 3 * s),
        (lambda s: (s - s % 4) // 4, lambda s: s // 4),
        (lambda s: (s * s + 1) // (s + 1), lambda s: (s * s + 1) // (s + 1)),
        (lambda s: (s + s // 3 - (s + s // 3) % 7) // 7, lambda s: (s + s // 3) // 7),
    ],
)
def test_common_factors_of_a_size_are_divided_out(size, written):
    symbol = sympy.Symbol("s0", integer=True, positive=True)
    shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    sizes = Sizes()
    functions = torch.utils._sympy.functions

    class Traced:
        """Python's arithmetic as torch writes it."""

        def __init__(self, expr):
            self.expr = sympy.sympify(expr)

        def __add__(self, other):
            return Traced(self.expr + getattr(other, "expr", other))

        def __sub__(self, other):
            return Traced(self.expr - getattr(other, "expr", other))

        def __mul__(self, other):
            return Traced(self.expr * getattr(other, "expr", other))

        __rmul__ = __mul__

        def __floordiv__(self, other):
            return Traced(functions.FloorDiv(self.expr, getattr(other, "expr", other)))

        def __mod__(self, other):
            return Traced(functions.PythonMod(self.expr, getattr(other, "expr", other)))

    def value(message, s):
        operands = [value(operand, s) for operand in message.get("operands", [])]
        return {
            "KIND_CONSTANT": lambda: message["constant"],
            "KIND_SYMBOL": lambda: s,
            "KIND_ADD": lambda: sum(operands),
            "KIND_MUL": lambda: math.prod(operands),
            "KIND_FLOOR_DIV": lambda: operands[0] // operands[1],
            "KIND_MOD": lambda: operands[0] % operands[1],
        }[message["kind"]]()

    def message(fn):
        return sizes._message(sizes._read(fn(Traced(symbol)).expr, shape_env))

    def nodes(message):
        return 1 + sum(nodes(operand) for operand in message.get("operands", []))

    assert nodes(message(size)) == nodes(message(written))
    for s in range(1, 60):
        assert value(message(size), s) == size(s) == written(s)


def test_graphs_after_a_break_each_compile():
    def fn(x):
        y = torch.relu(x) * 2
        torch._dynamo.graph_break()
        return y.sum(dim=0)

    x = torch.randn(8, 5)
    assert_same(run(fn, x), fn(x))
    assert kiln_torch.stats()["graphs"] == 2


def test_an_operator_without_a_lowering_is_a_counted_library_step():
    def fn(x):
        values, indices = torch.mode(x * 2)
        return values + 1, indices

    x = torch.randn(4, 20)
    actual, expected = run(fn, x), fn(x)
    assert_same(actual, expected)
    stats = kiln_torch.stats()
    assert stats["library_ops"] == {"aten.mode.default": 1}
    assert stats["steps"]["library"] == 1 and stats["fallbacks"] == []


def test_library_results_of_dynamic_size_follow_the_run():
    def fn(x):
        return torch.nanmedian(x + 1, dim=-1)[0] * 2

    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for n in (5, 9, 31):
        x = torch.randn(n, n + 1)
        assert_same(compiled(x), fn(x))


def test_inputs_written_in_place_are_written():
    def fn(x, y):
        x.add_(y)
        y[1:3] = 7
        return x * 2

    a, b = torch.randn(5, 4), torch.randn(5, 4)
    c, d = a.clone(), b.clone()
    assert_same(run(fn, a, b), fn(c, d))
    assert_same([a, b], [c, d])


def test_outputs_that_are_inputs_views_or_constants():
    def fn(x):
        return x, x.t(), x[1:], x + 0, torch.ones(2), None, 3

    x = torch.randn(3, 4)
    actual, expected = run(fn, x), fn(x)
    assert actual[0] is x
    assert_same(actual, expected)
    assert actual[1].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2, (x * 2).clone()),
        lambda x: (y := x * 2, y.clone(), y.t(), y[1]),
        lambda x: (y := x * 2, y.repeat(1, 1), y.flip(0).flip(0)),
        lambda x: (y := x * 2, y.to(torch.float32, copy=True), y[1].clone()),
        lambda x: torch.tensor_split(x.repeat(2, 1), 2),
        lambda x: (y := x.expand(2, *x.shape).clone(), y[0], y[1]),
        lambda x: (y := torch.mode(x)[0], y.clone(), y[0]),
        lambda x: (x.clone(), x.clone()),
        lambda x: ((y := x * 2).clone(), y, y[1:]),
        lambda x: ((y := x.view(2, 1, 8).sin()).flip(1), *torch.tensor_split(y, 2)),
    ],
)
def test_outputs_share_storage_as_eagers_do(fn, grad):
    def shared(outputs):
        cells = [output.untyped_storage()._cdata for output in outputs]
        return [cells.index(cell) for cell in cells]

    x = torch.randn(4, 4, requires_grad=grad)
    actual, expected = run(fn, x), fn(x)
    assert_same(actual, expected)
    assert shared(actual) == shared(expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs_keep_their_place_in_the_input(dynamic):
    def fn(x):
        return torch.tensor_split(x, 2)[1][-1], x.t()[1:], x.diagonal(1), x.unfold(1, 3, 2)

    x = torch.randn(4, 5)
    actual, expected = run_dynamic(fn, x, dynamic), fn(x)
    assert_same(actual, expected)
    assert [a.data_ptr() for a in actual] == [e.data_ptr() for e in expected]


def test_what_a_backward_graph_reads_of_the_inputs_is_not_copied():
    saved = []

    def fn(x, weight):
        return (x * weight).exp()

    def pack(tensor):
        saved.append(tensor.data_ptr())
        return tensor

    x, weight = (torch.randn(8, 6)[:, ::2].requires_grad_() for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run_dynamic(fn, x, True, weight).sum().backward()
    assert {x.data_ptr(), weight.data_ptr()} <= set(saved)
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2), (), (1,)])
def test_empty_and_scalar_tensors(shape):
    def fn(x):
        return x * 2, x.sum(), torch.cat([x, x]) if x.dim() else x

    x = torch.randn(shape)
    assert_same(run(fn, x), fn(x))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
)
def test_dtypes(dtype):
    def fn(x, y):
        return x + y * 2, (x > y), torch.where(x > y, x, y), x.sum(), x.amax(0)

    if dtype.is_floating_point:
        x, y = torch.randn(6, 37).to(dtype), torch.randn(37).to(dtype)
    else:
        x, y = torch.randint(0, 100, (6, 37)).to(dtype), torch.randint(0, 100, (37,)).to(dtype)
    low = dtype in (torch.float16, torch.bfloat16)
    assert_same(run(fn, x, y), fn(x, y), tol=2e-2 if low else 1e-4)


def test_strided_and_channels_last_inputs_and_outputs():
    def fn(x):
        return torch.nn.functional.relu(x) + 1

    for x in (
        torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(10, 12)[::2, 1::3],
        torch.randn(4, 6).t(),
    ):
        torch._dynamo.reset()
        assert_same(run(fn, x), fn(x))


def test_an_index_out_of_range_raises_as_eager_does():
    def fn(table, index):
        return torch.nn.functional.embedding(index, table) * 2

    compiled = torch.compile(fn, backend="kiln")
    table = torch.randn(10, 4)
    assert_same(compiled(table, torch.tensor([1, 9])), fn(table, torch.tensor([1, 9])))
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([1, 10]))


def test_training_gives_eagers_gradients():
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 31), torch.nn.GELU(), torch.nn.LayerNorm(31), torch.nn.Linear(31, 5)
    )
    x = torch.randn(9, 12, requires_grad=True)
    model(x).square().sum().backward()
    expected = [x.grad.clone()] + [p.grad.clone() for p in model.parameters()]
    x.grad = None
    model.zero_grad()
    run(model, x).square().sum().backward()
    actual = [x.grad] + [p.grad for p in model.parameters()]
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_new_weights_are_seen():
    model = torch.nn.Linear(6, 3)
    compiled = torch.compile(model, backend="kiln")
    x = torch.randn(4, 6)
    with torch.no_grad():
        compiled(x)
        model.weight.mul_(3)
        assert_same(compiled(x), model(x))


@pytest.mark.parametrize("rows", [4, 64])  # few elements keep the interpreter's lock
def test_threads_share_one_program(rows):
    def fn(x):
        return torch.softmax(x, -1).sum(-1)

    compiled = torch.compile(fn, backend="kiln")
    inputs = [torch.randn(rows, 128) for _ in range(4)]
    compiled(inputs[0])
    failures = []

    def work(x):
        for _ in range(50):
            if not torch.allclose(compiled(x), fn(x), atol=1e-5):
                failures.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_kernels_run_on_as_many_threads_as_torch(monkeypatch):
    loaded = []

    def load(*args):
        loaded.append(load_program(*args))
        return loaded[-1]

    monkeypatch.setattr("kiln_torch.graphs.load_program", load)
    x = torch.randn(64, 128)
    before = torch.get_num_threads()
    try:
        most = len(os.sched_getaffinity(0))
        asked = ((1, {}, 1), (2, {}, 2), (1, {"threads": 2}, 2), (2, {"threads": most + 1}, most))
        for threads, options, expected in asked:
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            assert_same(run(torch.exp, x, **options), x.exp())
            assert loaded[-1].info()["threads"] == min(expected, most)
    finally:
        torch.set_num_threads(before)


def test_a_library_step_may_run_its_own_program():
    inner = []

    @torch.library.custom_op("kiln_test::again", mutates_args=())
    def again(x: torch.Tensor) -> torch.Tensor:
        if active and not inner:
            inner.append(None)  # the inner run's step is plain
            inner[0] = compiled(x * 3)
        return x + 1

    again.register_fake(torch.empty_like)

    def fn(x):
        return again(x * 2) - 5, x.exp()

    active = False
    compiled = torch.compile(fn, backend="kiln", options={"fallback": "raise"}, dynamic=False)
    x = torch.randn(8)
    expected = compiled(x)
    active = True
    assert_same(compiled(x), expected)
    active = False
    assert_same(inner[0], fn(x * 6))


def test_without_a_server_eager_runs_with_one_warning(monkeypatch):
    monkeypatch.setenv("KILN_SERVER", "127.0.0.1:9")

    def fn(x):
        return x * 2 + 1

    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_same(run(fn, x), fn(x))
        torch._dynamo.reset()
        assert_same(run(fn, x), fn(x))
    ours = [w for w in caught if "kiln" in str(w.message)]
    assert len(ours) == 1 and "127.0.0.1:9" in str(ours[0].message)
    assert len(kiln_torch.stats()["fallbacks"]) == 2


def test_fallback_raise_raises(monkeypatch):
    monkeypatch.setenv("KILN_SERVER", "127.0.0.1:9")
    with pytest.raises(Exception, match="127.0.0.1:9"):
        run(lambda x: x + 1, torch.randn(2), fallback="raise")


def test_an_unknown_option_is_named():
    with pytest.raises(Exception, match="no option 'fallbak'"):
        run(lambda x: x + 1, torch.randn(2), fallbak="raise")


def test_what_cannot_be_sent_falls_back_with_its_reason():
    def fn(x):
        return x.view(torch.float4_e2m1fn_x2).view(torch.uint8) * 2

    x = torch.arange(6, dtype=torch.uint8)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert_same(run(fn, x), fn(x))
    fallbacks = kiln_torch.stats()["fallbacks"]
    assert len(fallbacks) == 1 and "float4_e2m1fn_x2" in fallbacks[0]["reason"]


def test_saved_graphs_and_explanations(tmp_path, server):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    paths = kiln_torch.save_graph(model, (torch.randn(4, 8),), tmp_path / "mlp.kgraph")
    assert paths == [tmp_path / "mlp.kgraph"] and paths[0].stat().st_size < 10_000
    both = kiln_torch.save_graph(model, (torch.randn(4, 8),), tmp_path / "t.kgraph", train=True)
    assert [p.name for p in both] == ["t.0.kgraph", "t.1.kgraph"]
    text = kiln_torch.explain(model, torch.randn(4, 8))
    assert "kernel" in text and "addmm" in text


def test_a_graph_that_the_disk_has_no_room_for_leaves_the_one_of_before(tmp_path):
    path, limits = tmp_path / "mlp.kgraph", resource.getrlimit(resource.RLIMIT_FSIZE)
    _write_whole(path, b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            _write_whole(path, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == [path.name]


def negated(*size):
    """Tensors that show their memory negated."""
    return torch.conj(torch.complex(torch.zeros(size), torch.randn(size))).imag


@pytest.mark.parametrize("strided", [False, True])
def test_lazy_views_are_what_they_show(strided):
    plain, lazy = torch.randn(6, 4), negated(6, 4)
    conjugated = torch.conj(torch.randn(6, 4, dtype=torch.complex64))
    if strided:
        lazy, conjugated = lazy[::2], conjugated[::2]
    assert lazy.is_neg() and conjugated.is_conj()
    compiled = torch.compile(lambda x: x * 3, backend="kiln")
    for x in (plain, lazy, conjugated, plain):
        assert_same(compiled(x), x * 3)
    assert kiln_torch.stats()["fallbacks"] == []


def test_a_gradient_that_is_a_lazy_view():
    x = torch.randn(5, requires_grad=True)
    gradients = []
    for fn in (torch.compile(lambda x: x.sin() * 2, backend="kiln"), lambda x: x.sin() * 2):
        for gradient in (torch.ones(5), negated(5)):
            x.grad = None
            torch.manual_seed(3)
            fn(x).backward(gradient)
            gradients.append((x.grad, gradient * 2 * x.detach().cos()))
    for actual, expected in gradients:
        assert_same(actual, expected)


def test_the_profiler_shows_each_step():
    def fn(x):
        return torch.linalg.qr(torch.softmax(x, -1)).R.exp()

    compiled = torch.compile(fn, backend="kiln", options={"fallback": "raise"})
    x = torch.randn(6, 6)
    compiled(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert_same(compiled(x), fn(x))
    counts = {event.key: event.count for event in profile.key_averages()}
    steps = kiln_torch.stats()["steps"]
    kernels = [name for name in counts if name.startswith("kiln kernel ")]
    assert sum(counts[name] for name in kernels) == steps["native"] >= 2
    assert counts["kiln library step aten.linalg_qr.default (linalg_qr)"] == 1
    compiled(x)  # without a profiler nothing is recorded, and nothing fails
