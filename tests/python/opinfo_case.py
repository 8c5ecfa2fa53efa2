"""One operator of torch's op_db in one dtype and direction: is Kiln's answer as good as eager's?

A case is named "OPERATOR DTYPE DIRECTION", such as "nn.functional.pad.reflect bfloat16 backward".
"""

import dataclasses
import functools
import itertools
import sys
import types
import unittest

import torch
from compare import assert_same, double_reference

try:
    import expecttest  # noqa: F401
except ImportError:  # torch's tests derive from its class; the samples need no more of it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import kiln_torch

# It seeds around some operators (dropout, attention), where torch.compile makes no graph of a call.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool", "complex64")
DIRECTIONS = ("forward", "backward")
TOLERANCES = {"bfloat16": 2e-2, "float16": 2e-3}  # of the others: 1e-4

# Their results' contents are whatever the memory held.
UNDEFINED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)
# Eager leaves equal elements in an order of its own: what their indices lead to counts. By name, the
# position of `dim` after the tensor.
EQUALS_IN_ANY_ORDER = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1}
DRAWS = 40  # of an operator that is random


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    direction: str

    def __str__(self):
        return f"{self.op} {self.dtype} {self.direction}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: str  # "equal", "fell back", "differs", "error" or "not applicable"
    why: str = ""


@functools.cache
def infos():
    return {info.full_name: info for info in op_db}


def all_cases(device="cpu"):
    """Every operator in every dtype and direction that torch supports on the device."""
    for name, info in infos().items():
        backward = info.supported_backward_dtypes(device) if info.supports_autograd else ()
        for dtype in DTYPES:
            if getattr(torch, dtype) in info.supported_dtypes(device):
                yield Case(name, dtype, "forward")
            if getattr(torch, dtype) in backward:
                yield Case(name, dtype, "backward")


class Sample:
    """A call of the operator as a function of its tensors alone."""

    def __init__(self, info, sample, backward):
        call = (sample.input, sample.args, sample.kwargs)
        self._leaves, self._spec = tree_flatten(call)
        self._places = [
            i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)
        ]
        self._op = info.op
        # What makes a result differentiable where only a part of it is determined (svd, eigh).
        self._process = sample.output_process_fn_grad if backward else lambda output: output
        self._dim = None
        if info.name in EQUALS_IN_ANY_ORDER and not backward and sample.input.dim() > 0:
            rest = sample.args[EQUALS_IN_ANY_ORDER[info.name] :]
            self._dim = sample.kwargs.get("dim", rest[0] if rest else -1)

    def tensors(self):
        """Copies, so that no call sees what another wrote."""
        return tuple(
            self._leaves[i].detach().clone().requires_grad_(self._leaves[i].requires_grad)
            for i in self._places
        )

    def __call__(self, *tensors):
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        value, args, kwargs = tree_unflatten(leaves, self._spec)
        result = self._process(self._op(value, *args, **kwargs))
        if self._dim is None:
            return result
        *values, indices = result if isinstance(result, tuple) else (result,)
        if indices.dim() < value.dim():
            indices = indices.unsqueeze(self._dim)
        return *values, value.gather(self._dim, indices)


def with_gradients(fn):
    """`fn`, with the gradients that its inputs get for fixed and uneven gradients of its outputs."""

    def run(*tensors):
        outputs = [leaf for leaf in tree_leaves(fn(*tensors)) if isinstance(leaf, torch.Tensor)]
        outputs = [output for output in outputs if output.requires_grad]
        inputs = [tensor for tensor in tensors if tensor.requires_grad]
        if not outputs or not inputs:
            raise NotDifferentiable
        given = [
            torch.linspace(0.5, 1.5, o.numel(), dtype=torch.float64, device=o.device)
            .reshape(o.shape)
            .to(o.dtype)
            for o in outputs
        ]
        gradients = torch.autograd.grad(outputs, inputs, given, materialize_grads=True)
        # Nothing promises the strides of a gradient.
        return [o.detach() for o in outputs], [gradient.contiguous() for gradient in gradients]

    return run


class NotDifferentiable(Exception):
    pass


def as_real(value):
    """Complex tensors as pairs of reals, for rules that know reals only."""
    if isinstance(value, torch.Tensor) and value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value


def compare(actual, expected, reference, tolerance):
    actual, expected = tree_leaves(actual), tree_leaves(expected)
    if reference is not None:
        reference = [as_real(leaf) for leaf in tree_leaves(reference)]
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, torch.Tensor):
            assert a.dtype == e.dtype, f"{a.dtype} instead of {e.dtype}"
    assert_same(
        [as_real(leaf) for leaf in actual],
        [as_real(leaf) for leaf in expected],
        reference,
        tolerance,
    )


def same_types(actual, expected):
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            assert (a.dtype, a.shape) == (e.dtype, e.shape), f"{a.dtype} {a.shape}"


def moments(fn, tensors):
    """Mean and variance of each result over DRAWS calls, all elements together."""
    draws = [
        [as_real(leaf).double().nan_to_num() for leaf in tree_leaves(fn(*tensors()))
         if isinstance(leaf, torch.Tensor)]
        for _ in range(DRAWS)
    ]  # fmt: skip
    results = [result for result in zip(*draws, strict=True) if result[0].numel()]
    stacked = [torch.stack(result).reshape(DRAWS, -1) for result in results]
    return [(s.mean(), s.mean(1).var()) for s in stacked]


def compare_random(compiled, eager, tensors):
    """Six standard deviations: what is drawn from one distribution fails once in 10^8."""
    for (a, spread), (e, other) in zip(
        moments(compiled, tensors), moments(eager, tensors), strict=True
    ):
        bound = 6 * ((spread + other) / DRAWS).sqrt() + 1e-6 * (1 + e.abs())
        assert (a - e).abs() <= bound, f"mean {a:.4g} instead of {e:.4g} over {DRAWS} draws"


def generator_states():
    """Where torch's default generators stand."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]


def is_random(fn, tensors):
    """Whether it draws numbers and two calls differ that start from two seeds. Calls also differ
    where CUDA's kernels add in no fixed order: that is rounding, and float64 tells who is nearer.
    """
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = generator_states()
        results.append(tree_leaves(fn(*tensors())))
        if all(map(torch.equal, before, generator_states())):
            return False
    return any(
        isinstance(a, torch.Tensor) and not torch.equal(as_real(a).nan_to_num(), as_real(b).nan_to_num())
        for a, b in zip(*results, strict=True)
    )


def reference_of(fn, tensors):
    """The answer in double precision, or None where the operator has none."""
    if not any(t.is_floating_point() or t.is_complex() for t in tensors()):
        return None
    doubled = [
        t.detach().to(torch.complex128 if t.is_complex() else t.dtype).requires_grad_(
            t.requires_grad
        )
        for t in tensors()
    ]
    try:
        return double_reference(fn, tuple(doubled))
    except Exception:
        return None


def run_sample(info, case, sample):
    call = Sample(info, sample, case.direction == "backward")
    tolerance = TOLERANCES.get(case.dtype, 1e-4)
    eager = with_gradients(call) if case.direction == "backward" else call
    try:
        torch.manual_seed(0)
        expected = eager(*call.tensors())
        random = info.name not in UNDEFINED and is_random(eager, call.tensors)
    except NotDifferentiable:
        return Outcome("not applicable", "nothing to differentiate")
    except Exception as error:
        return Outcome("not applicable", f"eager: {error}")
    torch._dynamo.reset()
    kiln_torch.reset()
    compiled = torch.compile(call, backend="kiln", dynamic=False)
    if case.direction == "backward":
        compiled = with_gradients(compiled)
    try:
        torch.manual_seed(0)
        with torch.set_grad_enabled(case.direction == "backward"):
            actual = compiled(*call.tensors())
            same_types(actual, expected)
            if random:
                compare_random(compiled, eager, call.tensors)
            elif info.name not in UNDEFINED:
                compare(actual, expected, reference_of(eager, call.tensors), tolerance)
    except AssertionError as error:
        return Outcome("differs", str(error))
    except Exception as error:
        return Outcome("error", f"{type(error).__name__}: {error}")
    stats = kiln_torch.stats()
    if stats["fallbacks"]:
        return Outcome("fell back", stats["fallbacks"][0]["reason"])
    if stats["graphs"] == 0:
        return Outcome("not applicable", "torch.compile makes no graph of it")
    return Outcome("equal")


def run_case(case, count=2, device="cpu"):
    """The worst outcome of the first `count` samples."""
    info = infos()[case.op]
    dtype = getattr(torch, case.dtype)
    try:
        samples = info.sample_inputs(device, dtype, requires_grad=case.direction == "backward")
        samples = list(itertools.islice(samples, count))
    except Exception as error:
        return Outcome("not applicable", f"no samples: {error}")
    outcomes = [run_sample(info, case, sample) for sample in samples]
    ranks = ("error", "differs", "fell back", "equal", "not applicable")
    return min(outcomes, key=lambda o: ranks.index(o.status), default=Outcome("not applicable"))
