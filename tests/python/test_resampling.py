"""Resampling: one operator and one gradient in a graph, equal to eager in all sizes."""

import pytest
import torch
from compare import assert_same
from torch.nn import functional

import kiln_torch

SIZES = {"linear": (7,), "bilinear": (5, 7), "bicubic": (5, 7), "trilinear": (3, 4, 5)}
CALLS = [
    *((mode, 3, {"scale_factor": 2.0}) for mode in ("nearest", "nearest-exact")),
    *((mode, 2, {"scale_factor": 2.0}) for mode in ("nearest", "nearest-exact")),
    *((mode, len(SIZES[mode]), {"scale_factor": 2.0}) for mode in SIZES),
    *((mode, len(SIZES[mode]), {"scale_factor": 1.5}) for mode in SIZES),
    *((mode, len(SIZES[mode]), {"scale_factor": 0.6}) for mode in SIZES),
    *((mode, len(SIZES[mode]), {"scale_factor": 2.0, "align_corners": True}) for mode in SIZES),
    ("bilinear", 2, {"size": (9, 4)}),
    ("bilinear", 2, {"size": (9, 4), "align_corners": True}),
    ("bilinear", 2, {"size": (1, 8), "align_corners": True}),
    ("bicubic", 2, {"size": (2, 13)}),
]


def both(fn, x):
    x = x.detach().requires_grad_()
    out = fn(x)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    return out.detach(), gradient.contiguous()


IN_OTHER_TYPES = [CALLS[2], CALLS[5], CALLS[6]]


@pytest.mark.parametrize(
    ("mode", "spatial", "how", "dtype"),
    [
        *((*call, torch.float32) for call in CALLS),
        *((*call, torch.float64) for call in IN_OTHER_TYPES),
        *((*call, torch.bfloat16) for call in IN_OTHER_TYPES),
    ],
)
def test_values_and_gradients_are_eagers_without_a_library_step(mode, spatial, how, dtype):
    def fn(x):
        return functional.interpolate(x, mode=mode, **how)

    x = torch.randn(2, 3, *(3, 5, 7)[:spatial]).to(dtype)
    if spatial == 2 and dtype == torch.float32:
        x = x.to(memory_format=torch.channels_last)
    compiled = torch.compile(fn, backend="kiln", dynamic=False)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    assert_same(both(compiled, x), both(fn, x), both(fn, x.double()), tolerance)
    assert kiln_torch.stats()["steps"]["library"] == 0
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("mode", ["nearest", "linear", "bilinear", "bicubic", "trilinear"])
@pytest.mark.parametrize("factor", [2.0, 1.5])
def test_sizes_may_be_symbols(mode, factor):
    def fn(x):
        return functional.interpolate(x, scale_factor=factor, mode=mode)

    spatial = len(SIZES.get(mode, (5, 7)))
    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for sizes in ((4, 6, 5), (7, 3, 8)):
        x = torch.randn(2, 3, *sizes[:spatial])
        assert_same(both(compiled, x), both(fn, x), both(fn, x.double()))
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_factor_that_keeps_the_size_copies(mode, dynamic):
    def fn(x):
        return functional.interpolate(x, scale_factor=1.15, mode=mode)

    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
    for length in (5, 6, 7, 9, 4):  # to 5, 6, 8, 10, 4
        x = torch.randn(2, 3, *SIZES[mode][1:], length)
        assert_same(both(compiled, x), both(fn, x), both(fn, x.double()), 1e-4)
    assert kiln_torch.stats()["fallbacks"] == []


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_gradients_of_antialiased_resampling_with_sizes_that_are_symbols(mode):
    def fn(x):
        return functional.interpolate(x, scale_factor=(0.6, 1.7), mode=mode, antialias=True)

    compiled = torch.compile(fn, backend="kiln", dynamic=True)
    for height, width in ((9, 5), (12, 7)):
        x = torch.randn(2, 3, height, width)
        assert_same(both(compiled, x), both(fn, x), both(fn, x.double()), 1e-4)
    assert kiln_torch.stats()["fallbacks"] == []


def test_torchs_own_tables_are_as_they_were_after_a_trace():
    op = torch.ops.aten.upsample_bilinear2d
    before = dict(op.vec.py_kernels), dict(op.default.py_kernels)
    compiled = torch.compile(lambda x: functional.interpolate(x, scale_factor=2.0), backend="kiln")
    compiled(torch.randn(1, 1, 2, 2))
    assert before == (op.vec.py_kernels, op.default.py_kernels)
