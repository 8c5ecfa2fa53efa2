"""Every decomposition against the operator that it stands for: all results, those included that only
a backward reads.

torch's own samples of all operators run eager, forward and backward, under a mode that sees each ATen
call below autograd; where we take that operator apart, it runs a second time so. What no sample
reaches is called here by hand. Every entry of the list has to have been compared.
"""

import collections
import functools
import itertools
import math
import warnings

import pytest
import torch
from compare import assert_same, to_double
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from kiln_torch.decompositions import decompositions

aten = torch.ops.aten
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3}
SAMPLES = {torch.float32: 2, torch.bfloat16: 1}  # of each operator
CALLS = 10  # of each ATen operator and dtype: some are in nearly every sample

# Results hold nothing yet: only their types are compared.
UNINITIALIZED = {aten.empty_like.default, aten.new_empty.default}


@functools.cache
def table():
    """Of the CPU, and what is taken apart on a GPU alone."""
    return decompositions("cuda") | decompositions()


def compare(op, args, kwargs):
    """Calls `op` whole and taken apart; AssertionError where a result differs. The whole's result."""
    expected = op(*args, **kwargs)
    try:
        reference = op(*tree_map(to_double, args), **tree_map(to_double, kwargs))
    except (RuntimeError, NotImplementedError):
        reference = None  # such as operators of integers only
    actual = table()[op](*args, **kwargs)
    if actual is NotImplemented:
        return expected  # left whole in this case
    assert len(tree_leaves(actual)) == len(tree_leaves(expected)), "number of results"
    if op in UNINITIALIZED:
        assert (actual.dtype, actual.shape, actual.stride()) == (
            (expected.dtype, expected.shape, expected.stride())
        )
        return expected
    outputs, results, exact = map(tree_leaves, (actual, expected, reference))
    exact = exact if len(exact) == len(results) else [None] * len(results)
    for a, e, r in zip(outputs, results, exact, strict=True):
        usable = isinstance(r, torch.Tensor) and isinstance(e, torch.Tensor)
        usable = usable and r.shape == e.shape and e.is_floating_point()
        dtype = e.dtype if isinstance(e, torch.Tensor) else None
        assert_same(plain(a), plain(e), r if usable else None, TOLERANCE.get(dtype, 1e-4), "result")
    return expected


def plain(value):
    """Autograd's zeros may have no memory at all."""
    zero = isinstance(value, torch.Tensor) and value._is_zerotensor()
    return torch.zeros(value.shape, dtype=value.dtype) if zero else value


def detached(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


class CrossReference(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()
        self.differences = {}
        self.first = collections.defaultdict(list)  # arguments of each operator's first calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in table() or self.calls[func] == CALLS:
            return func(*args, **kwargs)
        self.calls[func] += 1
        if self.calls[func] <= 2:
            self.first[func].append(tree_map(detached, (args, kwargs)))
        try:
            return compare(func, args, kwargs)
        except Exception as error:
            shapes = [list(a.shape) for a in tree_leaves(args) if isinstance(a, torch.Tensor)]
            self.differences.setdefault(str(func), f"{type(error).__name__}: {error} {shapes}")
            return func(*args, **kwargs)


def call_samples(info, dtype, mode):
    differentiable = dtype.is_floating_point and info.supports_autograd
    differentiable = differentiable and dtype in info.supported_backward_dtypes("cpu")
    samples = info.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for sample in itertools.islice(samples, SAMPLES[dtype]):
        with mode:
            result = info.op(sample.input, *sample.args, **sample.kwargs)
            outputs = [
                leaf
                for leaf in tree_leaves(result)
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            if outputs:
                torch.autograd.backward(outputs, [torch.randn_like(out) for out in outputs])


@functools.cache
def cross_reference(dtype):
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    mode = CrossReference()
    for info in op_db:
        if dtype in info.supported_dtypes("cpu") and not info.name.startswith("jiterator"):
            try:
                call_samples(info, dtype, mode)
            except (RuntimeError, NotImplementedError):
                continue  # eager itself cannot
    return mode


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_samples_give_equal_results_taken_apart(dtype):
    mode = cross_reference(dtype)
    assert mode.differences == {}
    assert len(mode.calls) > 100


# Gradients are cast to what they are gradients of; lists of tensors are of one type each.
def may_differ_in_type(op):
    return "_backward" in op.name() or "_foreach_" in op.name() or op in UNINITIALIZED


OTHER_TYPES = {
    "bfloat16": lambda x: x.bfloat16(),
    "float64": lambda x: x.double(),
    "a float64 number": lambda x: x.reshape(-1)[0].double(),
    "a bfloat16 number": lambda x: x.reshape(-1)[0].bfloat16(),
    "int64": lambda x: (x * 3).long(),
}


def of_other_types(args):
    """(what is other, `args` with one of several floating tensors of another type)"""
    leaves, spec = tree_flatten(args)
    floats = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for i in floats if len(floats) > 1 else ():
        for name, other in OTHER_TYPES.items() if leaves[i].numel() else ():
            changed = [other(x) if j == i else x for j, x in enumerate(leaves)]
            yield f"tensor {floats.index(i)} as {name}", tree_unflatten(changed, spec)


def test_results_have_atens_types_where_those_of_arguments_differ():
    compared, differences = 0, {}
    calls = [(op, call) for op, first in cross_reference(torch.float32).first.items() for call in first]
    calls += [(op, (args, kwargs[0] if kwargs else {})) for op, args, *kwargs in by_hand()]
    for op, call in calls:
        for what, (args, kwargs) in of_other_types(call) if not may_differ_in_type(op) else ():
            try:
                expected = op(*args, **kwargs)
            except Exception:  # of many types
                continue  # eager itself wants one type
            compared += 1
            actual = table()[op](*args, **kwargs)
            if actual is NotImplemented:
                continue
            for ours, theirs in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
                if isinstance(theirs, torch.Tensor) and ours.dtype != theirs.dtype:
                    differences[f"{op}, {what}"] = f"{ours.dtype}, not {theirs.dtype}"
    assert differences == {}
    assert compared > 200


def randn(*sizes, dtype=torch.float32):
    return torch.randn(sizes).to(dtype)


def batch_norm_cases():
    for dtype, parameters in itertools.product((torch.float32, torch.bfloat16), repeat=2):
        if dtype == torch.float32 and parameters == torch.bfloat16:
            continue
        x = randn(4, 3, 5, 2, dtype=dtype)
        stats = [randn(3, dtype=parameters), randn(3, dtype=parameters).abs()]
        affine = [randn(3, dtype=parameters), randn(3, dtype=parameters)]
        for training in (True, False):
            yield aten._native_batch_norm_legit_functional.default, (
                x.to(memory_format=torch.channels_last), *affine, *stats, training, 0.1, 1e-5)
            yield aten._native_batch_norm_legit_functional.default, (
                x, None, None, *stats, training, 0.1, 1e-5)
        yield aten._native_batch_norm_legit.no_stats, (x, *affine, True, 0.1, 1e-5)
        yield aten._native_batch_norm_legit.no_stats, (
            randn(4, 5, 3, dtype=dtype).mT, *affine, True, 0.1, 1e-5)


def mixed_norm_cases():
    x, weight, bias = randn(4, 6, 5, dtype=torch.bfloat16), randn(5), randn(5)
    yield aten.native_layer_norm.default, (x, [5], weight, bias, 1e-5)
    yield aten.native_layer_norm.default, (x.transpose(0, 1), [5], weight, None, 1e-5)
    weight, bias = randn(6), randn(6)
    yield aten.native_group_norm.default, (x, weight, bias, 4, 6, 5, 3, 1e-5)


def nll_cases():
    for reduction, weighted in itertools.product((0, 1, 2), (False, True)):
        for shape in ((5,), (6, 5), (2, 5, 3, 4)):
            x = randn(*shape).log_softmax(0 if len(shape) == 1 else 1)
            target_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
            target = torch.randint(0, 5, target_shape)
            target = torch.where(target == 2, -100, target)
            weight = randn(5).abs() if weighted else None
            op = aten.nll_loss2d_backward.default if len(shape) == 4 else aten.nll_loss_backward.default
            grad = randn(*target_shape) if reduction == 0 else randn()
            yield op, (grad, x, target, weight, reduction, -100, torch.tensor(2.5))


def foreach_cases():
    x, y, z = ([randn(3, 4), randn(5), randn()] for _ in range(3))
    numbers = torch.tensor([0.5, 2.0, -1.0])
    arguments = {
        "Tensor[] self, Scalar": (x, 0.5), "Tensor[] self, Scalar[]": (x, [0.5, 2.0, -1.0]),
        "Tensor[] self, Tensor[]": (x, y), "Tensor[] self, Tensor ": (x, torch.tensor(0.5)),
        "Scalar self, Tensor[]": (1.5, x), "Tensor[] self": (x,),
        "Tensor[] self, Tensor[] tensors1, Tensor[] weights": (x, y, z),
        "Tensor[] self, Tensor[] tensors1, Scalar weight": (x, y, 0.3),
        "Tensor[] self, Tensor[] tensors1, Scalar[] weight": (x, y, [0.3, 0.6, 0.1]),
        "Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value": (x, y, z, 0.5),
        "Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar[]": (x, y, z, [0.5, 2.0, 1.0]),
        "Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Tensor ": (x, y, z, numbers),
    }  # fmt: skip
    for op in decompositions():
        if "_foreach_" not in op.name():
            continue
        signature = str(op._schema).partition("(")[2]
        best = max((key for key in arguments if signature.startswith(key)), key=len)
        args = arguments[best]
        if "_foreach_mm" in op.name():
            args = ([randn(3, 4), randn(2, 5)], [randn(4, 2), randn(5, 3)])
        if any(name in op.name() for name in ("log", "sqrt", "pow", "lgamma")):
            args = tree_map(lambda a: a.abs() if isinstance(a, torch.Tensor) else a, args)
        yield op, args


def hand_made():
    x, y = randn(2, 3, 4), randn(2, 3, 4)
    i, j = torch.tensor([1, 0, 1]), torch.tensor([2, 0, 1])
    image = randn(2, 3, 5, 4)
    return [
        (aten._reshape_alias.default, (x, [6, 4], [4, 1])),
        (aten.zero.default, (x,)),
        (aten._weight_norm_interface.default, (randn(4, 5), randn(4, 1), 0)),
        (aten._weight_norm_interface.default, (randn(4, 5, 3), randn(1, 1, 3), 2)),
        (aten._weight_norm_interface.default, (randn(4), randn(4), 0)),
        (aten._weight_norm_interface_backward.default,
         (randn(4, 5), randn(4, 5), randn(4, 1), randn(4, 1).abs() + 1, 0)),
        (aten.xlogy.Scalar_Other, (x, 2.0)),
        (aten.xlogy.Scalar_Self, (2.0, x.abs())),
        (aten.special_xlog1py.other_scalar, (x, 2.0)),
        (aten.special_xlog1py.self_scalar, (2.0, x.abs())),
        (aten._fused_rms_norm.default, (x, [4], randn(4), 1e-5)),
        (aten._unsafe_index.Tensor, (x, [i, j])),
        (aten._unsafe_index_put.default, (x, [i, j], randn(3, 4), True)),
        (aten.affine_grid_generator.default, (randn(2, 2, 3), [2, 1, 4, 5], False)),
        (aten.clamp_max.default, (x, 0.3)),
        (aten.isin.Tensor_Scalar, (i, 1)),
        (aten.isin.Scalar_Tensor, (1, i)),
        (aten._euclidean_dist.default, (randn(5, 3), randn(4, 3))),
        (aten.floor_divide.Scalar, (x, 0.3)),
        (aten.norm.Scalar, (x, 3)),
        (aten.norm.ScalarOpt_dtype, (x, 2), {"dtype": torch.float64}),
        (aten.norm.ScalarOpt_dim_dtype, (x, 1, [1], True), {"dtype": torch.float64}),
        (aten.fill.Tensor, (x, torch.tensor(2.5))),
        (aten.squeeze_copy.dims, (randn(1, 3, 1), [0, 1])),
        (aten.hann_window.default, (7,)),
        (aten.hann_window.periodic, (7, False)),
        (aten.unsafe_split_with_sizes.default, (x, [1, 3], 2)),
        (aten.all.dims, (x > 0, [0, 2])),
        (aten.count_nonzero.dim_IntList, (x > 0, [0, 2])),
        (aten.nll_loss2d_forward.default,
         (image, torch.randint(0, 3, (2, 5, 4)), randn(3).abs(), 1, -100)),
        (aten.squeeze_copy.dim, (randn(1, 3), 0)),
    ]  # fmt: skip


def distance_cases():
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, torch.inf):
        x, y = randn(2, 5, 3), randn(4, 3).expand(2, 4, 3).contiguous()
        y[0, 0] = x[0, 0]
        distances = aten._cdist_forward(x, y, p, None)
        yield aten._cdist_forward.default, (x, y, p, None)
        yield aten._cdist_backward.default, (randn(2, 5, 4), x, y, p, distances)
        rows = randn(7, 3)
        rows[2] = rows[5]
        yield aten._pdist_forward.default, (rows, p)
        yield aten._pdist_backward.default, (randn(21), rows, p, aten._pdist_forward(rows, p))
    for mode in (0, 1, 2):
        yield aten._cdist_forward.default, (randn(30, 3), randn(3, 4, 3), 2.0, mode)
    yield aten._cdist_forward.default, (randn(2, 0), randn(3, 0), 2.0, None)
    yield aten._cdist_forward.default, (randn(0, 2), randn(3, 2), 1.0, None)
    yield aten._pdist_forward.default, (randn(1, 3), 2.0)


def quantized_cases():
    """With few rows and with many; test_quantized.py has more."""
    for rows in (1, 9):
        x, weight = randn(rows, 64), torch.randint(-128, 128, (64, 64), dtype=torch.int8)
        yield aten._weight_int8pack_mm.default, (x, weight, randn(64))
        packed = aten._convert_weight_to_int4pack_for_cpu(weight.to(torch.int32) & 15, 2)
        yield aten._weight_int4pack_mm_for_cpu.default, (x, packed, 32, randn(2, 64, 2))


def by_hand():
    torch.manual_seed(1)
    cases = (
        hand_made(), batch_norm_cases(), mixed_norm_cases(), nll_cases(), foreach_cases(),
        distance_cases(), quantized_cases(),
    )  # fmt: skip
    return [*itertools.chain(*cases)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case[0].name()[6:]) for case in by_hand()])
def test_what_no_sample_reaches(case):
    op, args, *kwargs = case
    compare(op, args, kwargs[0] if kwargs else {})


# ATen has it for GPUs only, but torch writes it into graphs for every device.
FOR_GPUS = aten._fused_rms_norm_backward.default


def test_rms_norms_gradient_is_autograds():
    x, weight, grad = randn(3, 5).requires_grad_(), randn(5).requires_grad_(), randn(3, 5)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    out = torch.nn.functional.rms_norm(x, [5], weight, 1e-5)
    expected = torch.autograd.grad(out, [x, weight], grad)
    with torch.no_grad():
        actual = decompositions()[FOR_GPUS](grad, x, [5], rstd, weight, [True, True])
    assert_same(list(actual), list(expected))


@pytest.mark.parametrize(("reduction", "beta"), [(0, 1.0), (1, 0.5), (2, 0.0)])
def test_smooth_l1_losss_gradient_of_what_is_not_finite(reduction, beta):
    op = aten.smooth_l1_loss_backward.default
    x = torch.tensor([math.nan, math.inf, -math.inf, 2.0, -2.0, 0.5, -0.25, 1.0, -1.0])
    args = torch.full_like(x, 3.0), x, torch.zeros_like(x), reduction, beta
    torch.testing.assert_close(table()[op](*args), op(*args), rtol=1e-6, atol=0, equal_nan=True)


def test_every_entry_is_compared():
    seen = {*cross_reference(torch.float32).calls, *cross_reference(torch.bfloat16).calls}
    missing = set(decompositions()) - seen - {op for op, *_ in by_hand()} - {FOR_GPUS}
    assert {str(op) for op in missing} == set()


def test_attention_is_not_taken_apart_by_torchs_rule():
    # It returns the weights in the place of the log-sum-exp.
    assert aten._scaled_dot_product_flash_attention_for_cpu.default not in decompositions()


def test_a_log_softmax_is_taken_apart_on_a_gpu_alone():
    op = aten._log_softmax.default
    assert op in table() and op not in decompositions()
    for dtype in SAMPLES:
        assert cross_reference(dtype).calls[op] > 0
        assert str(op) not in cross_reference(dtype).differences
