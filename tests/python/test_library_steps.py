"""Library steps: whatever an operator of torch returns, a run neither crashes nor is wrong."""

import json
import warnings

import pytest
import torch
from compare import assert_same

import kiln_torch
from kiln_torch import products
from kiln_torch.library import LibraryStep, StepError
from kiln_torch.products import aligned_product

LIBRARY = torch.library.Library("kiln_test", "DEF")
LIBRARY.define("odd(Tensor x, str how) -> Tensor")
LIBRARY.define("pair(Tensor x, str how) -> (Tensor, Tensor)")
LIBRARY.define("sized(Tensor x) -> (Tensor, SymInt, Tensor, Tensor)")

# What a kernel may return for a 4 x 4 float tensor where its meta function says "a new one".
ODD = {
    "itself": lambda x: x,
    "view": lambda x: x.view(16).view(4, 4),
    "transposed view": lambda x: x.t(),
    "other strides": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[0].expand(4, 4),
    "overlapping": lambda x: x.view(16)[:7].unfold(0, 4, 1),
    "scattered": lambda x: x.new_zeros(1000).as_strided((4, 4), (200, 3)).copy_(x),
    "numpy": lambda x: torch.from_numpy(x.numpy()[:]),
    "conjugated": lambda x: torch.complex(x, x).conj().imag,
    "negated": lambda x: x._neg_view(),
    "zeros without memory": lambda x: torch._efficientzerotensor((4, 4)),
    "sparse": lambda x: x.to_sparse(),
    "float64": lambda x: x.double(),
    "parameter": lambda x: torch.nn.Parameter(x),
}
SIZES = {
    "smaller": lambda x: x[:2].clone(),
    "flat": lambda x: x.reshape(16).clone(),
}
PAIRS = {
    "each other": lambda x: (shared := x.clone(), shared),
    "halves": lambda x: x.repeat(2, 1).split(4),
    "argument and its view": lambda x: (x, x.t()),
    "nothing": lambda x: (x + 1, None),
    "another size": lambda x: (x + 1, x.new_zeros(3, dtype=torch.int64)),
}
CALLS = []


@pytest.fixture(autouse=True)
def _results_may_alias():
    """Where the environment has CI, torch raises for what these operators return."""
    with torch._functorch.config.patch(error_on_custom_op_aliasing=False):
        yield


def odd(x, how):
    if how == "fails once":
        CALLS.append(how)
        if len(CALLS) == 2:  # eager is first
            raise ValueError("not this time")
        return x.clone()
    return (ODD | SIZES)[how](x)


LIBRARY.impl("odd", odd, "CPU")
LIBRARY.impl("odd", lambda x, how: torch.empty_like(x), "Meta")
LIBRARY.impl("pair", lambda x, how: PAIRS[how](x), "CPU")
LIBRARY.impl("pair", lambda x, how: (torch.empty_like(x), torch.empty_like(x)), "Meta")
LIBRARY.impl("sized", lambda x: (x + 1, x.shape[0], None, x * 2), "CPU")
LIBRARY.impl("sized", lambda x: (torch.empty_like(x), x.shape[0], None, torch.empty_like(x)), "Meta")


def run(fn, *args, **options):
    compiled = torch.compile(fn, backend="kiln", dynamic=False, options=options)
    with torch.no_grad():
        return compiled(*args)


def same_values(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e.to_dense().to(a.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_among_the_results(dynamic):
    def fn(x):
        a, size, _, b = torch.ops.kiln_test.sized(x)
        return a * size, torch.arange(size), b, size

    with torch.no_grad():
        compiled = torch.compile(fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})
        for rows in (3, 5, 4):
            x = torch.randn(rows, 2)
            assert_same(compiled(x), fn(x))


@pytest.mark.parametrize("how", ODD)
def test_a_result_is_plain_memory_of_its_own(how):
    def fn(x):
        y = x * 2
        z = torch.ops.kiln_test.odd(y, how)
        # Its storage must outlive y's, which this may reuse.
        w = torch.ops.kiln_test.odd(y * 3, how)
        return (z + w).relu(), z, w

    compiled = torch.compile(fn, backend="kiln", dynamic=False)
    x, other = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad():
        actual = compiled(x)
        compiled(other)  # writes the workspace anew
    y = x * 2
    z, w = (ODD[how](value).to_dense().float() for value in (y, y * 3))
    same_values(actual, ((z + w).relu(), z, w))
    assert [a.stride() for a in actual] == [(4, 1)] * 3
    assert kiln_torch.stats()["fallbacks"] == []
    assert kiln_torch.stats()["library_ops"] == {"kiln_test.odd.default": 2}


@pytest.mark.parametrize("how", ["each other", "halves", "argument and its view"])
def test_results_may_share_memory(how):
    def fn(x):
        a, b = torch.ops.kiln_test.pair(x * 2, how)
        return a, b, a + b

    x = torch.randn(4, 4)
    a, b = PAIRS[how](x * 2)
    same_values(run(fn, x), (a, b, a + b))
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("how", ["nothing", "another size"])
def test_a_result_that_nobody_uses_may_be_anything(how):
    def fn(x):
        return torch.ops.kiln_test.pair(x, how)[0] * 2

    x = torch.randn(4, 4)
    same_values((run(fn, x),), ((x + 1) * 2,))
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("how", ["nothing", "another size", *SIZES])
def test_a_used_result_that_does_not_fit_runs_eager(how):
    if how in SIZES:

        def fn(x):
            return torch.ops.kiln_test.odd(x, how).sum() + x

    else:

        def fn(x):
            second = torch.ops.kiln_test.pair(x, how)[1]
            return torch.ops.kiln_test.odd(x, "itself") * 2, second

    x = torch.randn(4, 4)
    if how == "nothing":
        with pytest.warns(UserWarning, match=r"pair.default \(node 'pair.*NoneType"):
            out, second = run(fn, x)
        assert second is None and torch.equal(out, x * 2)
    else:
        with pytest.warns(UserWarning, match=r"(odd|pair).default \(node .* the graph has float32"):
            assert_same(run(fn, x), fn(x))
    assert len(kiln_torch.stats()["fallbacks"]) == 1
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"library step kiln_test.*default \(node"):
        run(fn, x, fallback="raise")


# Of bfloat16 the kernel leaves out what its meta function declares, and its backward makes it.
def test_the_bags_of_an_embedding_bag():
    weight = torch.randn(10, 4, dtype=torch.bfloat16, requires_grad=True)
    indices, offsets = torch.tensor([1, 2, 9, 5, 4]), torch.tensor([0, 2, 2])

    def fn(weight):
        return torch.nn.functional.embedding_bag(indices, weight, offsets, mode="sum")

    given = torch.randn(3, 4, dtype=torch.bfloat16)
    expected = torch.autograd.grad(fn(weight), weight, given)
    actual = torch.autograd.grad(torch.compile(fn, backend="kiln")(weight), weight, given)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert kiln_torch.stats()["fallbacks"] == []


def test_an_operator_that_fails_here_only_runs_eager():
    CALLS.clear()

    def fn(x):
        return torch.ops.kiln_test.odd(x, "fails once") + 1

    x = torch.randn(4, 4)
    assert torch.equal(fn(x), x + 1)
    with pytest.warns(UserWarning, match="not this time"):
        assert torch.equal(run(fn, x), x + 1)
    assert len(kiln_torch.stats()["fallbacks"]) == 1


def test_an_operators_own_error_is_what_eager_raises():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            run(lambda x: torch.linalg.inv(x) + 1, torch.zeros(3, 3))
    assert kiln_torch.stats()["fallbacks"] == []


COMPLEX = torch.complex(torch.randn(4, 6), torch.randn(4, 6))
VIEWS = {
    "unfold": (lambda x: x.unfold(2, 4, 1), torch.randn(5, 5, 5, 5)),
    "unfold of a value": (lambda x: (x + 1).unfold(0, 3, 2).relu(), torch.randn(9, 4)),
    "overlapping": (lambda c: (c * 2).as_strided((3, 4), (1, 2)) + 1, COMPLEX),
    "expand": (lambda c: (c * 2)[:, None].expand(4, 3, 6), COMPLEX),
    "real and imag": (lambda c: ((c * 2).real, (c * 2).imag + 1), COMPLEX),
    "conj": (lambda c: ((c * 2).conj(), c.conj() @ c.T), COMPLEX),
    # Under a dispatch mode, as AOTAutograd has one in a first call, torch's own answer is wrong.
    "pinv": (torch.linalg.pinv, torch.complex(torch.eye(5), torch.randn(5, 5))),
    "adjoint": (lambda c: torch.linalg.pinv(c.mH @ c + torch.eye(6)), COMPLEX),
    "view_as_complex": (lambda x: torch.view_as_complex(x * 2).sum(0), torch.randn(3, 2)),
    "split": (lambda c: (c * 2).split(2), COMPLEX),
    "unbind": (lambda c: [row + 1 for row in (c * 2).unbind()], COMPLEX),
    "an input": (lambda c: (c, c.clone(), c.view(24)), COMPLEX),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_equal_eager(name):
    fn, x = VIEWS[name]
    actual, expected = run(fn, x), fn(x)
    torch.testing.assert_close(actual, expected)
    assert kiln_torch.stats()["fallbacks"] == []


NUMBERS = torch.arange(6).reshape(2, 3)
TYPES = {
    "complex scalar": lambda x: (x * 1j, torch.full((2,), 1 - 2j), x.float() == 1j),
    "complex32": lambda x: torch.view_as_real(x.half().to(torch.complex32)),
    "uint16": lambda x: x.to(torch.uint16).to(torch.int32) + 1,
    "uint32": lambda x: x.to(torch.uint32).clone(),
    "uint64": lambda x: (x.to(torch.uint64), x + 1),
    **{
        str(dtype): lambda x, dtype=dtype: (x.float().to(dtype).float() * 2, x.float().to(dtype))
        for dtype in (
            torch.float8_e4m3fn,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2,
            torch.float8_e5m2fnuz,
            torch.float8_e8m0fnu,
        )
    },
    "constants": lambda x: (
        torch.tensor([1 + 2j, -0.0j]) * x[0, 0],
        torch.tensor([1, 65535], dtype=torch.uint16),
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_that_no_kernel_knows_do_not_fall_back(name):
    actual, expected = run(TYPES[name], NUMBERS), TYPES[name](NUMBERS)
    if not isinstance(actual, (tuple, list)):
        actual, expected = (actual,), (expected,)
    for a, e in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (e.dtype, e.shape, e.stride())
        assert torch.equal(a.view(torch.uint8), e.view(torch.uint8))
    assert kiln_torch.stats()["fallbacks"] == []


def test_gradients_of_complex_inputs():
    w = COMPLEX.clone().requires_grad_()

    def fn(w):
        return ((w * (1 - 2j)).abs() ** 2).sum() + w.conj().imag.sum()

    expected = torch.autograd.grad(fn(w), w)
    actual = torch.autograd.grad(torch.compile(fn, backend="kiln")(w), w)
    torch.testing.assert_close(actual, expected)
    assert kiln_torch.stats()["fallbacks"] == []


def _view(tensor):
    return {
        "dtype": "DTYPE_BFLOAT16",
        "sizes": [{"value": str(n)} for n in tensor.shape],
        "strides": [{"value": str(n)} for n in tensor.stride()],
    }


def _matrix(rows, columns, turned):
    if turned:
        return torch.randn(columns, rows, dtype=torch.bfloat16).t()
    return torch.randn(rows, columns, dtype=torch.bfloat16)


@pytest.mark.parametrize("bias", [None, (-1,), (1, -1), (-2, -1), (-2, 1), (1,)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", [(64, 1025, 121), (64, 1024, 121), (121, 1024, 64)])
def test_products_of_unaligned_sizes(sizes, turned, bias, monkeypatch):
    monkeypatch.setattr(products, "_SECONDS_OF_AN_OPERATION", 1.0)  # small ones, too
    m, k, n = sizes
    matrices = [_matrix(m, k, turned[0]), _matrix(k, n, turned[1])]
    op = torch.ops.aten.mm.default
    args = matrices
    if bias is not None:
        shape = [{-1: n, -2: m}.get(size, size) for size in bias]
        args = [100 * torch.randn(shape, dtype=torch.bfloat16), *matrices]
        op = torch.ops.aten.addmm.default
    product = aligned_product(op, [_view(arg) for arg in args])
    contiguous = (m if turned[0] else k), (k if turned[1] else n), n
    assert (product is not None) == any(size % 8 for size in contiguous)
    if product is not None:
        got = product(*args)
        assert got.is_contiguous() and got.dtype == torch.bfloat16 and got.shape == (m, n)
        wide = op(*(arg.double() for arg in args))
        assert float((got.double() - wide).abs().max()) <= 2**-7 * float(wide.abs().max())


@pytest.mark.parametrize("size, is_taken", [(1, False), (16, True)])
def test_small_products_of_unaligned_sizes_stay(size, is_taken):
    sizes = (64 * size, 1025 * size), (1025 * size, 121)
    views = [_view(torch.empty(*of, dtype=torch.bfloat16)) for of in sizes]
    assert (aligned_product(torch.ops.aten.mm.default, views) is not None) == is_taken


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_with_padding_are_multiplied_where_they_lie(turned, side, has_bias, monkeypatch):
    whole = torch.full((2048, 1008), torch.nan, dtype=torch.bfloat16)
    whole[:, :1001] = torch.randn(2048, 1001)
    before = whole[:, :1001].clone()
    given, true = (whole.t(), before.t()) if turned else (whole, before)
    other = torch.randn(*((true.shape[1], 512) if side == 0 else (512, true.shape[0])))
    wide, views = [true, other.bfloat16()], [given, other.bfloat16()]
    if side == 1:
        wide, views = wide[::-1], views[::-1]
    args, op = [*views], torch.ops.aten.mm.default
    if has_bias:
        bias = torch.randn(wide[0].shape[0], 1, dtype=torch.bfloat16)
        wide, args = [bias, *wide], [bias, *args]
        op = torch.ops.aten.addmm.default
    messages = [_view(arg) for arg in args]
    messages[-2 + side]["row_padding"] = 7
    product, taken = aligned_product(op, messages), []
    for name in ("mm", "addmm"):
        call = getattr(torch, name)

        def record(*given, call=call, **options):
            taken.append(given[-2 + side])
            return call(*given, **options)

        monkeypatch.setattr(torch, name, record)
    got = product(*args)
    assert {matrix.data_ptr() for matrix in taken} == {whole.data_ptr()}
    assert torch.equal(whole[:, :1001], before)
    expected = op(*(arg.double() for arg in wide))
    assert got.is_contiguous() and got.shape == expected.shape
    assert float((got.double() - expected).abs().max()) <= 2**-7 * float(expected.abs().max())


def test_rows_with_padding_are_for_products_alone():
    view = _view(torch.randn(8, 16).bfloat16()) | {"row_padding": 3}
    step = {"op": "aten.relu.default", "node": "relu", "args": [{"tensor": view}], "results": [1]}
    with pytest.raises(StepError, match="'relu'.* takes rows with padding"):
        LibraryStep(json.dumps(step))


def test_products_that_stay_as_they_are():
    a, b = _matrix(64, 64, False), _matrix(64, 1001, False)
    mm = torch.ops.aten.mm.default
    assert aligned_product(mm, [_view(a), _view(b)]) is None  # too small
    a, b = _matrix(2048, 2048, False), _matrix(2048, 1001, False)
    assert aligned_product(mm, [_view(a), _view(b)]) is not None
    assert aligned_product(torch.ops.aten.bmm.default, [_view(a), _view(b)]) is None
    assert aligned_product(mm, [_view(a) | {"dtype": "DTYPE_FLOAT32"}] * 2) is None
    dynamic = _view(a) | {"sizes": [{"expr": {}}, {"value": "2048"}]}
    assert aligned_product(mm, [dynamic, _view(b)]) is None


def _message(value):
    """kiln.v1.Argument as protobuf JSON."""
    if isinstance(value, torch.Tensor):
        return {"tensor": {}}
    if isinstance(value, list):
        return {"list": {"items": [_message(item) for item in value]}}
    if isinstance(value, bool):
        return {"scalar": {"bool": value}}
    return {"scalar": {"sym_int": {"value": str(value)}}} if isinstance(value, int) else {"scalar": {}}


def _numbers(value):
    """Of an argument, those that travel beside the step."""
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if type(value) is int else []


@pytest.mark.parametrize(
    ("name", "sizes", "others"),
    [
        ("mm", [(3, 4), (4, 5)], []),
        ("addmm", [(5,), (3, 4), (4, 5)], []),
        ("bmm", [(2, 3, 4), (2, 4, 5)], []),
        ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)], []),
        ("convolution", [(2, 3, 8, 8), (6, 3, 3, 3), (6,)], [[2, 1], [1, 0], [1, 1], False, [0, 0], 1]),
        ("convolution", [(2, 4, 5), (4, 2, 3)], [None, [2], [0], [1], True, [1], 2]),
    ],
)
def test_a_plain_step_calls_torchs_function_for_the_operator(name, sizes, others):
    op = getattr(torch.ops.aten, name).default
    tensors = [torch.randn(size) for size in sizes]
    args = [*tensors, *others]
    step = LibraryStep(
        json.dumps({"op": f"aten.{name}.default", "args": [*map(_message, args)], "results": [{}]})
    )
    numbers = [number for other in others for number in _numbers(other)]
    assert step._is_plain and step._call is getattr(torch, name)
    with torch.no_grad():
        assert_same(step(tensors, numbers)[0], op(*args))
        with pytest.raises(StepError, match=f"aten.{name}.default.* failed"):
            step([tensors[0].new_ones(7, 7), *tensors[1:]], numbers)
    assert_same(step(tensors, numbers)[0], op(*args))  # autograd looks on


def test_a_step_whose_sizes_differ_from_call_to_call_takes_them():
    stride = {"scalar": {"sym_int": {"expr": {"symbol": 0}}}}
    others = [None, [1], [0], [1], False, [0], 1]
    messages = list(map(_message, [torch.zeros(1), torch.zeros(1), *others]))
    messages[3] = {"list": {"items": [stride]}}
    step = LibraryStep(
        json.dumps({"op": "aten.convolution.default", "args": messages, "results": [{}]})
    )
    assert not step._is_plain
    x, weight = torch.randn(2, 3, 9), torch.randn(4, 3, 3)
    with torch.no_grad():
        for size in (1, 2, 3):
            expected = torch.conv1d(x, weight, stride=size)
            assert_same(step([x, weight], [size, 0, 1, 0, 1])[0], expected)
