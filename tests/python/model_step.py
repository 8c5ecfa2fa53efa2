"""One step of a model, eager or compiled: outputs, loss, gradients and buffers, to be compared."""

import contextlib
import copy

import torch
from compare import assert_same, strides, to_double
from torch.utils._pytree import tree_leaves, tree_map

import kiln_torch

_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_AUTOCAST = {"autocast": torch.bfloat16, "autocast16": torch.float16}
PRECISIONS = ("float32", *_NARROW, *_AUTOCAST)
_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "autocast": 2e-2, "float16": 4e-3, "autocast16": 4e-3}
# Of the loss, as GradScaler has it: unscaled gradients of float16 are mostly too small for it.
_SCALE = 1024


def without_chance(model):
    """`model` with every dropout, layer drop and stochastic depth at probability 0."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or isinstance(module, _DROPOUTS)):
                setattr(module, name, 0.0)
        if isinstance(module, _DROPOUTS):
            module.p = 0.0
        if isinstance(module, torch.nn.RNNBase | torch.nn.MultiheadAttention):
            module.dropout = 0.0
    return model


_DROPOUTS = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d)


def _to(value, dtype):
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floats else value


def _on(value, device):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def float_outputs(outputs):
    values = outputs.values() if hasattr(outputs, "values") else outputs
    return [
        leaf
        for leaf in tree_leaves(list(values))
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]


def loss_of(outputs):
    """Every element counts, each with another weight."""
    total = 0
    for output in outputs:
        out = output if output.dtype == torch.float64 else output.float()
        weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device)
        weights = weights.reshape(out.shape)
        total = total + (out * weights).mean() + out.square().mean() / 2
    return total


def step(model, run, inputs, precision, train):
    """(outputs, gradients by name, buffers by name) of one call of `run`, which is `model` or its
    compiled form."""
    model.zero_grad()
    amp = torch.autocast(next(model.parameters()).device.type, dtype=_AUTOCAST.get(precision))
    with amp if precision in _AUTOCAST else contextlib.nullcontext():
        outputs = float_outputs(run(**inputs))
        if train:
            (_SCALE * loss_of(outputs)).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    buffers = {n: b.clone() for n, b in model.named_buffers() if b.is_floating_point()}
    return [out.detach() for out in outputs], gradients, buffers


def compare_step(
    model, inputs, precision="float32", train=True, dynamic=False, then=(), device="cpu"
):
    """AssertionError where a compiled step differs from eager's; returns kiln_torch.stats().

    `then`: the inputs of further steps. What eager refuses (batch norm of one element), Kiln must."""
    model = without_chance(model).train(train).to(device)
    inputs, *then = [tree_map(lambda value: _on(value, device), each) for each in (inputs, *then)]
    if precision in _NARROW:
        dtype = _NARROW[precision]
        model = model.to(dtype)
        inputs, *then = [tree_map(lambda value: _to(value, dtype), each) for each in (inputs, *then)]
    exact_model = copy.deepcopy(model).double()
    if getattr(getattr(model, "config", None), "_experts_implementation", None) is not None:
        exact_model.set_experts_implementation("eager")  # torch's grouped product has no float64
    ours = copy.deepcopy(model)
    torch._dynamo.reset()
    kiln_torch.reset()
    compiled = torch.compile(ours, backend="kiln", dynamic=dynamic)
    with torch.set_grad_enabled(train):
        for inputs in (inputs, *then):
            try:
                expected = step(model, model, inputs, precision, train)
            except (RuntimeError, ValueError):
                _refuses(lambda: step(ours, compiled, inputs, precision, train))
                continue
            exact_inputs = tree_map(to_double, inputs)
            exact = step(exact_model, exact_model, exact_inputs, "float64", train)
            actual = step(ours, compiled, inputs, precision, train)
            _compare(actual, expected, exact, _TOLERANCE[precision])
    return kiln_torch.stats()


def _refuses(call):
    try:
        call()
    except Exception:  # torch.compile has another type for some of eager's
        return
    raise AssertionError("eager raises, this does not")


def _compare(actual, expected, exact, tol):
    assert_same(actual[0], expected[0], exact[0], tol=tol, what="output")
    for kind, ours, theirs, reference in zip(
        ("gradient of", "buffer"), actual[1:], expected[1:], exact[1:], strict=True
    ):
        largest = max((_rms(value) for value in reference.values()), default=0.0)
        for name, value in theirs.items():
            # Gradients may be small: what counts is the error beside the gradient's own size, or
            # beside a thousandth of the largest where it is nothing but rounding errors.
            scale = max(_rms(reference[name]), 1e-3 * largest) or 1.0
            same_type = ours[name].dtype == value.dtype and strides(ours[name]) == strides(value)
            assert same_type, f"{kind} {name}: {ours[name].dtype}, {ours[name].stride()}"
            assert_same(
                ours[name].double() / scale,
                value.double() / scale,
                reference[name] / scale,
                tol=tol,
                what=f"{kind} {name}",
            )


def _rms(value):
    return value.double().square().mean().sqrt().item() if value.numel() else 0.0
